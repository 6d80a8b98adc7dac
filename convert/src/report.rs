//! Reports of conversions.

use std::collections::BTreeMap;
use std::path::Path;

use gguf::File;
use serde::Serialize;

use crate::llama_cpp;
use crate::merge::{self, MergeError, Merged};
use crate::requantize::{Sums, TensorError};

/// The method that was written.
#[derive(Debug, Clone, Serialize)]
pub struct RopeReport {
    /// The spec with every default filled in.
    pub rope: String,
    /// Tokens it was resolved for.
    pub n_ctx: usize,
    /// The trained window, tokens.
    pub n_ctx_orig: usize,
    /// Factor on rotated q and k.
    pub mscale: f64,
    /// One base per KV head, for methods that have them.
    pub bases: Option<Vec<f64>>,
    /// The standard keys and values that stock llama.cpp reads: none for the model's own frequencies; `None`
    /// when llama.cpp cannot express the method.
    pub llama_cpp: Option<BTreeMap<&'static str, String>>,
    /// Why it cannot.
    #[serde(skip)]
    pub why: Option<String>,
    /// The method as it was asked for.
    #[serde(skip)]
    pub asked: String,
    /// Why the context is that, where none was asked for.
    #[serde(skip)]
    pub ctx_why: Option<String>,
    /// Notes of the report about the derivation of the method.
    #[serde(skip)]
    pub details: Vec<String>,
}

/// Most that [`Report::change_kept`] may differ from 1 before rounding hides the training: half of the step that training
/// took. [`Report::rounding_over_change`] has no such bound, because rounding across the change adds noise but undoes
/// nothing. An example is the adapter of the tutorial, which lowers perplexity from 32.9 to 26.3: rounding is as large as its
/// change in Q4_1 (31.7) and in Q8_0 (26.3), but Q4_1 keeps 0.07 of the change, and Q8_0 all of it.
pub const MAX_LOST: f64 = 0.5;

/// The report of a conversion.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Size of the new file.
    pub bytes: u64,
    /// Tensors in it.
    pub n_tensors: usize,
    /// The rope method written, if one was asked for.
    #[serde(flatten)]
    pub rope: Option<RopeReport>,
    /// The type asked for.
    #[serde(rename = "type")]
    pub dtype: Option<&'static str>,
    /// Tensors whose type changed, in file order.
    pub converted: Vec<TensorError>,
    /// For each type of the tensors that adapters changed, what writing them in it costs.
    pub merged: Vec<MergeError>,
    /// Root mean square of the rounding errors of merged weights, over that of the adapters' change.
    pub rounding_over_change: Option<f64>,
    /// Component of the written change along the adapters' change: 1 if rounding loses nothing, 0 if all. If it differs by
    /// more than [`MAX_LOST`] from 1, most of the training is lost.
    pub change_kept: Option<f64>,
    /// The tensors behind these figures.
    #[serde(skip)]
    pub(crate) merges: Vec<Merged>,
    /// The command that runs the new file in stock llama.cpp.
    pub llama_server: Option<String>,
    /// Why there is none.
    pub no_llama_server: Option<String>,
    /// Facts and warnings, whole sentences.
    pub notes: Vec<String>,
}

impl Report {
    /// Report of a conversion that has changed nothing yet.
    pub(crate) fn unchanged(file: &File, output: &Path) -> Report {
        let has_output = file.tensor(merge::OUTPUT).is_some();
        let (llama_server, no_llama_server) = llama_cpp::serve(file, None, has_output, output);
        Report { n_tensors: file.tensors().len(), llama_server, no_llama_server, ..Report::default() }
    }

    pub(crate) fn with_merges(self, merges: Vec<Merged>) -> Report {
        let sums = merges.iter().fold(Sums::default(), |sums, tensor| sums.plus(tensor.sums));
        Report {
            merged: merge::by_type(&merges),
            rounding_over_change: sums.over_change(),
            change_kept: sums.kept(),
            merges,
            ..self
        }
    }
}
