//! A model folder of Hugging Face in, a GGUF file out.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use files::memory::room;
use files::{same_file, Scratch};
use gguf::float::decode;
use gguf::{DType, File, Output};
use rayon::prelude::*;
use ropewalk_core::apart::Apart;
use ropewalk_core::control::Control;
use ropewalk_core::hparams::Hparams;
use ropewalk_import::{floats, Checkpoint, Tensor, TOKENIZER_LIMITS};

use crate::job::Pass;
use crate::requantize::{Sums, TensorError, RUN};
use crate::rows::{self, dequantize, quantize, zeros};
use crate::{job, quantizer, staged, types, Error, Options, Report, Result, Tokenizing};

/// The only argument of a process that runs a tokenizer. It is no option, for nobody types it.
const TOKENIZER: &str = "--run-tokenizer";

/// Runs a tokenizer and gives the exit code, if this is the process to do so: one that was started for
/// [`Tokenizing::Apart`], as its `arguments` (without the program's name) say.
pub fn serve_tokenizer(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    if arguments.next()? != TOKENIZER || arguments.next().is_some() {
        return None;
    }
    Some(match ropewalk_import::serve_tokenizer(io::stdin().lock(), io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// Imports a folder, with all that `options` ask for. Without a type asked for, matrices keep that of the first.
///
/// A plain type is written as the folder is read. Anything more reads a GGUF file, as if that had been imported before:
/// it is a temporary file next to the output, in the types of the checkpoint.
pub(crate) fn import(
    folder: &Path,
    output: &Path,
    options: &Options,
    control: &Control<'_>,
) -> Result<Report> {
    let Options { rope, n_ctx, dtype, mixture, llama_cpp, adapters, pre, tokenizing, .. } = options;
    let more = rope.is_some() || n_ctx.is_some() || mixture.is_some() || *llama_cpp || !adapters.is_empty();
    // Errors that do not depend on the weights are reported before they are read.
    if more {
        job::check_options(options)?;
    }
    job::check_adapters(output, options)?;
    // Weights are compared below, by all their names.
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let parent = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if ropewalk_import::is_read(&name) && same_file(parent, folder)? {
        return Err(is_input(output));
    }
    mixture.as_ref().map(quantizer::Quantizer::new).transpose()?;
    let tokenizing = tokenizing.as_ref().map(|by| match by {
        Tokenizing::Apart(program) => {
            let process = Apart::new(program, [TOKENIZER]).with_limits(TOKENIZER_LIMITS);
            ropewalk_import::Tokenizing::Apart(process.stopped_by(control))
        }
        Tokenizing::Trusted => ropewalk_import::Tokenizing::Trusted,
    });
    let checkpoint = Checkpoint::open(folder, pre.as_deref(), tokenizing.as_ref())?;
    for path in checkpoint.paths() {
        if same_file(path, output)? {
            return Err(is_input(output));
        }
    }
    let (converted, staged, bytes) =
        plain(&checkpoint, dtype.filter(|_| !more), control, options.output(output))?;
    let mut notes = checkpoint.notes().to_vec();
    notes.push(format!("{} is imported from {}.", output.display(), folder.display()));
    // Its files are not needed any more.
    drop(checkpoint);
    opens(&staged, folder)?;
    if !more {
        staged.place()?;
        return Ok(Report {
            bytes,
            dtype: dtype.map(DType::name),
            converted,
            notes,
            ..Report::unchanged(&File::open(output)?, output)
        });
    }
    let options = Options { pre: None, ..options.clone() };
    let read = || match &options.mixture {
        Some(mixture) => staged::convert(staged.path(), output, &options, mixture, control),
        None => {
            let (report, scratch) =
                job::rewrite(staged.path(), output, &options, Pass::AfterImport, control)?;
            scratch.place()?;
            Ok(report)
        }
    };
    let mut report = read().map_err(|e| e.renamed(staged.path(), folder))?;
    notes.push(format!(
        "A temporary file next to it took {bytes} bytes: the model as stored in the directory."
    ));
    notes.extend(report.notes.iter().map(|note| renamed(note, staged.path(), folder)));
    report.notes = notes;
    Ok(report)
}

fn is_input(output: &Path) -> Error {
    Error::Usage(format!("{}: the output is one of the input files; name another file", output.display()))
}

/// Checks that the file which was made of a folder can be opened, before it is in place.
fn opens(staged: &Scratch, folder: &Path) -> Result<()> {
    let read = || -> Result<()> {
        let file = File::open(staged.path())?;
        Hparams::from_gguf(&file)?;
        llama::vocab::Vocab::load(&file).map_err(|e| Error::Invalid(e.to_string()))?;
        Ok(())
    };
    read().map_err(|e| e.renamed(staged.path(), folder))
}

/// A text with the name of a temporary file replaced, which is nobody's business.
pub(crate) fn renamed(text: &str, from: &Path, to: &Path) -> String {
    text.replace(&*from.to_string_lossy(), &to.to_string_lossy())
}

/// Writes the checkpoint in a plain type, that of its first matrix if none is asked for. Returns the errors of tensors
/// whose type changed, the file, and its size.
fn plain(
    checkpoint: &Checkpoint,
    dtype: Option<DType>,
    control: &Control<'_>,
    output: Output,
) -> Result<(Vec<TensorError>, Scratch, u64)> {
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
    let (scratch, bytes) = checkpoint.write(file_type, &of, &encode, control, output)?;
    Ok((errors.into_inner().into_iter().map(|(error, _)| error).collect(), scratch, bytes))
}

/// Whole rows as another type, and how far that is from what they were.
fn encoded(to: DType, row: usize, values: &[f32]) -> Result<(Vec<u8>, Sums)> {
    let invalid = |e: io::Error| Error::Invalid(e.to_string());
    if !to.is_quantized() {
        let bytes = floats(to, values).map_err(invalid)?;
        let mut new = zeros(values.len())?;
        decode(to, &bytes, &mut new);
        return Ok((bytes, Sums::of(values, &new)));
    }
    let step = (RUN / row.max(1)).max(1) * row.max(1);
    let runs = values.par_chunks(step).map(|old| -> rows::Result<(Vec<u8>, Sums)> {
        let bytes = quantize(to, row, old)?;
        let mut new = zeros(old.len())?;
        dequantize(to, &bytes, &mut new)?;
        Ok((bytes, Sums::of(old, &new)))
    });
    let runs = runs.collect::<rows::Result<Vec<_>>>()?;
    let mut bytes = room(runs.iter().map(|(run, _)| run.len()).sum()).map_err(|e| invalid(e.into()))?;
    let mut sums = Sums::default();
    for (run, error) in runs {
        bytes.extend(run);
        sums = sums.plus(error);
    }
    Ok((bytes, sums))
}
