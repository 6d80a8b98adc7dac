//! Arguments that several functions share, and results as Python objects.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ropewalk::adapter::AdapterSpec;
use ropewalk::math::Math;
use ropewalk::{DType, SessionParams, Spec, Token};
use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::error::{argument, mistake, raised, RopewalkError};

/// A text or several.
#[derive(FromPyObject)]
pub(crate) enum Texts {
    One(String),
    More(Vec<String>),
}

impl Texts {
    pub(crate) fn list(self) -> Vec<String> {
        match self {
            Texts::One(text) => vec![text],
            Texts::More(texts) => texts,
        }
    }
}

/// A path or several.
#[derive(FromPyObject)]
pub(crate) enum Paths {
    One(PathBuf),
    More(Vec<PathBuf>),
}

impl Paths {
    pub(crate) fn list(self) -> Vec<PathBuf> {
        match self {
            Paths::One(path) => vec![path],
            Paths::More(paths) => paths,
        }
    }
}

/// A length in tokens or several.
#[derive(FromPyObject)]
pub(crate) enum Lengths {
    One(usize),
    More(Vec<usize>),
}

impl Lengths {
    pub(crate) fn list(self) -> Vec<usize> {
        match self {
            Lengths::One(length) => vec![length],
            Lengths::More(lengths) => lengths,
        }
    }
}

/// A text, or its tokens.
#[derive(FromPyObject)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<Token>),
}

impl Prompt {
    pub(crate) fn tokens(self, py: Python<'_>, model: &ropewalk::Model) -> PyResult<Vec<Token>> {
        match self {
            Prompt::Text(text) => py.detach(|| model.vocab().tokenize(&text, true, false)).map_err(raised),
            Prompt::Tokens(tokens) => Ok(tokens),
        }
    }
}

/// Adapters, each as `FILE`, `FILE:SCALE`, or `FILE:force`.
pub(crate) fn adapters(paths: Option<Paths>) -> PyResult<Vec<AdapterSpec>> {
    let paths = paths.map_or_else(Vec::new, Paths::list);
    paths.iter().map(|path| path.to_string_lossy().parse::<AdapterSpec>().map_err(mistake)).collect()
}

/// A RoPE method.
pub(crate) fn spec(text: Option<&str>) -> PyResult<Option<Spec>> {
    text.map(|text| text.parse::<Spec>().map_err(raised)).transpose()
}

/// RoPE methods to compare: the one that the file declares if none is given.
pub(crate) fn specs(texts: Option<Texts>) -> PyResult<Vec<Option<Spec>>> {
    let texts = texts.map_or_else(Vec::new, Texts::list);
    if texts.is_empty() {
        return Ok(vec![None]);
    }
    texts.iter().map(|text| spec(Some(text))).collect()
}

/// Settings of sessions.
pub(crate) fn session(n_ctx: usize, kv: &str, n_threads: usize, math: &str) -> PyResult<SessionParams> {
    let kv_type = DType::parse(kv).ok_or_else(|| argument("kv", "f32, f16, q8_0 or q4_0", kv))?;
    let math = math.parse::<Math>().map_err(mistake)?;
    Ok(SessionParams::new(n_ctx).kv_type(kv_type).n_threads(n_threads).math(math))
}

/// Settings by key. Numbers and booleans are read as they are typed on the command line.
pub(crate) fn settings(given: Option<&Bound<'_, PyDict>>) -> PyResult<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    for (key, value) in given.into_iter().flatten() {
        let text = match value.extract::<bool>() {
            Ok(value) => value.to_string(),
            Err(_) => value.str()?.extract::<String>()?,
        };
        out.insert(key.extract::<String>()?, text);
    }
    Ok(out)
}

/// A report as dicts and lists.
pub(crate) fn object<'py>(py: Python<'py>, report: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(report).map_err(|e| RopewalkError::new_err(e.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}

/// Dicts and lists as the library has them. `name` is the argument.
pub(crate) fn value<T: DeserializeOwned>(name: &str, object: &Bound<'_, PyAny>) -> PyResult<T> {
    let text = object.py().import("json")?.call_method1("dumps", (object,))?.extract::<String>()?;
    serde_json::from_str(&text).map_err(|e| mistake(format!("{name}: {e}")))
}
