//! The figures of a study, by model, method, task and length.

use std::collections::HashMap;

use super::page::{perplexity, Entry, Mark};
use crate::cell::{Cell, Key};
use crate::outcome::{CellResult, Record, State};
use crate::plan::{Method, Model, Plan, Task};

/// A plan and what has come of it.
pub(super) struct Data<'a> {
    pub(super) plan: &'a Plan,
    pub(super) records: &'a HashMap<Key, Record>,
}

/// Value at a place in a table, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    /// A figure, and how many parts of it (seeds, tasks) there are of how many.
    Known { value: f64, interval: Option<(f64, f64)>, parts: (usize, usize) },
    /// All that was tried failed.
    Failed,
    /// Not run yet.
    Missing,
    /// Not in the plan.
    Absent,
}

impl Value {
    pub(super) fn known(self) -> Option<f64> {
        match self {
            Value::Known { value, .. } => Some(value),
            _ => None,
        }
    }

    /// The figure if it is whole: means of some parts are not compared with means of all.
    pub(super) fn whole(self) -> Option<f64> {
        match self {
            Value::Known { value, parts: (there, all), .. } if there == all => Some(value),
            _ => None,
        }
    }

    pub(super) fn entry(self, is_perplexity: bool, with_interval: bool) -> Entry {
        let show = |x: f64| if is_perplexity { perplexity(x) } else { format!("{x:.1}") };
        let mark = |mark, text: &str| Entry { mark, ..Entry::new(text) };
        match self {
            Value::Known { value, interval, parts: (there, all) } => {
                let mut note = String::new();
                if let Some((low, high)) = interval.filter(|_| with_interval) {
                    note = format!("{}–{}", show(low), show(high));
                }
                if there < all {
                    let gap = if note.is_empty() { "" } else { ", " };
                    note += &format!("{gap}{there} of {all}");
                }
                let mark = if there < all { Mark::Missing } else { Mark::None };
                Entry { text: show(value), note, mark }
            }
            Value::Failed => mark(Mark::Failed, "failed"),
            Value::Missing => mark(Mark::Missing, "not run"),
            Value::Absent => Entry::new("–"),
        }
    }
}

/// Marks the best of a column, if there is one to be better than. Figures that read the same are as good.
pub(super) fn mark_best(column: &mut [(Value, &mut Entry)], lower_is_better: bool) {
    let whole = |(value, entry): &(Value, &mut Entry)| Some((value.whole()?, entry.text.clone()));
    let known: Vec<(f64, String)> = column.iter().filter_map(whole).collect();
    let order = |a: &&(f64, String), b: &&(f64, String)| a.0.total_cmp(&b.0);
    let best = if lower_is_better { known.iter().min_by(order) } else { known.iter().max_by(order) };
    let Some((_, best)) = best.filter(|best| known.iter().any(|other| other.1 != best.1)) else { return };
    for (_, entry) in
        column.iter_mut().filter(|(value, entry)| value.whole().is_some() && entry.text == *best)
    {
        entry.mark = Mark::Best;
    }
}

impl<'a> Data<'a> {
    pub(super) fn methods(&self, model: &'a Model) -> Vec<&'a Method> {
        self.plan.methods_of(model).collect()
    }

    pub(super) fn tasks(&self, pick: impl Fn(&Task) -> bool) -> Vec<&'a Task> {
        self.plan.tasks.iter().filter(|t| pick(t)).collect()
    }

    /// The lengths of some tasks, ascending.
    pub(super) fn lengths(&self, tasks: &[&Task]) -> Vec<u64> {
        let mut lengths: Vec<u64> = tasks.iter().flat_map(|t| t.lengths.iter().flatten().copied()).collect();
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// The lengths that each of some tasks has, ascending: their means are of the same tasks.
    pub(super) fn shared_lengths(&self, tasks: &[&Task]) -> Vec<u64> {
        let mut lengths = self.lengths(tasks);
        lengths.retain(|&l| tasks.iter().all(|task| task.lengths.contains(&Some(l))));
        lengths
    }

    pub(super) fn keys(model: &Model, method: &Method, task: &Task, length: Option<u64>) -> Vec<Key> {
        task.seeds.iter().map(|&seed| Cell { index: 0, model, method, task, length, seed }.key()).collect()
    }

    /// The results of a place, one for each seed that has one.
    pub(super) fn results(
        &self,
        model: &Model,
        method: &Method,
        task: &Task,
        length: Option<u64>,
    ) -> Vec<&'a CellResult> {
        let keys = Data::keys(model, method, task, length);
        keys.iter().filter_map(|key| self.records.get(key)?.result()).collect()
    }

    /// The figure of a place. Over several seeds it is their mean, of logarithms for perplexity, and the
    /// interval is that of a mean of independent figures.
    pub(super) fn value(&self, model: &Model, method: &Method, task: &Task, length: Option<u64>) -> Value {
        if !task.lengths.contains(&length) {
            return Value::Absent;
        }
        let results = self.results(model, method, task, length);
        if results.is_empty() {
            let keys = Data::keys(model, method, task, length);
            let failed = |k: &Key| self.records.get(k).is_some_and(|r| matches!(r.state, State::Failed(_)));
            return if keys.iter().any(failed) { Value::Failed } else { Value::Missing };
        }
        let parts = (results.len(), task.seeds.len());
        if let [one] = results[..] {
            return Value::Known { value: one.value, interval: one.interval, parts };
        }
        let n = results.len() as f64;
        let log = task.is_perplexity();
        let to = |x: f64| if log { x.max(f64::MIN_POSITIVE).ln() } else { x };
        let from = |x: f64| if log { x.exp() } else { x };
        let mean = results.iter().map(|r| to(r.value)).sum::<f64>() / n;
        let spread = |end: fn((f64, f64)) -> f64| -> Option<f64> {
            let squares = results.iter().map(|r| Some((to(end(r.interval?)) - to(r.value)).powi(2)));
            Some(squares.sum::<Option<f64>>()?.sqrt() / n)
        };
        let interval = spread(|i| i.0).zip(spread(|i| i.1)).map(|(a, b)| (from(mean - a), from(mean + b)));
        Value::Known { value: from(mean), interval, parts }
    }

    /// The plain mean over lengths of the means of several tasks.
    pub(super) fn mean_over(
        &self,
        model: &Model,
        method: &Method,
        tasks: &[&Task],
        lengths: &[u64],
    ) -> Value {
        let at = |&l: &u64| self.mean(model, method, tasks, Some(l));
        let mean = mean(&lengths.iter().map(at).collect::<Vec<_>>());
        let Value::Known { value, interval, .. } = mean else { return mean };
        let all =
            tasks.iter().flat_map(|t| lengths.iter().map(move |&l| self.value(model, method, t, Some(l))));
        let planned: Vec<Value> = all.filter(|v| *v != Value::Absent).collect();
        let whole = planned.iter().filter(|v| v.whole().is_some()).count();
        Value::Known { value, interval, parts: (whole, planned.len()) }
    }

    /// The plain mean of several tasks at one length.
    pub(super) fn mean(&self, model: &Model, method: &Method, tasks: &[&Task], length: Option<u64>) -> Value {
        let values: Vec<Value> = tasks.iter().map(|t| self.value(model, method, t, length)).collect();
        mean(&values)
    }
}

/// The plain mean of what is known of several figures that are in the plan; one figure is its own.
pub(super) fn mean(values: &[Value]) -> Value {
    if let [one] = values {
        return *one;
    }
    let planned: Vec<Value> = values.iter().copied().filter(|v| *v != Value::Absent).collect();
    let known: Vec<f64> = planned.iter().filter_map(|v| v.known()).collect();
    if known.is_empty() {
        let order = [Value::Failed, Value::Missing];
        return order.into_iter().find(|v| planned.contains(v)).unwrap_or(Value::Absent);
    }
    let whole = planned.iter().filter(|v| v.whole().is_some()).count();
    let value = known.iter().sum::<f64>() / known.len() as f64;
    Value::Known { value, interval: None, parts: (whole, planned.len()) }
}
