//! Activation checkpointing: activations of a layer that are saved on the host between its forward and
//! backward run.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

use crate::arch::Transformer;
use crate::hparams::Hparams;
use crate::ids::{LinearId, Role};
use crate::model::{Error, Result};

/// The activations of a layer that are saved in addition to its input. All others are computed again in the backward
/// run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checkpointing {
    /// None: the least memory.
    Inputs,
    /// The output of attention.
    Attention,
    /// The output of attention and of every product: nothing expensive is computed twice.
    Products,
}

/// The type activations are saved as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedType {
    /// Same type as computed.
    F32,
    /// Half the memory, 11 bits.
    F16,
    /// Half the memory, 8 bits, no overflow.
    Bf16,
}

impl SavedType {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            SavedType::F32 => 4,
            SavedType::F16 | SavedType::Bf16 => 2,
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
    pub(super) fn new(width: usize, n_tokens: usize, dtype: SavedType) -> Result<Rows> {
        let n = width.saturating_mul(n_tokens);
        fn zeros<T: Clone>(n: usize, zero: T) -> Result<Vec<T>> {
            let mut v = Vec::new();
            v.try_reserve_exact(n).map_err(|_| Error::OutOfMemory {
                needed: n.saturating_mul(std::mem::size_of::<T>()),
                free: None,
                what: format!("out of memory on the host: {n} numbers for saved activations"),
                remedy: None,
            })?;
            v.resize(n, zero);
            Ok(v)
        }
        let data = match dtype {
            SavedType::F32 => Data::F32(zeros(n, 0.0)?),
            SavedType::F16 => Data::F16(zeros(n, f16::ZERO)?),
            SavedType::Bf16 => Data::Bf16(zeros(n, bf16::ZERO)?),
        };
        Ok(Rows { width, data })
    }

    pub(super) fn put(&mut self, first: usize, rows: &[f32]) {
        let at = first * self.width..first * self.width + rows.len();
        match &mut self.data {
            Data::F32(d) => in_chunks(&mut d[at], rows, |to, from| to.copy_from_slice(from)),
            Data::F16(d) => in_chunks(&mut d[at], rows, |to, from| to.convert_from_f32_slice(from)),
            Data::Bf16(d) => in_chunks(&mut d[at], rows, |to, from| to.convert_from_f32_slice(from)),
        }
    }

    pub(super) fn get(&self, first: usize, out: &mut [f32]) {
        let at = first * self.width..first * self.width + out.len();
        match &self.data {
            Data::F32(d) => in_chunks(out, &d[at], |to, from| to.copy_from_slice(from)),
            Data::F16(d) => in_chunks(out, &d[at], |to, from| from.convert_to_f32_slice(to)),
            Data::Bf16(d) => in_chunks(out, &d[at], |to, from| from.convert_to_f32_slice(to)),
        }
    }
}

/// Converts as many numbers on all threads.
fn in_chunks<A: Send, B: Sync>(to: &mut [A], from: &[B], convert: impl Fn(&mut [A], &[B]) + Sync) {
    const CHUNK: usize = 1 << 16;
    to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(to, from)| convert(to, from));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    /// The output of attention: each token's heads, each followed by its log-sum-exp.
    AttnOut,
    /// The output of a linear map.
    Linear(LinearId),
}

pub(super) fn saved_rows(rows: &mut [(Activation, Rows)], what: Activation) -> Result<&mut Rows> {
    let found = rows.iter_mut().find(|(a, _)| *a == what).map(|(_, rows)| rows);
    found.ok_or_else(|| Error::Invalid(format!("{what:?}: this activation is not saved")))
}

/// The activations of layer `il` that are saved in addition to its input, with their width: numbers for each token.
pub(super) fn widths(
    transformer: &Transformer,
    hp: &Hparams,
    il: usize,
    checkpointing: Checkpointing,
) -> Vec<(Activation, usize)> {
    let mut out = Vec::new();
    if let (true, Some(layer)) = (checkpointing >= Checkpointing::Attention, hp.attention_of(il)) {
        out.push((Activation::AttnOut, (layer.n_embd_head + 1) * layer.n_head));
    }
    if checkpointing >= Checkpointing::Products {
        let of_layer = transformer.linears().iter().filter(|map| saves(map.id) && map.id.layer == Some(il));
        out.extend(of_layer.map(|map| (Activation::Linear(map.id), map.n_out)));
    }
    out
}

/// Returns true if the backward pass needs the output of a projection, and saving it pays: the last one of a layer is
/// only added to the residual stream, and rounded logits of a router can choose other experts.
pub(super) fn saves(map: LinearId) -> bool {
    map.layer.is_some() && !matches!(map.role, Role::Down | Role::Router)
}
