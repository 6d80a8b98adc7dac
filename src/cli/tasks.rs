//! The benchmarks that `eval` knows, their settings, and the data they need, for `eval --list`.

use ropewalk::remedy::Remedy;
use ropewalk::tasks::{DataFile, Info, Task, GROUPS, TASKS};
use serde_json::{json, Value};

use super::hints;
use super::output::{self, OutputArgs};

/// Describes these tasks; lists all where there are none.
pub(crate) fn list(tasks: &[&'static dyn Task], out: OutputArgs) -> anyhow::Result<()> {
    if out.json {
        let all: &[&dyn Task] = if tasks.is_empty() { &TASKS } else { tasks };
        let all: Vec<Value> = all.iter().map(|task| described(task.info())).collect();
        let groups = GROUPS.iter().map(|g| json!({"group": g.name, "about": g.about, "tasks": g.tasks}));
        return output::print_json(&json!({"results": all, "groups": groups.collect::<Vec<_>>()}));
    }
    output::print(&match tasks {
        [] => overview(),
        _ => tasks.iter().map(|task| whole(task.info())).collect::<Vec<_>>().join("\n"),
    })
}

fn described(info: &Info) -> Value {
    let file = |f: &&DataFile| json!({ "name": f.name, "sha256": f.sha256, "from": published(f) });
    json!({
        "task": info.name, "about": info.about, "source": info.source, "metrics": info.metrics,
        "has_length": info.has_length, "samples": info.samples, "chance": info.chance, "by": info.groups,
        "options": info.options, "files": info.files.iter().map(file).collect::<Vec<_>>(),
    })
}

/// Where a file is published, and how to fetch it.
fn published(file: &DataFile) -> String {
    file.from.to_owned() + &hints::text(Remedy::Data(file.name))
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

fn whole(info: &Info) -> String {
    let mut out = format!(
        "{}\n  {}\n  protocol  {}\n  metrics   {}\n",
        info.name,
        info.about,
        info.source,
        info.metrics.join(", ")
    );
    out += &match info.samples {
        Some(n) => format!("  samples   {n}\n"),
        None => "  samples   all\n".to_owned(),
    };
    if let Some(chance) = info.chance {
        out += &format!("  chance    {:.1} %\n", 100.0 * chance);
    }
    if !info.groups.is_empty() {
        out += &format!("  scores by {}\n", info.groups.join(", "));
    }
    for o in info.options {
        let values = if o.values.is_empty() { "VALUE".to_owned() } else { o.values.join("|") };
        out += &format!("  --set {}={values} (default {})  {}\n", o.name, o.default, o.about);
    }
    for f in info.files {
        out += &format!("  data      {}: {}\n", f.name, published(f));
    }
    out
}
