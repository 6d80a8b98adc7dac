//! The loss and the gradient of a trainer against those of a naive model in f64, by central differences.

use ropewalk::hparams::{Hparams, LayerAttention};
use ropewalk::ids::{LinearId, ParamId};
use ropewalk::landmark::Landmarks;
use ropewalk::model::Model;
use ropewalk::rope::Plan;
use ropewalk::train::{Sequence, TrainAttention, TrainParams, Trainer};
use ropewalk::Token;

use crate::common::rounding::rounding;
use crate::common::{roundings, size, some_tokens};
use crate::gradients::{fill, N_VOCAB};
use naive::{Definition, Naive};

/// The naive model with everything the trainer holds merged in, after `change` has changed its tensors.
pub(crate) fn moved(
    base: &Naive,
    trainer: &Trainer,
    scale: f64,
    change: &dyn Fn(ParamId, &mut [f64]),
) -> Naive {
    let mut naive = base.clone();
    let list = trainer.params().list();
    let value = |id: ParamId| -> Vec<f64> {
        let t = list.iter().find(|t| t.id == id).unwrap();
        let mut v: Vec<f64> = t.value.iter().map(|&x| f64::from(x)).collect();
        change(id, &mut v);
        v
    };
    for t in list {
        if t.id == ParamId::LandmarkEmbedding {
            naive.untie();
            naive.tensor_mut("token_embd.weight").extend(value(t.id));
        } else if t.id == ParamId::LandmarkOutput {
            naive.tensor_mut("output.weight").extend(value(t.id));
        } else if let ParamId::LoraA(map) = t.id {
            let ([n_in, rank], a, b) = (t.shape, value(t.id), value(ParamId::LoraB(map)));
            // A pair of the output matrix does not change the rows looked up if the embedding is the same matrix.
            if map == LinearId::OUTPUT {
                naive.untie();
            }
            let w = naive.tensor_mut(&map.weight());
            for (o, row) in w.chunks_exact_mut(n_in).enumerate() {
                for (r, a) in a.chunks_exact(n_in).enumerate() {
                    row.iter_mut().zip(a).for_each(|(w, a)| *w += scale * b[o * rank + r] * a);
                }
            }
        } else if !t.id.is_lora() && !t.id.is_clex() {
            *naive.tensor_mut(&t.id.to_string()) = value(t.id);
        }
    }
    naive
}

pub(crate) fn loss(
    naive: &Naive,
    tokens: &[Token],
    weights: &[f32],
    case: &dyn Definition,
    plan: &Plan,
) -> f64 {
    let n = tokens.len() - 1;
    let logits = naive.logits(&tokens[..n], case, plan);
    let (mut sum, mut total) = (0.0, 0.0);
    for (i, row) in logits.chunks_exact(logits.len() / n).enumerate() {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = top + row.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
        let w = f64::from(weights[i]);
        sum += w * (lse - row[tokens[i + 1] as usize]);
        total += w;
    }
    sum / total
}

/// Plain causal attention within documents, which begin at `segment_starts`, under the frequencies of a plan. With
/// groups of so many tokens, LongLoRA's: queries of the upper half of the heads are moved back by half a group before
/// they are counted off, and those that come before the text are among themselves.
pub(crate) struct Documents<'a> {
    pub(crate) segment_starts: &'a [u32],
    pub(crate) plan: &'a Plan,
    pub(crate) group: Option<i64>,
    /// Positions of a block, under landmark attention.
    pub(crate) block: Option<usize>,
    /// Blocks that query heads take, and positions of a piece.
    pub(crate) top: Option<[usize; 2]>,
}

/// A text with landmark tokens after blocks, the weights of its targets and the starts of its documents.
pub(crate) fn with_landmarks(
    tokens: &[Token],
    weights: &[f32],
    starts: &[u32],
    landmarks: Landmarks,
) -> (Vec<Token>, Vec<f32>, Vec<u32>) {
    let (mut all, mut of_targets, n) = (vec![tokens[0]], Vec::new(), landmarks.block() - 1);
    for (i, &token) in tokens.iter().enumerate().skip(1) {
        if i % n == 0 {
            all.push(N_VOCAB as Token);
            of_targets.push(if landmarks.in_loss { weights[i - 1] } else { 0.0 });
        }
        all.push(token);
        of_targets.push(weights[i - 1]);
    }
    (all, of_targets, starts.iter().map(|s| s + s / n as u32).collect())
}

impl Definition for Documents<'_> {
    fn distance(&self, i: i64, j: i64) -> Option<i64> {
        let first = self.segment_starts.iter().map(|&s| i64::from(s)).filter(|&s| s <= i).max().unwrap_or(0);
        (first..=i).contains(&j).then_some(i - j)
    }

    fn sees_unrotated(&self, i: i64, j: i64) -> bool {
        self.distance(i, j).is_some()
    }

    fn head_sees(&self, layer: &LayerAttention, h: usize, i: i64, j: i64) -> bool {
        let Some(group) = self.group.filter(|_| layer.window.is_none()) else { return true };
        let shift = if h < layer.n_head / 2 { 0 } else { group / 2 };
        (i - shift).div_euclid(group) == (j - shift).div_euclid(group)
    }

    fn block(&self) -> Option<usize> {
        self.block
    }

    fn top(&self) -> Option<[usize; 2]> {
        self.top
    }

    fn mscale(&self, kind: usize) -> f64 {
        self.plan.kinds()[kind].mscale
    }

    fn q_scale(&self, kind: usize, i: i64) -> f64 {
        self.plan.kinds()[kind].q_scale(i as i32)
    }
}

/// The loss, and its derivative along a direction that moves every element; in `make soak` also some elements alone.
pub(crate) fn check(
    about: &str,
    model: &Model,
    settings: &TrainParams,
    n: usize,
    segment_starts: &[u32],
    weighted: bool,
) {
    let group = match settings.attention {
        TrainAttention::Full | TrainAttention::Landmark(_) => None,
        TrainAttention::Shifted { group } => Some(group.unwrap_or(n.div_ceil(4)) as i64),
    };
    let block = settings.attention.landmarks().map(Landmarks::block);
    check_by(about, model, settings, n, segment_starts, weighted, &|plan, segment_starts| {
        Box::new(Documents { segment_starts, plan, group, block, top: None })
    });
}

/// How far an element of a gradient may be off, of itself and of its tensor's typical one: it is a sum over `n` tokens of terms
/// of either sign, whose magnitudes come to the root of `n` times the sum.
pub(crate) fn of_element(hp: &Hparams, n: usize) -> f64 {
    rounding(3 * roundings(hp, n) + n) * (n as f64).sqrt()
}

/// What a naive model computes, of a plan and of the documents that begin at these positions.
pub(crate) type Defined<'f> = dyn for<'a> Fn(&'a Plan, &'a [u32]) -> Box<dyn Definition + 'a> + 'f;

/// [`check`] against this definition.
pub(crate) fn check_by(
    about: &str,
    model: &Model,
    settings: &TrainParams,
    n: usize,
    segment_starts: &[u32],
    weighted: bool,
    define: &Defined<'_>,
) {
    let base = Naive::of(model);
    let mut trainer = Trainer::new(model, settings).unwrap_or_else(|e| panic!("{about}: {e}"));
    fill(&mut trainer);
    let tokens = some_tokens(n + 1, N_VOCAB);
    let weights: Vec<f32> = (0..n).map(|i| if weighted { (i % 4) as f32 * 0.5 } else { 1.0 }).collect();
    let sequence = Sequence { tokens: &tokens, weights: &weights, segment_starts, positions: &[] };
    let got = trainer.accumulate(sequence, 1.0).unwrap();
    let grads = trainer.params().grads().unwrap();
    let (plan, scale) =
        (trainer.plan().clone(), f64::from(settings.trainable.lora().map_or(1.0, |lora| lora.scale())));
    let (tokens, weights, starts) = match settings.attention.landmarks() {
        Some(landmarks) => with_landmarks(&tokens, &weights, segment_starts, landmarks),
        None => (tokens, weights, segment_starts.to_vec()),
    };
    let case = define(&plan, &starts);
    let loss_with = |change: &dyn Fn(ParamId, &mut [f64])| {
        loss(&moved(&base, &trainer, scale, change), &tokens, &weights, &*case, &plan)
    };
    let want = loss_with(&|_, _| {});
    let bound = rounding(roundings(model.hparams(), tokens.len())) * want;
    assert!((got - want).abs() < bound, "{about}: loss {got}, expected {want}");
    let bound = of_element(model.hparams(), tokens.len());
    let list = trainer.params().list();
    assert!(list.len() == grads.len());
    let norms: Vec<f64> =
        grads.iter().map(|grad| grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt()).collect();
    for (t, norm) in list.iter().zip(&norms) {
        assert!(*norm > 0.0 && norm.is_finite(), "{about}: {} has no gradient", t.id);
    }

    // Every element of some tensors moved by its sign over the norm of its tensor's gradient, so that each tensor counts
    // as much; one with next to no gradient counts less, or f64's rounding of the loss would show.
    let least = norms.iter().copied().fold(0.0, f64::max) * 1e-3;
    let direction = |which: std::ops::Range<usize>| {
        let moves = |id: ParamId| {
            let i = list.iter().position(|t| t.id == id).filter(|i| which.contains(i))?;
            Some((i as u32, 1.0 / norms[i].max(least)))
        };
        let along = |by: f64| {
            loss_with(&|id, v| {
                if let Some((i, weight)) = moves(id) {
                    v.iter_mut().enumerate().for_each(|(j, v)| *v += by * weight * sign(i, j));
                }
            })
        };
        let h = 1e-4 * least;
        let difference = (along(h) - along(-h)) / (2.0 * h);
        let products = which.clone().map(|i| {
            let signed = grads[i].iter().enumerate().map(|(j, g)| f64::from(*g) * sign(i as u32, j));
            signed.sum::<f64>() / norms[i].max(least)
        });
        // An element is off by `bound` of itself and of the typical one: its tensor by twice that, and tensors by the root.
        let off = (products.sum::<f64>() - difference).abs();
        (off, bound * (difference.abs() + 2.0 * (which.len() as f64).sqrt()))
    };
    let (off, most) = direction(0..list.len());
    if off > most {
        let of = |i: usize| direction(i..i + 1);
        let worst: Vec<String> = (0..list.len())
            .filter(|&i| of(i).0 > of(i).1)
            .map(|i| format!("{} {:.1e}", list[i].id, of(i).0))
            .collect();
        panic!("{about}: off by {off:.1e}, expected at most {most:.1e}; {}", worst.join(", "));
    }
    for ((t, grad), norm) in list.iter().zip(&grads).zip(&norms) {
        let typical = norm / (grad.len() as f64).sqrt();
        // The largest, and some anywhere.
        let largest = (0..grad.len()).max_by(|&i, &j| grad[i].abs().total_cmp(&grad[j].abs())).unwrap();
        for &i in &[largest, grad.len() / 3, grad.len() - 1][..size(0, 3)] {
            // A central difference is off by h * h, of which nothing shows, and by f64's rounding of a loss over h.
            let h = 2e-5;
            let at = |by: f64| loss_with(&one(t.id, i, by));
            let difference = (at(h) - at(-h)) / (2.0 * h);
            let off = (f64::from(grad[i]) - difference).abs() / (difference.abs() + typical);
            assert!(off < bound, "{about}: {}[{i}] is {}, expected {difference}: {off:.1e}", t.id, grad[i]);
        }
    }
}

/// One element of one tensor, moved.
pub(crate) fn one(tensor: ParamId, at: usize, by: f64) -> impl Fn(ParamId, &mut [f64]) {
    move |id, v| {
        if id == tensor {
            v[at] += by;
        }
    }
}

/// 1 or -1, by chance.
pub(crate) fn sign(tensor: u32, at: usize) -> f64 {
    let mixed = (at as u32 ^ (tensor << 20)).wrapping_mul(2_654_435_761);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519);
    if (mixed ^ (mixed >> 13)) & 1 == 0 {
        1.0
    } else {
        -1.0
    }
}
