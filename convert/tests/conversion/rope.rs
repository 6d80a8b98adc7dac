//! Rope methods in files: opened again they are the same plan, a second method takes the first one's place.

use std::path::Path;

use convert::{convert, Options, Report};
use ggml::DType;
use gguf::{Array, File, Value, Writer};
use ropewalk_core::control::Control;
use ropewalk_core::hparams::{keys, Hparams};
use ropewalk_core::rope::{Plan, Spec};

use crate::lab::Lab;
use crate::rounding::UNIT;

const N_CTX: usize = 2048;
const SPECS: &[&str] = &[
    "plain",
    "pi",
    "pi:factor=3",
    "ntk",
    "dynamic-ntk",
    "yarn",
    "yarn:factor=4,beta-fast=20,attn-factor=1.1",
    "abf:base=5e6",
    "sba",
    "harpe",
    "harpe:bases=40000/90000",
    "clex",
    "clex:factor=3,log-scale=true",
    "plain:drop=0.25",
    "sba:drop=0.5,keep-short=true",
];

impl Lab {
    fn hp(&self, name: &str) -> Hparams {
        Hparams::from_gguf(&self.open(name)).unwrap()
    }
    fn try_convert(&self, from: &str, to: &str, spec: &str, llama_cpp: bool) -> convert::Result<Report> {
        let rope = Some(spec.parse().unwrap());
        let options = Options::default().rope(rope).n_ctx(Some(N_CTX)).llama_cpp(llama_cpp);
        convert(self.path(from), self.path(to), &options, &Control::default())
    }
    fn convert(&self, from: &str, to: &str, spec: &str) -> Report {
        self.try_convert(from, to, spec, false).unwrap()
    }
    /// Adds keys and tensors to `in.gguf`.
    fn extend(&self, new_keys: &[(&str, Value)], tensors: &[(&str, Vec<f32>)]) {
        let file = self.open("in");
        let mut writer = Writer::with_metadata_of(&file);
        for (key, value) in new_keys {
            writer.set(key, value.clone());
        }
        for t in file.tensors() {
            writer.copy_tensor(&file, t).unwrap();
        }
        for (name, values) in tensors {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer.tensor_bytes(name, DType::F32, &[values.len() as u64], bytes).unwrap();
        }
        writer.write(self.path("extended")).unwrap();
        drop(file);
        std::fs::rename(self.path("extended"), self.path("in")).unwrap();
    }
}

fn declared(hp: &Hparams) -> Plan {
    Plan::new(&Spec::declared(hp).unwrap(), hp, N_CTX).unwrap()
}

fn plan(spec: &str, hp: &Hparams) -> Plan {
    Plan::new(&spec.parse().unwrap(), hp, N_CTX).unwrap()
}

fn assert_same_plan(a: &Plan, b: &Plan, what: &str) {
    assert_eq!((a.n_ctx, a.bases()), (b.n_ctx, b.bases()), "{what}");
    assert_eq!(a.kinds(), b.kinds(), "{what}");
}

fn data(file: &File) -> Vec<(&str, DType, &[u64], gguf::Bytes<'_>)> {
    file.tensors().iter().map(|t| (&t.name[..], t.dtype, &t.shape[..], file.data(t))).collect()
}

#[test]
fn a_converted_file_opens_under_its_method() {
    for shape in ["llama-tiny", "llama-tiny-gqa", "qwen2-tiny"] {
        let lab = Lab::new(shape, DType::Q8_0, 1);
        let before = lab.hp("in");
        for spec in SPECS {
            let report = lab.convert("in", "out", spec).rope.unwrap();
            let (old, new) = (lab.open("in"), lab.open("out"));
            assert!(data(&old) == data(&new), "{shape} {spec}: tensors changed");
            let hp = lab.hp("out");
            let base = |hp: &Hparams| hp.attention_of(0).unwrap().rotation.unwrap().freq_base;
            assert_eq!((hp.n_ctx_train, base(&hp)), (N_CTX, base(&before)));
            let expected = plan(spec, &before);
            assert_same_plan(&declared(&hp), &expected, spec);
            let bases = expected.bases().map(<[f64]>::to_vec);
            assert_eq!((&report.bases, report.n_ctx, report.n_ctx_orig), (&bases, N_CTX, 512));
            assert_eq!(new.get_opt::<Vec<f64>>(keys::BASES).unwrap(), bases);
            assert_eq!(new.get::<u32>(keys::N_CTX_ORIG).unwrap(), 512);
            // Any other method on the converted file also counts from the original numbers.
            for other in SPECS {
                assert_same_plan(&plan(other, &hp), &plan(other, &before), &format!("{other} on {spec}"));
            }
        }
    }
}

#[test]
fn everything_but_rope_is_kept_in_order() {
    let lab = Lab::new("llama-tiny", DType::Q8_0, 1);
    let odd = Value::Array(Array::Array(vec![Array::I8(vec![-1]), Array::I8(vec![])]));
    lab.extend(
        &[("a.nested.thing", odd), ("general.alignment", Value::U32(64))],
        &[("extra.weight", vec![1.5; 7])],
    );
    lab.convert("in", "out", "harpe");
    let (old, new) = (lab.open("in"), lab.open("out"));
    let changed = ["llama.context_length"];
    let kept = |f: &File| -> Vec<(String, Value)> {
        let keep =
            |k: &str| !k.starts_with("ropewalk.rope") && !k.starts_with(keys::ORIG) && !changed.contains(&k);
        f.metadata().iter().filter(|(k, _)| keep(k) && k != keys::VERSION).cloned().collect()
    };
    assert_eq!(kept(&old), kept(&new));
    assert!(data(&old) == data(&new));
    let order = |f: &File| f.metadata().iter().position(|(k, _)| k == "llama.context_length");
    assert_eq!(order(&old), order(&new));
}

#[test]
fn a_second_method_replaces_the_first() {
    for shape in ["llama-tiny", "llama-tiny-gqa"] {
        let lab = Lab::new(shape, DType::Q8_0, 1);
        for (first, llama_cpp) in
            [("harpe", false), ("ntk", false), ("yarn", true), ("abf", true), ("sba", true)]
        {
            lab.try_convert("in", "first", first, llama_cpp).unwrap();
            for second in ["sba", "ntk", "pi"] {
                lab.convert("first", "then", second);
                lab.convert("in", "direct", second);
                // The very same file, rope_freqs.weight included, however the first was written.
                assert!(lab.bytes("then") == lab.bytes("direct"), "{shape}: {first}, then {second}");
            }
        }
    }
}

#[test]
fn contexts_chosen_when_none_is_given() {
    let lab = Lab::new("llama-tiny", DType::Q8_0, 1);
    for (spec, n_ctx) in
        [("harpe", 2048), ("pi:factor=2", 1024), ("yarn:factor=3,original=256", 768), ("plain", 512)]
    {
        let options = Options::default().rope(Some(spec.parse().unwrap()));
        let report = convert(lab.path("in"), lab.path("out"), &options, &Control::default()).unwrap();
        assert_eq!(report.rope.unwrap().n_ctx, n_ctx, "{spec}");
        assert!(report.notes.iter().any(|n| n.contains("No context given")), "{:?}", report.notes);
    }
}

#[test]
fn llama_cpp_files_say_the_same_in_standard_keys() {
    // Keys and factors are floats: a frequency is of one or two of them, each rounded once.
    let close = |a: f64, b: f64| (a - b).abs() <= 2.0 * UNIT * b.abs();
    for shape in ["llama-tiny", "llama-tiny-gqa", "qwen2-tiny"] {
        let lab = Lab::new(shape, DType::Q8_0, 1);
        let before = lab.hp("in");
        for spec in [
            "plain",
            "pi",
            "ntk",
            "dynamic-ntk",
            "abf",
            "yarn",
            "yarn:factor=4,beta-fast=20",
            "sba",
            "sba+plain",
        ] {
            let Ok(spec) = spec.parse::<Spec>() else { continue };
            let spec = spec.to_string();
            let bakes = spec.contains("sba") || spec.contains("beta-fast");
            match lab.try_convert("in", "out", &spec, true) {
                Err(e) => {
                    assert!(shape == "qwen2-tiny" && bakes, "{shape} {spec}: {e}");
                    assert!(e.to_string().contains("qwen2 graph does not read rope_freqs.weight"), "{e}");
                }
                Ok(_) => {
                    assert!(shape != "qwen2-tiny" || !bakes, "{shape} {spec}");
                    let (file, hp) = (lab.open("out"), lab.hp("out"));
                    assert!(file.value(keys::SPEC).is_none());
                    // Our own reading of the standard keys stands in for llama.cpp's, which `oracle` asks.
                    let (found, expected) = (declared(&hp), plan(&spec, &before));
                    let (found, expected) = (found.layer(0), expected.layer(0));
                    let mut pairs = found.freqs.theta.iter().zip(&expected.freqs.theta);
                    assert!(pairs.all(|(a, b)| close(*a, *b)), "{shape} {spec}: {:?}", found.freqs);
                    assert!(close(found.mscale, expected.mscale), "{shape} {spec}: {}", found.mscale);
                }
            }
        }
    }
}

/// llama.cpp has no key for them in most graphs.
#[test]
fn keys_that_llama_cpp_does_not_read_are_reported() {
    let lab = Lab::new("qwen2-tiny", DType::Q8_0, 1);
    for (beta, runs) in [(32.0, true), (64.0, false)] {
        lab.extend(
            &[
                ("qwen2.rope.scaling.type", Value::from("yarn")),
                ("qwen2.rope.scaling.factor", Value::F32(4.0)),
                ("qwen2.rope.scaling.original_context_length", Value::U32(512)),
                ("qwen2.rope.scaling.yarn_beta_fast", Value::F32(beta)),
                ("qwen2.context_length", Value::U32(2048)),
            ],
            &[],
        );
        let options = Options::default().force(true);
        let report = convert(lab.path("in"), lab.path("out"), &options, &Control::default()).unwrap();
        assert_eq!(report.llama_server.is_some(), runs, "{beta}: {:?}", report.no_llama_server);
    }
}

/// Nothing is said of models that do not run here.
#[test]
fn a_model_without_rotation_takes_no_method() {
    let lab = Lab::new("llama-tiny", DType::Q8_0, 1);
    let file = lab.open("in");
    let mut writer = Writer::new();
    for (key, value) in file.metadata() {
        writer.set(&key.replacen("llama.", "gpt2.", 1), value.clone());
    }
    writer.set("general.architecture", "gpt2");
    for t in file.tensors() {
        writer.copy_tensor(&file, t).unwrap();
    }
    writer.write(lab.path("gpt2")).unwrap();
    let error = lab.try_convert("gpt2", "out", "yarn:factor=4", false).unwrap_err().to_string();
    assert!(error.contains("expected a model with rotary positions, found gpt2"), "{error}");
    let report =
        convert(lab.path("gpt2"), lab.path("out"), &Options::default(), &Control::default()).unwrap();
    assert_eq!((report.llama_server, report.no_llama_server), (None, None));
}

#[test]
fn llama_cpp_cannot_say_everything() {
    let lab = Lab::new("llama-tiny", DType::Q8_0, 1);
    for (spec, why) in [
        ("harpe", "differ from head to head"),
        ("yarn:factor=4,keep-short=true", "cannot leave short contexts as they are"),
        ("yarn:factor=4,temperature=logn", "no attention temperature but the model's own"),
        ("yarn:factor=4,temperature=llama4", "no attention temperature but the model's own"),
        ("yarn:factor=4,temperature=1.2", "no attention temperature but the model's own"),
        ("string", "changed positions or a limited reach"),
        ("rerope", "changed positions or a limited reach"),
        ("rerope:leak=8", "changed positions or a limited reach"),
    ] {
        let error = lab.try_convert("in", "out", spec, true).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("in.gguf"), "{error}");
    }
    assert!(!lab.path("out").exists());
    // A HARPE of equal bases is one base.
    lab.try_convert("in", "out", "harpe:bases=40000/40000", true).unwrap();
    assert_eq!(lab.open("out").get::<f32>("llama.rope.freq_base").unwrap(), 40_000.0);
}

#[test]
fn llama_cpp_alone_exports_what_the_file_declares() {
    let lab = Lab::new("llama-tiny", DType::Q8_0, 1);
    lab.convert("in", "ours", "sba");
    let options = Options::default().llama_cpp(true);
    convert(lab.path("ours"), lab.path("stock"), &options, &Control::default()).unwrap();
    lab.try_convert("in", "direct", "sba", true).unwrap();
    assert!(lab.bytes("stock") == lab.bytes("direct"));
}

#[test]
fn longrope_uses_the_files_factors() {
    let lab = Lab::new("llama-tiny", DType::Q8_0, 1);
    let factors = |scale: f32| (0..32).map(|i| 1.0 + scale * i as f32).collect::<Vec<f32>>();
    let tensors = [("rope_factors_long.weight", factors(0.5)), ("rope_factors_short.weight", factors(0.01))];
    lab.extend(&[], &tensors);
    let before = lab.hp("in");
    lab.convert("in", "out", "longrope");
    let expected = plan("longrope", &before);
    assert!(expected.layer(0).mscale > 1.0);
    assert_same_plan(&declared(&lab.hp("out")), &expected, "longrope");
    let report = lab.try_convert("in", "out", "longrope", true).unwrap();
    assert_eq!(lab.open("out").get::<String>("llama.rope.scaling.type").unwrap(), "longrope");
    assert!(report.notes.iter().all(|n| !n.contains("Omitted")));
    // The short ones at this length are no llama.cpp key; they are baked, and the tensors it would refuse go.
    let report = lab.try_convert("in", "out", "longrope:factors=short", true).unwrap();
    let file = lab.open("out");
    assert!(file.tensor("rope_freqs.weight").is_some() && file.tensor("rope_factors_long.weight").is_none());
    assert_eq!(report.notes.iter().filter(|n| n.contains("Omitted")).count(), 2);
    // A file that keeps them is of no other type in llama.cpp.
    let declares = ("llama.rope.scaling.type", Value::from("longrope"));
    lab.extend(&[declares], &[]);
    let report = lab.try_convert("in", "out", "pi:factor=2", false).unwrap();
    assert!(report.llama_server.is_none() && report.rope.unwrap().why.is_some());
    assert_eq!(lab.open("out").get::<String>("llama.rope.scaling.type").unwrap(), "longrope");
}

#[test]
fn a_split_model_becomes_one_file() {
    let lab = Lab::new("llama-tiny", DType::Q8_0, 1);
    let file = lab.open("in");
    let part = |no: u16| lab.0.path().join(format!("s-0000{}-of-00002.gguf", no + 1));
    let half = file.tensors().len() / 2;
    for (no, tensors) in [(0u16, &file.tensors()[..half]), (1, &file.tensors()[half..])] {
        let mut writer = if no == 0 { Writer::with_metadata_of(&file) } else { Writer::new() };
        writer.set("split.no", Value::U16(no)).set("split.count", Value::U16(2));
        writer.set("split.tensors.count", Value::I32(file.tensors().len() as i32));
        for t in tensors {
            writer.copy_tensor(&file, t).unwrap();
        }
        writer.write(part(no)).unwrap();
    }
    let run = |out: &Path| convert(part(0), out, &Options::default(), &Control::default());
    run(&lab.path("whole")).unwrap();
    assert!(lab.bytes("whole") == lab.bytes("in"));
    let error = run(&part(1)).unwrap_err().to_string();
    assert!(error.contains("the output is the input"), "{error}");
}
