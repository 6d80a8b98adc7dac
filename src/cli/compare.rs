//! Another model, or another setting of the same one, token by token: for `perplexity --against`.

use ropewalk::adapter::AdapterSpec;
use ropewalk::eval::divergence::{self, Params, Report};
use ropewalk::eval::Document;
use ropewalk::rope::Spec;
use ropewalk::session::Session;
use ropewalk::DType;
use serde_json::json;

use super::engine::draw;
use super::interrupt::{stopped, Interrupt};
use super::models::{self, ModelChoice};
use super::options::{parse_spec, KV_TYPES};
use super::output::{self, OutputArgs, Unit};
use super::usage;

/// What is different on the other side.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// Another file.
    Model(String),
    /// Another rope method.
    Rope(Spec),
    /// Another type of the cached keys and values.
    Kv(DType),
    /// An adapter in place of those of the first side.
    Lora(AdapterSpec),
}

impl Change {
    /// Reads a value of `--against`.
    pub(crate) fn read(text: &str) -> anyhow::Result<Change> {
        let refused = |e: String| usage(format!("--against {text}: {e}"));
        match text.split_once('=') {
            Some(("rope", spec)) => parse_spec(spec).map(Change::Rope),
            Some(("kv", kv)) => {
                let found = DType::parse(kv).filter(|_| KV_TYPES.contains(&kv));
                found.map(Change::Kv).ok_or_else(|| refused(format!("expected {}", KV_TYPES.join(", "))))
            }
            Some(("lora", adapter)) => adapter.parse().map(Change::Lora).map_err(refused),
            _ => Ok(Change::Model(text.to_owned())),
        }
    }
}

/// Compares the model with itself, or another, under these changes.
pub(crate) fn run(
    a: &ModelChoice,
    rope: Option<&Spec>,
    changes: Vec<Change>,
    documents: &[Document],
    params: (Option<usize>, Option<usize>, Option<usize>),
    out: OutputArgs,
) -> anyhow::Result<()> {
    let (mut b, mut rope_b) = (a.clone(), rope.cloned());
    let mut adapters = Vec::new();
    for change in changes {
        match change {
            Change::Model(model) => b.path = models::find(&model)?,
            Change::Rope(spec) => rope_b = Some(spec),
            Change::Kv(kv) => b.session.kv_type = kv,
            Change::Lora(adapter) => adapters.push(adapter),
        }
    }
    // Adapters of the first side belong to its weights.
    if !adapters.is_empty() || b.path != a.path {
        b.params.adapters = adapters;
    }
    let same_weights = b.path == a.path && b.params.adapters == a.params.adapters;
    if same_weights && rope_b.as_ref() == rope && b.session.kv_type == a.session.kv_type {
        return Err(usage(
            "--against: expected another model, rope=, kv= or lora=, found the same as without it",
        ));
    }
    let interrupt = Interrupt::install()?;
    let model_a = models::load(a, &out)?;
    // One copy of the weights where they are the same.
    let other = if same_weights { None } else { Some(models::load(&b, &out)?) };
    let model_b = other.as_ref().unwrap_or(&model_a);
    let (ctx, max_windows, bucket) = params;
    let ctx = ctx.unwrap_or(model_a.hparams().n_ctx_train);
    let mut session_a = Session::new(&model_a, &a.session(ctx, rope))?;
    models::announce(&out, a, &session_a, rope.is_some());
    let mut session_b = Session::new(model_b, &b.session(ctx, rope_b.as_ref()))?;
    models::announce(&out, &b, &session_b, rope_b.is_some());
    let params = Params { ctx, max_windows, bucket };
    let draw = draw(out.progress(0, "comparing", Unit::Tokens));
    let control = interrupt.control().with_progress(&draw);
    let names = [models::label(a), models::label(&b)];
    let names = [names[0].as_str(), names[1].as_str()];
    let report = divergence::run(&mut session_a, &mut session_b, names, documents, &params, &control)?;
    if out.json {
        let mut row = serde_json::to_value(&report)?;
        row["finished"] = (!report.interrupted).into();
        row["rope"] = report.b.rope.clone().into();
        output::print_json(&json!({"model": report.a.model, "results": [row]}))?;
    } else {
        output::print(&Report::text(&report))?;
    }
    if report.interrupted {
        return Err(stopped("interrupted: the figures cover what was done"));
    }
    Ok(())
}
