//! The cells of a study as rows of JSON, with the keys of other measurements.

use std::collections::HashMap;

use serde_json::{json, Value};

use crate::{Cell, CellResult, Key, Plan, Record, State};

/// A row for each cell, in the order of the plan. Cells without figures are not finished; `failed` says why, where one failed.
pub fn rows(plan: &Plan, records: &HashMap<Key, Record>) -> Vec<Value> {
    plan.cells().map(|cell| row(&cell, records.get(&cell.key()).map(|record| &record.state))).collect()
}

fn row(cell: &Cell<'_>, state: Option<&State>) -> Value {
    let mut row = json!({
        "model": cell.model.name,
        "method": cell.method.name,
        "rope": cell.method.spec,
        "task": cell.task.label,
        "length": cell.length,
        "seed": cell.seed,
        "finished": false,
    });
    match state {
        Some(State::Done(result)) => figures(&mut row, result, cell.task.is_perplexity()),
        Some(State::Failed(why)) => row["failed"] = why.as_str().into(),
        None => {}
    }
    row
}

fn figures(row: &mut Value, result: &CellResult, is_perplexity: bool) {
    let value = match result.metric.as_str() {
        "perplexity" => "ppl",
        metric if is_perplexity => metric,
        _ => "score",
    };
    row[value] = result.value.into();
    if !is_perplexity && result.metric == "accuracy" {
        row["accuracy"] = (result.value / 100.0).into();
    }
    if let Some((low, high)) = result.interval {
        (row["ci_low"], row["ci_high"]) = (low.into(), high.into());
    }
    row["rope"] = result.rope.as_str().into();
    row["metric"] = result.metric.as_str().into();
    row["samples"] = result.samples.into();
    row["tokens"] = result.tokens.into();
    row["n_ctx"] = result.n_ctx.into();
    row["finished"] = true.into();
}
