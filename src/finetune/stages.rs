//! Stages: a job for each, from the settings of all and those of the stage, and their order.

use std::path::PathBuf;

use super::{failed, refused, Job, JobError, Report, Result};
use crate::data::HeldOut;
use crate::model::{Error, Model, ModelParams};
use crate::rope::Spec;
use crate::train::set::OutputType;
use crate::train::{checkpoint, MemoryPlan, SampleOrder, Stage};

impl Job {
    /// Returns a job for each stage, in their order. Each stage but the last writes next to the output, to
    /// `NAME.stage-N.gguf`; [`run_stages`] has each stage start from the output of the stage before it. The validation set
    /// is the same in all stages, that of the largest context. Samples are in the order of the texts, so that no token is in
    /// two stages.
    ///
    /// # Errors
    /// [`JobError::Settings`] for settings that each stage has for itself, and for shuffled
    /// samples.
    pub fn stages(&self, stages: Vec<Stage>) -> Result<Vec<Job>> {
        if self.given.order == Some(SampleOrder::Shuffled) {
            return Err(refused("`order`: stages take samples in the order of the texts; expected text"));
        }
        for key in ["steps", "checkpoints", "log"] {
            if self.given.text(key).is_some() {
                return Err(refused(format!("`{key}`: each stage has its own")));
            }
        }
        let largest = stages.iter().map(|s| s.ctx).max().unwrap_or(0);
        let held_out = match self.given.held_out.unwrap_or(HeldOut::Samples(4)) {
            HeldOut::Samples(n) => {
                HeldOut::Tokens((n as u64).saturating_mul(largest as u64).saturating_add(1))
            }
            other => other,
        };
        let n = stages.len();
        let (mut all, mut rope) = (Vec::with_capacity(n), self.rope.clone());
        for (i, stage) in stages.into_iter().enumerate() {
            let output = match i + 1 {
                last if last == n => self.output.clone(),
                stage => self.next_to(None, &format!(".stage-{stage}.gguf")),
            };
            let mut one = Job { output, rope, ..self.clone() };
            one.given.order = Some(SampleOrder::Text);
            one.given.held_out = Some(held_out);
            one.set_stage(stage)?;
            // A stage continues under the method of the stage before it, unless it has another.
            rope = one.rope.clone();
            if i + 1 < n && one.trains_all() {
                // The next stage goes on from these numbers, not from rounded ones.
                one.given.output_type = Some(OutputType::F32);
            }
            if i > 0 {
                // Read by the first stage, also when the run resumes.
                one.inputs.extend(one.init.take());
            }
            all.push(one);
        }
        Ok(all)
    }

    /// Replaces the job's settings with those of a stage.
    fn set_stage(&mut self, stage: Stage) -> Result<()> {
        self.n_ctx = Some(stage.ctx);
        if let Some(text) = &stage.rope {
            self.rope = Some(text.parse::<Spec>().map_err(Error::Rope)?);
        }
        self.attention = stage.attention.or(self.attention);
        self.given = stage.settings.or(self.given.clone());
        let (batch, _) = self.optimiser(stage.ctx);
        self.given.steps = Some(stage.length.steps(stage.ctx, batch));
        Ok(())
    }
}

/// Runs the jobs of [`Job::stages`] in order. Each stage starts from the adapter or model that the stage before it wrote,
/// at the token of the texts where that stage ended. `one` runs a single job, such as with [`run()`](super::run()).
///
/// # Errors
/// Returns an error before the first stage if the outputs or the memory of any stage are not possible, or if the job
/// resumes and no stage has a checkpoint; then the errors of `one`, and of loading the model that a stage wrote.
pub fn run_stages<E: From<JobError>>(
    stages: Vec<Job>,
    model: &Model,
    mut one: impl FnMut(&Job, &Model) -> Result<Report, E>,
) -> Result<Vec<Report>, E> {
    // Fail before hours of work, not between two stages.
    let earlier = stages.iter().map(|stage| check(stage, model)).collect::<Result<Vec<bool>>>()?;
    let resume = stages.iter().any(|stage| stage.resume);
    if resume && !earlier.contains(&true) {
        let first = stages[0].checkpoints();
        return Err(failed(format!("`resume`: {}: no checkpoint found", first.display())).into());
    }
    if !resume {
        stages.iter().try_for_each(Job::check_no_earlier_run)?;
    }
    let (mut reports, mut before) = (Vec::<Report>::new(), None::<PathBuf>);
    for (mut stage, has_run) in stages.into_iter().zip(earlier) {
        stage.resume = resume && has_run;
        if let Some(report) = reports.last() {
            stage.given.data_offset = Some(report.data_end);
        }
        let report = match before {
            // All parameters: the model that the stage before has written.
            Some(path) if stage.trains_all() => {
                stage.types_of = Some(model.file().path().to_owned());
                let params = ModelParams { device: model.device().into(), ..ModelParams::auto() };
                let made = Model::load(&path, &params).map_err(JobError::from)?;
                one(&stage, &made)?
            }
            from => {
                stage.init = from.or(stage.init);
                one(&stage, model)?
            }
        };
        before = Some(stage.output);
        reports.push(report);
    }
    Ok(reports)
}

/// An error if a stage cannot run; true if it has a checkpoint.
fn check(stage: &Job, model: &Model) -> Result<bool> {
    stage.check_outputs(model.file().path(), false)?;
    let settings = stage.at_context(model, &stage.settings()?)?;
    stage.optimiser(settings.n_ctx).1.check()?;
    MemoryPlan::new(model, &settings)?.check(model)?;
    Ok(!checkpoint::list(&stage.checkpoints()).is_empty())
}
