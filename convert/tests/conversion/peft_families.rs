//! Adapters of PEFT on every family of models that is imported: merged into the checkpoint and imported they give the tensors that
//! they give when they are converted and merged into the imported file.

use std::collections::BTreeMap;
use std::path::Path;

use convert::peft::{from_peft, to_peft};
use convert::{convert, Options};
use gguf::{DType, File};
use ropewalk_core::adapter::AdapterSpec;
use ropewalk_core::control::Control;
use ropewalk_core::hparams::Hparams;
use ropewalk_import::Modules;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;

use crate::checkpoints::Recorded;
use crate::import::{folder, trusted};
use crate::rounding::{two_orders, UNIT};

const RANK: usize = 2;

/// Tensors in F32, by name.
type Floats = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn read(folder: &Path) -> Floats {
    let mut all = Floats::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            let dtype = match tensor.dtype() {
                Dtype::F32 => DType::F32,
                Dtype::F16 => DType::F16,
                Dtype::BF16 => DType::BF16,
                other => panic!("{name}: {other:?}"),
            };
            let mut values = vec![0.0; tensor.shape().iter().product()];
            assert!(gguf::float::decode(dtype, tensor.data(), &mut values));
            all.insert(name.to_owned(), (tensor.shape().to_vec(), values));
        }
    }
    all
}

fn write(path: &Path, tensors: &Floats) {
    let bytes: Vec<_> =
        tensors.values().map(|(_, values)| gguf::float::encode(DType::F32, values).unwrap()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, (shape, _)), bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| (((i + seed) * 37 % 101) as f32 - 50.0) / 128.0).collect()
}

/// Adds pairs on all linear maps and new norms to a checkpoint's tensors. Returns the adapter's tensors, as PEFT has them, and the
/// modules that are saved whole.
fn adapt(tensors: &mut Floats, base: &File) -> (Floats, Vec<String>) {
    let modules = Modules::of(Hparams::from_gguf(base).unwrap()).unwrap();
    let (mut adapter, mut saved) = (Floats::new(), Vec::new());
    for (seed, (name, (shape, weight))) in tensors.iter_mut().enumerate() {
        let Some(module) = name.strip_suffix(".weight") else { continue };
        let Some(tensor) = modules.tensor(module) else { continue };
        let Some(info) = base.tensor(&tensor) else { continue };
        let is_embedding = ["token_embd.weight", "output.weight"].contains(&&*tensor);
        // A vector there where it is a row here.
        if is_embedding || info.shape.len() != shape.len() {
            continue;
        }
        assert_eq!(modules.module(&tensor).as_deref(), Some(module));
        let prefix = format!("base_model.model.{module}");
        match shape[..] {
            [n] => {
                weight.iter_mut().zip(values(n, seed)).for_each(|(w, x)| *w += x);
                adapter.insert(format!("{prefix}.weight"), (vec![n], weight.clone()));
                saved.push(module.to_owned());
            }
            [n_out, n_in] => {
                let (a, b) = (values(RANK * n_in, seed), values(n_out * RANK, seed + 50));
                for (i, w) in weight.iter_mut().enumerate() {
                    let (row, column) = (i / n_in, i % n_in);
                    *w += (0..RANK).map(|r| b[row * RANK + r] * a[r * n_in + column]).sum::<f32>();
                }
                adapter.insert(format!("{prefix}.lora_A.weight"), (vec![RANK, n_in], a));
                adapter.insert(format!("{prefix}.lora_B.weight"), (vec![n_out, RANK], b));
            }
            _ => {}
        }
    }
    (adapter, saved)
}

fn tensors_of(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let file = File::open(path).unwrap();
    file.tensors().iter().map(|t| (t.name.clone(), file.floats(t).unwrap())).collect()
}

#[test]
fn merged_before_or_after_an_import() {
    let mut seen = Vec::new();
    // For gpt-oss there is also gpt-oss-bf16, whose experts are floats.
    for recorded in Recorded::all().into_iter().filter(|recorded| recorded.name != "gpt-oss") {
        let name = &recorded.name;
        let dir = tempfile::tempdir().unwrap();
        let at = |file: &str| dir.path().join(file);
        let checkpoint = folder(dir.path(), name);
        let plain = trusted().dtype(Some(DType::F32)).pre(recorded.pre().map(str::to_owned));
        convert(&checkpoint, at("base.gguf"), &plain, &Control::default()).unwrap();
        let base = File::open(&at("base.gguf")).unwrap();

        let mut tensors = read(&checkpoint);
        let (adapter, saved) = adapt(&mut tensors, &base);
        for file in std::fs::read_dir(&checkpoint).unwrap() {
            let path = file.unwrap().path();
            if path.to_string_lossy().contains(".safetensors") {
                std::fs::remove_file(path).unwrap();
            }
        }
        write(&checkpoint.join("model.safetensors"), &tensors);
        convert(&checkpoint, at("before.gguf"), &plain, &Control::default()).unwrap();

        let peft = at("peft");
        std::fs::create_dir(&peft).unwrap();
        write(&peft.join("adapter_model.safetensors"), &adapter);
        let config =
            json!({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "modules_to_save": saved.clone()});
        std::fs::write(peft.join("adapter_config.json"), config.to_string()).unwrap();
        from_peft(&peft, at("base.gguf"), at("a.gguf"), &Control::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let adapters = vec![AdapterSpec::new(at("a.gguf"), 1.0)];
        let merged = Options::default().adapters(adapters);
        convert(at("base.gguf"), at("after.gguf"), &merged, &Control::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let (before, after) = (tensors_of(&at("before.gguf")), tensors_of(&at("after.gguf")));
        let plain = tensors_of(&at("base.gguf"));
        assert_eq!(before.len(), after.len());
        let mut n_changed = 0;
        for (tensor, before) in &before {
            n_changed += usize::from(*before != plain[tensor]);
            let off = before.iter().zip(&after[tensor]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // A product and a sum for each rank, of factors below 0.4, are rounded in another order; 1 is added to some norms.
            let most = before.iter().fold(0f32, |most, x| most.max(x.abs()));
            let bound = two_orders(2 * RANK + 1) * (f64::from(most) + 2.0 * RANK as f64 * 0.4 * 0.4);
            assert!(before.len() == after[tensor].len() && f64::from(off) < bound, "{name}: {tensor}: {off}");
        }
        let n_pairs = (adapter.len() - saved.len()) / 2;
        assert_eq!(n_changed, n_pairs + saved.len(), "{name}");

        to_peft(at("a.gguf"), at("base.gguf"), at("back"), None, &Control::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let back = read(&at("back"));
        assert!(back.keys().eq(adapter.keys()), "{name}");
        for (tensor, (shape, values)) in &adapter {
            let off = values.iter().zip(&back[tensor].1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // 1 was added to norms of some families, which rounded a number below 2 once.
            assert!(*shape == back[tensor].0 && f64::from(off) <= 2.0 * UNIT, "{name}: {tensor}: {off}");
        }
        seen.push(format!("{name}: {n_pairs} pairs, {} modules", saved.len()));
    }
    println!("{seen:#?}");
    assert!(seen.len() > 15, "{seen:?}");
}
