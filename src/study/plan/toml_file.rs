//! The plan as it is written: TOML.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

/// A list whose place in the file is known.
pub(super) type List<T> = Option<Spanned<Vec<T>>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanFile {
    pub(super) title: Spanned<String>,
    pub(super) models: Spanned<Vec<ModelFile>>,
    pub(super) methods: Spanned<Vec<MethodFile>>,
    pub(super) tasks: Spanned<Vec<TaskFile>>,
    pub(super) lengths: List<Spanned<u64>>,
    pub(super) samples: Option<Spanned<u64>>,
    pub(super) seeds: List<u64>,
    #[serde(default)]
    pub(super) texts: Vec<String>,
    pub(super) data: Option<String>,
    pub(super) template: Option<super::Template>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with `name` and `path`")]
pub(super) struct ModelFile {
    pub(super) name: Spanned<String>,
    pub(super) path: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with `name` and `spec`")]
pub(super) struct MethodFile {
    pub(super) name: Spanned<String>,
    pub(super) spec: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) adapters: Vec<String>,
    pub(super) models: List<Spanned<String>>,
    pub(super) train: Option<Spanned<RecipeFile>>,
    pub(super) kind: Option<super::Attention>,
    pub(super) trained: Option<super::Trained>,
    pub(super) tokens: Option<u64>,
    pub(super) parameters: Option<super::Parameters>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecipeFile {
    #[serde(default)]
    pub(super) args: Vec<String>,
    pub(super) data: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskFile {
    pub(super) name: Spanned<String>,
    pub(super) label: Option<Spanned<String>>,
    pub(super) lengths: List<Spanned<u64>>,
    pub(super) samples: Option<Spanned<u64>>,
    pub(super) seeds: List<u64>,
    pub(super) ctx: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) options: BTreeMap<String, Setting>,
    pub(super) template: Option<super::Template>,
    pub(super) protocol: Option<Spanned<String>>,
    pub(super) stride: Option<Spanned<u64>>,
    pub(super) max_windows: Option<Spanned<u64>>,
    pub(super) texts: Option<Spanned<Vec<String>>>,
}

/// A value as it would be typed after `--set NAME=`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected text, a number, true or false")]
pub(super) enum Setting {
    Bool(bool),
    Whole(i64),
    Number(f64),
    Text(String),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Setting::Bool(x) => x.fmt(f),
            Setting::Whole(x) => x.fmt(f),
            Setting::Number(x) => x.fmt(f),
            Setting::Text(x) => x.fmt(f),
        }
    }
}
