//! The sampler chain against what its settings promise.

#[path = "../../src/sampler/steps.rs"]
#[allow(dead_code)]
mod steps;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use gguf::{Array, Value};
use llama::sampler::{Sampler, SamplerParams};
use llama::vocab::Vocab;
use llama::Token;
use llama_cpp_sys_2 as sys;
use proptest::prelude::*;

use steps::Steps;

fn vocab(n: usize) -> Vocab {
    let tokens = (0..n).map(|i| format!("t{i}").into_bytes()).collect();
    let metadata = [
        ("tokenizer.ggml.model".to_string(), Value::String(b"test".to_vec())),
        ("tokenizer.ggml.tokens".to_string(), Value::Array(Array::String(tokens))),
    ];
    Vocab::from_metadata(Path::new("test.gguf"), &metadata).unwrap()
}

fn sampler(params: &SamplerParams, n: usize) -> Sampler {
    Sampler::new(params, &vocab(n), 1024).unwrap()
}

/// No step but the draw.
fn plain(seed: u32) -> SamplerParams {
    SamplerParams::greedy().temp(1.0).seed(seed)
}

fn run(s: &mut Sampler, logits: &[f32], n: usize) -> Vec<Token> {
    (0..n).map(|_| s.sample(logits).unwrap()).collect()
}

/// A row of a plausible shape, by a fixed rule.
fn row(n: usize, salt: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| (i.wrapping_mul(2654435761).wrapping_add(salt * 40503) >> 8) as f32 / 1e6 - 8.0)
        .collect()
}

#[test]
fn greedy_is_the_argmax_and_the_first_of_equals() {
    let mut s = sampler(&SamplerParams::greedy(), 3);
    assert_eq!(s.sample(&[0.0, 2.0, 1.0]).unwrap(), 1);
    assert_eq!(s.sample(&[3.0, 1.0, 3.0]).unwrap(), 0);
    assert_eq!(s.sample(&[f32::NEG_INFINITY, f32::NEG_INFINITY, -5.0]).unwrap(), 2);
    assert_eq!(s.sample(&[0.0, 0.0, 1.0, 99.0]).unwrap(), 2, "logits past the vocabulary do not count");
    let mut below = sampler(&plain(1).temp(-1.0).top_k(1).typical_p(0.1), 3);
    assert_eq!(run(&mut below, &[0.0, 2.0, 1.0], 20), [1; 20]);
}

#[test]
fn top_k_1_and_their_like_are_greedy() {
    for p in [plain(3).top_k(1), plain(3).top_p(0.0), plain(3).min_p(1.0), plain(3).temp(1e-4)] {
        let mut s = sampler(&p, 5000);
        let mut greedy = sampler(&SamplerParams::greedy(), 5000);
        for salt in 0..30 {
            let logits = row(5000, salt);
            assert_eq!(s.sample(&logits).unwrap(), greedy.sample(&logits).unwrap(), "{p:?}");
        }
    }
}

#[test]
fn seeds_reproduce() {
    let logits = row(500, 1);
    let p = plain(7).temp(0.8).top_k(40).top_p(0.95).min_p(0.01).typical_p(0.9).seed(7);
    let mut s = sampler(&p, 500);
    let first = run(&mut s, &logits, 100);
    assert!(first.iter().any(|t| *t != first[0]), "it does draw");
    assert_ne!(run(&mut s, &logits, 100), first);
    assert_eq!(run(&mut sampler(&p, 500), &logits, 100), first);
    assert_ne!(run(&mut sampler(&p.clone().seed(8), 500), &logits, 100), first);
    let last = p.seed(u32::MAX);
    assert_eq!(
        run(&mut sampler(&last, 500), &logits, 100),
        run(&mut sampler(&last, 500), &logits, 100),
        "no clock"
    );
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [1.0f32.ln(), 2.0f32.ln(), 3.0f32.ln()];
    let share = |p: &SamplerParams| {
        let mut counts = [0.0; 3];
        run(&mut sampler(p, 3), &logits, 20_000).iter().for_each(|&t| counts[t as usize] += 1.0 / 20_000.0);
        counts
    };
    let near = |found: [f64; 3], expected: [f64; 3]| {
        let off = found.iter().zip(expected).any(|(f, e)| (f - e).abs() > 0.015);
        assert!(!off, "{found:?} {expected:?}");
    };
    near(share(&plain(11)), [1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0]);
    near(share(&plain(12).temp(0.5)), [1.0 / 14.0, 4.0 / 14.0, 9.0 / 14.0]);
    near(share(&plain(13).top_k(2)), [0.0, 0.4, 0.6]);
    near(share(&plain(14).top_p(0.8)), [0.0, 0.4, 0.6]);
    near(share(&plain(15).min_p(0.5)), [0.0, 0.4, 0.6]);
    // The middle one is nearest to the entropy, and enough by itself.
    near(share(&plain(16).typical_p(0.3)), [0.0, 1.0, 0.0]);
}

#[test]
fn repetition_penalty_changes_the_argmax() {
    let logits = [2.0, 1.5, -1.0];
    let p = SamplerParams::greedy().penalty_last_n(2).penalty_repeat(2.0);
    let mut s = sampler(&p, 3);
    assert_eq!(s.sample(&logits).unwrap(), 0);
    assert_eq!(s.sample(&logits).unwrap(), 1, "0 is penalized to 1.0");
    assert_eq!(s.sample(&logits).unwrap(), 0, "both are");
    let mut s = sampler(&p, 3);
    s.accept(1);
    s.accept(1);
    assert_eq!(s.sample(&logits).unwrap(), 0);
    let mut s = sampler(&SamplerParams::greedy().penalty_last_n(-1).penalty_present(0.6), 3);
    s.accept(0);
    assert_eq!(s.sample(&logits).unwrap(), 1);
    let mut s = sampler(&SamplerParams::greedy().penalty_last_n(64).penalty_freq(0.2), 3);
    [0, 0, 0].iter().for_each(|&t| s.accept(t));
    assert_eq!(s.sample(&logits).unwrap(), 1, "three times 0.2");
}

#[test]
fn dry_breaks_a_repetition() {
    let p = SamplerParams::greedy().dry_multiplier(2.0);
    let mut logits = [0.0; 10];
    logits[4] = 3.0;
    let mut s = sampler(&p, 10);
    [1, 2, 3, 4, 9, 1, 2].iter().for_each(|&t| s.accept(t));
    assert_eq!(s.sample(&logits).unwrap(), 4, "4 did not follow 1 2 before");
    let mut s = sampler(&p, 10);
    [1, 2, 3, 4, 9, 1, 2, 3].iter().for_each(|&t| s.accept(t));
    assert_ne!(s.sample(&logits).unwrap(), 4, "4 would repeat 1 2 3 4: minus 2 * 1.75");
    let mut s = sampler(&p.dry_allowed_length(4), 10);
    [1, 2, 3, 4, 9, 1, 2, 3].iter().for_each(|&t| s.accept(t));
    assert_eq!(s.sample(&logits).unwrap(), 4);
}

#[test]
fn unusable_logits_are_errors() {
    let inf = f32::INFINITY;
    let on = plain(1).penalty_last_n(8).penalty_repeat(1.1).typical_p(0.9).top_p(0.9);
    for p in [SamplerParams::greedy(), plain(1), on] {
        let mut s = sampler(&p, 3);
        for bad in [[0.0, f32::NAN, 1.0], [0.0, inf, 1.0], [-inf; 3], [f32::MIN; 3], [0.0, 1e30, 0.0]] {
            assert!(s.sample(&bad).is_err(), "{p:?} {bad:?}");
        }
        assert!(s.sample(&[0.0, 1.0]).unwrap_err().to_string().contains("2 logits"));
        assert!(s.sample(&[]).is_err());
        assert_eq!(s.sample(&[-inf, 1.0, f32::MIN]).unwrap(), 1);
    }
}

#[test]
fn typical_survives_probabilities_of_zero() {
    let mut logits = row(4000, 2).iter().map(|l| l - 300.0).collect::<Vec<_>>();
    (logits[17], logits[18]) = (5.0, 4.0);
    let mut s = sampler(&plain(5).typical_p(0.95), 4000);
    assert!(run(&mut s, &logits, 50).iter().all(|t| [17, 18].contains(t)));
}

#[test]
fn settings_out_of_range_are_named() {
    let g = SamplerParams::greedy;
    let nan = f32::NAN;
    let cases = [
        ("temp", g().temp(nan)),
        ("temp", g().temp(1e-9)),
        ("top_k", g().top_k(-1)),
        ("top_p", g().top_p(1.1)),
        ("min_p", g().min_p(-0.1)),
        ("typical_p", g().typical_p(nan)),
        ("penalty_last_n", g().penalty_last_n(-2)),
        ("penalty_last_n", g().penalty_last_n(i32::MAX)),
        ("penalty_repeat", g().penalty_repeat(0.0)),
        ("penalty_freq", g().penalty_freq(nan)),
        ("penalty_present", g().penalty_present(f32::INFINITY)),
        ("dry_multiplier", g().dry_multiplier(-1.0)),
        ("dry_base", g().dry_base(0.5)),
        ("dry_allowed_length", g().dry_allowed_length(-1)),
        ("dry_penalty_last_n", g().dry_penalty_last_n(-2)),
    ];
    let v = vocab(3);
    for (name, p) in cases {
        let e = Sampler::new(&p, &v, 64).unwrap_err().to_string();
        assert!(e.starts_with(&format!("{name}: expected")), "{name}: {e}");
    }
    let huge = g().penalty_last_n(-1).penalty_repeat(1.1).dry_multiplier(1.0);
    assert!(
        Sampler::new(&huge, &v, usize::MAX).is_ok(),
        "a file's context is no reason to allocate all of it"
    );
}

static FREED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn freed(_: *mut sys::llama_sampler) {
    FREED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn every_step_is_freed_once_in_a_chain_or_not() {
    // SAFETY: each field is a function or none, and zero is none.
    let mut functions: sys::llama_sampler_i = unsafe { std::mem::zeroed() };
    functions.free = Some(freed);
    let functions = std::ptr::from_mut(&mut functions);
    // SAFETY: the functions outlive the steps.
    let step = || Steps::new(unsafe { sys::llama_sampler_init(functions, std::ptr::null_mut()) });
    assert!(Steps::chain([step(), Steps::new(std::ptr::null_mut()), step()]).is_err());
    assert_eq!(FREED.load(Ordering::Relaxed), 2);
    drop(Steps::chain([step(), step()]).unwrap());
    assert_eq!(FREED.load(Ordering::Relaxed), 4);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_settings_pick_a_token_that_may_be_picked(
        logits in prop::collection::vec(
            prop_oneof![8 => -30f32..30.0, 1 => Just(f32::NEG_INFINITY), 1 => -1e6f32..1e6],
            1..2000,
        ),
        (temp, top_k, top_p, min_p, typical_p) in
            (1e-4f32..100.0, 0..300i32, 0f32..=1.0, 0f32..=1.0, 0f32..=1.0),
        (last_n, repeat, freq, present) in (-1..50i32, 0.01f32..10.0, -10f32..10.0, -10f32..10.0),
        (dry, base, allowed, dry_last) in (0f32..100.0, 1f32..100.0, 0..6i32, -1..50i32),
        seed in any::<u32>(),
    ) {
        let p = SamplerParams::greedy()
            .temp(temp).top_k(top_k).top_p(top_p).min_p(min_p).typical_p(typical_p).seed(seed)
            .penalty_last_n(last_n).penalty_repeat(repeat).penalty_freq(freq).penalty_present(present)
            .dry_multiplier(dry).dry_base(base).dry_allowed_length(allowed).dry_penalty_last_n(dry_last);
        let mut s = sampler(&p, logits.len());
        [0, 1, 2, 0, 1, 2, 0, 1, -5, i32::MAX].iter().for_each(|&t| s.accept(t));
        for _ in 0..8 {
            match s.sample(&logits) {
                Ok(t) => prop_assert!(logits[t as usize] > f32::NEG_INFINITY),
                // Nothing to pick from, or nothing left by DRY of the few tokens there are.
                Err(e) => prop_assert!(e.to_string().contains("minus infinity"), "{e}"),
            }
        }
    }
}
