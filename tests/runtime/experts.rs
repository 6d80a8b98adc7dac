//! Mixtures of experts against libllama. Where activations are rounded in one program as they are not in the other, a
//! near tie of a router falls differently now and then: such tokens are few, and all others agree as in dense models.

use std::path::{Path, PathBuf};

use gguf::{File, Writer};
use ropewalk::DType;

use crate::common::*;
use crate::libllama::{oracle_logits, oracle_params, types, TYPES};

const SHAPES: [&str; 3] = ["qwen3moe-tiny", "qwen35moe-tiny", "gpt-oss-tiny"];

/// The F32 model with the weights of its experts in MXFP4, as gpt-oss is published.
fn in_mxfp4(shape: &str) -> PathBuf {
    let file = File::open(&random_model(shape, DType::F32, "mxfp4")).unwrap();
    let path = scratch(&format!("experts-{shape}-mxfp4.gguf"));
    let mut out = Writer::with_metadata_of(&file);
    for t in file.tensors() {
        if t.name.ends_with("_exps.weight") {
            let values = ggml::dtype::dequantize_tensor(&file, t).unwrap();
            let bytes = ggml::dtype::quantize(DType::MXFP4, t.shape[0] as usize, &values).unwrap();
            out.tensor_bytes(&t.name, DType::MXFP4, &t.shape, bytes).unwrap();
        } else {
            out.copy_tensor(&file, t).unwrap();
        }
    }
    out.write(&path).unwrap();
    path
}

/// Bounds on the difference of two programs: in three of four tokens, in units of the largest logit, and in all.
#[derive(Clone, Copy)]
struct Bounds {
    usual: f64,
    most: f64,
    kl: f64,
}

fn check(path: &Path, bounds: Bounds, what: &str) {
    let model = load(path);
    let n_vocab = model.hparams().n_vocab;
    let tokens = some_tokens(200, n_vocab);
    let theirs = oracle_logits(path, &oracle_params(256, DType::F32), &tokens);
    let spread = f64::from(theirs.iter().map(|x| x.abs()).fold(0.0, f32::max)).max(1.0);
    for (portable, n_ubatch) in [(false, 96), (false, 1), (true, 96)] {
        let p = params(256).kv_type(DType::F32).portable(portable).n_ubatch(n_ubatch);
        let ours = all_logits(&model, &p, &tokens);
        let d = compare(&theirs, &ours, &tokens, n_vocab);
        let rows = theirs.chunks_exact(n_vocab).zip(ours.chunks_exact(n_vocab));
        let off = |(a, b): (&[f32], &[f32])| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let mut off: Vec<f64> = rows.map(off).map(f64::from).collect();
        off.sort_by(f64::total_cmp);
        let usual = off[off.len() * 3 / 4];
        let what = format!("{what}, portable {portable}, {n_ubatch}: {d:?}, usual {usual}, largest {spread}");
        println!("{what}");
        let Bounds { usual: usually, most, kl } = bounds;
        assert!(usual < usually * spread && d.max_abs < most * spread && d.kl < kl, "{what}");
    }
}

#[test]
fn mixtures_of_experts_agree() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        // Products of experts have their own code for each type: the first shape is compared in all.
        for dtype in if i == 0 { TYPES.to_vec() } else { types(i) } {
            let path = random_model(shape, dtype, "experts");
            let bounds = match dtype {
                DType::F32 => Bounds { usual: 1e-4, most: 1e-4, kl: 1e-8 },
                // Values that libllama rounds to 8 bits also go through the states of four layers here.
                _ if shape == "qwen35moe-tiny" => Bounds { usual: 0.2, most: 1.5, kl: 0.3 },
                _ => Bounds { usual: 0.1, most: 1.0, kl: 0.05 },
            };
            check(&path, bounds, &format!("{shape} {}", dtype.name()));
        }
    }
}

#[test]
fn experts_in_mxfp4_agree() {
    // Both round what these weights are multiplied by, and nothing else, to 8 bits: a last bit before is more after.
    let bounds = Bounds { usual: 1e-2, most: 0.1, kl: 1e-3 };
    check(&in_mxfp4("gpt-oss-tiny"), bounds, "gpt-oss in mxfp4");
}
