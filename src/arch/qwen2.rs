//! Qwen2: Llama's layer with biases on q, k and v, and pairs formed of halves.

use super::{llama, Arch};
use crate::graph::Pairing;

/// The descriptor.
pub(super) static QWEN2: Arch = Arch {
    name: "qwen2",
    pairing: Pairing::Halves,
    tensors: |hp| llama::transformer(hp, &[], &["attn_q", "attn_k", "attn_v"]),
    qkv: llama::qkv,
    rest: llama::rest,
    head: |g, x| g.logits(x),
};
