//! Attention maps: the attention of one head in one pass over a text, as in Untie the Knots (section 5.5, Figs. 7 and
//! 8, and appendix A).
//!
//! By default, the head is the one with the largest sum of probabilities at distances above [`Params::distance`]. The
//! largest probability in each square of tokens is kept ([`Tiles`]). The map shows it in percent, up to 1.
//! Probabilities are computed for a few queries at a time and never kept for all.

use std::ops::Range;

use rayon::prelude::*;
use serde::Serialize;

use super::document::pieces;
use super::table::table;
use super::{invalid, unsupported, Document};
use crate::control::Control;
use crate::hparams::Hparams;
use crate::model::{Error, Result};
use crate::session::{QueryBlock, Session};
use crate::Token;

/// Maximum number of squares along one side of a map. Longer texts have larger squares.
pub const MAX_SIDE: usize = 512;

/// Queries whose probabilities are made at once by one thread.
const ROWS: usize = 16;

/// Heads that the text of a report lists.
const LISTED: usize = 8;

ropewalk_core::setters! {
    /// Parameters of the measurement. The defaults are the paper's.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Params {
        /// Number of tokens to read, from the start of the text.
        pub tokens: usize,
        /// A key is far if it is more than this many tokens before its query.
        pub distance: usize,
        /// Number of first tokens that never count as far, because many heads put unused attention on them; 0 in the
        /// paper.
        pub sinks: usize,
        /// Tokens along the side of a square; the map uses a multiple of it if a side would have more than [`MAX_SIDE`]
        /// squares.
        pub tile: usize,
        /// The layer, from 0, among whose heads one is chosen; `None` for all layers.
        pub layer: Option<usize>,
        /// The head, from 0, of that layer; `None` for the one with the largest sum.
        pub head: Option<usize>,
    }
}

impl Params {
    /// The paper's parameters, for a text of `tokens` tokens.
    pub fn new(tokens: usize) -> Params {
        Params { tokens, distance: 1000, sinks: 0, tile: 16, layer: None, head: None }
    }
}

/// A head and its attention to far keys.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeadSum {
    /// The layer, from 0.
    pub layer: usize,
    /// The head in its layer, from 0.
    pub head: usize,
    /// Sum of the head's probabilities at distances above the limit, over all queries.
    pub far: f64,
    /// Mean fraction of attention on far keys, from 0 to 1, over the queries that have far keys.
    pub far_per_query: f64,
}

/// The largest probability in each square of tokens, on and below the diagonal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tiles {
    /// Tokens along the side of a square.
    pub tile: usize,
    /// Tokens of the text.
    pub tokens: usize,
    /// A row for the queries of each square from the first on: the squares of its keys, up to the diagonal.
    pub rows: Vec<Vec<f32>>,
}

impl Tiles {
    fn new(tokens: usize, tile: usize) -> Tiles {
        // The smallest multiple of `tile` that gives no more squares than there may be.
        let tile = tile * tokens.div_ceil(tile).div_ceil(MAX_SIDE).max(1);
        let rows = (0..tokens.div_ceil(tile)).map(|row| vec![0.0; row + 1]).collect();
        Tiles { tile, tokens, rows }
    }

    fn add(&mut self, query: usize, pooled: &[f32]) {
        let row = &mut self.rows[query / self.tile];
        row.iter_mut().zip(pooled).for_each(|(most, p)| *most = most.max(*p));
    }

    /// The values to draw: 100 times each, clipped to 0..1.
    pub fn shown(&self) -> Vec<Vec<f32>> {
        self.rows.iter().map(|row| row.iter().map(|p| (100.0 * p).clamp(0.0, 1.0)).collect()).collect()
    }
}

/// Result of a run. It serializes to the JSON of the command line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The model's file, and adapters.
    pub model: String,
    /// The active method spec.
    pub rope: String,
    /// KV cache type.
    pub kv: String,
    /// Tokens the context was opened for.
    pub ctx: usize,
    /// A key is far if it is more than this many tokens before its query.
    pub distance: usize,
    /// Number of first tokens that do not count as far.
    pub sinks: usize,
    /// The head drawn.
    pub shown: HeadSum,
    /// All candidate heads, largest sum first; empty if the head was given.
    pub heads: Vec<HeadSum>,
    /// The map of that head.
    pub map: Tiles,
    /// `attention`, as rows of other measurements name their task.
    pub task: &'static str,
    /// Always true: there is no map of a part.
    pub finished: bool,
}

/// The first `n` tokens of the joined documents. Each document starts with BOS if the model has it.
///
/// # Errors
/// Returns an error if a text cannot be tokenized, if an id is outside the vocabulary, or if the documents have no
/// tokens.
pub fn tokens_of(session: &Session, documents: &[Document], n: usize) -> Result<Vec<Token>> {
    let model = session.model();
    let vocab = model.vocab();
    let bos = vocab.bos().filter(|_| vocab.add_bos());
    let mut tokens: Vec<Token> = Vec::new();
    for piece in pieces(documents, model.hparams().n_vocab, vocab.bos(), &mut Vec::new())? {
        if tokens.len() >= n {
            break;
        }
        tokens.extend(bos);
        tokens.extend(piece.tokens(|text| Ok(vocab.tokenize(text, false, false)?))?);
    }
    tokens.truncate(n);
    if tokens.is_empty() {
        return Err(invalid("the text: expected at least one token, found none"));
    }
    Ok(tokens)
}

/// Chooses a head on `tokens` and maps it. `name` is the model's label in the report. If the head is not given, the
/// tokens are read twice: once for the sums of all heads, and once for the map.
///
/// # Errors
/// Returns an error if the model does not have the layer or head, if a head must be chosen and no two tokens are more
/// than `distance` apart, if the tokens do not fit the context, or if probabilities are not finite; and
/// [`Error::Interrupted`].
pub fn measure(
    session: &mut Session,
    name: &str,
    tokens: &[Token],
    params: &Params,
    control: &Control<'_>,
) -> Result<Report> {
    let n = tokens.len();
    check(session, n, params)?;
    control.bind(&session.cancel_flag());
    let mut heads = Vec::new();
    let far_keys = (params.distance, params.sinks);
    let (layer, head) = match (params.layer, params.head) {
        (Some(layer), Some(head)) => (layer, head),
        _ => {
            let n_layer = session.model().hparams().n_layer;
            let layers = params.layer.map_or(0..n_layer, |layer| layer..layer + 1);
            heads = sums(session, tokens, layers, far_keys, control)?;
            heads.sort_by(|a, b| b.far.total_cmp(&a.far));
            heads.first().map(|h| (h.layer, h.head)).ok_or_else(|| unsupported("the model has no head"))?
        }
    };
    let mut map = Tiles::new(n, params.tile);
    let mut far = 0.0;
    session.probe(tokens, layer..layer + 1, &mut |block| {
        control.unless_stopped(Error::Interrupted)?;
        let parts = row_groups(&block.positions)
            .into_par_iter()
            .map(|rows| {
                let p = block.probabilities(head, rows.clone())?;
                let width = rows.end;
                let pooled = rows.clone().zip(p.chunks_exact(width)).map(|(query, row)| {
                    let most = |tile: &[f32]| tile.iter().copied().fold(0f32, f32::max);
                    (query, row.chunks(map.tile).map(most).collect::<Vec<_>>())
                });
                Ok((pooled.collect::<Vec<_>>(), far_sum(&p, &rows, far_keys)))
            })
            .collect::<Result<Vec<_>>>()?;
        for (pooled, sum) in parts {
            pooled.iter().for_each(|(query, row)| map.add(*query, row));
            far += sum;
        }
        report(control, format_args!("drawing layer {layer}, head {head}"), block, n);
        Ok(())
    })?;
    Ok(Report {
        model: name.into(),
        rope: session.plan().spec.to_string(),
        kv: session.params().kv_type.name().into(),
        ctx: session.params().n_ctx,
        distance: params.distance,
        sinks: params.sinks,
        shown: HeadSum { layer, head, far, far_per_query: per_query(far, n, params.distance) },
        heads,
        map,
        task: "attention",
        finished: true,
    })
}

fn check(session: &Session, n: usize, params: &Params) -> Result<()> {
    let hp = session.model().hparams();
    if params.tile == 0 {
        return Err(Error::argument("tiles", "at least 1 token", 0));
    }
    if n == 0 {
        return Err(Error::argument("attention", "at least one token", "none"));
    }
    if n > session.n_max() {
        let most = session.n_max();
        return Err(Error::argument("attention", format_args!("at most {most} tokens, the context"), n));
    }
    match (params.layer, params.head) {
        (None, Some(_)) => return Err(invalid("a head needs its layer")),
        (Some(layer), _) if layer >= hp.n_layer => {
            return Err(Error::argument("layer", format_args!("0 to {}", hp.n_layer - 1), layer));
        }
        (Some(layer), _) if hp.attention_of(layer).is_none() => {
            return Err(unsupported(format!("layer {layer}: it has no attention, it is a gated delta-net")));
        }
        (Some(layer), Some(head)) => {
            let n_head = n_head(hp, layer);
            if head >= n_head {
                return Err(Error::argument("head", format_args!("0 to {}", n_head - 1), head));
            }
        }
        _ if n <= params.distance.saturating_add(1) => {
            return Err(invalid(format!(
                "no two of {n} tokens are more than {} apart: give a longer text, or a smaller distance",
                params.distance
            )));
        }
        _ => {}
    }
    Ok(())
}

/// Query heads of a layer; 0 where it has no attention.
fn n_head(hp: &Hparams, layer: usize) -> usize {
    hp.attention_of(layer).map_or(0, |attention| attention.n_head)
}

/// The sum of every head of some layers.
fn sums(
    session: &mut Session,
    tokens: &[Token],
    layers: Range<usize>,
    far_keys: (usize, usize),
    control: &Control<'_>,
) -> Result<Vec<HeadSum>> {
    let distance = far_keys.0;
    let mut sums: Vec<Vec<f64>> = Vec::new();
    let first = layers.start;
    for layer in layers.clone() {
        sums.push(vec![0.0; n_head(session.model().hparams(), layer)]);
    }
    session.probe(tokens, layers, &mut |block| {
        control.unless_stopped(Error::Interrupted)?;
        let sums = &mut sums[block.layer - first];
        // Queries that have no far key need no probabilities.
        let groups: Vec<_> =
            row_groups(&block.positions).into_iter().filter(|rows| rows.end > distance + 1).collect();
        let parts = (0..sums.len() * groups.len())
            .into_par_iter()
            .map(|i| {
                let (head, rows) = (i / groups.len(), &groups[i % groups.len()]);
                let p = block.probabilities(head, rows.clone())?;
                Ok((head, far_sum(&p, rows, far_keys)))
            })
            .collect::<Result<Vec<_>>>()?;
        // In one order, so that a sum is the same however many threads there are.
        parts.into_iter().for_each(|(head, far)| sums[head] += far);
        report(control, format_args!("choosing a head, layer {}", block.layer), block, tokens.len());
        Ok(())
    })?;
    let of_layer = |(i, sums): (usize, Vec<f64>)| {
        let head = move |(head, far)| HeadSum {
            layer: first + i,
            head,
            far,
            far_per_query: per_query(far, tokens.len(), distance),
        };
        sums.into_iter().enumerate().map(head)
    };
    Ok(sums.into_iter().enumerate().flat_map(of_layer).collect())
}

fn report(control: &Control<'_>, what: std::fmt::Arguments<'_>, block: &QueryBlock, n: usize) {
    control.report(what, block.positions.end as u64, n as u64);
}

/// Positions in groups of [`ROWS`].
fn row_groups(positions: &Range<usize>) -> Vec<Range<usize>> {
    positions.clone().step_by(ROWS).map(|start| start..(start + ROWS).min(positions.end)).collect()
}

/// Sum of the probabilities of some queries at keys more than `distance` before them, without the first
/// `sinks`.
fn far_sum(p: &[f32], rows: &Range<usize>, (distance, sinks): (usize, usize)) -> f64 {
    let far = |(query, row): (usize, &[f32])| -> f64 {
        let far = row[..query.saturating_sub(distance)].iter().skip(sinks);
        far.map(|&p| f64::from(p)).sum()
    };
    rows.clone().zip(p.chunks_exact(rows.end)).map(far).sum()
}

fn per_query(far: f64, n: usize, distance: usize) -> f64 {
    far / n.saturating_sub(distance.saturating_add(1)).max(1) as f64
}

impl Report {
    /// The report as text: the input, the head of the map, and the heads that look farthest, without the map.
    pub fn text(&self) -> String {
        let mut out = format!(
            "model  {}, rope {}, cache {}\ntext   {} tokens, context {}\nhead   layer {}, head {} (from 0): {:.1} % of its \
             attention goes to keys more than {} tokens back{}\n",
            self.model,
            self.rope,
            self.kv,
            self.map.tokens,
            self.ctx,
            self.shown.layer,
            self.shown.head,
            100.0 * self.shown.far_per_query,
            self.distance,
            match self.sinks {
                0 => String::new(),
                n => format!(", the first {n} excluded"),
            },
        );
        if !self.heads.is_empty() {
            let cells = |h: &HeadSum| {
                vec![
                    h.layer.to_string(),
                    h.head.to_string(),
                    format!("{:.3}", h.far),
                    format!("{:.2}", 100.0 * h.far_per_query),
                ]
            };
            out += &format!("chosen among {} heads by the sum of far probabilities:\n\n", self.heads.len());
            out += &table(&["layer", "head", "far sum", "far %"], self.heads.iter().take(LISTED).map(cells));
        }
        out
    }
}
