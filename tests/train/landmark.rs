//! Training with landmarks: gradients against the naive model, what starts from where, adapters, memory, and what is
//! refused.

use ropewalk::adapter::{AdapterMeta, AdapterReader};
use ropewalk::control::Control;
use ropewalk::ids::ParamId;
// Also for `src/train/seen.rs` in `parts`, where it is `crate::landmark`.
pub(crate) use ropewalk::landmark::Landmarks;
use ropewalk::model::{Model, ModelParams};
use ropewalk::train::{write_adapter, MemoryPlan, Sequence, TrainAttention, TrainParams, Trainer};
use ropewalk::{DType, Token};

use crate::common::{rewritten, says, scratch};
use crate::differences::check;
use crate::gradients::{fill, lora, models, named_model, quantised, settings, targets, N_VOCAB};

pub(crate) fn attention(block: usize) -> TrainAttention {
    TrainAttention::Landmark(Landmarks::new(block).unwrap())
}

/// Settings under which blocks of tokens, of landmarks and of documents all end in different places.
pub(crate) fn how(n_ctx: usize, block: usize) -> TrainParams {
    settings(n_ctx, 16, "plain").attention(attention(block))
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for (about, model) in models() {
        let windows = model.hparams().attention.iter().any(|l| l.window.is_some());
        // Phi 2's logits have a bias, which the naive model has none of for the landmark.
        if windows || model.hparams().arch == "phi2" {
            continue;
        }
        check(&format!("{about}, landmarks"), &model, &how(40, 7), 23, &[], false);
    }
    let (about, model) = models().remove(1);
    for block in [2, 6, 21] {
        let rope = Some("yarn:factor=4".parse().unwrap());
        let mut how = how(40, block).rope(rope);
        lora(&mut how).targets = targets(&["v", "output"]);
        lora(&mut how).norms = true;
        lora(&mut how).embeddings = true;
        // The last block ends with the text.
        check(&format!("{about}, blocks of {block}"), &model, &how, 40, &[0, 7, 16, 30], true);
        let mut landmarks = Landmarks::new(block).unwrap();
        landmarks.in_loss = false;
        how.attention = TrainAttention::Landmark(landmarks);
        check(&format!("{about}, blocks of {block}, not predicted"), &model, &how, 39, &[5], false);
    }
}

/// Tied or not, quantized or not, the rows start from the mean of the file's.
#[test]
fn rows_start_from_the_mean() {
    for (shape, output) in [("llama-tiny", "output.weight"), ("llama-tiny-tied", "token_embd.weight")] {
        let model = quantised(shape, DType::Q8_0);
        let trainer = Trainer::new(&model, &how(24, 8)).unwrap();
        for (id, name) in
            [(ParamId::LandmarkEmbedding, "token_embd.weight"), (ParamId::LandmarkOutput, output)]
        {
            let info = model.file().tensor(name).unwrap();
            let rows = ggml::dtype::dequantize_tensor(model.file(), info).unwrap();
            let n_embd = model.hparams().n_embd;
            let found = trainer.params().value(id).unwrap();
            for (i, x) in found.iter().enumerate() {
                let mean =
                    rows.iter().skip(i).step_by(n_embd).map(|&x| f64::from(x)).sum::<f64>() / N_VOCAB as f64;
                assert_eq!(*x, mean as f32, "{id}[{i}]");
            }
            assert_eq!(found.len(), n_embd);
        }
    }
}

/// An adapter of a model of this shape, trained at 120 tokens with blocks of so many positions.
pub(crate) fn adapter(model: &Model, block: usize, name: &str) -> (std::path::PathBuf, Vec<f32>) {
    let mut trainer = Trainer::new(model, &how(120, block)).unwrap();
    fill(&mut trainer);
    let file = scratch(name);
    write_adapter(&file, &trainer, None, AdapterMeta::default()).unwrap();
    (file, trainer.params().value(ParamId::LandmarkEmbedding).unwrap().to_vec())
}

#[test]
fn adapters_have_the_landmark_and_cannot_do_without() {
    let model = named_model("landmark-adapter");
    let (file, embedding) = adapter(&model, 7, "landmark.gguf");
    let opened = AdapterReader::open(&file).unwrap();
    assert_eq!(opened.landmarks(), Some(Landmarks::new(7).unwrap()));
    assert_eq!(opened.meta().n_ctx, Some(120));
    assert_eq!(opened.meta().attention.as_deref(), Some("landmark:block=7"));
    let found = opened.values("landmark_embd.weight", ggml::dtype::dequantize_tensor).unwrap();
    assert_eq!(found, embedding);
    let with = |scale: f32| {
        let spec = ropewalk::adapter::AdapterSpec::new(file.clone(), scale);
        Model::load(model.file().path(), &ModelParams::cpu().adapters(vec![spec]))
    };
    assert_eq!(with(1.0).unwrap().landmarks(), Some(Landmarks::new(7).unwrap()));
    says(with(0.5), &["landmark.gguf: scale: expected 1", "found 0.5"]);
    // Merged into weights, the landmark would be lost.
    let options =
        convert::Options::default().adapters(vec![ropewalk::adapter::AdapterSpec::new(file.clone(), 1.0)]);
    let merged = scratch("landmark-merged.gguf");
    let e = convert::convert(model.file().path(), &merged, &options, &Control::default())
        .unwrap_err()
        .to_string();
    assert!(e.contains("landmark.gguf: it has a landmark token"), "{e}");
    // Half of what it takes.
    let without = |tensors: &[&str], attention: Option<&str>| {
        let changed = scratch("landmark-changed.gguf");
        rewritten(&file, &changed, tensors, |out| {
            out.remove("ropewalk.lora.attention");
            if let Some(text) = attention {
                out.set("ropewalk.lora.attention", text);
            }
        });
        AdapterReader::open(&changed).unwrap_err().to_string()
    };
    let landmark = Some("landmark:block=7");
    for (e, expected) in [
        (without(&["landmark_output.weight"], landmark), "landmark_output.weight: expected a tensor"),
        (without(&[], None), "ropewalk.lora.attention: expected landmark"),
        (without(&[], Some("landmark:block=1")), "expected 2 to 256 positions, found 1"),
        (
            without(&[], Some("landmark:block=x")),
            "ropewalk.lora.attention: landmark: block: expected a whole number, found `x`",
        ),
    ] {
        assert!(e.contains(expected) && !e.contains('\n'), "{e}");
    }
}

#[test]
fn the_plan_of_memory_counts_landmarks() {
    let model = named_model("landmark-memory");
    let of = |how: &TrainParams, part: &str| {
        let plan = MemoryPlan::new(&model, how).unwrap();
        let found = plan.parts.iter().find(|p| p.0 == part).unwrap();
        (found.1, found.2)
    };
    let n_embd = model.hparams().n_embd;
    let (landmarks, full) = (how(63 * 4, 64), how(63 * 4, 64).attention(TrainAttention::Full));
    for part in ["layer inputs", "keys, values and their gradients of a layer", "gradient between layers"] {
        let (a, b) = (of(&landmarks, part), of(&full, part));
        assert_eq!((a.0 * 63, a.1 * 63), (b.0 * 64, b.1 * 64), "{part}");
    }
    let part = "trained tensors and gradients";
    assert_eq!(of(&landmarks, part).0, of(&full, part).0 + 2 * n_embd * 8);
    assert_eq!(MemoryPlan::new(&model, &landmarks).unwrap().n_ctx, 63 * 4);
}

#[test]
fn what_has_no_definition_is_refused() {
    let refused = |model: &Model, how: &TrainParams| Trainer::new(model, how).unwrap_err().to_string();
    let all = models();
    let e = refused(&all[0].1, &how(24, 8).portable(true));
    assert!(e.contains("landmark attention: its op runs on the CPU alone"), "{e}");
    for (_, model) in &all {
        if model.hparams().attention.iter().any(|l| l.window.is_some()) {
            let e = refused(model, &how(24, 8));
            assert!(e.contains("found some with a sliding window"), "{e}");
        }
    }
    let mut trainer = Trainer::new(&all[0].1, &how(24, 8)).unwrap();
    let tokens = vec![N_VOCAB as Token; 9];
    says(trainer.loss(Sequence::new(&tokens)), &["token: expected 0 to 259, found 260"]);
}
