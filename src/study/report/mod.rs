//! The report of a study: one self-contained HTML page, and the same as Markdown.
//!
//! Both follow from the plan and the results alone: no times, hosts or dates, so that a study that was stopped
//! and resumed, or merged from parts, has the same report as one done in one go.

mod page;
mod data;
mod rows;
mod tables;
mod figures;
mod relations;
mod html;
mod markdown;

use std::collections::HashMap;

use ropewalk_core::rope::Spec;

use data::Data;
use figures::Figures;
use page::{tokens, Block, Entry, Table};
pub use rows::rows;
use tables::Tables;

use crate::cell::Key;
use crate::folder::REPORTS;
use crate::outcome::{Record, State};
use crate::plan::{Attention, Parameters, Trained};
use crate::{Error, Folder, Plan, Result};

/// Cells that are listed as not run, at most: a few kilobytes of a plan can name 100,000.
const MAX_LISTED: usize = 1000;

/// A report.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    title: String,
    blocks: Vec<Block>,
    /// Cells measured, failed and not run.
    counts: (usize, usize, usize),
}

/// Writes `report.html` and `report.md` into a study's folder.
///
/// # Errors
/// A file that is no result; the disk.
pub fn write(folder: &Folder, plan: &Plan) -> Result<Report> {
    let report = Report::new(plan, &folder.records()?);
    for ((name, kind), text) in REPORTS.iter().zip([report.html(), report.markdown()]) {
        let path = folder.path().join(name);
        files::replace(folder.report(name), kind, |out| {
            out.write_all(text.as_bytes()).map_err(|e| Error::io(&path, e))
        })?;
    }
    Ok(report)
}

impl Report {
    /// The report of a plan and what is there of its results; other results are left out.
    pub fn new(plan: &Plan, records: &HashMap<Key, Record>) -> Report {
        let data = Data { plan, records };
        let mut blocks = Vec::new();
        let (mut done, mut failed, mut open) = (0, Vec::new(), Vec::new());
        for cell in plan.cells() {
            let key = cell.key();
            match records.get(&key).map(|r| &r.state) {
                Some(State::Done(_)) => done += 1,
                Some(State::Failed(why)) => {
                    failed.push(vec![Entry::new(key.to_string()), Entry::new(why.as_str())]);
                }
                None => open.push((key.to_string(), "not run".to_owned())),
            }
        }
        let counts = (done, failed.len(), open.len());
        blocks.extend(opening(&data, counts));
        blocks.push(Block::Table(methods(&data)));
        for model in &plan.models {
            if data.methods(model).is_empty() {
                continue;
            }
            let name = |what: &str| match plan.models.len() {
                1 => what.to_owned(),
                _ => format!("{}: {}", model.name, what.to_lowercase()),
            };
            let tables = Tables { data: &data, model };
            let figures = Figures { data: &data, model };
            let mut section = |what: &str, found: Vec<Block>| {
                if !found.is_empty() {
                    blocks.push(Block::Heading(2, name(what)));
                    blocks.extend(found);
                }
            };
            section("All tasks", tables.summary());
            section("Scores by length", figures.by_length());
            section("Perplexity by position", figures.by_position());
            let maps = figures.maps();
            if !maps.is_empty() {
                let text = "Percent of needles found, by the length of the text (columns) and how deep in it the \
                            needle lies (rows; 0 % is the beginning). The scale of colors is right of each map.";
                section(
                    "Where needles are found",
                    std::iter::once(Block::Text(text.into())).chain(maps).collect(),
                );
            }
            section("Tables in the forms of the papers", tables.papers());
            section("Does perplexity tell?", relations::correlations(&data, model));
            section("Frozen and trained weights", relations::frozen_and_trained(&data, model));
        }
        blocks.extend(missing(failed, open));
        blocks.push(Block::Heading(2, "Every cell".into()));
        let cells = tables::cells(&data);
        blocks.push(Block::Details(format!("{} cells", cells.rows.len()), vec![Block::Table(cells)]));
        Report { title: plan.title.clone(), blocks, counts }
    }

    /// Cells measured, failed, and not run.
    pub fn counts(&self) -> (usize, usize, usize) {
        self.counts
    }

    /// One HTML page that needs nothing else: no script, no font, no picture of elsewhere.
    pub fn html(&self) -> String {
        html::page(&self.title, &self.blocks)
    }

    /// Markdown; charts are given by their figures.
    pub fn markdown(&self) -> String {
        markdown::page(&self.title, &self.blocks)
    }
}

fn plural(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

fn opening(data: &Data<'_>, (done, failed, missing): (usize, usize, usize)) -> Vec<Block> {
    let plan = data.plan;
    let lengths: Vec<String> = data.lengths(&data.tasks(|_| true)).into_iter().map(tokens).collect();
    let at = if lengths.is_empty() { String::new() } else { format!(" at {} tokens", lengths.join(", ")) };
    let mut out = vec![Block::Text(format!(
        "{} under {}, measured by {}{at}: {} in all.",
        plural(plan.models.len(), "model"),
        plural(plan.methods.len(), "method"),
        plural(plan.tasks.len(), "task"),
        plural(plan.len(), "cell"),
    ))];
    if failed + missing > 0 {
        out.push(Block::Warning(format!(
            "This study is not whole: {done} of {} cells are measured, {failed} failed, {missing} were not run. \
             Tables say so where a figure is missing; a mean of less than all its parts says how many it has.",
            plan.len()
        )));
    }
    let points = [
        ("Method", "a way to run the model beyond the length it was trained for."),
        ("Perplexity", "how surprised the model is by each next token of a text; lower is better, 1 is the least."),
        (
            "Score",
            "percent of full marks; higher is better. The range after it would hold the true score in 95 of \
             100 such measurements: where ranges overlap widely, the order may be chance.",
        ),
        (
            "Exact attention",
            "every token sees every token before it at its true distance. Approximate attention leaves some out \
             or sees them at another distance.",
        ),
        ("Frozen", "the model's weights as they are; trained: weights were trained for the method."),
    ];
    out.push(Block::List(points.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()));
    out.push(Block::Heading(2, "What was compared".into()));
    out
}

fn methods(data: &Data<'_>) -> Table {
    let row = |m: &crate::Method| {
        // What the adapters themselves say counts where the plan is silent.
        let said = || {
            data.plan
                .cells()
                .filter(|c| c.method.name == m.name)
                .find_map(|c| data.records.get(&c.key())?.result()?.tokens_trained)
        };
        let trained = m.trained == Trained::Trained;
        let or = |x: Option<String>| x.unwrap_or_else(|| if trained { "not stated" } else { "–" }.to_owned());
        let parameters = m.parameters.map(|p| match p {
            Parameters::Lora => "LoRA".to_owned(),
            Parameters::All => "all".to_owned(),
        });
        let seen = if trained { m.tokens.or_else(said).map(|n| n.to_string()) } else { None };
        let recipe = m.train.as_ref().map(|r| r.args.join(" "));
        let attention = match m.attention {
            Attention::Exact => "exact",
            Attention::Approximate => "approximate",
        };
        [
            m.name.clone(),
            m.spec.clone().unwrap_or_else(|| Spec::DECLARED.into()),
            attention.into(),
            if trained { "trained" } else { "frozen" }.into(),
            or(parameters),
            or(seen),
            recipe.unwrap_or_else(|| "–".into()),
        ]
        .map(Entry::new)
        .to_vec()
    };
    let head = ["method", "rope spec", "attention", "weights", "parameters trained", "tokens seen", "recipe"];
    let caption = "The methods: what the plan asks for. The spec in force in each cell is at the end.";
    Table::new(caption, &head, 7, data.plan.methods.iter().map(row).collect())
}

/// Cells without figures, and why.
fn missing(failed: Vec<Vec<Entry>>, mut open: Vec<(String, String)>) -> Vec<Block> {
    let mut out = Vec::new();
    if !failed.is_empty() {
        out.push(Block::Heading(2, "Cells that failed".into()));
        let caption = "What could not be measured, and why. The next run tries these again.";
        out.push(Block::Table(Table::new(caption, &["cell", "reason"], 2, failed)));
    }
    if !open.is_empty() {
        out.push(Block::Heading(2, "Cells that were not run".into()));
        let what = format!("{}: the next run measures them", plural(open.len(), "cell"));
        if open.len() > MAX_LISTED {
            let more = format!("{} more", open.len() - MAX_LISTED);
            open.truncate(MAX_LISTED);
            open.push((more, "not run".to_owned()));
        }
        out.push(Block::Details(what, vec![Block::List(open)]));
    }
    out
}
