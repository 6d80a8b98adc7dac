//! Files of stages: several runs, one after another, in TOML with a `[[stage]]` for each.

use std::collections::BTreeMap;
use std::path::Path;

use ropewalk_core::settings::known_as;
use ropewalk_core::terminal::one_line;
use serde::Deserialize;

use super::recipe::Amount;
use super::seen::TrainAttention;
use super::set::{Group, Settings, KEYS};
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
    /// Optimizer settings of the stage.
    pub settings: Settings,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StagesFile {
    stage: Vec<StageFile>,
}

#[derive(Debug, Deserialize)]
struct StageFile {
    ctx: usize,
    rope: Option<String>,
    attention: Option<String>,
    /// Steps of the optimizer, or tokens trained on: one of the two.
    steps: Option<u64>,
    tokens: Option<u64>,
    #[serde(flatten)]
    settings: BTreeMap<String, toml::Value>,
}

impl Stage {
    /// The stages of a file, at least one; their contexts do not shrink.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is too large, or has an invalid stage; it gives the line or number.
    pub fn read(path: impl AsRef<Path>) -> Result<Vec<Stage>> {
        let path = path.as_ref();
        let text = files::foreign::read_text(path, MAX_BYTES)?;
        Stage::parse(&text).map_err(|what| Error::Invalid(format!("{}: {what}", path.display())))
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
        let length = match (self.steps, self.tokens) {
            (Some(0), _) | (_, Some(0)) => return Err("expected at least one step, found none".into()),
            (Some(n), None) => Amount::Steps(n),
            (None, Some(n)) => Amount::Tokens(n),
            _ => return Err("expected steps or tokens, one of the two".into()),
        };
        let known: Vec<&'static str> =
            KEYS.iter().filter(|key| key.group == Group::Optimiser).map(|key| key.name).collect();
        let mut settings = Settings::default();
        for (key, value) in &self.settings {
            let key = known_as("setting", key, &known)?;
            let text = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Integer(n) => n.to_string(),
                toml::Value::Float(x) => x.to_string(),
                other => {
                    return Err(format!("{key}: expected a number or a text, found {}", other.type_str()));
                }
            };
            settings.put("setting", key, &text)?;
        }
        Ok(Stage { ctx: self.ctx, rope: self.rope, attention, length, settings })
    }
}
