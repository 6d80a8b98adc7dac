//! The settings of training that have a key. One table serves `--set`, files of stages, notes on recipes, and help.

use std::fmt;
use std::path::PathBuf;

use ropewalk_core::settings::{known_as, number, quoted};

use super::init::SampleOrder;
use super::longce::LongCe;
use super::optim::{AdamW, Decay, OptimParams, Schedule, WarmupShape};
use super::saved::{Checkpointing, SavedType};
use crate::data::{HeldOut, Packing, Separator, Upsample};

/// Group of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The optimizer. A stage can override these.
    Optimiser,
    /// Trained parameters.
    Adapter,
    /// The texts, and what is made of them.
    Texts,
    /// How the same is computed, and how often it is looked at.
    Run,
    /// Paths of written files.
    Files,
}

/// A line of the table.
#[derive(Debug)]
pub struct Key {
    /// Name of the setting, as it is typed.
    pub name: &'static str,
    /// Group of the setting.
    pub group: Group,
    /// Default without a recipe, as it is typed; empty if `about` states it.
    pub default: &'static str,
    /// Effect of the setting, in one line.
    pub about: &'static str,
}

macro_rules! settings {
    ($($group:ident { $($field:ident: $type:ty = $name:literal, $default:literal, $about:literal;)* })*) => {
        /// Settings by key. `None` is one that was not given.
        #[derive(Debug, Clone, Default, PartialEq)]
        #[non_exhaustive]
        pub struct Settings {
            $($(#[doc = $about] pub $field: Option<$type>,)*)*
        }

        /// All settings, in the order of help.
        pub static KEYS: &[Key] =
            &[$($(Key { name: $name, group: Group::$group, default: $default, about: $about },)*)*];

        const NAMES: &[&str] = &[$($($name,)*)*];

        impl Settings {
            /// Puts in a value as it is typed. `what` names its place in errors, such as `--set`.
            ///
            /// # Errors
            /// An unknown key, with the nearest; one that is there already; a value that makes no sense.
            pub fn put(&mut self, what: &str, key: &str, text: &str) -> Result<(), String> {
                let key = known_as(what, key, NAMES)?;
                if self.text(key).is_some() {
                    return Err(format!("{what}: {key} is given twice"));
                }
                if AT_LEAST_ONE.contains(&key) && text.parse() == Ok(0u64) {
                    return Err(format!("{what}: {key}: expected at least 1, found 0"));
                }
                match key {
                    $($($name => self.$field = Some(Value::read(what, $name, text)?),)*)*
                    _ => {}
                }
                Ok(())
            }

            /// A value as it is typed, where there is one.
            pub fn text(&self, key: &str) -> Option<String> {
                match key {
                    $($($name => self.$field.as_ref().map(Value::text),)*)*
                    _ => None,
                }
            }

            /// These settings, and `others` where one of these is missing.
            #[must_use]
            pub fn or(self, others: Settings) -> Settings {
                Settings { $($($field: self.$field.or(others.$field),)*)* }
            }
        }
    };
}

settings! {
    Optimiser {
        steps: u64 = "steps", "100", "optimizer steps";
        batch: usize = "batch", "1", "sequences per step";
        lr: f64 = "lr", "2e-4", "peak learning rate";
        lr_min: f64 = "lr-min", "0", "learning rate at the last step of a decaying schedule";
        warmup: u64 = "warmup", "0", "warmup steps";
        warmup_shape: WarmupShape = "warmup-shape", "linear", "warmup shape: linear, or log (DeepSpeed's WarmupLR)";
        schedule: Decay = "schedule", "constant",
            "learning rate schedule: constant, linear, cosine, or cosine-part (a cosine cut off at lr-min)";
        beta1: f64 = "beta1", "0.9", "AdamW beta1";
        beta2: f64 = "beta2", "0.95", "AdamW beta2";
        weight_decay: f64 = "weight-decay", "0", "AdamW weight decay, except for norms and biases";
        clip: f64 = "clip", "1", "maximum gradient norm; 0 disables clipping";
        ema: f64 = "ema", "0", "decay of an exponential moving average of the parameters, which is written instead; 0 disables it";
    }
    Adapter {
        dropout: f32 = "dropout", "0", "LoRA dropout";
        rslora: bool = "rslora", "false", "rank-stabilized LoRA: scale by alpha / sqrt(rank)";
        output_type: OutputType = "output-type", "f32",
            "type of the written matrices if all parameters are trained: f32, or file for the types of the input model";
    }
    Texts {
        held_out: HeldOut = "held-out", "",
            "validation set: a number of sequences, or a share of the text (0.05); 0 for none; default: 4, fewer for short texts";
        packing: Packing = "packing", "pack",
            "pack joins documents and cuts the result, long takes windows of long documents, truncate cuts each document \
             (SBA-RoPE), records makes each a sequence, whole joins uncut documents; default for chats: records";
        separator: Separator = "separator", "auto",
            "document separator: auto, flags, eos, eot, bos, bos+eos, or a token; default under packing=truncate: bos+eos";
        doc_mask: bool = "doc-mask", "false", "mask attention across documents, and the loss at document ends";
        eod_mask_loss: bool = "eod-mask-loss", "false", "mask the loss of the token that ends a document";
        loss: Option<LongCe> = "loss", "ce", "loss: ce, or longce[:short=N,stride=N,gamma=5]; short is at most 4096 and ctx/8, stride at most 1024 and short/4, by default";
        upsample: Upsample = "upsample", "none",
            "upsample long documents: fu or global[:length=4096,keep=0.1], utk[:length=32768,weight=5]";
        data_tokens: u64 = "data-tokens", "", "tokens per epoch under shares or upsample; default: each document once";
        synthetic: f64 = "synthetic", "", "share of synthetic sequences, from the families of Untie the Knots; default: none";
        order: SampleOrder = "order", "shuffled",
            "order of sequences: shuffled, or text for the order of the texts; default with stages: text";
        data_offset: u64 = "data-offset", "", "token of the texts to start at; default: 0, or where the run of the given adapter stopped";
        text_field: String = "text-field", "text", "field of .jsonl lines with the text";
        token_type: TokenType = "token-type", "u16", "type of the token ids in .bin files: u16 or u32";
        replace_invalid: bool = "replace-invalid", "false", "replace invalid UTF-8 instead of refusing it";
    }
    Run {
        checkpointing: Checkpointing = "checkpointing", "",
            "activations to keep per layer: inputs, attention, or products; default: as many as fit on a CPU, inputs on a GPU";
        saved_type: SavedType = "saved-type", "f32", "type of kept activations: f32, f16, or bf16";
        eval_every: u64 = "eval-every", "", "steps between validations; 0 validates only before and after training; default: a tenth of all steps";
        save_every: u64 = "save-every", "50", "steps between checkpoints; 0 writes only the last one";
    }
    Files {
        keep_last: usize = "keep-last", "2", "checkpoints to keep";
        checkpoints: PathBuf = "checkpoints", "", "checkpoint directory; default: NAME.checkpoints for the output NAME.gguf";
        log: PathBuf = "log", "", "log file with one JSON line per step; default: NAME.log.jsonl";
        cache: PathBuf = "cache", "", "token cache file; default: next to the adapter";
    }
}

/// Counts that cannot be 0.
const AT_LEAST_ONE: &[&str] = &["steps", "batch", "data-tokens"];

/// Settings whose value can have nested settings.
const NESTED: &[&str] = &["loss", "upsample"];

impl Settings {
    /// Puts in `key=value,...`. A value with nested settings, as in `upsample=fu:length=300,keep=0.1`, takes
    /// the rest of the text.
    ///
    /// # Errors
    /// A part without `=`, and those of [`Settings::put`].
    pub fn read(&mut self, what: &str, text: &str) -> Result<(), String> {
        let mut left = Some(text);
        while let Some(text) = left {
            let (pair, behind) = text.split_once(',').map_or((text, None), |(pair, rest)| (pair, Some(rest)));
            let Some((key, value)) = pair.split_once('=') else {
                return Err(format!("{what}: expected key=value, found {}", quoted(pair)));
            };
            let nested = NESTED.contains(&key.trim()) && value.contains(':');
            let value = if nested { text.split_once('=').map_or("", |(_, all)| all) } else { value };
            left = behind.filter(|_| !nested);
            self.put(what, key.trim(), value.trim())?;
        }
        Ok(())
    }

    /// The values without a recipe.
    pub fn defaults() -> Settings {
        let mut out = Settings::default();
        for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
            let read = out.put("default", key.name, key.default);
            debug_assert!(read.is_ok(), "{read:?}");
        }
        out
    }

    /// Sequences of a step, and the optimizer. What is missing has its default.
    pub fn optimiser(&self) -> (usize, OptimParams) {
        let all = self.clone().or(Settings::defaults());
        let (own, number) = (AdamW::default(), |x: Option<f64>| x.unwrap_or_default());
        let schedule = Schedule {
            lr: number(all.lr),
            lr_min: number(all.lr_min),
            warmup: all.warmup.unwrap_or_default(),
            warmup_shape: all.warmup_shape.unwrap_or_default(),
            steps: all.steps.unwrap_or_default(),
            decay: all.schedule.unwrap_or(Decay::Constant),
        };
        let adamw = AdamW {
            beta1: number(all.beta1),
            beta2: number(all.beta2),
            weight_decay: number(all.weight_decay),
            ..own
        };
        let optim = OptimParams { adamw, schedule, clip: number(all.clip), ema: number(all.ema) };
        (all.batch.unwrap_or(1), optim)
    }
}

/// The type of the matrices of a model that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputType {
    /// Type of training.
    F32,
    /// Type in the model that is trained.
    File,
}

/// The type of token ids in a file of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Two bytes.
    U16 = 2,
    /// Four bytes.
    U32 = 4,
}

/// A value that can be typed.
trait Value: Sized {
    fn read(what: &str, key: &str, text: &str) -> Result<Self, String>;
    fn text(&self) -> String;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Value for $type {
            fn read(what: &str, key: &str, text: &str) -> Result<Self, String> {
                number(what, key, text)
            }
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
numbers!(u64 usize f32 f64);

/// Types whose errors name the key themselves.
macro_rules! parsed {
    ($($type:ty)*) => {$(
        impl Value for $type {
            fn read(what: &str, _: &str, text: &str) -> Result<Self, String> {
                text.parse().map_err(|e| format!("{what}: {e}"))
            }
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
parsed!(Packing Separator Upsample);

macro_rules! named {
    ($($type:ty: $($name:literal is $value:path),*;)*) => {$(
        impl Value for $type {
            fn read(what: &str, key: &str, text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($value),)*
                    _ => {
                        let names = [$($name),*].join(" or ");
                        Err(format!("{what}: {key}: expected {names}, found {}", quoted(text)))
                    }
                }
            }
            fn text(&self) -> String {
                self.to_string()
            }
        }

        /// Prints the form that options have.
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($value => $name,)*
                })
            }
        }
    )*};
}
named! {
    WarmupShape: "linear" is WarmupShape::Linear, "log" is WarmupShape::Log;
    Decay: "constant" is Decay::Constant, "linear" is Decay::Linear, "cosine" is Decay::Cosine,
        "cosine-part" is Decay::CosinePart;
    SampleOrder: "shuffled" is SampleOrder::Shuffled, "text" is SampleOrder::Text;
    SavedType: "f32" is SavedType::F32, "f16" is SavedType::F16, "bf16" is SavedType::Bf16;
    Checkpointing: "inputs" is Checkpointing::Inputs, "attention" is Checkpointing::Attention,
        "products" is Checkpointing::Products;
    OutputType: "f32" is OutputType::F32, "file" is OutputType::File;
    TokenType: "u16" is TokenType::U16, "u32" is TokenType::U32;
}

impl Value for bool {
    fn read(what: &str, key: &str, text: &str) -> Result<Self, String> {
        let wrong = |_| format!("{what}: {key}: expected true or false, found {}", quoted(text));
        text.parse().map_err(wrong)
    }
    fn text(&self) -> String {
        self.to_string()
    }
}

/// The loss; `None` is that of all tokens alike.
impl Value for Option<LongCe> {
    fn read(what: &str, _: &str, text: &str) -> Result<Self, String> {
        if text == "ce" {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|e| format!("{what}: {e}"))
    }
    fn text(&self) -> String {
        self.map_or("ce".to_owned(), |longce| longce.to_string())
    }
}

impl Value for HeldOut {
    fn read(what: &str, key: &str, text: &str) -> Result<Self, String> {
        match (text.parse::<usize>(), text.parse::<f64>()) {
            (Ok(0), _) => Ok(HeldOut::None),
            (Ok(n), _) => Ok(HeldOut::Samples(n)),
            (_, Ok(f)) if f > 0.0 && f < 1.0 => Ok(HeldOut::Fraction(f)),
            _ => {
                let found = quoted(text);
                Err(format!(
                    "{what}: {key}: expected a share below 1 (0.05) or a number of sequences (4), found {found}"
                ))
            }
        }
    }
    fn text(&self) -> String {
        match self {
            HeldOut::None => "0".to_owned(),
            HeldOut::Samples(n) => n.to_string(),
            HeldOut::Fraction(f) => f.to_string(),
            HeldOut::Tokens(n) => format!("{n} tokens"),
        }
    }
}

impl Value for String {
    fn read(what: &str, key: &str, text: &str) -> Result<Self, String> {
        match text {
            "" => Err(format!("{what}: {key}: expected a value, found none")),
            text => Ok(text.to_owned()),
        }
    }
    fn text(&self) -> String {
        self.clone()
    }
}

impl Value for PathBuf {
    fn read(what: &str, key: &str, text: &str) -> Result<Self, String> {
        String::read(what, key, text).map(PathBuf::from)
    }
    fn text(&self) -> String {
        self.display().to_string()
    }
}
