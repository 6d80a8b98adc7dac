//! `harpe`: a base for each head.

mod search;
#[cfg(test)]
mod tests;
mod waveform;

use super::method::{MAX_BASE, MAX_CTX};
use super::value::{approx, number, rounded};
use super::{Args, Axis, Geometry, Kind, LayerPlan, Method, Param, RopeError, Value};
use search::Search;

const WORDS: &[&str] = &["search", "table2", "uniform", "uniform-desc"];

/// The paper's Table 2, in 1e4.
const TABLE2: [u16; 32] = [
    100, 115, 130, 145, 217, 220, 223, 247, 250, 265, 268, 271, 274, 280, 283, 292, 301, 304, 310, 313, 316,
    322, 343, 346, 361, 388, 409, 415, 439, 445, 451, 454,
];

/// Positions a waveform may span.
const MAX_SPAN: u64 = 1 << 22;
/// Candidate bases of a search.
const MAX_STEPS: f64 = 4096.0;

const fn base(key: &'static str, default: &'static str, about: &'static str) -> Param {
    Param { key, kind: Kind::Number(1.0 + 1e-6, MAX_BASE), default, unit: "", about }
}
const fn position(key: &'static str, default: &'static str, about: &'static str) -> Param {
    Param { key, kind: Kind::Count(0, MAX_CTX), default, unit: "tokens", about }
}

/// HARPE: theta_{h,j} = b_h^(-2j/d), the same bases in every layer, one per **KV** head (the paper has as
/// many of either; under grouped-query attention a query head must share its key head's base). `rope_freqs`
/// factors stay divided in.
///
/// Bases are `search`: the rule that makes the published table (32 of 32 bases); `table2`: the published list;
/// `uniform`, `uniform-desc`: equation 9, ascending and descending; or a list. The rule that the paper prints,
/// Algorithm 1, makes another table: a sum over all pairs favors candidates with few extrema.
///
/// Defaults scale the paper's ratios. It takes a base of 1e4 to 1e6..5e6, 100 and 500 times, for 32 times the
/// window. For s times the window these are s^(ln 100 / ln 32) and s^(ln 500 / ln 32): a power law in s is
/// what keeps meaning when extensions follow each other (s1 then s2 equals s1 s2) and what NTK-aware scaling
/// is too, b s^(d/(d-2)); it gives 1 at s = 1, where HARPE is then plain, and the paper's numbers at 32. Both
/// exponents (1.33, 1.79) lie above NTK's 1.02, so even the smallest base lets no pair turn further than in
/// training. The stride keeps the paper's 133 candidates above base-min, and `hi` is the target window, as
/// the paper's 131072 is. `lo` is the rule's 1000, or an eighth of `hi` where that is less.
pub(super) static METHOD: Method = Method {
    name: "harpe",
    about: "HARPE: one base per KV head, chosen so that their waveforms fill each other's valleys",
    axis: Axis::Frequency,
    params: &[
        param! { "bases", ChoiceOrList(WORDS, 1.0 + 1e-6, MAX_BASE), "search", "",
            "rule that chooses the bases, or one base per KV head"
        },
        base("base-min", "freq_base * factor^(ln 100 / ln 32)", "smallest base"),
        base("base-max", "freq_base * factor^(ln 500 / ln 32)", "no base lies above"),
        param! { "stride", Number(1e-6, MAX_BASE), "(base-max - base-min) * 3/400", "",
            "distance between candidate bases"
        },
        position("lo", "1000, at most hi / 8", "first position of the waveforms compared"),
        position("hi", "factor * original", "last position of the waveforms compared"),
        Param::FACTOR,
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let bases = match args.value("bases", || Value::Word("search".into()))? {
        Value::List(bases) => {
            if bases.len() != geo.n_head_kv {
                let expected = format_args!("{} bases, one per KV head", geo.n_head_kv);
                return Err(args.refuse("bases", expected, bases.len()));
            }
            bases
        }
        Value::Word(w) if w == "table2" => {
            if geo.n_head_kv != TABLE2.len() {
                return Err(RopeError::new(format!(
                    "rope method harpe: bases: table2 lists 32 bases, the model has {} KV heads; use \
                     bases=search or bases=uniform",
                    geo.n_head_kv
                )));
            }
            TABLE2.iter().map(|b| f64::from(*b) * 1e4).collect()
        }
        word => derive(&word.to_string(), geo, args)?,
    };
    plan.freqs.theta.clear();
    for b in &bases {
        plan.freqs.theta.extend(geo.table(*b)?);
    }
    plan.freqs.n_tables = bases.len();
    plan.bases = Some(bases);
    Ok(())
}

/// Adds the reason to a refusal of Algorithm 1, which earlier versions wrote into files.
pub(super) fn explain(e: RopeError, key: &str, value: &str) -> RopeError {
    match (key, value) {
        ("bases", "algorithm1") => RopeError::new(format!(
            "{e}: HARPE's Algorithm 1 as printed was removed, because it does not give its Table 2"
        )),
        _ => e,
    }
}

fn derive(word: &str, geo: &Geometry<'_>, args: &mut Args<'_>) -> Result<Vec<f64>, RopeError> {
    let n = geo.n_head_kv;
    let searched = !word.starts_with("uniform");
    let all_given =
        args.is_given("base-min") && args.is_given("base-max") && (!searched || args.is_given("hi"));
    let factor = if all_given { 1.0 } else { args.factor(geo)? };
    args.absorb("factor");
    let base_min = args.number("base-min", || geo.scaled_base(100.0, factor))?;
    let base_max = args.number("base-max", || geo.scaled_base(500.0, factor))?;
    if base_max < base_min {
        let expected = format_args!("at least base-min = {}", number(base_min));
        return Err(args.refuse("base-max", expected, number(base_max)));
    }
    if !(args.is_given("base-min") && args.is_given("base-max")) {
        args.note(format!(
            "bases from {} to {}; the paper's 100 and 500 times the model's base at factor 32, as a power \
             law, are {} and {} times at factor {}.",
            approx(base_min),
            approx(base_max),
            approx(geo.scaled_base(100.0, factor) / geo.freq_base),
            approx(geo.scaled_base(500.0, factor) / geo.freq_base),
            approx(factor)
        ));
    }
    if !searched {
        let last = n.saturating_sub(1).max(1) as f64;
        let mut bases: Vec<f64> =
            (0..n).map(|h| base_min + h as f64 * (base_max - base_min) / last).collect();
        if word == "uniform-desc" {
            bases.reverse();
        }
        return Ok(bases);
    }
    // Searched, for `factor` times the trained window.
    let range = base_max - base_min;
    let stride = args.number("stride", || if range > 0.0 { rounded(range * 3.0 / 400.0) } else { 1.0 })?;
    let target = (factor * geo.n_ctx_orig as f64).min(MAX_CTX as f64);
    let hi = args.count("hi", || target as u64)?;
    let lo = args.count("lo", || (hi / 8).min(1000))?;
    if range == 0.0 {
        args.note("base-min equals base-max, so every head has that base.");
        return Ok(vec![base_min; n]);
    }
    if lo >= hi {
        return Err(args.refuse("lo", format_args!("less than hi = {hi}"), lo));
    }
    if hi - lo > MAX_SPAN {
        return Err(args.refuse("hi - lo", format_args!("at most {MAX_SPAN} positions"), hi - lo));
    }
    let steps = range / stride;
    if steps > MAX_STEPS {
        let expected = format_args!("at most {MAX_STEPS} candidate bases");
        return Err(args.refuse("stride", expected, approx(steps.floor())));
    }
    let search =
        Search { base_min, base_max, stride, lo: lo as usize, hi: hi as usize, n_rot: geo.n_rot, n_bases: n };
    if search.n_steps() + 1 < n {
        let expected = format_args!("at least {n} candidate bases, one per KV head");
        return Err(args.refuse("stride", expected, search.n_steps() + 1));
    }
    if n == 1 {
        return Ok(vec![base_min]);
    }
    geo.spend(search.cost()).map_err(|most| {
        let expected = format!("{most} (candidates x positions x pairs); narrow lo..hi or widen stride");
        args.refuse("search", expected, approx(search.cost()))
    })?;
    let mut bases: Vec<f64> = search::bases(&search).into_iter().map(|(base, _)| base).collect();
    bases.sort_by(f64::total_cmp);
    Ok(bases)
}
