//! The KV cache: maps cells to positions and sequences, and owns the tensors of the cells.
//!
//! Keys are cached after rotation, so a layer has a copy of them for each distinct mapping of positions in its plan.
//! If a plan reads a copy of only the first positions (LM-Infinite), the copy holds only those. It has separate cells,
//! and the values too, so that a branch finds its keys and its values at the same place.
// Only `internals` shows these items: those whose names and types say all have no doc comments.
#![allow(missing_docs)]

mod cells;
mod columns;
mod layout;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use ggml::backend::Device;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::DType;

use crate::hparams::Hparams;
use crate::rope::{LayerPlan, Plan, PosMap};

pub use cells::{Cell, Cells, Span, CELL_BLOCK, MAX_SEQS};
pub use columns::Columns;
pub use layout::{whole_blocks, Held, Layout};

/// Keys and values of every layer.
#[derive(Debug)]
pub struct KvCache {
    layout: Layout,
    cells: Cells,
    /// Second copies for the first positions of each sequence: always the ones in `cells` that lie below
    /// [`Layout::end`].
    starts: Cells,
    /// For each layer the index of its first tensor, and the maps of its keys.
    layers: Vec<(usize, usize)>,
    held: Vec<Held>,
    store: Arc<Store>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub cells: Vec<usize>,
    /// The tokens whose keys and values are cached once more, by number, and their cells there.
    pub starts: Vec<(usize, usize)>,
}

impl KvCache {
    /// Tensor definitions for `n_ctx` cells, as [`Layout::tensors`] has them, each `[n_head_kv * n_embd_head, n_cells]`.
    ///
    /// # Errors
    /// Returns an error if a head size is not a multiple of the type's block size, or if the context is too large.
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
        if n_ctx.checked_next_multiple_of(CELL_BLOCK).is_none() {
            return Err(ggml::Error::Argument(format!("ctx {n_ctx} is too large")));
        }
        let layout = Layout::new(plan, n_ctx);
        let mut defs = Vec::new();
        for il in 0..hp.n_layer {
            let (Some(layer), Some(plan)) = (hp.attention_of(il), plan.of_layer(il)) else { continue };
            for (i, held) in layout.tensors(plan).into_iter().enumerate() {
                let name = match held {
                    Held::Keys | Held::StartKeys => format!("cache_k.{il}.{i}"),
                    Held::Values => format!("cache_v.{il}"),
                    Held::StartValues => format!("cache_v.{il}.starts"),
                };
                defs.push(TensorDef::new(name, dtype, &[layer.n_embd_kv(), layout.n_rows(held)])?);
            }
        }
        Ok(defs)
    }

    /// Allocates the cache of a model under a plan.
    pub fn new(
        device: Device,
        hp: &Hparams,
        plan: &Plan,
        n_ctx: usize,
        dtype: DType,
    ) -> Result<KvCache, ggml::Error> {
        let store = Store::new(device, Self::defs(hp, plan, n_ctx, dtype)?, "the KV cache")?;
        let layout = Layout::new(plan, n_ctx);
        let (mut layers, mut held) = (Vec::new(), Vec::new());
        for il in 0..hp.n_layer {
            let plan = plan.of_layer(il);
            layers.push((held.len(), plan.map_or(0, |plan| plan.key_maps().len())));
            held.extend(plan.map_or(Vec::new(), |plan| layout.tensors(plan)));
        }
        let (cells, starts) = (Cells::new(n_ctx), Cells::new(layout.n_starts));
        Ok(KvCache { layout, cells, starts, layers, held, store })
    }

    pub fn n_bytes(&self) -> usize {
        self.store.n_bytes()
    }

    /// Returns true if the cache holds keys of a layer under this map only for first positions.
    pub fn of_starts(&self, plan: &LayerPlan, map: PosMap) -> bool {
        self.layout.of_starts(plan, map)
    }

    pub fn cells_under(&self, plan: &LayerPlan, map: PosMap) -> &Cells {
        if self.of_starts(plan, map) {
            &self.starts
        } else {
            &self.cells
        }
    }

    /// Keys of a layer under one of the position maps, `[n_head_kv * n_embd_head, n_cells]`.
    pub fn k(&self, il: usize, map: usize) -> StoreTensor {
        StoreTensor { store: self.store.clone(), index: self.layers[il].0 + map }
    }

    /// Values of a layer, like the keys.
    pub fn v(&self, il: usize) -> StoreTensor {
        let (first, n_maps) = self.layers[il];
        StoreTensor { store: self.store.clone(), index: first + n_maps }
    }

    /// Values that go with a layer's second keys of first positions, if it has them.
    pub fn start_values(&self, il: usize) -> Option<StoreTensor> {
        let (first, n_maps) = self.layers[il];
        let index = first + n_maps + 1;
        let own = self.held.get(index) == Some(&Held::StartValues);
        own.then(|| StoreTensor { store: self.store.clone(), index })
    }

    pub fn cells(&self) -> &[Cell] {
        self.cells.all()
    }

    pub fn n_free(&self) -> usize {
        self.cells.n_free()
    }

    /// Cells up to the last used one.
    pub fn n_end(&self) -> usize {
        self.cells.n_end()
    }

    /// Returns the largest number of `n` tokens that are cached a second time.
    pub fn most_starts(&self, n: usize) -> usize {
        self.layout.n_starts.min(n)
    }

    /// Takes a free cell for each `(sequence, position)`, which the sequence must not have yet, and one more for first
    /// positions. If there are too few, returns `None` and changes nothing.
    pub fn allocate(&mut self, wanted: &[(u32, i32)]) -> Option<Taken> {
        let (tokens, starts): (Vec<usize>, Vec<(u32, i32)>) =
            wanted.iter().copied().enumerate().filter(|(_, (_, pos))| *pos < self.layout.end).unzip();
        // There always are enough for first positions: see `Layout::new`.
        if starts.len() > self.starts.n_free() {
            return None;
        }
        let cells = self.cells.allocate(wanted)?;
        let starts = self.starts.allocate(&starts)?;
        Some(Taken { cells, starts: tokens.into_iter().zip(starts).collect() })
    }

    /// Removes a sequence from every cell whose position is `from` or more.
    pub fn remove(&mut self, seq: u32, from: i32) {
        self.both().for_each(|cells| cells.remove(seq, from));
    }

    /// Removes a sequence from every cell below position `before` that is not `needed`.
    pub fn evict(&mut self, seq: u32, before: i32, needed: impl Fn(i32) -> bool) {
        self.both().for_each(|cells| cells.evict(seq, before, &needed));
    }

    /// Adds sequence `dst` to every cell of sequence `src`.
    pub fn copy(&mut self, src: u32, dst: u32) {
        self.both().for_each(|cells| cells.copy(src, dst));
    }

    pub fn clear(&mut self) {
        self.both().for_each(Cells::clear);
    }

    fn both(&mut self) -> impl Iterator<Item = &mut Cells> {
        [&mut self.cells, &mut self.starts].into_iter()
    }

    /// For each tensor what it holds, and the bytes of a row.
    fn tensors(&self) -> impl Iterator<Item = (Held, usize)> + '_ {
        let row = |def: &TensorDef| def.dtype.row_bytes(def.ne[0]).unwrap_or(0);
        self.held.iter().copied().zip(self.store.defs().iter().map(row))
    }

    /// Bytes of one cell: keys and values of every layer, keys under every map.
    pub fn cell_bytes(&self) -> usize {
        self.tensors().filter(|(held, _)| *held != Held::StartValues).map(|(_, row)| row).sum()
    }

    /// Calls `f` with the bytes of the used part of every layer's keys and values in turn. Keys that are cached for
    /// first positions only are also written at the place of their tokens, between zeros, so the export does not
    /// depend on the size of the cache.
    pub fn export<E: From<ggml::Error>>(&self, mut f: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let place: HashMap<Cell, usize> =
            self.first_positions(self.cells()).map(|(at, cell)| (cell, at)).collect();
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        for (index, (held, row)) in self.tensors().enumerate() {
            bytes.clear();
            resize(&mut bytes, self.n_end() * row)?;
            match held {
                Held::StartValues => continue,
                Held::Keys | Held::Values => self.store.read(index, 0, &mut bytes)?,
                Held::StartKeys => {
                    resize(&mut rows, self.starts.n_end() * row)?;
                    self.store.read(index, 0, &mut rows)?;
                    for (from, cell) in rows.chunks_exact(row).zip(self.starts.all()) {
                        if let Some(at) = place.get(cell) {
                            bytes[at * row..][..row].copy_from_slice(from);
                        }
                    }
                }
            }
            f(&bytes)?;
        }
        Ok(())
    }

    /// Replaces cells and contents. `f` is called for the same buffers in the same order as by
    /// [`KvCache::export`], and fills them.
    ///
    /// # Errors
    /// Returns the errors of `f`, and an error for first positions that no sequences of this cache could have. The
    /// cache is then empty.
    pub fn import<E: From<ggml::Error>>(
        &mut self,
        cells: &[Cell],
        mut f: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.clear();
        let (most, found) = (self.layout.n_starts, self.first_positions(cells).count());
        if found > most {
            let what = format!("first positions: expected at most {most} cells, found {found}");
            return Err(ggml::Error::Argument(what).into());
        }
        let (places, starts): (Vec<usize>, Vec<Cell>) = self.first_positions(cells).unzip();
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        let tensors: Vec<(Held, usize)> = self.tensors().collect();
        for (index, (held, row)) in tensors.into_iter().enumerate() {
            // Values of first positions are some of those just read.
            if held != Held::StartValues {
                resize(&mut bytes, cells.len() * row)?;
                f(&mut bytes)?;
            }
            match held {
                Held::Keys | Held::Values => self.store.write(index, 0, &bytes)?,
                Held::StartKeys | Held::StartValues => {
                    resize(&mut rows, places.len() * row)?;
                    for (to, at) in rows.chunks_exact_mut(row).zip(&places) {
                        to.copy_from_slice(&bytes[at * row..][..row]);
                    }
                    self.store.write(index, 0, &rows)?;
                }
            }
        }
        self.cells.replace(cells);
        self.starts.replace(&starts);
        Ok(())
    }

    /// A sequence's cells, in the order of their numbers, and for each tensor in turn the rows of these cells, one after
    /// the other. Rows of keys that are cached for first positions only are zero elsewhere.
    pub fn take_out(&self, seq: u32) -> Result<(Vec<Cell>, Vec<u8>), ggml::Error> {
        let of = |cells: &Cells| -> Vec<(usize, Cell)> {
            let own = cells.all()[..cells.n_end()].iter().copied().enumerate();
            own.filter(|(_, cell)| cell.seqs & (1 << seq) != 0).collect()
        };
        let (places, cells): (Vec<usize>, Vec<Cell>) = of(&self.cells).into_iter().unzip();
        let cells: Vec<Cell> = cells.into_iter().map(|cell| Cell { pos: cell.pos, seqs: 1 }).collect();
        let (start_places, starts): (Vec<usize>, Vec<Cell>) = of(&self.starts).into_iter().unzip();
        let numbers: HashMap<i32, usize> = cells.iter().enumerate().map(|(i, cell)| (cell.pos, i)).collect();
        let mut data = Vec::new();
        resize(&mut data, cells.len() * self.cell_bytes())?;
        let (mut at, mut rows) = (0, Vec::new());
        for (index, (held, row)) in self.tensors().enumerate() {
            let out = &mut data[at..];
            match held {
                Held::StartValues => continue,
                Held::Keys | Held::Values => {
                    let out = &mut out[..cells.len() * row];
                    self.rows(index, row, &places, &mut rows, |i, bytes| {
                        out[i * row..][..row].copy_from_slice(bytes);
                    })?;
                }
                Held::StartKeys => self.rows(index, row, &start_places, &mut rows, |i, bytes| {
                    if let Some(i) = numbers.get(&starts[i].pos) {
                        out[i * row..][..row].copy_from_slice(bytes);
                    }
                })?,
            }
            at += cells.len() * row;
        }
        Ok((cells, data))
    }

    /// Calls `f` with the number and the bytes of the row of each of these cells, which ascend. Cells with small gaps
    /// between them are read at once: a device may take as long for each read.
    fn rows(
        &self,
        index: usize,
        row: usize,
        places: &[usize],
        bytes: &mut Vec<u8>,
        mut f: impl FnMut(usize, &[u8]),
    ) -> Result<(), ggml::Error> {
        for group in near(places) {
            let (first, last) = (places[group.start], places[group.end - 1]);
            resize(bytes, (last + 1 - first) * row)?;
            self.store.read(index, first * row, bytes)?;
            for i in group {
                f(i, &bytes[(places[i] - first) * row..][..row]);
            }
        }
        Ok(())
    }

    /// Gives a sequence that has no cells those of [`KvCache::take_out`] whose positions are below `end`. Returns false, and
    /// changes nothing, if too few cells are free. `data` must have the rows of all `cells`.
    ///
    /// # Errors
    /// The device, and too little memory. The sequence is then empty.
    pub fn put_in(&mut self, seq: u32, cells: &[Cell], end: i32, data: &[u8]) -> Result<bool, ggml::Error> {
        let (numbers, wanted): (Vec<usize>, Vec<(u32, i32)>) = cells
            .iter()
            .enumerate()
            .filter(|(_, cell)| cell.pos < end)
            .map(|(i, cell)| (i, (seq, cell.pos)))
            .unzip();
        if data.len() != cells.len() * self.cell_bytes() {
            let (expected, found) = (cells.len() * self.cell_bytes(), data.len());
            return Err(ggml::Error::Argument(format!("cells: expected {expected} bytes, found {found}")));
        }
        let Some(taken) = self.allocate(&wanted) else { return Ok(false) };
        let put = self.put_rows(&numbers, &taken, cells.len(), data);
        if put.is_err() {
            self.remove(seq, 0);
        }
        put.map(|()| true)
    }

    fn put_rows(
        &self,
        numbers: &[usize],
        taken: &Taken,
        n_cells: usize,
        data: &[u8],
    ) -> Result<(), ggml::Error> {
        let of_starts: Vec<usize> = taken.starts.iter().map(|&(i, _)| numbers[i]).collect();
        let starts: Vec<usize> = taken.starts.iter().map(|&(_, cell)| cell).collect();
        let (mut at, mut from, mut bytes) = (0, 0, Vec::new());
        for (index, (held, row)) in self.tensors().enumerate() {
            // Values of first positions are some of those before.
            if held != Held::StartValues {
                (from, at) = (at, at + n_cells * row);
            }
            let (numbers, places) = match held {
                Held::Keys | Held::Values => (numbers, &taken.cells[..]),
                Held::StartKeys | Held::StartValues => (&of_starts[..], &starts[..]),
            };
            for group in near(places) {
                let (first, last) = (places[group.start], places[group.end - 1]);
                resize(&mut bytes, (last + 1 - first) * row)?;
                // Cells of other sequences lie between them.
                if last + 1 - first > group.len() {
                    self.store.read(index, first * row, &mut bytes)?;
                }
                for i in group {
                    let to = &mut bytes[(places[i] - first) * row..][..row];
                    to.copy_from_slice(&data[from + numbers[i] * row..][..row]);
                }
                self.store.write(index, first * row, &bytes)?;
            }
        }
        Ok(())
    }

    /// The cells in use below [`Layout::end`], with their numbers. Their contents differ from each other, for no
    /// sequence has a position twice.
    fn first_positions<'c>(&self, cells: &'c [Cell]) -> impl Iterator<Item = (usize, Cell)> + use<'c> {
        let end = self.layout.end;
        cells.iter().copied().enumerate().filter(move |(_, cell)| cell.seqs != 0 && cell.pos < end)
    }
}

/// Groups of numbers that lie close together, as ranges of their indices. The numbers ascend.
fn near(places: &[usize]) -> Vec<Range<usize>> {
    const GAP: usize = 64;
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (i, &place) in places.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if place - places[i - 1] <= GAP => group.end = i + 1,
            _ => groups.push(i..i + 1),
        }
    }
    groups
}

/// Makes `bytes` `n` long, with zeros where it grows.
fn resize(bytes: &mut Vec<u8>, n: usize) -> Result<(), ggml::Error> {
    let refused = |_| ggml::Error::OutOfMemory {
        device: "cpu".into(),
        bytes: n,
        what: "the rows of a cache between it and a file".into(),
    };
    bytes.try_reserve_exact(n.saturating_sub(bytes.len())).map_err(refused)?;
    bytes.resize(n, 0);
    Ok(())
}
