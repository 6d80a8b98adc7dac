//! `ropewalk eval`: published benchmarks of long context, and what extending cost on short ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args as _, FromArgMatches};
use ropewalk::eval::check_apart;
use ropewalk::eval::suite::{self, FileStore, Outcome, Params, Several, Store, Unkept};
use ropewalk::plot::{self, Grid};
use ropewalk::remedy::Remedy;
use ropewalk::tasks::{find_all, named_texts, DataFile, Info, Task, Template, GROUPS, TASKS};
use ropewalk_core::settings;
use serde_json::{json, Value};

use super::interrupt::{self, Interrupt};
use super::methods::under_methods;
use super::options::{lengths, tokens, ForceArgs, Lengths, ModelArgs, RopesArgs};
use super::output::{self, OutputArgs};
use super::{hints, models, template, usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "eval",
    about: "Run published benchmarks: RULER, needles, LongBench, short tasks, and others",
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
    /// Prompt format: base for plain text, chat for the model's chat template, or a Jinja file
    #[arg(long, value_name = "base|chat|FILE", default_value = "base")]
    template: PathBuf,
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
    force: ForceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    let tasks =
        find_all(&args.tasks).map_err(|e| usage(format!("{e}; `ropewalk eval --list` shows them")))?;
    if args.list {
        return list(&tasks, args.output);
    }
    let options = options(args, &tasks)?;
    args.force.check_plot("--plot", args.plot.as_ref())?;
    if args.plot.is_some() && !tasks.iter().any(|task| task.info().has_length) {
        return Err(usage("--plot: expected a task with --lengths, found none"));
    }
    if let Some(task) = tasks.iter().find(|t| t.info().has_length && args.lengths.is_empty()) {
        return Err(usage(format!("{}: expected --lengths", task.info().name)));
    }
    let specs = args.rope.specs()?;
    // A file of such a name is `./chat`.
    let template = args.template.to_str().filter(|kind| ["base", "chat"].contains(kind));
    let file = template.is_none().then_some(&*args.template);
    let choice = args.model.resolve()?.with_template(file)?;
    let interrupt = Interrupt::install()?;
    let data_of: &dyn Fn(&dyn Task) -> PathBuf = &|task| models::data_for(args.data.as_deref(), task);
    let data = tasks.iter().flat_map(|task| {
        let dir = data_of(*task);
        task.info().files.iter().map(move |file| dir.join(file.name))
    });
    let named = named_texts(&tasks, &options);
    check_apart(choice.files().cloned().chain(data).chain(named), args.out.iter().chain(&args.plot))?;
    let mut store: Box<dyn Store> = match &args.out {
        Some(path) => {
            let store = FileStore::open(args.force.output(path))?;
            if !store.is_empty() {
                let n = store.len();
                args.output.note(format_args!("{}: {n} samples from earlier runs", path.display()));
            }
            Box::new(store)
        }
        None => Box::new(Unkept),
    };
    let model = models::load(&choice, &args.output)?;
    let name = models::label(&choice);
    let chat = (template != Some("base")).then(|| template::of(&model, &interrupt.control())).transpose()?;
    let frame = |message: &str| template::frame(chat.as_ref(), message);
    let params = Params::new(Lengths::all(&args.lengths), Path::new(""))
        .ctx(args.ctx)
        .samples(args.samples)
        .seed(args.seed)
        .template(if chat.is_some() { Template::Chat } else { Template::Base })
        .frame(chat.is_some().then_some(&frame))
        .options(options)
        .batch(args.parallel);
    let how = Several::new(tasks, params).specs(specs).data(Some(data_of));
    let mut reports = Vec::new();
    let done = under_methods(&model, &choice, &interrupt, args.output, |sources, control| {
        suite::run_all(sources, &name, &how, &mut *store, &mut reports, control)
    });
    // What was measured before an error is shown.
    if reports.is_empty() {
        return Ok(done?);
    }
    let result = Outcome::new(reports, &how.specs, &args.tasks);
    let maps = plot::depths(&result);
    if args.output.json {
        output::print_json(&result.json()?)?;
    } else {
        output::print(&result.text(&maps.iter().map(Grid::text).collect::<Vec<_>>()))?;
    }
    if let Some(path) = &args.plot {
        match &maps[..] {
            [map] if result.reports.len() == 1 => map.write(args.force.output(path))?,
            _ => plot::scores(&result, model.hparams().n_ctx_orig()).write(args.force.output(path))?,
        }
        args.output.note(format_args!("drawn to {}", path.display()));
    }
    done?;
    interrupt::check(interrupt.requested(), "interrupted: the figures cover the completed part")
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

/// Describes these tasks; lists all where there are none.
fn list(tasks: &[&'static dyn Task], out: OutputArgs) -> anyhow::Result<()> {
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
    out += &format!("  samples   {}\n", info.samples.map_or("all".to_owned(), |n| n.to_string()));
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
