//! AdamW, learning-rate schedules, clipping, and a moving average of the trained tensors. All of it runs on
//! the host: these tensors are small.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::params::ParamSet;
use crate::model::{Error, Result};

ropewalk_core::setters! {
    /// AdamW (arXiv 1711.05101) as PyTorch computes it.
    #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
    pub struct AdamW {
        /// Decay of the mean of gradients.
        pub beta1: f64,
        /// Decay of the mean of squared gradients.
        pub beta2: f64,
        /// Added to the root of the latter.
        pub eps: f64,
        /// Decay of the weights, times the learning rate. [`Optimizer`] leaves norms and biases alone
        /// ([`ParamId::decays`](crate::ids::ParamId::decays)), as Hugging Face's trainer and Megatron do.
        pub weight_decay: f64,
    }
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 }
    }
}

/// Means of one tensor's gradients.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moments {
    /// Mean of the gradient.
    pub m: Vec<f32>,
    /// Mean of its square.
    pub v: Vec<f32>,
}

impl Moments {
    /// All zero.
    pub fn new(n: usize) -> Moments {
        Moments { m: vec![0.0; n], v: vec![0.0; n] }
    }
}

impl AdamW {
    /// One step (the first is 1) of one tensor, its gradient times `factor`.
    pub fn step(
        &self,
        step: u64,
        lr: f64,
        factor: f64,
        value: &mut [f32],
        grad: &[f32],
        state: &mut Moments,
    ) {
        let t = step.max(1) as f64;
        let (c1, c2) = (1.0 - self.beta1.powf(t), (1.0 - self.beta2.powf(t)).sqrt());
        let decay = 1.0 - lr * self.weight_decay;
        let all = value.par_iter_mut().zip(grad).zip(state.m.par_iter_mut().zip(&mut state.v));
        all.for_each(|((p, &g), (m, v))| {
            let g = f64::from(g) * factor;
            let m64 = self.beta1 * f64::from(*m) + (1.0 - self.beta1) * g;
            let v64 = self.beta2 * f64::from(*v) + (1.0 - self.beta2) * g * g;
            (*m, *v) = (m64 as f32, v64 as f32);
            *p = (f64::from(*p) * decay - lr / c1 * m64 / (v64.sqrt() / c2 + self.eps)) as f32;
        });
    }
}

/// The course of the learning rate in the steps of warm-up, as a share of the highest rate, for a step k from
/// 0 and a warm-up of w steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmupShape {
    /// k / w, as in Hugging Face's schedules.
    #[default]
    Linear,
    /// ln(k + 1) / ln(w), as in DeepSpeed's `WarmupLR` and `WarmupDecayLR`.
    Log,
}

impl WarmupShape {
    fn is_linear(&self) -> bool {
        *self == WarmupShape::Linear
    }
}

/// The course of the learning rate after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// It stays the highest rate.
    Constant,
    /// It falls in a straight line to `lr_min` at the last step.
    Linear,
    /// It falls along half a cosine to `lr_min` at the last step.
    Cosine,
    /// It falls along a cosine whose half ends at 0, only so far that it is `lr_min` at the last step: Hugging Face's
    /// `get_cosine_schedule_with_warmup` with `num_cycles` below 0.5.
    #[serde(rename = "cosine-part")]
    CosinePart,
}

ropewalk_core::setters! {
    /// Learning rate by step.
    #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
    pub struct Schedule {
        /// The highest rate.
        pub lr: f64,
        /// The rate at the last step, for schedules that fall.
        pub lr_min: f64,
        /// Steps in which the rate rises from 0.
        pub warmup: u64,
        /// How it rises in them. Left out of checkpoints where it is linear, as it is in those that do not name it.
        #[serde(default, skip_serializing_if = "WarmupShape::is_linear")]
        pub warmup_shape: WarmupShape,
        /// Steps in all.
        pub steps: u64,
        /// The rate after the warm-up.
        pub decay: Decay,
    }
}

impl Schedule {
    /// The same rate at each of `steps` steps.
    pub fn constant(lr: f64, steps: u64) -> Schedule {
        Schedule {
            lr,
            lr_min: 0.0,
            warmup: 0,
            warmup_shape: WarmupShape::Linear,
            steps,
            decay: Decay::Constant,
        }
    }

    /// The rate of a step, the first being 0. The first step of a warm-up has rate 0, as in Hugging Face's
    /// and DeepSpeed's schedules.
    pub fn lr_at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return match self.warmup_shape {
                WarmupShape::Linear => self.lr * step as f64 / self.warmup as f64,
                // DeepSpeed counts a warm-up of one step as two.
                WarmupShape::Log => self.lr * (step as f64 + 1.0).ln() / (self.warmup.max(2) as f64).ln(),
            };
        }
        let left = self.steps.saturating_sub(self.warmup).max(1) as f64;
        let done = ((step - self.warmup) as f64 / left).min(1.0);
        let share = match self.decay {
            Decay::Constant => return self.lr,
            Decay::Linear => 1.0 - done,
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
            Decay::CosinePart if self.lr == 0.0 => return 0.0,
            Decay::CosinePart => {
                // The angle at which the cosine is at the last rate.
                let end = (2.0 * self.lr_min / self.lr - 1.0).clamp(-1.0, 1.0).acos();
                return self.lr * 0.5 * (1.0 + (end * done).cos());
            }
        };
        self.lr_min + (self.lr - self.lr_min) * share
    }

    /// Checks that the numbers can be a schedule.
    ///
    /// # Errors
    /// A number out of range, which is named.
    pub fn check(&self) -> Result<()> {
        for (name, value) in [("lr", self.lr), ("lr-min", self.lr_min)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(Error::argument(name, "a number of at least 0", value));
            }
        }
        if self.warmup > self.steps {
            let expected = format!("at most the {} steps", self.steps);
            return Err(Error::argument("warmup", expected, self.warmup));
        }
        if self.lr_min > self.lr {
            return Err(Error::argument("lr-min", format_args!("at most lr = {}", self.lr), self.lr_min));
        }
        Ok(())
    }
}

/// The norm of all gradients together.
pub fn global_norm(grads: &[Vec<f32>]) -> f64 {
    let square = |g: &Vec<f32>| g.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    grads.iter().map(square).sum::<f64>().sqrt()
}

/// The factor on gradients under which their norm is at most `max` (0: no limit), as PyTorch's
/// `clip_grad_norm_` does.
pub fn clip_factor(norm: f64, max: f64) -> f64 {
    if max > 0.0 {
        (max / (norm + 1e-6)).min(1.0)
    } else {
        1.0
    }
}

/// `average = decay * average + (1 - decay) * value`.
pub fn average(decay: f64, average: &mut [f32], value: &[f32]) {
    let mix = |a: f32, v: f32| (decay * f64::from(a) + (1.0 - decay) * f64::from(v)) as f32;
    average.par_iter_mut().zip(value).for_each(|(a, v)| *a = mix(*a, *v));
}

ropewalk_core::setters! {
    /// Settings of the optimizer.
    #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
    pub struct OptimParams {
        /// The rule.
        pub adamw: AdamW,
        /// Learning rate schedule.
        pub schedule: Schedule,
        /// Gradients are scaled down to this norm, all together; 0: never.
        pub clip: f64,
        /// Decay of the moving average of the trained tensors; 0: none is kept.
        pub ema: f64,
    }
}

impl OptimParams {
    /// AdamW's defaults with this schedule; gradients are clipped to a norm of 1, and no moving average is kept.
    pub fn new(schedule: Schedule) -> OptimParams {
        OptimParams { adamw: AdamW::default(), schedule, clip: 1.0, ema: 0.0 }
    }

    /// Checks the ranges of all settings.
    ///
    /// # Errors
    /// A setting out of range, which is named.
    pub fn check(&self) -> Result<()> {
        self.schedule.check()?;
        let AdamW { beta1, beta2, eps, weight_decay } = self.adamw;
        let below_one = |x: f64| (0.0..1.0).contains(&x);
        for (name, value, ok) in [
            ("beta1", beta1, below_one(beta1)),
            ("beta2", beta2, below_one(beta2)),
            ("ema", self.ema, below_one(self.ema)),
            ("eps", eps, eps.is_finite() && eps > 0.0),
            ("weight-decay", weight_decay, weight_decay.is_finite() && weight_decay >= 0.0),
            ("clip", self.clip, self.clip.is_finite() && self.clip >= 0.0),
        ] {
            if !ok {
                return Err(Error::Invalid(format!("{name}: {value} is out of range")));
            }
        }
        Ok(())
    }
}

/// The figures of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepReport {
    /// Steps so far, this one included.
    pub step: u64,
    /// Learning rate of the step.
    pub lr: f64,
    /// The norm of all gradients together, before clipping.
    pub grad_norm: f64,
}

/// An optimizer's state.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    /// Settings of the optimizer.
    pub params: OptimParams,
    /// Steps so far.
    pub step: u64,
    /// Means of gradients, in the order of [`ParamSet::list`].
    pub moments: Vec<Moments>,
    /// The moving average of the trained values, in the order of [`ParamSet::list`], if there is one.
    pub average: Option<Vec<Vec<f32>>>,
}

impl Optimizer {
    /// An optimizer before its first step.
    ///
    /// # Errors
    /// Returns the errors of [`OptimParams::check`].
    pub fn new(params: OptimParams, trained: &ParamSet) -> Result<Optimizer> {
        params.check()?;
        let moments = trained.list().iter().map(|t| Moments::new(t.value.len())).collect();
        let average = (params.ema > 0.0).then(|| trained.list().iter().map(|t| t.value.clone()).collect());
        Ok(Optimizer { params, step: 0, moments, average })
    }

    /// Takes the gradients summed so far, changes the trained tensors by them, and sets them to zero.
    ///
    /// # Errors
    /// A gradient that is not finite: its tensor is named, and nothing has moved. A value that is not finite
    /// after the step: all is to be taken from the last checkpoint.
    pub fn step(&mut self, trained: &mut ParamSet) -> Result<StepReport> {
        let grads = trained.grads()?;
        let grad_norm = global_norm(&grads);
        if !grad_norm.is_finite() {
            let bad = trained.list().iter().zip(&grads).find(|(_, g)| g.iter().any(|x| !x.is_finite()));
            let name = bad.map_or("all together".into(), |(t, _)| t.id.to_string());
            let step = self.step + 1;
            return Err(Error::Invalid(format!("step {step}: the gradient of {name} is not finite")));
        }
        let OptimParams { adamw, schedule, clip, ema } = self.params;
        let (lr, factor) = (schedule.lr_at(self.step), clip_factor(grad_norm, clip));
        self.step += 1;
        for ((t, grad), state) in trained.list_mut().iter_mut().zip(&grads).zip(&mut self.moments) {
            let rule = if t.id.decays() { adamw } else { AdamW { weight_decay: 0.0, ..adamw } };
            rule.step(self.step, lr, factor, &mut t.value, grad, state);
        }
        for (mean, t) in self.average.iter_mut().flatten().zip(trained.list()) {
            average(ema, mean, &t.value);
        }
        if let Some(t) = trained.list().iter().find(|t| t.value.iter().any(|x| !x.is_finite())) {
            let what = format!("step {}: {} is not finite after it: the rate is too high", self.step, t.id);
            return Err(Error::Invalid(what));
        }
        trained.upload()?;
        trained.zero_grads()?;
        Ok(StepReport { step: self.step, lr, grad_norm })
    }
}
