//! The command line's options of libllama's quantizer: llama-quantize's, in fewer.

use std::path::PathBuf;

use gguf::DType;

use crate::{types, Error, Mixture, Result};

/// Options of libllama's quantizer.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct QuantizerArgs {
    /// Importance matrix from --imatrix-from or `llama-imatrix` (GGUF, or the older .dat)
    ///
    /// It weights the columns of the matrices
    #[arg(long, value_name = "FILE", requires = "dtype", conflicts_with = "random")]
    pub(super) imatrix: Option<PathBuf>,
    /// Compute the importance matrix from this text; can be repeated
    ///
    /// The model IN reads the text under --rope, in windows of --ctx tokens. The importance matrix is kept next to
    /// OUT, as NAME.imatrix.gguf. Without --type, OUT is the importance matrix
    #[arg(long, value_name = "TEXT", conflicts_with = "imatrix")]
    pub(super) imatrix_from: Vec<PathBuf>,
    /// Type of the matrices whose name matches a regular expression; can be repeated
    ///
    /// The first match counts. output=TYPE and token_embd=TYPE set the types of the output matrix and the embeddings.
    /// output=keep leaves the output matrix unchanged
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = override_of, requires = "dtype", conflicts_with = "random")]
    tensor_type: Vec<(String, Option<DType>)>,
    /// Use the mixture's main type for all matrices
    #[arg(long, requires = "dtype", conflicts_with = "random", hide_short_help = true)]
    pure: bool,
}

impl QuantizerArgs {
    /// The type that this program writes by itself, or the mixture that libllama is to write.
    pub(super) fn resolve(&self, name: Option<&str>) -> Result<(Option<DType>, Option<Mixture>)> {
        let Some(name) = name else { return Ok((None, None)) };
        let (ours, name) = name.strip_prefix("llama:").map_or((true, name), |name| (false, name));
        let is_weighed = self.imatrix.is_some() || !self.imatrix_from.is_empty();
        let asked = !ours || is_weighed || !self.tensor_type.is_empty() || self.pure;
        let plain = types::parse(name);
        if !asked && plain.is_ok() || !types::is_mixture(name) {
            let dtype = plain?;
            if asked {
                let names = types::mixtures().collect::<Vec<_>>().join(" ");
                let what = format!(
                    "--type {dtype}: libllama's quantizer, which another option requires, has \
                     no mixture of this name; it has {names}"
                );
                return Err(Error::Usage(what));
            }
            return Ok((Some(dtype), None));
        }
        let mut mixture = Mixture {
            name: name.to_owned(),
            pure_type: self.pure,
            imatrix: self.imatrix.clone(),
            ..Mixture::default()
        };
        for (pattern, dtype) in &self.tensor_type {
            match (pattern.as_str(), dtype) {
                ("output", Some(dtype)) => mixture.output = Some(*dtype),
                ("output", None) => mixture.leave_output = true,
                ("token_embd", Some(dtype)) => mixture.token_embedding = Some(*dtype),
                (_, Some(dtype)) => mixture.overrides.push((pattern.clone(), *dtype)),
                (_, None) => {
                    let what =
                        format!("--tensor-type {pattern}=keep: expected a type; only output can be kept");
                    return Err(Error::Usage(what));
                }
            }
        }
        Ok((None, Some(mixture)))
    }
}

/// A pattern and a type, `None` for `keep`.
fn override_of(text: &str) -> std::result::Result<(String, Option<DType>), String> {
    let (pattern, name) = text.rsplit_once('=').ok_or("expected PATTERN=TYPE")?;
    let dtype = match name {
        "keep" => None,
        _ => Some(DType::parse(name).ok_or_else(|| format!("unknown type {name:?}"))?),
    };
    Ok((pattern.to_owned(), dtype))
}
