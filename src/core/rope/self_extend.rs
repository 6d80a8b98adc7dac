//! `self-extend`: near keys as they are, far keys at grouped positions (Jin et al. 2024).

use super::method::MAX_CTX;
use super::reach::{Branch, PosMap, Reach};
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// Distances below W as they are; beyond, floor(i/G) + W - W/G - floor(j/G); one softmax over both.
///
/// Source: the authors' code, LongLM, `self_extend_patch`. Two readings exist. It groups *positions*; the
/// controlled study (LCEG, eq. 15) groups the *distance*, floor((i-j)/G), which differs by at most one
/// position. And near is a distance below W there, while eq. 15 has up to W. The code is followed; the other
/// readings' figures are in `tests/reference/README.md`. In the code W/G is a true division in prefill and a
/// whole one in decoding; with G a divisor of W, as asked here, they agree. `log-scale` multiplies queries by
/// max(1, ln(i+1) / ln L), which the code has for long passkeys.
///
/// Defaults: W is the largest power of two up to L/8; G the smallest divisor of W with W + (N-W)/G <= L/2,
/// the cautious end of the paper's rule of thumb (1/2 to 2/3 of L). Next to a frequency method they stay so:
/// each of the two then stretches to the whole context by itself, which is more than is needed; give `factor`
/// or `group` to share it.
pub(super) static METHOD: Method = Method {
    name: "self-extend",
    about: "Self-Extend: far keys share grouped positions; needs no training",
    axis: Axis::Reach,
    params: &[
        param! { "window", Count(1, 1 << 30),
            "the largest power of two up to original / 8", "tokens",
            "distances below it do not change"
        },
        param! { "group", Count(1, 1 << 30),
            "the smallest divisor of window that brings the context within original / 2, or else original", "tokens",
            "number of far tokens that share a position; must divide window"
        },
        param! { "log-scale", Choice(&["false", "true"]), "false", "",
            "multiply queries by max(1, ln(position + 1) / ln original)"
        },
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let (l, n) = (geo.n_ctx_orig as u64, geo.n_ctx as u64);
    let w = args.count("window", || ((l / 8).max(1) + 1).next_power_of_two() / 2)?;
    let g = args.count("group", || default_group(w, n, l))?;
    let log_scale = args.flag("log-scale")?;
    if !w.is_multiple_of(g) {
        let near = divisors(w).min_by_key(|d| (d.abs_diff(g), *d)).unwrap_or(1);
        let found = format_args!("{g}; the nearest is {near}");
        return Err(args.refuse("group", format_args!("a divisor of window {w}"), found));
    }
    if log_scale {
        if l < 2 {
            return Err(RopeError::new(
                "rope method self-extend: log-scale: original must be above 1".into(),
            ));
        }
        if plan.q_log_base.is_some() || plan.q_factor != 1.0 {
            return Err(RopeError::new(
                "rope method self-extend: log-scale: temperature=logn or a number already multiplies queries; \
                 omit one of the two"
                    .into(),
            ));
        }
        plan.q_log_base = Some(l as f64);
    }
    if g == 1 {
        args.note("group 1 changes no distance.");
        return Ok(());
    }
    let longest = |g: u64| l.saturating_sub(w).saturating_mul(g).saturating_add(w).min(MAX_CTX);
    if w >= l {
        args.note(format!(
            "window {w} leaves no trained distance for far keys: original is {l}; a smaller window does."
        ));
    } else {
        args.note(format!(
            "up to {} tokens keep within trained distances: (original - window) x group + window.",
            longest(g)
        ));
        if let Some(least) =
            least_group(w, n, l).filter(|least| g / 8 >= *least && g == default_group(w, n, l))
        {
            args.note(format!(
                "{g} far tokens share a position, and {least} would do: a window with more divisors allows a smaller group."
            ));
        }
        if n > longest(g) {
            let way = if n <= longest(w) {
                "a larger group reaches it"
            } else {
                "no group reaches it with this window"
            };
            args.note(format!("the context of {n} tokens is longer than that; {way}."));
        }
    }
    let (w, g) = (w as i32, g as i32);
    let grouped = PosMap { div: g, ..PosMap::IDENTITY };
    plan.branches = vec![
        Branch { reach: Reach { dist_end: w, ..Reach::CAUSAL }, ..Branch::PLAIN },
        Branch {
            q_pos: PosMap { add: w - w / g, ..grouped },
            k_pos: grouped,
            reach: Reach { dist_min: w, ..Reach::CAUSAL },
        },
    ];
    Ok(())
}

fn default_group(w: u64, n: u64, l: u64) -> u64 {
    if n <= l {
        return 1;
    }
    let within = |l: u64| {
        let least = least_group(w, n, l)?;
        divisors(w).filter(|g| *g >= least).min()
    };
    within(l / 2).or_else(|| within(l)).unwrap_or(w)
}

/// The smallest group that brings a context within `l` tokens, above 1; `None` if none does.
fn least_group(w: u64, n: u64, l: u64) -> Option<u64> {
    let room = l.checked_sub(w).filter(|room| *room > 0)?;
    Some(n.saturating_sub(w).div_ceil(room).max(2))
}

/// Every divisor, in pairs; about sqrt(w) steps, as windows may be as large as a flag says.
fn divisors(w: u64) -> impl Iterator<Item = u64> {
    (1..).take_while(move |d| d * d <= w).filter(move |d| w.is_multiple_of(*d)).flat_map(move |d| [d, w / d])
}
