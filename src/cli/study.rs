//! `ropewalk study`: every method by every task at every length of a plan, and one report.

mod slurm;

use std::path::PathBuf;

use anyhow::ensure;
use clap::{ArgMatches, Args as _, FromArgMatches};
use ropewalk::finetune::JobError;
use ropewalk::remedy::Remedy;
use ropewalk::studies::{self, Settings, Training};
use ropewalk::study::{merge, report, Folder, Plan, Results, Summary};
use ropewalk::tasks::Task;
use ropewalk::DType;
use serde_json::json;

use super::engine::draw;
use super::finetune::{options, recipe};
use super::interrupt::{self, Interrupt};
use super::options::{kv_types, read_file, ForceArgs, MachineArgs};
use super::output::{self, OutputArgs, Unit};
use super::{hints, models, template, usage, Command};
use slurm::Jobs;

pub(crate) const COMMAND: Command = Command {
    name: "study",
    about: "Run a plan of models, methods, and tasks, and write one report",
    details: "PLAN names models, methods, tasks, and lengths; docs/guide/studies.md describes it. Each combination is \
              a cell, saved in a separate file, so an interrupted study resumes where it stopped. A failed cell \
              is a row of the report, with the reason. Units are cells for one machine: --units lists them, and --unit \
              measures one in DIR/parts/ID. `study merge DIR/parts -o DIR` merges them and writes the report. \
              --slurm writes a job array that does so; see docs/guide/cluster.md.",
    example: "study examples/study-small.toml -o out/study --plan\n\
              study examples/study-small.toml -o out/study",
    args: |command| {
        let force = "Replace any file that has the name of an output [default: replace only earlier outputs]";
        Args::augment_args(command).mut_arg("force", |arg| arg.help(force))
    },
    run: |m| run(&Args::from_arg_matches(m)?, m),
};

/// The error of a study that a signal has stopped.
const RESUME: &str = "interrupted: run the same command again to resume";

#[derive(Debug, clap::Args)]
struct Args {
    /// Plan (a TOML file; - reads stdin), or `merge` and directories of results, or of parts
    ///
    /// Paths in a plan start from its directory, and those of stdin from the working directory
    #[arg(value_name = "PLAN | merge DIR..", required = true, num_args = 1..)]
    plan: Vec<PathBuf>,
    /// Directory for the results and the report
    #[arg(short = 'o', long = "output", value_name = "DIR", required = true)]
    out: PathBuf,
    /// Print the cells, tokens, memory, and time needed, and measure nothing
    ///
    /// The exit code is 1 if a cell cannot be measured
    #[arg(long = "plan", group = "mode")]
    listing: bool,
    /// Print the units, with the cost and the memory of each, the most expensive first
    ///
    /// A unit is all cells of a model under a method that is trained, or those of a model under a method at one length.
    /// Nothing is written, and the model is not run. With -q, only the IDs of units with cells left, one per line
    #[arg(long, group = "mode")]
    units: bool,
    /// Measure one unit, in DIR/parts/ID
    ///
    /// Cells with a result in DIR are not measured again. SIGTERM and SIGHUP stop it cleanly; the same command resumes it
    #[arg(long, value_name = "ID", group = "mode", value_parser = unit_id)]
    unit: Option<String>,
    /// Write the scripts of a Slurm job array that measures the units, and of a job that merges them, to DIR/launch
    ///
    /// Words after -- are options of sbatch, such as --partition=long. Tasks stop before the time limit, and resume. All
    /// nodes must have this program, the model, and DIR at the same paths
    #[arg(long, group = "mode")]
    slurm: bool,
    /// Submit both with sbatch
    #[arg(long, requires = "slurm")]
    submit: bool,
    /// Options of sbatch, as --NAME=VALUE
    #[arg(last = true, value_name = "SBATCH-OPTION", requires = "slurm")]
    sbatch: Vec<String>,
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

fn run(args: &Args, matches: &ArgMatches) -> anyhow::Result<()> {
    let program = Program(&args.machine);
    let mut settings = Settings::default().program(&program);
    if args.plan[0].as_os_str() == "merge" {
        let dirs = &args.plan[1..];
        if dirs.is_empty() || matches.contains_id("mode") {
            return Err(usage("merge: expected directories of results, or of parts, and no other mode"));
        }
        let (folder, plan) = merge(dirs, args.force.output(&args.out), &settings)?;
        let report = report::write(&folder, &plan)?;
        let summary = Summary { cells: plan.len(), ..Summary::default() };
        return finish(args, &folder, &plan, summary, report.counts());
    }
    let [path] = &args.plan[..] else { return Err(usage("expected one plan")) };
    let plan = match path.as_os_str() == "-" {
        true if args.slurm => {
            return Err(usage("--slurm: expected the file of a plan, found stdin, which no task has"))
        }
        true => {
            let (name, bytes) = read_file(path, Plan::MAX_BYTES)?;
            Plan::parse(name.as_ref(), bytes, &settings)?
        }
        false => Plan::read(path, &settings)?,
    };
    let unit = args.unit.as_deref().map(|id| plan.unit(id)).transpose()?;
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
        let n: usize = listing.rows.iter().map(|row| row.work.problems.len()).sum();
        ensure!(n == 0, "{}: {n} of {} cells cannot be measured", path.display(), listing.cells);
        return Ok(());
    }
    let out = args.force.output(&args.out);
    if args.units || args.slurm {
        let results = Results::open(&args.out, &plan, &settings)?;
        let units = studies::units(&plan, results.as_ref(), &settings, &control)?;
        if args.slurm {
            let mut jobs = Jobs::write(path, &out, &units, matches, &args.sbatch)?;
            if args.submit {
                jobs.submit()?;
            }
            return args.output.result(&jobs.json(), || jobs.text());
        }
        let left = || units.units.iter().filter(|unit| unit.is_left());
        return args.output.result(&units, || match args.output.quiet {
            true => left().map(|unit| format!("{}\n", unit.unit.id)).collect(),
            false => units.text(&plan.title),
        });
    }
    let draw = draw(args.output.progress(plan.len() as u64, "measuring", Unit::Steps));
    let control = control.with_progress(&draw);
    let Some(unit) = unit else {
        let folder = Folder::open(out, &plan, &settings)?;
        let done = studies::run(&plan, &folder, &settings, &control);
        drop(draw);
        let done = done?;
        return finish(args, &folder, &plan, done.summary, done.report.counts());
    };
    let (id, folder) = (unit.id.clone(), Folder::open_unit(out, &plan, unit, &settings)?);
    let summary = studies::measure(&plan, &folder, &settings, &control);
    drop(draw);
    let summary = summary?;
    let part = folder.path().display();
    args.output.result(&json!({ "unit": id, "part": part.to_string(), "summary": summary }), || {
        let Summary { cells, known, measured, failed, .. } = summary;
        format!("{cells} cells: {measured} measured now, {known} before, {failed} failed now\n{part}\n")
    })?;
    interrupt::check(summary.stopped, RESUME)
}

/// The ID of a unit, as it is typed.
fn unit_id(text: &str) -> Result<String, String> {
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    match text.len() == 12 && text.bytes().all(is_digit) {
        true => Ok(text.to_owned()),
        false => Err("expected 12 hexadecimal digits, as `study PLAN --units` prints them".into()),
    }
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
    interrupt::check(summary.stopped, RESUME)
}
