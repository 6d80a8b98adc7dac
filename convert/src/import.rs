//! A model folder of Hugging Face in, a GGUF file out.

use std::cell::RefCell;
use std::io;
use std::path::Path;

use files::same_file;
use gguf::float::decode;
use gguf::{DType, File};
use rayon::prelude::*;
use ropewalk_core::control::Control;
use ropewalk_import::{floats, Checkpoint, Tensor};

use crate::requantize::{Sums, TensorError, RUN};
use crate::rows::{self, dequantize, quantize};
use crate::{types, Error, Options, Report, Result};

/// Imports a folder. Without a type asked for, matrices keep that of the first.
pub(crate) fn import(
    folder: &Path,
    output: &Path,
    options: &Options,
    control: &Control<'_>,
) -> Result<Report> {
    let Options { rope, n_ctx, dtype, mixture, check, llama_cpp, adapters, force_adapter: _, pre } = options;
    let more = rope.is_some() || n_ctx.is_some() || *llama_cpp || !adapters.is_empty();
    if more || mixture.is_some() || check.is_some() {
        let what = "a folder is imported as it is, in a plain type; convert the new file for the rest";
        return Err(Error::Usage(format!("{}: {what}", folder.display())));
    }
    if dtype.is_some_and(|t| t.is_quantized()) {
        rows::available("a quantised type")?;
    }
    let checkpoint = Checkpoint::open(folder, pre.as_deref())?;
    for path in checkpoint.paths() {
        if same_file(path, output)? {
            let what = format!("{}: the output is a file of the input; name another", output.display());
            return Err(Error::Usage(what));
        }
    }
    let wanted = dtype.unwrap_or_else(|| checkpoint.stored());
    let no_type = || Error::Usage(format!("{wanted} is not a type to convert to"));
    let file_type = types::file_type(wanted).ok_or_else(no_type)?;
    let of = |t: &Tensor| types::target(wanted, t.shape());
    let errors = RefCell::new(Vec::<(TensorError, Sums)>::new());
    let encode = |t: &Tensor, to: DType, values: &[f32]| {
        let row = t.shape().first().map_or(1, |&n| n as usize);
        let (bytes, sums) = encoded(to, row, values).map_err(io::Error::other)?;
        let mut errors = errors.borrow_mut();
        let before =
            errors.pop_if(|(error, _)| error.name == t.name()).map_or(Sums::default(), |(_, sums)| sums);
        let sums = before.plus(sums);
        let n = t.n_elements() as usize;
        errors.push((TensorError::of(t.name().to_owned(), t.stored(), to, n, sums), sums));
        Ok(bytes)
    };
    let bytes = checkpoint.write(output, file_type, &of, &encode, control)?;
    let mut notes = checkpoint.notes().to_vec();
    notes.push(format!("{} is imported from {}.", output.display(), folder.display()));
    Ok(Report {
        bytes,
        dtype: dtype.map(DType::name),
        converted: errors.into_inner().into_iter().map(|(error, _)| error).collect(),
        notes,
        ..Report::unchanged(&File::open(output)?, output)
    })
}

/// Whole rows as another type, and how far that is from what they were.
fn encoded(to: DType, row: usize, values: &[f32]) -> Result<(Vec<u8>, Sums)> {
    let invalid = |e: io::Error| Error::Invalid(e.to_string());
    if !to.is_quantized() {
        let bytes = floats(to, values).map_err(invalid)?;
        let mut new = vec![0f32; values.len()];
        decode(to, &bytes, &mut new);
        return Ok((bytes, Sums::of(values, &new)));
    }
    let step = (RUN / row.max(1)).max(1) * row.max(1);
    let runs = values.par_chunks(step).map(|old| -> rows::Result<(Vec<u8>, Sums)> {
        let bytes = quantize(to, row, old)?;
        let mut new = vec![0f32; old.len()];
        dequantize(to, &bytes, &mut new)?;
        Ok((bytes, Sums::of(old, &new)))
    });
    let (mut bytes, mut sums) = (Vec::new(), Sums::default());
    for (run, error) in runs.collect::<rows::Result<Vec<_>>>()? {
        bytes.extend(run);
        sums = sums.plus(error);
    }
    Ok((bytes, sums))
}
