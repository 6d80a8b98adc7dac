//! Sums of squares of what every matrix reads, and importance matrices of them, against the naive model.

use std::collections::BTreeMap;

use gguf::File;
use ropewalk::control::{Control, Progress, Stop};
use ropewalk::eval::imatrix::{collect, Params};
use ropewalk::eval::{Content, Document};
use ropewalk::hparams::Hparams;
use ropewalk::model::Error;
use ropewalk::rope::Plan;
use ropewalk::session::Session;
use ropewalk::DType;

use super::cases::{DCA, FREQUENCIES};
use super::{text, twins, under, Failures};
use crate::common::rounding::{rounding, UNIT};
use crate::common::{load, open, random_model, rewritten, roundings, says, scratch, some_tokens, with_kv};
use naive::{Definition, Naive, Squares};

/// More than a block of 256 cells, and no multiple of a micro-batch.
const N: usize = 300;
const N_CTX: usize = 640;

/// How far a sum over `n` tokens may be off, of the largest of its matrix: a square is off by twice as large a part as a row of
/// logits, whose roundings are more than those of any row that a matrix reads, and the sum has a rounding for each token.
/// Angles in f32, in the ops of other devices, are off by up to `n` units.
fn bound(hp: &Hparams, n: usize, portable: bool) -> f64 {
    let angles = if portable { n as f64 * UNIT } else { 0.0 };
    2.0 * (rounding(roundings(hp, n)) + angles) + rounding(n)
}

/// Sums and counts by the name of the weight.
type Sums = BTreeMap<String, (Vec<f64>, Vec<f64>)>;

fn sums(session: &mut Session, tokens: &[i32]) -> Sums {
    let mut found = Sums::new();
    let add = |to: &mut Vec<f64>, values: &[f32]| {
        to.resize(values.len(), 0.0);
        to.iter_mut().zip(values).for_each(|(to, &x)| *to += f64::from(x));
    };
    session
        .moments(tokens, &mut |moments| {
            for weight in moments.weights {
                let (sums, counts) = found.entry(weight.clone()).or_default();
                add(sums, moments.sums);
                add(counts, moments.counts);
            }
            Ok(())
        })
        .unwrap();
    found
}

/// The largest error of a sum, relative to the largest sum of its matrix.
#[track_caller]
fn worst(got: &Sums, want: &Squares, about: &str) -> f64 {
    let mut names: Vec<_> = want.keys().collect();
    names.sort();
    assert!(got.keys().eq(names), "{about}: {:?}", got.keys());
    let of_matrix = |(name, (sums, counts)): (&String, &(Vec<f64>, Vec<f64>))| {
        let (want, want_counts) = &want[name];
        assert_eq!((sums.len(), counts), (want.len(), want_counts), "{about}: {name}");
        let most = want.iter().copied().fold(0.0, f64::max);
        let off = sums.iter().zip(want).map(|(a, b)| (a - b).abs() / most);
        // `max` would pass over a NaN.
        off.fold(0.0, |most: f64, x| if x.is_nan() { f64::INFINITY } else { most.max(x) })
    };
    got.iter().map(of_matrix).fold(0.0, f64::max)
}

#[test]
fn sums_follow_their_definition() {
    let mut failures = Failures::default();
    let tokens = text(N);
    let ways = [(64, false), (N, false), (7, false), (100, true)];
    for (c, case) in [&FREQUENCIES[0], &FREQUENCIES[4], &DCA[0]].into_iter().enumerate() {
        for twin in twins() {
            let plan = Plan::new(&case.spec.parse().unwrap(), twin.model.hparams(), N_CTX).unwrap();
            let want = twin.naive.squares(&tokens, case, &plan);
            for (n_ubatch, portable) in ways {
                if c > 0 && n_ubatch == 7 {
                    continue;
                }
                let params = under(case.spec, N_CTX, DType::F32).n_ubatch(n_ubatch).portable(portable);
                let what = format!("{}: {}, {n_ubatch} at once, portable {portable}", case.spec, twin.about);
                let mut session = open(&twin.model, &params);
                if portable && twin.model.hparams().experts.is_some() {
                    says(session.moments(&tokens, &mut |_| Ok(())), &["mixture of experts", "portable"]);
                    continue;
                }
                let bound = bound(twin.model.hparams(), N, portable);
                failures.at_most(bound, worst(&sums(&mut session, &tokens), &want, &what), &what);
            }
        }
    }
    failures.none();
}

/// Causal attention under the frequencies of a plan, which has several kinds of layer.
struct OfPlan<'a>(&'a Plan);

impl Definition for OfPlan<'_> {
    fn distance(&self, i: i64, j: i64) -> Option<i64> {
        Some(i - j)
    }

    fn mscale(&self, kind: usize) -> f64 {
        self.0.kinds()[kind].mscale
    }

    fn q_scale(&self, kind: usize, i: i64) -> f64 {
        self.0.kinds()[kind].q_scale(i as i32)
    }
}

/// Windows and kinds of layer, a tied output, one map to several matrices, experts of which few are chosen.
#[test]
fn sums_of_other_architectures() {
    let mut failures = Failures::default();
    for shape in ["gemma3-tiny", "qwen3moe-tiny", "phi3-tiny"] {
        let model = load(&random_model(shape, DType::F32, "moments"));
        let tokens = some_tokens(150, model.hparams().n_vocab);
        for spec in ["plain", "yarn:factor=4"] {
            let mut session = open(&model, &under(spec, N_CTX, DType::F32).n_ubatch(64));
            let plan = session.plan().clone();
            let want = Naive::of(&model).squares(&tokens, &OfPlan(&plan), &plan);
            let what = format!("{shape}, {spec}");
            let bound = bound(model.hparams(), tokens.len(), false);
            failures.at_most(bound, worst(&sums(&mut session, &tokens), &want, &what), &what);
        }
    }
    failures.none();
}

#[test]
fn windows_are_added_up_and_stops_are_heard() {
    const CTX: usize = 100;
    let twin = &twins()[0];
    let (vocab, case) = (twin.model.vocab(), &FREQUENCIES[4]);
    let ids = text(N + 50);
    let content = Content::Ids(ids.iter().map(|&id| id as u16).collect());
    let documents = [Document { name: "ids.bin".into(), content }];
    let params = under(case.spec, CTX, DType::F32).n_ubatch(64);
    let mut session = open(&twin.model, &params);
    let how = Params::new(CTX).max_windows(Some(2));
    let found = collect(&mut session, &documents, &how, &Control::default()).unwrap();
    assert_eq!((found.windows, found.windows_total, &found.texts[..]), (2, 3, &["ids.bin".to_owned()][..]));
    assert!(found.rope.starts_with("yarn:factor=4"), "{}", found.rope);

    let bos = vocab.bos().filter(|_| vocab.add_bos());
    let mut want = Squares::new();
    let stream: Vec<i32> = bos.into_iter().chain(ids).collect();
    for window in stream.chunks_exact(CTX).take(2) {
        let mut window = window.to_vec();
        window[0] = bos.unwrap_or(window[0]);
        for (name, (sums, counts)) in twin.naive.squares(&window, case, session.plan()) {
            let entry = want.entry(name).or_insert_with(|| (vec![0.0; sums.len()], vec![0.0]));
            entry.0.iter_mut().zip(sums).for_each(|(a, b)| *a += b);
            entry.1[0] += counts[0];
        }
    }
    let got = found.entries.into_iter().map(|(name, e)| (name, (e.sums, e.counts))).collect();
    let off = worst(&got, &want, "two windows");
    assert!(off < bound(twin.model.hparams(), CTX, false), "{off:e}");

    let stop = Stop::default();
    let first = |_: &Progress<'_>| stop.request();
    let control = Control::default().with_stop(&stop).with_progress(&first);
    let stopped = collect(&mut session, &documents, &how, &control);
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    for (how, why) in [
        (how.clone().ctx(CTX + 1), "ctx: expected 1 to 100 tokens, found 101"),
        (how.clone().max_windows(Some(0)), "max-windows: expected at least 1"),
    ] {
        says(collect(&mut session, &documents, &how, &Control::default()), &[why]);
    }
}

#[test]
fn what_is_no_number_is_an_error() {
    let whole = random_model("llama-tiny", DType::F32, "moments");
    let (file, path) = (File::open(&whole).unwrap(), scratch("moments-nan.gguf"));
    let t = file.tensor("blk.1.ffn_norm.weight").unwrap();
    let mut bytes = file.data(t).to_vec().unwrap();
    bytes[12..16].copy_from_slice(&f32::NAN.to_le_bytes());
    rewritten(&whole, &path, &[&t.name], |out| {
        out.tensor_bytes(&t.name, t.dtype, &t.shape, bytes).unwrap();
    });
    let model = load(&path);
    let mut session = open(&model, &with_kv(64, DType::F32).n_ubatch(32));
    let e = session.moments(&some_tokens(40, 250), &mut |_| Ok(())).unwrap_err().to_string();
    let place = "blk.1.ffn_gate.weight, blk.1.ffn_up.weight: tokens 0 to 31: expected finite";
    assert!(e.contains(place) && e.contains("NaN in column 3"), "{e}");
    says(session.moments(&[], &mut |_| Ok(())), &["at least one token, found none"]);
}
