//! The KV cache: which cell holds which position of which sequences, and the tensors behind the cells.
//!
//! Keys are cached rotated, so a layer has a copy of them for each distinct map of key positions in its plan.

use std::sync::Arc;

use ggml::backend::Device;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::DType;

use crate::hparams::Hparams;
use crate::rope::{Plan, Reach};

/// Sequences a cache can tell apart.
pub const MAX_SEQS: u32 = 64;

/// Attention reads keys in whole blocks of this many cells, so that graphs can be reused while a context
/// grows.
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
    /// For each layer, the index of its first tensor; then the number of all.
    first: Vec<usize>,
    store: Arc<Store>,
}

/// A range of cells, in whole blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// First cell.
    pub start: usize,
    /// Number of cells; 0 is no cell at all.
    pub len: usize,
}

impl KvCache {
    /// Tensor definitions for `n_ctx` cells: for each layer with attention its keys, once for each map of key positions of
    /// its plan, then its values, each `[n_head_kv * n_embd_head, n_cells]`.
    ///
    /// # Errors
    /// A head of some layer is no multiple of the type's blocks; the context is too large to count.
    pub fn defs(
        hp: &Hparams,
        plan: &Plan,
        n_ctx: usize,
        dtype: DType,
    ) -> Result<Vec<TensorDef>, ggml::Error> {
        for layer in &hp.attention {
            if dtype.row_bytes(layer.n_embd_head).is_none() {
                let (name, d, block) = (dtype.name(), layer.n_embd_head, dtype.block_size());
                let what = format!("kv type {name}: a head of {d} is not whole blocks of {block}");
                return Err(ggml::Error::Argument(what));
            }
        }
        let n_cells = n_ctx
            .checked_next_multiple_of(CELL_BLOCK)
            .ok_or_else(|| ggml::Error::Argument(format!("ctx {n_ctx} is too large")))?;
        let mut defs = Vec::new();
        for il in 0..hp.n_layer {
            let (Some(layer), Some(plan)) = (hp.attention_of(il), plan.of_layer(il)) else { continue };
            let row = layer.n_embd_kv();
            for map in 0..plan.key_maps().len() {
                defs.push(TensorDef::new(format!("cache_k.{il}.{map}"), dtype, &[row, n_cells])?);
            }
            defs.push(TensorDef::new(format!("cache_v.{il}"), dtype, &[row, n_cells])?);
        }
        Ok(defs)
    }

    /// Allocates the cache of a model under a plan.
    ///
    /// # Errors
    /// As [`KvCache::defs`]; too little memory.
    pub fn new(
        device: Device,
        hp: &Hparams,
        plan: &Plan,
        n_ctx: usize,
        dtype: DType,
    ) -> Result<KvCache, ggml::Error> {
        let store = Store::new(device, Self::defs(hp, plan, n_ctx, dtype)?, "the KV cache")?;
        let mut first = vec![0];
        for il in 0..hp.n_layer {
            first.push(first[il] + plan.of_layer(il).map_or(0, |plan| plan.key_maps().len() + 1));
        }
        Ok(KvCache { cells: vec![Cell::default(); n_ctx], first_free: 0, end: 0, used: 0, first, store })
    }

    /// Bytes of keys and values.
    pub fn n_bytes(&self) -> usize {
        self.store.n_bytes()
    }

    /// Keys of a layer under one of the position maps, `[n_head_kv * n_embd_head, n_cells]`.
    pub fn k(&self, il: usize, map: usize) -> StoreTensor {
        StoreTensor { store: self.store.clone(), index: self.first[il] + map }
    }

    /// Values of a layer, like the keys.
    pub fn v(&self, il: usize) -> StoreTensor {
        StoreTensor { store: self.store.clone(), index: self.first[il + 1] - 1 }
    }

    /// The cells.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Free cells.
    pub fn n_free(&self) -> usize {
        self.cells.len() - self.used
    }

    /// The range of cells, in whole blocks, that holds every key which one of these queries, `(sequence,
    /// position)`, sees.
    pub fn span(&self, queries: &[(u32, i32)], reach: &Reach) -> Span {
        let (mut first, mut last) = (usize::MAX, 0);
        let mut seqs = queries.iter().fold(0u64, |all, q| all | 1 << q.0);
        while seqs != 0 {
            let seq = seqs.trailing_zeros();
            seqs &= seqs - 1;
            let own = queries.iter().filter(|q| q.0 == seq);
            let keys = own.map(|&(_, pos)| reach.keys(pos)).filter(|k| !k.is_empty());
            let Some(keys) = keys.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { continue };
            let seen = |c: &Cell| c.seqs & (1 << seq) != 0 && keys.contains(&c.pos);
            let cells = &self.cells[..self.end];
            if let (Some(a), Some(b)) = (cells.iter().position(seen), cells.iter().rposition(seen)) {
                (first, last) = (first.min(a), last.max(b));
            }
        }
        if first > last {
            return Span::default();
        }
        let start = first / CELL_BLOCK * CELL_BLOCK;
        Span { start, len: (last + 1).next_multiple_of(CELL_BLOCK) - start }
    }

    /// Takes a free cell for each `(sequence, position)`. If there are too few, returns `None` and changes
    /// nothing.
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

    /// Removes a sequence from every cell whose position is `from` or more.
    pub fn remove(&mut self, seq: u32, from: i32) {
        for cell in &mut self.cells[..self.end] {
            if cell.seqs & (1 << seq) != 0 && cell.pos >= from {
                cell.seqs &= !(1 << seq);
            }
        }
        self.recount();
    }

    /// Removes a sequence from every cell below position `before` that is not `needed`.
    pub fn evict(&mut self, seq: u32, before: i32, needed: impl Fn(i32) -> bool) {
        for cell in &mut self.cells[..self.end] {
            if cell.seqs & (1 << seq) != 0 && cell.pos < before && !needed(cell.pos) {
                cell.seqs &= !(1 << seq);
            }
        }
        self.recount();
    }

    /// Adds sequence `dst` to every cell of sequence `src`.
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

    /// Bytes of one cell's row in each tensor: for each layer its keys, then its values.
    fn row_bytes(&self) -> impl Iterator<Item = usize> + '_ {
        self.store.defs().iter().map(|def| def.dtype.row_bytes(def.ne[0]).unwrap_or(0))
    }

    /// Bytes of one cell: keys and values of every layer.
    pub fn cell_bytes(&self) -> usize {
        self.row_bytes().sum()
    }

    /// Cells up to the last used one.
    pub fn n_end(&self) -> usize {
        self.end
    }

    /// Calls `f` with the bytes of the used part of every layer's keys and values in turn.
    pub fn export<E: From<ggml::Error>>(&self, mut f: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut bytes = Vec::new();
        for (index, row) in self.row_bytes().enumerate() {
            bytes.resize(self.end * row, 0);
            self.store.read(index, 0, &mut bytes)?;
            f(&bytes)?;
        }
        Ok(())
    }

    /// Replaces cells and contents. `f` is called for the same buffers in the same order as by
    /// [`KvCache::export`], and fills them.
    pub fn import<E: From<ggml::Error>>(
        &mut self,
        cells: &[Cell],
        mut f: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.clear();
        let mut bytes = Vec::new();
        let rows: Vec<usize> = self.row_bytes().collect();
        for (index, row) in rows.into_iter().enumerate() {
            bytes.resize(cells.len() * row, 0);
            f(&mut bytes)?;
            self.store.write(index, 0, &bytes)?;
        }
        self.cells[..cells.len()].copy_from_slice(cells);
        self.recount();
        Ok(())
    }
}
