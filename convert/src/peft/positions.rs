//! The positions that an adapter was trained under, as transformers takes them: `rope_scaling` of config.json.
//!
//! Methods are not looked up by name, as for llama.cpp: each candidate is computed as transformers reads it, and the
//! first that gives the plan's own angles is taken. Any table of angles can be written as `longrope` with two equal
//! lists.

use ropewalk_core::hparams::Hparams;
use ropewalk_core::rope::Plan;
use serde_json::{json, Map, Value};

use crate::llama_cpp::{base_of, one_table, powers, SAME, UNROTATED};

/// `rope_scaling` for these positions. `hp` is the model as trained.
///
/// # Errors
/// Why transformers has none, as the end of a sentence.
pub(super) fn rope_scaling(plan: &Plan, hp: &Hparams) -> Result<Value, String> {
    let base = one_table(plan, hp)?;
    if hp.attention[0].temperature.is_some() {
        return Err("there it would replace the model's attention temperature".into());
    }
    let positions = plan.main();
    let (theta, magnitude) = (&positions.freqs.theta, positions.mscale);
    let n_ctx_orig = plan.n_ctx_orig(hp);
    let gives = |angles: &[f64]| {
        angles.len() == theta.len()
            && angles.iter().zip(theta).all(|(a, b)| (a - b).abs() <= SAME * a.abs().max(b.abs()))
    };
    let own: Vec<f64> = powers(hp, base).collect();
    let mut out = Map::new();
    let mut set = |key: &str, value: Value| drop(out.insert(key.into(), value));
    set("rope_type", json!("default"));
    set("rope_theta", json!(base));
    let yarn = plan.spec.part("yarn").and_then(|yarn| {
        let number = |key: &str| yarn.get(key)?.as_f64();
        let betas = [number("beta-fast").unwrap_or(32.0), number("beta-slow").unwrap_or(1.0)];
        let factor = number("factor")?;
        gives(&ramped(&own, base, factor, betas, n_ctx_orig)).then_some((factor, betas))
    });
    let linear =
        own.first().zip(theta.first()).map(|(a, b)| short(a / b)).filter(|s| s.is_finite() && *s > 0.0);
    let linear = linear.filter(|s| gives(&own.iter().map(|t| t / s).collect::<Vec<_>>()));
    let other = base_of(plan, hp).map(short).filter(|b| gives(&powers(hp, *b).collect::<Vec<_>>()));
    match (yarn, linear, other) {
        _ if magnitude == 1.0 && gives(&own) => {}
        (Some((factor, [fast, slow])), ..) => {
            set("rope_type", json!("yarn"));
            set("factor", json!(factor));
            set("original_max_position_embeddings", json!(n_ctx_orig));
            set("beta_fast", json!(fast));
            set("beta_slow", json!(slow));
            set("attention_factor", json!(magnitude));
        }
        (_, Some(factor), _) if magnitude == 1.0 => {
            set("rope_type", json!("linear"));
            set("factor", json!(factor));
        }
        (.., Some(base)) if magnitude == 1.0 => set("rope_theta", json!(base)),
        _ => {
            let factor = |(p, t): (&f64, &f64)| if *t == 0.0 { f64::from(UNROTATED) } else { short(p / t) };
            let factors: Vec<f64> = own.iter().zip(theta).map(factor).collect();
            set("rope_type", json!("longrope"));
            set("short_factor", json!(factors));
            set("long_factor", json!(factors));
            set("factor", json!((plan.n_ctx as f64 / n_ctx_orig.max(1) as f64).max(1.0)));
            set("original_max_position_embeddings", json!(n_ctx_orig));
            set("attention_factor", json!(magnitude));
        }
    }
    let layer = &hp.attention[0];
    if layer.n_rot() != layer.n_embd_head {
        set("partial_rotary_factor", json!(layer.n_rot() as f64 / layer.n_embd_head as f64));
    }
    let kind = out["rope_type"].as_str().unwrap_or_default();
    // Phi-3's configuration takes yarn for longrope, and refuses the others.
    if hp.arch == "phi3" && !["default", "longrope"].contains(&kind) {
        return Err(format!("the class of Phi-3 has no {kind} scaling"));
    }
    Ok(Value::Object(out))
}

/// The number of fewest digits that is the same f32.
fn short(x: f64) -> f64 {
    (x as f32).to_string().parse().unwrap_or(x)
}

/// YaRN's angles as transformers computes them: the ramp begins and ends at whole pairs.
fn ramped(own: &[f64], base: f64, factor: f64, [fast, slow]: [f64; 2], n_ctx_orig: usize) -> Vec<f64> {
    let d = 2.0 * own.len() as f64;
    let turns = std::f64::consts::TAU;
    let dim = |n: f64| d * (n_ctx_orig as f64 / (n * turns)).ln() / (2.0 * base.ln());
    let (low, high) = (dim(fast).floor().max(0.0), dim(slow).ceil().min(d - 1.0));
    let high = if low == high { high + 0.001 } else { high };
    let kept = |j: usize| 1.0 - ((j as f64 - low) / (high - low)).clamp(0.0, 1.0);
    own.iter().enumerate().map(|(j, t)| t / factor * (1.0 - kept(j)) + t * kept(j)).collect()
}
