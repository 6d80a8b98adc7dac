//! `ropewalk eval`: published benchmarks of long context, and what extending cost on short ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args as _, FromArgMatches};
use ropewalk::eval::suite::{
    self, means, paired, FileStore, GroupMean, Paired, Params, Report, Store, Unkept,
};
use ropewalk::plot::{Axis, Chart, Grid, Scale, Series};
use ropewalk::rope::Spec;
use ropewalk::tasks::{find, Group, Task, Template, GROUPS};
use ropewalk_core::settings;
use serde_json::Value;

use super::interrupt::Interrupt;
use super::methods::{one_object, Comparison};
use super::options::{lengths, tokens, Lengths, ModelArgs, RopesArgs};
use super::output::{self, check_plot_name, OutputArgs};
use super::{models, tasks, template, usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "eval",
    about: "Run published benchmarks: RULER, needles, LongBench, short tasks and others",
    details:
        "Tasks use the prompts and metrics of the published benchmarks, with greedy decoding and 95% intervals. \
              --list shows the tasks and the data that they need. With --output, every sample is saved as a line of \
              JSON, and an interrupted run resumes from there. Several --rope are compared on the same samples.",
    example: "eval passkey -m smollm2 --lengths 4096,12288 --rope plain --rope yarn:factor=2\n\
              eval niah_single_2 -m smollm2 -l 4k,16k --set depth=0/50/100 -o kept.jsonl --plot map.svg",
    args: |command| {
        let model = |arg: clap::Arg| {
            // A list needs none.
            arg.required_unless_present("list").default_value_if("list", "true", "")
        };
        Args::augment_args(command).mut_arg("model", |arg| model(arg.required(false)))
    },
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Tasks or groups of tasks, as shown by --list
    #[arg(value_name = "TASK,...", value_delimiter = ',', required_unless_present = "list")]
    tasks: Vec<String>,
    /// List all tasks, or describe the named tasks: protocol, metrics, settings, data
    #[arg(long)]
    list: bool,
    /// Lengths in tokens, prompt and answer together: 4096, 8k, or a range 4k..32k:4k
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', value_parser = lengths)]
    lengths: Vec<Lengths>,
    /// Context size to plan the method for, if it is larger than the task needs
    ///
    /// Short tasks are then measured as the model runs at this context
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
    /// Samples per task and length [default: set by the protocol]
    #[arg(short = 'n', long, value_name = "N", value_parser = tokens)]
    samples: Option<usize>,
    /// Random seed of generated tasks [default: set by the protocol]
    #[arg(short, long, value_name = "S")]
    seed: Option<u64>,
    /// Prompt format: base for plain text, chat for the model's chat template
    #[arg(long, value_name = "KIND", default_value = "base", value_parser = ["base", "chat"])]
    template: String,
    /// Task settings, such as depths=10,ruler=2024; --list TASK shows them
    #[arg(long, value_name = "KEY=VALUE,...")]
    set: Vec<String>,
    /// Directory with benchmark data
    ///
    /// The default is models/benchmarks in the working directory, or the directory that `ropewalk pull ruler` writes to,
    /// whichever has more of the task's files
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Maximum number of prompts in a batch
    #[arg(long, value_name = "N", default_value = "8", value_parser = tokens)]
    parallel: usize,
    /// Save every sample as a line of JSON; samples that the file already has are not run again
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Plot scores by length to this file (.svg, .png, or .pdf): a line per task and method
    ///
    /// One task with several depths, under one method, is drawn as a map of length and depth
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rope: RopesArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    let tasks = tasks_named(&args.tasks)?;
    if args.list {
        return tasks::list(&tasks, args.output);
    }
    let options = options(args, &tasks)?;
    if let Some(path) = &args.plot {
        check_plot_name("--plot", path)?;
        if !tasks.iter().any(|task| task.info().has_length) {
            return Err(usage("--plot: expected a task with --lengths, found none"));
        }
    }
    if args.lengths.is_empty() {
        if let Some(task) = tasks.iter().find(|t| t.info().has_length) {
            return Err(usage(format!("{}: expected --lengths", task.info().name)));
        }
    }
    let specs = args.rope.specs()?;
    let choice = args.model.resolve()?;
    let interrupt = Interrupt::install()?;
    let mut store: Box<dyn Store> = match &args.out {
        Some(path) => Box::new(open_store(path, args.output)?),
        None => Box::new(Unkept),
    };
    let model = models::load(&choice, &args.output)?;
    let name = models::label(&choice);
    let chat = match args.template == "chat" {
        true => Some(template::of(&model, &interrupt.control())?),
        false => None,
    };
    let frame = |message: &str| template::frame(chat.as_ref(), message);
    let lengths = Lengths::all(&args.lengths);
    let comparison = Comparison { model: &model, choice: &choice, interrupt: &interrupt, out: args.output };
    let mut reports: Vec<Report> = Vec::new();
    for task in &tasks {
        let data = models::data_for(args.data.as_deref(), *task);
        let params = Params {
            ctx: args.ctx,
            samples: args.samples,
            seed: args.seed,
            template: if chat.is_some() { Template::Chat } else { Template::Base },
            frame: chat.is_some().then_some(&frame),
            options: options.clone(),
            batch: args.parallel,
            ..Params::new(lengths.clone(), &data)
        };
        let done = comparison.run(&specs, |source, control| {
            let params = Params { identity: source.identity()?, ..params.clone() };
            suite::run(source, &name, *task, &params, &mut *store, control)
        })?;
        reports.extend(done);
        if interrupt.requested() {
            break;
        }
    }
    let result = Outcome::new(reports, &specs, &args.tasks);
    if args.output.json {
        output::print_json(&result.json()?)?;
    } else {
        output::print(&result.text())?;
    }
    if let Some(path) = &args.plot {
        match &result.maps()[..] {
            [map] if result.reports.len() == 1 => map.write(path)?,
            _ => result.chart(model.hparams().n_ctx_orig()).write(path)?,
        }
        args.output.note(format_args!("drawn to {}", path.display()));
    }
    comparison.check_finished()
}

fn open_store(path: &Path, out: OutputArgs) -> anyhow::Result<FileStore> {
    let store = FileStore::open(path)?;
    if !store.is_empty() {
        out.note(format_args!("{}: {} samples from earlier runs", path.display(), store.len()));
    }
    Ok(store)
}

/// The tasks that are named, groups taken apart, each once.
fn tasks_named(names: &[String]) -> anyhow::Result<Vec<&'static dyn Task>> {
    let mut tasks: Vec<&'static dyn Task> = Vec::new();
    for name in names {
        for task in find(name).map_err(|e| usage(format!("{e}; `ropewalk eval --list` shows them")))? {
            if !tasks.iter().any(|t| t.info().name == task.info().name) {
                tasks.push(task);
            }
        }
    }
    Ok(tasks)
}

/// The settings, each of which some task must know.
fn options(args: &Args, tasks: &[&'static dyn Task]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut known: Vec<&str> = tasks.iter().flat_map(|t| t.info().options.iter().map(|o| o.name)).collect();
    known.sort_unstable();
    known.dedup();
    let given = (!args.set.is_empty()).then(|| args.set.join(","));
    let pairs = settings::pairs("--set", given.as_deref(), &known).map_err(usage)?;
    Ok(pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// Reports, means of groups, and differences between methods.
struct Outcome {
    reports: Vec<Report>,
    /// For each report its method as given, which is shorter than the spec in force.
    methods: Vec<String>,
    means: Vec<GroupMean>,
    paired: Vec<Paired>,
}

impl Outcome {
    /// `specs` are those of the reports of each task, in turn.
    fn new(reports: Vec<Report>, specs: &[Option<Spec>], names: &[String]) -> Outcome {
        let method = |(report, spec): (&Report, &Option<Spec>)| {
            spec.as_ref().map_or_else(|| report.rope.clone(), ToString::to_string)
        };
        let methods = reports.iter().zip(specs.iter().cycle()).map(method).collect();
        let groups: Vec<&Group> = GROUPS.iter().filter(|g| names.iter().any(|n| n == g.name)).collect();
        let mut ropes: Vec<&str> = Vec::new();
        for report in &reports {
            if !ropes.contains(&report.rope.as_str()) {
                ropes.push(&report.rope);
            }
        }
        let of = |rope: &&str| reports.iter().filter(|r| r.rope == **rope).cloned().collect::<Vec<_>>();
        let by_rope: Vec<Vec<Report>> = ropes.iter().map(of).collect();
        let means = by_rope.iter().flat_map(|r| groups.iter().flat_map(|g| means(g, r))).collect();
        let mut differences = Vec::new();
        if let Some((first, others)) = by_rope.split_first() {
            for b in others.iter().flatten() {
                differences.extend(first.iter().filter(|a| a.task == b.task).flat_map(|a| paired(a, b)));
            }
        }
        Outcome { reports, methods, means, paired: differences }
    }

    /// The method as given, by the spec in force at some length.
    fn method<'a>(&'a self, rope: &'a str) -> &'a str {
        let mut all = self.reports.iter().zip(&self.methods);
        all.find(|(report, _)| report.results.iter().any(|row| row.rope == rope))
            .map_or(rope, |(_, method)| method.as_str())
    }

    fn json(&self) -> anyhow::Result<Value> {
        let mut all = one_object(&self.reports)?;
        all.insert("means".into(), serde_json::to_value(&self.means)?);
        all.insert("differences".into(), serde_json::to_value(&self.paired)?);
        Ok(all.into())
    }

    fn text(&self) -> String {
        let mut out = self.reports.iter().map(Report::text).collect::<Vec<_>>().join("\n");
        for map in self.maps() {
            out += &format!("\n{}", map.text());
        }
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
        for p in &self.paired {
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

    /// A heat map of each report whose samples have depths.
    fn maps(&self) -> Vec<Grid> {
        self.reports.iter().zip(&self.methods).filter_map(|(report, method)| map(report, method)).collect()
    }

    /// Scores by length: a line for each report, with 95% intervals.
    fn chart(&self, n_ctx_orig: usize) -> Chart {
        let mut tasks: Vec<&str> = self.reports.iter().map(|r| r.task.as_str()).collect();
        let mut methods: Vec<&str> = self.methods.iter().map(String::as_str).collect();
        tasks.dedup();
        methods.dedup();
        let (mut series, mut longest) = (Vec::new(), 0);
        for (report, method) in self.reports.iter().zip(&self.methods) {
            let rows = || report.results.iter().filter_map(|row| Some((row.length?, row)));
            let points: Vec<(f64, f64)> = rows().map(|(length, row)| (length as f64, row.score)).collect();
            longest = rows().map(|(length, _)| length).fold(longest, usize::max);
            if points.is_empty() {
                continue;
            }
            let name = match (tasks.len() > 1, methods.len() > 1) {
                (true, true) => format!("{}, {method}", report.task),
                (true, false) => report.task.clone(),
                (false, _) => method.clone(),
            };
            let bounds = rows().map(|(_, row)| (row.ci_low, row.ci_high)).collect();
            series.push(Series::new(name, points).between(bounds));
        }
        let model = self.reports.first().map_or("", |r| r.model.as_str());
        let what = if let [task] = tasks[..] { format!("{task}, score") } else { "score".to_owned() };
        let under = if let [method] = methods[..] { format!(" ({method})") } else { String::new() };
        let mut x = Axis::new("length, tokens", Scale::Linear);
        if longest > n_ctx_orig {
            x = x.mark(n_ctx_orig as f64, format!("original context {n_ctx_orig}"));
        }
        Chart {
            title: format!("{model}: {what} by length{under}, 95% intervals"),
            x,
            y: Axis::new("score, percent", Scale::Linear),
            series,
        }
    }
}

/// A heat map of a report whose samples have depths: lengths across, depths down.
fn map(report: &Report, method: &str) -> Option<Grid> {
    let at = |row: &suite::Row| row.by.iter().filter(|b| b.tag == "depth").cloned().collect::<Vec<_>>();
    let mut rows: Vec<String> = Vec::new();
    for depth in report.results.iter().flat_map(at) {
        if !rows.contains(&depth.value) {
            rows.push(depth.value);
        }
    }
    if rows.is_empty() {
        return None;
    }
    rows.sort_by(|a, b| a.parse().unwrap_or(0.0f64).total_cmp(&b.parse().unwrap_or(0.0)));
    let score =
        |depth: &String, row: &suite::Row| at(row).iter().find(|b| b.value == *depth).map(|b| b.score);
    let scores = rows.iter().map(|d| report.results.iter().map(|row| score(d, row)).collect()).collect();
    let columns = report.results.iter().map(|r| r.length.map_or_else(|| "-".into(), |l| l.to_string()));
    Some(Grid {
        title: format!("{}: {} ({method})", report.model, report.task),
        x: "length, tokens".into(),
        y: "depth".into(),
        columns: columns.collect(),
        rows,
        scores,
    })
}
