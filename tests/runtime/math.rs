//! Rounding under each setting of `Math`: logits compared with libllama's on the same weights converted to F32.

use crate::common::*;
use crate::libllama::{oracle_logits, oracle_params};
use ropewalk::eval::SessionSource;
use ropewalk::math::Math;
use ropewalk::session::Session;
use ropewalk::DType;

const TYPES: [DType; 7] =
    [DType::F16, DType::BF16, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q8_0, DType::Q4_K];

/// In batches, and a few tokens at a time.
#[test]
fn each_rounds_what_it_says() {
    for dtype in TYPES {
        let path = random_model("llama-tiny-gqa", dtype, "math");
        let f32_path = in_f32(&path, &format!("math-{}-f32.gguf", dtype.name()));
        let model = load(&path);
        let n_vocab = model.hparams().n_vocab;
        let tokens = some_tokens(200, n_vocab);
        let exact = oracle_logits(&f32_path, &oracle_params(256, DType::F32), &tokens);
        std::fs::remove_file(f32_path).unwrap();
        let spread = exact.iter().map(|x| x.abs()).fold(1.0, f32::max);
        for n_ubatch in [3, 96] {
            let found = Math::ALL.map(|math| {
                let p = params(256).kv_type(DType::F32).n_ubatch(n_ubatch).math(math);
                let d = compare(&exact, &all_logits(&model, &p, &tokens), &tokens, n_vocab);
                println!("{} {math} by {n_ubatch}: {d:?}", dtype.name());
                (d.max_abs / f64::from(spread), d.kl)
            });
            let [auto, floats, bf16, int8] = found;
            let what = format!("{} by {n_ubatch}: {found:?}", dtype.name());
            assert!(floats.0 < 1e-4 && floats.1 < 1e-8, "{what}");
            assert!(bf16.0 < 0.1 && bf16.1 < 2e-3, "{what}");
            // Also for types with which libllama rounds less.
            assert!(auto.1 <= 1.1 * int8.1 + 1e-8, "{what}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let model = load(&random_model("llama-tiny", DType::Q8_0, "math-refused"));
    for math in [Math::F32, Math::Bf16] {
        let p = params(64).math(math).portable(true);
        let error = Session::new(&model, &p).expect_err("products of floats without ops of our own");
        assert!(error.to_string().contains(&format!("math {math}: needs the CPU")), "{error}");
    }
}

/// Results of an interrupted evaluation are taken up again only where products round as they did.
#[test]
fn a_setting_is_part_of_the_identity() {
    let model = load(&random_model("llama-tiny", DType::Q8_0, "math-identity"));
    let identity = |math| SessionSource::new(&model, params(64).math(math)).identity().unwrap();
    let all = Math::ALL.map(identity);
    assert!(!all[0].contains("math"), "records of earlier versions stay valid: {}", all[0]);
    for (i, one) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other != one), "{one}");
    }
}

#[test]
fn names_are_read_back() {
    assert!(Math::ALL.into_iter().all(|math| math.to_string().parse() == Ok(math)));
    assert!("F32".parse::<Math>().unwrap_err().contains("auto, f32, bf16, int8"));
}
