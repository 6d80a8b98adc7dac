//! One run: texts in, steps, validations and checkpoints, an adapter out.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{anyhow, Context};
use ropewalk::adapter::{self, AdapterFile, Keys, NewPair, NewTensor};
use ropewalk::data::{Built, Corpus, Dataset, DatasetParams, Sample, Sources, TextOptions};
use ropewalk::ids::ParamId;
use ropewalk::model::{Error, Model};
use ropewalk::train::checkpoint::{self, State};
use ropewalk::train::optim::{Decay, OptimParams, Optimizer, Step};
use ropewalk::train::{SavedType, Sequence, TrainParams, Trainer};
use ropewalk::DType;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::super::interrupt::Interrupt;
use super::super::models;
use super::super::options::ModelChoice;
use super::super::output::{self, bytes, count, Unit};
use super::args::Args;
use super::log::Log;

struct Job<'a> {
    args: &'a Args,
    trainer: Trainer<'a>,
    optimizer: Optimizer,
    data: Dataset,
    batch: usize,
    settings: BTreeMap<String, String>,
    log: Log,
    /// Sequences trained on.
    n_seen: u64,
}

pub(super) fn run(
    args: &Args,
    choice: &ModelChoice,
    model: &Model,
    settings: &TrainParams,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut settings = settings.clone();
    if settings.n_ctx == 0 {
        settings.n_ctx = model.hparams().n_ctx_train;
    }
    let (batch, optim, recipe) = args.recipe(settings.n_ctx);
    if let Some(recipe) = recipe {
        args.out.note(recipe);
    }
    // Whatever cannot be is said before texts are tokenised.
    let folder = args.checkpoints();
    if let Some(last) = checkpoint::list(&folder).pop().filter(|_| !args.files.resume) {
        let last = models::name(&last);
        return Err(anyhow!(
            "{}: an earlier run got to {last}: --resume goes on with it; for a new one remove it, or name another --output",
            folder.display()
        ));
    }
    let trainer = Trainer::new(model, &settings)?;
    let optimizer = Optimizer::new(optim, trainer.params())?;
    let data = dataset(args, model, &settings, interrupt)?;
    let cancel = trainer.cancel_flag();
    interrupt.watch_flag(&cancel);
    // SIGTERM is a Ctrl-C here: hours of work are saved.
    signal_hook::flag::register(signal_hook::consts::SIGTERM, cancel).context("cannot listen for SIGTERM")?;
    announce(args, choice, model, &trainer, &data, batch);
    let settings = fixed(args, model, &trainer, &optim, &data, batch)?;
    let start = optim.ema.powf(optim.schedule.steps as f64);
    if optim.ema > 0.0 && start > 0.1 {
        args.out.note(format_args!(
            "note: after {} steps the moving average is {:.0} % of what training starts from: a smaller --ema or more steps",
            optim.schedule.steps,
            100.0 * start
        ));
    }
    let log = Log::new(&args.log());
    let mut job = Job { args, trainer, optimizer, data, batch, settings, log, n_seen: 0 };
    if args.files.resume {
        job.resume()?;
    } else {
        job.log.start(None)?;
    }
    if let Err(e) = job.steps() {
        if !matches!(e.downcast_ref::<Error>(), Some(Error::Interrupted)) {
            return Err(e.context("the checkpoints before are as they were"));
        }
        job.save()?;
        let step = job.optimizer.step;
        return Err(anyhow!("interrupted at step {step}: saved; --resume goes on from there"));
    }
    let report = job.finish(choice, model)?;
    if args.out.json {
        output::print_json(&report)?;
    }
    Ok(())
}

fn dataset(
    args: &Args,
    model: &Model,
    settings: &TrainParams,
    interrupt: &Interrupt,
) -> anyhow::Result<Dataset> {
    let text = &args.text;
    let options = TextOptions { text_field: text.text_field.clone(), replace_invalid: text.replace_invalid };
    let sources = Sources::find(&args.data, &options)?;
    let path = match &text.cache {
        Some(path) => path.clone(),
        None => {
            let name = Corpus::file_name(model.vocab(), &sources, &text.separator)?;
            args.output().parent().unwrap_or(Path::new("")).join(name)
        }
    };
    sources.notes().iter().for_each(|n| args.out.note(format_args!("note: {n}")));
    let mut bar = args.out.progress(sources.n_bytes(), "tokenising", Unit::Bytes);
    let mut watch = |p: ropewalk::data::Progress| {
        bar.set(p.bytes);
        match interrupt.requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let open = || Corpus::open(&path, model.vocab(), &sources, &text.separator, &mut watch);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(settings.n_threads).build()?;
    let corpus = pool.install(open)?;
    drop(bar);
    corpus.notes().iter().for_each(|n| args.out.note(format_args!("note: {n}")));
    if let Built::Again(why) = corpus.built() {
        args.out.note(format_args!("note: {} was made again: {why}", path.display()));
    }
    let params = DatasetParams {
        n_ctx: settings.n_ctx,
        packing: text.packing,
        held_out: text.held_out,
        seed: args.what.seed,
    };
    Ok(Dataset::new(Arc::new(corpus), &params)?)
}

fn announce(args: &Args, choice: &ModelChoice, model: &Model, t: &Trainer<'_>, data: &Dataset, batch: usize) {
    let plan = t.plan();
    let n: usize = t.params().list().iter().map(|p| p.value.len()).sum();
    args.out.note(format_args!(
        "{}: {}, rope {}, context {} of {} trained; {} numbers trained in {} tensors; keeps {:?}",
        models::label(choice),
        model.device(),
        plan.spec,
        count(plan.n_ctx as u64),
        count(plan.n_ctx_orig(model.hparams()) as u64),
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

/// What must not change when a run goes on.
fn fixed(
    args: &Args,
    model: &Model,
    trainer: &Trainer<'_>,
    optim: &OptimParams,
    data: &Dataset,
    batch: usize,
) -> anyhow::Result<BTreeMap<String, String>> {
    let (settings, lora) = (trainer.settings(), &trainer.settings().lora);
    let mut hash = Sha256::new();
    let corpus = data.corpus();
    for d in 0..corpus.n_documents() {
        hash.update(corpus.text_hash(d).to_le_bytes());
    }
    let mut schedule = serde_json::to_value(optim)?;
    if optim.schedule.decay == Decay::Constant {
        // More steps of the same are no other run.
        schedule["schedule"]["steps"] = "any".into();
    }
    let text = |v: &dyn ToString| v.to_string();
    let all = [
        ("model", adapter::fingerprint(model.file())),
        ("rope", trainer.plan().frozen(model.hparams())?.to_string()),
        ("ctx", text(&settings.n_ctx)),
        ("targets", lora.targets.join(",")),
        ("rank", text(&lora.rank)),
        ("alpha", text(&lora.alpha)),
        ("rslora", text(&lora.rslora)),
        ("dropout", text(&lora.dropout)),
        ("norms", text(&lora.norms)),
        ("embeddings", text(&lora.embeddings)),
        ("seed", text(&lora.seed)),
        ("batch", text(&batch)),
        ("block", text(&settings.n_block)),
        ("keep-type", format!("{:?}", settings.saved_type)),
        // As computed or as kept is the same, but for what is rounded.
        (
            "keep",
            match settings.saved_type {
                SavedType::F32 => "any".to_owned(),
                _ => format!("{:?}", trainer.checkpointing()),
            },
        ),
        ("portable", text(&settings.portable)),
        ("optimiser", schedule.to_string()),
        ("tokens", text(&corpus.n_tokens())),
        ("separator", format!("{:?}", args.text.separator)),
        ("data", hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()),
        ("packing", text(&args.text.packing)),
        ("held-out", format!("{:?}", args.text.held_out)),
        ("doc-mask", text(&args.text.doc_mask)),
    ];
    Ok(all.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
}

fn sequence<'s>(sample: &'s Sample, doc_mask: bool) -> Sequence<'s> {
    let segment_starts: &[u32] = if doc_mask { &sample.segment_starts } else { &[] };
    Sequence { tokens: &sample.tokens, weights: &sample.weights, segment_starts }
}

impl Job<'_> {
    fn resume(&mut self) -> anyhow::Result<()> {
        let folder = self.args.checkpoints();
        let newest = checkpoint::list(&folder).pop();
        let path = newest.with_context(|| format!("--resume: {}: no checkpoint there", folder.display()))?;
        let params = self.trainer.params_mut();
        let state = checkpoint::load(&path, &self.settings, params, &mut self.optimizer)?;
        self.n_seen = state.n_seen;
        self.trainer.set_seen(state.n_seen);
        self.log.start(Some(state.step))?;
        self.args.out.note(format_args!("goes on after step {} of {}", state.step, path.display()));
        Ok(())
    }

    fn save(&mut self) -> anyhow::Result<PathBuf> {
        let folder = self.args.checkpoints();
        let path = checkpoint::path(&folder, self.optimizer.step);
        let state = State { step: self.optimizer.step, n_seen: self.n_seen, settings: self.settings.clone() };
        checkpoint::save(&path, &state, self.trainer.params(), &self.optimizer)?;
        checkpoint::prune(&folder, self.args.files.keep_last);
        Ok(path)
    }

    fn steps(&mut self) -> anyhow::Result<()> {
        let n_steps = self.optimizer.params.schedule.steps;
        let eval_every = self.args.files.eval_every.unwrap_or(n_steps.div_ceil(10));
        let due =
            |step: u64| step == 0 || step == n_steps || (eval_every > 0 && step.is_multiple_of(eval_every));
        let mut bar = self.args.out.progress(n_steps, "training", Unit::Steps);
        let tokens = self.batch * self.data.params().n_ctx;
        if due(self.optimizer.step) && !self.log.has_val(self.optimizer.step) {
            self.validate()?;
        }
        while self.optimizer.step < n_steps {
            let started = Instant::now();
            let (loss, step) = self.step()?;
            let rate = tokens as f64 / started.elapsed().as_secs_f64();
            self.log.step(&step, loss, rate, ggml::machine::peak_memory())?;
            if due(step.step) {
                self.validate()?;
            }
            let memory = ggml::machine::peak_memory().map_or(String::new(), |n| format!(", {}", bytes(n)));
            let val = self.log.last_val().map_or(String::new(), |v| format!(", val ppl {:.3}", v.exp()));
            bar.set_message(format!("loss {loss:.4}{val}, {rate:.0} tokens/s{memory}"));
            bar.set(step.step);
            let every = self.args.files.save_every;
            if step.step == n_steps || (every > 0 && step.step.is_multiple_of(every)) {
                self.save()?;
            }
        }
        Ok(())
    }

    /// One step of the optimiser, and the mean loss of its sequences.
    fn step(&mut self) -> anyhow::Result<(f64, Step)> {
        self.trainer.params().zero_grads()?;
        self.trainer.set_seen(self.n_seen);
        let mut loss = 0.0;
        for i in 0..self.batch {
            let sample = self.data.nth(self.n_seen + i as u64)?;
            let one = sequence(&sample, self.args.text.doc_mask);
            let at = self.optimizer.step + 1;
            let failed = |e: Error| match e {
                Error::Interrupted => anyhow!(e),
                e => anyhow!("step {at}: {e}"),
            };
            loss += self.trainer.accumulate(one, 1.0 / self.batch as f32).map_err(failed)?;
        }
        let step = self.optimizer.step(self.trainer.params_mut())?;
        self.n_seen += self.batch as u64;
        Ok((loss / self.batch as f64, step))
    }

    /// Puts the moving average, where one is kept, in the place of what is trained, and the other way round.
    fn swap_average(&mut self) -> anyhow::Result<()> {
        let params = self.trainer.params_mut();
        if let Some(average) = &mut self.optimizer.average {
            params.list_mut().iter_mut().zip(average).for_each(|(t, a)| std::mem::swap(&mut t.value, a));
            params.upload()?;
        }
        Ok(())
    }

    /// The mean loss of what is held out, under what would be written now.
    fn validate(&mut self) -> anyhow::Result<()> {
        let n = self.data.n_held_out();
        if n == 0 {
            return Ok(());
        }
        self.swap_average()?;
        let mut sum = Ok(0.0);
        for i in 0..n {
            let sample = self.data.held_out(i)?;
            let loss = self.trainer.loss(sequence(&sample, self.args.text.doc_mask));
            sum = sum.and_then(|s| Ok(s + loss?));
        }
        self.swap_average()?;
        let sum = sum.map_err(|e: Error| match e {
            Error::Interrupted => anyhow!(e),
            e => anyhow!("validation after step {}: {e}", self.optimizer.step),
        })?;
        self.log.validation(self.optimizer.step, sum / n as f64)?;
        self.args.out.note(format_args!(
            "step {}: loss {:.4} and perplexity {:.3} on {n} held-out sequences",
            self.optimizer.step,
            sum / n as f64,
            (sum / n as f64).exp()
        ));
        Ok(())
    }

    fn finish(&mut self, choice: &ModelChoice, model: &Model) -> anyhow::Result<serde_json::Value> {
        let path = self.args.output();
        let n_bytes = self.write(model, path)?;
        let plot = self.args.plot();
        let chart = self.log.chart(&format!("{}: {}", models::label(choice), self.trainer.plan().spec));
        chart.write(&plot)?;
        self.args.out.note(chart.text(80, 10)?);
        self.args.out.note(format_args!(
            "{} ({}), curve in {}, log in {}; use it with --lora {}",
            path.display(),
            bytes(n_bytes),
            plot.display(),
            self.args.log().display(),
            path.display()
        ));
        let (first, last) = self.log.val_ends();
        Ok(json!({
            "model": models::label(choice),
            "rope": self.trainer.plan().spec.to_string(),
            "adapter": path.display().to_string(),
            "ctx": self.data.params().n_ctx,
            "steps": self.optimizer.step,
            "tokens": self.n_seen * self.data.params().n_ctx as u64,
            "loss": self.log.last_loss(),
            "val_before": first,
            "val_after": last,
            "tokens_per_s": self.log.tokens_per_s(),
            "peak_bytes": ggml::machine::peak_memory(),
        }))
    }

    /// Writes the adapter: the moving average where one is kept.
    fn write(&self, model: &Model, path: &Path) -> anyhow::Result<u64> {
        let list = self.trainer.params().list();
        let values = |i: usize| match &self.optimizer.average {
            Some(average) => average[i].as_slice(),
            None => list[i].value.as_slice(),
        };
        let lora = &self.trainer.settings().lora;
        let (mut pairs, mut whole) = (Vec::new(), Vec::new());
        for (i, t) in list.iter().enumerate() {
            if let ParamId::LoraA(map) = t.id {
                let b = list.iter().position(|t| t.id == ParamId::LoraB(map)).context("half a pair")?;
                let (n_in, n_out) = (t.shape[0], list[b].shape[1]);
                pairs.push(NewPair { weight: map.weight(), n_in, n_out, a: values(i), b: values(b) });
            } else if !t.id.is_lora() {
                let shape = if t.shape[1] == 1 { vec![t.shape[0]] } else { t.shape.to_vec() };
                whole.push(NewTensor { name: t.id.to_string(), shape, values: values(i) });
            }
        }
        let names: Vec<String> = self.args.data.iter().map(|p| models::name(p)).collect();
        let keys = Keys {
            rope: Some(self.trainer.plan().frozen(model.hparams())?),
            n_ctx: Some(self.data.params().n_ctx),
            base: Some(adapter::fingerprint(model.file())),
            steps: Some(self.optimizer.step),
            data: Some(names.join(", ")),
            rslora: lora.rslora,
        };
        let arch = &model.hparams().arch;
        let file = AdapterFile {
            arch,
            rank: lora.rank,
            alpha: lora.alpha as f32,
            pairs,
            whole,
            keys,
            dtype: DType::F32,
        };
        Ok(adapter::write(path, &file)?)
    }
}
