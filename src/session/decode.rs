//! Decoding: micro-batches through the graph, rows of logits out.

use ggml::graph::{Builder, Outcome};

use super::batch::Item;
use super::inputs::{table_of, Seen};
use super::{Batch, Built, SeqId, Session};
use crate::graph::{Cached, Capabilities, Graph, SeqGroups, Shape};
use crate::kv::{KvCache, Span};
use crate::model::{Error, Model, Result};
use crate::rope::Plan;
use crate::states::States;
use crate::Token;

/// Upper bounds of the tensors in a graph, for the size of its arena: for each layer, outside layers, for
/// each low-rank pair.
const TENSORS_PER_LAYER: usize = 96;
const TENSORS_ELSEWHERE: usize = 64;
const TENSORS_PER_PAIR: usize = 8;
/// More for each layer where second moments are shown.
const TENSORS_OF_MOMENTS: usize = 48;

/// Rows of logits, in the requested order.
#[derive(Debug)]
pub struct Logits<'a> {
    rows: &'a [f32],
    n_vocab: usize,
}

impl<'a> Logits<'a> {
    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len() / self.n_vocab
    }

    /// Row `i`, `n_vocab` long.
    ///
    /// # Panics
    /// Panics past the last row, like a slice.
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.rows[i * self.n_vocab..(i + 1) * self.n_vocab]
    }
}

/// Receives each micro-batch's logits: the indices of their tokens in the decoded items, and the rows.
type Sink<'s> = &'s mut dyn FnMut(&[usize], &[f32]) -> Result<()>;

impl Session {
    /// Decodes a batch of at most `n_batch` tokens and returns the requested rows of logits. On an error, the session
    /// is unchanged (for plans that evict keys, see [`Session::cancel_flag`]).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.gguf");
    /// # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
    /// use ropewalk::model::{Model, ModelParams};
    /// use ropewalk::session::{Batch, Session, SessionParams};
    ///
    /// let model = Model::load(&path, &ModelParams::cpu())?;
    /// let params = SessionParams::new(512).n_threads(1);
    /// let mut session = Session::new(&model, &params)?;
    ///
    /// let mut batch = Batch::new();
    /// let tokens = model.vocab().tokenize("Two texts at once", true, false)?;
    /// for (i, &token) in tokens.iter().enumerate() {
    ///     let last = i + 1 == tokens.len();
    ///     batch.push(token, 0, last); // sequence 0; logits for the last token only
    ///     batch.push(token, 1, last); // sequence 1
    /// }
    /// let logits = session.decode(&batch)?;
    /// assert_eq!(logits.n_rows(), 2);
    /// assert_eq!(logits.row(0).len(), model.hparams().n_vocab);
    /// assert_eq!(session.tokens(1), tokens);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn decode(&mut self, batch: &Batch) -> Result<Logits<'_>> {
        if batch.len() > self.params.n_batch {
            let most = self.params.n_batch;
            return Err(Error::argument("batch", format_args!("at most {most} tokens"), batch.len()));
        }
        let n_vocab = self.model.hparams().n_vocab;
        Ok(Logits { rows: self.logits_of(&batch.items)?, n_vocab })
    }

    /// Runs items and returns the rows of logits that they want, in order.
    pub(super) fn logits_of(&mut self, items: &[Item]) -> Result<&[f32]> {
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        let done = self.run(items, &mut |_, rows| {
            logits.extend_from_slice(rows);
            Ok(())
        });
        self.logits = logits;
        done?;
        Ok(&self.logits)
    }

    /// Runs items micro-batch by micro-batch; when one fails, all of them are undone.
    pub(super) fn run(&mut self, items: &[Item], sink: Sink<'_>) -> Result<()> {
        if items.is_empty() {
            return Err(Error::Invalid("expected at least one token, found none".into()));
        }
        // With landmarks it depends on where they fall, which is looked at below.
        if !self.plan.evict && self.model.landmarks().is_none() && items.len() > self.n_room() {
            return Err(self.full(items.len(), self.n_room()));
        }
        let mut before: Vec<(SeqId, usize)> = Vec::new();
        for item in items {
            self.check_tokens(&[item.token])?;
            if !before.iter().any(|(s, _)| *s == item.seq) {
                let len = self.tokens_mut(item.seq)?.len();
                before.push((item.seq, len));
            }
        }
        for &(seq, len) in &before {
            let (new, free) = (items.iter().filter(|i| i.seq == seq).count(), self.n_max() - len);
            if new > free {
                return Err(self.full(new, free));
            }
        }
        let (all, origins) = self.with_landmarks(items);
        if !self.plan.evict && all.len() > self.kv.n_free() {
            return Err(self.full(items.len(), self.n_room()));
        }
        self.states.iter_mut().for_each(|states| states.begin(&before));
        let mut at = 0;
        let mut done = Ok(());
        while done.is_ok() && at < all.len() {
            let n = self.micro_batch_len(&all[at..]);
            done = self.micro_batch(&all[at..at + n], &origins[at..at + n], sink);
            at += n;
        }
        self.states.iter_mut().for_each(|states| states.end(done.is_ok()));
        for (seq, len) in before.into_iter().filter(|_| done.is_err()) {
            // Where earlier micro-batches have evicted what is needed there, nothing of the sequence is of use.
            let len = self.resumable(seq, len);
            self.kv.remove(seq, self.model.n_positions(len) as i32);
            self.tokens[seq as usize].truncate(len);
            self.states.iter_mut().for_each(|states| states.truncate(seq, len));
        }
        done
    }

    /// An error for the first token that is not in the vocabulary.
    pub(super) fn check_tokens(&self, tokens: &[Token]) -> Result<()> {
        let n_vocab = self.model.hparams().n_vocab;
        match tokens.iter().find(|&&token| token < 0 || token as usize >= n_vocab) {
            Some(token) => Err(Error::argument("token", format_args!("0 to {}", n_vocab - 1), token)),
            None => Ok(()),
        }
    }

    pub(super) fn full(&self, needed: usize, free: usize) -> Error {
        Error::ContextFull { needed, free, n_ctx: self.params.n_ctx }
    }

    /// `origins`: the index of each item's logits among those that the sink knows.
    fn micro_batch(&mut self, items: &[Item], origins: &[usize], sink: Sink<'_>) -> Result<()> {
        if self.cancelled() {
            return Err(Error::Interrupted);
        }
        let mut places = Vec::with_capacity(items.len());
        for item in items {
            let tokens = &mut self.tokens[item.seq as usize];
            let next = self.model.n_positions(tokens.len()) as i32;
            if item.token == self.model.landmark_token() {
                // Its place was counted with the block that it closes.
                places.push((item.seq, next - 1));
                continue;
            }
            places.push((item.seq, next));
            tokens.push(item.token);
        }
        self.evict(&places);
        let taken = self.kv.allocate(&places).ok_or_else(|| self.full(places.len(), self.kv.n_free()))?;
        let grouped = self.grouped(items)?;
        let groups = if self.states.is_some() { grouped.shape() } else { SeqGroups::one(items.len()) };
        let wanted: Vec<usize> = (0..items.len()).filter(|&i| items[i].logits).collect();
        let tables = self.tables_of(&places);
        // Our own op takes cells in any order.
        let placed = self.capabilities.branched_attention();
        let seen = self.plan.kinds().iter().map(|kind| {
            let mut seen = Seen::default();
            if let Some(tables) = tables {
                let len = tables.n_positions;
                seen.spans[0] = Span { start: 0, len, columns: len };
                return seen;
            }
            for (i, branch) in kind.branches.iter().enumerate() {
                let cells = self.kv.cells_under(kind, branch.k_pos);
                if placed {
                    let columns = cells.columns(&places, &branch.reach);
                    seen.spans[i] = columns.span();
                    seen.columns.push(columns);
                } else {
                    seen.spans[i] = cells.span(&places, &branch.reach);
                }
            }
            seen
        });
        let seen: Vec<Seen> = seen.collect();
        self.prepare(&Shape {
            n_tokens: items.len(),
            n_starts: taken.starts.len(),
            n_out: wanted.len(),
            spans: seen.iter().map(|seen| seen.spans).collect(),
            n_seqs: self.n_tables(table_of(&places).1.len()),
            groups,
            tables,
            probed: self.probed.clone(),
            moments: self.moments,
        })?;
        let Some(Built { inputs, output, .. }) = self.current.clone() else {
            return Err(Error::Invalid("no graph".into()));
        };
        self.fill(&inputs, items, &places, &taken, &wanted, &seen)?;
        if let (Some(ids), Some(net)) = (&inputs.delta, self.model.hparams().delta_net) {
            grouped.fill(&mut self.exec, ids, net.n_conv - 1)?;
        }
        if self.exec.compute()? == Outcome::Cancelled {
            return Err(Error::Interrupted);
        }
        let Some(output) = output else { return Ok(()) };
        let indices: Vec<usize> = wanted.iter().map(|&i| origins[i]).collect();
        if let Some(rows) = self.exec.borrow_f32(output)? {
            return sink(&indices, rows);
        }
        let mut rows = Vec::new();
        self.exec.read_f32(output, &mut rows)?;
        sink(&indices, &rows)
    }

    fn max_tensors(&self, shape: &Shape) -> usize {
        let n_pairs: usize = self.model.adapters().iter().map(|a| a.n_pairs()).sum();
        let per_layer = TENSORS_PER_LAYER + if shape.moments { TENSORS_OF_MOMENTS } else { 0 };
        let hp = self.model.hparams();
        let branches = Cached::n_tensors_of_branches(hp, self.capabilities, shape);
        branches + hp.n_layer * per_layer + n_pairs * TENSORS_PER_PAIR + TENSORS_ELSEWHERE
    }

    /// The largest graph of `n` tokens of one sequence, without logits.
    pub(super) fn largest_of_one(&self, n: usize) -> Shape {
        Shape {
            n_tokens: n,
            n_starts: self.kv.most_starts(n),
            n_out: 0,
            spans: self.cost().spans(),
            n_seqs: self.n_tables(1),
            groups: SeqGroups::one(n),
            tables: None,
            probed: 0..0,
            moments: false,
        }
    }

    /// Bytes that a graph of this shape needs in addition to weights and cache.
    pub(super) fn measure(&mut self, shape: &Shape) -> Result<usize> {
        let (n, caches) = (self.max_tensors(shape), (&self.kv, self.states.as_ref()));
        let (model, how, plan) = (&self.model, self.capabilities, &self.plan);
        Ok(self.exec.measure(n, |b| build(b, model, how, caches, plan, shape).map(|_| ()))?)
    }

    /// Makes the executor hold a graph of this shape.
    pub(super) fn prepare(&mut self, shape: &Shape) -> Result<()> {
        if self.current.as_ref().is_some_and(|built| built.shape == *shape) {
            return Ok(());
        }
        self.current = None;
        let (n, caches) = (self.max_tensors(shape), (&self.kv, self.states.as_ref()));
        let (model, how, plan) = (&self.model, self.capabilities, &self.plan);
        self.current = Some(self.exec.build(n, |b| build(b, model, how, caches, plan, shape))?);
        Ok(())
    }
}

fn build(
    b: &Builder<'_>,
    model: &Model,
    how: Capabilities,
    caches: (&KvCache, Option<&States>),
    plan: &Plan,
    shape: &Shape,
) -> ggml::Result<Built> {
    let (hp, transformer) = (model.hparams(), model.transformer());
    let g = if shape.moments { Graph::watched(b, how) } else { Graph::new(b, how) };
    let (cached, mut x) = Cached::new(&g, hp, caches, plan, model.arch().pairing, shape)?;
    for (il, layer) in transformer.layers.iter().enumerate() {
        let mixing = layer.before_attention(&g, x)?;
        let attn_out = cached.wanted(&g, cached.mix(&g, mixing, layer.sinks(), il)?, il)?;
        x = layer.after_attention(&g, cached.wanted(&g, x, il)?, attn_out)?;
    }
    if shape.moments {
        transformer.watch_output(&g, x)?;
    }
    // Without a wanted row the graph ends where the last layer's keys and values are stored.
    let output = if shape.n_out > 0 { Some(b.output(transformer.logits(&g, x)?)) } else { None };
    let (inputs, queries) = cached.into_ids();
    Ok(Built { shape: shape.clone(), inputs, output, queries, moments: g.into_moments() })
}
