//! Conversions in two steps: all else first, into a temporary file, then the element types, because libllama's quantizer
//! reads a file.

use std::path::{Path, PathBuf};

use files::Scratch;
use gguf::{DType, File};
use ropewalk_core::control::Control;

use crate::job::Pass;
use crate::requantize::{self, TensorError};
use crate::{check_none_is, job, quantizer, Error, Options, Report, Result};

ropewalk_core::setters! {
    /// A mixture of types that libllama's own quantizer writes, and llama-quantize's options for it.
    #[derive(Debug, Clone, Default)]
    pub struct Mixture {
        /// Name of the mixture, such as `q4_k_m`; see [`crate::types::mixtures`].
        pub name: String,
        /// Type of the token embeddings.
        pub token_embedding: Option<DType>,
        /// Type of the output matrix.
        pub output: Option<DType>,
        /// Leaves the output matrix as it is.
        pub leave_output: bool,
        /// The mixture's main type for all tensors.
        pub pure_type: bool,
        /// Types of the matrices whose name has a match of the regular expression; the first that matches counts.
        pub overrides: Vec<(String, DType)>,
        /// An importance matrix in llama.cpp's format.
        pub imatrix: Option<PathBuf>,
    }
}

/// Converts like [`crate::convert`], to this mixture.
pub(crate) fn convert(
    input: &Path,
    output: &Path,
    options: &Options,
    mixture: &Mixture,
    control: &Control<'_>,
) -> Result<Report> {
    check_none_is(output, &mixture.imatrix, "one of the files to read")?;
    job::check_options(options)?;
    let quantizer = quantizer::Quantizer::new(mixture)?;
    let file = File::open(input)?;
    let before = Options { dtype: None, mixture: None, ..options.clone() };
    let changes = options.rope.is_some() || options.llama_cpp || !options.adapters.is_empty();
    // libllama reads neither, or writes files that nobody can read.
    let foreign = file.paths().len() > 1 || file.alignment() != gguf::DEFAULT_ALIGNMENT;
    job::check_output(&file, output, options)?;

    let rewrite = || job::rewrite(input, output, &before, Pass::ToQuantize, control);
    let first = (changes || foreign).then(rewrite).transpose()?;
    let (report, staged) = first.unzip();
    let source = staged.as_ref().map_or(input, Scratch::path);
    let result = Scratch::beside(options.output(output), &gguf::kinds::MODEL)?;
    let named = |e: Error| e.renamed(source, input).renamed(result.path(), output);
    quantizer.run(source, result.path(), control).map_err(named)?;
    let report = report.unwrap_or_else(|| Report::unchanged(&file, output));
    let report = quantized(&file, source, result.path(), report, &quantizer, control).map_err(named)?;
    result.place()?;
    Ok(report)
}

/// Completes the report of what was done before with what the quantizer has written, which is checked on the way.
fn quantized(
    input: &File,
    source: &Path,
    result: &Path,
    mut report: Report,
    quantizer: &quantizer::Quantizer,
    control: &Control<'_>,
) -> Result<Report> {
    let (old, new) = (File::open(source)?, File::open(result)?);
    let (mut done, total) = (0, old.tensors().iter().map(|t| t.n_bytes as u64).sum::<u64>());
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    let mut again = 0;
    let mut merges = std::mem::take(&mut report.merges);
    for t in old.tensors() {
        let written = new.tensor(&t.name).filter(|w| w.n_elements() == t.n_elements());
        let written = written.ok_or_else(|| new.error(&t.name, "was not written correctly"))?;
        *counts.entry(written.dtype.name()).or_default() += 1;
        if written.dtype == t.dtype {
            continue;
        }
        again += usize::from(t.dtype.is_quantized());
        let merged = merges.iter_mut().find(|merged| merged.name == t.name);
        // An output that was the embedding has no tensor in the input.
        let base =
            merged.as_ref().and_then(|_| input.tensor(&t.name).or_else(|| input.tensor(job::TOKEN_EMBD)));
        let sums = requantize::difference(base.map(|t| (input, t)), (&old, t), (&new, written), control);
        let sums = sums.map_err(|e| match control.stopped() {
            true => Error::Interrupted,
            false => Error::from(new.error(&t.name, e.to_string())),
        })?;
        done += t.n_bytes as u64;
        control.report(format_args!("comparing tensors"), done, total);
        if let Some(merged) = merged {
            (merged.dtype, merged.sums) = (written.dtype, sums);
        }
        let n = t.n_elements();
        report.converted.push(TensorError::of(t.name.clone(), t.dtype, written.dtype, n, sums));
    }
    let mut report = report.with_merges(merges);
    let counts: Vec<String> = counts.iter().map(|(t, n)| format!("{n} {t}")).collect();
    report.notes.push(format!("Types of the tensors: {}.", counts.join(", ")));
    if again > 0 {
        report.notes.push(format!("{again} tensors were already quantized: their errors add up."));
    }
    report.notes.extend(quantizer.unmet(&new));
    report.bytes = std::fs::metadata(result).map_err(|e| gguf::Error::io(result, e))?.len();
    report.n_tensors = new.tensors().len();
    report.dtype = Some(quantizer.name());
    Ok(report)
}
