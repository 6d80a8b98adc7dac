//! Charts: perplexity by position, scores by length, maps of needles.

use std::collections::BTreeMap;

use super::data::{Data, Value};
use super::page::{perplexity, tokens, Block, Chart, Entry, Table};
use super::svg::{Heat, Lines, Series};
use super::tables::{capital, is_long, is_ruler};
use crate::outcome::Bucket;
use crate::plan::{Method, Model, Task};

/// Depths shown apart; more are put together into tenths.
const MAX_DEPTHS: usize = 11;

pub(super) struct Figures<'a> {
    pub(super) data: &'a Data<'a>,
    pub(super) model: &'a Model,
}

impl<'a> Figures<'a> {
    /// The place of a method among colors: the same in every chart.
    fn colour(&self, method: &Method) -> usize {
        self.data.plan.methods.iter().position(|m| m.name == method.name).unwrap_or(0)
    }

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
        let mut series = Vec::new();
        let mut rows: BTreeMap<(u64, u64), Vec<Option<f64>>> = BTreeMap::new();
        for method in self.data.methods(self.model) {
            let results = self.data.results(self.model, method, task, Some(length));
            let Some(buckets) = results.first().map(|r| &r.buckets).filter(|b| !b.is_empty()) else {
                continue;
            };
            let middle = |b: &Bucket| (b.start as f64 + b.end as f64) / 2.0;
            let points: Vec<(f64, f64)> = buckets.iter().map(|b| (middle(b), b.nll.exp())).collect();
            let interval = |b: &Bucket| {
                let half = 1.96 * b.nll_stderr?;
                Some((middle(b), (b.nll - half).exp().max(1.0), (b.nll + half).exp()))
            };
            for (b, y) in buckets.iter().map(|b| (b, b.nll.exp())) {
                let row = rows.entry((b.start, b.end)).or_default();
                row.resize(series.len(), None);
                row.push(Some(y));
            }
            series.push(Series {
                name: method.name.clone(),
                colour: self.colour(method),
                points,
                intervals: buckets.iter().filter_map(interval).collect(),
            });
        }
        if series.is_empty() {
            return None;
        }
        let n = series.len();
        let head = std::iter::once("positions".to_owned()).chain(series.iter().map(|s| s.name.clone()));
        let table = Table {
            caption: String::new(),
            head: head.collect(),
            words: 1,
            rows: rows
                .into_iter()
                .map(|((start, end), mut values)| {
                    values.resize(n, None);
                    let entry = |v: Option<f64>| Entry::new(v.map_or_else(|| "–".to_owned(), perplexity));
                    std::iter::once(Entry::new(format!("{start}–{}", end.saturating_sub(1))))
                        .chain(values.into_iter().map(entry))
                        .collect()
                })
                .collect(),
        };
        let title = format!("{} by position, {} tokens", capital(&task.label), tokens(length));
        let known = series.iter().any(|s| !s.intervals.is_empty());
        let bands = if known { " Bands are 95% intervals." } else { "" };
        let lines = Lines {
            title: &title,
            x: "position in the window, tokens",
            y: "perplexity (logarithmic)",
            ticks: (0..=8).map(|i| length * i / 8).map(|x| (x as f64, x.to_string())).collect(),
            percent: false,
            series,
        };
        Some(Chart {
            svg: lines.svg(),
            caption: format!(
                "How well each next token is predicted, by how much text stands before it. Lower is better; a line \
                 that rises is a method that fails at that distance.{bands}"
            ),
            title,
            table,
        })
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
        if n.1 > 0 && n.1 != n.0 {
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
        let lengths = self.data.lengths(tasks);
        let interval = |x: f64, value: Value| match value {
            Value::Known { interval: Some((low, high)), parts: (there, all), .. } if there == all => {
                Some((x, low, high))
            }
            _ => None,
        };
        let mut series = Vec::new();
        let mut rows = Vec::new();
        for method in self.data.methods(self.model) {
            let values: Vec<Value> =
                lengths.iter().map(|&l| self.data.mean(self.model, method, tasks, Some(l))).collect();
            let points: Vec<(f64, f64)> =
                values.iter().enumerate().filter_map(|(i, v)| Some((i as f64, v.whole()?))).collect();
            let entries = values.iter().map(|v| v.entry(false, false));
            rows.push(std::iter::once(Entry::new(method.name.as_str())).chain(entries).collect());
            if !points.is_empty() {
                let intervals =
                    values.iter().enumerate().filter_map(|(i, v)| interval(i as f64, *v)).collect();
                series.push(Series {
                    name: method.name.clone(),
                    colour: self.colour(method),
                    points,
                    intervals,
                });
            }
        }
        if series.is_empty() || lengths.len() < 2 {
            return None;
        }
        let head = std::iter::once("method".to_owned()).chain(lengths.iter().map(|&l| tokens(l)));
        let table = Table { caption: String::new(), head: head.collect(), words: 1, rows };
        let ticks = lengths.iter().enumerate().map(|(i, &l)| (i as f64, tokens(l))).collect();
        let lines =
            Lines { title: &title, x: "length, tokens", y: "score, percent", ticks, percent: true, series };
        Some(Chart {
            svg: lines.svg(),
            caption:
                "Mean score by length of the prompt. Higher is better. Only means of all tasks are drawn; \
                 bars are 95% intervals."
                    .into(),
            title,
            table,
        })
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
        let chart = |(method, sums): &(&Method, Vec<(f64, u64, f64, u64)>)| {
            let at = |row: f64, length: u64| {
                let here = sums.iter().filter(|s| place(s.0) == row && s.1 == length);
                let (score, n) = here.fold((0.0, 0u64), |(a, n), s| (a + s.2, n.saturating_add(s.3)));
                (n > 0).then(|| score / n as f64)
            };
            let values: Vec<Vec<Option<f64>>> =
                rows.iter().map(|&r| lengths.iter().map(|&l| at(r, l)).collect()).collect();
            let title = format!("{}: {name}", method.name);
            let map = Heat {
                title: &title,
                columns: columns.clone(),
                rows: row_names.clone(),
                values: values.clone(),
            };
            let entries = |(name, row): (&String, &Vec<Option<f64>>)| {
                let figures =
                    row.iter().map(|v| Entry::new(v.map_or_else(|| "–".to_owned(), |v| format!("{v:.0}"))));
                std::iter::once(Entry::new(name.as_str())).chain(figures).collect()
            };
            let head = std::iter::once("depth".to_owned()).chain(columns.iter().cloned());
            Chart {
                svg: map.svg(),
                caption: String::new(),
                table: Table {
                    caption: String::new(),
                    head: head.collect(),
                    words: 1,
                    rows: row_names.iter().zip(&values).map(entries).collect(),
                },
                title,
            }
        };
        all.iter().map(chart).collect()
    }
}
