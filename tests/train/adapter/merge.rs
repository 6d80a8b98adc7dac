//! `ropewalk convert --lora`: merged weights against the model with the adapter, and the errors it reports.

use std::path::Path;

use convert::{convert, Options, Report};
use ropewalk::control::Control;
use ropewalk::gguf::File;
use ropewalk::DType;

use super::make::{deviation, load_with, noise, spec, Made};
use crate::common::rounding::{rounding, two_orders};
use crate::common::*;

fn merge(path: &Path, adapters: &[(&Path, f32)], options: Options, to: &Path) -> Report {
    let adapters = adapters.iter().map(|(p, s)| spec(p, *s)).collect();
    convert(path, to, &options.adapters(adapters), &Control::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_merged_f32_model_gives_the_adapted_models_logits() {
    for shape in ["llama-tiny", "llama-tiny-tied", "qwen2-tiny", "qwen2-tiny-tied"] {
        let path = random_model(shape, DType::F32, "merge-base");
        let one = Made::on(&path, 8, true, 1).with_whole(&path).write(&format!("merge-1-{shape}.gguf"));
        let two = Made::on(&path, 3, true, 2).write(&format!("merge-2-{shape}.gguf"));
        // One at full scale, one whose replaced tensors are mixed with the model's.
        for adapters in [&[(one.as_path(), 1.0)][..], &[(one.as_path(), 0.6), (two.as_path(), -0.4)]] {
            let merged = scratch(&format!("merged-{shape}.gguf"));
            let report = merge(&path, adapters, Options::default(), &merged);
            assert_eq!(report.merged.len(), 1, "{:?}", report.merged);
            assert_eq!((report.merged[0].dtype, report.merged[0].rel_rmse), ("f32", 0.0));
            // Seven maps in two layers, the output, three norms, and the embedding.
            assert_eq!(report.merged[0].n_tensors, 2 * 7 + 1 + 3 + 1);
            let (adapted, merged) = (load_with(&path, adapters), load(&merged));
            let tokens = some_tokens(120, adapted.hparams().n_vocab);
            for portable in [false, true] {
                let p = with_kv(256, DType::F32).portable(portable);
                let (a, b) = (all_logits(&adapted, &p, &tokens), all_logits(&merged, &p, &tokens));
                assert_close(&a, &b, deviation(&a) * two_orders(roundings(adapted.hparams(), 120)), shape);
                let base = all_logits(&load(&path), &p, &tokens);
                assert!(distance(&a, &base) > 1.0, "{shape}: the adapter changes too little to be missed");
            }
        }
    }
}

/// Of a model whose output is its embedding: the input alone replaced, the output alone, both, with and without a pair at the
/// output; and pairs of more ranks than their weights have rows. A session and a merged file come to the same.
#[test]
fn a_tied_output_is_the_same_in_a_session_and_merged() {
    const WIDE: usize = 288;
    let path = random_model("llama-tiny-tied", DType::F32, "merge-untied");
    let file = File::open(&path).unwrap();
    let embedding = file.tensor("token_embd.weight").unwrap();
    let shape: Vec<usize> = embedding.shape.iter().map(|&n| n as usize).collect();
    assert!(WIDE > shape[0]);
    let own = file.floats(embedding).unwrap();
    let changed = |name: &str, seed: u64| {
        let values = own.iter().zip(noise(own.len(), 0.5, seed)).map(|(x, n)| x + n).collect();
        (name.to_owned(), shape.clone(), values)
    };
    let tokens = some_tokens(120, shape[1]);
    let p = with_kv(256, DType::F32);
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for (name, pair, keeps, modules) in [
        ("follows", false, false, vec![changed("token_embd.weight", 1)]),
        ("input", false, true, vec![changed("token_embd.weight", 1)]),
        ("input-pair", true, true, vec![changed("token_embd.weight", 1)]),
        ("output", false, false, vec![changed("output.weight", 2)]),
        ("both", false, false, vec![changed("token_embd.weight", 1), changed("output.weight", 2)]),
        ("both-pair", true, false, vec![changed("token_embd.weight", 1), changed("output.weight", 2)]),
    ] {
        let mut made = Made { modules, ..Made::on(&path, WIDE, pair, 1) };
        // So that its products are as large as those of a few ranks.
        made.alpha = 60.0;
        let plain = made.write(&format!("untied-{name}-plain.gguf"));
        let adapter = scratch(&format!("untied-{name}.gguf"));
        rewritten(&plain, &adapter, &[], |writer| {
            writer.set("ropewalk.lora.keeps_output", keeps);
        });
        let merged = scratch(&format!("untied-{name}-merged.gguf"));
        for scale in [1.0, 0.5] {
            let adapters = [(adapter.as_path(), scale)];
            merge(&path, &adapters, Options::default(), &merged);
            let unties = File::open(&merged).unwrap().tensor("output.weight").is_some();
            assert_eq!(unties, name != "follows", "{name}");
            let adapted = load_with(&path, &adapters);
            let a = all_logits(&adapted, &p, &tokens);
            let n = roundings(adapted.hparams(), 120) + 2 * WIDE;
            let b = all_logits(&load(&merged), &p, &tokens);
            assert_close(&a, &b, deviation(&a) * two_orders(n), name);
            if scale == 1.0 {
                assert!(seen.iter().all(|other| distance(&a, other) > 1.0), "{name}: as another");
                seen.push(a);
            }
        }
    }
}

/// F16 has 11 bits. In a block of 32, Q8_0 has 127 steps to the largest magnitude, which is 2.5 deviations, and Q4_1 has 15 from
/// the least to the largest number, which are 4.3 apart; errors lie evenly within half a step to either side.
#[test]
fn each_type_says_what_it_costs() {
    let within = |step: f64| step / 12f64.sqrt();
    for (dtype, bound) in [
        (DType::F32, 0.0),
        (DType::F16, 2f64.powi(-11)),
        (DType::Q8_0, within(2.5 / 127.0)),
        (DType::Q4_1, within(4.3 / 15.0)),
    ] {
        let path = random_model("llama-tiny", dtype, "merge-type");
        let made = Made::on(&path, 4, false, 3);
        let adapter = made.write(&format!("merge-type-{}.gguf", dtype.name()));
        let merged = scratch(&format!("merge-type-merged-{}.gguf", dtype.name()));
        let report = merge(&path, &[(&adapter, 0.5)], Options::default(), &merged);
        let (old, new) = (File::open(&path).unwrap(), File::open(&merged).unwrap());
        // 0.5 * alpha / rank is 1: the exact weights by a naive loop, and how far the file is from them.
        let (mut error, mut power) = (0f64, 0f64);
        for (weight, n_in, _, a, b) in &made.pairs {
            let (was, is) = (old.tensor(weight).unwrap(), new.tensor(weight).unwrap());
            assert_eq!((is.dtype, &is.shape), (was.dtype, &was.shape));
            let (was, is) = (
                ggml::dtype::dequantize_tensor(&old, was).unwrap(),
                ggml::dtype::dequantize_tensor(&new, is).unwrap(),
            );
            for (i, (w, m)) in was.iter().zip(&is).enumerate() {
                let (row, column) = (i / n_in, i % n_in);
                let delta: f64 = (0..made.rank)
                    .map(|k| f64::from(b[row * made.rank + k]) * f64::from(a[k * n_in + column]))
                    .sum();
                let exact = f64::from(*w) + delta;
                error += (exact - f64::from(*m)).powi(2);
                power += exact.powi(2);
            }
        }
        let found = (error / power).sqrt();
        assert_eq!((report.merged.len(), report.merged[0].n_tensors), (1, 14));
        let said = report.merged[0].rel_rmse;
        println!("{dtype}: {said:.3e}, by the loop {found:.3e}");
        assert_eq!(report.merged[0].dtype, dtype.name());
        // For weights merged in floats, a weight, and a product for each rank, are rounded.
        let merged = rounding(made.rank + 2);
        assert!(said <= bound && (said - found).abs() <= merged * (1.0 + found), "{dtype}: {said}, {found}");
        assert!(dtype == DType::F32 || said > bound / 10.0, "{dtype}: {said}");
        // What no adapter touches is copied.
        let embedding = |f: &File| f.data(f.tensor("token_embd.weight").unwrap()).to_vec().unwrap();
        assert_eq!(embedding(&old), embedding(&new));
    }
}

#[test]
fn a_merged_file_may_have_another_type() {
    let path = random_model("llama-tiny", DType::F32, "merge-to");
    let adapter = Made::on(&path, 4, true, 4).write("merge-to.gguf");
    let merged = scratch("merge-to-merged.gguf");
    let to = Options::default().dtype(Some(DType::Q8_0));
    let report = merge(&path, &[(&adapter, 1.0)], to, &merged);
    assert_eq!(report.merged[0].dtype, "q8_0");
    assert_eq!(report.converted.len(), 1, "the embedding alone was not merged: {:?}", report.converted);
    let (adapted, merged) = (load_with(&path, &[(&adapter, 1.0)]), load(&merged));
    let (tokens, n_vocab) = (some_tokens(64, adapted.hparams().n_vocab), adapted.hparams().n_vocab);
    let p = with_kv(128, DType::F32);
    let d = compare(&all_logits(&adapted, &p, &tokens), &all_logits(&merged, &p, &tokens), &tokens, n_vocab);
    assert!(d.kl < 1e-2, "{d:?}");
}

#[test]
fn a_merged_file_declares_what_it_was_trained_under() {
    let path = random_model("llama-tiny", DType::Q8_0, "merge-rope");
    let mut made = Made::on(&path, 2, false, 5);
    made.meta.rope = Some("pi:factor=2".parse().unwrap());
    made.meta.n_ctx = Some(8192);
    let adapter = made.write("merge-rope.gguf");
    let merged = scratch("merge-rope-merged.gguf");
    let adapters: [(&Path, f32); 1] = [(&adapter, 1.0)];
    let report = merge(&path, &adapters, Options::default(), &merged);
    assert!(report.rope.as_ref().is_some_and(|r| r.rope.starts_with("pi:factor=2") && r.n_ctx == 8192));
    let spec = open(&load(&merged), &params(256)).plan().spec.to_string();
    assert!(spec.starts_with("pi:factor=2"), "{spec}");

    // The same method without its defaults, and a context that only the adapter states.
    let same = Options::default().rope(Some("pi:factor=2".parse().unwrap()));
    let report = merge(&path, &adapters, same, &merged);
    assert!(report.notes.iter().all(|n| !n.contains("trained under")), "{:?}", report.notes);
    assert_eq!(report.rope.as_ref().map(|r| r.n_ctx), Some(8192));
    let mut short = made.clone();
    short.meta.rope = Some("abf:base=40000".parse().unwrap());
    short.meta.n_ctx = Some(256);
    let short = short.write("merge-rope-short.gguf");
    let report = merge(&path, &[(&short, 1.0)], Options::default(), &merged);
    assert_eq!(report.rope.as_ref().map(|r| r.n_ctx), Some(256));
    assert!(report.notes.iter().any(|n| n.contains("was trained at")), "{:?}", report.notes);

    let plain = Options::default().rope(Some("plain".parse().unwrap()));
    let report = merge(&path, &adapters, plain, &merged);
    assert!(report.notes.iter().any(|n| n.contains("trained under pi:factor=2")), "{:?}", report.notes);
    assert_eq!(open(&load(&merged), &params(256)).plan().spec.to_string(), "plain");

    // Merged weights are another model: the adapter does not go on them again.
    let again = Options::default().adapters(vec![spec_of(&adapter)]);
    let e =
        convert(&merged, scratch("merge-again.gguf"), &again, &Control::default()).unwrap_err().to_string();
    assert!(e.contains("ropewalk.lora.base"), "{e}");
    // Two that want different ropes need a word.
    made.meta.rope = Some("plain".parse().unwrap());
    let other = made.write("merge-rope-other.gguf");
    let both = Options::default().adapters(vec![spec_of(&adapter), spec_of(&other)]);
    let e = convert(&path, scratch("merge-both.gguf"), &both, &Control::default()).unwrap_err().to_string();
    assert!(e.contains("choose one of the methods"), "{e}");
}

fn spec_of(path: &Path) -> ropewalk::adapter::AdapterSpec {
    spec(path, 1.0)
}
