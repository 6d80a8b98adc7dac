//! `general.*`: name, size, and how the makers of a model sample from it (`gguf-py/gguf/metadata.py` of
//! llama.cpp).

mod size;

use std::path::Path;

use crate::config::Config;
use crate::json::{Object, SMALL};
use crate::keys::Keys;
use crate::tensor::Tensor;
use crate::Result;
use size::rounded;

/// Sets the keys, but for those of the architecture and the type.
pub(crate) fn write(c: &Config, tensors: &[Tensor], k: &mut Keys) -> Result<()> {
    k.plain("general.type", "model");
    let sampling = Object::read(&c.folder.join("generation_config.json"), SMALL)?;
    if let Some(s) = &sampling {
        // -1 is off to vLLM, where 0 is to others, and the whole context to llama.cpp.
        for (key, of_less) in [("top_k", 0), ("penalty_last_n", -1)] {
            let is_less = s.get(key).and_then(serde_json::Value::as_f64) == Some(-1.0);
            if let Some(n) = if is_less { Some(of_less) } else { s.u32(key)?.map(|n| n as i32) } {
                k.plain(&format!("general.sampling.{key}"), n);
            }
        }
        for (key, name) in [
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("temp", "temperature"),
            ("penalty_repeat", "repetition_penalty"),
            // The last of two names holds.
            ("penalty_repeat", "penalty_repeat"),
            ("xtc_probability", "xtc_probability"),
        ] {
            if let Some(x) = s.f64(name)? {
                k.plain(&format!("general.sampling.{key}"), x as f32);
            }
        }
    }
    let from = c.object.string("_name_or_path")?;
    if let Some(repository) = from.filter(|name| is_repository(name)) {
        k.plain(ropewalk_core::hparams::keys::SOURCE, repository);
    }
    let from = from.filter(|n| !n.is_empty() && n.matches('/').count() <= 1);
    let name = from.and_then(|n| n.rsplit('/').next()).map_or_else(|| folder_name(&c.folder), str::to_owned);
    k.plain("general.name", title(&name).as_str());
    k.plain("general.size_label", size_label(tensors).as_str());
    k.plain("general.quantization_version", 2u32);
    Ok(())
}

/// Returns true if a name is that of a repository of Hugging Face, `ORG/REPO`.
pub fn is_repository(name: &str) -> bool {
    let is_part = |part: &str| {
        let letters = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        letters && part.len() <= 96 && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    name.split_once('/').is_some_and(|(org, repo)| is_part(org) && is_part(repo))
}

fn folder_name(folder: &Path) -> String {
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    real.file_name().map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned())
}

/// `my-model-v2-3b` as `My Model v2 3b`.
fn title(name: &str) -> String {
    let word = |w: &str| {
        let lower = w.chars().any(char::is_lowercase) && !w.chars().any(char::is_uppercase);
        if !lower || is_version(w) {
            return w.to_owned();
        }
        let mut start = true;
        let capital = |c: char| {
            let first = std::mem::replace(&mut start, !c.is_alphabetic());
            if first {
                c.to_uppercase().collect::<String>()
            } else {
                c.to_string()
            }
        };
        w.chars().map(capital).collect()
    };
    name.trim().replace('-', " ").split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

fn is_version(word: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    word.starts_with(|c: char| c.is_ascii_digit())
        || word.strip_prefix('v').is_some_and(|rest| rest.split('.').all(digits))
}

/// The number of parameters, `1.7B`; of a mixture, experts by all that one token may see.
fn size_label(tensors: &[Tensor]) -> String {
    let (mut shared, mut expert, mut sum, mut n) = (0u64, 0u64, 0u64, 0u64);
    for t in tensors {
        let experts = t.shape().get(2).copied().filter(|_| t.name().contains("_exps."));
        match experts {
            Some(e) => {
                (expert, sum, n) = (expert + t.n_elements() / e.max(1), sum + e, n + 1);
            }
            None => shared += t.n_elements(),
        }
    }
    let count = rounded(shared + expert);
    match sum.checked_div(n) {
        Some(experts) => format!("{experts}x{count}"),
        None => count,
    }
}
