//! What the backward run of a layer finds of its forward run: kept on the host, grows with the context.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::hparams::Hparams;
use crate::model::{Error, Result};

/// What is kept of a layer beside its input; the rest is computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// Nothing: the least memory.
    Inputs,
    /// What attention found.
    Attention,
    /// All that products gave: nothing expensive is computed twice.
    Products,
}

/// How kept numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeepType {
    /// As computed.
    F32,
    /// Half the memory, 11 bits.
    F16,
    /// Half the memory, 8 bits, no overflow.
    Bf16,
}

impl KeepType {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            KeepType::F32 => 4,
            KeepType::F16 | KeepType::Bf16 => 2,
        }
    }
}

/// Rows of numbers, one a token.
#[derive(Debug)]
pub(super) struct Rows {
    width: usize,
    data: Data,
}

#[derive(Debug)]
enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Rows {
    pub(super) fn new(width: usize, n_tokens: usize, dtype: KeepType) -> Result<Rows> {
        let n = width.saturating_mul(n_tokens);
        fn zeros<T: Clone>(n: usize, zero: T) -> Result<Vec<T>> {
            let mut v = Vec::new();
            v.try_reserve_exact(n).map_err(|_| {
                Error::Invalid(format!("out of memory on the host: {n} numbers for kept activations"))
            })?;
            v.resize(n, zero);
            Ok(v)
        }
        let data = match dtype {
            KeepType::F32 => Data::F32(zeros(n, 0.0)?),
            KeepType::F16 => Data::F16(zeros(n, f16::ZERO)?),
            KeepType::Bf16 => Data::Bf16(zeros(n, bf16::ZERO)?),
        };
        Ok(Rows { width, data })
    }

    pub(super) fn put(&mut self, first: usize, rows: &[f32]) {
        let at = first * self.width..first * self.width + rows.len();
        const CHUNK: usize = 1 << 16;
        match &mut self.data {
            Data::F32(d) => d[at].copy_from_slice(rows),
            Data::F16(d) => {
                let chunks = d[at].par_chunks_mut(CHUNK).zip(rows.par_chunks(CHUNK));
                chunks.for_each(|(to, from)| to.convert_from_f32_slice(from));
            }
            Data::Bf16(d) => {
                let chunks = d[at].par_chunks_mut(CHUNK).zip(rows.par_chunks(CHUNK));
                chunks.for_each(|(to, from)| to.convert_from_f32_slice(from));
            }
        }
    }

    pub(super) fn get(&self, first: usize, out: &mut [f32]) {
        let at = first * self.width..first * self.width + out.len();
        match &self.data {
            Data::F32(d) => out.copy_from_slice(&d[at]),
            Data::F16(d) => d[at].convert_to_f32_slice(out),
            Data::Bf16(d) => d[at].convert_to_f32_slice(out),
        }
    }
}

/// Numbers kept of one layer for one token, beside its input.
pub(super) fn widths(hp: &Hparams, keep: Keep) -> Vec<(&'static str, usize)> {
    let (q, kv) = (hp.n_head * hp.n_embd_head, hp.n_head_kv * hp.n_embd_head);
    let mut out = Vec::new();
    if keep >= Keep::Attention {
        out.push((ATTENTION, q + hp.n_head));
    }
    if keep >= Keep::Products {
        out.extend([("attn_q", q), ("attn_k", kv), ("attn_v", kv), ("attn_output", hp.n_embd)]);
        out.extend([("ffn_gate", hp.n_ff), ("ffn_up", hp.n_ff)]);
    }
    out
}

/// Under this name, what attention found: each token's heads, each followed by its log-sum-exp.
pub(super) const ATTENTION: &str = "attention";
