//! Different ways to the same gradients: blocks of any size, whatever is kept, one sequence after the other.

use ropewalk::model::Model;
use ropewalk::train::{Checkpointing, SavedType, Sequence, TrainParams, Trainer};

use crate::common::rounding::two_orders;
use crate::common::{roundings, some_tokens};
use crate::gradients::{fill, models, settings, N_VOCAB};

/// Tokens of the text.
const N: usize = 90;

fn gradients(model: &Model, settings: &TrainParams) -> (f64, Vec<Vec<f32>>) {
    let mut trainer = Trainer::new(model, settings).unwrap();
    fill(&mut trainer);
    // What another sequence leaves in the tensors of states does not count.
    trainer.loss(Sequence::new(&some_tokens(15, 9))).unwrap();
    let loss = trainer.accumulate(Sequence::new(&some_tokens(N + 1, N_VOCAB)), 1.0).unwrap();
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

/// In blocks of these sizes gradients are those in one, and the same to the bit whatever is kept, by so many threads each.
pub(crate) fn blocks_do_not_matter(
    about: &str,
    model: &Model,
    whole: &TrainParams,
    blocks: &[usize],
    threads: [usize; 3],
) {
    let n = roundings(model.hparams(), N);
    let (of_loss, of_gradients) = (two_orders(n), two_orders(3 * n + N));
    let (loss, want) = gradients(model, whole);
    for &n_block in blocks {
        let mut first = None;
        let keeps = [Checkpointing::Inputs, Checkpointing::Attention, Checkpointing::Products];
        for (keep, n_threads) in keeps.into_iter().zip(threads) {
            let cut = whole.clone().n_block(n_block).n_threads(n_threads).checkpointing(Some(keep));
            let (l, got) = gradients(model, &cut);
            let off = distance(&got, &want);
            let close = off < of_gradients && (l - loss).abs() < of_loss * loss;
            assert!(close, "{about}: {n_block} {keep:?}: {off:.1e} of {of_gradients:.1e}, {l} and {loss}");
            // What is kept is what would be computed again: a resumed run may keep more or less.
            let first = first.get_or_insert_with(|| got.clone());
            assert!(*first == got, "{about}: {n_block} {keep:?} is not the same to the bit");
        }
    }
}

#[test]
fn blocks_and_what_is_kept_do_not_matter() {
    for (about, model) in models() {
        for portable in [false, true] {
            let whole = settings(96, 96, "plain").portable(portable);
            blocks_do_not_matter(about, &model, &whole, &[7, 32, 89, 90], [1; 3]);
            let (_, want) = gradients(&model, &whole);
            for (saved_type, bound) in [(SavedType::F16, 6e-3), (SavedType::Bf16, 5e-2)] {
                let half = whole.clone().saved_type(saved_type).checkpointing(Some(Checkpointing::Products));
                let off = distance(&gradients(&model, &half).1, &want);
                assert!(off < bound && off > 1e-6, "{about}: {saved_type:?}: {off:.1e}");
            }
        }
    }
}
