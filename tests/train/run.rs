//! Training runs through the library: what they report, how they stop and go on, what they refuse.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use convert::random::Shape;
use ropewalk::control::{Control, Progress, Stop};
use ropewalk::data::{Corpus, Dataset, DatasetParams, HeldOut, Separator, Sources, TextOptions};
use ropewalk::model::{Error, Model};
use ropewalk::train::optim::{Decay, OptimParams, Optimizer, Schedule};
use ropewalk::train::{Run, RunParams, Trainable, Trainer};
use ropewalk::DType;

use crate::common::{made, says};
use crate::gradients::{lora, named_model, settings, N_VOCAB};

const N_CTX: usize = 32;
pub(crate) const STEPS: u64 = 8;

pub(crate) struct World {
    dir: tempfile::TempDir,
    pub(crate) model: Model,
}

impl World {
    pub(crate) fn new(name: &str) -> World {
        World::of(named_model(name))
    }

    /// With a model of a tenth of the size, for many runs or long ones.
    pub(crate) fn small(name: &str) -> World {
        let tiny = Shape::named("llama-tiny").unwrap();
        let tiny = Shape { n_layer: 1, n_vocab: N_VOCAB, n_ctx_train: 64, ..tiny };
        let shape = Shape { n_embd: 64, n_embd_head: 32, n_ff: 96, ..tiny };
        World::of(made(&format!("train-{name}.gguf"), &shape, DType::F32, 77))
    }

    pub(crate) fn of(model: Model) -> World {
        let world = World { dir: tempfile::tempdir().unwrap(), model };
        std::fs::create_dir(world.path("texts")).unwrap();
        for i in 0..5 {
            let words = (0..120).map(|n| ["sea", "rope", "walk", "hemp"][(n * (i + 2) + n / 7) % 4]);
            let text = format!("{i}. {}", words.collect::<Vec<_>>().join(" "));
            std::fs::write(world.path("texts").join(format!("{i}.txt")), text).unwrap();
        }
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn data(&self, n_ctx: usize) -> Dataset {
        self.data_of(n_ctx, HeldOut::Samples(2))
    }

    pub(crate) fn data_of(&self, n_ctx: usize, held_out: HeldOut) -> Dataset {
        let sources = Sources::find(&[self.path("texts")], &TextOptions::default()).unwrap();
        let (vocab, cache) = (self.model.vocab(), self.path("texts.tokens"));
        let corpus = Corpus::open(&cache, vocab, &sources, &Separator::Auto, &Control::default()).unwrap();
        Dataset::new(Arc::new(corpus), &DatasetParams::new(n_ctx).held_out(held_out)).unwrap()
    }

    pub(crate) fn parts(&self) -> (Trainer, Optimizer, Dataset) {
        let mut how = settings(N_CTX, 20, "pi:factor=2");
        lora(&mut how).dropout = 0.1;
        let trainer = Trainer::new(&self.model, &how).unwrap();
        let schedule = Schedule::constant(1e-2, STEPS).warmup(2).decay(Decay::Cosine);
        let optim = OptimParams::new(schedule).ema(0.5);
        let optimizer = Optimizer::new(optim, trainer.params()).unwrap();
        (trainer, optimizer, self.data(N_CTX))
    }

    pub(crate) fn params(&self, name: &str) -> RunParams {
        RunParams::default()
            .batch(2)
            .eval_every(Some(4))
            .checkpoints(Some(self.path(name).join("checkpoints")))
            .save_every(3)
            .log(Some(self.path(name).join("log.jsonl").into()))
    }

    pub(crate) fn new_run(&self, params: RunParams) -> ropewalk::model::Result<Run> {
        let (trainer, optimizer, data) = self.parts();
        Run::new(trainer, optimizer, data, params)
    }
}

/// Of all parameters, the model.
pub(crate) fn adapter(run: &Run, path: &Path) -> Vec<u8> {
    let written = match run.trainer().settings().trainable {
        Trainable::Full => run.write_model(path, None),
        Trainable::Lora(_) => run.write_adapter(path),
    };
    let n_bytes = written.unwrap();
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes.len() as u64, n_bytes);
    bytes
}

/// Trains until the third step is shown, and stops there.
#[track_caller]
pub(crate) fn stop_at_the_third(mut run: Run, about: &str) {
    let stop = Stop::default();
    let third = |p: &Progress<'_>| {
        if p.done == 3 {
            stop.request();
        }
    };
    let ended = run.train(&Control::default().with_stop(&stop).with_progress(&third));
    assert!(matches!(ended, Err(Error::Interrupted)), "{about}: {ended:?}");
    assert_eq!(run.step(), 3, "{about}");
}

#[test]
fn a_stopped_run_goes_on_as_if_it_had_not_stopped() {
    let world = World::new("run");
    std::fs::create_dir(world.path("whole")).unwrap();
    std::fs::create_dir(world.path("cut")).unwrap();

    let (seen, notes) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let progress = |p: &Progress<'_>| seen.lock().unwrap().push((p.what.to_string(), p.done, p.total));
    let note = |text: std::fmt::Arguments<'_>| notes.lock().unwrap().push(text.to_string());
    let mut whole = world.new_run(world.params("whole")).unwrap();
    whole.train(&Control::default().with_progress(&progress).with_notes(&note)).unwrap();
    let seen = seen.into_inner().unwrap();
    assert_eq!(
        seen.iter().map(|s| (s.1, s.2)).collect::<Vec<_>>(),
        (1..=8).map(|i| (i, 8)).collect::<Vec<_>>()
    );
    assert!(seen[0].0.starts_with("loss ") && seen[0].0.contains(", val ppl "), "{seen:?}");
    let notes = notes.into_inner().unwrap();
    assert_eq!(notes.len(), 3);
    assert!(
        notes[1].starts_with("step 4: loss ") && notes[1].ends_with("on 2 held-out sequences"),
        "{notes:?}"
    );
    let history = whole.history();
    assert_eq!(history.validations.iter().map(|v| v.0).collect::<Vec<_>>(), [0, 4, 8]);
    assert_eq!((history.losses.len(), history.rates.len()), (8, 8));
    let report = whole.report();
    assert_eq!((report.steps, report.tokens), (STEPS, STEPS * 2 * N_CTX as u64));
    assert!(report.val_after.unwrap() < report.val_before.unwrap(), "{report:?}");

    stop_at_the_third(world.new_run(world.params("cut")).unwrap(), "cut");
    says(world.new_run(world.params("cut")), &["step-00000003", "an earlier run"]);

    let (trainer, optimizer, data) = world.parts();
    let mut resumed = Run::resume(trainer, optimizer, data, world.params("cut")).unwrap();
    assert_eq!((resumed.step(), resumed.history().losses.len()), (3, 3));
    resumed.train(&Control::default()).unwrap();
    assert_eq!(adapter(&resumed, &world.path("cut.gguf")), adapter(&whole, &world.path("whole.gguf")));
    assert_eq!(resumed.history().losses, whole.history().losses);
    assert_eq!(resumed.history().validations, whole.history().validations);
}

#[test]
fn without_folders_nothing_but_the_adapter_is_written() {
    let world = World::new("run-bare");
    let mut run = world.new_run(RunParams::default().eval_every(Some(0))).unwrap();
    run.train(&Control::default()).unwrap();
    assert_eq!(run.history().validations.len(), 2, "before and after");
    run.write_adapter(world.path("a.gguf")).unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(world.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.gguf", "texts", "texts.tokens"]);
}

#[test]
fn what_cannot_be_a_run_is_said() {
    let world = World::new("run-refused");
    let e = world.new_run(RunParams::default().batch(0)).unwrap_err().to_string();
    assert_eq!(e, "batch: expected at least 1, found 0");
    let (trainer, optimizer, _) = world.parts();
    let e = Run::new(trainer, optimizer, world.data(16), RunParams::default()).unwrap_err().to_string();
    assert_eq!(e, "samples: expected the trainer's context of 32 tokens, found 16");
    let (trainer, optimizer, data) = world.parts();
    let e = Run::resume(trainer, optimizer, data, world.params("none")).unwrap_err().to_string();
    assert!(e.ends_with("checkpoints: no checkpoint found"), "{e}");
    let nowhere = RunParams::default().log(Some(world.path("no/such/log").into()));
    assert!(world.new_run(nowhere).unwrap_err().to_string().contains("log"));
}

/// A data method with ids for its knots and marks, where it has such: bytes that the texts do not have.
pub(crate) fn knotted(method: &str) -> String {
    let ids = "knots=#1/#2/#3/#4,marks=#5/#6/#7/#8/#9";
    let between = if method.contains(':') { ',' } else { ':' };
    if method.starts_with("utk") {
        format!("{method}{between}{ids}")
    } else {
        method.to_owned()
    }
}
