//! `ropewalk pull hf:ORG/REPO`: a model's folder, and the GGUF file made of it.

use std::path::{Path, PathBuf};

use anyhow::{ensure, Context};
use convert::{types, Mixture, Options, Tokenizing};
use ropewalk::control::{Control, Progress};
use ropewalk::fetch::{self, PulledFolder, Repo};
use ropewalk::origin::{make_file, sha256_of, Origin};
use ropewalk_core::apart::this_program;
use ropewalk_core::text::bytes;
use serde_json::json;

use super::{hub, Args};
use crate::cli::convert::failed;
use crate::cli::engine::{draw, with_bar};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::{self, Unit};
use crate::cli::{models, usage};

pub(super) fn run(args: &Args, repo: &Repo) -> anyhow::Result<()> {
    ensure!(args.sha256.is_none(), usage("--sha256 applies to one file, and a model directory has several"));
    let options = options(args)?;
    let dir = args.dir.clone().map_or_else(models::cache_dir, Ok)?;
    let interrupt = Interrupt::install()?;
    let notes = |text: std::fmt::Arguments<'_>| args.out.note(text);
    let pulled = {
        let show = draw(args.out.progress(0, repo.name(), Unit::Bytes));
        let control = interrupt.control().with_progress(&show).with_notes(&notes);
        fetch::pull_folder(&hub(args)?, repo, args.name.as_deref(), &dir, &control)?
    };
    args.out.note(format_args!(
        "{}: {}, {} files, {}, commit {}",
        pulled.path.display(),
        if pulled.files.iter().any(|f| f.fresh) { "fetched" } else { "already here" },
        pulled.files.len(),
        bytes(pulled.files.iter().map(|f| f.bytes).sum()),
        pulled.revision,
    ));
    let target = target(&pulled.path, args.dtype.as_deref());
    let converted = match args.convert {
        true => Some(converted(args, repo, &pulled, target, &options, &interrupt)?),
        false => {
            args.out.note(format_args!(
                "next: ropewalk convert {} -o {}, or the same pull with --convert",
                pulled.path.display(),
                target.display()
            ));
            None
        }
    };
    if args.out.json {
        return output::print_json(&json!({ "source": repo.to_string(), "revision": pulled.revision,
            "folder": pulled.path, "files": pulled.files, "converted": converted }));
    }
    output::print(&format!("{}\n", converted.as_ref().unwrap_or(&pulled.path).display()))
}

/// Settings of the conversion: `--type` and `--pre`.
fn options(args: &Args) -> anyhow::Result<Options> {
    let helper = this_program().context("cannot find this program to run the tokenizer")?;
    let mut options = Options::default().pre(args.pre.clone()).tokenizing(Some(Tokenizing::Apart(helper)));
    if let Some(name) = &args.dtype {
        match types::parse(name) {
            Ok(dtype) => options.dtype = Some(dtype),
            Err(_) if types::is_mixture(name) => {
                options.mixture = Some(Mixture::default().name(name.clone()))
            }
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(options)
}

/// `FOLDER.gguf`, or `FOLDER-TYPE.gguf`.
fn target(folder: &Path, dtype: Option<&str>) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    if let Some(dtype) = dtype {
        name.push(format!("-{}", dtype.to_ascii_lowercase()));
    }
    name.push(".gguf");
    folder.with_file_name(name)
}

/// Converts the folder, unless that was done before.
fn converted(
    args: &Args,
    repo: &Repo,
    pulled: &PulledFolder,
    target: PathBuf,
    options: &Options,
    interrupt: &Interrupt,
) -> anyhow::Result<PathBuf> {
    let shown = target.display();
    let made = with_bar(args.out.progress(0, "converting", Unit::Bytes), interrupt, |control| {
        make_file(&target, |at| {
            let mut report = convert::convert(&pulled.path, at, options, control)
                .map_err(|e| failed(e.renamed(at, &target)))?;
            let (from, to) = (at.display().to_string(), shown.to_string());
            report.notes.iter_mut().for_each(|note| *note = note.replace(&from, &to));
            // Made is made: a request to stop that comes now would throw the work away.
            let show = |p: &Progress<'_>| control.report(p.what, p.done, p.total);
            let (sha256, bytes) = sha256_of(at, &Control::default().with_progress(&show))?;
            let (source, revision) = (repo.to_string(), Some(pulled.revision.clone()));
            Ok::<_, anyhow::Error>((report, Origin { source, revision, bytes, sha256 }))
        })
    })?;
    let Some(report) = made else {
        let same = |o: &Origin| {
            o.source == repo.to_string() && o.revision.as_deref() == Some(pulled.revision.as_str())
        };
        let found = Origin::read(&target)?.filter(same);
        ensure!(
            found.is_some_and(|o| target.metadata().is_ok_and(|m| m.is_file() && m.len() == o.bytes)),
            "{shown}: already exists, and no record says that it was made from this commit of {repo}; \
             choose another directory or name"
        );
        args.out.note(format_args!("{shown}: already converted"));
        return Ok(target);
    };
    report.notes.iter().for_each(|note| args.out.note(format_args!("{note}")));
    let real = |path: PathBuf| path.canonicalize().ok();
    let found = models::made_of(repo, &models::dirs()?).ok().and_then(real);
    let name =
        if found.is_some() && found == real(target.clone()) { repo.to_string() } else { shown.to_string() };
    args.out.note(format_args!("{shown}: {}; run it: ropewalk run -m {name}", bytes(report.bytes)));
    Ok(target)
}
