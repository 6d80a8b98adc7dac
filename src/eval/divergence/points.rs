//! The figures of tokens, over all of them and by position.

use ropewalk_core::divergence::Divergence;
use serde::Serialize;

use crate::eval::stats::Mean;

/// The spread of the divergence over tokens, in nats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard error of the mean, taking tokens as independent.
    pub stderr: Option<f64>,
    /// Median: half of the tokens are below it.
    pub median: f64,
    /// Nine tenths of the tokens are below it.
    pub p90: f64,
    /// 99 of 100 tokens are below it.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// Positions `start..end` of all windows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bucket {
    /// First position.
    pub start: usize,
    /// One past the last position.
    pub end: usize,
    /// Tokens scored there.
    pub tokens: usize,
    /// Mean divergence, nats.
    pub kl: f64,
    /// Same top token, in percent.
    pub same_top: f64,
    /// Perplexity of `a`.
    pub ppl_a: f64,
    /// Perplexity of `b`.
    pub ppl_b: f64,
}

/// The figures of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) position: usize,
    pub(super) of: Divergence,
}

pub(super) fn mean(values: impl Iterator<Item = f64>) -> Mean {
    let mut mean = Mean::default();
    values.for_each(|x| mean.push(x));
    mean
}

pub(super) fn percent<'a>(points: impl Iterator<Item = &'a Point>) -> f64 {
    100.0 * mean(points.map(|p| f64::from(u8::from(p.of.same_top)))).mean()
}

pub(super) fn buckets(points: &[Point], width: usize, ctx: usize) -> Vec<Bucket> {
    let bucket = |start: usize| {
        let end = (start + width).min(ctx);
        let inside: Vec<&Point> = points.iter().filter(|p| (start..end).contains(&p.position)).collect();
        let of = |f: fn(&Point) -> f64| mean(inside.iter().map(|p| f(p))).mean();
        (!inside.is_empty()).then(|| Bucket {
            start,
            end,
            tokens: inside.len(),
            kl: of(|p| p.of.kl),
            same_top: percent(inside.iter().copied()),
            ppl_a: of(|p| p.of.nll[0]).exp(),
            ppl_b: of(|p| p.of.nll[1]).exp(),
        })
    };
    (0..ctx).step_by(width).filter_map(bucket).collect()
}

impl Spread {
    pub(super) fn new(points: &[Point]) -> Spread {
        let mean = mean(points.iter().map(|p| p.of.kl));
        let mut sorted: Vec<f64> = points.iter().map(|p| p.of.kl).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| sorted.get(((sorted.len() - 1) as f64 * part).round() as usize).copied();
        let at = |part| at(part).unwrap_or(0.0);
        Spread {
            mean: mean.mean(),
            stderr: mean.stderr(),
            median: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}
