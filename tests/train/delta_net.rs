//! Training through gated delta-nets: gradients against central differences of the naive model, and every way to them
//! against the others.

use convert::random::{DeltaNet, Shape};
use gguf::{Array, Value};
use ropewalk::adapter::AdapterMeta;
use ropewalk::hparams::DeltaNetHparams;
use ropewalk::model::Model;
use ropewalk::train::{write_adapter, MemoryPlan, Sequence, TrainAttention, TrainParams, Trainable, Trainer};
use ropewalk::DType;

use crate::common::rounding::{rounding, two_orders};
use crate::common::{made, mean_nll, open, roundings, score, scratch, some_tokens, with_adapter, with_kv};
use crate::differences::check;
use crate::gradients::{fill, lora, settings, targets, N_VOCAB};
use crate::landmark::adapter;
use crate::landmark_session::{exact, without_landmark, BLOCK};
use crate::resumed::{resumed, PLAIN};
use crate::run::World;
use crate::same::blocks_do_not_matter;
use naive::worst_row;

/// A layer with attention between two without; heads of values in groups of two, on heads of keys.
fn shape(name: &str) -> Shape {
    let net = DeltaNetHparams { n_head_k: 2, n_head_v: 4, n_embd_head: 16, n_conv: 4 };
    Shape {
        n_layer: 3,
        n_embd: 48,
        n_head: 4,
        n_head_kv: 2,
        n_embd_head: 16,
        n_ff: 40,
        n_vocab: N_VOCAB,
        n_ctx_train: 64,
        n_rot: Some(8),
        delta_net: Some(DeltaNet { every: 2, net }),
        keys: vec![("rope.dimension_sections", Value::Array(Array::I32(vec![2, 1, 1, 0])))],
        ..Shape::named(name).unwrap()
    }
}

fn model(name: &str, dtype: DType) -> Model {
    made(&format!("train-{name}-{}.gguf", dtype.name()), &shape(name), dtype, 21)
}

const NAMES: [&str; 2] = ["qwen35-tiny", "qwen35moe-tiny"];

#[test]
fn gradients_are_those_of_finite_differences() {
    for name in NAMES {
        let model = model(name, DType::F32);
        for spec in ["plain", "harpe", "yarn:factor=4"] {
            let settings = settings(40, 16, spec);
            check(&format!("{name}, {spec}"), &model, &settings, 37, &[], false);
        }
        // Routers are trained where they are named.
        let mut named = settings(24, 10, "plain");
        lora(&mut named).norms = true;
        lora(&mut named).embeddings = true;
        let more = if name == "qwen35moe-tiny" { &["router", "shared_router"][..] } else { &["gate"] };
        lora(&mut named).targets =
            targets(&[&["q", "attn_gate", "ssm_alpha", "ssm_beta", "output"], more].concat());
        check(&format!("{name}, norms and embeddings"), &model, &named, 24, &[], false);
    }
    let model = model("qwen35-tiny", DType::Q8_0);
    check("q8_0", &model, &settings(40, 16, "plain"), 37, &[], false);
}

/// A document begins with a state of 0: at the start of a block, within one, and within a few tokens of another.
#[test]
fn documents_do_not_see_each_other() {
    let model = model("qwen35-tiny", DType::F32);
    check("documents", &model, &settings(40, 16, "plain"), 40, &[0, 7, 9, 16, 30], true);
}

/// Sessions put the landmarks where training had them, and states run over them.
#[test]
fn a_session_with_landmarks_is_the_model_that_was_trained() {
    let model = model("qwen35-tiny", DType::F32);
    let (path, _) = adapter(&model, BLOCK, "delta-landmark.gguf");
    let with = with_adapter(&model, &path);
    let tokens = some_tokens(100, N_VOCAB);
    let want = without_landmark(&exact(&model, &tokens));
    let mut session = open(&with, &with_kv(100, DType::F32));
    let worst = worst_row(&score(&mut session, &tokens), &want, N_VOCAB);
    assert!(worst < rounding(roundings(model.hparams(), 100)), "{worst:e}");
}

/// Attention in groups and landmarks are for the layers with attention; delta-nets read the text as it is.
#[test]
fn what_changes_attention_leaves_delta_nets_alone() {
    let model = model("qwen35-tiny", DType::F32);
    for attention in ["s2", "landmark:block=6"] {
        let attention: TrainAttention = attention.parse().unwrap();
        let how = settings(40, 16, "yarn:factor=4").attention(attention);
        check(&attention.to_string(), &model, &how, 36, &[], false);
    }
}

#[test]
fn blocks_threads_and_what_is_kept_do_not_matter() {
    for name in NAMES {
        let whole = settings(96, 96, "plain");
        blocks_do_not_matter(name, &model(name, DType::F32), &whole, &[1, 2, 7, 32, 89, 90], [1, 2, 3]);
    }
}

/// The loss is that of a session, without and with the adapter that was trained.
#[test]
fn the_loss_is_that_of_a_session() {
    for name in NAMES {
        let model = model(name, DType::F32);
        let mut how = settings(40, 16, "plain");
        // More ranks than heads.
        lora(&mut how).rank = 7;
        if name == "qwen35moe-tiny" {
            lora(&mut how).targets.push("shared_router".into());
        }
        let mut trainer = Trainer::new(&model, &how).unwrap();
        let tokens = some_tokens(40, N_VOCAB);
        let bound = two_orders(roundings(model.hparams(), 40));
        let session_loss = |model: &Model| mean_nll(&mut open(model, &with_kv(40, DType::F32)), &tokens);
        let want = trainer.loss(Sequence::new(&tokens)).unwrap();
        let found = session_loss(&model);
        assert!((found / want - 1.0).abs() < bound, "{name}: {found}, {want} in training");
        fill(&mut trainer);
        let path = scratch(&format!("delta-{name}.gguf"));
        write_adapter(&path, &trainer, None, AdapterMeta::default()).unwrap();
        let tuned = with_adapter(&model, &path);
        let (want, found) = (trainer.loss(Sequence::new(&tokens)).unwrap(), session_loss(&tuned));
        assert!((found / want - 1.0).abs() < bound, "{name}, tuned: {found}, {want} in training");
    }
}

#[test]
fn a_stopped_run_goes_on_to_the_same_bytes() {
    resumed(&World::of(model("qwen35-tiny", DType::F32)), &PLAIN, "delta-net");
}

#[test]
fn the_plan_counts_states_in_a_line_with_the_context() {
    let model = model("qwen35-tiny", DType::F32);
    let plan = |n_ctx: usize| MemoryPlan::new(&model, &settings(n_ctx, 128, "plain")).unwrap();
    let states = |n_ctx: usize| {
        let plan = plan(n_ctx);
        plan.parts.iter().find(|p| p.0.starts_with("states of")).unwrap().1
    };
    // Four heads of 16 x 16, and three rows of two heads of queries, two of keys and four of values.
    let block = 4 * (4 * 16 * 16 + 3 * 8 * 16);
    assert_eq!([512, 1024].map(|n| states(n) / block), [4 + 1, 8 + 1]);
    let totals: Vec<usize> = (2..6).map(|i| plan(4096 * i).totals()).map(|(a, b)| a + b).collect();
    let steps: Vec<usize> = totals.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(steps.iter().all(|s| *s == steps[0]), "{totals:?}");
}

#[test]
fn targets_name_what_does_their_work() {
    let trained = |name: &str, names: &[&str]| {
        let model = model(name, DType::F32);
        let mut how = settings(16, 8, "plain");
        lora(&mut how).targets = targets(names);
        let trainer = Trainer::new(&model, &how).unwrap();
        let list = trainer.params().list().iter().map(|t| t.id.to_string());
        let mut list: Vec<String> =
            list.filter_map(|name| name.strip_suffix(".weight.lora_a").map(String::from)).collect();
        list.sort();
        list
    };
    let of =
        |il: usize, parts: &[&str]| parts.iter().map(|part| format!("blk.{il}.{part}")).collect::<Vec<_>>();
    let attention = ["attn_k", "attn_output", "attn_q", "attn_v"];
    let default =
        [of(0, &["attn_qkv", "ssm_out"]), of(1, &attention), of(2, &["attn_qkv", "ssm_out"])].concat();
    assert_eq!(trained("qwen35-tiny", &["q", "k", "v", "o"]), default);
    assert_eq!(trained("qwen35moe-tiny", &["q", "k", "v", "o"]), default);
    let net = ["attn_gate", "attn_qkv"];
    let rest = ["ssm_alpha", "ssm_beta", "ssm_out"];
    let all = |ffn: &[&str]| {
        let recurrent = [&net, ffn, &rest].concat();
        [of(0, &recurrent), of(1, &[&attention, ffn].concat()), of(2, &recurrent)].concat()
    };
    assert_eq!(trained("qwen35-tiny", &["all"]), all(&["ffn_down", "ffn_gate", "ffn_up"]));
    let shared = ["ffn_down_shexp", "ffn_gate_shexp", "ffn_up_shexp"];
    assert_eq!(trained("qwen35moe-tiny", &["all"]), all(&shared));
    // One kind of layer alone; names may overlap.
    let only = |names: &[&str]| trained("qwen35-tiny", names);
    assert_eq!(only(&["attention.q", "attention.o"]), of(1, &["attn_output", "attn_q"]));
    let nets = [of(0, &["attn_qkv", "ssm_out"]), of(2, &["attn_qkv", "ssm_out"])].concat();
    assert_eq!(only(&["delta-net.q", "delta-net.v", "delta-net.o", "delta-net.ssm_out"]), nets);
    assert_eq!(only(&["attention.q", "q", "k", "v", "o"]), default);
    let ffn = ["ffn_down", "ffn_gate", "ffn_up"];
    assert_eq!(only(&["attention.all"]), of(1, &[&attention[..], &ffn].concat()));
    assert_eq!(only(&["attention.all", "delta-net.all"]), all(&ffn));
}

#[test]
fn kinds_of_layers_that_lack_a_map_are_named() {
    let refused = |name: &str, shape: Shape, target: &str| {
        let model = made(&format!("targets-{name}.gguf"), &shape, DType::F32, 3);
        let mut how = settings(16, 8, "plain");
        lora(&mut how).targets = targets(&[target]);
        Trainer::new(&model, &how).unwrap_err().to_string()
    };
    let qwen = |target: &str| refused("qwen35", shape("qwen35-tiny"), target);
    let e = qwen("attention.ssm_out");
    assert_eq!(e, "targets: \"attention.ssm_out\": no layer with attention has such a map");
    let e = qwen("delta-net.output");
    assert_eq!(e, "targets: \"delta-net.output\": no gated delta-net of the model has such a map");
    let e = qwen("attention.x");
    assert!(e.starts_with("targets: expected some of q, k,") && e.ends_with("found \"attention.x\""), "{e}");
    let llama = Shape::named("llama-tiny").unwrap();
    for target in ["delta-net.q", "delta-net.all"] {
        let e = refused("llama", llama.clone(), target);
        assert!(e.ends_with("no gated delta-net of the model has such a map"), "{e}");
    }
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let model = model("qwen35-tiny", DType::BF16);
    let refused = |how: &TrainParams| {
        let errors = [MemoryPlan::new(&model, how).err(), Trainer::new(&model, how).err()];
        errors.map(|e| e.expect("refused").to_string())
    };
    for e in refused(&settings(16, 8, "plain").portable(true)) {
        assert!(e.contains("gated delta-nets (layers 0 2) needs the CPU"), "{e}");
    }
    let mut all = settings(16, 8, "plain");
    all.trainable = Trainable::Full;
    for e in refused(&all) {
        assert!(e.starts_with("targets full: ") && e.contains("gated delta-nets"), "{e}");
    }
}
