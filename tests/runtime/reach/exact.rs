//! Sessions against the naive model: every method, every way to compute it.

use ropewalk::rope::Plan;
use ropewalk::session::Attention::{self, Auto, Explicit};
use ropewalk::session::SessionParams;
use ropewalk::DType;

use super::cases::{
    Case, COMPOSED, DCA, FREQUENCIES, LM_INFINITE, REROPE, SELF_EXTEND, SETTINGS, STREAMING, STRING,
};
use super::{text, twins, under, Failures, Twin, N_VOCAB};
use crate::common::rounding::{rounding, UNIT};
use crate::common::{all_logits, open, roundings, score};
use naive::worst_row;

/// More than two blocks of 256 cells, and than ten of every window and chunk.
const LONG: usize = 600;
/// More than a block.
const SHORT: usize = 300;
const N_CTX: usize = 640;

/// A way to compute.
struct Way {
    kv: DType,
    n_ubatch: usize,
    attention: Attention,
    portable: bool,
}

const fn way(kv: DType, n_ubatch: usize, attention: Attention, portable: bool) -> Way {
    Way { kv, n_ubatch, attention, portable }
}

/// How far a cached number of this type may be off, in parts of its magnitude: F16 has 11 bits; Q8_0 has 127 steps to the largest
/// of its block, which of 32 numbers is twice the magnitude of one.
fn step(kv: DType) -> f64 {
    match kv {
        DType::F32 => 0.0,
        DType::F16 => 2f64.powi(-11),
        DType::Q8_0 => 2.0 / 254.0,
        _ => panic!("{kv}: no case has it"),
    }
}

/// Most layers of a twin.
const N_LAYER: f64 = 2.0;

/// Deviation of the scores of a twin: those of a row lie up to 34 apart (`probe` looks), three deviations to either side.
const SCORES: f64 = 6.0;

/// What rounding of keys and values adds in a cache of this type, of a row's norm: each layer changes its values by their own
/// roundings and its probabilities by those of the scores, which are as many as a score has terms and so go with the scores'
/// deviation. A row has thousands, spread evenly up to a step: by their deviation, a root of 3 less.
fn cached(kv: DType) -> f64 {
    N_LAYER * (1.0 + SCORES) * step(kv) / 3f64.sqrt()
}

/// What a row may be off by, of its norm: its roundings, those of the cache, and in the ops of other devices those of angles in
/// f32, of up to `n` radians. There ggml's flash attention sums values of F16 in F16: as many roundings as keys, of
/// a sum that grows to its size, so again a root of 3 less. A wrong distance, anywhere, is seen in a cache of F32.
pub(super) fn bound(twin: &Twin, n: usize, kv: DType, portable: bool) -> f64 {
    let floats = rounding(roundings(twin.model.hparams(), n));
    let angles = if portable { n as f64 * UNIT } else { 0.0 };
    let sums = if portable && kv == DType::F16 { N_LAYER * (n as f64).sqrt() * step(kv) / 3.0 } else { 0.0 };
    floats + angles + cached(kv) + sums
}

/// The long text: chunks of every size, and token by token, which is decoding.
const ALL: &[Way] = &[
    way(DType::F32, LONG, Auto, false),
    way(DType::F32, 64, Explicit, true),
    way(DType::F32, 7, Auto, false),
    way(DType::F32, 1, Auto, false),
    way(DType::F16, 512, Auto, true),
    way(DType::F16, 7, Auto, false),
    way(DType::Q8_0, 64, Explicit, false),
];

/// The others.
const SOME: &[Way] = &[
    way(DType::F32, 512, Auto, false),
    way(DType::F32, 64, Explicit, false),
    way(DType::F32, 31, Auto, true),
    way(DType::F16, 64, Auto, false),
    way(DType::Q8_0, 100, Auto, false),
];

fn params(case: &Case, way: &Way) -> SessionParams {
    under(case.spec, N_CTX, way.kv).n_ubatch(way.n_ubatch).attention(way.attention).portable(way.portable)
}

/// All rows of a text, from the naive model.
pub(crate) fn definition(twin: &Twin, case: &Case, n: usize) -> Vec<f64> {
    let spec = case.spec.parse().unwrap();
    let plan = Plan::new(&spec, twin.model.hparams(), N_CTX).unwrap_or_else(|e| panic!("{e}"));
    twin.naive.logits(&text(n), case, &plan)
}

/// The first case at length and on every model; the others on the first model and, in turn, one more.
#[track_caller]
fn follows_its_definition(cases: &[Case]) {
    let mut failures = Failures::default();
    for (c, case) in cases.iter().enumerate() {
        for (i, twin) in twins().iter().enumerate() {
            if c > 0 && i > 0 && i != 1 + c % (twins().len() - 1) {
                continue;
            }
            let (n, ways) = if c == 0 && i == 0 { (LONG, ALL) } else { (SHORT, SOME) };
            let want = definition(twin, case, n);
            for way in ways {
                let got = all_logits(&twin.model, &params(case, way), &text(n));
                let Way { kv, n_ubatch, attention, portable } = way;
                let what = format!(
                    "{}: {}, {n} tokens, {kv} cache, {n_ubatch} at once, {attention:?}, portable {portable}",
                    case.spec, twin.about
                );
                let bound = bound(twin, n, *kv, *portable);
                failures.at_most(bound, worst_row(&got, &want, N_VOCAB), &what);
            }
        }
    }
    failures.none();
}

#[test]
fn frequencies_follow_their_definitions() {
    follows_its_definition(FREQUENCIES);
}

#[test]
fn self_extend_follows_its_definition() {
    follows_its_definition(SELF_EXTEND);
}

#[test]
fn lm_infinite_follows_its_definition() {
    follows_its_definition(LM_INFINITE);
}

#[test]
fn dca_follows_its_definition() {
    follows_its_definition(DCA);
}

#[test]
fn streaming_follows_its_definition() {
    follows_its_definition(STREAMING);
}

#[test]
fn string_follows_its_definition() {
    follows_its_definition(STRING);
}

#[test]
fn rerope_follows_its_definition() {
    follows_its_definition(REROPE);
}

#[test]
fn settings_follow_their_definitions() {
    follows_its_definition(SETTINGS);
}

#[test]
fn both_axes_together_follow_their_definitions() {
    follows_its_definition(COMPOSED);
}

/// Texts that end before, at and after each border, then tokens one by one over it.
#[test]
fn lengths_at_every_border() {
    let twin = &twins()[0];
    let mut failures = Failures::default();
    let methods = [FREQUENCIES, SELF_EXTEND, LM_INFINITE, DCA, STREAMING, STRING, REROPE];
    for case in methods.into_iter().flatten() {
        let (want, tokens) = (definition(twin, case, 264), text(264));
        let way = way(DType::F32, 512, Auto, false);
        for n in [1, 2, 15, 16, 17, 23, 24, 25, 39, 40, 41, 47, 48, 49, 79, 80, 81, 255, 256, 257] {
            let mut s = open(&twin.model, &params(case, &way));
            let mut rows = score(&mut s, &tokens[..n]);
            for i in n..n + 3 {
                rows.extend_from_slice(s.append(&tokens[i..=i]).unwrap());
            }
            let what = format!("{}: {n} tokens and 3 one by one", case.spec);
            let bound = bound(twin, n + 3, way.kv, way.portable);
            failures.at_most(bound, worst_row(&rows, &want[..(n + 3) * N_VOCAB], N_VOCAB), &what);
        }
    }
    failures.none();
}
