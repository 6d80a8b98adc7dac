//! `adapter_config.json`: alphas, targets and what was trained as a whole.

use std::path::Path;

use serde_json::{Map, Value};

use super::patterns::{Patterns, MAX_PATTERNS};
use super::targets::Targets;
use super::{embedding, fields, refuse, shown};
use crate::{Error, Result};

pub(super) const MAX_CONFIG: u64 = 4 << 20;
/// Most names of `modules_to_save`.
const MAX_MODULES: usize = 1024;

pub(super) struct Config {
    path: std::path::PathBuf,
    alpha: f64,
    /// Modules that each of `alphas` applies to.
    patterns: Patterns,
    alphas: Vec<f64>,
    pub(super) rslora: bool,
    modules_to_save: Vec<String>,
    /// Ends of modules' names, each with the tokens whose rows are trained.
    rows: Vec<(String, Vec<u64>)>,
    pub(super) targets: Targets,
    /// True if an output that is the embedding follows a saved embedding.
    pub(super) tied: bool,
    /// The model's repository, `ORG/REPO`.
    pub(super) base: Option<String>,
    /// Facts and warnings, whole sentences.
    pub(super) notes: Vec<String>,
}

impl Config {
    pub(super) fn read(path: &Path) -> Result<Config> {
        let text = files::foreign::read_file(path, MAX_CONFIG)?;
        let json: Value =
            serde_json::from_slice(&text).map_err(|e| Error::Invalid(format!("{}: {e}", path.display())))?;
        let json = json.as_object().ok_or_else(|| {
            Error::Invalid(format!("{}: expected an object, found another value", path.display()))
        })?;
        let bad = |key: &str, expected: &str| {
            let found = json.get(key).map_or("nothing".into(), |v| shown(&v.to_string()));
            refuse(path, key, format!("expected {expected}, found {found}"))
        };
        if json.get("peft_type").and_then(Value::as_str) != Some("LORA") {
            return Err(bad("peft_type", "LORA, the one method that LoRA files have"));
        }
        let mut notes: Vec<String> = fields::check(path, json)?.into_iter().collect();
        fields::check_init(path, json.get("init_lora_weights"))?;
        let number = |v: &Value| v.as_f64().filter(|x| x.is_finite() && *x != 0.0 && x.abs() < 1e30);
        // PEFT's default is 8.
        let alpha = match json.get("lora_alpha") {
            None => 8.0,
            Some(alpha) => number(alpha).ok_or_else(|| bad("lora_alpha", "a number other than 0"))?,
        };
        let object = |key: &str| match json.get(key).filter(|p| !p.is_null()) {
            None => Ok(None),
            Some(value) => value.as_object().map(Some).ok_or_else(|| bad(key, "an object")),
        };
        // Ranks are those of the tensors; their patterns only count.
        let of_ranks = object("rank_pattern")?.map_or(0, Map::len);
        if of_ranks > MAX_PATTERNS {
            let what = format!("expected at most {MAX_PATTERNS} patterns, found {of_ranks}");
            return Err(refuse(path, "rank_pattern", what));
        }
        let (mut patterns, mut alphas) = (Patterns::default(), Vec::new());
        for (pattern, alpha) in object("alpha_pattern")?.into_iter().flatten() {
            patterns.add(pattern).map_err(|[expected, found]| {
                refuse(path, "alpha_pattern", format!("expected {expected}, found {found}"))
            })?;
            alphas.push(number(alpha).ok_or_else(|| bad("alpha_pattern", "numbers other than 0"))?);
        }
        let flag = |key: &str| match json.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(v) => v.as_bool().ok_or_else(|| bad(key, "true or false")),
        };
        let (rslora, tied) = (flag("use_rslora")?, flag("ensure_weight_tying")?);
        let modules_to_save = modules_to_save(path, json)?;
        let wrong = || bad(embedding::ROWS, "a list of tokens, or an object of such lists");
        let rows = rows(json.get(embedding::ROWS)).ok_or_else(wrong)?;
        let targets = Targets::read(path, json, &modules_to_save, &mut notes)?;
        let base = json.get("base_model_name_or_path").and_then(Value::as_str);
        let base = base.filter(|name| super::is_repository(name)).map(str::to_owned);
        let path = path.to_owned();
        Ok(Config {
            path,
            alpha,
            patterns,
            alphas,
            rslora,
            modules_to_save,
            rows,
            targets,
            tied,
            base,
            notes,
        })
    }

    /// Returns true if a module was trained in full. PEFT matches the end of its name.
    pub(super) fn saves(&self, module: &str) -> bool {
        self.modules_to_save.iter().any(|end| module.ends_with(end.as_str()))
    }

    /// The tokens whose rows of a module are trained, of `n`.
    pub(super) fn rows(&self, module: &str, n: u64) -> Result<Vec<usize>> {
        let found = self.rows.iter().find(|(end, _)| module.ends_with(end.as_str()));
        let bad = |what: String| refuse(&self.path, embedding::ROWS, what);
        let (_, indices) =
            found.ok_or_else(|| bad(format!("expected the tokens of {module}, found none")))?;
        embedding::check(indices, n).map_err(bad)
    }

    /// The factor of a pair's product.
    pub(super) fn scale(&self, module: &str, rank: usize) -> f64 {
        let alpha = self.patterns.find(module).map_or(self.alpha, |i| self.alphas[i]);
        let rank = rank.max(1) as f64;
        alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// The one alpha of the LoRA file, whose readers divide it by each pair's rank: that of the first pair, a module with
    /// its rank.
    pub(super) fn common_alpha(&self, first: Option<&(String, usize)>) -> Result<f32> {
        let alpha =
            first.map_or(self.alpha, |(module, rank)| self.scale(module, *rank) * *rank as f64) as f32;
        let what = || format!("expected a factor that f32 holds, found {alpha}");
        let is_factor = alpha.is_finite() && alpha != 0.0;
        is_factor.then_some(alpha).ok_or_else(|| refuse(&self.path, "lora_alpha", what()))
    }

    /// The factor for a B, so that the file's alpha is right for its pair.
    pub(super) fn factor(&self, pair: Option<&(String, usize)>, alpha: f32) -> Result<f32> {
        let Some((module, rank)) = pair else { return Ok(1.0) };
        let (wanted, is) = (self.scale(module, *rank), f64::from(alpha) / (*rank).max(1) as f64);
        // Exactly 1 where it is the same but for rounding alpha.
        let factor = if (wanted / is - 1.0).abs() < 1e-6 { 1.0 } else { (wanted / is) as f32 };
        let bad = || refuse(&self.path, "alpha_pattern", format!("{module}: a factor of {factor}"));
        factor.is_finite().then_some(factor).ok_or_else(bad)
    }
}

/// `trainable_token_indices`: a list is of the embedding, whatever the architecture calls it.
fn rows(value: Option<&Value>) -> Option<Vec<(String, Vec<u64>)>> {
    let list = |v: &Value| v.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
    match value {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Object(of)) => of.iter().map(|(end, v)| Some((end.clone(), list(v)?))).collect(),
        Some(of_embedding) => {
            let tokens = list(of_embedding)?;
            Some(["embed_tokens", "embed_in"].map(|end| (end.to_owned(), tokens.clone())).into())
        }
    }
}

fn modules_to_save(path: &Path, json: &Map<String, Value>) -> Result<Vec<String>> {
    let key = "modules_to_save";
    let list = json.get(key).filter(|m| !m.is_null());
    let list: Vec<String> =
        list.map_or(Ok(Vec::new()), |m| serde_json::from_value(m.clone())).map_err(|_| {
            refuse(path, key, format!("expected a list of names, found {}", shown(&json[key].to_string())))
        })?;
    if list.len() > MAX_MODULES {
        return Err(refuse(path, key, format!("expected at most {MAX_MODULES} names, found {}", list.len())));
    }
    Ok(list)
}
