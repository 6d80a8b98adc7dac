//! `--plan-memory`: the memory that training is going to need, part by part, before any of it is allocated.

use ropewalk::finetune::{Job, NO_METHOD};
use ropewalk::model::Model;
use ropewalk::train::{Budget, Checkpointing, MemoryPlan, TrainParams};
use ropewalk_core::text::bytes;
use serde_json::json;

use super::super::output::{self, count};
use super::args::Args;

pub(super) fn show(args: &Args, job: &Job, model: &Model, settings: &TrainParams) -> anyhow::Result<()> {
    let mut settings = match job.at_context(model, settings) {
        // Memory does not depend on the tokens that a recipe's method lacks.
        Err(_) if job.transform.is_none() => {
            let mut plain = job.clone();
            plain.transform = Some(NO_METHOD.to_owned());
            plain.at_context(model, settings)?
        }
        made => made?,
    };
    let asked = args.plan_memory.flatten();
    if asked.is_some() {
        // A GPU runs ordinary ops, and saved activations are on the host.
        settings.portable = true;
        settings.checkpointing = settings.checkpointing.or(Some(Checkpointing::Inputs));
    }
    let plan = MemoryPlan::new(model, &settings)?;
    let (device, host) = plan.totals();
    let budget = asked.map_or_else(|| Budget::of(model), |device| Budget { device, host: Some(usize::MAX) });
    let longest = MemoryPlan::largest(model, &settings, budget)?;
    if args.out.json {
        let parts: Vec<_> = plan
            .parts
            .iter()
            .map(|(name, device, host)| json!({ "part": name, "device": device, "host": host }))
            .collect();
        return output::print_json(&json!({
            "ctx": plan.n_ctx,
            "checkpointing": plan.checkpointing.to_string(),
            // Its older name, which stays.
            "keep": plan.checkpointing.to_string(),
            "parts": parts,
            "device": device,
            "host": host,
            "memory": budget.device,
            "longest_ctx": longest,
        }));
    }
    let longest =
        longest.map_or("not even 256 tokens fit".to_owned(), |n| format!("{} tokens", count(n as u64)));
    output::print(&format!(
        "{}\nlongest context in {}: {longest}\n",
        plan.text(),
        bytes(budget.device as u64)
    ))
}
