//! An adapter file's record of its training: the run that wrote it, and those before that it went on from.

use gguf::{File, Result, Value, Writer};
use serde::{Deserialize, Serialize};

use super::refuse;
use crate::hparams::keys;
use crate::rope::Spec;

/// Most runs in a lineage: more is no history of a training that somebody ran.
const MAX_ANCESTORS: usize = 1024;

/// The metadata of an adapter file that tells how it was trained (`ropewalk.lora.*`). Files of other programs
/// have none of these keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AdapterMeta {
    /// The spec it was trained under, every default filled in. One whose base depends on the length of a session
    /// (`dynamic-ntk:trained=N`) is as it was given, so that it goes on doing so.
    pub rope: Option<Spec>,
    /// Context it was trained at, tokens.
    pub n_ctx: Option<usize>,
    /// The attention of training, where that was not the model's own.
    pub attention: Option<String>,
    /// [`fingerprint`](super::fingerprint()) of the model it was trained on.
    pub base: Option<String>,
    /// Optimizer steps.
    pub steps: Option<u64>,
    /// Tokens trained on.
    pub tokens: Option<u64>,
    /// A description of the texts it was trained on.
    pub data: Option<String>,
    /// Where in the texts the run ended.
    pub data_end: Option<DataEnd>,
    /// True if alpha is meant to be divided by the square root of the rank (rsLoRA).
    pub rslora: bool,
    /// The runs that this one went on from, first to last.
    pub ancestors: Vec<Ancestor>,
}

/// A place in the texts of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataEnd {
    /// Tokens of the texts, in their order of training, before it; those of all epochs count.
    pub token: u64,
    /// A hash of the texts and of that order. The place is the same only in another run of equal hash.
    pub order: String,
}

/// A run of training that a later one went on from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ancestor {
    /// SHA-256 of the adapter that it wrote, in hex.
    pub sha256: String,
    /// The rope spec it was trained under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope: Option<String>,
    /// Context of the run, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<usize>,
    /// The attention of training, where that was not the model's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    /// Optimizer steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Tokens trained on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// A description of the texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

impl AdapterMeta {
    /// The lineage of a run that goes on from the adapter with this metadata: its ancestors, and the run that
    /// wrote it. `sha256` is that of its file, in hex.
    pub fn lineage(&self, sha256: String) -> Vec<Ancestor> {
        let run = Ancestor {
            sha256,
            rope: self.rope.as_ref().map(ToString::to_string),
            n_ctx: self.n_ctx,
            attention: self.attention.clone(),
            steps: self.steps,
            tokens: self.tokens,
            data: self.data.clone(),
        };
        self.ancestors.iter().cloned().chain([run]).collect()
    }

    pub(super) fn read(file: &File) -> Result<AdapterMeta> {
        AdapterMeta::named(file, &str::to_owned)
    }

    /// Reads the metadata of a model all of whose parameters were trained (`ropewalk.train.*`); everything is absent in
    /// other models.
    ///
    /// # Errors
    /// A key of another type, a spec or a lineage that cannot be read.
    pub fn of_model(file: &File) -> Result<AdapterMeta> {
        AdapterMeta::named(file, &of_model)
    }

    fn named(file: &File, named: &dyn Fn(&str) -> String) -> Result<AdapterMeta> {
        let text = |key: &str| file.get_opt::<String>(&named(key));
        let number = |key: &str| file.get_opt::<u64>(&named(key));
        let key = named(keys::LORA_ROPE);
        let spec = |text: String| text.parse::<Spec>().map_err(|e| file.error(&key, e.to_string()));
        let (token, order) = (number(keys::LORA_DATA_END)?, text(keys::LORA_DATA_ORDER)?);
        Ok(AdapterMeta {
            rope: text(keys::LORA_ROPE)?.map(spec).transpose()?,
            n_ctx: file.get_opt::<u32>(&named(keys::LORA_N_CTX))?.map(|n| n as usize),
            attention: text(keys::LORA_ATTENTION)?,
            base: text(keys::LORA_BASE)?,
            steps: number(keys::LORA_STEPS)?,
            tokens: number(keys::LORA_TOKENS)?,
            data: text(keys::LORA_DATA)?,
            data_end: token.zip(order).map(|(token, order)| DataEnd { token, order }),
            rslora: file.get_opt(&named(keys::LORA_RSLORA))?.unwrap_or(false),
            ancestors: lineage(file, &named(keys::LORA_LINEAGE))?,
        })
    }

    /// Sets the keys of a model's file, as [`AdapterMeta::of_model`] reads them.
    ///
    /// # Errors
    /// A context that a u32 cannot hold.
    pub fn set_trained(&self, writer: &mut Writer<'_>) -> Result<()> {
        self.set_named(writer, &of_model)
    }

    pub(super) fn set(&self, writer: &mut Writer<'_>) -> Result<()> {
        writer.set(keys::LORA_RSLORA, self.rslora);
        self.set_named(writer, &str::to_owned)
    }

    fn set_named(&self, writer: &mut Writer<'_>, named: &dyn Fn(&str) -> String) -> Result<()> {
        let wrong = gguf::Error::Argument;
        let too_large = |n: usize| wrong(format!("{}: {n} is too large", keys::LORA_N_CTX));
        let n_ctx = self.n_ctx.map(|n| u32::try_from(n).map_err(|_| too_large(n))).transpose()?;
        let runs = Some(&self.ancestors).filter(|runs| !runs.is_empty());
        let lineage = runs.map(serde_json::to_string).transpose().map_err(|e| wrong(e.to_string()))?;
        let text = |text: &Option<String>| text.as_deref().map(Value::from);
        let end = self.data_end.as_ref();
        let values = [
            (keys::LORA_N_CTX, n_ctx.map(Value::U32)),
            (keys::LORA_ROPE, text(&self.rope.as_ref().map(ToString::to_string))),
            (keys::LORA_ATTENTION, text(&self.attention)),
            (keys::LORA_BASE, text(&self.base)),
            (keys::LORA_DATA, text(&self.data)),
            (keys::LORA_DATA_ORDER, end.map(|end| Value::from(end.order.as_str()))),
            (keys::LORA_LINEAGE, text(&lineage)),
            (keys::LORA_STEPS, self.steps.map(Value::U64)),
            (keys::LORA_TOKENS, self.tokens.map(Value::U64)),
            (keys::LORA_DATA_END, end.map(|end| Value::U64(end.token))),
        ];
        for (key, value) in values {
            if let Some(value) = value {
                writer.set(&named(key), value);
            }
        }
        Ok(())
    }
}

/// The key of a model's file for one of an adapter's.
fn of_model(key: &str) -> String {
    key.replacen(".lora.", ".train.", 1)
}

fn lineage(file: &File, key: &str) -> Result<Vec<Ancestor>> {
    let Some(text) = file.get_opt::<String>(key)? else { return Ok(Vec::new()) };
    let list: Vec<Ancestor> =
        serde_json::from_str(&text).map_err(|e| refuse(file, key, "a list of runs in JSON", e))?;
    if list.len() > MAX_ANCESTORS {
        let expected = format!("at most {MAX_ANCESTORS} runs");
        return Err(refuse(file, key, expected, list.len()));
    }
    Ok(list)
}
