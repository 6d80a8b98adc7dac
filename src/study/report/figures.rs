//! Charts: perplexity by position, scores by length, maps of needles.

use std::collections::BTreeMap;

use ropewalk_core::terminal::inline;
use ropewalk_plot::{Axis, Grid, Scale, Series};

use super::data::{Data, Value};
use super::page::{perplexity, tokens, Block, Chart, Entry, Table};
use super::tables::{capital, is_long, is_ruler};
use crate::outcome::Bucket;
use crate::plan::{Method, Model, Task};

/// Depths shown apart; more are put together into tenths.
const MAX_DEPTHS: usize = 11;
/// Ends of an interval that is not known.
const UNKNOWN: (f64, f64) = (f64::NAN, f64::NAN);

pub(super) struct Figures<'a> {
    pub(super) data: &'a Data<'a>,
    pub(super) model: &'a Model,
}

/// The chart of some lines, if one of them has points. Lines of a plan's methods without points keep the colors of the
/// others the same in every chart.
fn chart(title: String, caption: &str, x: Axis, y: Axis, series: Vec<Series>, table: Table) -> Option<Chart> {
    if series.iter().all(|s| s.points.is_empty()) {
        return None;
    }
    let drawn = ropewalk_plot::Chart { title: inline(&title).into_owned(), x, y, series }.to_svg();
    Some(Chart::new(title, caption, drawn, table))
}

/// The figures of a chart: names of columns and, in each row, a name and its figures.
fn figures(first: &str, names: impl IntoIterator<Item = String>, rows: Vec<Vec<Entry>>) -> Table {
    let head = std::iter::once(first.to_owned()).chain(names).collect();
    Table { head, words: 1, rows, ..Table::default() }
}

fn row(name: &str, figures: impl IntoIterator<Item = Entry>) -> Vec<Entry> {
    std::iter::once(Entry::new(name)).chain(figures).collect()
}

/// A figure, or a dash.
fn entry(value: Option<f64>, show: impl Fn(f64) -> String) -> Entry {
    Entry::new(value.map_or_else(|| "–".to_owned(), show))
}

impl<'a> Figures<'a> {
    /// Perplexity by position in the window: the longest length in sight, others on demand. LongPPL is one figure;
    /// what is recorded by position under it is perplexity.
    pub(super) fn by_position(&self) -> Vec<Block> {
        let mut out = Vec::new();
        for task in self.data.tasks(|task| task.is_perplexity() && task.name != "longppl") {
            let lengths = self.data.lengths(&[task]);
            let charts = lengths.iter().rev().filter_map(|&l| self.position_chart(task, l));
            let mut charts: Vec<Chart> = charts.collect();
            if charts.is_empty() {
                continue;
            }
            let others = charts.split_off(1);
            out.push(Block::Charts(charts));
            if !others.is_empty() {
                let what = format!("{} by position at shorter lengths", capital(&task.label));
                out.push(Block::Details(what, vec![Block::Charts(others)]));
            }
        }
        out
    }

    fn position_chart(&self, task: &Task, length: u64) -> Option<Chart> {
        let (mut series, mut names) = (Vec::new(), Vec::new());
        let mut rows: BTreeMap<(u64, u64), Vec<Option<f64>>> = BTreeMap::new();
        for method in &self.data.plan.methods {
            let results = self.data.results(self.model, method, task, Some(length));
            let buckets = results.first().map_or(&[][..], |r| r.buckets.as_slice());
            for b in buckets {
                let row = rows.entry((b.start, b.end)).or_default();
                row.resize(names.len(), None);
                row.push(Some(b.nll.exp()));
            }
            if !buckets.is_empty() {
                names.push(method.name.clone());
            }
            let point = |b: &Bucket| ((b.start as f64 + b.end as f64) / 2.0, b.nll.exp());
            let ends = |b: &Bucket| {
                let half = b.nll_stderr.map(|e| 1.96 * e);
                half.map_or(UNKNOWN, |half| ((b.nll - half).exp().max(1.0), (b.nll + half).exp()))
            };
            let line = Series::new(inline(&method.name), buckets.iter().map(point).collect());
            series.push(line.between(buckets.iter().map(ends).collect()));
        }
        let known = series.iter().flat_map(|s| &s.bounds).any(|b| b.0.is_finite());
        let caption = format!(
            "How well each next token is predicted, by how much text stands before it. Lower is better; a line that \
             rises is a method that fails at that distance.{}",
            if known { " Bands are 95% intervals." } else { "" }
        );
        let shown = |((start, end), mut values): ((u64, u64), Vec<Option<f64>>)| {
            values.resize(names.len(), None);
            let figures = values.into_iter().map(|v| entry(v, perplexity));
            row(&format!("{start}–{}", end.saturating_sub(1)), figures)
        };
        let rows = rows.into_iter().map(shown).collect();
        chart(
            format!("{} by position, {} tokens", capital(&task.label), tokens(length)),
            &caption,
            Axis::new("position in the window, tokens", Scale::Linear),
            Axis::new("perplexity", Scale::Log),
            series,
            figures("positions", names, rows),
        )
    }

    /// Scores by length: RULER's mean where its tasks are there, and the mean of all tasks made for a length.
    pub(super) fn by_length(&self) -> Vec<Block> {
        let ruler = self.data.tasks(is_ruler);
        let long = self.data.tasks(is_long);
        let n = (ruler.len(), long.len());
        let mut sets = Vec::new();
        if n.0 > 1 {
            sets.push((format!("RULER by length: mean of {} of its 13 tasks", n.0), ruler));
        }
        // Not the same tasks again.
        if n.1 > 0 && (n.0 < 2 || n.1 != n.0) {
            let name = if n.1 == 1 {
                format!("{} by length", capital(&long[0].label))
            } else {
                format!("Mean of {} tasks by length", n.1)
            };
            sets.push((name, long));
        }
        sets.into_iter()
            .filter_map(|(title, tasks)| self.length_chart(title, &tasks))
            .map(|c| Block::Charts(vec![c]))
            .collect()
    }

    fn length_chart(&self, title: String, tasks: &[&Task]) -> Option<Chart> {
        let lengths = self.data.shared_lengths(tasks);
        if lengths.len() < 2 {
            return None;
        }
        let of_model = self.data.methods(self.model);
        let (mut series, mut rows) = (Vec::new(), Vec::new());
        for method in &self.data.plan.methods {
            let at = |&l: &u64| self.data.mean(self.model, method, tasks, Some(l));
            let values: Vec<Value> = lengths.iter().map(at).collect();
            if of_model.contains(&method) {
                rows.push(row(&method.name, values.iter().map(|v| v.entry(false, false))));
            }
            let whole = values.iter().zip(&lengths).filter_map(|(value, &l)| match *value {
                Value::Known { value, interval, parts: (there, all) } if there == all => {
                    Some(((l as f64, value), interval.unwrap_or(UNKNOWN)))
                }
                _ => None,
            });
            let (points, bounds) = whole.unzip();
            series.push(Series::new(inline(&method.name), points).between(bounds));
        }
        chart(
            title,
            "Mean score by length of the prompt. Higher is better. Only means of all tasks are drawn; bands are 95% \
             intervals.",
            Axis::new("length, tokens", Scale::Log),
            Axis::new("score, percent", Scale::Linear).showing([0.0, 100.0]),
            series,
            figures("method", lengths.into_iter().map(tokens), rows),
        )
    }

    /// Where needles are found: a map for each method, of all needle tasks together, then task by task.
    pub(super) fn maps(&self) -> Vec<Block> {
        let tasks = self.data.tasks(|t| !t.is_perplexity());
        let sets: Vec<(&Task, Vec<Chart>)> = tasks
            .into_iter()
            .map(|t| (t, self.maps_of(&[t], &t.label)))
            .filter(|(_, charts)| !charts.is_empty())
            .collect();
        let mut out = Vec::new();
        if sets.len() == 1 {
            return sets.into_iter().map(|(_, charts)| Block::Charts(charts)).collect();
        }
        let all: Vec<&Task> = sets.iter().map(|(t, _)| *t).collect();
        let together = self.maps_of(&all, &format!("mean of {} tasks", all.len()));
        if !together.is_empty() {
            out.push(Block::Charts(together));
        }
        for (task, charts) in sets {
            out.push(Block::Details(format!("Maps of {}", task.label), vec![Block::Charts(charts)]));
        }
        out
    }

    fn maps_of(&self, tasks: &[&Task], name: &str) -> Vec<Chart> {
        let lengths = self.data.lengths(tasks);
        // Sums of scores and samples by depth and length, of every method, so that all maps have one grid.
        let mut all = Vec::new();
        for method in self.data.methods(self.model) {
            let mut sums: Vec<(f64, u64, f64, u64)> = Vec::new();
            for task in tasks {
                for &length in &lengths {
                    for result in self.data.results(self.model, method, task, Some(length)) {
                        let depths = result.by.iter().filter(|b| b.tag == "depth");
                        sums.extend(depths.filter_map(|b| {
                            let depth: f64 = b.value.trim_end_matches('%').trim().parse().ok()?;
                            if !(0.0..=100.0).contains(&depth) {
                                return None;
                            }
                            Some((depth, length, b.score * b.samples as f64, b.samples))
                        }));
                    }
                }
            }
            if !sums.is_empty() {
                all.push((method, sums));
            }
        }
        let depths = || all.iter().flat_map(|(_, sums)| sums.iter().map(|s| s.0));
        let mut rows: Vec<f64> = depths().collect();
        rows.sort_by(f64::total_cmp);
        rows.dedup();
        let tenths = rows.len() > MAX_DEPTHS;
        let place = move |d: f64| if tenths { (d / 10.0).floor().clamp(0.0, 9.0) * 10.0 } else { d };
        if tenths {
            rows = (0..10).map(|i| f64::from(i) * 10.0).collect();
        }
        let name_of = |d: &f64| if tenths { format!("{d:.0}+ %") } else { format!("{d:.0} %") };
        let row_names: Vec<String> = rows.iter().map(name_of).collect();
        let columns: Vec<String> = lengths.iter().map(|&l| tokens(l)).collect();
        let map = |(method, sums): &(&Method, Vec<(f64, u64, f64, u64)>)| {
            let at = |row: f64, length: u64| {
                let here = sums.iter().filter(|s| place(s.0) == row && s.1 == length);
                let (score, n) = here.fold((0.0, 0u64), |(a, n), s| (a + s.2, n.saturating_add(s.3)));
                (n > 0).then(|| score / n as f64)
            };
            let title = format!("{}: {name}", method.name);
            let grid = Grid {
                title: inline(&title).into_owned(),
                x: "length, tokens".into(),
                y: "depth".into(),
                columns: columns.clone(),
                rows: row_names.clone(),
                scores: rows.iter().map(|&r| lengths.iter().map(|&l| at(r, l)).collect()).collect(),
            };
            let shown = |(name, scores): (&String, &Vec<Option<f64>>)| {
                row(name, scores.iter().map(|v| entry(*v, |v| format!("{v:.0}"))))
            };
            let table =
                figures("depth", columns.clone(), row_names.iter().zip(&grid.scores).map(shown).collect());
            Chart::new(title, "", grid.to_svg(), table)
        };
        all.iter().map(map).collect()
    }
}
