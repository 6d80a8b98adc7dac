//! `--plan-memory`: the memory that training is going to need, part by part, before any of it is allocated.

use std::fmt::Write;

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
    let budget = match asked {
        Some(device) => Budget { device, host: Some(usize::MAX) },
        None => Budget::of(model),
    };
    let longest = MemoryPlan::largest(model, &settings, budget)?;
    if args.out.json {
        let parts: Vec<_> = plan
            .parts
            .iter()
            .map(|(name, device, host)| json!({ "part": name, "device": device, "host": host }))
            .collect();
        return output::print_json(&json!({
            "ctx": plan.n_ctx,
            "checkpointing": plan.checkpointing,
            // Its older name, which stays.
            "keep": plan.checkpointing,
            "parts": parts,
            "device": device,
            "host": host,
            "memory": budget.device,
            "longest_ctx": longest,
        }));
    }
    let mut text =
        format!("training at context {}, {}\n\n", count(plan.n_ctx as u64), setting(plan.checkpointing));
    let cell = |n: usize| if n == 0 { "-".to_owned() } else { bytes(n as u64) };
    writeln!(text, "{:44} {:>12} {:>12}", "", "device", "host")?;
    for (name, device, host) in plan.parts.iter().chain([&("all together", device, host)]) {
        writeln!(text, "{name:44} {:>12} {:>12}", cell(*device), cell(*host))?;
    }
    let longest =
        longest.map_or("not even 256 tokens fit".to_owned(), |n| format!("{} tokens", count(n as u64)));
    output::print(&format!("{text}\nlongest context in {}: {longest}\n", bytes(budget.device as u64)))
}

/// The setting as `--set` takes it.
pub(super) fn setting(checkpointing: Checkpointing) -> &'static str {
    match checkpointing {
        Checkpointing::Inputs => "checkpointing=inputs",
        Checkpointing::Attention => "checkpointing=attention",
        Checkpointing::Products => "checkpointing=products",
    }
}
