//! Runs that go on from an adapter: its values, the place in the texts, the lineage, and what is refused.

use std::path::PathBuf;

use ropewalk::adapter::AdapterReader;
use ropewalk::control::Control;
use ropewalk::train::optim::{OptimParams, Optimizer, Schedule};
use ropewalk::train::{Init, Run, RunParams, SampleOrder, Sequence, TrainParams, Trainable, Trainer};
use ropewalk::Token;

use crate::common::{load, rewritten, says, some_tokens};
use crate::gradients::{lora, named_model, settings, targets, N_VOCAB};
use crate::run::World;

fn how(n_ctx: usize, spec: &str) -> TrainParams {
    settings(n_ctx, 20, spec)
}

/// A run of some steps from an adapter or from scratch, its report, and the adapter that it wrote.
fn stage(world: &World, from: Option<&PathBuf>, name: &str, how: &TrainParams, steps: u64) -> PathBuf {
    let mut trainer = Trainer::new(&world.model, how).unwrap();
    let init = from.map(|path| Init::adapter(path, &mut trainer).unwrap());
    let (data, order) = (world.data(how.n_ctx), SampleOrder::Text);
    let params = RunParams::default()
        .order(order)
        .data_offset(init.as_ref().map_or(0, |init| init.data_offset(&data, order).unwrap()))
        .ancestors(init.map_or(Vec::new(), |init| init.ancestors))
        .texts(Some("ropes".into()))
        .eval_every(Some(0));
    let optim = OptimParams::new(Schedule::constant(1e-2, steps));
    let optimizer = Optimizer::new(optim, trainer.params()).unwrap();
    let mut run = Run::new(trainer, optimizer, data, params).unwrap();
    run.train(&Control::default()).unwrap();
    let path = world.path(name);
    run.write_adapter(&path).unwrap();
    path
}

#[test]
fn a_run_goes_on_from_an_adapter_under_another_method_and_context() {
    let world = World::new("init");
    let first = stage(&world, None, "first.gguf", &how(16, "abf:base=20000"), 3);
    let mut trainer = Trainer::new(&world.model, &how(16, "abf:base=20000")).unwrap();
    let tokens = some_tokens(17, N_VOCAB);
    let fresh = trainer.loss(Sequence::new(&tokens)).unwrap();
    let init = Init::adapter(&first, &mut trainer).unwrap();
    assert_ne!(trainer.loss(Sequence::new(&tokens)).unwrap(), fresh);
    // What it writes without a step has the same tensors.
    let same = world.path("same.gguf");
    ropewalk::train::write_adapter(&same, &trainer, None, Default::default()).unwrap();
    let values = |path: &PathBuf| {
        let reader = AdapterReader::open(path).unwrap();
        let file = reader.file();
        let all = file.tensors().iter().map(|t| (t.name.clone(), file.data(t).to_vec().unwrap()));
        all.collect::<Vec<_>>()
    };
    assert!(values(&same) == values(&first));
    assert_eq!((init.ancestors.len(), init.data_end.unwrap().token), (1, 48));

    let second = stage(&world, Some(&first), "second.gguf", &how(48, "abf:base=80000"), 2);
    let third = stage(&world, Some(&second), "third.gguf", &how(48, "harpe"), 1);
    let meta = AdapterReader::open(&third).unwrap().meta().clone();
    let lineage: Vec<_> = meta.ancestors.iter().map(|a| (a.n_ctx, a.steps, a.tokens)).collect();
    assert_eq!(lineage, [(Some(16), Some(3), Some(48)), (Some(48), Some(2), Some(96))]);
    assert!(meta.ancestors[0].rope.as_ref().unwrap().starts_with("abf:base=20000"), "{meta:?}");
    assert!(meta.ancestors.iter().all(|a| a.sha256.len() == 64 && a.data.as_deref() == Some("ropes")));
    assert_eq!((meta.steps, meta.tokens, meta.data_end.unwrap().token), (Some(1), Some(48), 48 + 96 + 48));
}

/// Stages at several contexts and one stage at another see the same tokens in the same order: the text order is that
/// of the joined documents, whatever the context, as long as the same documents are held out.
#[test]
fn text_order_is_the_same_at_every_context() {
    let world = World::new("init-order");
    let stream = |parts: &[(usize, usize)]| {
        let (mut at, mut tokens) = (0, Vec::<Token>::new());
        for &(n_ctx, n) in parts {
            let data = world.data_of(n_ctx, ropewalk::data::HeldOut::Tokens(200));
            for _ in 0..n {
                let sample = data.at(at).unwrap();
                assert_eq!(sample.tokens.len(), n_ctx + 1);
                tokens.extend(&sample.tokens[..n_ctx]);
                at += n_ctx as u64;
            }
        }
        tokens
    };
    let total = {
        let data = world.data_of(8, ropewalk::data::HeldOut::Tokens(200));
        let of = |d: &u32| data.corpus().range(*d as usize);
        data.train_documents().iter().map(of).map(|r| (r.end - r.start) as usize).sum::<usize>()
    };
    let stages = stream(&[(8, 5), (16, 7), (64, 3)]);
    assert_eq!(stages, stream(&[(43, 8)])[..stages.len()]);
    // A number of sequences at the largest context is that many tokens at the others: the same documents.
    let documents = |n_ctx, held_out| world.data_of(n_ctx, held_out).train_documents().to_vec();
    let (largest, tokens) =
        (ropewalk::data::HeldOut::Samples(2), ropewalk::data::HeldOut::Tokens(2 * 64 + 1));
    assert_eq!(documents(64, largest), documents(8, tokens));
    // Beyond the end the texts begin again.
    let long = stream(&[(64, 2 * total / 64 + 1)]);
    assert_eq!(long[total..2 * total], long[..total]);
    // Each document is once in an epoch, in the order that the data set names.
    let data = world.data_of(8, ropewalk::data::HeldOut::Tokens(200));
    let mut joined = Vec::new();
    data.train_documents()
        .iter()
        .for_each(|&d| data.corpus().read(data.corpus().range(d as usize), &mut joined));
    assert_eq!(joined, long[..total]);
}

#[test]
fn data_goes_on_only_where_the_place_is_the_same() {
    let world = World::new("init-data");
    let first = stage(&world, None, "first.gguf", &how(16, "plain"), 3);
    let mut trainer = Trainer::new(&world.model, &how(32, "plain")).unwrap();
    let mut init = Init::adapter(&first, &mut trainer).unwrap();
    let held = |n_ctx| world.data_of(n_ctx, ropewalk::data::HeldOut::Samples(2));
    assert_eq!(init.data_offset(&held(16), SampleOrder::Text).unwrap(), 48);
    assert_eq!(init.data_offset(&held(32), SampleOrder::Text).unwrap(), 48, "the same document");
    let none = world.data_of(16, ropewalk::data::HeldOut::None);
    let e = init.data_offset(&none, SampleOrder::Text).unwrap_err().to_string();
    assert!(
        e.starts_with("init: the earlier run's data ended at a place that this run does not share"),
        "{e}"
    );
    let e = init.data_offset(&held(16), SampleOrder::Shuffled).unwrap_err().to_string();
    assert!(e.contains("at which samples are shuffled (the order of texts"), "{e}");
    init.data_end = None;
    let e = init.data_offset(&held(16), SampleOrder::Text).unwrap_err().to_string();
    assert!(
        e.contains("does not record where its data ended: pass the token to start at (a data offset"),
        "{e}"
    );
    // Shuffled samples are left out whole.
    let (trainer, optimizer, data) = world.parts();
    let params = RunParams::default().data_offset(33);
    let e = Run::new(trainer, optimizer, data, params).unwrap_err().to_string();
    assert!(e.starts_with("data offset: expected a multiple of the context, 32 tokens"), "{e}");
    let params = RunParams::default().data_offset(u64::MAX);
    let e = world.new_run(params).unwrap_err().to_string();
    assert!(e.starts_with("data offset: expected at most"), "{e}");
}

#[test]
fn adapters_that_do_not_fit_are_refused_and_both_are_named() {
    let world = World::new("init-refused");
    let first = stage(&world, None, "first.gguf", &how(16, "plain"), 1);
    let other = named_model("init-other-seed");
    let error = |change: &dyn Fn(&mut TrainParams)| {
        let mut how = how(16, "plain");
        change(&mut how);
        let mut trainer = Trainer::new(&world.model, &how).unwrap();
        let before = trainer.params().list().to_vec();
        let e = Init::adapter(&first, &mut trainer).unwrap_err().to_string();
        assert!(trainer.params().list() == before && e.lines().count() == 1, "{e}");
        e
    };
    let e = error(&|s| lora(s).rank = 4);
    assert!(e.contains("expected rank 4 on") && e.contains("found rank 3 on q, k, v, o"), "{e}");
    let e = error(&|s| lora(s).targets = targets(&["q", "v"]));
    assert!(e.contains("expected rank 3 on q, v (2 pairs)") && e.contains("found rank 3 on q, k"), "{e}");
    let e = error(&|s| lora(s).norms = true);
    assert!(e.contains("3 whole tensors as in this run, found rank 3"), "{e}");
    let e = error(&|s| lora(s).alpha = 6.0);
    assert!(e.contains("adapter.lora.alpha: expected alpha 6") && e.contains("found alpha 5"), "{e}");
    let e = error(&|s| s.trainable = Trainable::Full);
    assert!(e.starts_with("init: training of all parameters starts from the model itself"), "{e}");
    // A change of one weight makes another model.
    let changed = world.path("changed.gguf");
    let t = other.file().tensor("output_norm.weight").unwrap();
    let twos: Vec<u8> = (0..t.n_elements()).flat_map(|_| 2f32.to_le_bytes()).collect();
    rewritten(other.file().path(), &changed, &[&t.name], |out| {
        out.tensor_bytes(&t.name, t.dtype, &t.shape, twos).unwrap();
    });
    let changed = load(&changed);
    let mut trainer = Trainer::new(&changed, &how(16, "plain")).unwrap();
    says(Init::adapter(&first, &mut trainer), &["ropewalk.lora.base: expected", "trained on another model"]);
    says(Init::adapter(other.file().path(), &mut trainer), &["general.type"]);
}
