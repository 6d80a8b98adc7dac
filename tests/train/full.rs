//! Training of all parameters: gradients against finite differences, the model that is written, what is refused.

use convert::random::Shape;
use ropewalk::gguf::{File, Value};
use ropewalk::model::Model;
use ropewalk::train::optim::{OptimParams, Optimizer, Schedule};
use ropewalk::train::{MemoryPlan, Sequence, TrainAttention, TrainParams, Trainable, Trainer};
use ropewalk::DType;

use crate::common::rounding::two_orders;
use crate::common::{
    in_f32, load, made, mean_nll, open, params, random_model, roundings, scratch, some_tokens,
};
use crate::differences::check;
use crate::gradients::{models, settings, N_VOCAB};

fn all(n_ctx: usize, n_block: usize, spec: &str) -> TrainParams {
    settings(n_ctx, n_block, spec).trainable(Trainable::Full)
}

/// Weights and biases of every linear layer, norms, embedding, and a tied or separate output.
#[test]
fn every_parameter_has_a_gradient() {
    for (about, model) in models() {
        let spec = if model.hparams().arch == "cohere2" { "plain" } else { "harpe" };
        check(about, &model, &all(14, 6, spec), 14, &[], false);
        let file = model.file();
        let trained = Trainer::new(&model, &all(14, 6, spec)).unwrap().params().list().len();
        let given = file.tensors().iter().filter(|t| !t.name.starts_with("rope_")).count();
        assert_eq!(trained, given, "{about}");
    }
    for (about, model) in models().into_iter().filter(|(about, _)| about.starts_with("gptneox")) {
        let portable = all(14, 6, "sba:factor=2,original=8").portable(true);
        check(about, &model, &portable, 14, &[4], true);
        let attention = TrainAttention::Shifted { group: Some(5) };
        let settings = all(14, 6, "plain").attention(attention);
        check(about, &model, &settings, 13, &[], false);
    }
}

/// One step, and the model it gives: the same loss in a session, the spec of training declared, what was not trained
/// as it was.
#[test]
fn the_model_written_is_the_model_trained() {
    for name in ["gptneox-tiny", "llama-tiny-tied"] {
        let model = made(&format!("full-{name}.gguf"), &Shape::named(name).unwrap(), DType::BF16, 3);
        let how = all(32, 12, "pi:factor=2");
        let mut trainer = Trainer::new(&model, &how).unwrap();
        let schedule = Schedule::constant(1e-2, 4);
        let optim = OptimParams::new(schedule);
        let mut optimizer = Optimizer::new(optim, trainer.params()).unwrap();
        let tokens = some_tokens(33, model.hparams().n_vocab.min(N_VOCAB));
        let before = trainer.accumulate(Sequence::new(&tokens), 1.0).unwrap();
        optimizer.step(trainer.params_mut()).unwrap();
        let want = trainer.loss(Sequence::new(&tokens)).unwrap();
        assert!(want < 0.9 * before, "{name}: {before} to {want}");
        let was = model.file();
        // In the types that the file had, weights are rounded to bfloat16: evenly by up to 2^-9 of themselves, in nine products after
        // one another (values, output, up and down of two layers, logits), so by a root of 3 less. Logits deviate by 2 and are
        // off by the root of these, all tokens' alike, for their weights are the same: six times that with certainty.
        let floats = two_orders(roundings(model.hparams(), 32));
        let halves = floats + 6.0 * 2.0 * (9f64 / 3.0).sqrt() * 2f64.powi(-9) / want;
        for (types, bound) in [(None, floats), (Some(was), halves)] {
            let out = scratch(&format!("full-{name}-{}.gguf", types.is_some()));
            let meta = ropewalk::adapter::AdapterMeta { steps: Some(1), ..Default::default() };
            ropewalk::train::write_model(&out, &trainer, None, types, meta).unwrap();
            let trained = load(&out);
            let session = params(48).kv_type(DType::F32);
            let mut session = open(&trained, &session);
            assert!(session.plan().spec.to_string().starts_with("pi:factor=2"), "{}", session.plan().spec);
            let found = mean_nll(&mut session, &tokens);
            println!("{name}: {found}, {want} in training, {bound:e} allowed");
            assert!(
                (found / want - 1.0).abs() < bound,
                "{name}, rounded to {bound}: {found}, {want} in training"
            );
            let is = File::open(&out).unwrap();
            // What a conversion would write: the length that the method reaches, and llama.cpp's keys.
            let n_ctx = 2 * model.hparams().n_ctx_train;
            assert_eq!(trained.hparams().n_ctx_train, n_ctx, "{name}");
            let declared =
                |key: &str| is.value(&format!("{}.rope.scaling.{key}", model.hparams().arch)).cloned();
            assert_eq!(declared("type"), Some("linear".into()), "{name}");
            assert_eq!(declared("factor"), Some(Value::F32(2.0)), "{name}");
            assert_eq!(was.tensors().len(), is.tensors().len());
            for t in was.tensors() {
                let found = is.tensor(&t.name).unwrap();
                let kept = types.is_some() || t.shape.len() < 2;
                assert_eq!(found.dtype, if kept { t.dtype } else { DType::F32 }, "{}", t.name);
            }
            let meta = ropewalk::adapter::AdapterMeta::of_model(&is).unwrap();
            assert_eq!((meta.steps, meta.n_ctx), (Some(1), Some(32)));
            assert_eq!(meta.base, Some(ropewalk::adapter::fingerprint(was)));
        }
        // A longer context than the file declares, under its own method.
        let longer = Trainer::new(&model, &all(model.hparams().n_ctx_train + 8, 12, "plain")).unwrap();
        let out = scratch(&format!("full-longer-{name}.gguf"));
        ropewalk::train::write_model(&out, &longer, None, None, Default::default()).unwrap();
        assert_eq!(load(&out).hparams().n_ctx_train, model.hparams().n_ctx_train + 8);
        let out = scratch("full-none.gguf");
        let e = ropewalk::train::write_adapter(&out, &trainer, None, Default::default()).unwrap_err();
        assert!(e.to_string().starts_with("an adapter holds"), "{e}");
    }
}

#[test]
fn what_cannot_be_trained_as_a_whole_is_named() {
    let error =
        |model: &Model| Trainer::new(model, &all(16, 8, "plain")).map(|_| ()).unwrap_err().to_string();
    let quantised = random_model("llama-tiny", DType::Q8_0, "full");
    let e = error(&load(&quantised));
    let says =
        "targets full: blk.0.attn_q.weight: expected f32, f16 or bf16, found q8_0, whose steps are larger";
    assert!(e.starts_with(says), "{e}");
    // As the error says.
    let floats = load(&in_f32(&quantised, "full-floats.gguf"));
    Trainer::new(&floats, &all(16, 8, "plain")).unwrap();
    let e = error(&load(&random_model("qwen3moe-tiny", DType::F32, "full")));
    assert!(e.starts_with("targets full: the weights of experts have no gradient here"), "{e}");
}

/// Values, gradients, two moments: 24 bytes a parameter on top of the weights; a run's memory is within a tenth of it.
#[test]
fn memory_is_planned_with_every_parameter() {
    let (_, model) = models().remove(0);
    let how = all(64, 32, "plain");
    let trainer = Trainer::new(&model, &how).unwrap();
    let n: usize = trainer.params().list().iter().map(|t| t.value.len()).sum();
    let plan = MemoryPlan::new(&model, &how).unwrap();
    let part = |name: &str| plan.parts.iter().find(|p| p.0 == name).map(|p| p.1 + p.2).unwrap();
    assert_eq!((part("trained tensors and gradients"), part("optimizer")), (16 * n, 8 * n));
    assert!(trainer.params().n_bytes().abs_diff(8 * n) < n / 10, "{}", trainer.params().n_bytes());
}
