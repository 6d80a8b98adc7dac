//! Names of modules in transformers and of tensors in GGUF files, and the order of rows that differs between them.

use gguf::File;
use ropewalk_core::hparams::Hparams;

use crate::{Error, Result};

/// Architectures whose modules have the names below, and whether rows of queries and keys are in another order:
/// transformers rotates halves of a head, llama.cpp pairs of neighbours (`LlamaModel.permute` of its converter).
const ARCHS: &[(&str, bool)] = &[("llama", true), ("smollm3", true), ("qwen2", false), ("qwen3", false)];

/// Linear maps of a layer.
const LINEARS: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
/// Norms of a layer.
const NORMS: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
];
/// Modules of no layer.
const OTHERS: &[(&str, &str)] =
    &[("lm_head", "output"), ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm")];

/// The names of one model.
pub(super) struct Names {
    hp: Hparams,
    permuted: bool,
}

impl Names {
    /// # Errors
    /// An architecture whose names are not known here.
    pub(super) fn of(base: &File) -> Result<Names> {
        let hp = Hparams::from_gguf(base)?;
        let Some(&(_, permuted)) = ARCHS.iter().find(|a| a.0 == hp.arch) else {
            let known: Vec<&str> = ARCHS.iter().map(|a| a.0).collect();
            let what = format!("adapters are converted for {}; found {}", known.join(" "), hp.arch);
            return Err(base.error("general.architecture", what).into());
        };
        Ok(Names { hp, permuted })
    }

    pub(super) fn arch(&self) -> &str {
        &self.hp.arch
    }

    /// The tensor in GGUF files of a module's weight: `model.layers.3.self_attn.q_proj` is
    /// `blk.3.attn_q.weight`.
    pub(super) fn gguf(&self, module: &str) -> Option<String> {
        let find = |list: &[(&str, &'static str)], name: &str| list.iter().find(|e| e.0 == name).map(|e| e.1);
        match module.strip_prefix("model.layers.") {
            None => find(OTHERS, module).map(|to| format!("{to}.weight")),
            Some(rest) => {
                let (layer, role) = rest.split_once('.')?;
                let n: usize = layer.parse().ok().filter(|n: &usize| n.to_string() == layer)?;
                let to = find(LINEARS, role).or_else(|| find(NORMS, role))?;
                Some(format!("blk.{n}.{to}.weight"))
            }
        }
    }

    /// The module of a tensor in GGUF files.
    pub(super) fn module(&self, tensor: &str) -> Option<String> {
        let find = |list: &[(&'static str, &str)], name: &str| list.iter().find(|e| e.1 == name).map(|e| e.0);
        let stem = tensor.strip_suffix(".weight")?;
        match stem.strip_prefix("blk.") {
            None => find(OTHERS, stem).map(str::to_owned),
            Some(rest) => {
                let (layer, role) = rest.split_once('.')?;
                let n: usize = layer.parse().ok()?;
                let from = find(LINEARS, role).or_else(|| find(NORMS, role))?;
                Some(format!("model.layers.{n}.{from}"))
            }
        }
    }

    /// For each row of a map's output in a GGUF file the row in transformers, `n_out` of them; `None` where the order is
    /// the same.
    ///
    /// # Errors
    /// A number of rows that does not divide into the model's heads.
    pub(super) fn rows(&self, tensor: &str, n_out: usize) -> Result<Option<Vec<usize>>> {
        let of_layer = || {
            let (layer, role) = tensor.strip_prefix("blk.")?.split_once('.')?;
            Some((layer.parse::<usize>().ok()?, role.strip_suffix(".weight")?))
        };
        let Some((layer, role)) = of_layer().filter(|_| self.permuted) else { return Ok(None) };
        if layer >= self.hp.layers.len() {
            return Err(Error::Invalid(format!("{tensor}: the model has {} layers", self.hp.layers.len())));
        }
        let Some(attention) = self.hp.attention_of(layer) else { return Ok(None) };
        let n_head = match role {
            "attn_q" => attention.n_head,
            "attn_k" => attention.n_head_kv,
            _ => return Ok(None),
        };
        let d = n_out / n_head.max(1);
        if d * n_head != n_out || !d.is_multiple_of(2) {
            let what = format!("{tensor}: {n_out} rows do not divide into {n_head} heads of even width");
            return Err(Error::Invalid(what));
        }
        // Row 2j + s of a head is row j of half s.
        Ok(Some((0..n_out).map(|row| row / d * d + row % 2 * (d / 2) + row % d / 2).collect()))
    }
}
