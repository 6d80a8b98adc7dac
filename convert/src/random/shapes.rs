//! Shapes of random models: the tiny ones tests use, and those of well-known models, for speed.

use gguf::Value;
use ropewalk_core::hparams::{DeltaNetHparams, Gelu};

use super::tiny;
use crate::{Error, Result};

/// The numbers a random model is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// `general.architecture`; decides the prefix of the keys.
    pub arch: String,
    /// Layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key-value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Width of one head. The qwen2 graph wants `n_embd / n_head`.
    pub n_embd_head: usize,
    /// Dimensions of a head that are rotated; `None` for all.
    pub n_rot: Option<usize>,
    /// Width of the feed-forward.
    pub n_ff: usize,
    /// Tokens, at least [`super::tokens::N_MIN`]; those beyond are unused.
    pub n_vocab: usize,
    /// `context_length`, tokens.
    pub n_ctx_train: usize,
    /// The output matrix is the embedding table.
    pub tied: bool,
    /// Queries, keys and values are one map.
    pub fused_qkv: bool,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Biases on the other maps of a layer.
    pub bias: bool,
    /// A bias on the logits.
    pub output_bias: bool,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// The norms of a layer.
    pub norms: Norms,
    /// `Some` if norms are LayerNorm, with true if they have a bias; `None` for RMSNorm.
    pub layer_norm: Option<bool>,
    /// The feed-forward.
    pub ffn: Ffn,
    /// The form of GELU, where it is not llama.cpp's (tanh).
    pub gelu: Gelu,
    /// Gated delta-nets in place of attention; the layers that attend gate their output.
    pub delta_net: Option<DeltaNet>,
    /// A score for each query head that takes part in the softmax of attention.
    pub sinks: bool,
    /// `rope.freq_base`.
    pub freq_base: f32,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// `rope_freqs.weight`: what the angle of each pair is divided by, a value for each. Stock llama.cpp
    /// refuses a qwen2 file that has it.
    pub rope_factors: Option<Vec<f32>>,
    /// The same of `rope_factors_long.weight` and `rope_factors_short.weight`.
    pub longrope: Option<[Vec<f32>; 2]>,
    /// Keys that only this architecture has, without its name in front.
    pub keys: Vec<(&'static str, Value)>,
}

/// Which layers are gated delta-nets, and the numbers of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNet {
    /// Every how many layers one attends.
    pub every: usize,
    /// Heads and convolution.
    pub net: DeltaNetHparams,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    No,
    /// One norm per head.
    Head,
    /// One norm over all heads.
    All,
}

/// The norms of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    /// Before attention and before the feed-forward.
    Pre,
    /// After them.
    Post,
    /// Before and after them.
    Both,
    /// One before both.
    Shared,
    /// Before attention and before the feed-forward, the second by the name of one after attention (gpt-oss).
    PreByPost,
}

/// A feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ffn {
    /// Gate, up and down.
    Gated,
    /// Gate and up as one map, and down.
    FusedGate,
    /// Up and down.
    Plain,
    /// A router and experts of gate, up and down.
    Experts {
        /// Experts of a layer.
        n: usize,
        /// Experts per token.
        used: usize,
        /// Width of the shared expert, which every token uses; 0 for none.
        shared: usize,
    },
}

/// A shape `--random` knows.
#[derive(Debug)]
pub struct NamedShape {
    /// Name of the shape, as users type it.
    pub name: &'static str,
    /// The shape.
    pub shape: fn() -> Shape,
}

macro_rules! shapes {
    ($($name:literal $shape:expr;)*) => {
        /// Every named shape.
        pub static SHAPES: &[NamedShape] =
            &[$(NamedShape { name: $name, shape: || -> Shape { $shape } }),*];
    };
}

shapes! {
    "llama-tiny" llama_tiny();
    "llama-tiny-mha" Shape { n_head_kv: 4, ..llama_tiny() };
    "llama-tiny-tied" Shape { tied: true, ..llama_tiny() };
    "llama-tiny-gqa" Shape {
        n_embd: 512,
        n_head: 8,
        n_ff: 768,
        freq_base: 500_000.0,
        rope_factors: Some(llama3_factors(64, 500_000.0, 8.0)),
        ..llama_tiny()
    };
    "qwen2-tiny" qwen2_tiny();
    "qwen2-tiny-tied" Shape { tied: true, ..qwen2_tiny() };
    "qwen3-tiny" Shape {
        arch: "qwen3".into(),
        qkv_bias: false,
        qk_norm: QkNorm::Head,
        n_embd_head: 96,
        ..qwen2_tiny()
    };
    "smollm3-tiny" Shape { arch: "smollm3".into(), n_layer: 5, ..llama_tiny() };
    "cohere2-tiny" tiny::cohere2();
    "gemma2-tiny" tiny::gemma2();
    "gemma3-tiny" tiny::gemma3();
    "gptneox-tiny" tiny::gptneox(true);
    "gptneox-tiny-sequential" tiny::gptneox(false);
    "gptneox-tiny-erf" Shape { gelu: Gelu::Erf, ..tiny::gptneox(true) };
    "gpt-oss-tiny" tiny::gpt_oss();
    "granite-tiny" tiny::granite();
    "mistral3-tiny" tiny::mistral3();
    "olmo2-tiny" tiny::olmo2();
    "olmo3-tiny" tiny::olmo3();
    "phi2-tiny" tiny::phi2();
    "phi3-tiny" tiny::phi3();
    "qwen35-tiny" tiny::qwen35();
    "qwen35moe-tiny" tiny::qwen35moe();
    "qwen3moe-tiny" tiny::qwen3moe();
    "qwen3-30b-a3b-4" Shape {
        n_layer: 4,
        n_embd: 2048,
        n_head: 32,
        n_head_kv: 4,
        n_embd_head: 128,
        n_ff: 768,
        n_vocab: 151_936,
        n_ctx_train: 32_768,
        ffn: Ffn::Experts { n: 128, used: 8, shared: 0 },
        ..tiny::qwen3moe()
    };
    "smollm2-135m" Shape {
        n_layer: 30,
        n_embd: 576,
        n_head: 9,
        n_head_kv: 3,
        n_ff: 1536,
        n_vocab: 49152,
        n_ctx_train: 8192,
        tied: true,
        freq_base: 100_000.0,
        ..llama_tiny()
    };
    "llama-1b" Shape {
        n_layer: 16,
        n_embd: 2048,
        n_head: 32,
        n_head_kv: 8,
        n_ff: 8192,
        n_vocab: 128_256,
        n_ctx_train: 131_072,
        tied: true,
        freq_base: 500_000.0,
        rope_factors: Some(llama3_factors(64, 500_000.0, 32.0)),
        ..llama_tiny()
    };
    "llama-8b" Shape {
        n_layer: 32,
        n_embd: 4096,
        n_head: 32,
        n_head_kv: 8,
        n_embd_head: 128,
        n_ff: 14336,
        n_vocab: 128_256,
        n_ctx_train: 8192,
        freq_base: 500_000.0,
        ..llama_tiny()
    };
    "qwen2-7b" Shape {
        n_layer: 28,
        n_embd: 3584,
        n_head: 28,
        n_head_kv: 4,
        n_embd_head: 128,
        n_ff: 18944,
        n_vocab: 152_064,
        n_ctx_train: 32768,
        freq_base: 1_000_000.0,
        ..qwen2_tiny()
    };
}

pub(super) fn llama_tiny() -> Shape {
    Shape {
        arch: "llama".into(),
        n_layer: 2,
        n_embd: 256,
        n_head: 4,
        n_head_kv: 2,
        n_embd_head: 64,
        n_rot: None,
        n_ff: 512,
        n_vocab: 320,
        n_ctx_train: 512,
        tied: false,
        fused_qkv: false,
        qkv_bias: false,
        bias: false,
        output_bias: false,
        qk_norm: QkNorm::No,
        norms: Norms::Pre,
        layer_norm: None,
        ffn: Ffn::Gated,
        gelu: Gelu::Tanh,
        delta_net: None,
        sinks: false,
        freq_base: 10_000.0,
        norm_eps: 1e-5,
        rope_factors: None,
        longrope: None,
        keys: Vec::new(),
    }
}

fn qwen2_tiny() -> Shape {
    Shape { arch: "qwen2".into(), qkv_bias: true, freq_base: 1_000_000.0, norm_eps: 1e-6, ..llama_tiny() }
}

/// Llama 3.1's factors for `rope_freqs.weight`, as llama.cpp's converter computes them: pairs whose
/// wavelength is past 8192 tokens are slowed by `factor`, those within 8192 / 4 are left, those between are
/// blended.
fn llama3_factors(n_rot: usize, base: f64, factor: f64) -> Vec<f32> {
    let (n_ctx, low, high) = (8192.0, 1.0, 4.0);
    let one = |i: usize| {
        let wavelength = 2.0 * std::f64::consts::PI * base.powf(2.0 * i as f64 / n_rot as f64);
        if wavelength < n_ctx / high {
            1.0
        } else if wavelength > n_ctx / low {
            factor
        } else {
            let smooth = (n_ctx / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..n_rot / 2).map(|i| one(i) as f32).collect()
}

impl Shape {
    /// Dimensions of a head that are rotated.
    pub fn n_rot(&self) -> usize {
        self.n_rot.unwrap_or(self.n_embd_head)
    }

    /// The shape of this name.
    ///
    /// # Errors
    /// An unknown name; the answer lists the known ones.
    pub fn named(name: &str) -> Result<Shape> {
        SHAPES.iter().find(|s| s.name == name).map(|s| (s.shape)()).ok_or_else(|| {
            let names: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
            Error::Argument(format!("random: unknown shape {name:?}; known: {}", names.join(" ")))
        })
    }

    /// Refuses numbers no model can have.
    pub(super) fn check(&self) -> Result<()> {
        const MAX: usize = 1 << 24;
        let counts = [
            ("n_layer", self.n_layer, 1, 512),
            ("n_embd", self.n_embd, 2, MAX),
            ("n_head", self.n_head, 1, MAX),
            ("n_head_kv", self.n_head_kv, 1, self.n_head),
            ("n_embd_head", self.n_embd_head, 2, MAX / self.n_head.max(1)),
            ("n_rot", self.n_rot(), 2, self.n_embd_head),
            ("n_ff", self.n_ff, 2, MAX / 2),
            ("n_vocab", self.n_vocab, super::tokens::N_MIN, MAX),
            ("n_ctx_train", self.n_ctx_train, 1, i32::MAX as usize),
        ];
        let experts = match self.ffn {
            Ffn::Experts { n, used, shared } => {
                vec![("experts", n, 2, 512), ("experts used", used, 1, n), ("shared", shared, 0, MAX)]
            }
            _ => Vec::new(),
        };
        if let Some(DeltaNet { every, net }) = self.delta_net {
            let DeltaNetHparams { n_head_k, n_head_v, n_embd_head, n_conv } = net;
            let sound = (1..=1 << 12).contains(&n_embd_head) && (1..=1 << 12).contains(&n_head_v);
            let heads = sound && n_head_k > 0 && n_head_v.is_multiple_of(n_head_k);
            if !heads || !(2..=256).contains(&n_conv) || every == 0 {
                return Err(Error::Invalid(format!(
                    "shape: delta_net: {net:?} in all but every {every}. layer"
                )));
            }
        }
        for (name, n, min, max) in counts.into_iter().chain(experts) {
            if !(min..=max).contains(&n) {
                return Err(Error::Invalid(format!("shape: {name}: expected {min} to {max}, found {n}")));
            }
        }
        if !self.n_head.is_multiple_of(self.n_head_kv) || self.n_embd_head % 2 + self.n_rot() % 2 > 0 {
            let what = "n_head_kv must divide n_head, and n_embd_head and n_rot must be even";
            return Err(Error::Invalid(format!("shape: {what}")));
        }
        let positive = |x: f32| x.is_finite() && x > 0.0;
        if !positive(self.freq_base) || !positive(self.norm_eps) {
            return Err(Error::Invalid("shape: freq_base and norm_eps must be above 0".into()));
        }
        let factors = self.rope_factors.iter().chain(self.longrope.iter().flatten());
        for f in factors {
            if f.len() != self.n_rot() / 2 || !f.iter().all(|&x| positive(x)) {
                let what = format!("rope factors: expected {} numbers above 0", self.n_rot() / 2);
                return Err(Error::Invalid(format!("shape: {what}")));
            }
        }
        Ok(())
    }
}
