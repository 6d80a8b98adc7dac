//! Another model, or another setting of the same one, token by token: for `perplexity --against`.

use ropewalk::eval::divergence::{self, Params, Report};
use ropewalk::eval::Document;
use ropewalk::rope::Spec;
use ropewalk::session::Session;
use serde_json::json;

use super::against::{self, Against};
use super::engine::draw;
use super::interrupt::{self, Interrupt};
use super::models::{self, ModelChoice};
use super::output::{OutputArgs, Unit};
use super::usage;

/// The texts to compare on, and the windows of them.
pub(crate) struct Windows {
    pub(crate) documents: Vec<Document>,
    /// Tokens of a window; `None` is the trained length.
    pub(crate) length: Option<usize>,
    /// The context, where it is more than a window.
    pub(crate) ctx: Option<usize>,
    /// Windows at most.
    pub(crate) most: Option<usize>,
    pub(crate) bucket: Option<usize>,
}

/// Compares the model with the other setting.
pub(crate) fn run(
    a: &ModelChoice,
    rope: Option<&Spec>,
    against: &[Against],
    windows: &Windows,
    out: OutputArgs,
) -> anyhow::Result<()> {
    let (b, rope_b) = against::other(against, a, rope)?;
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
    let length = windows.length.unwrap_or(model_a.hparams().n_ctx_train);
    let n_ctx = length.max(windows.ctx.unwrap_or(0));
    let mut session_a = Session::new(&model_a, &a.session(n_ctx, rope))?;
    models::announce(&out, a, &session_a);
    let mut session_b = Session::new(model_b, &b.session(n_ctx, rope_b.as_ref()))?;
    models::announce(&out, &b, &session_b);
    let params = Params::new(length).max_windows(windows.most).bucket(windows.bucket);
    let draw = draw(out.progress(0, "comparing", Unit::Tokens));
    let control = interrupt.control().with_progress(&draw);
    let names = [models::label(a), models::label(&b)];
    let names = [names[0].as_str(), names[1].as_str()];
    let report =
        divergence::run(&mut session_a, &mut session_b, names, &windows.documents, &params, &control)?;
    let mut row = serde_json::to_value(&report)?;
    row["task"] = "divergence".into();
    row["finished"] = (!report.interrupted).into();
    row["rope"] = report.b.rope.clone().into();
    out.result(&json!({"model": report.a.model, "results": [row]}), || Report::text(&report))?;
    interrupt::check(report.interrupted, "interrupted: the figures cover the completed part")
}
