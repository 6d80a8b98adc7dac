//! Relations of perplexity to tasks, and of frozen to trained weights.

use super::data::{Data, Value};
use super::page::{length, perplexity, tokens, Block, Entry, Table};
use super::tables::heading;
use crate::plan::{Attention, Method, Model, Task, Trained};
use crate::stats::{pearson, spearman};

/// Correlations of ln(perplexity) with task scores, over methods.
pub(super) fn correlations(data: &Data<'_>, model: &Model) -> Vec<Block> {
    let scores = data.tasks(|t| !t.is_perplexity());
    let mut out = Vec::new();
    for measure in data.tasks(Task::is_perplexity) {
        let mut rows = Vec::new();
        for task in &scores {
            for at in data.lengths(&[measure]) {
                // A task without lengths is held against every length of perplexity.
                let of_task = if task.lengths.contains(&None) { None } else { Some(at) };
                if !task.lengths.contains(&of_task) {
                    continue;
                }
                let mut row = vec![Entry::new(task.label.as_str()), Entry::new(tokens(at))];
                for attention in [Attention::Exact, Attention::Approximate] {
                    let pair = |m: &&Method| {
                        let x = data.value(model, m, measure, Some(at)).whole().filter(|x| *x > 0.0)?;
                        Some((x.ln(), data.value(model, m, task, of_task).whole()?))
                    };
                    let methods = data.methods(model);
                    let pairs: Vec<(f64, f64)> =
                        methods.iter().filter(|m| m.attention == attention).filter_map(pair).collect();
                    let show = |r: Option<f64>| match r {
                        _ if pairs.len() < 3 => "too few".to_owned(),
                        None => "no spread".to_owned(),
                        Some(r) => format!("{r:+.2}"),
                    };
                    row.extend([pearson(&pairs), spearman(&pairs)].map(|r| Entry::new(show(r))));
                    row.push(Entry::new(pairs.len().to_string()));
                }
                rows.push(row);
            }
        }
        if rows.is_empty() {
            continue;
        }
        let head = [
            "task",
            "length",
            "exact: Pearson",
            "exact: Spearman",
            "exact: n",
            "approximate: Pearson",
            "approximate: Spearman",
            "approximate: n",
        ];
        let caption = format!(
            "Correlation of ln({}) with each task, over the n methods that have both figures; methods of \
             exact and of approximate attention apart (after Figure 4 of LCEG). -1 means that a lower \
             perplexity always went with a higher score, 0 that perplexity says nothing about the task. \
             With few methods even large figures may be chance.",
            measure.label
        );
        out.push(Block::Table(Table::new(caption, &head, 2, rows)));
    }
    out
}

pub(super) fn frozen_and_trained(data: &Data<'_>, model: &Model) -> Vec<Block> {
    let methods = data.methods(model);
    let of = |t: Trained| methods.iter().copied().filter(|m| m.trained == t).collect::<Vec<&Method>>();
    let (frozen, trained) = (of(Trained::Frozen), of(Trained::Trained));
    if frozen.is_empty() || trained.is_empty() {
        let which = if frozen.is_empty() { "trained" } else { "frozen" };
        let text = format!("All methods of this study run on {which} weights: there is nothing to compare.");
        return vec![Block::Text(text)];
    }
    let mut rows = Vec::new();
    for task in data.tasks(|_| true) {
        for &at in &task.lengths {
            let show = |x: f64| if task.is_perplexity() { perplexity(x) } else { format!("{x:.1}") };
            let value = |m: &Method| data.value(model, m, task, at).whole();
            let mean = |methods: &[&Method]| {
                let known: Vec<f64> = methods.iter().filter_map(|m| value(m)).collect();
                match known.len() {
                    0 => Value::Missing.entry(false, false),
                    n => Entry {
                        note: format!("n {n}"),
                        ..Entry::new(show(average(&known, task.is_perplexity())))
                    },
                }
            };
            // Methods that differ in their weights only. An adapter can bring a spec that the plan does not name.
            let rope = |m: &Method| data.results(model, m, task, at).first().map(|result| &result.rope);
            let pairs: Vec<(f64, f64)> = trained
                .iter()
                .filter_map(|t| {
                    let same = frozen.iter().find(|f| rope(f).is_some() && rope(f) == rope(t))?;
                    Some((value(same)?, value(t)?))
                })
                .collect();
            let difference = match pairs.len() {
                0 => Entry::new("no pair"),
                n if task.is_perplexity() => {
                    let ratios: Vec<f64> = pairs.iter().map(|(f, t)| t / f).collect();
                    Entry {
                        note: format!("n {n}"), ..Entry::new(format!("× {:.2}", average(&ratios, true)))
                    }
                }
                n => {
                    let gains: Vec<f64> = pairs.iter().map(|(f, t)| t - f).collect();
                    Entry { note: format!("n {n}"), ..Entry::new(format!("{:+.1}", average(&gains, false))) }
                }
            };
            let words = [Entry::new(heading(task)), Entry::new(length(at))];
            rows.push(words.into_iter().chain([mean(&frozen), mean(&trained), difference]).collect());
        }
    }
    let caption = "Means over methods with frozen and with trained weights, with the number of methods, and the \
                   mean change from frozen to trained where a method is there in both ways under one rope spec. \
                   Perplexities are averaged as logarithms and their change is a ratio: below 1 is better. \
                   Scores are percent: higher is better.";
    let head = ["task", "length", "frozen", "trained", "change in pairs"];
    vec![Block::Table(Table::new(caption, &head, 2, rows))]
}

fn average(values: &[f64], logarithms: bool) -> f64 {
    let n = values.len() as f64;
    if logarithms {
        return (values.iter().map(|x| x.max(f64::MIN_POSITIVE).ln()).sum::<f64>() / n).exp();
    }
    values.iter().sum::<f64>() / n
}
