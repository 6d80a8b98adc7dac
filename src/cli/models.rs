//! Finds the model file that a user means, loads it, and describes it in notes and reports.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, Context};
use ropewalk::chat::Template;
use ropewalk::control::Control;
use ropewalk::eval::{LmSource, SessionSource};
use ropewalk::fetch::{Repo, Source};
use ropewalk::model::{Model, ModelParams};
use ropewalk::origin::{sha256_of, Origin};
use ropewalk::rope::Spec;
use ropewalk::session::{Session, SessionParams};
use ropewalk::tasks::Task;

use super::manifest::{Entry, Manifest};
use super::options::read_text;
use super::output::{self, OutputArgs};
use super::template::program;

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

/// The directories that are searched for a name: that of the working directory, and the user's.
pub(crate) fn dirs() -> anyhow::Result<[PathBuf; 2]> {
    Ok(["models".into(), cache_dir()?])
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
    // A directory can have the name of a model, as that of a study.
    let is_name = || anyhow::Ok(path.is_dir() && Manifest::builtin()?.get(model).is_some());
    if path.exists() && !is_name()? {
        return Ok(path.to_owned());
    }
    let dirs = dirs()?;
    let (path, by_record) = match model.parse::<Repo>() {
        Ok(repo) => (made_of(&repo, &dirs)?, true),
        Err(_) => pulled(model, &dirs)?,
    };
    // A record in the working directory may be a stranger's.
    if by_record && path.starts_with(&dirs[0]) {
        output::warn(format_args!(
            "note: {model}: using {} from the working directory, as the record next to it says",
            path.display()
        ));
    }
    Ok(path)
}

/// The file of a name or a source, and whether only the record next to it says what it is.
fn pulled(model: &str, dirs: &[PathBuf]) -> anyhow::Result<(PathBuf, bool)> {
    let manifest = Manifest::builtin()?;
    let entry = manifest.get(model);
    let Ok(source) = entry.map_or(model, |e| &e.source).parse::<Source>() else {
        if model.contains(['/', '\\']) || Path::new(model).extension().is_some_and(|e| e == "gguf") {
            bail!("{model}: no such file");
        }
        let known: Vec<&str> = manifest.models.iter().map(Entry::short_name).collect();
        bail!("{model}: no such file, and no model of that name (known: {})", known.join(", "));
    };
    let mut others = String::new();
    for path in dirs.iter().map(|dir| dir.join(source.file_name())).filter(|path| path.is_file()) {
        match stranger(&path, &source, entry)? {
            None => return Ok((path, entry.is_none())),
            Some(what) => others += &format!("; {what}"),
        }
    }
    bail!("{model}: not downloaded; run `ropewalk pull {model}`{others}")
}

/// Says what else a file of the right name is, if it is not what a pull would have put there. Of a model of the manifest
/// the checksum decides, whatever a record says; of others the record, for nothing else is known of them.
fn stranger(path: &Path, source: &Source, entry: Option<&Entry>) -> anyhow::Result<Option<String>> {
    let shown = path.display();
    Ok(match (Origin::read(path), entry) {
        (Ok(Some(origin)), _) if origin.source != source.to_string() => {
            Some(format!("{shown} is {}", origin.source))
        }
        (_, Some(entry)) => {
            let found = path.metadata().with_context(|| shown.to_string())?.len();
            if found != entry.bytes {
                return Ok(Some(format!("{shown} is {found} bytes instead of {}", entry.bytes)));
            }
            let (sum, _) = sha256_of(path, &Control::default())?;
            let other = format!("{shown} is another file: expected sha256 {}, found {sum}", entry.sha256);
            (sum != entry.sha256).then_some(other)
        }
        (Ok(Some(_)), None) => None,
        (Ok(None), None) => Some(format!("{shown} has an unknown origin: name it by its path")),
        (Err(e), None) => Some(format!("{shown} is skipped: {e}")),
    })
}

/// The file that was made of a repository's folder, as its record says. Damaged records of other files are left out.
pub(crate) fn made_of(repo: &Repo, dirs: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for dir in dirs {
        let mut names: Vec<PathBuf> =
            std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        names.retain(|path| path.extension().is_some_and(|e| e == "gguf") && path.is_file());
        names.sort();
        for path in names {
            match Origin::read(&path) {
                Ok(Some(origin)) if origin.source == repo.to_string() => found.push(path),
                Ok(_) => {}
                Err(e) => skipped.push(format!("{} is skipped: {e}", path.display())),
            }
        }
    }
    match &found[..] {
        [one] => {
            skipped.iter().for_each(|what| output::warn(format_args!("note: {what}")));
            Ok(one.clone())
        }
        [] => {
            let others: String = skipped.iter().map(|what| format!("; {what}")).collect();
            bail!("{repo}: not downloaded; run `ropewalk pull {repo} --convert`{others}")
        }
        several => {
            let several: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            bail!("{repo}: several files were made from it; name one by its path: {}", several.join(" "))
        }
    }
}

/// A model file and how to load and run it, except for the rope method and the context.
#[derive(Debug, Clone)]
pub(crate) struct ModelChoice {
    pub(crate) path: PathBuf,
    pub(crate) params: ModelParams,
    /// How to open sessions; `n_ctx` and `rope` are set by each command.
    pub(crate) session: SessionParams,
    /// The file of the chat template, if it is not the model's.
    template: Option<PathBuf>,
}

impl ModelChoice {
    pub(crate) fn new(path: PathBuf, params: ModelParams, session: SessionParams) -> ModelChoice {
        ModelChoice { path, params, session, template: None }
    }

    /// The files of the model, its adapters, and its chat template that were named.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let adapters = self.params.adapters.iter().map(|adapter| &adapter.path);
        std::iter::once(&self.path).chain(adapters).chain(&self.template)
    }

    /// Gives, for a spec, sessions of this model under it.
    pub(crate) fn sources<'m>(&'m self, model: &'m Model) -> impl Fn(&Spec) -> Box<dyn LmSource + 'm> {
        move |spec| Box::new(SessionSource::new(model, self.session(0, Some(spec))))
    }

    /// With the chat template in this file, if one is named. A mistake in it is found before the model is loaded.
    pub(crate) fn with_template(mut self, file: Option<&Path>) -> anyhow::Result<ModelChoice> {
        let Some(file) = file else { return Ok(self) };
        let text = read_text(file)?;
        Template::new_apart(&text, "", "", &program()?).with_context(|| file.display().to_string())?;
        self.params.chat_template = Some(text);
        self.template = Some(file.to_owned());
        Ok(self)
    }

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
