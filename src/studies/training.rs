//! The training of a recipe, as a fine-tuning job whose files the study names.

use std::path::{Path, PathBuf};

use gguf::Output;

use super::runner::cost;
use crate::control::Control;
use crate::data::Source;
use crate::finetune::{self, Job, JobError, Result};
use crate::model::{Device, Model, ModelParams};
use crate::study::Estimate;
use crate::train::{checkpoint, Checkpointing, LoraParams, MemoryPlan, Settings, TrainParams, Trainable};

/// How many times the operations of a forward pass a step takes: that pass twice, since activations are computed again, and
/// the gradient with twice as many.
const PASSES: f64 = 4.0;

/// The training of a recipe.
#[derive(Debug, Clone)]
pub struct Training {
    /// Settings of the training. The study sets the texts, the output, and whether it resumes.
    pub job: Job,
    /// Device that the model is trained on.
    pub device: Device,
}

impl Training {
    /// Returns all settings that the result depends on, except for the model and the contents of the texts: the same text
    /// for the same training, however its options are written and on whatever machine.
    ///
    /// # Errors
    /// Returns the errors of [`Job::settings`].
    pub fn settings(&self) -> Result<String> {
        let settings = self.job.settings()?;
        let (batch, optimiser) = self.job.optimiser(settings.n_ctx);
        let rope = settings.rope.as_ref().map(ToString::to_string);
        let (settings, texts) = (trainer_in_words(&settings), texts_in_words(&self.job));
        Ok(format!("{rope:?}, {settings}, {batch}, {optimiser:?}, {texts}"))
    }

    /// Estimates what the training takes. The memory is the least that suffices, for what a machine has left decides how many
    /// activations are kept.
    pub(super) fn estimate(&self, model: &Model) -> Result<Estimate> {
        let mut settings = self.job.at_context(model, &self.job.settings()?)?;
        settings.checkpointing = settings.checkpointing.or(Some(Checkpointing::Inputs));
        let (batch, optim) = self.job.optimiser(settings.n_ctx);
        let of_step = (batch as u64).saturating_mul(settings.n_ctx as u64);
        let tokens = optim.schedule.steps.saturating_mul(of_step);
        let (device, host) = MemoryPlan::new(model, &settings)?.totals();
        let bytes = device.saturating_add(host) as u64;
        Ok(Estimate { tokens, bytes, cost: PASSES * cost(model, tokens, settings.n_ctx) })
    }

    /// Trains an adapter to `output`, with checkpoints and log in the same folder, which replace as much. Resumes
    /// from the newest checkpoint there. A link instead of an output file or a checkpoint is an error.
    pub(super) fn run(
        &self,
        model: &Path,
        data: &[PathBuf],
        output: &Output,
        control: &Control<'_>,
    ) -> Result<()> {
        let mut job = Job {
            data: data.iter().cloned().map(Source::from).collect(),
            output: output.path().to_owned(),
            force: output.is_forced(),
            ..self.job.clone()
        };
        let steps = checkpoint::list(&job.checkpoints());
        let outputs = [job.checkpoints(), job.log(), job.plot()];
        if let Some(path) = outputs.iter().chain(&steps).find(|path| path.is_symlink()) {
            let what = "is a symbolic link, expected a file or folder of the study";
            return Err(JobError::Run(format!("{}: {what}", path.display())));
        }
        job.resume = !steps.is_empty();
        let params = ModelParams { device: self.device.clone(), ..ModelParams::auto() };
        let report = finetune::run(&job, &Model::load(model, &params)?, control)?;
        let (problems, output) = (report.run.problems.iter(), output.path().display());
        problems.for_each(|what| control.note(format_args!("{output} is whole, but {what}")));
        Ok(())
    }
}

/// The trainer's settings that change what is learned. Results and adapters of a study are found by a hash of this text, so
/// it stays as the first version wrote it. A new setting is in it only if it does not have its default.
fn trainer_in_words(settings: &TrainParams) -> String {
    let TrainParams {
        n_ctx,
        n_positions,
        attention,
        trainable,
        saved_type,
        math,
        // The text has the spec and the optimizer's decay elsewhere. The others are about the machine.
        rope: _,
        average: _,
        n_block: _,
        n_threads: _,
        checkpointing: _,
        dequantize_bytes: _,
        portable: _,
    } = settings;
    let lora = match trainable {
        Trainable::Lora(LoraParams { targets, rank, alpha, rslora, dropout, norms, embeddings, seed }) => format!(
            "LoraParams {{ targets: {targets:?}, rank: {rank}, alpha: {alpha:?}, rslora: {rslora}, dropout: {dropout:?}, \
             norms: {norms}, embeddings: {embeddings}, all: false, seed: {seed} }}"
        ),
        Trainable::Full => "full".to_owned(),
    };
    format!(
        "TrainParams {{ n_ctx: {n_ctx}, n_positions: {n_positions:?}, rope: None, attention: {attention:?}, lora: {lora}, \
         n_block: 512, n_threads: 0, checkpointing: None, saved_type: {saved_type:?}, dequantize_bytes: 134217728, \
         math: {math:?}, portable: false }}"
    )
}

/// The texts and what is made of them, in words that change with what is learned and with nothing else.
fn texts_in_words(job: &Job) -> String {
    let set = Settings {
        separator: Some(job.separator()),
        // Where and how often the same is looked at.
        checkpointing: None,
        eval_every: None,
        save_every: None,
        ..job.at(0)
    };
    format!("{set:?}, {:?}, {}, {}", job.transform, job.chat, job.answers_only)
}
