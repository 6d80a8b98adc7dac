//! Adapter files that are wrong: an error that names file and tensor or key, never a panic and never a silent no-op.

use std::path::Path;

use ropewalk::control::Control;
use ropewalk::gguf::{File, Value, Writer};
use ropewalk::model::Model;
use ropewalk::DType;

use super::make::{params, spec, Made};
use crate::common::*;

/// A tensor to be written: name, type, shape, bytes.
type Entry = (String, DType, Vec<u64>, Vec<u8>);

/// An adapter taken apart.
struct Parts {
    keys: Vec<(String, Value)>,
    tensors: Vec<Entry>,
}

impl Parts {
    fn of(path: &Path) -> Parts {
        let file = File::open(path).unwrap();
        let tensor = |t: &ropewalk::gguf::TensorInfo| {
            (t.name.clone(), t.dtype, t.shape.clone(), file.data(t).to_vec().unwrap())
        };
        Parts { keys: file.metadata().to_vec(), tensors: file.tensors().iter().map(tensor).collect() }
    }
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.keys.retain(|(k, _)| k != key);
        self.keys.push((key.into(), value.into()));
    }
    fn tensor(&mut self, name: &str) -> &mut Entry {
        self.tensors.iter_mut().find(|t| t.0 == name).unwrap()
    }
    fn f32(&mut self, name: &str, shape: &[u64]) {
        let n: u64 = shape.iter().product();
        self.tensors.retain(|t| t.0 != name);
        self.tensors.push((name.into(), DType::F32, shape.to_vec(), vec![0; n as usize * 4]));
    }
    fn write(self, path: &Path) {
        let mut writer = Writer::new();
        for (key, value) in self.keys {
            writer.set(&key, value);
        }
        for (name, dtype, shape, bytes) in self.tensors {
            writer.tensor_bytes(&name, dtype, &shape, bytes).unwrap();
        }
        writer.write(path).unwrap();
    }
}

const Q: &str = "blk.0.attn_q.weight";

#[test]
fn wrong_adapters_are_refused_with_their_fault() {
    let model = random_model("llama-tiny", DType::F32, "hostile-lora");
    let good = Made::on(&model, 4, true, 1).write("hostile-good.gguf");
    type Spoil = fn(&mut Parts);
    let cases: &[(Spoil, &[&str])] = &[
        (|p| p.set("general.type", "model"), &["general.type", "adapter", "model"]),
        (|p| p.set("adapter.type", "control"), &["adapter.type", "lora", "control"]),
        (|p| p.set("adapter.type", 3u32), &["adapter.type", "u32"]),
        (|p| p.set("general.architecture", "qwen2"), &["general.architecture", "llama", "qwen2"]),
        (|p| p.set("adapter.lora.alpha", f32::NAN), &["adapter.lora.alpha", "NaN"]),
        (|p| p.set("adapter.lora.alpha", f32::INFINITY), &["adapter.lora.alpha", "inf"]),
        (|p| p.set("adapter.lora.alpha", "8"), &["adapter.lora.alpha", "f32", "string"]),
        (|p| p.set("ropewalk.lora.rope", "yarm"), &["ropewalk.lora.rope", "yarm"]),
        (|p| p.set("ropewalk.lora.n_ctx", -1i32), &["ropewalk.lora.n_ctx", "-1"]),
        (|p| p.set("ropewalk.lora.base", "0123"), &["ropewalk.lora.base", "0123"]),
        (
            |p| p.set("ropewalk.lora.lineage", "[{\"steps\": -1}]"),
            &["ropewalk.lora.lineage", "a list of runs in JSON", "-1"],
        ),
        (
            |p| p.set("ropewalk.lora.lineage", format!("[{}{{}}]", "{},".repeat(1024)).as_str()),
            &["ropewalk.lora.lineage", "at most 1024 runs", "1025"],
        ),
        (|p| p.set("adapter.alora.invocation_tokens", vec![1u32, 2]), &["adapter.alora.invocation_tokens"]),
        (
            |p| p.f32("blk.0.ffn_up_exps.weight.lora_a", &[256, 4, 8]),
            &["blk.0.ffn_up_exps.weight.lora_a", "experts"],
        ),
        (|p| p.tensors.retain(|t| t.0 != format!("{Q}.lora_a")), &["blk.0.attn_q.weight.lora_a", "none"]),
        (|p| p.tensors.retain(|t| t.0 != format!("{Q}.lora_b")), &["blk.0.attn_q.weight.lora_b", "none"]),
        (|p| p.tensors.clear(), &["tensors", "none"]),
        (|p| p.f32(&format!("{Q}.lora_b"), &[5, 256]), &["attn_q.weight.lora_b", "rank 4", "found 5"]),
        (|p| p.f32(&format!("{Q}.lora_a"), &[256, 4, 2]), &["attn_q.weight.lora_a", "two dimensions"]),
        (
            |p| {
                p.f32("blk.9.attn_q.weight.lora_a", &[256, 4]);
                p.f32("blk.9.attn_q.weight.lora_b", &[4, 256]);
            },
            &["blk.9.attn_q.weight", "a weight of the model"],
        ),
        (
            |p| {
                p.f32("token_embd.weight.lora_a", &[256, 4]);
                p.f32("token_embd.weight.lora_b", &[4, 256]);
            },
            &["token_embd.weight", "output.weight"],
        ),
        (|p| p.f32("blk.0.gate.weight", &[256]), &["blk.0.gate.weight", "a weight of the model"]),
        (|p| p.f32("output_norm.weight", &[128]), &["output_norm.weight", "[256]", "[128]"]),
        (
            |p| {
                p.f32("output_norm.weight.lora_a", &[256, 1]);
                p.f32("output_norm.weight.lora_b", &[1, 4]);
            },
            &["output_norm.weight", "[256]", "[256, 4]"],
        ),
        (|p| p.tensor(&format!("{Q}.lora_a")).1 = DType::I32, &["attn_q.weight.lora_a", "float", "i32"]),
        (
            |p| p.tensor(&format!("{Q}.lora_b")).3[8..12].copy_from_slice(&f32::NAN.to_le_bytes()),
            &["attn_q.weight.lora_b", "NaN at 2"],
        ),
    ];
    Model::load(&model, &params(&[(&good, 1.0)])).unwrap_or_else(|e| panic!("{e}"));
    for (i, (spoil, expected)) in cases.iter().enumerate() {
        let path = scratch(&format!("hostile-lora-{i}.gguf"));
        // That of an earlier run may be of another row, and of another kind.
        let _ = std::fs::remove_file(&path);
        let mut parts = Parts::of(&good);
        spoil(&mut parts);
        parts.write(&path);
        let e = match Model::load(&model, &params(&[(&path, 1.0)])) {
            Ok(_) => panic!("{expected:?}: taken"),
            Err(e) => e.to_string(),
        };
        assert!(e.contains(&format!("hostile-lora-{i}.gguf")), "{expected:?}: {e}");
        expected.iter().for_each(|part| assert!(e.contains(part), "no {part:?} in: {e}"));
        assert_eq!(e.lines().count(), 1, "{expected:?}: {e}");
        // Merging refuses the same.
        let options = convert::Options::default().adapters(vec![spec(&path, 1.0)]);
        let out = scratch(&format!("hostile-lora-{i}-merged.gguf"));
        assert!(
            convert::convert(&model, &out, &options, &Control::default()).is_err(),
            "{expected:?}: merged"
        );
        assert!(!out.exists(), "{expected:?}: a file is left");
    }
}

#[test]
fn what_cannot_be_together_is_refused() {
    let model = random_model("llama-tiny", DType::F32, "hostile-both");
    let made = Made::on(&model, 2, false, 2).with_whole(&model);
    let (one, two) = (made.write("hostile-both-1.gguf"), made.write("hostile-both-2.gguf"));
    let e = Model::load(&model, &params(&[(&one, 1.0), (&two, 1.0)])).unwrap_err().to_string();
    assert!(e.contains("hostile-both-2.gguf") && e.contains("hostile-both-1.gguf"), "{e}");
    for scale in [f32::NAN, f32::INFINITY, f32::MAX] {
        let e = Model::load(&model, &params(&[(&one, scale)])).unwrap_err().to_string();
        assert!(e.contains("finite"), "{scale}: {e}");
    }
    assert!(Model::load(&model, &params(&[(&model, 1.0)])).is_err(), "a model is no adapter");
}

#[test]
fn what_cannot_be_written_is_refused() {
    let model = random_model("llama-tiny", DType::F32, "hostile-write");
    let good = Made::on(&model, 4, false, 4);
    let path = scratch("hostile-write-out.gguf");
    let _ = std::fs::remove_file(&path);
    let refused = |made: Made, expected: &str| {
        says(made.try_write(&path), &[expected, "hostile-write-out.gguf"]);
        assert!(!path.exists());
    };
    refused(Made { rank: 0, ..good.clone() }, "rank");
    refused(Made { alpha: 0.0, ..good.clone() }, "alpha");
    refused(Made { alpha: f32::NAN, ..good.clone() }, "alpha");
    refused(Made { dtype: DType::Q8_0, ..good.clone() }, "q8_0");
    refused(Made { pairs: Vec::new(), ..good.clone() }, "tensors");
    let mut short = good.clone();
    short.pairs[0].3.pop();
    refused(short, "attn_q.weight.lora_a");
    let mut nan = good.clone();
    nan.pairs[0].4[3] = f32::NAN;
    refused(nan, "NaN at 3");
    let mut large = Made { dtype: DType::F16, ..good };
    large.pairs[0].4[3] = 1e6;
    refused(large, "1000000 at 3");
}
