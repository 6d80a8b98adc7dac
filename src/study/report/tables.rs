//! Tables: everything at a glance, and in the forms of the papers.

use ropewalk_core::rope::Spec;

use super::data::{mark_best, Data, Value};
use super::page::{length, tokens, Block, Entry, Table};
use crate::plan::{Method, Model, Task};

const HIGHER: &str = "Percent; higher is better.";
const LOWER: &str = "Lower is better.";

/// A column of a table of methods.
struct Column<'a> {
    head: String,
    perplexity: bool,
    interval: bool,
    value: Box<dyn Fn(&Method) -> Value + 'a>,
}

/// A row for each method; the best of each column marked.
fn by_method(methods: &[&Method], columns: &[Column<'_>], caption: String) -> Block {
    let mut rows: Vec<Vec<Entry>> = methods.iter().map(|m| vec![Entry::new(m.name.as_str())]).collect();
    for column in columns {
        let values: Vec<Value> = methods.iter().map(|m| (column.value)(m)).collect();
        let mut entries: Vec<Entry> =
            values.iter().map(|v| v.entry(column.perplexity, column.interval)).collect();
        let mut marked: Vec<_> = values.iter().copied().zip(entries.iter_mut()).collect();
        mark_best(&mut marked, column.perplexity);
        rows.iter_mut().zip(entries).for_each(|(row, entry)| row.push(entry));
    }
    let head = std::iter::once("method".to_owned()).chain(columns.iter().map(|c| c.head.clone())).collect();
    Block::Table(Table { caption, head, words: 1, rows })
}

/// The part of RULER that a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ruler {
    Needles,
    Variables,
    Aggregation,
    Questions,
}

fn ruler(task: &Task) -> Option<Ruler> {
    match task.name.strip_prefix("ruler_").unwrap_or(&task.name) {
        name if name.starts_with("niah_") => Some(Ruler::Needles),
        "vt" => Some(Ruler::Variables),
        "cwe" | "fwe" => Some(Ruler::Aggregation),
        "qa_1" | "qa_2" => Some(Ruler::Questions),
        _ => None,
    }
}

/// Returns true if a task is one of RULER's thirteen.
pub(super) fn is_ruler(task: &Task) -> bool {
    ruler(task).is_some()
}

fn is_needle(task: &Task) -> bool {
    task.name == "needle" || task.name.starts_with("needle_")
}

/// The benchmarks that the report gives one mean of: those made for a length that are no perplexity.
pub(super) fn is_long(task: &Task) -> bool {
    !task.is_perplexity() && task.lengths.iter().any(Option::is_some)
}

pub(super) struct Tables<'a> {
    pub(super) data: &'a Data<'a>,
    pub(super) model: &'a Model,
}

impl<'a> Tables<'a> {
    fn column(&'a self, head: String, tasks: Vec<&'a Task>, length: Option<u64>) -> Column<'a> {
        Column {
            head,
            perplexity: tasks.iter().any(|t| t.is_perplexity()),
            interval: false,
            value: Box::new(move |m| self.data.mean(self.model, m, &tasks, length)),
        }
    }

    pub(super) fn summary(&'a self) -> Vec<Block> {
        let methods = self.data.methods(self.model);
        let all = self.data.tasks(|_| true);
        let mut lengths: Vec<Option<u64>> = self.data.lengths(&all).into_iter().map(Some).collect();
        if all.iter().any(|t| t.lengths.contains(&None)) {
            lengths.push(None);
        }
        let mut out = Vec::new();
        for at in lengths {
            let tasks = self.data.tasks(|t| t.lengths.contains(&at));
            let columns: Vec<Column<'_>> = tasks
                .into_iter()
                .map(|task| Column { interval: true, ..self.column(heading(task), vec![task], at) })
                .collect();
            let what = match at {
                Some(n) => format!("Tasks at {} tokens", tokens(n)),
                None => "Short tasks, which say what extending cost".to_owned(),
            };
            let caption = format!(
                "{what}. Perplexity (ppl): lower is better; all else percent, higher is better. The range \
                 after a figure is its 95 % interval; the best of a column is bold."
            );
            out.push(by_method(&methods, &columns, caption));
        }
        out
    }

    /// One table of tasks by length, with a mean over lengths where that has a meaning.
    fn by_length(&'a self, tasks: Vec<&'a Task>, what: &str) -> Block {
        let (lengths, shared) = (self.data.lengths(&tasks), self.data.shared_lengths(&tasks));
        let is_perplexity = tasks.iter().any(|t| t.is_perplexity());
        let column = |&l: &u64| {
            let n = tasks.iter().filter(|task| task.lengths.contains(&Some(l))).count();
            let head =
                if n < tasks.len() { format!("{} ({n} of {})", tokens(l), tasks.len()) } else { tokens(l) };
            self.column(head, tasks.clone(), Some(l))
        };
        let mut columns: Vec<Column<'_>> = lengths.iter().map(column).collect();
        if shared.len() > 1 && !is_perplexity {
            let value = move |m: &Method| self.data.mean_over(self.model, m, &tasks, &shared);
            columns.push(Column {
                head: "mean".into(),
                perplexity: false,
                interval: false,
                value: Box::new(value),
            });
        }
        let better = if is_perplexity { LOWER } else { HIGHER };
        by_method(&self.data.methods(self.model), &columns, format!("{what} {better}"))
    }

    /// The tables that papers on long context print, as far as their tasks are in the plan.
    pub(super) fn papers(&'a self) -> Vec<Block> {
        let mut out = Vec::new();
        let data = self.data;
        let all = data.tasks(|_| true);
        if let Some(&longest) = data.lengths(&all).last() {
            out.extend(self.overview(longest));
        }
        for task in data.tasks(Task::is_perplexity) {
            let what = format!(
                "{} by length, in tokens of context (after Table 2 of LCEG, Tables 1 and 2 of SBA-RoPE).",
                capital(&task.label)
            );
            out.push(self.by_length(vec![task], &what));
            out.extend(self.bases(task));
        }
        for task in data.tasks(|t| t.name == "passkey" || is_needle(t)) {
            let after = if task.name == "passkey" { " (after Tables 3 and 4 of SBA-RoPE)" } else { "" };
            out.push(self.by_length(vec![task], &format!("{} by length{after}.", capital(&task.label))));
        }
        let needles = data.tasks(|t| ruler(t) == Some(Ruler::Needles));
        if needles.len() > 1 {
            let what = format!(
                "Mean of {} needle tasks of RULER's 8, by length (after Tables 4 and 6 of HARPE).",
                needles.len()
            );
            out.push(self.by_length(needles, &what));
        }
        let of_ruler = data.tasks(is_ruler);
        if of_ruler.len() > 1 {
            let what = format!(
                "Mean of {} tasks of RULER's 13, by length (after Table 3 of LCEG and Table 7 of HARPE).",
                of_ruler.len()
            );
            out.push(self.by_length(of_ruler.clone(), &what));
            let parts = [
                ("needles", Ruler::Needles),
                ("variable tracking", Ruler::Variables),
                ("aggregation", Ruler::Aggregation),
                ("question answering", Ruler::Questions),
            ];
            for at in data.lengths(&of_ruler) {
                let part = |(name, part): &(&str, Ruler)| {
                    let tasks = data.tasks(|t| ruler(t) == Some(*part) && t.lengths.contains(&Some(at)));
                    let head = format!("{name} ({})", tasks.len());
                    (!tasks.is_empty()).then(|| self.column(head, tasks, Some(at)))
                };
                let mut columns: Vec<Column<'_>> = parts.iter().filter_map(part).collect();
                columns.push(self.column("mean of tasks".into(), of_ruler.clone(), Some(at)));
                let caption = format!(
                    "RULER at {} tokens by kind of task, with the number of tasks (after Table 1 of Untie the \
                     Knots). {HIGHER}",
                    tokens(at)
                );
                out.push(by_method(&data.methods(self.model), &columns, caption));
            }
        }
        let mut groups: Vec<&str> = all.iter().filter_map(|t| t.group.as_deref()).collect();
        groups.dedup();
        for group in groups {
            let tasks = data.tasks(|t| t.group.as_deref() == Some(group) && is_long(t) && !is_ruler(t));
            if tasks.len() > 1 {
                let what = format!("Mean of the {} tasks of {group}, by length.", tasks.len());
                out.push(self.by_length(tasks, &what));
            }
        }
        let short = data.tasks(|t| t.lengths.contains(&None));
        if short.len() > 1 {
            let mut columns: Vec<Column<'_>> =
                short.iter().map(|t| self.column(t.label.clone(), vec![t], None)).collect();
            columns.push(self.column("mean".into(), short, None));
            let caption = format!("Short tasks: what extending cost (after Table 5 of HARPE). {HIGHER}");
            out.push(by_method(&data.methods(self.model), &columns, caption));
        }
        out
    }

    /// One column for each kind of measurement, at one length.
    fn overview(&'a self, at: u64) -> Option<Block> {
        let here =
            |pick: &dyn Fn(&Task) -> bool| self.data.tasks(|t| pick(t) && t.lengths.contains(&Some(at)));
        let mut columns: Vec<Column<'_>> = here(&Task::is_perplexity)
            .into_iter()
            .map(|t| self.column(heading(t), vec![t], Some(at)))
            .collect();
        let own = here(&is_needle);
        let needles = if own.is_empty() { here(&|t| ruler(t) == Some(Ruler::Needles)) } else { own };
        let longbench = |t: &Task| t.group.as_deref().is_some_and(|g| g.starts_with("longbench"));
        let kinds = [
            ("needle", needles),
            ("passkey", here(&|t| t.name == "passkey")),
            ("many-shot", here(&|t| t.name.starts_with("trec") && !longbench(t))),
            ("LongBench", here(&longbench)),
            ("RULER", here(&is_ruler)),
        ];
        for (name, tasks) in kinds {
            if !tasks.is_empty() {
                let head = if tasks.len() > 1 { format!("{name} ({})", tasks.len()) } else { name.into() };
                columns.push(self.column(head, tasks, Some(at)));
            }
        }
        let caption = format!(
            "Overview at the longest length, {} tokens (after Table 1 of LCEG); the number after a name counts \
             the tasks in the mean. Perplexity (ppl): lower is better; all else percent, higher is better.",
            tokens(at)
        );
        (columns.len() > 1).then(|| by_method(&self.data.methods(self.model), &columns, caption))
    }

    /// Perplexity of dynamic-NTK by its scale t.
    fn bases(&'a self, task: &'a Task) -> Option<Block> {
        let scale = |m: &&'a Method| {
            let spec: Spec = m.spec.as_ref()?.parse().ok()?;
            Some((spec.part("dynamic-ntk")?.get("t")?.as_f64()?, *m))
        };
        let mut scales: Vec<(f64, &Method)> =
            self.data.methods(self.model).iter().filter_map(scale).collect();
        if scales.len() < 2 {
            return None;
        }
        scales.sort_by(|a, b| a.0.total_cmp(&b.0));
        let lengths = self.data.lengths(&[task]);
        let row = |(t, m): &(f64, &Method)| {
            let value = |&l: &u64| self.data.value(self.model, m, task, Some(l)).entry(true, false);
            let words = [Entry::new(m.name.as_str()), Entry::new(format!("{t}"))];
            words.into_iter().chain(lengths.iter().map(value)).collect()
        };
        let head = ["method", "t"].map(str::to_owned).into_iter();
        Some(Block::Table(Table {
            caption: format!(
                "{} of dynamic-NTK by its scale t and length (after Table 9 of LCEG). {LOWER}",
                capital(&task.label)
            ),
            head: head.chain(lengths.iter().map(|&l| tokens(l))).collect(),
            words: 2,
            rows: scales.iter().map(row).collect(),
        }))
    }
}

/// The heading of a task's column.
pub(super) fn heading(task: &Task) -> String {
    if task.is_perplexity() {
        let label = if task.label == "perplexity" { "ppl" } else { &task.label };
        return if label.contains("ppl") { label.to_owned() } else { format!("{label} (ppl)") };
    }
    task.label.clone()
}

pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

/// Every cell that was run, with all that belongs to its figure.
pub(super) fn cells(data: &Data<'_>) -> Table {
    #[rustfmt::skip]
    let head = [
        "model", "method", "task", "length", "seed", "metric", "value", "95 % interval", "samples", "tokens",
        "protocol", "rope spec in force", "context", "adapter", "hash", "remarks",
    ];
    let row = |cell: crate::Cell<'_>| -> Option<Vec<Entry>> {
        let key = cell.key();
        let record = data.records.get(&key)?;
        let mut row: Vec<String> = vec![key.model, key.method, key.task, length(key.length)];
        row.push(key.seed.map_or_else(|| "protocol's".into(), |s| s.to_string()));
        let hash: String = record.hash.chars().take(12).collect();
        let Some(result) = record.result() else {
            row.extend([String::new(), "failed".into()]);
            row.extend(std::iter::repeat_n(String::new(), 7));
            row.extend([hash, String::new()]);
            return Some(row.into_iter().map(Entry::new).collect());
        };
        let show = |x: f64| if cell.task.is_perplexity() { format!("{x:.4}") } else { format!("{x:.2}") };
        let interval =
            result.interval.map(|(a, b)| format!("{}–{} ({})", show(a), show(b), result.interval_kind));
        let others = result.metrics.iter().filter(|m| m.name != result.metric);
        let others: Vec<String> = others.map(|m| format!("{} {}", m.name, show(m.value))).collect();
        let chance = result.chance.map(|c| format!("chance {c:.1}"));
        let remarks: Vec<String> =
            others.into_iter().chain(chance).chain(result.notes.iter().cloned()).collect();
        let protocol = if result.source.is_empty() {
            result.protocol.clone()
        } else {
            format!("{} ({})", result.protocol, result.source)
        };
        row.extend([
            result.metric.clone(),
            show(result.value),
            interval.unwrap_or_else(|| "none".into()),
            result.samples.to_string(),
            result.tokens.to_string(),
            protocol,
            result.rope.clone(),
            result.n_ctx.to_string(),
            result.adapter.as_ref().map_or_else(|| "none".into(), |a| a.chars().take(12).collect()),
            hash,
            remarks.join("; "),
        ]);
        Some(row.into_iter().map(Entry::new).collect())
    };
    let caption =
        "Every cell: what was measured, how, and with what. Tokens are those of a prompt in the mean, \
                   for perplexity those scored; hashes are the first 12 digits of SHA-256.";
    Table::new(caption, &head, 6, data.plan.cells().filter_map(row).collect())
}
