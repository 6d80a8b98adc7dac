//! Logits of sessions on the device.

use convert::random::Shape;
use ropewalk::model::Model;
use ropewalk::session::SessionParams;
use ropewalk::{DType, Token};

use crate::cases;
use crate::common::{all_logits, open, params, score, scratch, top, ATTENTION_SHAPES, KV};
use crate::subject::{none, Subject, Way};

fn under(spec: &str, kv_type: DType) -> SessionParams {
    params(640).rope(Some(spec.parse().unwrap())).kv_type(kv_type)
}

fn logits(way: Way<'_>, p: &SessionParams, text: &[Token]) -> Vec<f32> {
    all_logits(way.model, &p.clone().portable(way.portable), text)
}

fn plain() -> SessionParams {
    params(640).kv_type(DType::F32)
}

#[test]
fn every_architecture() {
    let mut failures = Vec::new();
    for shape in ATTENTION_SHAPES {
        for dtype in [DType::F32, DType::Q8_0, DType::Q4_K] {
            let s = Subject::named(shape, dtype);
            let text = s.text(48);
            s.check("48 tokens", &mut failures, |way| logits(way, &plain(), &text), |a, b| s.apart(a, b));
            if dtype == DType::F32 {
                let p = under("plain", DType::F16).n_ubatch(1);
                let what = "one at a time, f16 cache";
                s.check(what, &mut failures, |way| logits(way, &p, &text), |a, b| s.apart(a, b));
            }
        }
    }
    none(failures);
}

/// And gated delta-nets with attention in turns: all tokens at once, and each state out of the one before.
#[test]
fn every_type_of_weights() {
    let mut failures = Vec::new();
    let types = [
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q2_K,
        DType::Q3_K,
        DType::Q5_K,
        DType::Q6_K,
    ];
    let recurrent = [DType::F32, DType::Q8_0].map(|dtype| ("qwen35-tiny", dtype, 48));
    for (shape, dtype, n) in types.map(|dtype| ("llama-tiny", dtype, 40)).into_iter().chain(recurrent) {
        let s = Subject::named(shape, dtype);
        let text = s.text(n);
        // Many tokens at once and one at a time are different programs on a device.
        for n_ubatch in [512, 1] {
            let p = plain().n_ubatch(n_ubatch);
            let what = format!("{n_ubatch} at once");
            s.check(&what, &mut failures, |way| logits(way, &p, &text), |a, b| s.apart(a, b));
        }
    }
    none(failures);
}

/// A near tie of two experts falls the other way now and then, and the token then differs much: the median counts.
#[test]
fn mixtures_of_experts() {
    let mut failures = Vec::new();
    for shape in ["gpt-oss-tiny", "qwen3moe-tiny"] {
        for dtype in [DType::F32, DType::Q8_0] {
            let s = Subject::named(shape, dtype);
            let (text, n_vocab) = (s.text(48), s.exact.hparams().n_vocab);
            let median = |a: &Vec<f32>, b: &Vec<f32>| {
                let rows = a.chunks_exact(n_vocab).zip(b.chunks_exact(n_vocab));
                let mut rows: Vec<f64> = rows.map(|(a, b)| s.apart(a, b)).collect();
                rows.sort_by(f64::total_cmp);
                rows[rows.len() / 2]
            };
            s.check("the median token", &mut failures, |way| logits(way, &plain(), &text), median);
        }
    }
    none(failures);
}

/// Heads of 32 in groups; windows of the cases are crossed many times.
fn small(name: &str) -> Subject {
    let shape = Shape {
        n_layer: 2,
        n_embd: 96,
        n_head: 4,
        n_head_kv: 2,
        n_embd_head: 32,
        n_ff: 160,
        n_vocab: 260,
        n_ctx_train: 64,
        ..Shape::named(name).unwrap()
    };
    Subject::of(&format!("{name} of 96"), &shape, DType::F32)
}

#[test]
fn every_method() {
    let mut failures = Vec::new();
    for s in [small("llama-tiny"), small("qwen2-tiny")] {
        let text = s.text(150);
        // Factors of LongRoPE are in files of some models only, which these are not.
        for case in cases::all().filter(|case| !case.spec.contains("longrope")) {
            let p = under(case.spec, DType::F32).n_ubatch(64);
            s.check(case.spec, &mut failures, |way| logits(way, &p, &text), |a, b| s.apart(a, b));
        }
    }
    none(failures);
}

/// A single token attends to several branches by another program than many tokens do.
#[test]
fn every_reach_one_token_at_a_time() {
    let mut failures = Vec::new();
    let mut one_at_a_time = |s: &Subject, spec: &str| {
        let (text, p) = (s.text(100), under(spec, DType::F32).n_ubatch(1));
        let what = format!("{spec}, one at a time");
        s.check(&what, &mut failures, |way| logits(way, &p, &text), |a, b| s.apart(a, b));
    };
    let llama = small("llama-tiny");
    let reaches = [cases::SELF_EXTEND, cases::LM_INFINITE, cases::DCA, cases::STREAMING, cases::REROPE];
    reaches.iter().for_each(|cases| one_at_a_time(&llama, cases[0].spec));
    // Softcaps, and as many key heads as query heads.
    for shape in ["gemma2-tiny", "phi2-tiny"] {
        one_at_a_time(&Subject::named(shape, DType::F32), "self-extend:window=16,group=4");
    }
    none(failures);
}

/// Cut anywhere, restored, copied, and in every type of cache: the same within the type's own steps.
#[test]
fn every_way_to_the_same_state() {
    for s in [small("llama-tiny"), Subject::named("gemma3-tiny", DType::Q8_0)] {
        let text = s.text(100);
        let path = scratch("device.session");
        for spec in ["plain", "harpe", "self-extend:window=32,group=4"] {
            // One token and many are different programs on a device, each of which may round as much.
            let rounded = s.largest_allowed(|way| logits(way, &under(spec, DType::F32), &text));
            let cached = |kv_type| all_logits(&s.exact, &under(spec, kv_type), &text);
            let exact = cached(DType::F32);
            for (kv_type, bound) in KV {
                let whole = all_logits(&s.on_device, &under(spec, kv_type), &text);
                let spread = whole.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / whole.len() as f64;
                // What is rounded elsewhere makes the cache's type round some keys and values to neighbors of what it rounded
                // them to before. If it did so with all of them, these would be two ways to round by as much as the type does on
                // the CPU. KV's bounds, for logits whose deviation is near 2 and ops that round nothing else, say how many do.
                let steps = crate::common::distance(&cached(kv_type), &exact);
                let bound = 2.0 * steps.min(bound * spread.sqrt()) + rounded;
                let same = |what: &str, got: &[f32], want: &[f32]| {
                    let d = crate::common::distance(got, want);
                    println!(
                        "{} {spec} {kv_type} {what}: {d:.1e}, allowed {bound:.1e}, {steps:.1e} for the cache",
                        s.about
                    );
                    assert!(
                        d <= bound,
                        "{} {spec}, {kv_type} cache, {what}: {d:.1e}, allowed {bound:.1e}",
                        s.about
                    );
                };
                let one = under(spec, kv_type).n_ubatch(1);
                same("one at a time", &all_logits(&s.on_device, &one, &text), &whole);
                let n_vocab = s.exact.hparams().n_vocab;
                let mut first = open(&s.on_device, &under(spec, kv_type));
                first.append(&text[..60]).unwrap();
                first.copy_seq(0, 1).unwrap();
                first.save(&path, &[]).unwrap();
                same("two pieces", &score(&mut first, &text[60..]), &whole[60 * n_vocab..]);
                let mut second = open(&s.on_device, &under(spec, kv_type));
                second.restore(&path).unwrap();
                second.truncate(0, 50).unwrap();
                same("restored and cut", &score(&mut second, &text[50..]), &whole[50 * n_vocab..]);
            }
        }
        std::fs::remove_file(path).unwrap();
    }
}

/// Greedy text, and the logits that each of its tokens is the largest of.
fn greedy(model: &Model, p: &SessionParams, prompt: &[Token], n: usize) -> (Vec<Token>, Vec<Vec<f32>>) {
    let mut session = open(model, p);
    let (mut text, mut rows) = (prompt.to_vec(), Vec::new());
    for _ in 0..n {
        let (logits, _) = session.prompt(&text).unwrap_or_else(|e| panic!("{e}"));
        text.push(top(logits) as Token);
        rows.push(logits.to_vec());
    }
    (text, rows)
}

/// Where texts part, the device's logits are no farther from the CPU's than rounding explains.
#[test]
fn greedy_text_is_the_cpus_but_for_ties() {
    let mut ties = 0;
    for shape in ["llama-tiny", "llama-tiny-gqa", "qwen2-tiny"] {
        let s = Subject::named(shape, DType::Q8_0);
        let prompt = s.text(24);
        for spec in
            ["plain", "yarn:factor=4", "harpe", "self-extend:window=32,group=4", "dca:chunk=64,local=16"]
        {
            let p = under(spec, DType::F16).n_ctx(1024);
            let (ours, rows) = greedy(&s.on_device, &p, &prompt, 24);
            let (theirs, exact) = greedy(&s.exact, &p, &prompt, 24);
            let Some(at) = ours.iter().zip(&theirs).position(|(a, b)| a != b) else { continue };
            ties += 1;
            let step = at - prompt.len();
            let moved = crate::common::distance(&rows[step], &exact[step]);
            let row = |way: Way<'_>| {
                let mut session = open(way.model, &p.clone().portable(way.portable));
                session.prompt(&theirs[..at]).unwrap().0.to_vec()
            };
            let bound = s.largest_allowed(row);
            println!("{} {spec}: token {at} differs, moved {moved:.1e}, allowed {bound:.1e}", s.about);
            assert!(
                moved <= bound,
                "{} {spec}: token {at} is no tie: {moved:.1e}, allowed {bound:.1e}",
                s.about
            );
        }
    }
    println!("{ties} of 15 texts part at a tie");
}
