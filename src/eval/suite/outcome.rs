//! The reports of several tasks and methods together.

use ropewalk_tasks::{Group, GROUPS};
use serde_json::Value;

use super::{means, paired, GroupMean, Paired, Report};
use crate::eval::one_object;
use crate::rope::Spec;

/// Reports, means of groups, and differences between methods.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Reports of tasks under methods.
    pub reports: Vec<Report>,
    /// For each report its method as given, which is shorter than the spec in force.
    pub methods: Vec<String>,
    /// Means of groups, under each method.
    pub means: Vec<GroupMean>,
    /// Differences of each method from the first.
    pub differences: Vec<Paired>,
}

impl Outcome {
    /// Compares reports. `specs` are those of the reports of each task, in turn; `names` are the tasks and groups that were
    /// asked for.
    pub fn new(reports: Vec<Report>, specs: &[Option<Spec>], names: &[String]) -> Outcome {
        let method = |(report, spec): (&Report, &Option<Spec>)| {
            spec.as_ref().map_or_else(|| report.rope.clone(), ToString::to_string)
        };
        let methods = reports.iter().zip(specs.iter().cycle()).map(method).collect();
        let groups: Vec<&Group> = GROUPS.iter().filter(|g| names.iter().any(|n| n == g.name)).collect();
        // By place: what a method comes to depends on the context, which can differ by task.
        let of = |i: usize| reports.iter().skip(i).step_by(specs.len().max(1)).cloned().collect::<Vec<_>>();
        let by_rope: Vec<Vec<Report>> = (0..specs.len().min(reports.len())).map(of).collect();
        let means = by_rope.iter().flat_map(|r| groups.iter().flat_map(|g| means(g, r))).collect();
        let mut differences = Vec::new();
        if let Some((first, others)) = by_rope.split_first() {
            for b in others.iter().flatten() {
                differences.extend(first.iter().filter(|a| a.task == b.task).flat_map(|a| paired(a, b)));
            }
        }
        Outcome { reports, methods, means, differences }
    }

    /// The method as given, by the spec in force at some length.
    fn method<'a>(&'a self, rope: &'a str) -> &'a str {
        let mut all = self.reports.iter().zip(&self.methods);
        all.find(|(report, _)| report.results.iter().any(|row| row.rope == rope))
            .map_or(rope, |(_, method)| method.as_str())
    }

    /// One JSON object.
    ///
    /// # Errors
    /// Returns the errors of [`one_object`].
    pub fn json(&self) -> serde_json::Result<Value> {
        let mut all = one_object(&self.reports)?;
        all.insert("means".into(), serde_json::to_value(&self.means)?);
        all.insert("differences".into(), serde_json::to_value(&self.differences)?);
        Ok(all.into())
    }

    /// The reports as text, then `maps`, such as those of [`plot::depths`](crate::plot::depths), then means and differences.
    pub fn text(&self, maps: &[String]) -> String {
        let mut out = self.reports.iter().map(Report::text).collect::<Vec<_>>().join("\n");
        maps.iter().for_each(|map| out += &format!("\n{map}"));
        for m in &self.means {
            let at = m.length.map_or_else(String::new, |l| format!(" at {l}"));
            out += &format!(
                "\n{}{at}: mean of {} tasks {:.2} ({})\n",
                m.group,
                m.tasks,
                m.score,
                self.method(&m.rope)
            );
        }
        for p in &self.differences {
            let at = p.length.map_or_else(String::new, |l| format!(" at {l}"));
            out += &format!(
                "\n{}{at}: {} minus {}: {:+.2} ({:+.1} to {:+.1}), {} samples\n",
                p.task,
                self.method(&p.to),
                self.method(&p.from),
                p.difference,
                p.ci_low,
                p.ci_high,
                p.samples
            );
        }
        out
    }
}
