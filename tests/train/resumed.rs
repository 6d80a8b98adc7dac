//! Runs that are stopped and go on end with the bytes of one that never stopped: under every data method, packing,
//! upsampling and loss, with made records of every family, in either order of samples, under every attention and reach.

use std::sync::Arc;

use crate::common::says;
use ropewalk::control::Control;
use ropewalk::data::synthetic::Synthetic;
use ropewalk::data::{
    parse_method, Corpus, Dataset, DatasetParams, HeldOut, Mixture, Packing, Separator, Sources, TextOptions,
    METHODS,
};
use ropewalk::rope::{Axis, Spec};
use ropewalk::train::optim::{OptimParams, Optimizer, Schedule};
use ropewalk::train::{Init, LongCe, Run, RunParams, SampleOrder, TrainAttention, Trainable, Trainer};

use crate::gradients::{lora, settings};
use crate::run::{adapter, knotted, stop_at_the_third, World};

const N_CTX: usize = 32;
const WIDE: usize = 320;
const STEPS: u64 = 5;

/// A run of [`STEPS`] steps, of which each is changed in some way.
#[derive(Clone)]
pub(crate) struct Setup {
    method: &'static str,
    packing: Packing,
    upsample: &'static str,
    mask_ends: bool,
    /// Part of the samples that are made, and whether their answers alone are trained on.
    synthetic: Option<(f64, bool)>,
    longce: Option<LongCe>,
    doc_mask: bool,
    order: SampleOrder,
    rope: &'static str,
    attention: TrainAttention,
    /// All parameters.
    full: bool,
    /// Of pairs.
    dropout: f32,
    n_ctx: usize,
    batch: usize,
}

pub(crate) const PLAIN: Setup = Setup {
    method: "none",
    packing: Packing::Pack,
    upsample: "none",
    mask_ends: false,
    synthetic: None,
    longce: None,
    doc_mask: false,
    order: SampleOrder::Shuffled,
    rope: "pi:factor=2",
    attention: TrainAttention::Full,
    full: false,
    dropout: 0.1,
    n_ctx: N_CTX,
    batch: 2,
};

/// Data methods, and all else that makes samples what they are.
fn data_setups() -> Vec<Setup> {
    let longce = Some(LongCe::default().short(8).stride(8).gamma(5.0));
    let of = |method| Setup { method, ..PLAIN };
    vec![
        PLAIN,
        of("utk:chunks=0/0.5/0.5,share=1"),
        of("utk:chunks=0/0.5/0.5,share=1,order=false,backtrace=false"),
        of("utk-80"),
        of("utk-30"),
        // In samples of two documents and more.
        Setup { n_ctx: WIDE, ..PLAIN },
        Setup { n_ctx: WIDE, ..of("cip") },
        Setup { n_ctx: WIDE, doc_mask: true, mask_ends: true, ..PLAIN },
        of("pose:target=64,text=2"),
        of("pose:factor=2,join=true,text=2"),
        Setup { order: SampleOrder::Text, ..of("pose:target=64,join=true,text=2") },
        Setup { order: SampleOrder::Text, ..of("utk:chunks=0/0.5/0.5,share=1") },
        Setup { packing: Packing::Truncate, ..PLAIN },
        Setup { packing: Packing::Long, ..PLAIN },
        Setup { longce, ..PLAIN },
        Setup { longce: Some(LongCe::default()), ..PLAIN },
        Setup { longce, ..of("utk:chunks=0/0.5/0.5,share=1") },
        Setup { order: SampleOrder::Text, ..PLAIN },
        Setup { upsample: "fu:length=600,keep=0.5", ..PLAIN },
        Setup { upsample: "global:length=600,keep=0.5", ..PLAIN },
        Setup { upsample: "utk:length=600,weight=3", ..PLAIN },
        Setup { dropout: 0.0, ..PLAIN },
    ]
}

/// Attention and methods of which each has a separate state or separate inputs, and training of all parameters.
fn attention_setups() -> Vec<Setup> {
    let of = |rope| Setup { rope, ..PLAIN };
    vec![
        Setup { attention: TrainAttention::Shifted { group: None }, ..PLAIN },
        Setup { attention: "landmark:block=8".parse().unwrap(), doc_mask: true, ..PLAIN },
        of("clex:max-factor=4,original=16"),
        of("self-extend:window=9,group=3"),
        of("lm-infinite:window=12,global=3"),
        of("dca:chunk=12,local=3"),
        of("streaming:sinks=3,window=10"),
        of("string:shifted-offset=14,local-value=4"),
        Setup { doc_mask: true, ..of("rerope:window=9,leak=3") },
        // Sequences that 4 does not divide.
        Setup { attention: TrainAttention::Shifted { group: None }, n_ctx: 30, ..PLAIN },
        Setup {
            attention: TrainAttention::Shifted { group: None },
            packing: Packing::Truncate,
            n_ctx: 39,
            ..PLAIN
        },
        Setup { full: true, ..PLAIN },
    ]
}

fn data(world: &World, setup: &Setup) -> Dataset {
    try_data(world, setup).unwrap()
}

/// With an error if made records do not fit.
fn try_data(world: &World, setup: &Setup) -> ropewalk::data::Result<Dataset> {
    let sources = Sources::find(&[world.path("texts")], &TextOptions::default()).unwrap();
    let vocab = world.model.vocab();
    let corpus =
        Corpus::open(world.path("texts.tokens"), vocab, &sources, &Separator::Auto, &Control::default());
    let mixture = Mixture::default().upsample(setup.upsample.parse().unwrap());
    let params = DatasetParams::new(setup.n_ctx)
        .held_out(if setup.synthetic.is_some() { HeldOut::None } else { HeldOut::Samples(2) })
        .packing(setup.packing)
        .mask_ends(setup.mask_ends)
        .mixture(mixture)
        .seed(4);
    let mut data = Dataset::new(Arc::new(corpus.unwrap()), &params).unwrap();
    if setup.method != "none" {
        let method = parse_method(&knotted(setup.method), setup.n_ctx, Arc::new(vocab.clone())).unwrap();
        data = data.with_transform(method).unwrap();
    }
    if let Some((share, answers_only)) = setup.synthetic {
        let made = Synthetic::new(share, answers_only, Arc::new(vocab.clone())).unwrap();
        data = data.with_synthetic(made)?;
    }
    Ok(data)
}

fn run(world: &World, setup: &Setup, name: &str, resume: bool) -> ropewalk::model::Result<Run> {
    let data = data(world, setup);
    let mut how = settings(setup.n_ctx, 20, setup.rope);
    lora(&mut how).dropout = setup.dropout;
    if setup.full {
        how.trainable = Trainable::Full;
    }
    how.attention = setup.attention;
    how.n_positions = data.transform().and_then(|t| t.n_positions());
    let trainer = Trainer::new(&world.model, &how)?;
    let optim = OptimParams::new(Schedule::constant(1e-2, STEPS)).ema(0.5);
    let optimizer = Optimizer::new(optim, trainer.params())?;
    let params = RunParams::default()
        .batch(setup.batch)
        .order(setup.order)
        .doc_mask(setup.doc_mask)
        .longce(setup.longce)
        .eval_every(Some(0))
        .checkpoints(Some(world.path(name)))
        .save_every(2);
    let new = if resume { Run::resume } else { Run::new };
    new(trainer, optimizer, data, params)
}

/// The bytes of the adapter of a run that was stopped after its third step, which are those of one that was not.
pub(crate) fn resumed(world: &World, setup: &Setup, about: &str) -> Vec<u8> {
    let folder = |name: &str| format!("{name}-{about}");
    let mut whole = run(world, setup, &folder("whole"), false).unwrap_or_else(|e| panic!("{about}: {e}"));
    whole.train(&Control::default()).unwrap();
    stop_at_the_third(run(world, setup, &folder("cut"), false).unwrap(), about);
    let mut resumed = run(world, setup, &folder("cut"), true).unwrap();
    assert_eq!(resumed.step(), 3, "{about}");
    resumed.train(&Control::default()).unwrap();
    assert_eq!(resumed.history().losses, whole.history().losses[3..], "{about}");
    let bytes = adapter(&resumed, &world.path(&format!("cut-{about}.gguf")));
    assert!(bytes == adapter(&whole, &world.path(&format!("whole-{about}.gguf"))), "{about}");
    bytes
}

#[test]
fn runs_go_on_to_the_same_bits_under_each_data_method() {
    let world = World::small("methods");
    let setups = data_setups();
    for method in METHODS {
        let named = |s: &Setup| s.method.split(':').next() == Some(method.name);
        assert!(setups.iter().any(named), "{}: no run here has it", method.name);
    }
    let mut adapters: Vec<(String, Vec<u8>)> = Vec::new();
    for (i, setup) in setups.iter().enumerate() {
        let about = format!("{i}, {} {} {}", setup.method, setup.packing, setup.upsample);
        let bytes = resumed(&world, setup, &i.to_string());
        // Fu's rule draws the same documents with shares that nobody gave as without.
        let same = adapters.iter().find(|(_, other)| *other == bytes);
        let may_be = setup.upsample.starts_with("global");
        assert!(may_be || same.is_none(), "{about}: as {}", same.unwrap().0);
        adapters.push((about, bytes));
    }
    // Under another method it is another run.
    let other = Setup { method: "cip", ..PLAIN };
    let e = run(&world, &other, "cut-1", true).err().unwrap().to_string();
    assert!(e.contains("data-method: the run was started with utk") && e.ends_with("this is cip"), "{e}");
}

#[test]
fn runs_go_on_to_the_same_bits_under_each_attention() {
    let world = World::small("attentions");
    let setups = attention_setups();
    let specs: Vec<Spec> = setups.iter().map(|s| s.rope.parse().unwrap()).collect();
    for method in ropewalk::rope::METHODS.iter().filter(|m| m.axis == Axis::Reach) {
        assert!(specs.iter().any(|spec| spec.part(method.name).is_some()), "{}", method.name);
    }
    let mut adapters = vec![resumed(&world, &PLAIN, "plain")];
    for (i, setup) in setups.iter().enumerate() {
        let bytes = resumed(&world, setup, &i.to_string());
        assert!(!adapters.contains(&bytes), "{} {}: as another", setup.rope, setup.attention);
        adapters.push(bytes);
    }
    let other = Setup { attention: "landmark:block=9".parse().unwrap(), doc_mask: true, ..PLAIN };
    says(run(&world, &other, "cut-1", true), &["attention: the run was started with landmark:block=8"]);
    let e = run(&world, &Setup { rope: "self-extend:window=9,group=9", ..PLAIN }, "cut-3", true);
    says(e, &["rope: the run was started with self-extend:window=9,group=3"]);
}

/// The question of each family of records, in the order of their list.
const QUESTIONS: [&str; 5] = [
    "and how much is it?",
    "Who is ",
    "Who has, in the end, the ",
    "Which object has all of ",
    "Entities and their",
];

#[test]
fn runs_with_made_records_go_on_to_the_same_bits() {
    let world = World::small("made");
    // Long enough for a record of each family, in a vocabulary of bytes.
    let made = |answers_only| Setup { n_ctx: 900, batch: 4, synthetic: Some((0.9, answers_only)), ..PLAIN };
    let (all, answers) = (made(false), made(true));
    // Each family is among those that are trained on, before and after the stop.
    let data = data(&world, &all);
    let text = |n: u64| world.model.vocab().detokenize(&data.nth(n).unwrap().tokens, false).unwrap();
    let texts: Vec<String> = (0..STEPS * all.batch as u64).map(text).collect();
    for (i, question) in QUESTIONS.iter().enumerate() {
        // The last family's facts begin as the first one's do.
        let is = |t: &&String| t.contains(question) && (i != 4 || !t.contains(QUESTIONS[0]));
        let found = texts.iter().filter(is).count();
        assert!(found > 0, "{question}: in none of {} records", texts.len());
    }
    resumed(&world, &all, "all");
    resumed(&world, &answers, "answers");
    // Another share is another run.
    let other = Setup { synthetic: Some((0.8, false)), ..all };
    let e = run(&world, &other, "cut-all", true).err().unwrap().to_string();
    assert!(e.contains("synthetic: the run was started with 0.9, answers only: false"), "{e}");
    // Nor does it go on at the place in the samples where an adapter of the first one ended.
    let mut trainer = Trainer::new(&world.model, &settings(all.n_ctx, 20, all.rope)).unwrap();
    let init = Init::adapter(world.path("whole-all.gguf"), &mut trainer).unwrap();
    let place = |setup: &Setup| init.data_offset(&self::data(&world, setup), all.order);
    assert_eq!(place(&all).unwrap(), STEPS * all.batch as u64 * all.n_ctx as u64);
    says(place(&other), &["the earlier run's data ended at a place that this run does not share"]);
}

/// In a context that is accepted, records that do not fit are drawn again.
#[test]
fn the_shortest_context_has_room_for_all_records() {
    let world = World::small("fits");
    let of = |n_ctx| Setup { n_ctx, synthetic: Some((0.9, false)), ..PLAIN };
    let contexts: Vec<usize> = (64..900).collect();
    let least = contexts.partition_point(|&n_ctx| try_data(&world, &of(n_ctx)).is_err());
    let data = data(&world, &of(contexts[least]));
    let n_made = (0..400).filter(|&n| data.nth(n).unwrap().tokens.len() > 1).count();
    assert_eq!(n_made, 400);
}
