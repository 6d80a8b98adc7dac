//! Different ways to the same gradients: blocks of any size, whatever is kept, one sequence after the other.

use ropewalk::train::{Checkpointing, SavedType, Sequence, TrainParams, Trainer};

use crate::common::rounding::two_orders;
use crate::common::{roundings, some_tokens};
use crate::gradients::{fill, models, settings, N_VOCAB};

fn gradients(model: &ropewalk::model::Model, settings: &TrainParams, n: usize) -> (f64, Vec<Vec<f32>>) {
    let mut trainer = Trainer::new(model, settings).unwrap();
    fill(&mut trainer);
    let loss = trainer.accumulate(Sequence::new(&some_tokens(n + 1, N_VOCAB)), 1.0).unwrap();
    (loss, trainer.params().grads().unwrap())
}

/// Largest distance of two sets of gradients, relative to the tensor's norm.
fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    let off = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let off = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied());
        assert!(off.is_finite());
        off
    };
    a.iter().zip(b).map(off).fold(0.0, f64::max)
}

#[test]
fn blocks_and_what_is_kept_do_not_matter() {
    for (about, model) in models() {
        let n = roundings(model.hparams(), 90);
        let (of_loss, of_gradients) = (two_orders(n), two_orders(3 * n + 90));
        for portable in [false, true] {
            let whole = settings(96, 96, "plain").portable(portable);
            let (loss, want) = gradients(&model, &whole, 90);
            for n_block in [7, 32, 89, 90] {
                let mut first = None;
                for keep in [Checkpointing::Inputs, Checkpointing::Attention, Checkpointing::Products] {
                    let cut = whole.clone().n_block(n_block).checkpointing(Some(keep));
                    let (l, got) = gradients(&model, &cut, 90);
                    let off = distance(&got, &want);
                    let close = off < of_gradients && (l - loss).abs() < of_loss * loss;
                    assert!(
                        close,
                        "{about}: {n_block} {keep:?}: {off:.1e} of {of_gradients:.1e}, {l} and {loss}"
                    );
                    // What is kept is what would be computed again: a resumed run may keep more or less.
                    let first = first.get_or_insert_with(|| got.clone());
                    assert!(*first == got, "{about}: {n_block} {keep:?} is not the same to the bit");
                }
            }
            for (saved_type, bound) in [(SavedType::F16, 6e-3), (SavedType::Bf16, 5e-2)] {
                let half = whole.clone().saved_type(saved_type).checkpointing(Some(Checkpointing::Products));
                let off = distance(&gradients(&model, &half, 90).1, &want);
                assert!(off < bound && off > 1e-6, "{about}: {saved_type:?}: {off:.1e}");
            }
        }
    }
}
