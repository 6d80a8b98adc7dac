//! Reads a plan and checks it.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ropewalk_core::rope::{Axis, Spec};
use ropewalk_core::terminal::one_line;
use toml::Spanned;

use super::toml_file::{List, MethodFile, PlanFile, RecipeFile, TaskFile};
use super::{Attention, Known, Method, Model, Names, Plan, Recipe, Task, Trained, MAX_CELLS};
use crate::{Error, Result};

/// The copy of a plan in a study's folder.
pub(crate) const COPY: &str = "plan.toml";
/// Tokens of a length, at most.
const MAX_LENGTH: u64 = 1 << 30;
/// Samples, windows and the like, at most.
const MAX_COUNT: u64 = 1_000_000;
/// Models or methods of a plan, lengths or seeds of a task, at most: tables compare each with each.
const MAX_LIST: usize = 1000;
/// Bytes of a name, at most: they are columns of tables.
const MAX_NAME: usize = 60;

/// Tasks that are no benchmarks.
const OWN: &[&str] = &["perplexity", "longppl"];

struct Place<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    fn fault(&self, at: Range<usize>, what: impl std::fmt::Display) -> Error {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let what = what.to_string().trim().replace('\n', "; ");
        Error::folder(self.path, format_args!("line {line}: {what}"))
    }

    /// The parser's error, with the key of the line it points to.
    fn syntax(&self, error: &toml::de::Error) -> Error {
        let at = error.span().unwrap_or(0..0);
        let line = self.text.get(..at.start).unwrap_or("").matches('\n').count();
        let written = self.text.lines().nth(line).unwrap_or("");
        let message = &one_line(error.message());
        let key = written.split_once('=').map_or("", |(key, _)| key.trim());
        if key.is_empty() || message.contains(&format!("`{key}`")) {
            return self.fault(at, message);
        }
        self.fault(at, format!("{key}: {message}"))
    }

    fn name<'n>(&self, key: &str, name: &'n Spanned<String>) -> Result<&'n str> {
        let text = name.as_ref();
        let found = match text {
            t if t.trim().is_empty() => "an empty one".into(),
            t if t.len() > MAX_NAME => format!("{} bytes", t.len()),
            t if t.contains(char::is_control) => "control characters".into(),
            t => return Ok(t),
        };
        let what = format!("{key}: expected a name of 1 to {MAX_NAME} bytes in one line, found {found}");
        Err(self.fault(name.span(), what))
    }

    fn count(&self, key: &str, value: &Option<Spanned<u64>>, max: u64) -> Result<Option<u64>> {
        let Some(value) = value else { return Ok(None) };
        let n = *value.as_ref();
        if !(1..=max).contains(&n) {
            return Err(self.fault(value.span(), format!("{key}: expected 1 to {max}, found {n}")));
        }
        Ok(Some(n))
    }

    /// Some of something, each once.
    fn names<'n>(&self, key: &str, names: impl Iterator<Item = &'n Spanned<String>>) -> Result<()> {
        let mut seen = HashSet::new();
        for name in names {
            let text = self.name(key, name)?;
            if !seen.insert(text) {
                return Err(self.fault(name.span(), format!("{key}: the name {text:?} stands twice")));
            }
        }
        Ok(())
    }

    fn short(&self, key: &str, n: usize, at: Range<usize>) -> Result<()> {
        if n > MAX_LIST {
            return Err(self.fault(at, format!("{key}: expected at most {MAX_LIST}, found {n}")));
        }
        Ok(())
    }

    fn lengths(&self, lengths: &List<Spanned<u64>>) -> Result<Option<Vec<u64>>> {
        let Some(list) = lengths else { return Ok(None) };
        self.short("lengths", list.as_ref().len(), list.span())?;
        let mut out = Vec::new();
        for length in list.as_ref() {
            let n = *length.as_ref();
            if !(2..=MAX_LENGTH).contains(&n) {
                let what = format!("lengths: expected 2 to {MAX_LENGTH} tokens, found {n}");
                return Err(self.fault(length.span(), what));
            }
            if out.contains(&n) {
                return Err(self.fault(length.span(), format!("lengths: {n} stands twice")));
            }
            out.push(n);
        }
        Ok(Some(out))
    }

    fn seeds(&self, seeds: &List<u64>) -> Result<Option<Vec<Option<u64>>>> {
        let Some(list) = seeds else { return Ok(None) };
        self.short("seeds", list.as_ref().len(), list.span())?;
        let mut out = Vec::new();
        for seed in list.as_ref() {
            if out.contains(&Some(*seed)) {
                return Err(self.fault(list.span(), format!("seeds: {seed} stands twice")));
            }
            out.push(Some(*seed));
        }
        if out.is_empty() {
            return Err(self.fault(list.span(), "seeds: expected at least one, found none"));
        }
        Ok(Some(out))
    }
}

impl Plan {
    /// Bytes of a plan, at most.
    pub const MAX_BYTES: u64 = 1 << 20;

    /// Reads a plan. `names` knows benchmarks and recipes; `perplexity` and `longppl` are known here.
    ///
    /// # Errors
    /// A file that cannot be read or is no regular one, is no plan, or asks for something that makes no sense; the
    /// message names the file, the line and the key.
    pub fn read(path: &Path, names: &dyn Names) -> Result<Plan> {
        Plan::parse(path, files::foreign::read_file(path, Plan::MAX_BYTES)?, names)
    }

    /// The plan of a text, as if it were in the file `path`: its paths start from the folder of that.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::read`] about the contents.
    pub fn parse(path: &Path, bytes: Vec<u8>, names: &dyn Names) -> Result<Plan> {
        let text = String::from_utf8(bytes).map_err(|e| {
            Error::folder(path, format!("expected UTF-8, found byte {}", e.utf8_error().valid_up_to()))
        })?;
        let place = Place { path, text: &text };
        let file: PlanFile = toml::from_str(&text).map_err(|e| place.syntax(&e))?;
        let plan = check(&place, file, names)?;
        Ok(Plan { text, ..plan })
    }

    /// Reads the plan of a study's folder, which somebody else may have filled.
    pub(crate) fn read_in(folder: &files::foreign::Folder, names: &dyn Names) -> Result<Plan> {
        let path = folder.path().join(COPY);
        let none = || Error::io(&path, std::io::Error::from(std::io::ErrorKind::NotFound));
        let bytes = folder.read(Path::new(COPY), Plan::MAX_BYTES)?.ok_or_else(none)?;
        Plan::parse(&path, bytes, names)
    }
}

fn check(place: &Place<'_>, file: PlanFile, names: &dyn Names) -> Result<Plan> {
    let folder = place.path.parent().unwrap_or(Path::new(""));
    let join = |p: &String| folder.join(p);
    if file.title.as_ref().len() > 300 || file.title.as_ref().trim().is_empty() {
        let what = format!("title: expected 1 to 300 bytes, found {}", file.title.as_ref().len());
        return Err(place.fault(file.title.span(), what));
    }
    let empty = [
        ("models", file.models.as_ref().is_empty(), file.models.span()),
        ("methods", file.methods.as_ref().is_empty(), file.methods.span()),
        ("tasks", file.tasks.as_ref().is_empty(), file.tasks.span()),
    ];
    if let Some((key, _, at)) = empty.into_iter().find(|(_, empty, _)| *empty) {
        return Err(place.fault(at, format!("{key}: expected at least one, found none")));
    }
    place.short("models", file.models.as_ref().len(), file.models.span())?;
    place.short("methods", file.methods.as_ref().len(), file.methods.span())?;
    place.names("models", file.models.as_ref().iter().map(|m| &m.name))?;
    place.names("methods", file.methods.as_ref().iter().map(|m| &m.name))?;
    let mut models = Vec::new();
    for model in file.models.as_ref() {
        if model.path.as_ref().is_empty() {
            return Err(place.fault(model.path.span(), "path: expected a GGUF file, found nothing"));
        }
        models.push(Model { name: model.name.as_ref().clone(), path: join(model.path.as_ref()) });
    }
    let method = |m| method(place, m, &models, names, &join);
    let methods = file.methods.as_ref().iter().map(method).collect::<Result<_>>()?;
    let mut tasks: Vec<Task> = Vec::new();
    let mut labels = HashSet::new();
    for task in file.tasks.as_ref() {
        for task_of_group in expand(place, &file, task, names, &join)? {
            if !labels.insert(task_of_group.label.clone()) {
                let what =
                    format!("tasks: {:?} stands twice; give one of them another label", task_of_group.label);
                return Err(place.fault(task.name.span(), what));
            }
            tasks.push(task_of_group);
        }
    }
    let plan = Plan {
        path: place.path.into(),
        text: String::new(),
        title: file.title.as_ref().trim().into(),
        models,
        methods,
        tasks,
        data: file.data.as_ref().map(join),
    };
    let n = plan.len();
    if n > MAX_CELLS {
        let what = format!("tasks: expected at most {MAX_CELLS} cells in all, found {n}");
        return Err(place.fault(file.tasks.span(), what));
    }
    Ok(plan)
}

fn method(
    place: &Place<'_>,
    file: &MethodFile,
    models: &[Model],
    names: &dyn Names,
    join: &dyn Fn(&String) -> PathBuf,
) -> Result<Method> {
    let mut reach = false;
    if let Some(text) = &file.spec {
        let spec: Spec = text.as_ref().parse().map_err(|e| place.fault(text.span(), format!("spec: {e}")))?;
        reach = spec.parts().iter().any(|p| {
            ropewalk_core::rope::METHODS.iter().any(|m| m.name == p.name() && m.axis == Axis::Reach)
        });
    }
    if let Some(names) = &file.models {
        for name in names.as_ref() {
            if !models.iter().any(|m| m.name == *name.as_ref()) {
                let known: Vec<_> = models.iter().map(|m| m.name.as_str()).collect();
                let what =
                    format!("models: expected some of {}, found {:?}", known.join(", "), name.as_ref());
                return Err(place.fault(name.span(), what));
            }
        }
        place.names("models", names.as_ref().iter())?;
    }
    let spec = file.spec.as_ref().map(|s| s.as_ref().trim().to_owned());
    let train = match &file.train {
        Some(recipe) => {
            let at = recipe.span();
            let RecipeFile { args, data } = recipe.as_ref();
            if data.is_empty() {
                return Err(place.fault(at, "data: expected texts to train on, found none"));
            }
            // Its options are checked now and not after hours of work.
            let settings = names.training(args, spec.as_deref());
            let settings = settings.map_err(|e| place.fault(at, format!("args: {e}")))?;
            Some(Recipe { args: args.clone(), settings, data: data.iter().map(join).collect() })
        }
        None => None,
    };
    let is_trained = !file.adapters.is_empty() || file.train.is_some();
    let trained = file.trained.unwrap_or(if is_trained { Trained::Trained } else { Trained::Frozen });
    if trained == Trained::Frozen && (is_trained || file.tokens.is_some() || file.parameters.is_some()) {
        let what = "trained: expected \"trained\", for there are adapters, a recipe, tokens or parameters; \
                    found \"frozen\" or nothing";
        return Err(place.fault(file.name.span(), what));
    }
    Ok(Method {
        name: file.name.as_ref().clone(),
        spec,
        adapters: file.adapters.iter().map(join).collect(),
        models: file
            .models
            .iter()
            .flat_map(|list| list.as_ref().iter().map(|n| n.as_ref().clone()))
            .collect(),
        train,
        attention: file.kind.unwrap_or(if reach { Attention::Approximate } else { Attention::Exact }),
        trained,
        tokens: file.tokens,
        parameters: file.parameters,
    })
}

/// The tasks of a name, with the settings given for it.
fn expand(
    place: &Place<'_>,
    plan: &PlanFile,
    file: &TaskFile,
    names: &dyn Names,
    join: &dyn Fn(&String) -> PathBuf,
) -> Result<Vec<Task>> {
    let name = place.name("name", &file.name)?;
    let fault = |what: String| place.fault(file.name.span(), what);
    let known = if OWN.contains(&name) {
        vec![Known { name: name.into(), has_length: true, options: Vec::new() }]
    } else {
        names.tasks(name).map_err(|e| fault(format!("name: {e}")))?
    };
    if known.is_empty() {
        return Err(fault(format!("name: expected a task, found {name:?}, which has none")));
    }
    if known.len() > MAX_CELLS {
        return Err(fault(format!("name: {name:?} has more tasks than a plan may have cells")));
    }
    let has_texts = matches!(name, "perplexity" | "longppl");
    let only = [
        ("protocol", name == "perplexity", file.protocol.is_some()),
        ("stride", name == "perplexity", file.stride.is_some()),
        ("max_windows", has_texts, file.max_windows.is_some()),
        ("texts", has_texts, file.texts.is_some()),
    ];
    if let Some((key, ..)) = only.iter().find(|(_, may, is)| *is && !may) {
        return Err(fault(format!("{key}: expected for perplexity only, found for {name}")));
    }
    let has = |option: &String| known.iter().any(|task| task.options.contains(option));
    if let Some(option) = file.options.keys().find(|option| !has(option)) {
        let mut all: Vec<&str> = known.iter().flat_map(|task| &task.options).map(String::as_str).collect();
        all.sort_unstable();
        all.dedup();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        return Err(fault(format!("options: {name} has no option {option:?}; expected {all}")));
    }
    let texts = file.texts.as_ref().map_or(&plan.texts, |t| t.as_ref());
    if has_texts && texts.is_empty() {
        return Err(fault(format!("texts: {name} expects at least one file, found none")));
    }
    if let Some(own) = file.lengths.as_ref().filter(|_| known.iter().all(|t| !t.has_length)) {
        let what = format!("lengths: {name} is as long as its samples are; give ctx for the context");
        return Err(place.fault(own.span(), what));
    }
    let lengths = match place.lengths(&file.lengths)? {
        Some(own) => own,
        None => place.lengths(&plan.lengths)?.unwrap_or_default(),
    };
    let seeds = match place.seeds(&file.seeds)? {
        Some(own) => own,
        None => place.seeds(&plan.seeds)?.unwrap_or_else(|| vec![None]),
    };
    let samples = |samples| place.count("samples", samples, MAX_COUNT);
    let samples = samples(&file.samples)?.or(samples(&plan.samples)?);
    if let Some(label) = &file.label {
        place.name("label", label)?;
    }
    let is_group = known.len() > 1 || known[0].name != name;
    let label = |task: &str| match &file.label {
        Some(label) if is_group => format!("{}: {task}", label.as_ref()),
        Some(label) => label.as_ref().clone(),
        None => task.to_owned(),
    };
    let mut out = Vec::new();
    for task in known {
        if task.has_length && lengths.is_empty() {
            return Err(fault(format!("lengths: {} expects at least one, found none", task.name)));
        }
        out.push(Task {
            label: label(&task.name),
            group: is_group.then(|| name.to_owned()),
            lengths: if task.has_length { lengths.iter().copied().map(Some).collect() } else { vec![None] },
            // Perplexity draws nothing.
            seeds: if has_texts { vec![None] } else { seeds.clone() },
            samples: if has_texts { None } else { samples },
            ctx: place.count("ctx", &file.ctx, MAX_LENGTH)?,
            options: file.options.iter().map(|(k, v)| (k.clone(), v.to_string())).collect(),
            template: file.template.or(plan.template).unwrap_or_default(),
            // As in `perplexity`.
            protocol: match &file.protocol {
                Some(protocol) => Some(protocol.as_ref().clone()),
                None if task.name == "perplexity" => file.stride.as_ref().map(|_| "stride".to_owned()),
                None => None,
            },
            stride: place.count("stride", &file.stride, MAX_LENGTH)?,
            max_windows: place.count("max_windows", &file.max_windows, MAX_COUNT)?,
            texts: if has_texts { texts.iter().map(join).collect() } else { Vec::new() },
            name: task.name,
        });
    }
    Ok(out)
}
