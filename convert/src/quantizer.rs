//! libllama's quantizer as conversions use it.

use std::path::Path;

use gguf::{DType, File};
use llama::quantize::{self, Imatrix, QuantizeParams};
use regex::Regex;
use ropewalk_core::control::Control;

use crate::staged::Mixture;
use crate::{Error, Result};

/// A [`Mixture`] that was checked.
pub(crate) struct Quantizer {
    params: QuantizeParams,
}

impl Quantizer {
    pub(crate) fn new(given: &Mixture) -> Result<Quantizer> {
        let mixture = quantize::Mixture::named(&given.name)
            .ok_or_else(|| Error::Usage(format!("{} is not a mixture to convert to", given.name)))?;
        let regex = |(pattern, dtype): &(String, DType)| match Regex::new(pattern) {
            Ok(regex) => Ok((regex, *dtype)),
            Err(e) => {
                let why = e.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
                Err(Error::Argument(format!("tensor-type {pattern}: {why}")))
            }
        };
        let params = QuantizeParams {
            token_embedding: given.token_embedding,
            output: given.output,
            leave_output: given.leave_output,
            pure_type: given.pure_type,
            overrides: given.overrides.iter().map(regex).collect::<Result<_>>()?,
            imatrix: given.imatrix.as_deref().map(Imatrix::open).transpose()?,
            ..QuantizeParams::new(mixture)
        };
        Ok(Quantizer { params })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.params.mixture.name
    }

    /// Writes `input` to `output`, in place.
    pub(crate) fn run(&self, input: &Path, output: &Path, control: &Control<'_>) -> Result<()> {
        let watch = |done: u64, total: u64| {
            if total > 0 {
                control.report(format_args!("quantizing"), done, total);
            }
            !control.stopped()
        };
        match quantize::quantize(input, output, &self.params, &watch) {
            Err(_) if control.stopped() => Err(Error::Interrupted),
            done => Ok(done?),
        }
    }

    /// A note for each override that a tensor's shape did not allow.
    pub(crate) fn unmet(&self, written: &File) -> Vec<String> {
        let mut notes = Vec::new();
        for t in written.tensors().iter().filter(|t| t.shape.iter().skip(1).any(|&n| n > 1)) {
            let wanted = self.params.overrides.iter().find(|(pattern, _)| pattern.is_match(&t.name));
            if let Some((pattern, dtype)) = wanted.filter(|(_, dtype)| *dtype != t.dtype) {
                notes.push(format!("{:?} is {}, not {dtype} as {pattern} asks.", t.name, t.dtype));
            }
        }
        notes
    }
}
