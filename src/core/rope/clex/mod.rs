//! `clex`: frequencies that follow a learned differential equation in the factor of the context.

mod ode;
#[cfg(test)]
mod tests;

use super::value::{approx, number};
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, Part, RopeError, Spec, Value};
use crate::hparams::ClexNet;

pub use ode::ClexGradient;
use ode::Ode;

const MAX_FACTOR: &str = "max-factor";
const PARAM_FACTOR: &str = "param-factor";
const STEP: &str = "step";
const ACT: &str = "act";
const LOG_SCALE: &str = "log-scale";
const FACTOR: &str = "factor";

const DEFAULT_MAX: u64 = 32;
const DEFAULT_PARAM: u64 = 1;
const DEFAULT_STEP: f64 = 0.01;

/// The largest factor: 1,024 times a window of 4,096 tokens is 4 million.
const MOST: u64 = 1024;
/// Steps of a solution at most.
const MAX_STEPS: f64 = 65_536.0;

/// CLEX: Continuous Length Extrapolation (Chen et al. 2023, arXiv:2310.16450). The logarithms of the
/// frequencies move with the factor t of the context by an equation whose velocity is a network plus that of
/// NTK-aware scaling by 2t - 1 ([`Clex`] solves it); theta(1) is the model's own. Without an adapter the network
/// is untrained and gives nothing, so the frequencies are exactly those of `ntk:factor=2t-1`.
///
/// t = ceil(context / original), at most `max-factor`. The published code takes the length of the text so far,
/// and keeps keys unrotated because t changes as text grows. Here it is that of the context a session was opened
/// for, as with `dynamic-ntk`: it never moves while the session is open, and is resolved again at each context, so
/// that one spec and one adapter serve all lengths. `factor` fixes t.
///
/// `log-scale` multiplies all queries by ln(n) / ln(original), not clipped at 1. In the published code n is the
/// number of keys at hand and grows with the text; here it is again the context of the session, which is the same
/// where a text fills it, and keeps what a session computes independent of how a text is cut into batches. Its
/// configuration has it on and its training script off; the controlled study (LCEG, arXiv:2409.12181) turns it on
/// in needles, RULER and LongBench.
///
/// This follows the paper and its published code (DAMO-NLP-SG/CLEX, `clex_layer.py`), except for the base of the
/// network's input ln n(t): the code uses 10000 for every model, and this uses the model's base. The file's
/// `rope_freqs.weight`, which the code ignores, is divided in at the end.
pub(super) static METHOD: Method = Method {
    name: "clex",
    about: "CLEX: learned frequencies that follow the context size (those of ntk without training)",
    axis: Axis::Frequency,
    params: &[
        param! { FACTOR, Count(1, MOST),
            "context / original, rounded up, at most max-factor", "",
            "t, the target context / original context"
        },
        param! { MAX_FACTOR, Count(1, MOST), "32", "",
            "largest t; training draws t from 1 up to it"
        },
        param! { PARAM_FACTOR, Count(1, 64), "1", "",
            "hidden width of the network over the rotary dimensions"
        },
        param! { STEP, Number(1e-3, 1.0), "0.01", "", "step of t in solving the equation" },
        param! { ACT, Choice(&["silu", "tanh"]), "silu", "", "activation of the network" },
        param! { LOG_SCALE, Choice(&["false", "true"]), "false", "",
            "multiply all queries by ln(context) / ln(original)"
        },
        Param::ORIGINAL,
    ],
    apply,
};

/// The activation of the network's hidden layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + e^-x), as in the controlled study.
    Silu,
    /// tanh, the default of the published code.
    Tanh,
}

/// The parameters of `clex` in a spec: what solving its equation and training its network need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clex {
    /// Largest t.
    pub max_factor: usize,
    /// Hidden width over rotary dimensions.
    pub param_factor: usize,
    /// Step of t.
    pub step: f64,
    /// Activation.
    pub act: Activation,
    /// Trained window, tokens.
    pub original: usize,
    /// t where the spec fixes it.
    pub factor: Option<usize>,
}

impl Clex {
    /// Reads the parameters from a spec that has the method, with defaults for missing ones; `original` defaults to the
    /// original context.
    pub fn of(spec: &Spec, original: usize) -> Option<Clex> {
        let part = spec.part(METHOD.name)?;
        let count = |key| part.get(key).and_then(Value::as_f64).map(|n| n as usize);
        let tanh = matches!(part.get(ACT), Some(Value::Word(word)) if word == "tanh");
        Some(Clex {
            max_factor: count(MAX_FACTOR).unwrap_or(DEFAULT_MAX as usize),
            param_factor: count(PARAM_FACTOR).unwrap_or(DEFAULT_PARAM as usize),
            step: part.get(STEP).and_then(Value::as_f64).unwrap_or(DEFAULT_STEP),
            act: if tanh { Activation::Tanh } else { Activation::Silu },
            original: part.original().unwrap_or(original),
            factor: count(FACTOR),
        })
    }

    /// The spec with t fixed.
    ///
    /// # Errors
    /// A `t` that the method does not take.
    pub fn fixed(spec: &Spec, t: usize) -> Result<Spec, RopeError> {
        let parts = spec.parts().iter().map(|part| {
            if *part.method() != METHOD {
                return Ok(part.clone());
            }
            let others = part.args().iter().filter(|(key, _)| *key != FACTOR);
            let mut values: Vec<_> = others.map(|(key, value)| (*key, Some(value.clone()))).collect();
            values.push((FACTOR, Some(Value::Count(t as u64))));
            Part::from_values(METHOD.name, &values)
        });
        Ok(Spec::from_parts(parts.collect::<Result<_, _>>()?))
    }

    /// t for a context of so many tokens.
    pub fn t(&self, n_ctx: usize) -> usize {
        self.factor.unwrap_or_else(|| n_ctx.div_ceil(self.original.max(1)).clamp(1, self.max_factor))
    }

    /// The hidden width of the network for so many rotary dimensions.
    pub fn n_hidden(&self, n_rot: usize) -> usize {
        self.param_factor.saturating_mul(n_rot)
    }

    /// The frequencies of `net` for a model's base at t, radians per position, `[n_pairs]`; `t` is at most
    /// `max_factor`.
    pub fn theta(&self, net: &ClexNet, base: f64, t: usize) -> Vec<f64> {
        self.ode(net, base).solve(t as f64).last().into_iter().map(f64::exp).collect()
    }

    /// The gradients of the network's matrices, given that of the logarithms of [`Clex::theta`], `[n_pairs]`.
    pub fn backward(&self, net: &ClexNet, base: f64, t: usize, grad: &[f64]) -> ClexGradient {
        self.ode(net, base).solve(t as f64).backward(grad)
    }

    /// Bytes that a solution and its gradient take for a network of these widths.
    pub fn n_bytes(&self, n_pairs: usize, n_hidden: usize) -> usize {
        let states = (self.max_factor as f64 / self.step).ceil() as usize + 1;
        let matrices = n_pairs.saturating_mul(n_hidden).saturating_mul(6);
        8usize.saturating_mul(states.saturating_mul(n_pairs).saturating_add(matrices))
    }

    fn ode(&self, net: &ClexNet, base: f64) -> Ode {
        Ode::new(net, base, self.act, self.step, self.max_factor)
    }
}

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let max = args.count(MAX_FACTOR, || DEFAULT_MAX)?;
    let by_length = (geo.n_ctx as u64).div_ceil(geo.n_ctx_orig as u64);
    let t = args.count(FACTOR, || by_length.min(max))?;
    if t > max {
        return Err(args.refuse(FACTOR, format_args!("at most max-factor {max}"), t));
    }
    if args.is_given(FACTOR) {
        args.note(format!("t = {t}."));
    } else {
        args.absorb(FACTOR);
        args.note(format!(
            "t = {t} = context {} over the original context of {} tokens, rounded up, at most {max}; fixed for the session.",
            geo.n_ctx, geo.n_ctx_orig
        ));
    }
    if geo.own_factor > t as f64 {
        let own = number(geo.own_factor);
        args.note(format!("t = {t} is less than the factor {own} that the file declares."));
    }
    if by_length > t {
        let reach = t.saturating_mul(geo.n_ctx_orig as u64);
        let n_ctx = geo.n_ctx;
        args.note(format!("the context of {n_ctx} tokens is longer than t x original = {reach} tokens."));
    }
    let param_factor = args.count(PARAM_FACTOR, || DEFAULT_PARAM)?;
    let step = args.number(STEP, || DEFAULT_STEP)?;
    if (max - 1) as f64 / step > MAX_STEPS {
        let least = number((max - 1) as f64 / MAX_STEPS);
        return Err(args.refuse(STEP, format_args!("at least {least} for max-factor {max}"), number(step)));
    }
    let act = args.word(ACT, "silu")?;
    let act = if act == "tanh" { Activation::Tanh } else { Activation::Silu };
    scale_queries(geo, args, plan)?;
    let scale = (2 * t - 1) as f64;
    let untrained = geo.table(geo.ntk_base(scale)?)?;
    let original = geo.n_ctx_orig;
    let (max_factor, param_factor) = (max as usize, param_factor as usize);
    let clex = Clex { max_factor, param_factor, step, act, original, factor: None };
    // Four evaluations of two matrices in each step. Training draws any t.
    let of_step = (8 * geo.n_pairs() * clex.n_hidden(geo.n_rot)) as f64;
    let cost = (if geo.clex.is_some() { t } else { max } - 1) as f64 / step * of_step;
    geo.spend(cost)
        .map_err(|most| args.refuse(STEP, format_args!("{most} (steps x network)"), approx(cost)))?;
    let Some(net) = geo.clex else {
        args.note(format!(
            "no adapter has a trained network; the untrained one equals ntk with factor {}.",
            number(scale)
        ));
        plan.freqs.theta = untrained;
        return Ok(());
    };
    let (expected, found) = ((geo.n_pairs(), clex.n_hidden(geo.n_rot)), (net.n_pairs(), net.n_hidden()));
    if expected != found {
        return Err(RopeError::new(format!(
            "rope method clex: expected a network of {} pairs and, by param-factor {param_factor}, a hidden width \
             of {}; the adapter's has {} and {}",
            expected.0, expected.1, found.0, found.1
        )));
    }
    args.note("the frequencies come from the adapter's network.");
    plan.freqs.theta = geo.divided(clex.theta(net, geo.freq_base, t as usize));
    Ok(())
}

/// Multiplies queries by ln(context) / ln(original), if asked to.
fn scale_queries(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    if !args.flag(LOG_SCALE)? {
        return Ok(());
    }
    if geo.n_ctx_orig < 2 || geo.n_ctx < 2 {
        return Err(RopeError::new(
            "rope method clex: log-scale: context and original must be above 1".into(),
        ));
    }
    if plan.q_log_base.is_some() || plan.q_factor != 1.0 {
        return Err(RopeError::new(
            "rope method clex: log-scale: another method already multiplies queries; omit one of the two"
                .into(),
        ));
    }
    plan.q_factor = (geo.n_ctx as f64).ln() / (geo.n_ctx_orig as f64).ln();
    Ok(())
}
