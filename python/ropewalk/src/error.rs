//! Errors as Python exceptions, by kind. The classes are in `_errors.py`.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::{import_exception, PyErr};
use ropewalk::finetune::JobError;
use ropewalk::plot::PlotError;
use ropewalk::{convert, study, Error};

import_exception!(ropewalk._errors, RopewalkError);
import_exception!(ropewalk._errors, ArgumentError);
import_exception!(ropewalk._errors, ContextFull);
import_exception!(ropewalk._errors, FileError);
import_exception!(ropewalk._errors, OutOfMemory);
import_exception!(ropewalk._errors, SessionBusy);
import_exception!(ropewalk._errors, Unsupported);

/// An error of the runtime.
pub(crate) fn raised(e: impl Into<Error>) -> PyErr {
    let e = e.into();
    let text = e.to_string();
    let mut kind = &e;
    while let Error::During { source, .. } = kind {
        kind = source.as_ref();
    }
    match kind {
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        Error::Io { .. } | Error::File(_) => FileError::new_err(text),
        Error::ContextFull { needed, free, n_ctx } => ContextFull::new_err((text, *needed, *free, *n_ctx)),
        Error::OutOfMemory { needed, free, .. } => OutOfMemory::new_err((text, *needed, *free)),
        Error::Argument { .. } | Error::Rope(_) => ArgumentError::new_err(text),
        Error::Unsupported(_) => Unsupported::new_err(text),
        _ => RopewalkError::new_err(text),
    }
}

/// An argument that is out of range.
pub(crate) fn argument(name: &'static str, expected: &str, found: impl std::fmt::Display) -> PyErr {
    raised(Error::argument(name, expected, found))
}

/// A mistake in an argument, as a text of the library.
pub(crate) fn mistake(text: impl std::fmt::Display) -> PyErr {
    ArgumentError::new_err(text.to_string())
}

/// An error of a conversion.
pub(crate) fn of_convert(e: convert::Error) -> PyErr {
    match e {
        convert::Error::File(e) => raised(e),
        convert::Error::Ggml(e) => raised(e),
        convert::Error::Rope(e) => raised(e),
        convert::Error::Interrupted => raised(Error::Interrupted),
        convert::Error::Usage(text) | convert::Error::Argument(text) => mistake(text),
        e => RopewalkError::new_err(e.to_string()),
    }
}

/// An error of a picture.
pub(crate) fn of_plot(e: PlotError) -> PyErr {
    match e {
        PlotError::File(e) => raised(e),
        e => mistake(e),
    }
}

/// An error of a study.
pub(crate) fn of_study(e: study::Error) -> PyErr {
    match e {
        study::Error::File(e) => raised(e),
        study::Error::Stopped => raised(Error::Interrupted),
        study::Error::Invalid(text) => mistake(text),
    }
}

/// An error of a fine-tuning job.
pub(crate) fn of_job(e: JobError) -> PyErr {
    match e {
        JobError::Failed(e) => raised(e),
        JobError::Settings(text) => mistake(text),
        e => RopewalkError::new_err(e.to_string()),
    }
}
