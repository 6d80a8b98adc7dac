//! `ropewalk study`: every method by every task at every length of a plan, and one report.

mod rows;
mod runner;

use std::path::PathBuf;

use clap::{Args as _, FromArgMatches};
use ropewalk::tasks;
use ropewalk_core::text::bytes;
use ropewalk_study::{
    list, merge, report, run as run_cells, Folder, Known, Listing, Names, Plan, Shard, Summary,
};
use serde_json::json;

use self::runner::SessionRunner;
use super::engine::draw;
use super::finetune::Training;
use super::interrupt::{stopped, Interrupt};
use super::options::{MachineArgs, KV_TYPES};
use super::output::{self, count, OutputArgs, Unit};
use super::{usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "study",
    about: "Run a plan of models, methods, and tasks, and write one report",
    details: "PLAN names models, methods, tasks, and lengths; docs/guide/studies.md describes it. Each combination is \
              a cell, saved in a separate file, so an interrupted study resumes where it stopped. A failed cell \
              is a row of the report, with the reason. --shard runs one of several equal parts. \
              `study merge DIR.. -o OUT` merges the directories of all parts.",
    example: "study examples/study-small.toml -o out/study --plan\n\
              study examples/study-small.toml -o out/study --shard 1/2",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Plan (a TOML file), or `merge` and the directories of all parts
    #[arg(value_name = "PLAN | merge DIR..", required = true, num_args = 1..)]
    plan: Vec<PathBuf>,
    /// Directory for the results and the report
    #[arg(short = 'o', long = "output", value_name = "DIR", required = true)]
    out: PathBuf,
    /// Print the cells, tokens, memory, and time needed, and measure nothing
    #[arg(long = "plan")]
    listing: bool,
    /// Run part I of N equal parts
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    /// KV cache type
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = KV_TYPES)]
    kv: String,
    /// Maximum number of prompts answered together, if memory allows
    #[arg(long, value_name = "N", default_value = "8", value_parser = super::options::tokens)]
    parallel: usize,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    if args.plan[0].as_os_str() == "merge" {
        return put_together(args);
    }
    let [path] = &args.plan[..] else { return Err(usage("expected one plan")) };
    let shard = match &args.shard {
        Some(text) => text.parse().map_err(|e: ropewalk_study::Error| usage(e.to_string()))?,
        None => Shard::ALL,
    };
    let plan = Plan::read(path, &Registry)?;
    let interrupt = Interrupt::install()?;
    let mut runner = SessionRunner::new(&plan, args)?;
    if args.listing {
        let folder = if args.out.exists() { Some(Folder::open(&args.out, &plan, &Registry)?) } else { None };
        let listing = list(&plan, folder.as_ref(), &mut runner, shard, &interrupt.control())?;
        return if args.output.json {
            output::print_json(&listing)
        } else {
            output::print(&listing_text(&plan, &listing))
        };
    }
    let folder = Folder::open(&args.out, &plan, &Registry)?;
    let summary = {
        let draw = draw(args.output.progress(plan.len() as u64, "measuring", Unit::Steps));
        let note = |line: std::fmt::Arguments<'_>| args.output.note(line);
        let control = interrupt.control().with_progress(&draw).with_notes(&note);
        run_cells(&plan, &folder, &mut runner, shard, &control)?
    };
    let report = report::write(&folder, &plan)?;
    finish(args, &folder, &plan, summary, report.counts())
}

/// Names that plans can use: benchmarks, and options of training.
struct Registry;

impl Names for Registry {
    fn tasks(&self, name: &str) -> Result<Vec<Known>, String> {
        let found = tasks::find(name).map_err(|e| e.to_string())?;
        let known =
            |t: &&dyn tasks::Task| Known { name: t.info().name.into(), has_length: t.info().has_length };
        Ok(found.iter().map(known).collect())
    }

    fn training(&self, args: &[String], spec: Option<&str>) -> Result<String, String> {
        Training::parse(args, spec)?.settings()
    }
}

fn put_together(args: &Args) -> anyhow::Result<()> {
    let dirs = &args.plan[1..];
    if dirs.is_empty() {
        return Err(usage("merge: expected the folders of the parts"));
    }
    let (folder, plan) = merge(dirs, &args.out, &Registry)?;
    let report = report::write(&folder, &plan)?;
    finish(args, &folder, &plan, Summary { cells: plan.len(), ..Summary::default() }, report.counts())
}

fn finish(
    args: &Args,
    folder: &Folder,
    plan: &Plan,
    summary: Summary,
    (done, failed, missing): (usize, usize, usize),
) -> anyhow::Result<()> {
    let html = folder.path().join("report.html");
    if args.output.json {
        let mut all = json!({
            "report": html.display().to_string(), "summary": summary,
            "done": done, "failed": failed, "missing": missing,
            "results": rows::rows(plan, &folder.records()?),
        });
        // At the top is what all rows agree on.
        if let [model] = &plan.models[..] {
            all["model"] = model.name.as_str().into();
        }
        output::print_json(&all)?;
    } else {
        output::print(&format!(
            "{done} cells measured ({} now), {failed} failed, {missing} not measured yet\n{}\n",
            summary.measured,
            html.display()
        ))?;
    }
    if summary.stopped {
        return Err(stopped("interrupted: run the same command again to resume"));
    }
    Ok(())
}

fn listing_text(plan: &Plan, listing: &Listing) -> String {
    let mut out = format!("{}\n\n", plan.title);
    for row in &listing.rows {
        out += &format!(
            "{:<28} {:<16} {:>4} cells, {:>4} done, {:>12} tokens, {}\n",
            row.model,
            row.method,
            row.cells,
            row.done,
            count(row.tokens),
            bytes(row.bytes)
        );
        row.problems.iter().for_each(|p| out += &format!("    {p}\n"));
    }
    out += &format!(
        "\n{} cells, {} done; {} tokens, at most {} of memory, about {:.0} minutes or more (by the speed of a short \
         prompt)\n",
        listing.cells,
        listing.done,
        count(listing.tokens),
        bytes(listing.bytes),
        listing.seconds / 60.0
    );
    out
}
