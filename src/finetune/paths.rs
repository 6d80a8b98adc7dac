//! The files that a job writes, and checks of their names before hours of work.

use std::path::{Path, PathBuf};

use files::real_path;
use gguf::Output;

use super::{refused, Job, JobError, Result};
use crate::data::TOKENS;
use crate::plot::{self, PlotError};
use crate::train::set::OutputType;
use crate::train::LOG;

impl Job {
    /// The file whose types the matrices of a model get that is written; `None` for F32. `model` is trained.
    pub(super) fn types_of<'a>(&'a self, model: &'a Path) -> Option<&'a Path> {
        let of_file = self.given.output_type == Some(OutputType::File);
        of_file.then(|| self.types_of.as_deref().unwrap_or(model))
    }

    /// The given path, or else the adapter's with this ending in place of `.gguf` (dots inside the name
    /// stay).
    pub(super) fn next_to(&self, given: Option<&PathBuf>, ending: &str) -> PathBuf {
        let name = self.output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        given.cloned().unwrap_or_else(|| self.output.with_file_name(format!("{stem}{ending}")))
    }

    /// Returns the directory of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.next_to(self.given.checkpoints.as_ref(), ".checkpoints")
    }

    /// Returns the path of the log.
    pub fn log(&self) -> PathBuf {
        self.next_to(self.given.log.as_ref(), ".log.jsonl")
    }

    /// Returns the path of the loss plot.
    pub fn plot(&self) -> PathBuf {
        self.next_to(self.plot.as_ref(), ".loss.svg")
    }

    /// Checks the paths of all outputs of training on the model at `model`. If `inspects` is true, only plots of the
    /// data are going to be written.
    ///
    /// # Errors
    /// Returns an error if the output's directory does not exist, if an output would replace an input or something
    /// other than an earlier output, if two outputs are the same file, or if the plot's extension is unknown.
    pub fn check_outputs(&self, model: &Path, inspects: bool) -> Result<()> {
        let folder = self.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(refused(format!("`output` {}: no such folder", self.output.display())));
        }
        self.check_recipe()?;
        // Charts of the data have other names.
        let ends: &[&str] = match (inspects, &self.plot) {
            (false, _) => &[""],
            (true, Some(_)) => &["lengths", "distances"],
            (true, None) => &[],
        };
        let plots: Vec<PathBuf> = ends.iter().map(|end| chart_path(&self.plot(), end)).collect();
        self.check_apart(model, &plots, inspects)?;
        let output = |path: PathBuf| Output::new(path, self.force);
        for path in plots {
            plot::check(output(path)).map_err(|e| match e {
                PlotError::Extension(_) => refused(format!("`plot` {e}")),
                e => JobError::Plot(e),
            })?;
        }
        if !inspects {
            let written = if self.trains_all() { &gguf::kinds::MODEL } else { &gguf::kinds::ADAPTER };
            written.claim(output(self.output.clone()))?;
            LOG.claim(output(self.log()))?;
            if let Some(cache) = &self.given.cache {
                TOKENS.claim(output(cache.clone()))?;
            }
        }
        Ok(())
    }

    /// An error if an output would replace a file that is read, or lie among the texts of the next run.
    fn check_apart(&self, model: &Path, plots: &[PathBuf], inspects: bool) -> Result<()> {
        let mut outputs = Vec::new();
        if !inspects {
            outputs.extend([
                ("`output`", self.output.clone()),
                ("`log`", self.log()),
                ("`checkpoints`", self.checkpoints()),
            ]);
        }
        outputs.extend(self.given.cache.clone().map(|p| ("`cache`", p)));
        outputs.extend(plots.iter().map(|p| ("`plot`", p.clone())));
        let texts = self.data.iter().map(|s| &s.path);
        let others = self.init.iter().chain(&self.types_of).chain(&self.inputs);
        let read = texts.chain(others).map(PathBuf::as_path).chain([model]);
        // A split model is read whole.
        let read: Vec<PathBuf> = read.flat_map(gguf::parts).map(|p| real_path(&p)).collect();
        for (i, (option, path)) in outputs.iter().enumerate() {
            let at = real_path(path);
            if let Some(input) = read.iter().find(|r| at.starts_with(r)) {
                let (path, input) = (path.display(), input.display());
                return Err(refused(format!(
                    "{option} {path}: expected a path apart from the input {input}"
                )));
            }
            if let Some((other, _)) = outputs[..i].iter().find(|(_, p)| real_path(p) == at) {
                return Err(refused(format!("{option} {}: the same as {other}", path.display())));
            }
        }
        Ok(())
    }
}

/// Returns the path of a chart next to `plot`: `NAME.lengths.svg` for `NAME.svg` and the end `lengths`, and `plot` itself
/// for an empty end.
pub fn chart_path(plot: &Path, end: &str) -> PathBuf {
    let extension = plot.extension().unwrap_or_default().to_string_lossy().into_owned();
    match end {
        "" => plot.to_owned(),
        end => plot.with_extension(format!("{end}.{extension}")),
    }
}
