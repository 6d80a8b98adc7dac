//! The hyper-parameters of one layer: its attention heads, how it sees positions, the width of its
//! feed-forward.
//!
//! Layers of one model may differ: some architectures rotate only part of their layers, or limit the
//! attention of most of them to a sliding window. Layers with equal attention form a *kind*, and a rope
//! method is planned once for each.

use super::{MAX_CTX, MAX_DIM, MAX_FREQ_BASE};

/// The numbers of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerHparams {
    /// Index into [`Hparams::attention`](super::Hparams::attention); `None` in layers without attention, which are
    /// gated delta-nets ([`Hparams::delta_net`](super::Hparams::delta_net)).
    pub kind: Option<usize>,
    /// Width of the feed-forward; of each expert's where it is a mixture of experts.
    pub n_ff: usize,
}

impl LayerHparams {
    /// The layers of a model in which all are alike.
    pub fn alike(n_layer: usize, n_ff: usize) -> Vec<LayerHparams> {
        vec![LayerHparams { kind: Some(0), n_ff }; n_layer]
    }
}

/// The numbers of mixtures of experts, those of all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertHparams {
    /// Experts of a layer.
    pub n_expert: usize,
    /// Experts that each token is given to.
    pub n_used: usize,
    /// Width of the shared expert, which every token uses, if there is one.
    pub n_ff_shared: Option<usize>,
    /// True if the weights of the experts chosen by softmax over all are scaled to a sum of 1.
    pub normalised: bool,
}

/// The numbers of gated delta-nets, which are alike in all layers that have one in place of attention.
///
/// Source: `llama_model_qwen35` in llama.cpp's `src/models/qwen35.cpp`, whose metadata keys are those of state-space
/// models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetHparams {
    /// Heads of queries and keys (`ssm.group_count`); a divisor of `n_head_v`.
    pub n_head_k: usize,
    /// Heads of values (`ssm.time_step_rank`), each with a state.
    pub n_head_v: usize,
    /// Width of one head (`ssm.state_size`), of queries, keys and values alike.
    pub n_embd_head: usize,
    /// Tokens that the convolution sees, the newest among them (`ssm.conv_kernel`).
    pub n_conv: usize,
}

impl DeltaNetHparams {
    /// Width of the values of one token: all heads side by side.
    pub fn n_embd_v(&self) -> usize {
        self.n_head_v * self.n_embd_head
    }

    /// Width of the queries, keys and values of one token side by side, which the convolution works on.
    pub fn n_embd_conv(&self) -> usize {
        2 * self.n_head_k * self.n_embd_head + self.n_embd_v()
    }

    /// Numbers of one layer's recurrent state: a square matrix for each head of values.
    pub fn n_state(&self) -> usize {
        self.n_embd_v() * self.n_embd_head
    }

    /// Numbers of one layer's convolution state: what it sees of earlier tokens.
    pub fn n_conv_state(&self) -> usize {
        (self.n_conv - 1) * self.n_embd_conv()
    }
}

/// The attention of one kind of layer: its heads, and how queries and keys see positions.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerAttention {
    /// Query heads.
    pub n_head: usize,
    /// Key-value heads; a divisor of `n_head`.
    pub n_head_kv: usize,
    /// Width of one head, of queries, keys and values alike.
    pub n_embd_head: usize,
    /// How queries and keys are rotated; `None` in layers without position embedding (NoPE).
    pub rotation: Option<LayerRotation>,
    /// Sliding window: a query sees the keys at distances below this many tokens. `None`: every key before
    /// it.
    pub window: Option<usize>,
    /// Factor on queries that grows with their position.
    pub temperature: Option<AttentionTemperature>,
    /// Factor on the products of queries and keys; `1/sqrt(n_embd_head)` in most architectures.
    pub scale: f32,
    /// Scaled products `s` become `softcap * tanh(s / softcap)` before the softmax (Gemma 2).
    pub softcap: Option<f32>,
}

/// The rotary position embedding of one kind of layer, as the file has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerRotation {
    /// Base of the frequencies, above 1.
    pub freq_base: f64,
    /// Rotary dimensions of a head: even, at most the width of the head.
    pub n_rot: usize,
    /// True if the scaling that the file declares ([`RopeScaling`](super::RopeScaling), its factor tensors included)
    /// applies to this kind. Some architectures scale only the layers that see the whole text.
    pub scaled: bool,
}

/// Queries at position i are multiplied by `1 + scale * ln(floor((i + offset) / length) + 1)`.
///
/// The attention temperature of Llama 4 and Ministral 3, as `llm_graph_input_attn_temp` of llama.cpp computes
/// it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionTemperature {
    /// Factor on the logarithm.
    pub scale: f64,
    /// Tokens after which the logarithm grows, above 0.
    pub length: f64,
    /// Added to positions.
    pub offset: f64,
}

impl AttentionTemperature {
    /// The factor on queries at position `i` (0 or more).
    pub fn at(&self, i: i32) -> f64 {
        1.0 + self.scale * (((f64::from(i) + self.offset) / self.length).floor() + 1.0).ln()
    }
}

impl LayerAttention {
    /// Attention over every earlier key, without rotation and with the usual scale.
    pub fn new(n_head: usize, n_head_kv: usize, n_embd_head: usize) -> LayerAttention {
        let scale = 1.0 / (n_embd_head as f32).sqrt();
        let (rotation, window, temperature, softcap) = (None, None, None, None);
        LayerAttention { n_head, n_head_kv, n_embd_head, rotation, window, temperature, scale, softcap }
    }

    /// The same with a rotation, to which the file's scaling applies.
    pub fn rotated(self, freq_base: f64, n_rot: usize) -> LayerAttention {
        LayerAttention { rotation: Some(LayerRotation { freq_base, n_rot, scaled: true }), ..self }
    }

    /// Rotary dimensions of a head, 0 in layers without rotation.
    pub fn n_rot(&self) -> usize {
        self.rotation.map_or(0, |r| r.n_rot)
    }

    /// Width of the queries of one token: all heads side by side.
    pub fn n_embd_q(&self) -> usize {
        self.n_head.saturating_mul(self.n_embd_head)
    }

    /// Width of the keys of one token, and of its values.
    pub fn n_embd_kv(&self) -> usize {
        self.n_head_kv.saturating_mul(self.n_embd_head)
    }

    /// Checks that the layer can be computed. The error is the metadata key, without the architecture's prefix, and the
    /// value expected there.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let (n_head, n_kv, d) = (self.n_head, self.n_head_kv, self.n_embd_head);
        let refuse = |key, what: String| Err((key, what));
        if n_head == 0 || d == 0 || n_head.saturating_mul(d) > MAX_DIM {
            let what = format!("{n_head} heads of width {d} are more than {MAX_DIM} values");
            return refuse("attention.head_count", what);
        }
        check_heads(n_head, n_kv)?;
        if let Some(LayerRotation { freq_base, n_rot, .. }) = self.rotation {
            let key = "rope.dimension_count";
            if !(2..=d).contains(&n_rot) {
                return refuse(key, format!("expected 2 to {d}, found {n_rot}"));
            }
            if !n_rot.is_multiple_of(2) {
                return refuse(key, format!("expected an even number, found {n_rot}"));
            }
            if !(freq_base > 1.0 && freq_base <= MAX_FREQ_BASE) {
                let expected = format_args!("a number above 1, at most {MAX_FREQ_BASE:e}");
                return refuse("rope.freq_base", format!("expected {expected}, found {freq_base:e}"));
            }
        }
        if let Some(window) = self.window.filter(|w| !(1..=MAX_CTX).contains(w)) {
            return refuse("attention.sliding_window", format!("expected 1 to {MAX_CTX}, found {window}"));
        }
        let above_0 = |x: f32| x.is_finite() && x > 0.0;
        if !above_0(self.scale) {
            return refuse("attention.scale", format!("expected a number above 0, found {}", self.scale));
        }
        if let Some(cap) = self.softcap.filter(|cap| !above_0(*cap)) {
            return refuse("attn_logit_softcapping", format!("expected a number above 0, found {cap}"));
        }
        let fits = |t: &AttentionTemperature| {
            t.length > 0.0 && t.length.is_finite() && t.scale.is_finite() && t.offset >= 0.0
        };
        match self.temperature.filter(|t| !fits(t)) {
            Some(t) => {
                refuse("attention.temperature_length", format!("expected numbers above 0, found {t:?}"))
            }
            None => Ok(()),
        }
    }
}

/// Checks that query heads can share key-value heads evenly; the error is as in [`LayerAttention::check`].
pub(super) fn check_heads(n_head: usize, n_kv: usize) -> Result<(), (&'static str, String)> {
    let key = "attention.head_count_kv";
    if !(1..=n_head).contains(&n_kv) {
        return Err((key, format!("expected 1 to {n_head}, found {n_kv}")));
    }
    if !n_head.is_multiple_of(n_kv) {
        return Err((key, format!("expected a divisor of attention.head_count = {n_head}, found {n_kv}")));
    }
    Ok(())
}
