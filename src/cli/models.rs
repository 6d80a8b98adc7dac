//! Finds the model file that a user means, loads it, and describes it in notes and reports.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, Context};
use ropewalk::eval::{LmSource, SessionSource};
use ropewalk::fetch::{Entry, Manifest, Origin, Repo, Source};
use ropewalk::model::{Model, ModelParams};
use ropewalk::rope::Spec;
use ropewalk::session::{Attention, MemoryUse, Session, SessionParams};

use super::output::{bytes, count, OutputArgs};

/// The folder that `pull` puts models into: `$ROPEWALK_MODELS`, else `models` under the user's cache folder.
pub(crate) fn cache_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("ROPEWALK_MODELS").filter(|d| !d.is_empty()) {
        return Ok(PathBuf::from(dir));
    }
    dirs::cache_dir()
        .map(|d| d.join("ropewalk").join("models"))
        .ok_or_else(|| anyhow!("no cache folder: set ROPEWALK_MODELS to a folder for models"))
}

/// The file a user means: a path; or a name of the manifest, an `hf:` source, or a repository, already pulled and, if it
/// was a folder, converted.
pub(crate) fn find(model: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_owned());
    }
    if let Ok(repo) = model.parse::<Repo>() {
        return made_of(&repo);
    }
    let manifest = Manifest::builtin()?;
    let entry = manifest.get(model);
    let source: Source = match entry.map_or(model, |e| &e.source).parse() {
        Ok(source) => source,
        Err(_) if looks_like_a_path(model) => bail!("{model}: no such file"),
        Err(_) => {
            let known: Vec<&str> = manifest.models.iter().map(|m| m.name.as_str()).collect();
            bail!("{model}: no such file, and no model of that name (known: {})", known.join(", "));
        }
    };
    let places = [PathBuf::from("models"), cache_dir()?].map(|dir| dir.join(source.file_name()));
    let mut others = Vec::new();
    for path in places.into_iter().filter(|p| p.is_file()) {
        match stranger(&path, &source, entry)? {
            None => return Ok(path),
            Some(what) => others.push(format!("; {} is {what}", path.display())),
        }
    }
    bail!("{model}: not here yet; fetch it with `ropewalk pull {model}`{}", others.concat())
}

/// The file that was made of a repository's folder, as its record says.
fn made_of(repo: &Repo) -> anyhow::Result<PathBuf> {
    let mut found = Vec::new();
    for dir in [PathBuf::from("models"), cache_dir()?] {
        let mut names: Vec<PathBuf> =
            std::fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        names.retain(|path| path.extension().is_some_and(|e| e == "gguf") && path.is_file());
        names.sort();
        for path in names {
            if Origin::read(&path)?.is_some_and(|o| o.source == repo.to_string()) {
                found.push(path);
            }
        }
    }
    match &found[..] {
        [one] => Ok(one.clone()),
        [] => bail!("{repo}: not here yet; fetch it with `ropewalk pull {repo} --convert`"),
        several => {
            let several: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            bail!("{repo}: several files are made of it; name one by its path: {}", several.join(" "))
        }
    }
}

/// Says what else a file of the right name is, if it is not what `pull` would have put there: one of another
/// source, or, without a record, not known to be anything.
fn stranger(path: &Path, source: &Source, entry: Option<&Entry>) -> anyhow::Result<Option<String>> {
    Ok(match (Origin::read(path)?, entry) {
        (Some(origin), _) if origin.source == source.to_string() => None,
        (Some(origin), _) => Some(origin.source),
        // `make models` writes no record. The checksum is left to `pull`: it takes long.
        (None, Some(entry)) => {
            let found = path.metadata().with_context(|| path.display().to_string())?.len();
            (found != entry.bytes).then(|| format!("{found} bytes instead of {}", entry.bytes))
        }
        (None, None) => Some("of unknown origin: name it by its path".to_owned()),
    })
}

fn looks_like_a_path(model: &str) -> bool {
    model.contains(['/', '\\']) || Path::new(model).extension().is_some_and(|e| e == "gguf")
}

/// A model file and how to load and run it, except for the rope method and the context.
#[derive(Debug, Clone)]
pub(crate) struct ModelChoice {
    /// The file.
    pub(crate) path: PathBuf,
    /// Settings for loading it.
    pub(crate) params: ModelParams,
    /// How to open sessions; `n_ctx` and `rope` are set by each command.
    pub(crate) session: SessionParams,
}

impl ModelChoice {
    /// A file and how to load it, for commands that open no sessions.
    pub(crate) fn plain(path: PathBuf, params: ModelParams) -> ModelChoice {
        ModelChoice { path, params, session: SessionParams::new(0) }
    }

    /// Gives, for a spec, sessions of this model under it.
    pub(crate) fn sources<'m>(&'m self, model: &'m Model) -> impl Fn(&Spec) -> Box<dyn LmSource + 'm> {
        move |spec| Box::new(SessionSource::new(model, self.session(0, Some(spec))))
    }

    /// Parameters of a session of this context under this spec.
    pub(crate) fn session(&self, n_ctx: usize, rope: Option<&Spec>) -> SessionParams {
        SessionParams { n_ctx, rope: rope.cloned(), ..self.session.clone() }
    }
}

/// Loads the model; the error names the file.
pub(crate) fn load(choice: &ModelChoice) -> anyhow::Result<Model> {
    // The device first: if it is missing, the error must not name the file.
    ggml::backend::Device::find(&choice.params.device)?;
    let name = choice.path.display().to_string();
    match Model::load(&choice.path, &choice.params) {
        Err(e) if !e.to_string().contains(&name) => Err(e).context(name),
        loaded => Ok(loaded?),
    }
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

/// The spec in force for a model: what was asked for, else what the file declares or an adapter was trained
/// under.
pub(crate) fn effective_spec(model: &Model, asked: Option<&Spec>) -> anyhow::Result<Spec> {
    match asked {
        Some(spec) => Ok(spec.clone()),
        None => Ok(model.default_rope()?),
    }
}

/// The memory that a session uses, part by part.
pub(crate) fn memory(session: &Session<'_>) -> String {
    let MemoryUse { weights, kv, states, compute } = session.memory();
    let recurrent = if states > 0 { format!("{} states + ", bytes(states as u64)) } else { String::new() };
    let [weights, kv, compute] = [weights, kv, compute].map(|n| bytes(n as u64));
    format!("{weights} weights + {kv} cache + {recurrent}{compute} compute")
}

/// Says on stderr, unless `-q`, which model runs where, under which rope, with how much memory; then the
/// plan's notes.
pub(crate) fn announce(out: &OutputArgs, choice: &ModelChoice, session: &Session<'_>, asked: bool) {
    let plan = session.plan();
    let source = if asked {
        "asked for"
    } else if session.model().takes_trained_rope() {
        "the adapter's own"
    } else {
        "the file's own"
    };
    let attention = match session.params().attention {
        Attention::Landmark(top) => format!("attention {top}, "),
        Attention::Auto | Attention::Explicit => String::new(),
    };
    out.note(format_args!(
        "{}: {}, {attention}math {}, rope {} ({}), context {} of {} trained, memory {}",
        label(choice),
        session.model().device(),
        session.params().math,
        plan.spec,
        source,
        count(session.params().n_ctx as u64),
        count(plan.n_ctx_orig(session.model().hparams()) as u64),
        memory(session),
    ));
    for note in &plan.notes {
        out.note(format_args!("note: {note}"));
    }
}
