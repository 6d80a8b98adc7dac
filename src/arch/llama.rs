//! Llama 1/2/3, Mistral, SmolLM2, TinyLlama: pre-norm attention and a gated feed-forward.

use ggml::tensor::Tensor;
use ggml::Result;

use super::Arch;
use crate::graph::{Graph, Pairing};
use crate::hparams::Hparams;
use crate::weights::{TensorSpec, TOKEN_EMBD};

/// The descriptor.
pub(super) static LLAMA: Arch =
    Arch { name: "llama", pairing: Pairing::Adjacent, tensors, qkv, rest, head: |g, x| g.logits(x) };

fn tensors(hp: &Hparams) -> Vec<TensorSpec> {
    transformer(hp, &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"], &[])
}

/// The checklist Llama-like files share; biases of the parts named may or must be there.
pub(super) fn transformer(hp: &Hparams, may_bias: &[&str], must_bias: &[&str]) -> Vec<TensorSpec> {
    let (n, q, kv) = (hp.n_embd, hp.n_head * hp.n_embd_head, hp.n_head_kv * hp.n_embd_head);
    let mut specs = vec![
        TensorSpec::required(TOKEN_EMBD, &[n, hp.n_vocab]),
        TensorSpec::required("output_norm.weight", &[n]),
        TensorSpec::optional("output.weight", &[n, hp.n_vocab]),
    ];
    let matrices = [
        ("attn_q", n, q),
        ("attn_k", n, kv),
        ("attn_v", n, kv),
        ("attn_output", q, n),
        ("ffn_gate", n, hp.n_ff),
        ("ffn_up", n, hp.n_ff),
        ("ffn_down", hp.n_ff, n),
    ];
    for il in 0..hp.n_layer {
        specs.push(TensorSpec::required(format!("blk.{il}.attn_norm.weight"), &[n]));
        specs.push(TensorSpec::required(format!("blk.{il}.ffn_norm.weight"), &[n]));
        for (name, n_in, n_out) in matrices {
            specs.push(TensorSpec::required(format!("blk.{il}.{name}.weight"), &[n_in, n_out]));
            let bias = format!("blk.{il}.{name}.bias");
            if must_bias.contains(&name) {
                specs.push(TensorSpec::required(bias, &[n_out]));
            } else if may_bias.contains(&name) {
                specs.push(TensorSpec::optional(bias, &[n_out]));
            }
        }
    }
    specs
}

/// A layer's queries, keys and values, as Llama and its kin have them.
pub(super) fn qkv<'c>(g: &Graph<'_, 'c>, il: usize, x: Tensor<'c>) -> Result<[Tensor<'c>; 3]> {
    g.qkv(x, il)
}

/// The layer's two residuals.
pub(super) fn rest<'c>(g: &Graph<'_, 'c>, il: usize, x: Tensor<'c>, attn: Tensor<'c>) -> Result<Tensor<'c>> {
    let x = g.add(g.attn_output(attn, il)?, x)?;
    g.add(g.swiglu_ffn(x, il)?, x)
}
