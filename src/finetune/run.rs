//! The parts of a job's run: it is prepared, started, and finished, with a report at its end.

use gguf::Output;
use ropewalk_core::text::count;
use serde::Serialize;

use super::{failed, name, Job, Result};
use crate::control::Control;
use crate::data::Dataset;
use crate::model::{Error, Model};
use crate::plot::{Axis, Chart, Scale, Series};
use crate::train::optim::{OptimParams, Optimizer};
use crate::train::{checkpoint, History, Init, Run, RunParams, RunReport, TrainParams, Trainer};

/// A run whose settings were found possible, before its texts are read.
#[derive(Debug)]
pub struct Prepared {
    /// Settings of the trainer, with the context of the run.
    pub settings: TrainParams,
    /// Sequences per step.
    pub batch: usize,
    /// Trainer, with the values of the adapter that training starts from, if there is one.
    pub trainer: Trainer,
    /// Optimizer.
    pub optimizer: Optimizer,
    init: Option<Init>,
}

/// The result of a job.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// File name of the trained model.
    pub model: String,
    /// RoPE method that was trained under, with every default filled in.
    pub rope: String,
    /// The recipe and how it differs from its paper, one sentence each. Empty without a recipe.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recipe: Vec<String>,
    /// Path of the written file: an adapter, or a model if all parameters are trained.
    pub adapter: String,
    /// Sequence length, in tokens.
    pub ctx: usize,
    /// Number of tokens of the texts, in their training order, up to the place where the run ended.
    pub data_end: u64,
    /// Figures of the run. `problems` has a sentence for each output other than the adapter that could not be written.
    #[serde(flatten)]
    pub run: RunReport,
    /// Size of the written file, in bytes.
    #[serde(skip)]
    pub n_bytes: u64,
    /// Training and validation loss by step.
    #[serde(skip)]
    pub chart: Chart,
}

/// Trains as the job says, and writes the adapter or model, the checkpoints, the log, and the loss plot.
///
/// Progress is in bytes while the texts are tokenized, and then in optimizer steps. Notes are sentences about the data,
/// the settings, and each validation.
///
/// # Errors
/// [`JobError::Settings`](super::JobError::Settings) for settings that cannot be used together, before anything is
/// computed. [`Error::Interrupted`] if `control` stops the work; if training had begun, a checkpoint was saved, and a
/// job with `resume` continues from it. Other errors are those of the parts: see the methods of [`Job`] and
/// [`Run::train`].
pub fn run(job: &Job, model: &Model, control: &Control<'_>) -> Result<Report> {
    let settings = job.settings()?;
    job.recipe_notes().iter().for_each(|note| control.note(format_args!("{note}")));
    job.check_outputs(model.file().path(), false)?;
    let _lock = files::Lock::file(&job.output)?;
    let prepared = job.prepare(model, &settings)?;
    prepared.trainer.plan().notes.iter().for_each(|note| control.note(format_args!("note: {note}")));
    let texts = job.texts(model, &prepared.settings, None, control)?;
    let data = job.dataset(model, &prepared.settings, texts, control)?;
    let params = job.params(model, &prepared, &data, control)?;
    let mut run = job.start(prepared, data, params, control)?;
    run.train(control)?;
    job.finish(model, &run)
}

impl Job {
    /// Makes the trainer and the optimizer. `settings` are those of [`Job::settings`]. Impossible settings are found
    /// here, before any text is read.
    ///
    /// # Errors
    /// Returns an error if the directory of checkpoints has some and the job does not resume, or the reverse; the errors
    /// of [`Job::at_context`], [`Trainer::new`], [`Init::adapter`], and [`Optimizer::new`].
    pub fn prepare(&self, model: &Model, settings: &TrainParams) -> Result<Prepared> {
        let mut settings = self.at_context(model, settings)?;
        if self.resume && settings.checkpointing.is_none() {
            // The default depends on how much memory is free, and results on it where activations are rounded.
            settings.checkpointing = checkpoint::checkpointing(&self.checkpoints());
        }
        let (batch, optim) = self.optimiser(settings.n_ctx);
        self.check_no_earlier_run()?;
        let mut trainer = Trainer::new(model, &settings)?;
        let init = self.init.as_deref().map(|path| Init::adapter(path, &mut trainer)).transpose()?;
        let optimizer = Optimizer::new(optim, trainer.params())?;
        Ok(Prepared { settings, batch, trainer, optimizer, init })
    }

    /// Returns the settings of the run over this data set.
    ///
    /// # Errors
    /// Returns an error if the adapter that training starts from does not say where in these texts its own run ended, or
    /// if the model's metadata cannot be read.
    pub fn params(
        &self,
        model: &Model,
        prepared: &Prepared,
        data: &Dataset,
        control: &Control<'_>,
    ) -> Result<RunParams> {
        let names: Vec<String> = self.data.iter().map(|s| name(&s.path)).collect();
        let order = self.order();
        let data_offset = match (self.given.data_offset, &prepared.init) {
            (Some(token), _) => token,
            (None, Some(init)) => init
                .data_offset(data, order)
                .map_err(|e| failed(format!("{e}; see `data-offset` and `order`")))?,
            (None, None) => 0,
        };
        if data_offset > 0 {
            control.note(format_args!("data from token {} on", count(data_offset)));
        }
        let set = self.at(data.params().n_ctx);
        let ancestors = match &prepared.init {
            Some(init) => init.ancestors.clone(),
            None if self.trains_all() => Init::model(model)?,
            None => Vec::new(),
        };
        Ok(RunParams {
            batch: prepared.batch,
            order,
            data_offset,
            ancestors,
            doc_mask: self.doc_mask(),
            longce: self.longce(),
            eval_every: set.eval_every,
            checkpoints: Some(self.checkpoints()),
            save_every: set.save_every.unwrap_or_default(),
            keep_last: set.keep_last.unwrap_or_default(),
            log: Some(Output::new(self.log(), self.force)),
            texts: Some(names.join(", ")),
            settings: [("separator".to_owned(), format!("{:?}", self.separator()))]
                .into_iter()
                .chain(self.answers_only.then(|| ("answers-only".to_owned(), true.to_string())))
                .collect(),
        })
    }

    /// A folder with checkpoints is gone on with, or left alone.
    pub(super) fn check_no_earlier_run(&self) -> Result<()> {
        let folder = self.checkpoints();
        let last = checkpoint::list(&folder).pop();
        match last {
            None if self.resume => Err(failed(format!("`resume`: {}: no checkpoint found", folder.display()))),
            Some(last) if !self.resume => Err(failed(format!(
                "{}: an earlier run got to {}: continue it with `resume`, remove this directory, or choose another `output`",
                folder.display(),
                name(&last)
            ))),
            _ => Ok(()),
        }
    }

    /// Starts the run, or resumes it from its newest checkpoint. [`Run::train`] then trains.
    ///
    /// # Errors
    /// Returns the errors of [`Run::new`] or [`Run::resume`].
    pub fn start(
        &self,
        prepared: Prepared,
        data: Dataset,
        params: RunParams,
        control: &Control<'_>,
    ) -> Result<Run> {
        let Prepared { trainer, optimizer, .. } = prepared;
        note_on_average(&optimizer.params, control);
        if !self.resume {
            return Ok(Run::new(trainer, optimizer, data, params)?);
        }
        let run = Run::resume(trainer, optimizer, data, params)?;
        run.notes().iter().for_each(|n| control.note(format_args!("note: {n}")));
        let newest = checkpoint::path(&self.checkpoints(), run.step());
        control.note(format_args!("resuming after step {} of {}", run.step(), newest.display()));
        Ok(run)
    }

    /// Writes the adapter or the model, and the loss plot.
    ///
    /// # Errors
    /// Returns an error if the adapter or model cannot be written; it names the checkpoint that `resume` continues from.
    /// A plot that cannot be written is in the report's problems.
    pub fn finish(&self, model: &Model, run: &Run) -> Result<Report> {
        let (path, rope) = (&self.output, run.trainer().plan().spec.to_string());
        let output = Output::new(path, self.force);
        let mut report = run.report();
        let what = if self.trains_all() { "model" } else { "adapter" };
        let written = match self.trains_all() {
            true => {
                let types = self.types_of(model.file().path()).map(gguf::File::open).transpose();
                run.write_model(output, types.map_err(Error::from)?.as_ref())
            }
            false => run.write_adapter(output),
        };
        let n_bytes = written.map_err(|e| {
            let saved = checkpoint::list(&self.checkpoints()).pop();
            let saved = saved.map_or(String::new(), |p| format!(", `resume` continues from {}", p.display()));
            failed(format!("the {what} was not written{saved}: {e}"))
        })?;
        let model = name(model.file().path());
        let chart = chart(run.history(), &format!("{model}: loss, {rope}"));
        if let Err(e) = chart.write(Output::new(self.plot(), self.force)) {
            report.problems.push(format!("no loss curve: {e}"));
        }
        Ok(Report {
            model,
            rope,
            recipe: self.recipe_notes(),
            adapter: path.display().to_string(),
            ctx: run.data().params().n_ctx,
            data_end: run.data_end(),
            run: report,
            n_bytes,
            chart,
        })
    }
}

/// Says so when a run is too short for its moving average to forget the values it starts from.
fn note_on_average(optim: &OptimParams, control: &Control<'_>) {
    let start = optim.ema.powf(optim.schedule.steps as f64);
    if optim.ema > 0.0 && start > 0.1 {
        control.note(format_args!(
            "note: after {} steps the moving average is still {:.0} % initial values: take a smaller ema or \
             more steps",
            optim.schedule.steps,
            100.0 * start
        ));
    }
}

/// The loss by step, in training and on held-out sequences.
fn chart(history: &History, title: &str) -> Chart {
    let points = |list: &[(u64, f64)]| list.iter().map(|&(s, v)| (s as f64, v)).collect::<Vec<_>>();
    let mut series = vec![Series::new("training", points(&history.losses))];
    if !history.validations.is_empty() {
        series.push(Series::new("validation", points(&history.validations)));
    }
    Chart {
        title: title.to_owned(),
        x: Axis::new("step", Scale::Linear),
        y: Axis::new("loss, nats/token", Scale::Linear),
        series,
    }
}
