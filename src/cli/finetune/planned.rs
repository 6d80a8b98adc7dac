//! Training that the plan of a study asks for.
//!
//! A plan is a file that people send each other, so its options are not those of a command line: only options that
//! change what is learned, or how it is computed, are taken. What names a file, writes one or shows something is refused.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args as _, FromArgMatches};
use ropewalk::studies::Training;
use ropewalk::train::set::{Group, Key};
use ropewalk::train::KEYS;

use super::super::options::parse_spec;
use super::args::TrainingArgs;
use super::options;

fn command() -> clap::Command {
    TrainingArgs::augment_args(clap::Command::new("recipe").no_binary_name(true).disable_help_flag(true))
}

/// Reads the words of a recipe, under the rope spec of its method. `machine` is the device and the threads where the
/// recipe names none.
///
/// # Errors
/// An option that does not exist, is not for recipes, or has a value that makes no sense.
pub(crate) fn recipe(
    words: &[String],
    spec: Option<&str>,
    machine: (&str, usize),
) -> Result<Training, String> {
    let found = command().try_get_matches_from(words).map_err(|e| first_lines(&e))?;
    let args = TrainingArgs::from_arg_matches(&found).map_err(|e| first_lines(&e))?;
    let mut job = args.job(Vec::new(), "adapter.gguf".into()).map_err(|e| format!("{e:#}"))?;
    let writes = |key: &&Key| matches!(key.group, Group::Files) || key.name == "output-type";
    if let Some(key) = KEYS.iter().filter(writes).find(|key| job.given.text(key.name).is_some()) {
        return Err(format!("--set {}: not a setting of a recipe, because the study names files", key.name));
    }
    if let Some(spec) = spec {
        job.rope = Some(parse_spec(spec).map_err(|e| format!("{e:#}"))?);
    }
    let is_given = |id: &str| found.value_source(id) == Some(ValueSource::CommandLine);
    if !is_given("threads") {
        job.n_threads = machine.1;
    }
    let device = if is_given("device") { args.device.as_str() } else { machine.0 };
    if job.trains_all() {
        return Err("--targets full: a study measures adapters; expected pairs, norms or embeddings".into());
    }
    job.settings().and_then(|_| job.check_recipe()).map_err(|e| options(&e.to_string()))?;
    Ok(Training { job, device: device.into() })
}

/// The error of a word, without the usage of the whole command.
fn first_lines(e: &clap::Error) -> String {
    let text = e.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = first.lines().map(str::trim).collect();
    let mut line = lines.join(" ").trim_start_matches("error: ").to_owned();
    if e.kind() == ErrorKind::UnknownArgument {
        let command = command();
        let mut all: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        all.sort_unstable();
        line += &format!(": the study names models and files, and a recipe has only {}", all.join(", "));
    }
    line
}
