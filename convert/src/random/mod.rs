//! Random-weight models: small ones for tests, full-sized ones for measuring speed.

mod shapes;
mod tiny;
pub mod tokens;
mod values;

use gguf::{DType, Output, Value, Writer};

use crate::{types, Error, Result};
use ropewalk_core::control::Control;
use ropewalk_core::hparams::{keys, DeltaNetHparams, Gelu};
use ropewalk_core::ids::{self, LinearId, NormId, NormRole, ParamId, Role, TOKEN_EMBD};
pub use shapes::{DeltaNet, Ffn, NamedShape, Norms, QkNorm, Shape, SHAPES};
use values::{normal, Source};

/// A tensor to be made.
struct TensorSpec {
    name: String,
    /// In ggml's order.
    shape: Vec<u64>,
    fill: Fill,
}

/// The values of a random tensor.
#[derive(Clone)]
enum Fill {
    /// Mean and standard deviation.
    Normal(f32, f32),
    Values(Vec<f32>),
}

/// Writes a random-weight model: matrices as `dtype` (with [`types::target`]'s fallbacks), vectors as F32, a
/// byte-level tokenizer. The file depends on nothing but the arguments. Returns its size in bytes.
///
/// # Errors
/// A shape no model can have, a type that cannot be written, or the file system.
pub fn write(shape: &Shape, dtype: DType, seed: u64, path: impl Into<Output>) -> Result<u64> {
    write_watched(shape, dtype, seed, path, &Control::default())
}

/// [`write()`], with progress (bytes of tensor data) and cancellation.
///
/// # Errors
/// Returns the errors of [`write()`], and [`Error::Interrupted`].
pub fn write_watched(
    shape: &Shape,
    dtype: DType,
    seed: u64,
    path: impl Into<Output>,
    control: &Control<'_>,
) -> Result<u64> {
    shape.check()?;
    let Some(file_type) = types::file_type(dtype) else {
        return Err(Error::Invalid(format!("random models cannot be written as {}", dtype.name())));
    };
    let tensors = tensors(shape);
    let source = Source::new(seed);
    let mut writer = Writer::new();
    write_keys(&mut writer, shape, file_type, seed);
    writer.watch(|done, total| control.writing(done, total));
    for (i, tensor) in tensors.iter().enumerate() {
        let dtype = types::target_of(dtype, &tensor.name, &tensor.shape);
        let row = tensor.shape[0] as usize;
        let n = tensor.shape.iter().product::<u64>() as usize;
        let source = &source;
        // Stream 0 is the pool's.
        let stream = i as u64 + 1;
        let data = move |out: &mut dyn std::io::Write| -> std::io::Result<()> {
            let plain = |out: &mut dyn std::io::Write, values: &[f32]| {
                out.write_all(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
            };
            match &tensor.fill {
                Fill::Values(values) => plain(out, values),
                Fill::Normal(mean, std) if types::stays_f32(&tensor.name, &tensor.shape) => {
                    plain(out, &normal(source.seed, stream, 0, n, *mean, *std))
                }
                Fill::Normal(_, std) => source.write(out, stream, dtype, (n, row), *std),
            }
        };
        writer.tensor(&tensor.name, dtype, &tensor.shape, Box::new(data))?;
    }
    match writer.write(path) {
        Err(_) if control.stopped() => Err(Error::Interrupted),
        done => Ok(done?),
    }
}

/// The tensors of a shape, gathered in file order.
struct Tensors<'s> {
    shape: &'s Shape,
    list: Vec<TensorSpec>,
}

impl Tensors<'_> {
    fn add(&mut self, name: String, shape: &[u64], fill: Fill) {
        self.list.push(TensorSpec { name, shape: shape.to_vec(), fill });
    }

    /// A matrix whose results are `gain` times as large as its input, and its bias.
    fn linear(&mut self, id: LinearId, [n_in, n_out]: [u64; 2], gain: f32, bias: bool) {
        self.add(id.weight(), &[n_in, n_out], matrix(gain, n_in));
        if bias {
            self.add(ParamId::Bias(id).to_string(), &[n_out], Fill::Normal(0.0, 0.5));
        }
    }

    fn norm(&mut self, id: NormId, n: u64) {
        self.add(id.weight(), &[n], Fill::Normal(1.0, 0.1));
        if self.shape.layer_norm == Some(true) {
            self.add(ParamId::NormBias(id).to_string(), &[n], Fill::Normal(0.0, 0.1));
        }
    }

    fn layer(&mut self, il: usize) {
        let shape = self.shape;
        let embd = shape.n_embd as u64;
        let norm = |role| NormId::layer(il, role);
        let before = matches!(shape.norms, Norms::Pre | Norms::Both);
        let after = matches!(shape.norms, Norms::Post | Norms::Both);
        if before || matches!(shape.norms, Norms::Shared | Norms::PreByPost) {
            self.norm(norm(NormRole::Attn), embd);
        }
        if let Some(DeltaNet { net, .. }) = shape.delta_net.filter(|net| !(il + 1).is_multiple_of(net.every))
        {
            self.delta_net(il, &net);
        } else {
            self.attention(il);
        }
        if after || shape.norms == Norms::PreByPost {
            self.norm(norm(NormRole::AttnPost), embd);
        }
        if before {
            self.norm(norm(NormRole::Ffn), embd);
        }
        if let Ffn::Experts { n, shared, .. } = shape.ffn {
            self.experts(il, n as u64);
            if shared > 0 {
                self.shared_expert(il, shared as u64);
            }
        } else {
            self.feed_forward(il);
        }
        if after {
            self.norm(norm(NormRole::FfnPost), embd);
        }
    }

    fn attention(&mut self, il: usize) {
        let shape = self.shape;
        let (embd, head) = (shape.n_embd as u64, shape.n_embd_head as u64);
        let (q, kv) = (shape.n_head as u64 * head, shape.n_head_kv as u64 * head);
        let (map, norm) = (|role| LinearId::layer(il, role), |role| NormId::layer(il, role));
        // In models with gated delta-nets, queries come with a gate for each value.
        let q_and_gate = if shape.delta_net.is_some() { 2 * q } else { q };
        if shape.fused_qkv {
            self.linear(map(Role::Qkv), [embd, q + 2 * kv], 1.3, shape.qkv_bias);
        } else {
            for (role, n_out, gain) in [(Role::Q, q_and_gate, 1.5), (Role::K, kv, 1.5), (Role::V, kv, 1.0)] {
                self.linear(map(role), [embd, n_out], gain, shape.qkv_bias);
            }
        }
        let (n_q, n_k) = match shape.qk_norm {
            QkNorm::No => (0, 0),
            QkNorm::Head => (head, head),
            QkNorm::All => (q, kv),
        };
        if n_q > 0 {
            self.norm(norm(NormRole::Q), n_q);
            self.norm(norm(NormRole::K), n_k);
        }
        self.linear(map(Role::O), [q, embd], 1.0, shape.bias);
        if shape.sinks {
            self.add(ids::sinks(il), &[shape.n_head as u64], Fill::Normal(1.0, 1.0));
        }
    }

    fn delta_net(&mut self, il: usize, net: &DeltaNetHparams) {
        let embd = self.shape.n_embd as u64;
        let [conv, head, all] = [net.n_embd_conv(), net.n_head_v, net.n_embd_v()].map(|n| n as u64);
        let [weights, dt, a] = ids::delta_net(il);
        let maps = [(Role::Qkv, conv), (Role::AttnGate, all), (Role::SsmAlpha, head), (Role::SsmBeta, head)];
        for (role, n_out) in maps {
            self.linear(LinearId::layer(il, role), [embd, n_out], 1.0, false);
        }
        self.add(weights, &[net.n_conv as u64, conv], matrix(1.0, net.n_conv as u64));
        self.add(dt, &[head], Fill::Normal(-1.0, 1.0));
        // Heads that forget within a few tokens, and some that remember for long.
        let rate = |h: u64| -(2f32.powf(1.0 - 8.0 * h as f32 / head as f32));
        self.add(a, &[head], Fill::Values((0..head).map(rate).collect()));
        self.norm(NormId::layer(il, NormRole::Ssm), net.n_embd_head as u64);
        self.linear(LinearId::layer(il, Role::SsmOut), [all, embd], 1.0, false);
    }

    fn feed_forward(&mut self, il: usize) {
        let shape = self.shape;
        let (embd, ff) = (shape.n_embd as u64, shape.n_ff as u64);
        let map = |role| LinearId::layer(il, role);
        if shape.ffn == Ffn::Gated {
            self.linear(map(Role::Gate), [embd, ff], 1.0, shape.bias);
        }
        let up = if shape.ffn == Ffn::FusedGate { 2 * ff } else { ff };
        self.linear(map(Role::Up), [embd, up], 1.0, shape.bias);
        self.linear(map(Role::Down), [ff, embd], 1.0, shape.bias);
    }

    fn shared_expert(&mut self, il: usize, ff: u64) {
        let embd = self.shape.n_embd as u64;
        let map = |role| LinearId::layer(il, role);
        self.add(map(Role::SharedRouter).weight(), &[embd], matrix(2.0, embd));
        for (role, n_in, n_out) in
            [(Role::SharedGate, embd, ff), (Role::SharedUp, embd, ff), (Role::SharedDown, ff, embd)]
        {
            self.linear(map(role), [n_in, n_out], 1.0, false);
        }
    }

    fn experts(&mut self, il: usize, n: u64) {
        let (embd, ff, bias) = (self.shape.n_embd as u64, self.shape.n_ff as u64, self.shape.bias);
        self.linear(LinearId::layer(il, Role::Router), [embd, n], 2.0, bias);
        let maps = [(Role::GateExps, embd, ff), (Role::UpExps, embd, ff), (Role::DownExps, ff, embd)];
        for (role, n_in, n_out) in maps {
            let id = LinearId::layer(il, role);
            self.add(id.weight(), &[n_in, n_out, n], matrix(1.5, n_in));
            if bias {
                self.add(ParamId::Bias(id).to_string(), &[n_out, n], Fill::Normal(0.0, 0.5));
            }
        }
    }
}

fn matrix(gain: f32, n_in: u64) -> Fill {
    Fill::Normal(0.0, gain / (n_in as f32).sqrt())
}

/// Every tensor of a shape, in file order. Scales keep activations near unit size through the layers, scores
/// spread enough for attention to matter, and logits at a deviation near 2.
fn tensors(shape: &Shape) -> Vec<TensorSpec> {
    let (embd, vocab) = (shape.n_embd as u64, shape.n_vocab as u64);
    let mut all = Tensors { shape, list: Vec::new() };
    let head = matrix(2.0, embd);
    let embedding = if shape.tied { head.clone() } else { Fill::Normal(0.0, 1.0) };
    all.add(TOKEN_EMBD.into(), &[embd, vocab], embedding);
    let [long, short] = shape.longrope.as_ref().map_or([None, None], |f| [Some(&f[0]), Some(&f[1])]);
    for (name, factors) in
        [("freqs", shape.rope_factors.as_ref()), ("factors_long", long), ("factors_short", short)]
    {
        if let Some(factors) = factors {
            all.add(format!("rope_{name}.weight"), &[factors.len() as u64], Fill::Values(factors.clone()));
        }
    }
    (0..shape.n_layer).for_each(|il| all.layer(il));
    all.norm(NormId::OUTPUT, embd);
    if !shape.tied {
        all.add(LinearId::OUTPUT.weight(), &[embd, vocab], head);
    }
    if shape.output_bias {
        all.add(ParamId::Bias(LinearId::OUTPUT).to_string(), &[vocab], Fill::Normal(0.0, 0.5));
    }
    all.list
}

fn write_keys(writer: &mut Writer<'_>, shape: &Shape, file_type: u32, seed: u64) {
    writer
        .set("general.architecture", shape.arch.as_str())
        .set("general.type", "model")
        // Without the architecture: by "phi3" in a name, libllama takes the tokens of Phi-3 for given.
        .set("general.name", format!("random weights {}x{}", shape.n_layer, shape.n_embd).as_str())
        .set("general.file_type", Value::U32(file_type))
        .set("general.quantization_version", Value::U32(types::QUANTIZATION_VERSION))
        .set("ropewalk.random.seed", Value::U64(seed));
    let counts = [
        ("vocab_size", shape.n_vocab),
        ("context_length", shape.n_ctx_train),
        ("embedding_length", shape.n_embd),
        ("block_count", shape.n_layer),
        ("feed_forward_length", shape.n_ff),
        ("rope.dimension_count", shape.n_rot()),
        ("attention.head_count", shape.n_head),
        ("attention.head_count_kv", shape.n_head_kv),
        ("attention.key_length", shape.n_embd_head),
        ("attention.value_length", shape.n_embd_head),
    ];
    for (key, n) in counts {
        // Shape::check keeps every count below 2^31.
        writer.set(&format!("{}.{key}", shape.arch), Value::U32(n as u32));
    }
    let eps = if shape.layer_norm.is_some() { "layer_norm_epsilon" } else { "layer_norm_rms_epsilon" };
    writer
        .set(&format!("{}.attention.{eps}", shape.arch), Value::F32(shape.norm_eps))
        .set(&format!("{}.rope.freq_base", shape.arch), Value::F32(shape.freq_base));
    let mut counts = Vec::new();
    if let Ffn::Experts { n, used, shared } = shape.ffn {
        counts.extend([
            ("expert_count", n),
            ("expert_used_count", used),
            ("expert_feed_forward_length", shape.n_ff),
        ]);
        counts.extend((shared > 0).then_some(("expert_shared_feed_forward_length", shared)));
    }
    if let Some(DeltaNet { every, net }) = shape.delta_net {
        counts.extend([
            ("full_attention_interval", every),
            ("ssm.group_count", net.n_head_k),
            ("ssm.time_step_rank", net.n_head_v),
            ("ssm.state_size", net.n_embd_head),
            ("ssm.inner_size", net.n_embd_v()),
            ("ssm.conv_kernel", net.n_conv),
        ]);
    }
    for (key, n) in counts {
        writer.set(&format!("{}.{key}", shape.arch), Value::U32(n as u32));
    }
    for (key, value) in &shape.keys {
        writer.set(&format!("{}.{key}", shape.arch), value.clone());
    }
    if shape.gelu == Gelu::Erf {
        writer.set(keys::GELU, "erf");
    }
    tokens::write(writer, shape.n_vocab);
}
