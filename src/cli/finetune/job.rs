//! Sets a training run up from the options, shows it while it goes, and reports how it ended.

use anyhow::anyhow;
use ropewalk::control::Control;
use ropewalk::data::Dataset;
use ropewalk::model::{Error, Model};
use ropewalk::plot::{Axis, Chart, Scale, Series};
use ropewalk::train::checkpoint;
use ropewalk::train::optim::{OptimParams, Optimizer};
use ropewalk::train::{History, Init, Run, RunParams, RunReport, TrainParams, Trainer};
use ropewalk_core::text::bytes;
use serde::Serialize;
use serde_json::Value;

use super::super::engine::draw;
use super::super::interrupt::stopped;
use super::super::models::{self, ModelChoice};
use super::super::output::{count, Unit};
use super::args::Args;

/// A run that has ended.
pub(super) struct Done {
    /// The object of `--json`.
    pub(super) report: Value,
    /// The token of the texts behind the last that was trained on.
    pub(super) data_end: u64,
    /// Output beside the adapter that could not be written.
    pub(super) problems: Vec<String>,
}

pub(super) fn run(
    args: &Args,
    choice: &ModelChoice,
    model: &Model,
    settings: &TrainParams,
    control: &Control<'_>,
) -> anyhow::Result<Done> {
    let settings = args.at_context(model, settings)?;
    let (batch, optim) = args.optimiser(settings.n_ctx);
    // Impossible settings are refused before texts are tokenized.
    check_no_earlier_run(args)?;
    let mut trainer = Trainer::new(model, &settings).map_err(with_hint)?;
    let init = args.init.as_deref().map(|path| Init::adapter(path, &mut trainer)).transpose()?;
    let optimizer = Optimizer::new(optim, trainer.params())?;
    let data = args.dataset(model, &settings, None, control)?;
    let params = params(args, model, batch, &data, init)?;
    announce(args, choice, model, &trainer, &data, batch);
    note_on_average(args, &optim);
    let mut run = if args.training.resume {
        let run = Run::resume(trainer, optimizer, data, params)?;
        run.notes().iter().for_each(|n| args.out.note(format_args!("note: {n}")));
        let newest = checkpoint::path(&args.checkpoints(), run.step());
        args.out.note(format_args!("resuming after step {} of {}", run.step(), newest.display()));
        run
    } else {
        Run::new(trainer, optimizer, data, params)?
    };
    train(args, &mut run, &optim, control)?;
    finish(args, choice, &run)
}

fn params(
    args: &Args,
    model: &Model,
    batch: usize,
    data: &Dataset,
    init: Option<Init>,
) -> anyhow::Result<RunParams> {
    let names: Vec<String> = args.training.data.iter().map(|s| models::name(&s.path)).collect();
    let order = args.order();
    let data_offset = match (args.given.data_offset, &init) {
        (Some(token), _) => token,
        (None, Some(init)) => init
            .data_offset(data, order)
            .map_err(|e| anyhow!("{e}; see --set data-offset and --set order"))?,
        (None, None) => 0,
    };
    if data_offset > 0 {
        args.out.note(format_args!("data from token {} on", count(data_offset)));
    }
    let set = args.at(data.params().n_ctx);
    let of_model = || if args.trains_all() { Init::model(model) } else { Ok(Vec::new()) };
    Ok(RunParams {
        batch,
        order,
        data_offset,
        ancestors: init.map_or_else(of_model, |init| Ok(init.ancestors))?,
        doc_mask: args.doc_mask(),
        longce: args.longce(),
        eval_every: set.eval_every,
        checkpoints: Some(args.checkpoints()),
        save_every: set.save_every.unwrap_or_default(),
        keep_last: set.keep_last.unwrap_or_default(),
        log: Some(args.log()),
        texts: Some(names.join(", ")),
        settings: [("separator".to_owned(), format!("{:?}", args.separator()))].into(),
    })
}

/// The library's error, with the option that shows more.
fn with_hint(e: Error) -> anyhow::Error {
    match e {
        Error::OutOfMemory { what, .. } => anyhow!("{what}; --plan-memory shows the breakdown"),
        e => e.into(),
    }
}

/// A folder with checkpoints is gone on with, or left alone.
fn check_no_earlier_run(args: &Args) -> anyhow::Result<()> {
    let folder = args.checkpoints();
    let last = checkpoint::list(&folder).pop();
    match last {
        None if args.training.resume => Err(anyhow!("--resume: {}: no checkpoint found", folder.display())),
        Some(last) if !args.training.resume => Err(anyhow!(
            "{}: an earlier run got to {}: continue it with --resume, remove it, or choose another --output",
            folder.display(),
            models::name(&last)
        )),
        _ => Ok(()),
    }
}

fn announce(args: &Args, choice: &ModelChoice, model: &Model, t: &Trainer, data: &Dataset, batch: usize) {
    let plan = t.plan();
    let n: usize = t.params().list().iter().map(|p| p.value.len()).sum();
    args.out.note(format_args!(
        "{}: {}, rope {}, {}; {} trainable parameters in {} tensors; keeps {:?}",
        models::label(choice),
        model.device(),
        plan.spec,
        models::context(t.settings().n_ctx, plan, model.hparams()),
        count(n as u64),
        t.params().list().len(),
        t.checkpointing(),
    ));
    plan.notes.iter().for_each(|n| args.out.note(format_args!("note: {n}")));
    let corpus = data.corpus();
    args.out.note(format_args!(
        "{} tokens in {} documents: {} sequences to train on, {} held out, {batch} a step",
        count(corpus.n_tokens()),
        count(corpus.n_documents() as u64),
        count(data.n_train() as u64),
        count(data.n_held_out() as u64),
    ));
}

/// Says so when a run is too short for its moving average to forget the values it starts from.
fn note_on_average(args: &Args, optim: &OptimParams) {
    let start = optim.ema.powf(optim.schedule.steps as f64);
    if optim.ema > 0.0 && start > 0.1 {
        args.out.note(format_args!(
            "note: after {} steps the moving average is still {:.0} % initial values: take a smaller ema or \
             more steps",
            optim.schedule.steps,
            100.0 * start
        ));
    }
}

fn train(args: &Args, run: &mut Run, optim: &OptimParams, control: &Control<'_>) -> anyhow::Result<()> {
    let draw = draw(args.out.progress(optim.schedule.steps, "training", Unit::Steps));
    let progress = |p: &ropewalk::control::Progress<'_>| {
        let memory = ggml::machine::peak_memory().map_or(String::new(), |n| format!(", {}", bytes(n)));
        let what = format_args!("{}{memory}", p.what);
        draw(&ropewalk::control::Progress { what, ..*p });
    };
    let notes = |text: std::fmt::Arguments<'_>| args.out.note(text);
    let control = args.out.watched(control, &progress, &notes);
    match run.train(&control) {
        Ok(()) => Ok(()),
        Err(Error::Interrupted) => {
            Err(stopped(format!("interrupted at step {}: saved; --resume continues from there", run.step())))
        }
        Err(e) => Err(anyhow!(e).context("earlier checkpoints are unchanged")),
    }
}

/// The JSON object of a run.
#[derive(Serialize)]
struct FinetuneReport<'a> {
    model: String,
    rope: String,
    /// The recipe and how it differs from its paper, where one was named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    recipe: Vec<String>,
    /// The file written: an adapter, or a model where all parameters are trained.
    adapter: String,
    ctx: usize,
    /// Tokens of the texts, in their order of training, up to where the run ended.
    data_end: u64,
    #[serde(flatten)]
    run: &'a RunReport,
}

/// Writes the adapter, or the model, and the loss curve.
fn finish(args: &Args, choice: &ModelChoice, run: &Run) -> anyhow::Result<Done> {
    let (path, plot, rope) = (args.output(), args.plot(), run.trainer().plan().spec.to_string());
    let mut report = run.report();
    let (what, option) = if args.trains_all() { ("model", "-m") } else { ("adapter", "--lora") };
    let written = match args.trains_all() {
        true => {
            let types = args.types_of(&choice.path).map(gguf::File::open).transpose()?;
            run.write_model(path, types.as_ref())
        }
        false => run.write_adapter(path),
    };
    let n_bytes = written.map_err(|e| {
        let saved = checkpoint::list(&args.checkpoints()).pop();
        let saved = saved.map_or(String::new(), |p| format!(", --resume continues from {}", p.display()));
        anyhow!("the {what} was not written{saved}: {e}")
    })?;
    let chart = chart(run.history(), &format!("{}: {rope}", models::label(choice)));
    if let Err(e) = chart.write(&plot) {
        report.problems.push(format!("no loss curve: {e}"));
    }
    args.out.note(chart.text(80, 10)?);
    args.out.note(format_args!(
        "{} ({}), curve in {}, log in {}; use it with {option} {}",
        path.display(),
        bytes(n_bytes),
        plot.display(),
        args.log().display(),
        path.display()
    ));
    let problems = match report.problems.as_slice() {
        [] => Vec::new(),
        all => vec![format!("{} is whole, but {}", path.display(), all.join("; "))],
    };
    let report = serde_json::to_value(FinetuneReport {
        model: models::label(choice),
        rope,
        recipe: args.recipe_notes()?,
        adapter: path.display().to_string(),
        ctx: run.data().params().n_ctx,
        data_end: run.data_end(),
        run: &report,
    })?;
    Ok(Done { report, data_end: run.data_end(), problems })
}

/// The loss by step, in training and on held-out sequences.
fn chart(history: &History, title: &str) -> Chart {
    let points = |list: &[(u64, f64)]| list.iter().map(|&(s, v)| (s as f64, v)).collect::<Vec<_>>();
    let mut series = vec![Series::new("training", points(&history.losses))];
    if !history.validations.is_empty() {
        series.push(Series::new("held out", points(&history.validations)));
    }
    Chart {
        title: title.to_owned(),
        x: Axis::new("step", Scale::Linear),
        y: Axis::new("loss, nats a token", Scale::Linear),
        series,
    }
}
