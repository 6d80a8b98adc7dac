//! The command line's options of libllama's quantiser.

use std::path::PathBuf;

use gguf::DType;

use crate::{types, Error, Mixture, Result};

/// Options of libllama's quantiser, named as llama-quantize names them.
#[derive(Debug, clap::Args)]
pub(super) struct QuantizerArgs {
    /// Let libllama's quantiser choose types where --type names one that both know: q4_0 q4_1 q5_0 q5_1 q8_0 q2_k
    /// q6_k. Other options of it imply this one
    #[arg(long, requires = "dtype", conflicts_with = "random")]
    llama_quantize: bool,
    /// Weigh the columns of matrices by this importance matrix, a file of `llama-imatrix`: GGUF, or the older .dat
    #[arg(long, value_name = "FILE", requires = "dtype", conflicts_with = "random")]
    imatrix: Option<PathBuf>,
    /// Type of the matrices whose name has a match of a regular expression; repeat it for several, of which the
    /// first that matches counts
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = override_of, requires = "dtype", conflicts_with = "random")]
    tensor_type: Vec<(String, DType)>,
    /// Type of the token embeddings
    #[arg(long, value_name = "TYPE", value_parser = any_type, requires = "dtype", conflicts_with = "random")]
    token_embedding_type: Option<DType>,
    /// Type of the output matrix
    #[arg(long, value_name = "TYPE", value_parser = any_type, requires = "dtype", conflicts_with = "random")]
    output_tensor_type: Option<DType>,
    /// Leave the output matrix as it is
    #[arg(long, requires = "dtype", conflicts_with = "random")]
    leave_output_tensor: bool,
    /// The mixture's main type for all matrices
    #[arg(long, requires = "dtype", conflicts_with = "random")]
    pure: bool,
}

impl QuantizerArgs {
    /// The type that this program writes by itself, or the mixture that libllama is to write.
    pub(super) fn resolve(&self, name: &str) -> Result<(Option<DType>, Option<Mixture>)> {
        let asked = self.llama_quantize
            || self.imatrix.is_some()
            || !self.tensor_type.is_empty()
            || self.token_embedding_type.is_some()
            || self.output_tensor_type.is_some()
            || self.leave_output_tensor
            || self.pure;
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
        let mixture = Mixture {
            name: name.to_owned(),
            token_embedding: self.token_embedding_type,
            output: self.output_tensor_type,
            leave_output: self.leave_output_tensor,
            pure_type: self.pure,
            overrides: self.tensor_type.clone(),
            imatrix: self.imatrix.clone(),
        };
        Ok((None, Some(mixture)))
    }
}

fn any_type(name: &str) -> std::result::Result<DType, String> {
    DType::parse(name).ok_or_else(|| format!("unknown type {name:?}"))
}

fn override_of(text: &str) -> std::result::Result<(String, DType), String> {
    let (pattern, dtype) = text.rsplit_once('=').ok_or("expected PATTERN=TYPE")?;
    Ok((pattern.to_owned(), any_type(dtype)?))
}
