//! The memory that training needs, part by part, computed before any of it is allocated.

use ropewalk_core::text::{bytes, count};

use super::layer::{Block, Ctx, Setup};
use super::saved::{self, Checkpointing};
use super::seen::{self, TrainAttention};
use super::{clex, TrainParams};
use crate::graph::Capabilities;
use crate::math::Math;
use crate::model::{Error, Model, Result};
use crate::rope::{Plan, Spec};

/// Bytes, on the device and on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// Which activations are saved.
    pub checkpointing: Checkpointing,
    /// Each part: its name, bytes on the device, bytes on the host.
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
    /// The free memory of a model's device (and of the host), plus that of the model's weights, which are
    /// part of the plan.
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
    let plan = Plan::new(&spec, hp, settings.attention.n_positions(settings.planned_ctx()))?;
    check_reach(model, settings, &plan)?;
    if settings.attention.landmarks().is_some() {
        model.check_landmarks(&plan, capabilities(model, settings).custom_ops)?;
    }
    let own = settings.attention.landmarks().is_some() || clex::shape(&plan, hp)?.is_some();
    if own && settings.planned_ctx() > settings.n_ctx {
        return Err(Error::Unsupported(format!(
            "positions: expected {} consecutive tokens, found a context of {}: landmark attention and clex \
             assign their own positions",
            settings.n_ctx,
            settings.planned_ctx()
        )));
    }
    Ok(plan)
}

/// Refuses what is not defined, or not built, under a method that says which keys queries see.
fn check_reach(model: &Model, settings: &TrainParams, plan: &Plan) -> Result<()> {
    let hp = model.hparams();
    let kinds = || hp.attention.iter().zip(plan.kinds());
    if kinds().all(|(layer, kind)| kind.is_own_reach(layer)) {
        return Ok(());
    }
    let refuse = |what: String| Err(Error::Unsupported(format!("rope {}: {what}", plan.spec)));
    let n = plan.kinds().iter().map(|kind| kind.branches.len()).max().unwrap_or(1);
    let (n_ctx, n_positions) = (settings.n_ctx, settings.planned_ctx());
    match settings.attention {
        // Landmark attention says so itself.
        TrainAttention::Landmark(_) => Ok(()),
        TrainAttention::Shifted { .. } => refuse(format!(
            "it selects the keys that queries see; expected attention full with it, found {}",
            settings.attention
        )),
        TrainAttention::Full if n_positions > n_ctx => refuse(format!(
            "it counts tokens between query and key; expected {n_ctx} consecutive positions, found a context \
             of {n_positions}"
        )),
        TrainAttention::Full if clex::shape(plan, hp)?.is_some() => refuse(
            "clex is trained under the model's own attention; expected no attention method with it".into(),
        ),
        TrainAttention::Full if n > 1 && !capabilities(model, settings).custom_ops => refuse(format!(
            "its {n} branches are trained on the CPU by ropewalk's own ops (not portable); expected \
             frequencies only (pi, ntk, yarn, abf, sba, harpe ...), or a window alone (streaming:sinks=0)"
        )),
        TrainAttention::Full => Ok(()),
    }
}

pub(super) fn capabilities(model: &Model, settings: &TrainParams) -> Capabilities {
    let all = Capabilities::new(model.backend_device(), settings.portable, settings.math);
    Capabilities { flash: false, ..all }
}

impl MemoryPlan {
    /// The parts as a table.
    pub fn text(&self) -> String {
        let mut text = format!(
            "training at context {}, checkpointing={}\n\n{:44} {:>12} {:>12}\n",
            count(self.n_ctx as u64),
            self.checkpointing,
            "",
            "device",
            "host"
        );
        let cell = |n: usize| if n == 0 { "-".to_owned() } else { bytes(n as u64) };
        let (device, host) = self.totals();
        for (name, device, host) in self.parts.iter().chain([&("all together", device, host)]) {
            text += &format!("{name:44} {:>12} {:>12}\n", cell(*device), cell(*host));
        }
        text
    }

    /// Computes the memory for training at `settings.n_ctx`. Nothing of that size is allocated: graphs are
    /// measured over tensors that have no memory.
    ///
    /// # Errors
    /// Settings out of range, or a method that training does not support.
    pub fn new(model: &Model, settings: &TrainParams) -> Result<MemoryPlan> {
        check(model, settings)?;
        // Saved activations are in the host's memory. To compute them again on a GPU takes less time than to move them.
        if settings.checkpointing.is_none() && model.backend_device().is_cpu() {
            // As much again is left to others.
            let Budget { device, host } = Budget::of(model);
            let half = Budget { device: device / 2, host: host.map(|n| n / 2) };
            for checkpointing in [Checkpointing::Products, Checkpointing::Attention] {
                let plan = MemoryPlan::with(model, settings, checkpointing)?;
                if plan.fits(half) {
                    return Ok(plan);
                }
            }
        }
        MemoryPlan::with(model, settings, settings.checkpointing.unwrap_or(Checkpointing::Inputs))
    }

    fn with(model: &Model, settings: &TrainParams, checkpointing: Checkpointing) -> Result<MemoryPlan> {
        let setup = &Setup::new(model, settings, true)?;
        let (hp, plan, settings) = (model.hparams(), &setup.plan, &setup.settings);
        let (n_ctx, n) = (settings.attention.n_positions(settings.n_ctx), settings.n_block);
        let grouped = settings.attention.group(settings.n_ctx)?.is_some();
        let trains_angles = clex::shape(plan, hp)?.is_some();
        let ctx = Ctx { setup, plan, checkpointing, training: true, grouped, trains_angles };
        let mut exec = setup.capabilities.executor(model.backend_device(), 1)?;
        let named = |e| Error::during(format!("blocks of {n} tokens"), Error::from(e));
        let mut most =
            exec.measure(ctx.max_tensors(0), |b| ctx.loss(b, n, true).map(|_| ())).map_err(named)?;
        // Layers that are alike need the same.
        let firsts = (0..hp.n_layer).filter(|&il| !hp.layers[..il].contains(&hp.layers[il]));
        for il in firsts {
            let last = Block { il, start: n_ctx - n, n };
            let graphs = [
                exec.measure(ctx.max_tensors(n_ctx), |b| ctx.forward(b, last).map(|_| ())),
                exec.measure(ctx.max_tensors(n_ctx), |b| ctx.keys(b, last).map(|_| ())),
                exec.measure(ctx.max_tensors(n_ctx), |b| ctx.backward(b, last, n == n_ctx).map(|_| ())),
            ];
            for bytes in graphs {
                most = most.max(bytes.map_err(named)?);
            }
        }
        let trained: usize = setup.params.list().iter().map(|t| t.shape[0] * t.shape[1]).sum();
        let of_layer = |il| {
            saved::widths(&setup.transformer, hp, il, checkpointing).iter().map(|(_, w)| w).sum::<usize>()
        };
        let saved_width: usize = (0..hp.n_layer).map(of_layer).sum();
        let rows = |width: usize| width.saturating_mul(settings.saved_type.bytes()).saturating_mul(n_ctx);
        let mut parts = vec![
            ("weights", model.n_bytes(), 0),
            ("trained tensors and gradients", trained * 8, trained * 8),
            ("optimizer", 0, trained * 8),
            ("keys, values and their gradients of a layer", setup.cache.n_bytes(), 0),
            ("graphs", most, 0),
            ("layer inputs", 0, rows(hp.n_embd * hp.n_layer)),
            ("saved activations of layers", 0, rows(saved_width)),
            ("gradient between layers", 0, hp.n_embd.saturating_mul(n_ctx).saturating_mul(4)),
        ];
        if let Some(states) = &setup.states {
            parts.push(("states of a recurrent layer and their gradients", states.n_bytes(), 0));
        }
        if settings.average {
            parts.push(("moving average", 0, trained * 4));
        }
        if trains_angles {
            parts.push(("equation of clex", 0, clex::n_bytes(plan, hp)?));
        }
        Ok(MemoryPlan { checkpointing, parts, n_ctx: settings.n_ctx })
    }

    /// Bytes on the device and on the host. On the CPU they are the same memory.
    pub fn totals(&self) -> (usize, usize) {
        let add = |sum: (usize, usize), part: &(&str, usize, usize)| {
            (sum.0.saturating_add(part.1), sum.1.saturating_add(part.2))
        };
        self.parts.iter().fold((0, 0), add)
    }

    /// Returns true if the plan fits.
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
    /// Settings that are invalid at any context.
    pub fn largest(model: &Model, settings: &TrainParams, budget: Budget) -> Result<Option<usize>> {
        const STEP: usize = 256;
        let fits = |steps: usize| -> Result<bool> {
            let checkpointing = settings.checkpointing.or(Some(Checkpointing::Inputs));
            let settings = TrainParams { n_ctx: steps * STEP, checkpointing, ..settings.clone() };
            // Under a method that cannot serve a length, it does not fit.
            Ok(MemoryPlan::new(model, &settings).is_ok_and(|plan| plan.fits(budget)))
        };
        let (mut low, mut high) = (0, 1);
        while high < i32::MAX as usize / STEP / 2 && fits(high)? {
            (low, high) = (high, high * 2);
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if fits(middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(Some(low * STEP).filter(|&n| n > 0))
    }

    /// An error when it does not fit into what is free.
    pub fn check(&self, model: &Model) -> Result<()> {
        let budget = Budget::of(model);
        if self.fits(budget) {
            return Ok(());
        }
        let (device, host) = self.totals();
        let there = budget.host.map_or(String::new(), |n| format!(" and {} on the host", bytes(n as u64)));
        let what = format!(
            "training at ctx {} needs {} on {} and {} on the host, {} is available{there}",
            self.n_ctx,
            bytes(device as u64),
            model.device(),
            bytes(host as u64),
            bytes(budget.device as u64)
        );
        let (needed, free) = match budget.host {
            None => (device.saturating_add(host), budget.device),
            Some(most) if device <= budget.device => (host, most),
            Some(_) => (device, budget.device),
        };
        Err(Error::OutOfMemory { needed, free: Some(free), what, remedy: None })
    }
}

fn check(model: &Model, settings: &TrainParams) -> Result<()> {
    let (hp, can) = (model.hparams(), capabilities(model, settings));
    let unsupported = |what: String| Err(Error::Unsupported(what));
    // Keys and queries have a row for each token and head, and ggml counts rows.
    // Landmarks also need room: one of two positions can be a landmark.
    let index = ggml::tensor::MAX_INDEX / if settings.attention.landmarks().is_some() { 2 } else { 1 };
    let most = index / hp.attention.iter().map(|l| l.n_head).max().unwrap_or(1);
    if settings.n_ctx == 0 || settings.n_ctx > most {
        return Err(Error::argument("ctx", format_args!("1 to {most} tokens"), settings.n_ctx));
    }
    let is_sparse = settings.attention.group(settings.n_ctx)?.is_some();
    if is_sparse && hp.attention.iter().all(|l| !seen::is_split(true, l)) {
        let what = "attention: s2: every layer has a sliding window, which it keeps; expected full";
        return unsupported(what.into());
    }
    if settings.n_block == 0 {
        return Err(Error::argument("block", "at least 1 token", 0));
    }
    if settings.math == Math::Int8 {
        return Err(Error::argument("math", "auto, f32 or bf16 in training", "int8"));
    }
    if hp.delta_net.is_some() && !can.custom_ops {
        let layers: Vec<String> = hp.recurrent_layers().map(|il| il.to_string()).collect();
        return unsupported(format!(
            "training gated delta-nets (layers {}) needs the CPU and ropewalk's own ops (not portable)",
            layers.join(" ")
        ));
    }
    if settings.math == Math::Bf16 && !can.matmul.has_bf16_training() {
        let what =
            "math: bf16: training needs a processor with AVX-512 BF16 or AMX, and ropewalk's own ops (not \
             portable); expected auto or f32";
        return unsupported(what.into());
    }
    // Ops that every backend has take the probabilities of a block, tokens by vocabulary, as one column, and
    // count its rows in an i32.
    let n_block = settings.n_block.min(settings.attention.n_positions(settings.n_ctx));
    let (n_vocab, most) = (hp.n_vocab, ggml::tensor::MAX_INDEX / hp.n_vocab);
    if !can.custom_ops && n_block > most {
        let what = "portable ops count block x vocabulary in 31 bits";
        let expected = format!("at most {most} tokens with a vocabulary of {n_vocab}");
        return Err(Error::argument("block", expected, format_args!("{n_block} ({what})")));
    }
    Ok(())
}
