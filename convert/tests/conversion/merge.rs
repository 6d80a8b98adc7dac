//! Merged adapters: how much of their change is left after rounding.

use std::path::Path;

use convert::random::{self, Shape};
use convert::{convert, Mixture, Options, Report, MAX_LOST};
use ggml::dtype::dequantize_tensor;
use ggml::DType;
use gguf::File;
use ropewalk_core::adapter::{write, AdapterMeta, AdapterSpec, NewPair};
use ropewalk_core::control::Control;

use crate::cli::{convert as program, json, stderr};
use crate::lab::of_pairs;

const WEIGHT: &str = "blk.0.attn_q.weight";
const RANK: usize = 2;
/// The adapter's change over the weights, root mean squares: less than half a step of Q4_0, more than one of Q8_0.
const CHANGE: f64 = 0.02;

fn values(path: &Path) -> (Vec<f64>, [usize; 2]) {
    let file = File::open(path).unwrap();
    let t = file.tensor(WEIGHT).unwrap();
    let shape = [t.shape[0] as usize, t.shape[1] as usize];
    (dequantize_tensor(&file, t).unwrap().into_iter().map(f64::from).collect(), shape)
}

fn squares(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum()
}

/// Numbers around 0 that do not repeat within a row.
fn numbers(n: usize, step: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * step % 1009) as f32 - 504.0) / 1009.0).collect()
}

/// A random Q4_0 model and an adapter of [`CHANGE`], merged into several types.
#[test]
fn rounding_is_compared_with_the_adapters_change() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    random::write(&Shape::named("llama-tiny").unwrap(), DType::Q4_0, 1, at("in.gguf")).unwrap();
    let (base, [n_in, n_out]) = values(&at("in.gguf"));
    let (a, b) = (numbers(n_in * RANK, 37), numbers(RANK * n_out, 101));
    let product = |row: usize, column: usize| -> f64 {
        (0..RANK).map(|k| f64::from(b[row * RANK + k]) * f64::from(a[k * n_in + column])).sum()
    };
    let delta: Vec<f64> = (0..base.len()).map(|i| product(i / n_in, i % n_in)).collect();
    // Alpha over rank is 1.
    let scale = (CHANGE * (squares(&base) / squares(&delta)).sqrt()) as f32;
    let delta: Vec<f64> = delta.into_iter().map(|x| f64::from(scale) * x).collect();
    let pair = NewPair { weight: WEIGHT.into(), n_in, n_out, a: &a, b: &b };
    write(at("a.gguf"), &of_pairs(RANK, vec![pair], AdapterMeta::default())).unwrap();

    let merge = |options: Options| -> Report {
        let adapters = vec![AdapterSpec::new(at("a.gguf"), scale)];
        convert(at("in.gguf"), at("out.gguf"), &options.adapters(adapters), &Control::default()).unwrap()
    };
    let to = |dtype| Options::default().dtype(dtype);
    let mixture = Mixture::default().name("q4_0".into());
    for (options, dtype, keeps) in [
        (to(None), "q4_0", false),
        (Options::default().mixture(Some(mixture)), "q4_0", false),
        (to(Some(DType::Q8_0)), "q8_0", true),
        (to(Some(DType::F32)), "f32", true),
    ] {
        let report = merge(options);
        let (written, _) = values(&at("out.gguf"));
        let rounding: Vec<f64> = (0..base.len()).map(|i| written[i] - (base[i] + delta[i])).collect();
        let along: f64 = (0..base.len()).map(|i| (written[i] - base[i]) * delta[i]).sum();
        let ratio = (squares(&rounding) / squares(&delta)).sqrt();
        let kept = along / squares(&delta);
        let (said, said_kept) = (report.rounding_over_change.unwrap(), report.change_kept.unwrap());
        println!("{dtype}: rounding {said:.4} ({ratio:.4}) of the change, kept {said_kept:.4} ({kept:.4})");
        // Weights are merged in floats: 2^-24 of a weight is 3e-6 of the change.
        assert!((said - ratio).abs() < 1e-4 && (said_kept - kept).abs() < 1e-4, "{dtype}");
        assert_eq!((report.merged.len(), report.merged[0].dtype), (1, dtype));
        assert_eq!((kept - 1.0).abs() <= MAX_LOST, keeps, "{dtype}: {kept}");
    }
    assert_eq!(merge(to(Some(DType::F32))).rounding_over_change, Some(0.0));

    let (lora, model, out) = (format!("{}:{scale}", at("a.gguf").display()), at("in.gguf"), at("out.gguf"));
    let run = |args: &[&str]| {
        let files = ["--lora", &lora, model.to_str().unwrap(), "-o", out.to_str().unwrap()];
        program(&[&files[..], args].concat())
    };
    let lost = stderr(&run(&[]));
    assert!(
        lost.contains("merged 1 tensors; rounding to q4_0 is ") && lost.contains("--type q8_0"),
        "{lost}"
    );
    let kept = stderr(&run(&["--type", "q8_0"]));
    assert!(kept.contains("rounding to q8_0 is ") && !kept.contains("--type"), "{kept}");
    let report = json(&run(&["--json"]));
    assert!(report["rounding_over_change"].is_f64() && report["change_kept"].as_f64().unwrap() < MAX_LOST);
}
