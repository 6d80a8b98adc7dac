//! The command line's options of libllama's quantiser: llama-quantize's, in fewer.

use std::path::PathBuf;

use gguf::DType;

use crate::{types, Error, Mixture, Result};

/// Options of libllama's quantiser.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct QuantizerArgs {
    /// Weigh the columns of matrices by this importance matrix, a file of --imatrix-from or `llama-imatrix`: GGUF, or
    /// the older .dat
    #[arg(long, value_name = "FILE", requires = "dtype", conflicts_with = "random")]
    pub(super) imatrix: Option<PathBuf>,
    /// Weigh them by what the matrices of IN read in this text, under --rope, in windows of --ctx tokens; repeat it for
    /// several texts. The importance matrix stays beside OUT, as NAME.imatrix.gguf; without --type OUT is that itself
    #[arg(long, value_name = "TEXT", conflicts_with = "imatrix")]
    pub(super) imatrix_from: Vec<PathBuf>,
    /// Type of the matrices whose name has a match of a regular expression; repeat it for several, of which the
    /// first that matches counts. output=TYPE and token_embd=TYPE are the output matrix and the embeddings; output=keep
    /// leaves the output matrix as it is
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = override_of, requires = "dtype", conflicts_with = "random")]
    tensor_type: Vec<(String, Option<DType>)>,
    /// The mixture's main type for all matrices
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
                let what = format!("--type {dtype}: libllama's quantiser, which an option asks for, has no mixture of this name; it has {names}");
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
