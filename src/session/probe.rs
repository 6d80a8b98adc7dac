//! Attention probabilities outside the graph, from the rotated queries of a micro-batch and the cached keys.

use std::ops::Range;

use super::batch::Item;
use super::Session;
use crate::graph::Shape;
use crate::hparams::LayerAttention;
use crate::model::{Error, Result};
use crate::rope::Branch;
use crate::Token;

/// Maximum tokens of a micro-batch whose queries are kept, because the queries of all layers are kept at once.
const MICRO_BATCH: usize = 256;

/// Queries of one layer in one micro-batch, and the keys that are cached once it has run.
#[derive(Debug)]
pub struct QueryBlock {
    /// The layer, from 0.
    pub layer: usize,
    /// Positions of the queries.
    pub positions: Range<usize>,
    attention: LayerAttention,
    /// Attention sink scores, one per query head; empty in layers without sinks.
    sinks: Vec<f32>,
    parts: Vec<Part>,
}

/// One branch of the plan: the pairs that it covers are seen by these.
#[derive(Debug)]
struct Part {
    branch: Branch,
    /// `[n][n_head * d]`.
    q: Vec<f32>,
    /// `[n_cells][n_head_kv * d]`.
    k: Vec<f32>,
    /// The position each of these cells holds; negative where it holds none.
    cells: Vec<i32>,
}

impl QueryBlock {
    /// Query heads.
    pub fn n_head(&self) -> usize {
        self.attention.n_head
    }

    /// Probabilities of the queries at some positions in one head: a row for each query, and a column for each
    /// position up to the last of these queries. The value is 0 if a query does not see a key. Every row sums to 1,
    /// minus the share of an attention sink.
    ///
    /// # Errors
    /// Returns an error if scores are not finite.
    ///
    /// # Panics
    /// Panics for positions outside [`QueryBlock::positions`], like a slice.
    pub fn probabilities(&self, head: usize, positions: Range<usize>) -> Result<Vec<f32>> {
        let LayerAttention { n_head, n_head_kv, n_embd_head: d, scale, softcap, .. } = self.attention;
        let (width, first) = (positions.end, positions.start - self.positions.start);
        let of_key = head / (n_head / n_head_kv) * d;
        let mut rows = vec![f32::NEG_INFINITY; positions.len() * width];
        for part in &self.parts {
            let seen: Vec<Range<i32>> = positions.clone().map(|i| part.branch.reach.keys(i as i32)).collect();
            let queries: Vec<&[f32]> =
                (0..positions.len()).map(|i| &part.q[((first + i) * n_head + head) * d..][..d]).collect();
            // All queries meet a key before the next one is read.
            for (key, &at) in part.k.chunks_exact(n_head_kv * d).zip(&part.cells) {
                let key = &key[of_key..of_key + d];
                for (i, (query, seen)) in queries.iter().zip(&seen).enumerate() {
                    if seen.contains(&at) {
                        let score = scale * dot(query, key);
                        rows[i * width + at as usize] =
                            softcap.map_or(score, |cap| cap * (score / cap).tanh());
                    }
                }
            }
        }
        for (row, position) in rows.chunks_exact_mut(width.max(1)).zip(positions) {
            soft_max(row, self.sinks.get(head).copied()).ok_or_else(|| {
                let layer = self.layer;
                Error::Invalid(format!(
                    "layer {layer}, head {head}, query {position}: expected scores that are finite numbers"
                ))
            })?;
        }
        Ok(rows)
    }
}

/// Turns scores into probabilities, with a sink; `None` if scores are not finite, or if no key is seen.
fn soft_max(row: &mut [f32], sink: Option<f32>) -> Option<()> {
    let top = row.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = sink.map_or(0.0, |sink| f64::from((sink - top).exp()));
    for x in row.iter_mut() {
        *x = (*x - top).exp();
        sum += f64::from(*x);
    }
    let inverse = (1.0 / sum) as f32;
    row.iter_mut().for_each(|x| *x *= inverse);
    sum.is_finite().then_some(())
}

/// In sixteen sums, so that they are made side by side.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const N: usize = 16;
    let (a, b) = (a.chunks_exact(N), b.chunks_exact(N));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0f32; N];
    for (a, b) in a.zip(b) {
        for i in 0..N {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + rest
}

impl Session {
    /// Empties the session, reads `tokens` as sequence 0, and calls `f` with the queries of each of `layers` that has
    /// attention, micro-batch by micro-batch. Probabilities are computed outside the graph, from the queries that the
    /// graph uses and the cached keys. They are therefore valid for every RoPE method, KV cache type, and attention
    /// implementation. Nothing has the size tokens x tokens.
    ///
    /// # Errors
    /// Returns an error if the model does not have a layer; the errors of [`Session::decode`]; and the errors of `f`.
    pub fn probe(
        &mut self,
        tokens: &[Token],
        layers: Range<usize>,
        f: &mut dyn FnMut(&QueryBlock) -> Result<()>,
    ) -> Result<()> {
        let n_layer = self.model.hparams().n_layer;
        if layers.is_empty() || layers.end > n_layer {
            let expected = format!("some of 0 to {}", n_layer - 1);
            return Err(Error::argument("layers", expected, format_args!("{layers:?}")));
        }
        self.refuse_landmarks("attention maps")?;
        let n = self.params.n_ubatch.min(MICRO_BATCH);
        let shape = Shape { probed: layers.clone(), ..self.largest_of_one(n) };
        self.read_watched(tokens, &shape, &mut |session, n| {
            layers.clone().try_for_each(|il| session.query_block(il, n)?.map_or(Ok(()), |b| f(&b)))
        })
    }

    /// Empties the session and reads tokens as sequence 0, in graphs that show what `largest` does. After each
    /// micro-batch, whose outputs are still there, calls `f` with its number of tokens.
    pub(super) fn read_watched(
        &mut self,
        tokens: &[Token],
        largest: &Shape,
        f: &mut dyn FnMut(&Session, usize) -> Result<()>,
    ) -> Result<()> {
        self.clear();
        let compute = self.measure(largest)?;
        self.cost().check_measured(self.kv.n_bytes(), compute, self.model.backend_device().memory_free())?;
        (self.probed, self.moments) = (largest.probed.clone(), largest.moments);
        let done = tokens.chunks(largest.n_tokens).try_for_each(|tokens| {
            let items: Vec<Item> =
                tokens.iter().map(|&token| Item { token, seq: 0, logits: false }).collect();
            self.run(&items, &mut |_, _| Ok(()))?;
            f(self, tokens.len())
        });
        (self.probed, self.moments) = (0..0, false);
        done
    }

    /// The last `n` queries of a layer, after a micro-batch that was read with that layer probed; `None` if it has no
    /// attention.
    fn query_block(&self, il: usize, n: usize) -> Result<Option<QueryBlock>> {
        let hp = self.model.hparams();
        let (Some(plan), Some(attention)) = (self.plan.of_layer(il), hp.attention_of(il)) else {
            return Ok(None);
        };
        let key_maps = plan.key_maps();
        let shown = self.current.iter().flat_map(|built| &built.queries).filter(|q| q.layer == il);
        let mut parts = Vec::new();
        for queries in shown {
            let branch = plan.branches[queries.branch];
            let map = key_maps.iter().position(|m| *m == branch.k_pos).unwrap_or(0);
            let mut q = Vec::new();
            self.exec.read_f32(queries.output, &mut q)?;
            let cells = self.kv.cells_under(plan, branch.k_pos);
            let cells = &cells.all()[..cells.n_end()];
            let k = self.cached_keys(il, map, cells.len())?;
            let cells = cells.iter().map(|c| if c.seqs & 1 != 0 { c.pos } else { -1 }).collect();
            parts.push(Part { branch, q, k, cells });
        }
        let end = self.tokens[0].len();
        Ok(Some(QueryBlock {
            layer: il,
            positions: end - n..end,
            attention: attention.clone(),
            sinks: self.sinks(il)?,
            parts,
        }))
    }

    /// The attention sinks of a layer; empty where it has none.
    fn sinks(&self, il: usize) -> Result<Vec<f32>> {
        let layer = self.model.transformer().layers.get(il);
        let Some(sinks) = layer.and_then(|layer| layer.sinks()) else { return Ok(Vec::new()) };
        let mut bytes = vec![0; sinks.def().n_bytes().unwrap_or(0)];
        sinks.store.read(sinks.index, 0, &mut bytes)?;
        let mut values = vec![0.0; sinks.def().ne[0]];
        ggml::dtype::dequantize(sinks.def().dtype, &bytes, &mut values)?;
        Ok(values)
    }

    /// Keys of a layer as they are cached, rotated, of the first `n` cells.
    fn cached_keys(&self, il: usize, map: usize, n: usize) -> Result<Vec<f32>> {
        let keys = self.kv.k(il, map);
        let (dtype, row) = (keys.def().dtype, keys.def().ne[0]);
        let mut bytes = vec![0; dtype.row_bytes(row).unwrap_or(0) * n];
        keys.store.read(keys.index, 0, &mut bytes)?;
        let mut values = vec![0.0; row * n];
        ggml::dtype::dequantize(dtype, &bytes, &mut values)?;
        Ok(values)
    }
}
