//! Gradients on the device.

use ropewalk::ids::ParamId;
use ropewalk::train::{Checkpointing, LoraParams, MemoryPlan, Sequence, TrainParams, Trainer};
use ropewalk::{DType, Token};

use crate::common::ATTENTION_SHAPES;
use crate::subject::{none, Subject, Way};

fn settings(spec: &str) -> TrainParams {
    let all = vec!["all".to_owned()];
    TrainParams::new(48)
        .n_block(20)
        .n_threads(1)
        .rope(Some(spec.parse().unwrap()))
        .checkpointing(Some(Checkpointing::Inputs))
        .lora(LoraParams::default().targets(all).rank(3).alpha(5.0).norms(true))
}

type Gradient = (ParamId, Vec<f32>);
type Gradients = (f64, Vec<Gradient>);

/// Loss and gradients, tensor by tensor, with pairs that have an effect.
fn gradients(way: Way<'_>, settings: &TrainParams, tokens: &[Token]) -> Gradients {
    let settings = settings.clone().portable(way.portable);
    let mut trainer = Trainer::new(way.model, &settings).unwrap_or_else(|e| panic!("{e}"));
    for t in trainer.params_mut().list_mut().iter_mut().filter(|t| matches!(t.id, ParamId::LoraB(_))) {
        let n = t.value.len();
        t.value.iter_mut().enumerate().for_each(|(i, v)| *v = ((i * 37 % n) as f32 / n as f32 - 0.5) * 0.2);
    }
    trainer.params().upload().unwrap();
    let loss = trainer.accumulate(Sequence::new(tokens), 1.0).unwrap_or_else(|e| panic!("{e}"));
    let ids = trainer.params().list().iter().map(|t| t.id);
    (loss, ids.zip(trainer.params().grads().unwrap()).collect())
}

/// The largest relative distance of a tensor's gradients, or of the losses.
fn apart((loss_a, a): &Gradients, (loss_b, b): &Gradients) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    let off = |((id, a), (_, b)): (&Gradient, &Gradient)| {
        let off = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied());
        assert!(off.is_finite(), "{id}");
        off
    };
    let worst = a.iter().zip(b).map(off).fold(0.0, f64::max);
    worst.max((loss_a - loss_b).abs() / loss_b)
}

#[test]
fn activations_are_computed_again() {
    let s = Subject::named("llama-tiny", DType::Q8_0);
    let settings = settings("plain").checkpointing(None);
    let plan = |model| MemoryPlan::new(model, &settings).unwrap().checkpointing;
    assert_eq!((plan(&s.on_device), plan(&s.exact)), (Checkpointing::Inputs, Checkpointing::Products));
}

#[test]
fn every_architecture_has_the_cpus_gradients() {
    let mut failures = Vec::new();
    for shape in ATTENTION_SHAPES {
        let s = Subject::named(shape, DType::Q8_0);
        let text = s.text(41);
        // No method acts on the rotated layers of cohere2, which have a window.
        for spec in if shape == "cohere2-tiny" { &["plain"][..] } else { &["plain", "harpe"] } {
            s.check(
                &format!("gradients, {spec}"),
                &mut failures,
                |way| gradients(way, &settings(spec), &text),
                apart,
            );
        }
    }
    none(failures);
}
