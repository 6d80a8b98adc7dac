//! Measures under several methods, and makes one object of the reports.

use serde::Serialize;
use serde_json::{Map, Value};

use super::SessionSource;
use crate::control::Control;
use crate::model::Result;
use crate::rope::Spec;

/// Makes the source of sessions under a method; `None` is what the file declares.
pub type Sources<'a> = &'a dyn Fn(Option<&Spec>) -> SessionSource;

/// Adds the reports of a measurement under each method in turn, up to the first that was stopped.
///
/// # Errors
/// The first error of `measure`; `reports` then has those before it.
pub fn under_each<R>(
    specs: &[Option<Spec>],
    sources: Sources<'_>,
    reports: &mut Vec<R>,
    control: &Control<'_>,
    mut measure: impl FnMut(&SessionSource) -> Result<R>,
) -> Result<()> {
    for spec in specs {
        reports.push(measure(&sources(spec.as_ref()))?);
        if control.stopped() {
            break;
        }
    }
    Ok(())
}

/// One JSON object of several reports: at its top what they agree on, in `results` the rows of all. A row has its own `rope`
/// and `task`, whatever else the reports differ in, and `finished`: whether it has all it was to have.
///
/// # Errors
/// Returns an error if a report cannot be serialized.
pub fn one_object(reports: &[impl Serialize]) -> serde_json::Result<Map<String, Value>> {
    let mut all: Vec<Map<String, Value>> = Vec::new();
    for report in reports {
        let Value::Object(mut report) = serde_json::to_value(report)? else { continue };
        // A run that was stopped before its first row knows no rope.
        report.retain(|key, value| key != "rope" || *value != "");
        all.push(report);
    }
    let Some(first) = all.first() else { return Ok(Map::new()) };
    let agreed = |key: &str| all.iter().all(|report| report.get(key) == first.get(key));
    let mut keys: Vec<String> = Vec::new();
    for key in all.iter().flat_map(Map::keys) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    let mut out = Map::new();
    for key in &keys {
        let values = all.iter().filter_map(|report| report.get(key));
        if JOINED.contains(&key.as_str()) {
            let mut list: Vec<Value> = Vec::new();
            for value in values.filter_map(Value::as_array).flatten() {
                if !list.contains(value) {
                    list.push(value.clone());
                }
            }
            out.insert(key.clone(), list.into());
        } else if key == "interrupted" {
            out.insert(key.clone(), values.into_iter().any(|v| *v == true).into());
        } else if key == "results" {
            out.insert(key.clone(), rows(&all, &keys, agreed).into());
        } else if let Some(value) = first.get(key).filter(|_| agreed(key)) {
            out.insert(key.clone(), value.clone());
        }
    }
    Ok(out)
}

/// Lists of reports that become one list.
const JOINED: [&str; 2] = ["notes", "mean_over_ctx"];

fn rows(all: &[Map<String, Value>], keys: &[String], agreed: impl Fn(&str) -> bool) -> Vec<Value> {
    let mut out = Vec::new();
    for report in all {
        let own = |key: &&String| {
            let key = key.as_str();
            let is_whole = ["results", "interrupted", "model"].contains(&key) || JOINED.contains(&key);
            !is_whole && (["rope", "task"].contains(&key) || !agreed(key))
        };
        let own: Vec<&String> = keys.iter().filter(own).collect();
        let rows = report.get("results").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for row in rows {
            let of_report = own.iter().filter_map(|key| Some(((*key).clone(), report.get(*key)?.clone())));
            let mut whole: Map<String, Value> = of_report.collect();
            whole.extend(row.as_object().cloned().unwrap_or_default());
            let cut = row.get("interrupted") == Some(&true.into());
            whole.insert("finished".into(), (!cut).into());
            out.push(whole.into());
        }
    }
    out
}
