//! Small shapes of the architectures that differ from Llama in more than their sizes: every part of a layer, and
//! windows and trained contexts short enough that a test of 200 tokens passes them.

use gguf::{Array, Value};
use ropewalk_core::hparams::DeltaNetHparams;

use super::shapes::{llama_tiny, DeltaNet, Ffn, Norms, QkNorm, Shape};

const WINDOW: (&str, Value) = ("attention.sliding_window", Value::U32(32));

fn yarn(factor: f32, n_ctx_orig: u32) -> Vec<(&'static str, Value)> {
    vec![
        ("rope.scaling.type", Value::String(b"yarn".to_vec())),
        ("rope.scaling.factor", Value::F32(factor)),
        ("rope.scaling.original_context_length", Value::U32(n_ctx_orig)),
    ]
}

pub(super) fn cohere2() -> Shape {
    Shape {
        arch: "cohere2".into(),
        n_layer: 4,
        tied: true,
        layer_norm: Some(false),
        norms: Norms::Shared,
        keys: vec![WINDOW, ("logit_scale", Value::F32(1.5))],
        ..llama_tiny()
    }
}

pub(super) fn gemma2() -> Shape {
    let caps = [("attn_logit_softcapping", 2.0), ("final_logit_softcapping", 5.0)];
    let keys = [WINDOW].into_iter().chain(caps.map(|(key, cap)| (key, Value::F32(cap)))).collect();
    Shape { arch: "gemma2".into(), n_layer: 4, qk_norm: QkNorm::No, keys, ..gemma3() }
}

pub(super) fn gemma3() -> Shape {
    Shape {
        arch: "gemma3".into(),
        n_layer: 6,
        n_embd: 128,
        n_head_kv: 1,
        n_ff: 256,
        tied: true,
        qk_norm: QkNorm::Head,
        norms: Norms::Both,
        freq_base: 1_000_000.0,
        norm_eps: 1e-6,
        keys: vec![WINDOW, ("final_logit_softcapping", Value::F32(5.0))],
        ..llama_tiny()
    }
}

pub(super) fn gptneox(parallel: bool) -> Shape {
    Shape {
        arch: "gptneox".into(),
        n_head_kv: 4,
        n_rot: Some(16),
        fused_qkv: true,
        qkv_bias: true,
        bias: true,
        layer_norm: Some(true),
        ffn: Ffn::Plain,
        keys: vec![("use_parallel_residual", Value::Bool(parallel))],
        ..llama_tiny()
    }
}

pub(super) fn granite() -> Shape {
    let factors = [
        ("embedding_scale", 12.0),
        ("residual_scale", 0.22),
        ("attention.scale", 0.25),
        ("logit_scale", 1.25),
    ];
    Shape {
        arch: "granite".into(),
        tied: true,
        keys: factors.map(|(key, x)| (key, Value::F32(x))).to_vec(),
        ..llama_tiny()
    }
}

pub(super) fn mistral3() -> Shape {
    let mut keys = yarn(4.0, 64);
    keys.push(("rope.scaling.yarn_log_multiplier", Value::F32(1.0)));
    keys.push(("attention.temperature_scale", Value::F32(0.1)));
    Shape { arch: "mistral3".into(), keys, ..llama_tiny() }
}

pub(super) fn olmo2() -> Shape {
    Shape {
        arch: "olmo2".into(),
        qk_norm: QkNorm::All,
        norms: Norms::Post,
        freq_base: 500_000.0,
        norm_eps: 1e-6,
        ..llama_tiny()
    }
}

pub(super) fn olmo3() -> Shape {
    let keys = yarn(4.0, 64).into_iter().chain([WINDOW]).collect();
    Shape { n_layer: 4, keys, ..olmo2() }
}

pub(super) fn phi2() -> Shape {
    Shape {
        arch: "phi2".into(),
        n_head_kv: 4,
        n_rot: Some(32),
        qkv_bias: true,
        bias: true,
        output_bias: true,
        norms: Norms::Shared,
        layer_norm: Some(true),
        ffn: Ffn::Plain,
        ..llama_tiny()
    }
}

pub(super) fn phi3() -> Shape {
    let factors = |step: f32| (0..24).map(|i| 1.0 + step * i as f32).collect();
    Shape {
        arch: "phi3".into(),
        n_rot: Some(48),
        fused_qkv: true,
        ffn: Ffn::FusedGate,
        longrope: Some([factors(0.5), factors(0.01)]),
        keys: vec![
            ("rope.scaling.type", Value::String(b"longrope".to_vec())),
            ("rope.scaling.original_context_length", Value::U32(128)),
            ("rope.scaling.attn_factor", Value::F32(1.19)),
        ],
        ..llama_tiny()
    }
}

pub(super) fn qwen3moe() -> Shape {
    Shape {
        arch: "qwen3moe".into(),
        n_embd_head: 96,
        n_ff: 128,
        qk_norm: QkNorm::Head,
        ffn: Ffn::Experts { n: 8, used: 2, shared: 0 },
        freq_base: 1_000_000.0,
        norm_eps: 1e-6,
        ..llama_tiny()
    }
}

pub(super) fn gpt_oss() -> Shape {
    let mut keys = yarn(4.0, 64);
    keys.push(WINDOW);
    Shape {
        arch: "gpt-oss".into(),
        n_layer: 4,
        n_ff: 96,
        norms: Norms::PreByPost,
        qkv_bias: true,
        bias: true,
        sinks: true,
        ffn: Ffn::Experts { n: 8, used: 4, shared: 0 },
        freq_base: 150_000.0,
        keys,
        ..llama_tiny()
    }
}

pub(super) fn qwen35() -> Shape {
    Shape {
        arch: "qwen35".into(),
        n_layer: 5,
        n_rot: Some(16),
        qk_norm: QkNorm::Head,
        norms: Norms::PreByPost,
        delta_net: Some(DeltaNet {
            every: 4,
            net: DeltaNetHparams { n_head_k: 2, n_head_v: 4, n_embd_head: 32, n_conv: 4 },
        }),
        freq_base: 10_000_000.0,
        norm_eps: 1e-6,
        keys: vec![("rope.dimension_sections", Value::Array(Array::I32(vec![3, 3, 2, 0])))],
        ..llama_tiny()
    }
}

pub(super) fn qwen35moe() -> Shape {
    Shape {
        arch: "qwen35moe".into(),
        n_ff: 128,
        ffn: Ffn::Experts { n: 8, used: 2, shared: 256 },
        ..qwen35()
    }
}
