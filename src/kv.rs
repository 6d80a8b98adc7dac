//! The KV cache: which cell holds which position of which sequences, and the tensors behind the cells.

use std::sync::Arc;

use ggml::backend::Device;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::DType;

use crate::hparams::Hparams;

/// Sequences a cache can tell apart.
pub const MAX_SEQS: u32 = 64;

/// Attention reads keys in whole blocks of this many cells, so that graphs can be reused while a context grows.
pub const CELL_BLOCK: usize = 256;

/// One cell: a position, and the sequences that see it (none: free).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cell {
    /// Position in each of its sequences.
    pub pos: i32,
    /// Bit `s` set: sequence `s` sees it.
    pub seqs: u64,
}

/// Keys and values of every layer.
#[derive(Debug)]
pub struct KvCache {
    cells: Vec<Cell>,
    /// No free cell lies below.
    first_free: usize,
    /// No used cell lies at or above.
    end: usize,
    used: usize,
    n_layer: usize,
    store: Arc<Store>,
}

impl KvCache {
    /// Tensor definitions for `n_ctx` cells: for each layer keys then values, `[n_head_kv * n_embd_head, n_cells]`.
    pub fn defs(hp: &Hparams, n_ctx: usize, dtype: DType) -> Result<Vec<TensorDef>, ggml::Error> {
        let row = hp.n_head_kv * hp.n_embd_head;
        if dtype.row_bytes(hp.n_embd_head).is_none() {
            let what = format!(
                "kv type {}: a head of {} is not whole blocks of {}",
                dtype.name(),
                hp.n_embd_head,
                dtype.block_size()
            );
            return Err(ggml::Error::Argument(what));
        }
        let n_cells = n_ctx
            .checked_next_multiple_of(CELL_BLOCK)
            .ok_or_else(|| ggml::Error::Argument(format!("ctx {n_ctx} is too large")))?;
        let mut defs = Vec::with_capacity(2 * hp.n_layer);
        for il in 0..hp.n_layer {
            defs.push(TensorDef::new(format!("cache_k.{il}"), dtype, &[row, n_cells])?);
            defs.push(TensorDef::new(format!("cache_v.{il}"), dtype, &[row, n_cells])?);
        }
        Ok(defs)
    }

    /// Allocates the cache.
    pub fn new(device: Device, hp: &Hparams, n_ctx: usize, dtype: DType) -> Result<KvCache, ggml::Error> {
        let store = Store::new(device, Self::defs(hp, n_ctx, dtype)?, "the KV cache")?;
        Ok(KvCache {
            cells: vec![Cell::default(); n_ctx],
            first_free: 0,
            end: 0,
            used: 0,
            n_layer: hp.n_layer,
            store,
        })
    }

    /// Bytes of keys and values.
    pub fn n_bytes(&self) -> usize {
        self.store.n_bytes()
    }

    /// Keys of a layer, `[n_head_kv * n_embd_head, n_cells]`.
    pub fn k(&self, il: usize) -> StoreTensor {
        StoreTensor { store: self.store.clone(), index: 2 * il }
    }

    /// Values of a layer, like the keys.
    pub fn v(&self, il: usize) -> StoreTensor {
        StoreTensor { store: self.store.clone(), index: 2 * il + 1 }
    }

    /// The cells.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Free cells.
    pub fn n_free(&self) -> usize {
        self.cells.len() - self.used
    }

    /// Cells attention must look at: up to the last used one, in whole blocks.
    pub fn n_kv(&self) -> usize {
        self.end.max(1).next_multiple_of(CELL_BLOCK)
    }

    /// Takes a free cell for each `(sequence, position)`; `None`, and nothing changed, when there are too few.
    pub fn allocate(&mut self, wanted: &[(u32, i32)]) -> Option<Vec<usize>> {
        if wanted.len() > self.n_free() {
            return None;
        }
        let mut taken = Vec::with_capacity(wanted.len());
        let mut at = self.first_free;
        for &(seq, pos) in wanted {
            while self.cells[at].seqs != 0 {
                at += 1;
            }
            self.cells[at] = Cell { pos, seqs: 1 << seq };
            taken.push(at);
            at += 1;
        }
        self.first_free = at;
        self.used += taken.len();
        self.end = self.end.max(at);
        Some(taken)
    }

    /// Takes a sequence off every cell whose position is `from` or more.
    pub fn remove(&mut self, seq: u32, from: i32) {
        for cell in &mut self.cells[..self.end] {
            if cell.seqs & (1 << seq) != 0 && cell.pos >= from {
                cell.seqs &= !(1 << seq);
            }
        }
        self.recount();
    }

    /// Lets `dst` see all that `src` sees.
    pub fn copy(&mut self, src: u32, dst: u32) {
        for cell in &mut self.cells[..self.end] {
            if cell.seqs & (1 << src) != 0 {
                cell.seqs |= 1 << dst;
            }
        }
    }

    /// Frees every cell.
    pub fn clear(&mut self) {
        self.cells.fill(Cell::default());
        self.recount();
    }

    fn recount(&mut self) {
        self.used = self.cells.iter().filter(|c| c.seqs != 0).count();
        self.end = self.cells.iter().rposition(|c| c.seqs != 0).map_or(0, |i| i + 1);
        self.first_free = self.cells.iter().position(|c| c.seqs == 0).unwrap_or(self.cells.len());
    }

    /// Bytes of one cell's keys (or values) in one layer.
    pub fn row_bytes(&self) -> usize {
        let def = &self.store.defs()[0];
        def.dtype.row_bytes(def.ne[0]).unwrap_or(0)
    }

    /// Cells up to the last used one.
    pub fn n_end(&self) -> usize {
        self.end
    }

    /// Calls `f` with the bytes of the used part of every layer's keys and values in turn.
    pub fn export<E: From<ggml::Error>>(&self, mut f: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut bytes = vec![0u8; self.end * self.row_bytes()];
        for index in 0..2 * self.n_layer {
            self.store.read(index, 0, &mut bytes)?;
            f(&bytes)?;
        }
        Ok(())
    }

    /// Replaces cells and contents: `f` fills the bytes `export` gave, in the same order.
    pub fn import<E: From<ggml::Error>>(
        &mut self,
        cells: &[Cell],
        mut f: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.clear();
        let mut bytes = vec![0u8; cells.len() * self.row_bytes()];
        for index in 0..2 * self.n_layer {
            f(&mut bytes)?;
            self.store.write(index, 0, &bytes)?;
        }
        self.cells[..cells.len()].copy_from_slice(cells);
        self.recount();
        Ok(())
    }
}
