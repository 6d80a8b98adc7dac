//! Rounding in training: gradients under bfloat16 compared with those under f32.

use ggml::matmul::Kernel;
use ropewalk::math::Math;
use ropewalk::train::{Sequence, TrainParams, Trainer};
use ropewalk::DType;

use crate::common::rounding::two_orders;
use crate::common::{roundings, some_tokens};
use crate::gradients::{fill, lora, quantised, settings, targets, N_VOCAB};

/// Tokens of the text.
const N: usize = 48;

/// A number rounded to bfloat16, which has 8 bits, is off by so much of itself at most.
const STEP: f64 = 1.0 / (1 << 9) as f64;
/// The same of a product in AMX tiles: what the second half leaves of either factor, and the product of both second halves.
const STEP_OF_TILES: f64 = 3.0 / (1 << 16) as f64;

/// Factors that are rounded on the way to a logit of one layer: two in each of values, output of attention, up, down, logits.
const FORWARDS: f64 = 2.0 * 5.0;

/// The loss of some tokens, and all gradients in a row.
fn gradients(shape: &str, dtype: DType, change: &dyn Fn(&mut TrainParams)) -> (f64, Vec<f32>) {
    let model = quantised(shape, dtype);
    // In one block: of fewer than 32 tokens, products of some types are not in tiles.
    let mut how = settings(N, N, "yarn:factor=4");
    lora(&mut how).targets = targets(&["all", "output"]);
    change(&mut how);
    let mut trainer = Trainer::new(&model, &how).unwrap();
    fill(&mut trainer);
    let loss = trainer.accumulate(Sequence::new(&some_tokens(N + 1, N_VOCAB)), 1.0).unwrap();
    (loss, trainer.params().grads().unwrap().concat())
}

#[test]
fn bfloat16_rounds_gradients_as_far_as_its_digits_go() {
    if ![Kernel::HalfFloats, Kernel::Bf16x3].iter().any(|kernel| kernel.available(DType::BF16)) {
        eprintln!("skipped, for this processor has no products of bfloat16");
        return;
    }
    let in_tiles = Kernel::F32Tiles.available(DType::F32);
    let step = if in_tiles { STEP_OF_TILES } else { STEP };
    let floats = in_tiles.then_some(("llama-tiny", DType::F32));
    for (shape, dtype) in [
        ("llama-tiny", DType::Q8_0),
        ("qwen2-tiny", DType::Q4_1),
        ("llama-tiny-tied", DType::Q5_0),
        ("llama-tiny", DType::F16),
        ("llama-tiny", DType::BF16),
    ]
    .into_iter()
    .chain(floats)
    {
        let with = |math| gradients(shape, dtype, &|how| how.math = math);
        let ((loss, floats), (rounded_loss, rounded)) = (with(Math::F32), with(Math::Bf16));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let cosine = dot(&floats, &rounded) / (dot(&floats, &floats) * dot(&rounded, &rounded)).sqrt();
        let off = (rounded_loss - loss).abs();
        println!("{shape} {}: cosine {cosine}, loss {off:.1e} of {loss} off", dtype.name());
        // The way back has as many factors again, and two of the pair: a gradient is turned by no more than all of their steps.
        // Logits deviate by 2, and are off by the root of their roundings; the mean of the tokens' losses by the root of
        // their number less, six times that with certainty.
        let turned = (2.0 * FORWARDS + 2.0) * step;
        let of_loss = 6.0 * 2.0 * FORWARDS.sqrt() * step / (N as f64).sqrt();
        assert!(cosine > turned.cos() && off < of_loss, "{shape} {}: {cosine}, {off}", dtype.name());
        assert!(floats != rounded, "{shape} {}: nothing was rounded", dtype.name());
        // Neither threads nor how many rows are dequantized at once decide a bit of them.
        let again = gradients(shape, dtype, &|how| {
            (how.math, how.n_threads) = (Math::Bf16, 3);
        });
        assert_eq!((rounded_loss, &rounded), (again.0, &again.1), "{shape}: threads");
        let (loss_in_parts, _) = gradients(shape, dtype, &|how| {
            (how.math, how.dequantize_bytes) = (Math::Bf16, 9_000);
        });
        let off = (loss_in_parts - rounded_loss).abs();
        let bound = two_orders(roundings(quantised(shape, dtype).hparams(), N)) * loss;
        assert!(off < bound, "{shape} {}: {off:e}, weights in parts", dtype.name());
    }
}
