//! A plan laid open, as text.

use super::{Inspection, KindView, Pair, PairKind, ReachView, Table};
use crate::hparams::{BaseFrom, Hparams};
use crate::text::count;

/// Pairs of a table that are shown, unless all are.
const SHOWN: usize = 16;

impl Inspection {
    /// Tables of frequencies, below the facts needed to read them. `hp` is the model that the plan was made for. A long
    /// table has some of its pairs, and `cut` at its end; `None` shows all pairs of all tables.
    pub fn text(&self, hp: &Hparams, cut: Option<&str>) -> String {
        let (trained, target) = (count(self.n_ctx_orig as u64), count(self.n_ctx as u64));
        let n_kinds = self.kinds.len() + usize::from(!self.recurrent.is_empty());
        let layers = match &self.kinds[..] {
            [kind] if n_kinds == 1 => kind.heads(),
            _ => format!("{n_kinds} kinds of layer"),
        };
        let mut s = format!("original context {trained}, target context {target}, {layers}\n");
        s += &self.bases(&hp.arch);
        for note in hp.unread_note().iter().chain(&self.notes) {
            s += &format!("note: {note}\n");
        }
        if !self.recurrent.is_empty() {
            let of = numbers(&self.recurrent);
            s += &format!("\nlayers {of}: gated delta-net, which has neither attention nor positions\n");
        }
        for kind in &self.kinds {
            if n_kinds > 1 {
                let window =
                    kind.window.map_or_else(|| "every key".into(), |n| format!("{} tokens", count(n as u64)));
                let own = if kind.applies { "" } else { ", as in the file" };
                s += &format!("\nlayers {}: see {window}, {}{own}\n", numbers(&kind.layers), kind.heads());
            }
            s += &kind.by_head();
            // Heads differ in their base alone: the first one's pairs tell how to read the others'.
            let n_tables = if cut.is_some() { 1 } else { usize::MAX };
            kind.tables.iter().take(n_tables).for_each(|t| s += &t.text(cut));
        }
        s
    }

    /// The bases of the model's frequencies and where each is from, a line for each that differs.
    fn bases(&self, arch: &str) -> String {
        let mut found: Vec<(f64, &BaseFrom, Vec<usize>)> = Vec::new();
        for kind in &self.kinds {
            let (Some(base), Some(from)) = (kind.base, &kind.base_from) else { continue };
            match found.iter_mut().find(|(b, f, _)| *b == base && *f == from) {
                Some((.., layers)) => layers.extend(&kind.layers),
                None => found.push((base, from, kind.layers.clone())),
            }
        }
        let one = found.len() == 1;
        let mut s = String::new();
        for (base, from, mut layers) in found {
            layers.sort_unstable();
            let of = if one { String::new() } else { format!(" of layers {}", numbers(&layers)) };
            let from = match from {
                BaseFrom::Key(key) => format!("from {key}"),
                BaseFrom::Architecture => format!("the default of {arch} models; the file names none"),
                BaseFrom::Guess => format!("a guess: the file has no {arch}.rope.freq_base"),
            };
            s += &format!("base{of} {base}, {from}\n");
        }
        s
    }

    /// The keys that queries see and the distances they are shown at, for each kind of layer.
    pub fn reach_text(&self) -> String {
        let mut s = String::new();
        for kind in &self.kinds {
            s.push('\n');
            if self.kinds.len() > 1 || !self.recurrent.is_empty() {
                s += &format!("layers {}: ", numbers(&kind.layers));
            }
            s += "a query i sees these keys j, and each at this distance\n";
            let reach = &kind.reach;
            let wide = reach.branches.iter().map(|b| b.pairs.chars().count()).max().unwrap_or(0);
            for b in &reach.branches {
                s += &format!("    {:wide$}  {}\n", b.pairs, b.shown);
            }
            s += &match (reach.largest_distance, reach.most_keys) {
                (Some(d), Some(n)) => {
                    let (d, n) = (count(d.unsigned_abs().into()), count(n as u64));
                    format!("largest distance within the context {d}; a query sees {n} keys at most\n")
                }
                _ => format!("largest distance: counted up to {} tokens\n", count(ReachView::COUNTED as u64)),
            };
            s += &match self.n_held {
                Some(n) => {
                    format!("the cache holds {} keys at most, however long the text\n", count(n as u64))
                }
                None => "the cache keeps every key\n".to_owned(),
            };
        }
        s
    }
}

fn numbers(layers: &[usize]) -> String {
    layers.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

impl KindView {
    fn heads(&self) -> String {
        let queries = self.temperature.as_ref().map_or(String::new(), |t| format!(", queries i times {t}"));
        format!(
            "{} rotary dimensions, {} KV heads, magnitude {}{queries}",
            self.n_rot, self.n_head_kv, self.mscale
        )
    }

    /// A line for each KV head, where they differ.
    fn by_head(&self) -> String {
        if self.tables.len() < 2 {
            return String::new();
        }
        let mut s = format!(
            "\n{:>4}  {:>14}  {:>16}  {:>12}  {:>6}\n",
            "head", "base", "longest wave", "interpolated", "unseen"
        );
        for t in &self.tables {
            let longest = t.pairs.iter().filter_map(|p| p.wavelength).fold(0.0, f64::max);
            let slower = t.pairs.iter().filter(|p| p.kind == PairKind::Interpolated).count();
            let unseen = t.pairs.iter().filter(|p| p.unseen).count();
            let base = t.base.map_or_else(|| "-".to_owned(), |b| format!("{b:.2}"));
            let head = t.head.map_or_else(String::new, |h| h.to_string());
            s += &format!("{head:>4}  {base:>14}  {longest:>16.1}  {slower:>12}  {unseen:>6}\n");
        }
        s
    }
}

impl Table {
    fn text(&self, cut: Option<&str>) -> String {
        let of = self.head.map_or_else(|| "all heads".to_owned(), |h| format!("KV head {h}"));
        let mut s = format!(
            "\n{of}\n{:>4}  {:>12}  {:>14}  {:>7}  {:>10}  {:>10}\n",
            "pair", "rad/token", "wave (tokens)", "slower", "turns then", "turns now"
        );
        let n = self.pairs.len();
        // The ends, and evenly what is between: where the table bends is seen in the plot.
        let is_shown = |i: usize| i < 2 || i + 2 >= n || i.is_multiple_of(n.div_ceil(SHOWN - 4));
        let cut = cut.filter(|_| n > SHOWN);
        for (i, p) in self.pairs.iter().enumerate() {
            if cut.is_none() || is_shown(i) {
                s += &p.text();
            }
        }
        if let Some(cut) = cut {
            s += &format!("(some of {n} pairs; {cut})\n");
        }
        s
    }
}

impl Pair {
    fn text(&self) -> String {
        let kind = match self.kind {
            PairKind::Unchanged => "unchanged",
            PairKind::Interpolated => "interpolated",
            PairKind::Extrapolated => "extrapolated",
        };
        let wave = self.wavelength.map_or_else(|| "not rotated".to_owned(), |w| format!("{w:.1}"));
        let slower =
            if self.theta > 0.0 { format!("{:.3}", self.theta_file / self.theta) } else { "-".to_owned() };
        format!(
            "{:>4}  {:>12.5e}  {wave:>14}  {slower:>7}  {:>10.3}  {:>10.3}  {kind}{}\n",
            self.index,
            self.theta,
            self.turns_trained,
            self.turns_target,
            if self.unseen { ", to unseen angles" } else { "" }
        )
    }
}
