//! Every gradient of small models against central differences of the loss in f64.

use convert::random::{QkNorm, Shape};
use gguf::Value;
use ropewalk::ids::ParamId;
use ropewalk::math::Math;
use ropewalk::model::Model;
use ropewalk::train::{Checkpointing, LoraParams, Sequence, TrainAttention, TrainParams, Trainable, Trainer};
use ropewalk::DType;

use crate::common::{made, some_tokens, turned};
use crate::differences::check;

pub(crate) const N_VOCAB: usize = 260;
pub(crate) const ALL: [&str; 7] = ["q", "k", "v", "o", "gate", "up", "down"];

pub(crate) fn targets(names: &[&str]) -> Vec<String> {
    names.iter().map(|s| s.to_string()).collect()
}

/// Random models: heads in groups, both pairings, biases, partly rotated heads, with and without a separate output matrix.
pub(crate) fn models() -> Vec<(&'static str, Model)> {
    let base = Shape {
        n_layer: 2,
        n_embd: 64,
        n_head: 4,
        n_head_kv: 2,
        n_embd_head: 32,
        n_ff: 96,
        n_vocab: N_VOCAB,
        n_ctx_train: 64,
        ..Shape::named("llama-tiny").unwrap()
    };
    let qwen2 = Shape { n_vocab: N_VOCAB, n_ctx_train: 64, n_ff: 96, ..Shape::named("qwen2-tiny").unwrap() };
    let qwen2 = Shape { n_embd: 96, n_head: 3, n_head_kv: 3, n_embd_head: 32, n_layer: 1, ..qwen2 };
    let one = Shape { n_head: 6, n_head_kv: 1, n_layer: 1, ..base.clone() };
    let qwen3 = Shape { n_layer: 1, arch: "qwen3".into(), qk_norm: QkNorm::Head, ..base.clone() };
    // Of five layers the fourth is not rotated.
    let smollm3 = Shape { n_layer: 5, arch: "smollm3".into(), n_embd: 48, n_ff: 64, ..one.clone() };
    // Small, and with every part that the named shape has: of two layers the second has no window.
    let small = |name: &str| {
        let mut shape = Shape::named(name).unwrap();
        let has_windows = shape.keys.iter().any(|(key, _)| *key == "attention.sliding_window");
        if has_windows {
            shape.keys.push(("attention.sliding_window_pattern", Value::U32(2)));
        }
        shape.n_layer = if has_windows { 2 } else { 1 };
        Shape {
            n_embd: 48,
            n_head: 4,
            n_embd_head: 16,
            n_ff: 40,
            n_vocab: N_VOCAB,
            n_rot: None,
            longrope: None,
            ..shape
        }
    };
    let list = [
        ("llama, 4 heads on 2", base, 32),
        ("llama, 6 heads on 1, 20 of 32 turned", one, 20),
        ("qwen2", qwen2, 32),
        ("qwen3, a norm of each head", qwen3, 32),
        ("smollm3, a layer without rotation", smollm3, 32),
        ("cohere2, windows, one norm for both", small("cohere2-tiny"), 16),
        ("gemma2, windows, capped scores and logits", small("gemma2-tiny"), 16),
        ("gemma3, windows, two bases, capped logits", small("gemma3-tiny"), 16),
        ("gptneox, in parallel, 8 of 16 turned", small("gptneox-tiny"), 8),
        ("gptneox, in sequence, 8 of 16 turned", small("gptneox-tiny-sequential"), 8),
        ("gptneox, GELU by the error function", small("gptneox-tiny-erf"), 8),
        ("granite, four factors", small("granite-tiny"), 16),
        ("mistral3, a temperature", small("mistral3-tiny"), 16),
        ("olmo3, windows, norms behind", small("olmo3-tiny"), 16),
        ("phi2, a bias on logits, 8 of 16 turned", small("phi2-tiny"), 8),
        ("phi3, fused maps, 12 of 16 turned", Shape { keys: Vec::new(), ..small("phi3-tiny") }, 12),
    ];
    let one = |((about, shape, n_rot), i): ((&'static str, Shape, usize), u64)| {
        (about, turned(&format!("train-{i}"), &shape, 31 + i, n_rot, |_| {}))
    };
    list.into_iter().zip(0..).map(one).collect()
}

/// A model with quantized weights, with or without a separate output matrix.
pub(crate) fn quantised(shape: &str, dtype: DType) -> Model {
    let name = format!("train-{shape}-{}.gguf", dtype.name());
    made(&name, &Shape { n_vocab: N_VOCAB, n_layer: 1, ..Shape::named(shape).unwrap() }, dtype, 3)
}

/// Another one, of one layer, in a file of this name.
pub(crate) fn named_model(name: &str) -> Model {
    let shape =
        Shape { n_layer: 1, n_vocab: N_VOCAB, n_ctx_train: 64, ..Shape::named("llama-tiny").unwrap() };
    made(&format!("train-{name}.gguf"), &shape, DType::F32, 77)
}

/// Settings under which every block and piece border is crossed.
pub(crate) fn settings(n_ctx: usize, n_block: usize, spec: &str) -> TrainParams {
    // Bounds are those of floats; `math` compares others with them.
    TrainParams::new(n_ctx)
        .math(Math::F32)
        .n_block(n_block)
        .n_threads(1)
        .rope(Some(spec.parse().unwrap()))
        .checkpointing(Some(Checkpointing::Inputs))
        .lora(LoraParams::default().targets(targets(&["all"])).rank(3).alpha(5.0))
}

/// The settings of pairs, to be changed.
pub(crate) fn lora(how: &mut TrainParams) -> &mut LoraParams {
    match &mut how.trainable {
        Trainable::Lora(lora) => lora,
        Trainable::Full => panic!("pairs are not trained"),
    }
}

/// Gives B values, so that every gradient has some.
pub(crate) fn fill(trainer: &mut Trainer) {
    for t in trainer.params_mut().list_mut().iter_mut().filter(|t| matches!(t.id, ParamId::LoraB(_))) {
        let mut state = t.id.to_string().len() as u32 + t.value.len() as u32;
        for v in &mut t.value {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *v = (state >> 8) as f32 / (1 << 24) as f32 * 0.2 - 0.1;
        }
    }
    trainer.params().upload().unwrap();
}

/// Half of the pairs turned, queries scaled from the ninth token on.
const SETTINGS: &str = "plain:drop=0.5,temperature=logn,original=8";

#[test]
fn gradients_are_those_of_finite_differences() {
    for (about, model) in models() {
        // What is rotated in cohere2 has a window, on which no method acts.
        let methods = match model.hparams().arch.as_str() {
            "cohere2" => &["plain"][..],
            "llama" => &["plain", "harpe", "yarn:factor=4", SETTINGS],
            _ => &["plain", "harpe", "yarn:factor=4"],
        };
        // In ops of every backend: without a method, and with a base for each head where methods act.
        let portable = methods.iter().take(2).map(|&spec| (true, spec));
        let runs = methods.iter().map(|&spec| (false, spec)).chain(portable);
        for (portable, spec) in runs {
            let settings = settings(40, 16, spec).portable(portable);
            check(&format!("{about}, {spec}, portable {portable}"), &model, &settings, 37, &[], false);
        }
    }
}

#[test]
fn weights_of_tokens_and_segment_starts_count() {
    let (about, model) = models().remove(0);
    for portable in [false, true] {
        let settings = settings(40, 16, "plain").portable(portable);
        check(about, &model, &settings, 40, &[0, 7, 16, 30], true);
    }
}

/// Heads that are split within a KV head (3 on 3, 6 on 1) and between KV heads, windows, layers without rotation, documents.
#[test]
fn gradients_of_shifted_sparse_attention() {
    for (about, model) in models() {
        for portable in [false, true] {
            let attention = TrainAttention::Shifted { group: None };
            let settings = settings(40, 16, "yarn:factor=4").portable(portable).attention(attention);
            let spec = if model.hparams().arch == "cohere2" { "plain" } else { "yarn:factor=4" };
            let settings = settings.rope(Some(spec.parse().unwrap()));
            check(&format!("{about}, s2, portable {portable}"), &model, &settings, 36, &[], false);
        }
    }
    let (about, model) = models().remove(1);
    for (portable, group) in [(false, 7), (true, 7), (false, 64)] {
        let attention = TrainAttention::Shifted { group: Some(group) };
        let settings = settings(40, 16, "plain").portable(portable).attention(attention);
        check(&format!("{about}, groups of {group}"), &model, &settings, 37, &[5, 20], true);
    }
}

/// Samples of any length have four groups, the last of them shorter: down to a single token.
#[test]
fn gradients_of_shifted_sparse_attention_at_any_length() {
    let attention = TrainAttention::Shifted { group: None };
    let of_values = |mut settings: TrainParams| {
        lora(&mut settings).targets = targets(&["v", "o", "gate", "up", "down"]);
        settings
    };
    for (about, model) in models().into_iter().take(2) {
        for portable in [false, true] {
            // As a context of that length, and in a longer one.
            for (n, n_ctx) in
                [(1, 1), (2, 40), (3, 3), (5, 40), (6, 40), (7, 7), (18, 40), (37, 37), (39, 40)]
            {
                let settings = settings(n_ctx, 16, "yarn:factor=4").portable(portable).attention(attention);
                // In groups of one token nobody sees another, and scores have no gradient.
                let settings = match n {
                    ..=4 => of_values(settings),
                    _ => settings,
                };
                let about = format!("{about}, s2, {n} tokens of {n_ctx}, portable {portable}");
                check(&about, &model, &settings, n, &[], false);
            }
        }
    }
    let (about, model) = models().remove(1);
    let settings = settings(40, 16, "plain").attention(attention);
    check(&format!("{about}, s2, documents"), &model, &settings, 37, &[5, 20], true);
}

/// One group of the whole text differs from plain attention in the upper half of the heads alone, and only after the
/// middle of the group; held-out losses are under plain attention.
#[test]
fn shifted_sparse_attention_is_for_gradients_alone() {
    let (_, model) = models().remove(0);
    let tokens = some_tokens(25, N_VOCAB);
    let grouped = |attention: TrainAttention, n: usize| {
        let how = settings(24, 9, "plain").attention(attention);
        let mut trainer = Trainer::new(&model, &how).unwrap();
        fill(&mut trainer);
        let sequence = Sequence::new(&tokens[..=n]);
        let held_out = trainer.loss(sequence).unwrap();
        (held_out, trainer.accumulate(sequence, 1.0).unwrap(), trainer.params().grads().unwrap())
    };
    let full = grouped(TrainAttention::Full, 24);
    assert_eq!(full.0, full.1);
    let quarter = grouped(TrainAttention::Shifted { group: None }, 24);
    assert!(quarter.0 == full.0 && quarter.1 != full.1);
    // Up to the middle of a group of 40 tokens there is no border; after it there is one.
    let large = TrainAttention::Shifted { group: Some(40) };
    for (n, same) in [(20, true), (24, false)] {
        let (full, grouped) = (grouped(TrainAttention::Full, n), grouped(large, n));
        assert_eq!((grouped.0 == full.0, grouped.1 == full.1, grouped.2 == full.2), (true, same, same));
    }
}

#[test]
fn norms_embeddings_and_the_output_have_gradients() {
    for (about, model) in models() {
        for portable in [false, true] {
            let mut settings = settings(24, 10, "plain").portable(portable);
            lora(&mut settings).norms = true;
            lora(&mut settings).embeddings = true;
            check(about, &model, &settings, 24, &[], false);
            // A pair of the output matrix, which can be the embedding.
            lora(&mut settings).norms = false;
            lora(&mut settings).embeddings = false;
            lora(&mut settings).targets = targets(&["v", "output"]);
            check(about, &model, &settings, 24, &[], false);
        }
    }
}

#[test]
fn quantised_weights_dequantized_in_chunks_give_the_same() {
    for shape in ["llama-tiny", "qwen2-tiny", "llama-tiny-tied"] {
        let model = quantised(shape, DType::Q8_0);
        for (portable, dequantize_bytes) in [(false, 1 << 30), (false, 40_000), (true, 40_000), (true, 9_000)]
        {
            let mut settings =
                settings(24, 10, "plain").portable(portable).dequantize_bytes(dequantize_bytes);
            lora(&mut settings).targets.push("output".into());
            check(&format!("{shape} {dequantize_bytes} {portable}"), &model, &settings, 24, &[], false);
        }
    }
}
