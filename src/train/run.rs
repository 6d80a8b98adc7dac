//! A training run: steps over a data set, validations, checkpoints and a log on the way, an adapter at its
//! end.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use gguf::Output;

use super::checkpoint::{self, Folder, State};
use super::export::write_adapter;
use super::full::write_model;
use super::init::{order_hash, SampleOrder};
use super::log::{History, Log};
use super::longce::Weighed;
use super::optim::{Optimizer, StepReport};
use super::run_params::{settings, RunParams, RunReport};
use super::{Sequence, Trainer};
use crate::adapter::{AdapterMeta, DataEnd};
use crate::control::Control;
use crate::data::{Dataset, Sample};
use crate::model::{Error, Result};

/// More tokens than there are; sums with a run's own do not overflow.
const MAX_OFFSET: u64 = 1 << 60;

/// A run of fine-tuning.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
/// # let texts = dir.path().join("texts.txt");
/// # std::fs::write(&texts, "A rope is walked, a yarn is spun. ".repeat(20))?;
/// # let (cache, output) = (dir.path().join("texts.tokens"), dir.path().join("adapter.gguf"));
/// use std::sync::Arc;
///
/// use ropewalk::control::Control;
/// use ropewalk::data::{Corpus, Dataset, DatasetParams, Separator, Sources, TextOptions};
/// use ropewalk::model::{Model, ModelParams};
/// use ropewalk::train::optim::{Decay, OptimParams, Optimizer, Schedule};
/// use ropewalk::train::{Run, RunParams, TrainParams, Trainer};
///
/// let model = Model::load(&path, &ModelParams::cpu())?;
/// let mut how = TrainParams::new(64); // tokens of a sequence
/// how.rope = Some("pi:factor=2".parse()?);
/// # how.n_threads = 1;
/// let trainer = Trainer::new(&model, &how)?;
/// let schedule = Schedule::constant(1e-2, 4).warmup(1).decay(Decay::Cosine);
/// let optimizer = Optimizer::new(OptimParams::new(schedule), trainer.params())?;
///
/// let sources = Sources::find(&[texts], &TextOptions::default())?;
/// let corpus = Corpus::open(&cache, model.vocab(), &sources, &Separator::Auto, &Control::default())?;
/// let data = Dataset::new(Arc::new(corpus), &DatasetParams::new(64))?;
///
/// let mut run = Run::new(trainer, optimizer, data, RunParams::default())?;
/// let show = |p: &ropewalk::control::Progress<'_>| println!("step {} of {}: {}", p.done, p.total, p.what);
/// run.train(&Control::default().with_progress(&show))?;
/// run.write_adapter(&output)?;
/// assert_eq!(run.report().steps, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Run {
    trainer: Trainer,
    optimizer: Optimizer,
    data: Dataset,
    params: RunParams,
    /// Settings that must be the same when the run is resumed, by name.
    settings: BTreeMap<String, String>,
    log: Log,
    n_seen: u64,
    weighed: Weighed,
    /// Why the last checkpoint could not be written.
    unsaved: Option<String>,
    notes: Vec<String>,
    /// Keeps other runs from using the folder of checkpoints.
    _folder: Option<Folder>,
}

impl Run {
    /// A run from its first step.
    ///
    /// # Errors
    /// Returns an error if the batch is 0, if the samples' context is not the trainer's, if the folder has checkpoints
    /// of an earlier run, if another run (it is named) uses the folder or the log, or if the disk fails.
    pub fn new(trainer: Trainer, optimizer: Optimizer, data: Dataset, params: RunParams) -> Result<Run> {
        let mut run = Run::with(trainer, optimizer, data, params)?;
        if let Some(last) = run.params.checkpoints.as_deref().and_then(|f| checkpoint::list(f).pop()) {
            return Err(Error::Invalid(format!(
                "{}: a checkpoint of an earlier run: resume that run, or choose another directory",
                last.display()
            )));
        }
        run.log = Log::start(run.params.log.clone(), None)?;
        Ok(run)
    }

    /// Resumes a run from its newest checkpoint, as if it had never stopped. The setup must be the same as at the
    /// start, except for the number of steps under a constant rate. A number of steps that a checkpoint has reached ends the
    /// run at the newest such checkpoint, under any schedule.
    ///
    /// If the newest checkpoint is damaged, the newest complete one is used. The damaged ones get names that end in
    /// `.damaged`, and [`Run::notes`] lists them. The log is cut back to the step that the run resumes from.
    ///
    /// # Errors
    /// Returns an error if there is no complete checkpoint, if it is of a run with other settings (they are named), and
    /// the errors of [`Run::new`].
    pub fn resume(trainer: Trainer, optimizer: Optimizer, data: Dataset, params: RunParams) -> Result<Run> {
        let mut run = Run::with(trainer, optimizer, data, params)?;
        let folder = run.params.checkpoints.clone().unwrap_or_default();
        let params = run.trainer.params_mut();
        let (state, notes) = checkpoint::load_newest(&folder, &run.settings, params, &mut run.optimizer)?;
        run.notes = notes;
        run.n_seen = state.n_seen;
        run.trainer.set_seen(state.n_seen);
        run.log = Log::start(run.params.log.clone(), Some(state.step))?;
        Ok(run)
    }

    fn with(trainer: Trainer, optimizer: Optimizer, data: Dataset, params: RunParams) -> Result<Run> {
        if params.batch == 0 {
            return Err(Error::argument("batch", "at least 1", 0));
        }
        let (expected, found) = (trainer.settings().n_ctx, data.params().n_ctx);
        if expected != found {
            let expected = format!("the trainer's context of {expected} tokens");
            return Err(Error::argument("samples", expected, found));
        }
        if params.data_offset > MAX_OFFSET {
            let expected = format!("at most {MAX_OFFSET} tokens");
            return Err(Error::argument("data offset", expected, params.data_offset));
        }
        let expected = data.n_read();
        if params.order == SampleOrder::Shuffled && !params.data_offset.is_multiple_of(expected as u64) {
            let expected = format!("a multiple of the context, {expected} tokens, if samples are shuffled");
            return Err(Error::argument("data offset", expected, params.data_offset));
        }
        if params.order == SampleOrder::Text {
            // Refuses texts that are not joined.
            data.at(params.data_offset)?;
        }
        let params = RunParams { longce: params.longce.map(|l| l.at(data.params().n_ctx)), ..params };
        check_data(&trainer, &data, &params)?;
        let settings = settings(&trainer, &optimizer, &data, &params)?;
        let log = Log::start(None, None)?;
        let folder = params.checkpoints.as_deref().map(Folder::open).transpose()?;
        let (unsaved, notes) = (None, Vec::new());
        Ok(Run {
            trainer,
            optimizer,
            data,
            params,
            settings,
            log,
            n_seen: 0,
            weighed: Weighed::default(),
            unsaved,
            notes,
            _folder: folder,
        })
    }

    /// The trainer.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// The data set.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// Steps done so far, those before it was resumed included.
    pub fn step(&self) -> u64 {
        self.optimizer.step
    }

    /// Sentences on how the run was resumed, where that is worth saying.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Losses and speeds so far.
    pub fn history(&self) -> &History {
        &self.log.history
    }

    /// The figures so far.
    pub fn report(&self) -> RunReport {
        let history = self.history();
        let first = self.params.data_offset / self.data.n_read() as u64;
        RunReport {
            steps: self.optimizer.step,
            tokens: self.data.n_inputs(first + self.n_seen) - self.data.n_inputs(first),
            loss: history.last_loss(),
            val_before: history.validations.first().map(|v| v.1),
            val_after: history.last_validation(),
            tokens_per_s: history.tokens_per_s(),
            peak_bytes: ggml::machine::peak_memory(),
            problems: self.log.problem().into_iter().chain(self.unsaved.clone()).collect(),
        }
    }

    /// Trains up to the last step of the optimizer's schedule. Validates on the held-out sequences before the
    /// first step, as often as asked for, and after the last, under the moving average where one is kept;
    /// saves checkpoints. Progress is counted in steps; a note gives the figures of each validation.
    ///
    /// A log or a checkpoint that cannot be written, on a full disk, does not end the training: a note says
    /// so, it is tried again at the next step or the next checkpoint, and what is missing at the end is in
    /// [`RunReport::problems`]. Earlier checkpoints stay until a later one is written.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when `control` or the trainer's `cancel_flag` stops it: a checkpoint was saved
    /// then, or else the error says why not. A loss or a gradient that is not finite, naming the step; the step before it
    /// is saved, and earlier checkpoints are as they were.
    pub fn train(&mut self, control: &Control<'_>) -> Result<()> {
        control.bind(&self.trainer.cancel_flag());
        match self.steps(control) {
            Err(Error::Interrupted) => match self.save() {
                Ok(()) => Err(Error::Interrupted),
                Err(e) => {
                    let step = self.optimizer.step;
                    Err(Error::during(format!("interrupted at step {step}, which cannot be saved"), e))
                }
            },
            Err(e) => {
                self.rescue(control);
                Err(e)
            }
            done => done,
        }
    }

    /// Saves the last step of a run that failed after it, unless its values are what failed. Earlier ones are kept.
    fn rescue(&self, control: &Control<'_>) {
        let (Some(folder), step) = (&self.params.checkpoints, self.optimizer.step) else { return };
        let mut values = self.trainer.params().list().iter().flat_map(|t| &t.value);
        let is_new = step > 0 && !checkpoint::path(folder, step).exists();
        if is_new && values.all(|x| x.is_finite()) && self.write_checkpoint(folder).is_ok() {
            control
                .note(format_args!("step {step} is saved; a run that resumes with {step} steps writes it"));
        }
    }

    fn steps(&mut self, control: &Control<'_>) -> Result<()> {
        let n_steps = self.optimizer.params.schedule.steps;
        let eval_every = self.params.eval_every.unwrap_or(n_steps.div_ceil(10));
        let is_due =
            |step: u64| step == 0 || step == n_steps || (eval_every > 0 && step.is_multiple_of(eval_every));
        let validated = self.history().validations.last().map(|v| v.0);
        if is_due(self.optimizer.step) && validated != Some(self.optimizer.step) {
            self.validate(control)?;
        }
        while self.optimizer.step < n_steps {
            let started = Instant::now();
            let (loss, n_tokens, step) = self.one_step(control)?;
            say(control, self.params.longce.and_then(|l| self.weighed.note(l, step.step, n_steps)));
            let rate = n_tokens as f64 / started.elapsed().as_secs_f64();
            say(control, self.log.step(&step, loss, rate));
            if is_due(step.step) {
                self.validate(control)?;
            }
            let val_loss = self.history().last_validation();
            let val = val_loss.map_or(String::new(), |v| format!(", val ppl {:.3}", v.exp()));
            let what = format_args!("loss {loss:.4}{val}, {rate:.0} tokens/s");
            let mut figures =
                vec![("loss", loss), ("lr", step.lr), ("grad_norm", step.grad_norm), ("tokens_per_s", rate)];
            figures.extend(val_loss.map(|v| ("val_loss", v)));
            control.report_figures(what, step.step, n_steps, &figures);
            let every = self.params.save_every;
            if step.step == n_steps || (every > 0 && step.step.is_multiple_of(every)) {
                self.save_or_say(control);
            }
        }
        Ok(())
    }

    fn save_or_say(&mut self, control: &Control<'_>) {
        let step = self.optimizer.step;
        match self.save() {
            Ok(()) => {
                let failed = self.unsaved.take().is_some();
                say(control, failed.then(|| format!("step {step}: checkpoints can be saved again")));
            }
            Err(e) => {
                let what = format!("no checkpoint of step {step}: {e}");
                say(control, self.unsaved.is_none().then(|| format!("{what}; training continues")));
                self.unsaved = Some(what);
            }
        }
    }

    /// One step of the optimizer, and the mean loss and the tokens of its sequences.
    fn one_step(&mut self, control: &Control<'_>) -> Result<(f64, usize, StepReport)> {
        self.trainer.params().zero_grads()?;
        self.trainer.set_seen(self.n_seen);
        let (at, batch) = (self.optimizer.step + 1, self.params.batch as u64);
        // Made twice: a step may have more sequences than memory has room for.
        let (mut counted, mut skipped) = (0u64, 0u64);
        loop {
            for n in self.n_seen..self.n_seen + batch {
                counted += u64::from(!is_empty(&self.sample(n)?));
            }
            if counted > 0 {
                break;
            }
            skipped += batch;
            self.n_seen += batch;
            if skipped > self.data.n_train() as u64 {
                let what = "no sequence has tokens to train on: use longer ones";
                return Err(Error::Invalid(format!("step {at}: {what}")));
            }
        }
        let note = || format!("step {at}: skipped {skipped} sequences without tokens to train on");
        say(control, (skipped > 0).then(note));
        let (mut loss, mut n_tokens) = (0.0, 0);
        for n in self.n_seen..self.n_seen + batch {
            let sample = self.sample(n)?;
            if is_empty(&sample) {
                continue;
            }
            n_tokens += sample.inputs().len();
            self.trainer.set_seen(n);
            let one = self.one_sample(&sample, 1.0 / counted as f64);
            loss += one.map_err(|e| during(format!("step {at}"), e))?;
        }
        let step = self.optimizer.step(self.trainer.params_mut())?;
        self.n_seen += batch;
        Ok((loss / counted as f64, n_tokens, step))
    }

    /// The loss of a sample, and its gradient times `factor`.
    fn one_sample(&mut self, sample: &Sample, factor: f64) -> Result<f64> {
        let sequence = sequence(sample, self.params.doc_mask);
        let Some(longce) = self.params.longce else {
            return self.trainer.accumulate(sequence, factor as f32);
        };
        let mut weights = longce.weights(&mut self.trainer, sequence)?;
        self.weighed.count(&weights);
        weights.iter_mut().zip(sequence.weights).for_each(|(w, of_sample)| *w *= of_sample);
        // The trainer divides by the sum of the weights; the loss is divided by the number of targets.
        let sum = |w: &[f32]| w.iter().map(|&w| f64::from(w)).sum::<f64>();
        let scale = sum(&weights) / sum(sequence.weights);
        let loss =
            self.trainer.accumulate(Sequence { weights: &weights, ..sequence }, (factor * scale) as f32)?;
        Ok(loss * scale)
    }

    fn sample(&self, n: u64) -> Result<Sample> {
        let (n_read, offset) = (self.data.n_read() as u64, self.params.data_offset);
        Ok(match self.params.order {
            SampleOrder::Shuffled => self.data.nth(offset / n_read + n)?,
            SampleOrder::Text => self.data.at(offset + n * n_read)?,
        })
    }

    /// The token of the texts after the last one trained on, as [`RunParams::data_offset`] counts them.
    pub fn data_end(&self) -> u64 {
        self.params.data_offset + self.n_seen * self.data.n_read() as u64
    }

    /// Measures the mean loss of the held-out sequences under the values that would be written now.
    fn validate(&mut self, control: &Control<'_>) -> Result<()> {
        let n = self.data.n_held_out();
        if n == 0 {
            return Ok(());
        }
        self.swap_average()?;
        let mean = self.held_out_loss(n);
        self.swap_average()?;
        let step = self.optimizer.step;
        let loss = mean.map_err(|e| during(format!("validation after step {step}"), e))?;
        say(control, self.log.validation(step, loss));
        control.note(format_args!(
            "step {step}: loss {loss:.4} and perplexity {:.3} on {n} held-out sequences",
            loss.exp()
        ));
        Ok(())
    }

    fn held_out_loss(&mut self, n: usize) -> Result<f64> {
        let (mut sum, mut counted) = (0.0, 0);
        for i in 0..n {
            let sample = self.data.held_out(i)?;
            if !is_empty(&sample) {
                sum += self.trainer.loss(sequence(&sample, self.params.doc_mask))?;
                counted += 1;
            }
        }
        if counted == 0 {
            return Err(Error::Invalid("the held-out tokens include none to score: hold out more".into()));
        }
        Ok(sum / f64::from(counted))
    }

    /// Exchanges the trained values and their moving average, if there is one.
    fn swap_average(&mut self) -> Result<()> {
        let params = self.trainer.params_mut();
        if let Some(average) = &mut self.optimizer.average {
            params.list_mut().iter_mut().zip(average).for_each(|(t, a)| std::mem::swap(&mut t.value, a));
            params.upload()?;
        }
        Ok(())
    }

    fn save(&self) -> Result<()> {
        let Some(folder) = &self.params.checkpoints else { return Ok(()) };
        self.write_checkpoint(folder)?;
        checkpoint::prune(folder, self.params.keep_last);
        Ok(())
    }

    fn write_checkpoint(&self, folder: &Path) -> Result<()> {
        let path = checkpoint::path(folder, self.optimizer.step);
        let state = State { step: self.optimizer.step, n_seen: self.n_seen, settings: self.settings.clone() };
        checkpoint::save(&path, &state, self.trainer.params(), &self.optimizer)
    }

    /// Writes the adapter atomically, with the moving average if there is one. Returns its size in bytes.
    ///
    /// # Errors
    /// Returns the errors of [`write_adapter`](super::write_adapter).
    pub fn write_adapter(&self, path: impl Into<Output>) -> Result<u64> {
        write_adapter(path, &self.trainer, self.optimizer.average.as_deref(), self.meta())
    }

    /// Writes the model all of whose parameters were trained, as [`Run::write_adapter`] does an adapter.
    ///
    /// # Errors
    /// Returns the errors of [`write_model`](super::write_model).
    pub fn write_model(&self, path: impl Into<Output>, types: Option<&gguf::File>) -> Result<u64> {
        write_model(path, &self.trainer, self.optimizer.average.as_deref(), types, self.meta())
    }

    fn meta(&self) -> AdapterMeta {
        let order = order_hash(&self.data, self.params.order);
        AdapterMeta {
            steps: Some(self.optimizer.step),
            tokens: Some(self.report().tokens),
            data: self.params.texts.clone(),
            data_end: Some(DataEnd { token: self.data_end(), order }),
            ancestors: self.params.ancestors.clone(),
            ..AdapterMeta::default()
        }
    }
}

fn say(control: &Control<'_>, text: Option<String>) {
    if let Some(text) = text {
        control.note(format_args!("{text}"));
    }
}

/// An error with the place where it happened; an interruption stays one.
fn during(place: String, e: Error) -> Error {
    match e {
        Error::Interrupted => e,
        e => Error::during(place, e),
    }
}

fn sequence(sample: &Sample, doc_mask: bool) -> Sequence<'_> {
    let segment_starts: &[u32] = if doc_mask { &sample.segment_starts } else { &[] };
    Sequence {
        tokens: &sample.tokens,
        weights: &sample.weights,
        segment_starts,
        positions: &sample.positions,
    }
}

/// Returns true if no target of a sample counts: all of them belong to a long question, and only the answer has a loss.
fn is_empty(sample: &Sample) -> bool {
    sample.weights.iter().all(|w| *w == 0.0)
}

/// Refuses data that the trainer or another setting does not go with.
fn check_data(trainer: &Trainer, data: &Dataset, params: &RunParams) -> Result<()> {
    let unsupported = |what: &str| Err(Error::Unsupported(what.into()));
    params.longce.map_or(Ok(()), |longce| longce.check(data.params().n_ctx))?;
    if params.longce.is_some() && trainer.settings().attention.landmarks().is_some() {
        return unsupported("longce: expected texts without landmarks, found landmark attention");
    }
    let Some(transform) = data.transform() else { return Ok(()) };
    if params.doc_mask && transform.mixes() {
        return unsupported("doc-mask: a data method that mixes documents needs attention across them");
    }
    let (target, found) = (transform.n_positions(), trainer.settings().planned_ctx());
    if let Some(target) = target.filter(|n| *n != found) {
        let expected = format!("a plan for a context of {target}");
        return Err(Error::argument("positions", expected, format_args!("one for {found}")));
    }
    if target.is_some() && params.longce.is_some() {
        return unsupported("longce: cannot be combined with PoSE, because both set positions");
    }
    Ok(())
}
