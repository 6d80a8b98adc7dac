//! `ropewalk study`: every method by every task at every length of a plan, and one report.

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args as _, FromArgMatches};
use ropewalk::finetune::JobError;
use ropewalk::remedy::Remedy;
use ropewalk::studies::{self, Settings, Training};
use ropewalk::study::{self, merge, report, Folder, Plan, Results, Summary};
use ropewalk::tasks::Task;
use ropewalk::DType;
use serde_json::json;

use super::engine::draw;
use super::finetune::{options, recipe};
use super::interrupt::{self, Interrupt};
use super::options::{kv_types, ForceArgs, MachineArgs};
use super::output::{self, OutputArgs, Unit};
use super::{hints, models, template, usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "study",
    about: "Run a plan of models, methods, and tasks, and write one report",
    details: "PLAN names models, methods, tasks, and lengths; docs/guide/studies.md describes it. Each combination is \
              a cell, saved in a separate file, so an interrupted study resumes where it stopped. A failed cell \
              is a row of the report, with the reason. --shard runs one of several equal parts. \
              `study merge DIR.. -o OUT` merges the directories of all parts.",
    example: "study examples/study-small.toml -o out/study --plan\n\
              study examples/study-small.toml -o out/study --shard 1/2",
    args: |command| {
        let force = "Replace any file that has the name of an output [default: replace only earlier outputs]";
        Args::augment_args(command).mut_arg("force", |arg| arg.help(force))
    },
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
    ///
    /// The exit code is 1 if a cell cannot be measured
    #[arg(long = "plan")]
    listing: bool,
    /// Run part I of N equal parts
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    /// KV cache type
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types())]
    kv: DType,
    /// Maximum number of prompts answered together, if memory allows
    #[arg(long, value_name = "N", default_value = "8", value_parser = super::options::tokens)]
    parallel: usize,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    force: ForceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    let program = Program(&args.machine);
    let mut settings = Settings::default().program(&program);
    if args.plan[0].as_os_str() == "merge" {
        let dirs = &args.plan[1..];
        if dirs.is_empty() {
            return Err(usage("merge: expected the folders of the parts"));
        }
        let (folder, plan) = merge(dirs, args.force.output(&args.out), &settings)?;
        let report = report::write(&folder, &plan)?;
        let summary = Summary { cells: plan.len(), ..Summary::default() };
        return finish(args, &folder, &plan, summary, report.counts());
    }
    let [path] = &args.plan[..] else { return Err(usage("expected one plan")) };
    if let Some(text) = &args.shard {
        settings.shard = text.parse().map_err(|e: study::Error| usage(e.to_string()))?;
    }
    let plan = Plan::read(path, &settings)?;
    let interrupt = Interrupt::install()?;
    settings.session = args.machine.session(args.kv);
    settings.device = args.machine.device_and_threads().0.into();
    settings.parallel = args.parallel;
    settings.template = Some(template::program()?);
    let note = |line: std::fmt::Arguments<'_>| args.output.note(options(&line.to_string()));
    let control = interrupt.control().with_notes(&note);
    if args.listing {
        let results = Results::open(&args.out, &plan, &settings)?;
        let listing = studies::list(&plan, results.as_ref(), &settings, &control)?;
        args.output.result(&listing, || listing.text(&plan.title))?;
        let n: usize = listing.rows.iter().map(|row| row.problems.len()).sum();
        ensure!(n == 0, "{}: {n} of {} cells cannot be measured", path.display(), listing.cells);
        return Ok(());
    }
    let folder = Folder::open(args.force.output(&args.out), &plan, &settings)?;
    let done = {
        let draw = draw(args.output.progress(plan.len() as u64, "measuring", Unit::Steps));
        studies::run(&plan, &folder, &settings, &control.with_progress(&draw))?
    };
    finish(args, &folder, &plan, done.summary, done.report.counts())
}

/// This program, for the library's study.
struct Program<'a>(&'a MachineArgs);

impl studies::Program for Program<'_> {
    fn data(&self, task: &dyn Task) -> PathBuf {
        models::data_for(None, task)
    }

    fn training(&self, words: &[String], spec: Option<&str>) -> Result<Training, String> {
        recipe(words, spec, self.0.device_and_threads())
    }

    fn reason(&self, error: &JobError) -> String {
        let text = match error {
            JobError::Settings(text) | JobError::Run(text) => return options(text),
            JobError::Failed(e) => format!("{e}{}", hints::of_cell(e)),
            e => e.to_string(),
        };
        match files::Exists::causes(error) {
            // No other name can be used: the study names its files.
            true => text.replace("; use another name", "; delete it") + &hints::text(Remedy::Force),
            false => text,
        }
    }
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
            "results": report::rows(plan, &folder.records()?),
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
    interrupt::check(summary.stopped, "interrupted: run the same command again to resume")
}
