//! Bad input: every error names what is wrong, and what is trained has not moved.

use convert::random::Shape;
use ggml::matmul::Kernel;
use ropewalk::math::Math;
use ropewalk::train::optim::{OptimParams, Optimizer, Schedule};
use ropewalk::train::{MemoryPlan, Sequence, TrainAttention, TrainParams, Trainer};
use ropewalk::{DType, Token};

use crate::common::{load, made, rewritten, says, scratch, some_tokens};
use crate::gradients::{lora, models, settings, targets, N_VOCAB};

fn sequence(tokens: &[Token]) -> Sequence<'_> {
    Sequence::new(tokens)
}

#[test]
fn sequences_that_cannot_be_are_refused() {
    let (_, model) = models().remove(1);
    let mut trainer = Trainer::new(&model, &settings(16, 8, "plain")).unwrap();
    let good = some_tokens(17, N_VOCAB);
    let mut error = |tokens: &[Token], weights: &[f32], segment_starts: &[u32], start: &str| {
        let sequence = Sequence { tokens, weights, segment_starts, positions: &[] };
        for e in
            [trainer.loss(sequence).expect_err(start), trainer.accumulate(sequence, 1.0).expect_err(start)]
        {
            assert!(e.to_string().starts_with(start), "{e}");
        }
        let grads = trainer.params().grads().unwrap();
        assert!(grads.iter().flatten().all(|g| *g == 0.0), "{start}: gradients");
    };
    error(&[], &[], &[], "sequence: expected 2 to 17 tokens, found 0");
    error(&good[..1], &[], &[], "sequence: expected 2 to 17 tokens, found 1");
    error(&some_tokens(18, N_VOCAB), &[], &[], "sequence: expected 2 to 17 tokens, found 18");
    for (at, token) in [(0, -1), (3, N_VOCAB as Token), (16, Token::MAX), (16, Token::MIN)] {
        let mut tokens = good.clone();
        tokens[at] = token;
        error(&tokens, &[], &[], &format!("token: expected 0 to {}, found {token}", N_VOCAB - 1));
    }
    error(&good, &[1.0; 15], &[], "weights: expected 16, one per target, found 15");
    error(&good, &[1.0; 17], &[], "weights: expected 16");
    error(&good, &[0.0; 16], &[], "weights: expected numbers of at least 0, not all 0");
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let mut weights = [1.0; 16];
        weights[5] = bad;
        error(&good, &weights, &[], "weights: expected numbers of at least 0");
    }
    error(&good, &[], &[0, 9, 4], "segment_starts: expected ascending positions");
    // Segments that start after the end do not matter, and the trainer still works.
    let plain = trainer.loss(sequence(&good)).unwrap();
    let far = Sequence { segment_starts: &[16, 999, u32::MAX], ..sequence(&good) };
    assert_eq!(trainer.loss(far).unwrap(), plain);
}

#[test]
fn activations_are_not_rounded_to_8_bits_in_training() {
    let (_, model) = models().remove(1);
    let new = |math, portable| {
        Trainer::new(&model, &settings(16, 8, "plain").math(math).portable(portable)).map(|_| ())
    };
    says(new(Math::Int8, false), &["math: expected auto, f32 or bf16 in training, found int8"]);
    says(new(Math::Bf16, true), &["math: bf16: training needs a processor with"]);
    let here =
        [Kernel::HalfFloats, Kernel::Bf16x3].iter().any(|kernel| kernel.available(ropewalk::DType::BF16));
    assert_eq!(new(Math::Bf16, false).is_ok(), here);
}

/// The ops of every device count a block's probabilities in an i32, which wrapped; ours do not.
#[test]
fn blocks_that_cannot_be_counted_are_refused() {
    let (_, model) = models().remove(1);
    let most = ggml::tensor::MAX_INDEX / N_VOCAB;
    let plan = |n_block: usize, portable: bool| {
        // No activation is as large as the logits: the block alone decides.
        let settings = settings(most + 1, most, "plain").portable(portable).n_block(n_block);
        MemoryPlan::new(&model, &settings).map(|_| ()).map_err(|e| e.to_string())
    };
    let refused = plan(most + 1, true).unwrap_err();
    let expected =
        format!("block: expected at most {most} tokens with a vocabulary of {N_VOCAB}, found {}", most + 1);
    assert!(refused.starts_with(&expected) && refused.lines().count() == 1, "{refused}");
    // Attention goes by tiles of keys, and needs no mask of so many tokens by as many.
    plan(most, true).unwrap();
    plan(most + 1, false).unwrap();
}

#[test]
fn adapters_that_cannot_be_are_refused() {
    let all = models();
    let (_, tied) = &all[0];
    let error = |change: &dyn Fn(&mut TrainParams)| {
        let mut settings = settings(16, 8, "plain");
        change(&mut settings);
        Trainer::new(tied, &settings).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(error(&|s| lora(s).rank = 0), "rank: expected at least 1, found 0");
    let e = error(&|s| lora(s).rank = 129);
    assert!(e.starts_with("rank: expected at most 128, found 129: blk.0.attn_"), "{e}");
    let e = error(&|s| lora(s).rank = usize::MAX);
    assert!(e.starts_with("rank: expected at most 128, found"), "{e}");
    let e = error(&|s| lora(s).targets = targets(&["q", "attn"]));
    assert!(
        e.starts_with("targets: expected some of q, k, v, qkv, o") && e.ends_with("found \"attn\""),
        "{e}"
    );
    assert!(error(&|s| lora(s).targets = targets(&[""])).starts_with("targets: expected some of"));
    assert!(error(&|s| lora(s).targets.clear()).starts_with("targets: expected at least one, found none"));
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(error(&|s| lora(s).alpha = bad).starts_with("alpha: expected a positive number"));
    }
    for bad in [1.0, -0.1, f32::NAN] {
        assert!(error(&|s| lora(s).dropout = bad).starts_with("dropout: expected a probability below 1"));
    }
    let e = error(&|s| lora(s).targets = targets(&["q", "k", "q"]));
    assert!(e.starts_with("targets: ") && e.contains("twice"), "{e}");
}

fn optimizer(trainer: &Trainer) -> Optimizer {
    let schedule = Schedule::constant(1e-3, 9);
    let params = OptimParams::new(schedule).ema(0.5);
    Optimizer::new(params, trainer.params()).unwrap()
}

/// Numbers as bits, so that NaN is itself.
fn bits(trainer: &Trainer) -> Vec<u32> {
    trainer.params().list().iter().flat_map(|t| t.value.iter().map(|v| v.to_bits())).collect()
}

#[test]
fn what_is_no_number_in_a_trained_tensor_is_found_where_it_is() {
    let (_, model) = models().remove(0);
    for (name, said) in [
        ("blk.0.attn_q.weight.lora_b", "the output of blk.0 is not finite at token 0"),
        ("blk.0.ffn_norm.weight", "the output of blk.0 is not finite"),
        ("blk.1.ffn_down.weight.lora_b", "the last layer's output"),
        ("output_norm.weight", "the last layer's output or the logits"),
        ("token_embd.weight", "the embedding is not finite at token 0"),
    ] {
        let mut how = settings(16, 8, "plain");
        lora(&mut how).norms = true;
        lora(&mut how).embeddings = true;
        let mut trainer = Trainer::new(&model, &how).unwrap();
        let tokens = some_tokens(17, N_VOCAB);
        let good = trainer.loss(sequence(&tokens)).unwrap();
        let at = trainer
            .params()
            .list()
            .iter()
            .position(|t| t.id.to_string() == name)
            .unwrap_or_else(|| panic!("{name}"));
        let place = if name == "token_embd.weight" { tokens[0] as usize * model.hparams().n_embd } else { 2 };
        let was = std::mem::replace(&mut trainer.params_mut().list_mut()[at].value[place], f32::NAN);
        trainer.params().upload().unwrap();
        let before = bits(&trainer);
        for e in [trainer.loss(sequence(&tokens)), trainer.accumulate(sequence(&tokens), 1.0)] {
            let e = e.expect_err(name).to_string();
            assert!(e.starts_with("the loss is NaN: ") && e.contains(said), "{name}: {e}");
        }
        assert!(bits(&trainer) == before, "{name}");
        // Put right, it goes on as if nothing had been.
        trainer.params_mut().list_mut()[at].value[place] = was;
        trainer.params().upload().unwrap();
        trainer.params().zero_grads().unwrap();
        assert_eq!(trainer.loss(sequence(&tokens)).unwrap(), good, "{name}");
        trainer.accumulate(sequence(&tokens), 1.0).unwrap();
        assert!(trainer.params().grads().unwrap().iter().flatten().all(|g| g.is_finite()), "{name}");
    }
}

#[test]
fn what_is_no_number_in_the_files_weights_is_found_where_it_is() {
    let shape = Shape { n_layer: 3, n_vocab: N_VOCAB, ..Shape::named("llama-tiny").unwrap() };
    let (whole, path) = (made("train-nan-whole.gguf", &shape, DType::F32, 5), scratch("train-nan.gguf"));
    let file = whole.file();
    for (name, said) in [
        ("blk.1.ffn_down.weight", "the output of blk.1 is not finite at token 0"),
        ("blk.0.attn_norm.weight", "the output of blk.0 is not finite"),
        ("output.weight", "the last layer's output or the logits"),
    ] {
        let t = file.tensor(name).unwrap();
        let mut bytes = file.data(t).to_vec().unwrap();
        bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        rewritten(file.path(), &path, &[name], |out| {
            out.tensor_bytes(name, DType::F32, &t.shape, bytes).unwrap();
        });
        let model = load(&path);
        let mut trainer = Trainer::new(&model, &settings(16, 8, "plain")).unwrap();
        let before = bits(&trainer);
        let tokens = some_tokens(17, N_VOCAB);
        for e in [trainer.loss(sequence(&tokens)), trainer.accumulate(sequence(&tokens), 1.0)] {
            let e = e.expect_err(name).to_string();
            assert!(e.starts_with("the loss is NaN: ") && e.contains(said), "{name}: {e}");
        }
        assert!(bits(&trainer) == before);
    }
}

#[test]
fn gradients_that_are_no_numbers_move_nothing() {
    let (_, model) = models().remove(0);
    let mut trainer = Trainer::new(&model, &settings(16, 8, "plain")).unwrap();
    let mut optimizer = optimizer(&trainer);
    let tokens = some_tokens(17, N_VOCAB);
    trainer.accumulate(sequence(&tokens), 1.0).unwrap();
    optimizer.step(trainer.params_mut()).unwrap();
    let (values, state) = (bits(&trainer), optimizer.clone());
    trainer.accumulate(sequence(&tokens), f32::INFINITY).unwrap();
    let e = optimizer.step(trainer.params_mut()).expect_err("no numbers").to_string();
    assert!(e.starts_with("step 2: the gradient of blk.") && e.ends_with("is not finite"), "{e}");
    assert!(bits(&trainer) == values && optimizer == state);
    trainer.params().zero_grads().unwrap();
    trainer.accumulate(sequence(&tokens), 1.0).unwrap();
    optimizer.step(trainer.params_mut()).unwrap();
    assert!(bits(&trainer) != values);
}

#[test]
fn a_cancelled_call_can_be_made_again() {
    let (_, model) = models().remove(0);
    let mut trainer = Trainer::new(&model, &settings(16, 8, "plain")).unwrap();
    let (tokens, flag) = (some_tokens(17, N_VOCAB), trainer.cancel_flag());
    let want = trainer.loss(sequence(&tokens)).unwrap();
    flag.store(true, std::sync::atomic::Ordering::Relaxed);
    for e in [trainer.loss(sequence(&tokens)), trainer.accumulate(sequence(&tokens), 1.0)] {
        assert_eq!(e.expect_err("cancelled").to_string(), "interrupted");
    }
    flag.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(trainer.loss(sequence(&tokens)).unwrap(), want);
}

/// Landmarks and CLEX place tokens themselves, and each has separate tensors.
#[test]
fn what_places_tokens_does_so_alone() {
    let (_, model) = models().remove(0);
    let refused = |how: TrainParams, said: &str| {
        let e = Trainer::new(&model, &how).expect_err(said).to_string();
        assert!(e.contains(said) && e.lines().count() == 1, "{e}");
    };
    let landmark: TrainAttention = "landmark:block=8".parse().unwrap();
    let apart = |how: TrainParams| how.n_positions(Some(64));
    refused(apart(settings(16, 8, "clex:original=16")), "positions: expected 16 consecutive tokens");
    let both = settings(16, 8, "plain").attention(landmark);
    refused(apart(both.clone()), "positions: expected 16 consecutive tokens");
    refused(both.rope(Some("clex:original=16".parse().unwrap())), "found clex");
    assert!(Trainer::new(&model, &apart(settings(16, 8, "plain"))).is_ok());
}
