//! Declarations of architectures, against the files of random models, whose tensors are listed elsewhere.

use convert::random::SHAPES;
use ropewalk::internals::arch::{self, Transformer, ARCHS};
use ropewalk::DType;

use crate::common::*;

#[test]
fn random_models_have_the_tensors_that_their_architecture_declares() {
    let mut seen = Vec::new();
    for named in SHAPES.iter().filter(|s| s.name.contains("tiny")) {
        let shape = (named.shape)();
        let model = load(&random_model(named.name, DType::Q8_0, "declared"));
        let arch = arch::find(&shape.arch).unwrap();
        let declared = {
            let has = |name: &str| model.file().tensor(name).is_some();
            Transformer::tensors(arch, model.hparams(), &has).unwrap()
        };
        let written: Vec<(String, Vec<usize>)> = (model.file().tensors().iter())
            .filter(|t| !t.name.starts_with("rope_"))
            .map(|t| (t.name.clone(), t.shape.iter().map(|&n| n as usize).collect()))
            .collect();
        let missing = |spec: &&ropewalk::internals::weights::TensorSpec| {
            !written.iter().any(|(name, _)| *name == spec.name)
        };
        let required: Vec<_> = declared.iter().filter(|s| s.required).filter(missing).collect();
        assert!(required.is_empty(), "{}: {required:?}", named.name);
        for (name, shape) in &written {
            let spec = declared.iter().find(|s| s.name == *name);
            assert_eq!(spec.map(|s| &s.shape), Some(shape), "{}: {name}", named.name);
        }
        seen.push(arch.name);
    }
    assert!(
        ARCHS.iter().all(|a| seen.contains(&a.name)),
        "an architecture without a small random model: {seen:?}"
    );
}

#[test]
fn every_list_of_architectures_has_all_that_run() {
    let imported: Vec<&str> = ropewalk_import::architectures().collect();
    let lists = [
        ("ARCHS of ggml/llama/src/oracle/check.rs", llama::oracle::ARCHS),
        ("ARCHS of ggml/llama/src/quantize/check.rs", llama::quantize::ARCHS),
        ("FAMILIES of src/import/arch/families.rs", &imported[..]),
    ];
    let mut lacking = Vec::new();
    for (list, names) in lists {
        let missing = ARCHS.iter().map(|a| a.name).filter(|name| !names.contains(name));
        lacking.extend(missing.map(|name| format!("{name} is not in {list}")));
    }
    let unknown = imported.iter().filter(|name| arch::find(name).is_none());
    lacking.extend(unknown.map(|name| format!("{name} is imported, and is not in ARCHS of src/arch/mod.rs")));
    assert!(lacking.is_empty(), "{}", lacking.join("\n"));
}
