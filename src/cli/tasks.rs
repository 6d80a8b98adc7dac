//! The benchmarks that `eval` knows, their settings, and the data they need, for `eval --list`.

use ropewalk::tasks::{Opt, Task, GROUPS, TASKS};
use serde::Serialize;
use serde_json::json;

use super::output::{self, OutputArgs};
use super::pull::set_with;

#[derive(Serialize)]
struct Described<'a> {
    task: &'a str,
    about: &'a str,
    source: &'a str,
    metrics: &'a [&'a str],
    has_length: bool,
    samples: Option<usize>,
    chance: Option<f64>,
    by: &'a [&'a str],
    options: Vec<Setting<'a>>,
    files: Vec<Published<'a>>,
}

#[derive(Serialize)]
struct Setting<'a> {
    name: &'a str,
    values: &'a [&'a str],
    default: &'a str,
    about: &'a str,
}

#[derive(Serialize)]
struct Published<'a> {
    name: &'a str,
    sha256: Option<&'a str>,
    from: String,
}

/// Describes these tasks; lists all where there are none.
pub(crate) fn list(tasks: &[&'static dyn Task], out: OutputArgs) -> anyhow::Result<()> {
    let all: &[&dyn Task] = if tasks.is_empty() { &TASKS } else { tasks };
    let described: Vec<Described<'_>> = all.iter().map(|t| describe(*t)).collect();
    if out.json {
        let groups = GROUPS.iter().map(|g| json!({"group": g.name, "about": g.about, "tasks": g.tasks}));
        return output::print_json(&json!({"results": described, "groups": groups.collect::<Vec<_>>()}));
    }
    output::print(&match tasks {
        [] => overview(),
        _ => described.iter().map(whole).collect::<Vec<_>>().join("\n"),
    })
}

fn describe(task: &'static dyn Task) -> Described<'static> {
    let info = task.info();
    let setting =
        |o: &&'static Opt| Setting { name: o.name, values: o.values, default: o.default, about: o.about };
    Described {
        task: info.name,
        about: info.about,
        source: info.source,
        metrics: info.metrics,
        has_length: info.has_length,
        samples: info.samples,
        chance: info.chance,
        by: info.groups,
        options: info.options.iter().map(setting).collect(),
        files: info
            .files
            .iter()
            .map(|f| {
                let pull = set_with(f.name).map(|set| format!("; `ropewalk pull {set}` fetches it"));
                Published {
                    name: f.name,
                    sha256: f.sha256,
                    from: f.from.to_owned() + &pull.unwrap_or_default(),
                }
            })
            .collect(),
    }
}

fn overview() -> String {
    let mut out = String::from("Groups\n");
    for group in GROUPS {
        out += &format!("  {:<24} {} ({} tasks)\n", group.name, group.about, group.tasks.len());
    }
    out += "\nTasks (`ropewalk eval --list NAME` shows more)\n";
    for task in TASKS.iter() {
        out += &format!("  {:<24} {}\n", task.info().name, task.info().about);
    }
    out
}

fn whole(d: &Described<'_>) -> String {
    let mut out = format!(
        "{}\n  {}\n  protocol  {}\n  metrics   {}\n",
        d.task,
        d.about,
        d.source,
        d.metrics.join(", ")
    );
    out += &match d.samples {
        Some(n) => format!("  samples   {n}\n"),
        None => "  samples   all\n".to_owned(),
    };
    if let Some(chance) = d.chance {
        out += &format!("  chance    {:.1} %\n", 100.0 * chance);
    }
    if !d.by.is_empty() {
        out += &format!("  scores by {}\n", d.by.join(", "));
    }
    for s in &d.options {
        let values = if s.values.is_empty() { "VALUE".to_owned() } else { s.values.join("|") };
        out += &format!("  --set {}={values} (default {})  {}\n", s.name, s.default, s.about);
    }
    for f in &d.files {
        out += &format!("  data      {}: {}\n", f.name, f.from);
    }
    out
}
