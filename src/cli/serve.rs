//! `ropewalk serve`: OpenAI's HTTP interface to a model, under one rope method or several.

mod arguments;
mod backend;
mod contents;
mod passkeys;
mod rules;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{bail, ensure, Context};
use clap::{Args as _, FromArgMatches};
use ropewalk::adapter::{fingerprint, AdapterSpec};
use ropewalk::model::Model;
use ropewalk::rope::Spec;
use ropewalk::scheduler::{DiskParams, PlanInfo, Scheduler, SchedulerParams};
use ropewalk::session::{Session, SessionParams};
use ropewalk_core::text::parse_bytes;
use ropewalk_serve::{Card, Options, PlanCard, Sampling, Server, MAX_ANSWERS};
use serde_json::json;
use sha2::{Digest, Sha256};

use self::backend::Backend;
use super::interrupt::Interrupt;
use super::models::{self, ModelChoice};
use super::options::{parse_spec, read_text, tokens, ModelArgs};
use super::output::{self, count, OutputArgs};
use super::{engine, template, usage, Command};

/// Largest default context in tokens.
const CTX_CAP: usize = 8192;
/// Most sequences of a session.
const MAX_PARALLEL: i64 = 64;

pub(crate) const COMMAND: Command = Command {
    name: "serve",
    about: "Serve a model over HTTP, with OpenAI's API",
    details: "Chats, completions, streams, log-probabilities, and tokens, for any OpenAI client. With several \
              --rope, each request runs under the first method whose context has room for prompt and answer, so \
              short requests get the model as it was trained. A request can also name one, in `rope` or as \
              MODEL@SPEC. If plain comes first, its context is at most the trained one. Nothing is cut: a prompt \
              that is too long is an error. Requests that begin alike reuse cached keys, also after a restart if \
              --prefix-dir names a directory. Without an API key, the server answers only programs on this machine. \
              Ctrl-C or SIGTERM ends the server with exit code 0, after running answers, which have --grace seconds; \
              the same signal again ends it at once.",
    example: "serve -m smollm2 --rope plain --rope yarn:factor=2 --ctx 16384\n\
              serve -m smollm2 --api-key-file keys.txt --host 0.0.0.0 --parallel 8",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Address to listen on; any except a loopback address needs --api-key-file
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host)]
    host: IpAddr,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// File of API keys, one per line; each request needs one
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Web origin that can send requests from a browser, such as https://chat.example.org; can be repeated
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    origin: Vec<String>,
    /// Name of the model in requests and answers [default: the file's]
    #[arg(long, value_name = "NAME")]
    alias: Option<String>,
    /// Jinja file to use as the chat template [default: the model's]
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Maximum tokens of one request, answer included [default: the trained context, at most 8192]
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
    /// Maximum number of requests that run at once under each method; others wait
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=MAX_PARALLEL))]
    parallel: u16,
    /// Directory for cached texts that no longer fit in memory; also used after a restart
    #[arg(long, value_name = "DIR")]
    prefix_dir: Option<PathBuf>,
    /// Maximum size of all files in --prefix-dir
    #[arg(long, value_name = "SIZE", default_value = "20GiB", value_parser = parse_bytes, requires = "prefix_dir")]
    prefix_bytes: usize,
    /// Reject scores of prompts, and save the memory of their logits
    #[arg(long)]
    no_scores: bool,
    /// Parse special tokens such as <|im_start|> in messages
    #[arg(long)]
    trust_contents: bool,
    /// Seconds that answers have to end after a signal
    #[arg(long, value_name = "S", default_value_t = 30)]
    grace: u64,
    /// RoPE method, such as yarn:factor=4; repeat to offer several [default: declared]
    ///
    /// A spec is `name[:key=value,...]`. A request runs under the first method, in this order, that has room for it, or under
    /// the one that it names. Each method has its own cache
    #[arg(long, value_name = "SPEC", help_heading = "Rope")]
    rope: Vec<String>,
    /// LoRA adapter that requests choose by NAME as their model; can be repeated
    ///
    /// FILE is as in --lora. Each adapter has its own cache under each method
    #[arg(long, value_name = "NAME=FILE[:S]", value_parser = named_adapter)]
    adapter: Vec<(String, AdapterSpec)>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text.parse().map_err(|_| "expected an IP address or localhost".to_owned()),
    }
}

/// An origin as browsers send it.
fn origin(text: &str) -> Result<String, String> {
    let url = url::Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let with = url.map(|url| (url.origin().ascii_serialization(), url));
    match with {
        Some((origin, url)) if url.as_str() == format!("{origin}/") => Ok(origin),
        _ => Err("expected http:// or https:// and a host, without a path".to_owned()),
    }
}

fn named_adapter(text: &str) -> Result<(String, AdapterSpec), String> {
    let (name, file) = text.split_once('=').unwrap_or_default();
    if file.is_empty() || name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic() && b != b'@') {
        return Err("expected NAME=FILE with a name of visible ASCII characters without @".to_owned());
    }
    Ok((name.to_owned(), file.parse()?))
}

/// A rope method by its name in requests, and the session that it gets.
struct Plan {
    name: String,
    session: SessionParams,
}

fn run(args: &Args) -> anyhow::Result<()> {
    let specs = specs(&args.rope)?;
    ensure!(args.alias.as_deref() != Some(""), usage("--alias: expected a name, found an empty one"));
    let keys = args.api_key_file.as_deref().map(keys).transpose()?.unwrap_or_default();
    if keys.is_empty() && !args.host.is_loopback() {
        let host = args.host;
        return Err(usage(format!("--host {host}: other machines can reach it: pass --api-key-file FILE")));
    }
    let choice = args.model.resolve_to_write()?.with_template(args.template.as_deref())?;
    check_names(&id(args, &choice), &args.adapter)?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let template = template::ready(&model, &interrupt.control())?.dated_by_use();
    if template.is_fallback() {
        args.out.note("note: the file has no chat template; using the ChatML form");
    }
    let mut models = vec![model.clone()];
    for (_, adapter) in &args.adapter {
        models.push(model.with_adapters(std::slice::from_ref(adapter))?);
    }
    let plans = plans(args, &choice, &model, specs)?;
    let sessions = plans.iter().map(|plan| plan.session.clone()).collect();
    let disk = |dir: &PathBuf| DiskParams::new(dir, args.prefix_bytes as u64).n_owners(keys.len());
    let disk = args.prefix_dir.as_ref().map(disk);
    // Room for every answer of one request while another's wait, for each key: with less, some could never be served.
    let n_waiting = 2 * MAX_ANSWERS;
    let params = SchedulerParams::new(sessions).n_running(args.parallel.into()).n_waiting(n_waiting);
    let params = params.scores(!args.no_scores).disk(disk);
    let scheduler = Scheduler::with_models(&models, params)?;
    let card = card(args, &choice, &models, &plans, scheduler.plans());
    let mut infos = scheduler.plans().chunks(plans.len());
    for (plan, info) in plans.iter().zip(infos.next().unwrap_or_default()) {
        announce(&args.out, &choice, &plan.name, plan, info);
    }
    for ((name, adapter), infos) in args.adapter.iter().zip(infos) {
        let mut choice = choice.clone();
        choice.params.adapters.push(adapter.clone());
        for (plan, info) in plans.iter().zip(infos) {
            announce(&args.out, &choice, &format!("{name}@{}", plan.name), plan, info);
        }
    }

    let name = card.id.clone();
    let backend = Backend::new(card, model, scheduler, template, &interrupt, args.trust_contents)?;
    let backend = Arc::new(backend);
    let address = SocketAddr::new(args.host, args.port);
    let served: Arc<dyn ropewalk_serve::Backend> = backend.clone();
    let options = Options::default().keys(keys).origin(args.origin.clone());
    let server = Server::bind(address, options, served).with_context(|| address.to_string())?;
    let url = format!("http://{}", server.local_addr());
    if args.out.json {
        let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
        output::print_json(&json!({ "url": url, "model": name, "plans": names }))?;
    }
    args.out.note(format_args!("{name}: listening at {url}"));
    let warn = || {
        let warnings = backend.scheduler.warnings();
        warnings.iter().for_each(|warning| args.out.note(format_args!("warning: {warning}")));
    };
    let stop = || {
        warn();
        interrupt.requested()
    };
    let result = server.run(stop, Duration::from_secs(args.grace));
    backend.scheduler.stop(Duration::ZERO);
    warn();
    result.context("cannot answer requests")
}

/// The methods with their names in requests; what the file declares, if none was given.
fn specs(typed: &[String]) -> anyhow::Result<Vec<(String, Option<Spec>)>> {
    let mut specs: Vec<(String, Option<Spec>)> = Vec::new();
    for text in typed {
        let spec = parse_spec(text)?;
        if specs.iter().any(|(_, other)| other.as_ref() == Some(&spec)) {
            return Err(usage(format!("--rope {text}: expected each method once, found it again")));
        }
        specs.push((text.clone(), Some(spec)));
    }
    if specs.is_empty() {
        specs.push(("declared".to_owned(), None));
    }
    Ok(specs)
}

/// The name of the model in requests.
fn id(args: &Args, choice: &ModelChoice) -> String {
    let stem = choice.path.file_stem().unwrap_or(choice.path.as_os_str());
    args.alias.clone().unwrap_or_else(|| stem.to_string_lossy().into_owned())
}

/// Checks that each name is one model's.
fn check_names(id: &str, adapters: &[(String, AdapterSpec)]) -> anyhow::Result<()> {
    for (i, (name, _)) in adapters.iter().enumerate() {
        let what = "expected a name that no model has, found it again";
        let is_new = name != id && adapters[..i].iter().all(|(other, _)| other != name);
        ensure!(is_new, usage(format!("--adapter {name}: {what}")));
    }
    Ok(())
}

/// The keys of a file.
fn keys(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = read_text(path)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    match keys.iter().position(|key| !key.bytes().all(|b| b.is_ascii_graphic())) {
        // Not the key itself.
        Some(i) => {
            bail!("{}: key {}: expected visible ASCII characters, found others", path.display(), i + 1)
        }
        None if keys.is_empty() => bail!("{}: expected keys, one a line, found none", path.display()),
        None => Ok(keys),
    }
}

/// The sessions, with room for as many requests of full length as memory has, up to those that run at once.
fn plans(
    args: &Args,
    choice: &ModelChoice,
    model: &Model,
    specs: Vec<(String, Option<Spec>)>,
) -> anyhow::Result<Vec<Plan>> {
    let n_ctx = args.ctx.unwrap_or_else(|| engine::default_ctx(model, CTX_CAP, 1));
    let (n_plans, parallel) = (specs.len(), usize::from(args.parallel));
    let n_caches = n_plans * (1 + args.adapter.len());
    let plan = |(i, (name, spec)): (usize, (String, Option<Spec>))| -> anyhow::Result<Plan> {
        // Those that follow take what is longer.
        let is_short = i == 0 && n_plans > 1 && spec == Some(Spec::plain());
        let n_ctx = if is_short { n_ctx.min(model.hparams().n_ctx_train) } else { n_ctx };
        let session = choice.session(n_ctx, spec.as_ref());
        // Each gets an equal part of the memory.
        let all = Session::n_seq_fitting(model, &session, parallel.saturating_mul(n_caches))?;
        Ok(Plan { name, session: session.n_seq_max((all / n_caches).clamp(1, parallel)) })
    };
    specs.into_iter().enumerate().map(plan).collect()
}

fn card(args: &Args, choice: &ModelChoice, models: &[Model], plans: &[Plan], infos: &[PlanInfo]) -> Card {
    let model = &models[0];
    let (vocab, hp, file) = (model.vocab(), model.hparams(), model.file());
    let text = |token| {
        let bytes = vocab.piece(token, true).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let mut hash = Sha256::new();
    hash.update(format!("{}{:?}{}", fingerprint(file), choice.session, env!("CARGO_PKG_VERSION")));
    models.iter().flat_map(Model::adapters).for_each(|adapter| hash.update(adapter.digest()));
    let print = ropewalk_core::text::hex(&hash.finalize()[..6]);
    let plan = |(plan, info): (&Plan, &PlanInfo)| PlanCard {
        name: plan.name.clone(),
        spec: info.spec.clone(),
        n_max: info.n_max,
        beyond_trained: info.beyond_trained,
        evicts: info.evicts,
        n_answer: info.n_answer,
        notes: info.notes.clone(),
    };
    Card {
        id: id(args, choice),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        fingerprint: format!("fp_{print}"),
        n_ctx_train: hp.n_ctx_train,
        n_params: file.tensors().iter().map(|tensor| tensor.n_elements() as u64).sum(),
        n_bytes: model.n_bytes() as u64,
        n_vocab: vocab.n_tokens(),
        n_embd: hp.n_embd,
        bos: vocab.bos().filter(|_| vocab.add_bos()).map(text),
        eos: vocab.eos().map(text),
        chat_template: model.chat_template().map(str::to_owned),
        file: models::name(&choice.path),
        build: concat!("ropewalk ", env!("CARGO_PKG_VERSION")).to_owned(),
        sampling: Sampling::default(),
        n_running: args.parallel.into(),
        saves: args.prefix_dir.is_some(),
        adapters: args.adapter.iter().map(|(name, _)| name.clone()).collect(),
        scales: args.adapter.iter().map(|(_, adapter)| adapter.scale).collect(),
        plans: plans.iter().cycle().zip(infos).map(plan).collect(),
    }
}

/// Says what one request may have under a plan, and how many of these have room.
fn announce(out: &OutputArgs, choice: &ModelChoice, name: &str, plan: &Plan, info: &PlanInfo) {
    out.note(format_args!("{}: {}", models::label(choice), info.summary));
    let most = match info.n_answer {
        Some(n) => {
            format!("any number of tokens a request, {} of an answer without max_tokens", count(n as u64))
        }
        None => format!("up to {} tokens a request", count(info.n_max as u64)),
    };
    let n = plan.session.n_seq_max;
    let requests = if n == 1 { "request" } else { "requests" };
    out.note(format_args!("{name}: {most}; memory for {n} {requests} of that length"));
    info.notes.iter().for_each(|note| out.note(format_args!("note: {note}")));
}
