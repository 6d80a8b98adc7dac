//! Models with adapters: compared with the model alone and with libllama, and under another rope.

use std::path::Path;

use llama::oracle::{Oracle, OracleParams};
use ropewalk::adapter::{self, AdapterMeta, AdapterReader, AdapterSpec};
use ropewalk::control::Control;
use ropewalk::gguf::File;
use ropewalk::model::Model;
use ropewalk::session::{Session, SessionParams};
use ropewalk::{DType, Token};

use super::make::{deviation, load_with, params as with, Made};
use crate::common::rounding::two_orders;
use crate::common::*;

const N_TOKENS: usize = 150;

/// F32 cache, micro-batches on both sides of where weights are dequantized.
fn settings(portable: bool) -> SessionParams {
    params(256).kv_type(DType::F32).n_ubatch(96).portable(portable)
}

fn logits(model: &Model, portable: bool) -> Vec<f32> {
    all_logits(model, &settings(portable), &tokens_of(model))
}

fn tokens_of(model: &Model) -> Vec<Token> {
    some_tokens(N_TOKENS, model.hparams().n_vocab)
}

/// libllama's logits with adapters.
fn theirs(path: &Path, adapters: &[(&Path, f32)], tokens: &[Token]) -> Vec<f32> {
    let params = OracleParams {
        n_threads: N_THREADS as u32,
        kv: DType::F32,
        use_extra_bufts: false,
        flash_attn: false,
        ..OracleParams::new(256)
    };
    let mut oracle = Oracle::open(path, &params).unwrap_or_else(|e| panic!("{e}"));
    for (adapter, scale) in adapters {
        oracle.lora(adapter, *scale).unwrap_or_else(|e| panic!("{e}"));
    }
    oracle.eval(tokens, true).unwrap_or_else(|e| panic!("{e}"))
}

fn largest(logits: &[f32]) -> f64 {
    logits.iter().fold(0.0, |m, x| f64::from(x.abs()).max(m))
}

#[test]
fn an_adapter_of_zeros_changes_nothing() {
    for shape in ["llama-tiny", "qwen2-tiny-tied"] {
        for dtype in [DType::F32, DType::Q4_1] {
            let path = random_model(shape, dtype, "fresh");
            let mut made = Made::on(&path, 4, true, 1);
            made.pairs.iter_mut().for_each(|p| p.4.fill(0.0));
            let adapter = made.write(&format!("fresh-lora-{shape}-{}.gguf", dtype.name()));
            let (plain, fresh) = (load(&path), load_with(&path, &[(&adapter, 1.0)]));
            assert!(fresh.n_bytes() > plain.n_bytes());
            for portable in [false, true] {
                assert_eq!(logits(&plain, portable), logits(&fresh, portable), "{shape} {dtype}");
            }
        }
    }
}

#[test]
fn libllama_gives_the_same_logits() {
    for (shape, output) in [("llama-tiny", true), ("qwen2-tiny", true), ("llama-tiny-tied", false)] {
        for dtype in [DType::F32, DType::Q8_0, DType::Q4_1] {
            let tag = format!("{shape}-{}", dtype.name());
            let path = random_model(shape, dtype, "lora-oracle");
            let mut one = Made::on(&path, 8, output, 2);
            // libllama rounds activations to F16 for an F16 pair; ours are converted to F32 when they are loaded.
            one.dtype = if dtype == DType::F32 { DType::F32 } else { DType::F16 };
            let mut two = Made::on(&path, 3, output, 3);
            two.meta.rslora = true;
            let (one, two) =
                (one.write(&format!("oracle-1-{tag}.gguf")), two.write(&format!("oracle-2-{tag}.gguf")));
            let adapters: [(&Path, f32); 2] = [(&one, 0.8), (&two, -0.5)];
            let model = load_with(&path, &adapters);
            let (tokens, n_vocab) = (tokens_of(&model), model.hparams().n_vocab);
            let theirs = theirs(&path, &adapters, &tokens);
            let spread = largest(&theirs).max(1.0);
            // With quantized weights, libllama rounds activations to 8 bits, and the bounds are those of the models without
            // adapters. Of floats, a divergence is half of a square of the logits' differences.
            let floats = deviation(&theirs) * two_orders(roundings(model.hparams(), N_TOKENS));
            for (portable, abs, kl) in [(true, 0.05, 1e-3), (false, 0.2, 1e-2)] {
                let (abs, kl) = match dtype {
                    DType::F32 => (floats, floats * floats / 2.0),
                    _ => (abs * spread, kl),
                };
                let d = compare(&theirs, &logits(&model, portable), &tokens, n_vocab);
                println!("{tag} portable={portable}: {d:?}, largest {spread}");
                assert!(d.max_abs < abs && d.kl < kl, "{tag}: {d:?}, largest {spread}");
            }
            // Leaving either out fails by far.
            for some in [&[][..], &adapters[..1], &adapters[1..]] {
                let d = compare(&theirs, &logits(&load_with(&path, some), true), &tokens, n_vocab);
                assert!(d.max_abs > 0.4 * spread && d.kl > 0.05, "{tag} without: {d:?}, largest {spread}");
            }
        }
    }
}

#[test]
fn libllama_refuses_what_the_documents_say_it_does() {
    let path = random_model("llama-tiny-tied", DType::F32, "lora-refused");
    let params = OracleParams { n_threads: 1, ..OracleParams::new(256) };
    let mut oracle = Oracle::open(&path, &params).unwrap();
    let output = Made::on(&path, 2, true, 4).write("refused-output.gguf");
    let e = oracle.lora(&output, 1.0).unwrap_err().to_string();
    assert!(e.contains("output.weight") && e.contains("does not exist"), "{e}");
    let whole = Made::on(&path, 2, false, 4).with_whole(&path).write("refused-whole.gguf");
    assert!(oracle.lora(&whole, 1.0).is_err());
    let mut norms = Made::on(&path, 2, false, 4).with_whole(&path);
    norms.modules.retain(|w| w.0.ends_with("_norm.weight"));
    let norms = norms.write("refused-norms.gguf");
    oracle.lora(&norms, 1.0).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn scales_and_alphas_multiply() {
    let path = random_model("llama-tiny", DType::F32, "scale");
    let made = Made::on(&path, 4, true, 5);
    let of = |made: &Made, name: &str, scale: f32| {
        let adapter = made.write(&format!("scale-{name}.gguf"));
        logits(&load_with(&path, &[(&adapter, scale)]), true)
    };
    let base = logits(&load(&path), true);
    assert_eq!(of(&made, "zero", 0.0), base);
    let half = of(&made, "half", 0.5);
    assert!(distance(&half, &base) > 0.1 * largest(&base));
    assert_eq!(of(&Made { alpha: made.alpha / 2.0, ..made.clone() }, "alpha", 1.0), half);
    // alpha / sqrt(4) is half of what twice the alpha over 4 is.
    let mut rslora = Made { alpha: made.alpha / 4.0, ..made.clone() };
    rslora.meta.rslora = true;
    assert_eq!(of(&rslora, "rslora", 1.0), half);
    let opened = AdapterReader::open(rslora.write("scale-rslora.gguf")).unwrap();
    assert_eq!((opened.alpha(), opened.meta().rslora), (made.alpha / 2.0, true));

    // Where alpha is 0 or missing the scale is the scale.
    let source = made.write("scale-source.gguf");
    let no_alpha = scratch("scale-no-alpha.gguf");
    rewritten(&source, &no_alpha, &[], |out| {
        out.remove("adapter.lora.alpha");
    });
    assert_eq!(logits(&load_with(&path, &[(&no_alpha, 1.0)]), true), half);
}

#[test]
fn the_same_adapter_twice_adds_twice() {
    let path = random_model("qwen2-tiny", DType::F32, "twice");
    let adapter = Made::on(&path, 4, true, 6).write("twice.gguf");
    let twice = logits(&load_with(&path, &[(&adapter, 0.25), (&adapter, 0.25)]), true);
    let model = load_with(&path, &[(&adapter, 0.5)]);
    let once = logits(&model, true);
    let bound = deviation(&once) * two_orders(roundings(model.hparams(), N_TOKENS));
    assert_close(&twice, &once, bound, "twice a quarter");
}

#[test]
fn a_session_runs_under_the_rope_of_its_adapter() {
    let path = random_model("llama-tiny", DType::F32, "trained");
    let mut made = Made::on(&path, 2, false, 7);
    made.meta = AdapterMeta {
        rope: Some("pi:factor=4".parse().unwrap()),
        n_ctx: Some(512),
        steps: Some(12),
        data: Some("two novels".into()),
        ..made.meta
    };
    let adapter = made.write("trained-pi.gguf");
    let opened = AdapterReader::open(&adapter).unwrap();
    assert_eq!(*opened.meta(), made.meta);

    let model = load_with(&path, &[(&adapter, 1.0)]);
    let rope = |text: &str| params(256).rope(Some(text.parse().unwrap()));
    let spec = open(&model, &params(256)).plan().spec.to_string();
    assert!(spec.starts_with("pi:factor=4"), "{spec}");
    // Another way to say the same is the same; another method is not.
    open(&model, &rope("pi:factor=4.0"));
    says(Session::new(&model, &rope("plain")), &["trained-pi.gguf", "pi:factor=4", "found plain"]);
    let mut forced = with(&[(&adapter, 1.0)]);
    forced.adapters[0].force = true;
    let forced = Model::load(&path, &forced).unwrap();
    assert_eq!(open(&forced, &rope("plain")).plan().spec.to_string(), "plain");

    // A cache made with an adapter is none without.
    let saved = scratch("trained-session.bin");
    let mut session = open(&forced, &rope("plain"));
    session.append(&tokens_of(&forced)[..8]).unwrap();
    session.save(&saved, &[]).unwrap();
    let alone = load(&path);
    assert!(open(&alone, &rope("plain")).restore(&saved).is_err());
    open(&forced, &rope("plain")).restore(&saved).unwrap_or_else(|e| panic!("{e}"));
}

/// Dynamic NTK with the length it was trained at: the session's length decides the base, and an adapter trained at
/// 32k of a model of 4k opens without force at every length (the controlled study, Table 8).
#[test]
fn an_adapter_of_dynamic_ntk_opens_at_every_length() {
    let path = random_model("llama-tiny", DType::F32, "lora-dynamic");
    let bare = load(&path);
    let of = |text: &str, n_ctx: usize| params(n_ctx).rope(Some(text.parse().unwrap()));
    let (l, given) = (128, "dynamic-ntk:trained=1024,original=128");
    let mut made = Made::on(&path, 2, false, 9);
    made.meta = AdapterMeta {
        rope: Some(open(&bare, &of(given, 1024)).plan().frozen(bare.hparams()).unwrap()),
        n_ctx: Some(1024),
        ..made.meta
    };
    let adapter = made.write("lora-dynamic.gguf");
    let model = load_with(&path, &[(&adapter, 1.0)]);
    for (n_ctx, t) in [(l, 29), (2 * l, 29), (4 * l, 29), (8 * l, 29), (16 * l, 61)] {
        let own = open(&model, &params(n_ctx));
        assert_eq!(own.plan().spec.to_string(), "dynamic-ntk:factor=4,trained=1024,original=128");
        for same in [given.to_owned(), format!("dynamic-ntk:t={t},original=128")] {
            assert!(open(&model, &of(&same, n_ctx)).plan().same_positions(own.plan()), "{same} at {n_ctx}");
        }
        let other = format!("dynamic-ntk:t={},original=128", 90 - t);
        says(Session::new(&model, &of(&other, n_ctx)), &["trained under dynamic-ntk:factor=4,trained=1024"]);
    }
}

#[test]
fn bases_are_told_apart_by_their_weights_alone() {
    let path = random_model("llama-tiny-gqa", DType::Q8_0, "print");
    let (long, other) = (scratch("print-long.gguf"), scratch("print-other.gguf"));
    let options = convert::Options::default().rope(Some("sba:factor=2".parse().unwrap())).llama_cpp(true);
    convert::convert(&path, &long, &options, &Control::default()).unwrap();
    let shape = convert::random::Shape::named("llama-tiny-gqa").unwrap();
    convert::random::write(&shape, DType::Q8_0, 8, &other).unwrap();
    let print = |p: &Path| adapter::fingerprint(&File::open(p).unwrap());
    assert_eq!(print(&path), print(&long));
    assert_ne!(print(&path), print(&other));

    let adapter = Made::on(&path, 2, false, 8).write("print-adapter.gguf");
    load_with(&long, &[(&adapter, 1.0)]);
    let params = with(&[(&adapter, 1.0)]);
    let e = Model::load(&other, &params).unwrap_err().to_string();
    assert!(
        e.contains("ropewalk.lora.base") && e.contains(&print(&path)) && e.contains(&print(&other)),
        "{e}"
    );
    let mut forced = params;
    forced.adapters[0].force = true;
    Model::load(&other, &forced).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn paths_with_colons_are_paths() {
    let parse = |text: &str| text.parse::<AdapterSpec>();
    let at = |path: &str, scale: f32| Ok(AdapterSpec::new(path, scale));
    assert_eq!(parse("a.gguf"), at("a.gguf", 1.0));
    assert_eq!(parse("a.gguf:0.8"), at("a.gguf", 0.8));
    assert_eq!(parse("a.gguf:-1"), at("a.gguf", -1.0));
    assert_eq!(parse("c:a.gguf"), at("c:a.gguf", 1.0));
    assert_eq!(parse("c:a.gguf:2"), at("c:a.gguf", 2.0));
    assert!(parse("a.gguf:nan").is_err() && parse("a.gguf:inf").is_err());
    let odd = scratch("odd:2");
    std::fs::write(&odd, b"").unwrap();
    let odd = odd.to_str().unwrap();
    assert_eq!(parse(odd), at(odd, 1.0));
    assert_eq!(parse(&format!("{odd}:3")), at(odd, 3.0));
}
