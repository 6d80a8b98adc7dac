//! Settings that every method takes in addition to its parameters. Each is applied to the layer's plan after the method.

use super::value::number;
use super::{Args, Axis, Geometry, LayerPlan, Param, RopeError, Value};
use crate::hparams::AttentionTemperature;

const TEMPERATURE: &str = "temperature";
const SCALE: &str = "temperature-scale";
const DROP: &str = "drop";
const KEEP_SHORT: &str = "keep-short";

/// Settings of all methods, those of the frequency axis first.
static SETTINGS: [Param; 4] = [
    param! { DROP, Number(0.0, 1.0), "0", "",
        "share of the pairs, the slowest ones, that are not rotated (p-RoPE); 1 is NoPE"
    },
    param! { KEEP_SHORT, Choice(&["false", "true"]), "false", "",
        "keep the file's scaling if the context is within the original context"
    },
    param! { TEMPERATURE, ChoiceOrNumber(&["logn", "llama4"], 0.01, 100.0),
        "the model's own", "",
        "factor on queries: max(1, ln(position + 1) / ln original), Llama 4's, or a constant"
    },
    param! { SCALE, Number(0.0, 10.0), "0.1", "",
        "b of temperature=llama4: 1 + b ln(1 + floor((position + 1) / original))"
    },
];

/// The settings of the methods of an axis. Only those of the frequency axis can drop frequencies.
pub(super) fn of(axis: Axis) -> &'static [Param] {
    match axis {
        Axis::Frequency => &SETTINGS,
        Axis::Reach => &SETTINGS[1..],
    }
}

/// Returns true if a setting is for the whole spec, so that only one of its methods can have it.
pub(super) fn once(key: &str) -> bool {
    key == TEMPERATURE
}

/// Returns true if a key is that of the attention temperature, which a spec has once, or belongs to it.
pub(super) fn of_temperature(key: &str) -> bool {
    [TEMPERATURE, SCALE].contains(&key)
}

/// Returns true if a setting changes a plan by itself; the others say how or when.
pub(super) fn changes(key: &str) -> bool {
    [DROP, TEMPERATURE].contains(&key)
}

/// Changes the plan of one kind of layer by the settings given; returns those that change nothing in `n_ctx`
/// tokens.
pub(super) fn apply(
    geo: &Geometry<'_>,
    args: &mut Args<'_>,
    plan: &mut LayerPlan,
) -> Result<Vec<&'static str>, RopeError> {
    let mut idle = Vec::new();
    for (key, change) in [(DROP, drop as Change), (TEMPERATURE, temperature)] {
        if args.is_given(key) {
            let before = plan.clone();
            change(geo, args, plan)?;
            if plan.same_within(&before, geo.n_ctx) {
                idle.push(key);
            }
        }
    }
    Ok(idle)
}

type Change = fn(&Geometry<'_>, &mut Args<'_>, &mut LayerPlan) -> Result<(), RopeError>;

/// Angle 0 for the slowest pairs, as many as make up the share, rounded up: p-RoPE (Barbero et al. 2024,
/// arXiv:2410.06205), which counts the fastest ones that stay, p = 1 - drop, rounded down. At 1 no pair is left
/// (NoPE).
fn drop(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let share = args.number(DROP, || 0.0)?;
    let pairs = geo.n_pairs();
    // Less what a share may be off by as a float: 0.3 of 10 is 3.
    let dropped = ((share * pairs as f64 - 1e-9).ceil().max(0.0) as usize).min(pairs);
    for table in plan.freqs.theta.chunks_exact_mut(pairs) {
        table[pairs - dropped..].fill(0.0);
    }
    args.note_setting(format!(
        "drop {}: the slowest {dropped} of {pairs} pairs are not rotated.",
        number(share)
    ));
    Ok(())
}

/// In place of the model's own temperature, if it has one. With i the position from 0 and L the trained window:
///
/// `logn`: max(1, ln(i+1) / ln L) (Su, kexue.fm/archives/8823; Qwen's `use_logn_attn` and the code of ReRoPE).
/// `llama4`: 1 + b ln(1 + floor((i+1) / L)), as `llm_graph_input_attn_temp` of llama.cpp has it for Llama 4, where
/// b is 0.1 and L 8192. A number: that factor.
fn temperature(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let value = args.value(TEMPERATURE, || Value::Number(1.0))?;
    if plan.temperature.is_some() {
        args.note_setting(format!("temperature={value} replaces the attention temperature of the model."));
    }
    if plan.q_log_base.is_some() || plan.q_factor != 1.0 {
        return Err(RopeError::new(format!(
            "rope setting temperature={value}: queries are already multiplied by log-scale; omit one of the \
             two"
        )));
    }
    plan.temperature = None;
    let length = geo.n_ctx_orig as f64;
    match value {
        Value::Number(factor) => plan.q_factor = factor,
        Value::Word(word) if word == "logn" => {
            if geo.n_ctx_orig < 2 {
                return Err(RopeError::new("rope setting temperature=logn: original must be above 1".into()));
            }
            plan.q_log_base = Some(length);
        }
        _ => {
            let scale = args.number(SCALE, || 0.1)?;
            plan.temperature = Some(AttentionTemperature { scale, length, offset: 1.0 });
        }
    }
    Ok(())
}

/// Returns true if the layers stay as the file declares them because the context is within `window`, the original
/// context.
pub(super) fn keeps_short(window: usize, n_ctx: usize, args: &mut Args<'_>) -> Result<bool, RopeError> {
    Ok(args.is_given(KEEP_SHORT) && args.flag(KEEP_SHORT)? && n_ctx <= window)
}
