//! Files of stages: several runs, one after another, in TOML with a `[[stage]]` for each.

use std::path::Path;

use ropewalk_core::terminal::one_line;
use serde::Deserialize;

use super::recipe::{Amount, SCHEDULES, WARMUP_SHAPES};
use super::seen::TrainAttention;
use crate::model::{Error, Result};
use crate::rope::Spec;

/// Bytes of a file of stages, at most.
const MAX_BYTES: u64 = 1 << 20;

/// A stage. What it leaves out is as it is for all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Tokens of a sequence.
    pub ctx: usize,
    /// The spec of the rope method.
    pub rope: Option<String>,
    /// The attention of training.
    pub attention: Option<TrainAttention>,
    /// How long it trains.
    pub length: Amount,
    /// Settings of the optimiser.
    pub optimiser: StageOptimiser,
}

/// The settings of the optimiser that a stage may have of its own, as the options of the same names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StageOptimiser {
    /// Sequences of a step.
    pub batch: Option<usize>,
    /// Learning rate.
    pub lr: Option<f64>,
    /// Learning rate at the last step of a schedule that falls.
    pub lr_min: Option<f64>,
    /// Steps in which the rate rises.
    pub warmup: Option<u64>,
    /// One of [`WARMUP_SHAPES`].
    pub warmup_shape: Option<String>,
    /// One of [`SCHEDULES`].
    pub schedule: Option<String>,
    /// Decay of the mean of gradients.
    pub beta1: Option<f64>,
    /// Decay of the mean of their squares.
    pub beta2: Option<f64>,
    /// Decay of the trained tensors.
    pub weight_decay: Option<f64>,
    /// Gradients are scaled down to this norm.
    pub clip: Option<f64>,
    /// Decay of the moving average of the trained tensors.
    pub ema: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StagesFile {
    stage: Vec<StageFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StageFile {
    ctx: usize,
    rope: Option<String>,
    attention: Option<String>,
    /// Steps of the optimiser, or tokens trained on: one of the two.
    steps: Option<u64>,
    tokens: Option<u64>,
    batch: Option<usize>,
    lr: Option<f64>,
    lr_min: Option<f64>,
    warmup: Option<u64>,
    warmup_shape: Option<String>,
    schedule: Option<String>,
    beta1: Option<f64>,
    beta2: Option<f64>,
    weight_decay: Option<f64>,
    clip: Option<f64>,
    ema: Option<f64>,
}

impl Stage {
    /// The stages of a file, one at least; their contexts do not shrink.
    ///
    /// # Errors
    /// A file that cannot be read or is too large, and whatever in it is no stage, with its line or number.
    pub fn read(path: &Path) -> Result<Vec<Stage>> {
        let bad = |what: String| Error::Invalid(format!("{}: {what}", path.display()));
        let size = std::fs::metadata(path).map_err(|e| bad(e.to_string()))?.len();
        if size > MAX_BYTES {
            return Err(bad(format!("expected at most {MAX_BYTES} bytes, found {size}")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        Stage::parse(&text).map_err(bad)
    }

    fn parse(text: &str) -> Result<Vec<Stage>, String> {
        let file: StagesFile = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(0, |at| text[..at.start.min(text.len())].matches('\n').count() + 1);
            format!("line {line}: {}", one_line(e.message()))
        })?;
        if file.stage.is_empty() {
            return Err("expected at least one [[stage]], found none".into());
        }
        let (mut before, mut stages) = (0, Vec::with_capacity(file.stage.len()));
        for (i, stage) in file.stage.into_iter().enumerate() {
            let at = |what: String| format!("stage {}: {what}", i + 1);
            let (ctx, least) = (stage.ctx, before.max(1));
            if ctx < least {
                let why = if ctx == 0 { "" } else { ", the context before it: stages do not shrink" };
                return Err(at(format!("ctx: expected at least {least}{why}, found {ctx}")));
            }
            before = ctx;
            stages.push(stage.checked().map_err(at)?);
        }
        Ok(stages)
    }
}

impl StageFile {
    fn checked(self) -> Result<Stage, String> {
        if let Some(text) = &self.rope {
            text.parse::<Spec>().map_err(|e| format!("rope '{text}': {e}"))?;
        }
        let attention = self.attention.map(|text| text.parse::<TrainAttention>()).transpose();
        let attention = attention.map_err(|e| e.to_string())?;
        one_of("warmup-shape", self.warmup_shape.as_deref(), &WARMUP_SHAPES)?;
        one_of("schedule", self.schedule.as_deref(), &SCHEDULES)?;
        let length = match (self.steps, self.tokens) {
            (Some(0), _) | (_, Some(0)) => return Err("expected at least one step, found none".into()),
            (Some(n), None) => Amount::Steps(n),
            (None, Some(n)) => Amount::Tokens(n),
            _ => return Err("expected steps or tokens, one of the two".into()),
        };
        let optimiser = StageOptimiser {
            batch: self.batch,
            lr: self.lr,
            lr_min: self.lr_min,
            warmup: self.warmup,
            warmup_shape: self.warmup_shape,
            schedule: self.schedule,
            beta1: self.beta1,
            beta2: self.beta2,
            weight_decay: self.weight_decay,
            clip: self.clip,
            ema: self.ema,
        };
        Ok(Stage { ctx: self.ctx, rope: self.rope, attention, length, optimiser })
    }
}

fn one_of(key: &str, given: Option<&str>, names: &[&str]) -> Result<(), String> {
    match given {
        Some(name) if !names.contains(&name) => {
            Err(format!("{key}: expected one of {}, found {name:?}", names.join(", ")))
        }
        _ => Ok(()),
    }
}
