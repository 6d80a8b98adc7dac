//! Finds the model file that a user means, loads it, and describes it in notes and reports.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use ropewalk::eval::{LmSource, SessionSource};
use ropewalk::fetch::{self, FetchError};
use ropewalk::model::{Model, ModelParams};
use ropewalk::rope::Spec;
use ropewalk::session::{Session, SessionParams};
use ropewalk::tasks::Task;

use super::output::{self, OutputArgs};

/// The folder that `pull` puts models into: `$ROPEWALK_MODELS`, else `models` under the user's cache folder.
pub(crate) fn cache_dir() -> anyhow::Result<PathBuf> {
    own_dir("ROPEWALK_MODELS", dirs::cache_dir(), "models")
}

/// The folder that `pull` puts benchmark data into: `$ROPEWALK_DATA`, else `benchmarks` under the user's data folder.
pub(crate) fn data_dir() -> anyhow::Result<PathBuf> {
    own_dir("ROPEWALK_DATA", dirs::data_dir(), "benchmarks")
}

/// The folder that the variable names, else `ropewalk/NAME` in a folder of the user's.
fn own_dir(variable: &str, base: Option<PathBuf>, name: &str) -> anyhow::Result<PathBuf> {
    let named = std::env::var_os(variable).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = named.or_else(|| base.map(|base| base.join("ropewalk").join(name)));
    dir.ok_or_else(|| anyhow!("the user has no home directory: set {variable} to a directory for {name}"))
}

/// The folder to read a task's data from: the one given; else `models/benchmarks` of the working directory or the folder
/// of [`data_dir`], whichever has more of the task's files. Few tasks need all of theirs.
pub(crate) fn data_for(given: Option<&Path>, task: &dyn Task) -> PathBuf {
    if let Some(given) = given {
        return given.to_owned();
    }
    let here = PathBuf::from("models/benchmarks");
    let Ok(users) = data_dir() else { return here };
    let files_in = |dir: &Path| task.info().files.iter().filter(|file| dir.join(file.name).exists()).count();
    let found = files_in(&here);
    if found > 0 && found >= files_in(&users) {
        here
    } else {
        users
    }
}

/// The file a user means: a path; or a name of the manifest, an `hf:` source, or a repository, already pulled and, if it
/// was a folder, converted.
pub(crate) fn find(model: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(model);
    let is_weights = path.is_file() && path.extension().is_some_and(|e| e == "safetensors");
    if is_weights || path.join("config.json").is_file() {
        let imports = "`ropewalk convert DIR -o FILE.gguf` imports its directory";
        bail!("{model}: expected a GGUF file, found a checkpoint of Hugging Face; {imports}");
    }
    if path.exists() {
        return Ok(path.to_owned());
    }
    let here = Path::new("models");
    let found = fetch::find(model, &[here.to_owned(), cache_dir()?]).map_err(|e| match e {
        FetchError::Missing { model, is_repo, others } => {
            let convert = if is_repo { " --convert" } else { "" };
            let others: String = others.iter().map(|what| format!("; {what}")).collect();
            anyhow!("{model}: not downloaded; run `ropewalk pull {model}{convert}`{others}")
        }
        e => e.into(),
    })?;
    found.skipped.iter().for_each(|what| output::warn(format_args!("note: {what}")));
    // A record in the working directory may be a stranger's.
    if found.by_record && found.path.starts_with(here) {
        output::warn(format_args!(
            "note: {model}: using {} from the working directory, as the record next to it says",
            found.path.display()
        ));
    }
    Ok(found.path)
}

/// A model file and how to load and run it, except for the rope method and the context.
#[derive(Debug, Clone)]
pub(crate) struct ModelChoice {
    pub(crate) path: PathBuf,
    pub(crate) params: ModelParams,
    /// How to open sessions; `n_ctx` and `rope` are set by each command.
    pub(crate) session: SessionParams,
}

impl ModelChoice {
    /// The files of the model and of its adapters that were named.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.path).chain(self.params.adapters.iter().map(|adapter| &adapter.path))
    }

    /// Gives, for a spec, sessions of this model under it.
    pub(crate) fn sources<'m>(&'m self, model: &'m Model) -> impl Fn(&Spec) -> Box<dyn LmSource + 'm> {
        move |spec| Box::new(SessionSource::new(model, self.session(0, Some(spec))))
    }

    /// Parameters of a session of this context under this spec.
    pub(crate) fn session(&self, n_ctx: usize, rope: Option<&Spec>) -> SessionParams {
        self.session.clone().n_ctx(n_ctx).rope(rope.cloned())
    }
}

/// Loads the model and says on stderr which of its keys nothing reads.
pub(crate) fn load(choice: &ModelChoice, out: &OutputArgs) -> anyhow::Result<Model> {
    let model = Model::load(&choice.path, &choice.params)?;
    if let Some(unread) = model.hparams().unread_note() {
        out.note(format_args!("note: {}: {unread}", name(&choice.path)));
    }
    Ok(model)
}

/// The last part of a path: the name of a model or an adapter in reports.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The name of a model in reports: its file's, and those of its adapters.
pub(crate) fn label(choice: &ModelChoice) -> String {
    let adapters = choice.params.adapters.iter().map(|a| format!(" + {}:{}", name(&a.path), a.scale));
    std::iter::once(name(&choice.path)).chain(adapters).collect()
}

/// Says on stderr, unless `-q`, which model runs where, under which rope, with how much memory; then the
/// plan's notes.
pub(crate) fn announce(out: &OutputArgs, choice: &ModelChoice, session: &Session) {
    out.note(format_args!("{}: {}", label(choice), session.summary()));
    session.plan().notes.iter().for_each(|note| out.note(format_args!("note: {note}")));
}
