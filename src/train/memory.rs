//! What training is going to need, part by part, before any of it is asked for.

use ggml::backend::Backend;
use ggml::graph::Executor;
use ggml::tensor::Store;

use super::attend::Cache;
use super::keep::{self, Keep};
use super::layer::{Block, Ctx};
use super::params::{self, Params};
use super::TrainParams;
use crate::graph::Abilities;
use crate::model::{Error, Model, Result};
use crate::rope::{Plan, Spec};

/// Bytes, on the device and on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// What is kept between the runs.
    pub keep: Keep,
    /// Part by part: what it is, bytes on the device, bytes on the host.
    pub parts: Vec<(&'static str, usize, usize)>,
    /// Tokens of a sequence.
    pub n_ctx: usize,
}

/// Memory to fit into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes on the device.
    pub device: usize,
    /// Bytes on the host; `None` where they are the same memory.
    pub host: Option<usize>,
}

impl Budget {
    /// What is free where a model is, and its weights.
    pub fn of(model: &Model) -> Budget {
        let device = model.backend_device();
        let host = (!device.is_cpu())
            .then(|| ggml::backend::Device::find("cpu").map_or(usize::MAX, |d| d.memory_free()));
        Budget { device: device.memory_free().saturating_add(model.n_bytes()), host }
    }
}

pub(super) fn plan(model: &Model, settings: &TrainParams) -> Result<Plan> {
    let hp = model.hparams();
    let spec = settings.rope.clone().map_or_else(|| Spec::declared(hp), Ok)?;
    let plan = Plan::new(&spec, hp, settings.n_ctx)?;
    if !plan.is_plain_reach() {
        return Err(Error::Invalid(format!(
            "rope {spec}: training is under plain attention; expected frequencies only (pi, ntk, yarn, abf, sba, harpe ...)"
        )));
    }
    Ok(plan)
}

pub(super) fn abilities(model: &Model, settings: &TrainParams) -> Abilities {
    let custom_ops = model.backend_device().is_cpu() && !settings.portable;
    Abilities { custom_ops, widen: None, flash: false }
}

impl MemoryPlan {
    /// Works out what training at `settings.n_ctx` needs. Nothing of that size is allocated: graphs are measured over
    /// tensors that have no memory.
    ///
    /// # Errors
    /// Settings that cannot be: what they say names them.
    pub fn new(model: &Model, settings: &TrainParams) -> Result<MemoryPlan> {
        check(settings)?;
        // As much again is left to others.
        let Budget { device, host } = Budget::of(model);
        let half = Budget { device: device / 2, host: host.map(|n| n / 2) };
        let Some(keep) = settings.keep else {
            let all = [Keep::Products, Keep::Attention, Keep::Inputs];
            for keep in all {
                let plan = MemoryPlan::with(model, settings, keep)?;
                if keep == Keep::Inputs || plan.fits(half) {
                    return Ok(plan);
                }
            }
            return MemoryPlan::with(model, settings, Keep::Inputs);
        };
        MemoryPlan::with(model, settings, keep)
    }

    fn with(model: &Model, settings: &TrainParams, keep: Keep) -> Result<MemoryPlan> {
        let (hp, device, n_ctx) = (model.hparams(), model.backend_device(), settings.n_ctx);
        let rope = plan(model, settings)?;
        let params = Params::planned(model, &settings.lora)?;
        let cache = Cache::new(Store::planned(device, Cache::defs(hp, n_ctx)?)?);
        let abilities = abilities(model, settings);
        let ctx = Ctx {
            model,
            plan: &rope,
            params: &params,
            cache: &cache,
            abilities,
            keep,
            dropout: settings.lora.dropout,
            wide_bytes: settings.wide_bytes,
        };
        let mut exec = Executor::new(Backend::new(device, 1)?)?;
        let n = settings.n_block.min(n_ctx);
        let last = Block { il: hp.n_layer - 1, start: n_ctx - n, n };
        let graphs = [
            exec.measure(ctx.max_tensors(), |b| ctx.forward(b, last).map(|_| ()))?,
            exec.measure(ctx.max_tensors(), |b| ctx.keys(b, last).map(|_| ()))?,
            exec.measure(ctx.max_tensors(), |b| ctx.backward(b, last, n == n_ctx).map(|_| ()))?,
            exec.measure(ctx.max_tensors(), |b| ctx.loss(b, n, true).map(|_| ()))?,
        ];
        let trained: usize = params::shapes(model, &settings.lora)?.iter().map(|(_, s)| s[0] * s[1]).sum();
        let kept: usize = keep::widths(hp, keep).iter().map(|(_, w)| w).sum();
        let rows = |width: usize| {
            let per_token = width.saturating_mul(settings.keep_type.bytes());
            per_token.saturating_mul(n_ctx).saturating_mul(hp.n_layer)
        };
        let parts = vec![
            ("weights", model.n_bytes(), 0),
            ("trained tensors and gradients", trained * 8, trained * 8),
            ("optimiser", 0, trained * 8),
            ("a checkpoint while it is written", 0, trained * 24),
            ("keys, values and their gradients of a layer", cache.n_bytes(), 0),
            ("graphs", graphs.into_iter().max().unwrap_or(0), 0),
            ("layer inputs", 0, rows(hp.n_embd)),
            ("kept results of layers", 0, rows(kept)),
            ("gradient between layers", 0, hp.n_embd.saturating_mul(n_ctx).saturating_mul(4)),
        ];
        Ok(MemoryPlan { keep, parts, n_ctx })
    }

    /// Bytes on the device and on the host. On the CPU they are the same memory.
    pub fn totals(&self) -> (usize, usize) {
        let sum = |f: fn(&(&'static str, usize, usize)) -> usize| {
            self.parts.iter().map(f).fold(0, usize::saturating_add)
        };
        (sum(|p| p.1), sum(|p| p.2))
    }

    /// Whether it fits.
    pub fn fits(&self, budget: Budget) -> bool {
        let (device, host) = self.totals();
        match budget.host {
            None => device.saturating_add(host) <= budget.device,
            Some(most) => device <= budget.device && host <= most,
        }
    }

    /// The longest context that fits, in steps of 256 tokens; `None` when not even the shortest does.
    ///
    /// # Errors
    /// Settings that cannot be, whatever the context.
    pub fn largest(model: &Model, settings: &TrainParams, budget: Budget) -> Result<Option<usize>> {
        const STEP: usize = 256;
        let fits = |steps: usize| -> Result<bool> {
            let keep = settings.keep.or(Some(Keep::Inputs));
            let settings = TrainParams { n_ctx: steps * STEP, keep, ..settings.clone() };
            // Under a method that cannot serve a length, it does not fit.
            Ok(MemoryPlan::new(model, &settings).is_ok_and(|plan| plan.fits(budget)))
        };
        let (mut low, mut high) = (0, 1);
        while high < i32::MAX as usize / STEP / 2 && fits(high)? {
            (low, high) = (high, high * 2);
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match fits(middle)? {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok(Some(low * STEP).filter(|&n| n > 0))
    }

    /// An error when it does not fit into what is free.
    pub fn check(&self, model: &Model) -> Result<()> {
        let budget = Budget::of(model);
        if !self.fits(budget) {
            let (device, host) = self.totals();
            let there = budget.host.map_or(String::new(), |n| format!(" and {n} on the host"));
            return Err(Error::Invalid(format!(
                "training at ctx {} needs {device} bytes on {} and {host} on the host, {} are there{there}; --plan-memory shows what for",
                self.n_ctx,
                model.device(),
                budget.device
            )));
        }
        Ok(())
    }
}

fn check(settings: &TrainParams) -> Result<()> {
    let most = i32::MAX as usize;
    if settings.n_ctx == 0 || settings.n_ctx > most {
        return Err(Error::Invalid(format!("ctx: expected 1 to {most} tokens, found {}", settings.n_ctx)));
    }
    if settings.n_block == 0 {
        return Err(Error::Invalid("block: expected at least 1 token, found 0".into()));
    }
    Ok(())
}
