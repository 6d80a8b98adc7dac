//! Sessions, trainers and runs own what they need: each goes to a thread, and works there when the caller's model is gone.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use ropewalk::control::Control;
use ropewalk::data::{Corpus, Dataset, DatasetParams, Separator, Sources, TextOptions};
use ropewalk::eval::SessionSource;
use ropewalk::model::Model;
use ropewalk::session::{GenerateParams, Generation, Session};
use ropewalk::train::optim::{AdamW, OptimParams, Optimizer, Schedule};
use ropewalk::train::{Run, RunParams, Sequence, TrainParams, Trainer};
use ropewalk::{DType, Token};

use crate::common::{all_logits, load, open, params, random_model, score, some_tokens, N_THREADS};

/// A model of the test's own, so that dropping it drops the last handle that the caller has.
fn own_model() -> Model {
    load(&random_model("llama-tiny", DType::Q8_0, "owned"))
}

/// Runs `work` with what `make` makes of a model, in a thread of its own, behind the end of the model's handle.
fn moved<T: Send + 'static, R: Send + 'static>(make: impl Fn(&Model) -> T, work: fn(T) -> R) -> R {
    let model = own_model();
    let made = make(&model);
    drop(model);
    thread::spawn(move || work(made)).join().unwrap()
}

fn here<T, R>(make: impl Fn(&Model) -> T, work: fn(T) -> R) -> R {
    let model = own_model();
    work(make(&model))
}

#[test]
fn all_of_them_can_be_sent() {
    fn sent<T: Send + 'static>() {}
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Model>();
    sent::<Session>();
    sent::<Trainer>();
    sent::<Run>();
    fn borrows_the_session_alone(session: &mut Session) -> Generation<'_> {
        session.generate(&[1], &GenerateParams::greedy(1)).unwrap()
    }
    fn without_the_model(model: Model) -> SessionSource<'static> {
        SessionSource::new(&model, params(64))
    }
    let source = without_the_model(own_model());
    assert!(source.identity().unwrap().contains("f16"));
    let mut session = open(&own_model(), &params(64));
    let pieces = borrows_the_session_alone(&mut session);
    assert_eq!(pieces.filter(|piece| piece.as_ref().unwrap().token.is_some()).count(), 1);
}

#[test]
fn a_session_outlives_its_model() {
    let make = |model: &Model| open(model, &params(256));
    let work = |mut session: Session| -> (Vec<u32>, Vec<Token>) {
        let tokens = some_tokens(40, session.model().hparams().n_vocab);
        let bits = score(&mut session, &tokens).iter().map(|x| x.to_bits()).collect();
        let how = GenerateParams { ignore_eos: true, ..GenerateParams::greedy(12) };
        let made =
            session.generate(&tokens, &how).unwrap().filter_map(|piece| piece.unwrap().token).collect();
        (bits, made)
    };
    let (bits, made) = here(make, work);
    assert_eq!(made.len(), 12);
    assert_eq!(moved(make, work), (bits, made));
}

/// Clones share one set of weights, also from several threads at once.
#[test]
fn clones_are_one_model() {
    let model = own_model();
    let tokens = some_tokens(30, model.hparams().n_vocab);
    let expected = all_logits(&model, &params(64), &tokens);
    let spawn = |_| {
        let (model, tokens) = (model.clone(), tokens.clone());
        thread::spawn(move || all_logits(&model, &params(64), &tokens))
    };
    let threads: Vec<_> = (0..3).map(spawn).collect();
    drop(model);
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
}

fn train_params() -> TrainParams {
    let mut how = TrainParams::new(32);
    how.rope = Some("pi:factor=2".parse().unwrap());
    how.n_threads = N_THREADS;
    how
}

#[test]
fn a_trainer_outlives_its_model() {
    let make = |model: &Model| Trainer::new(model, &train_params()).unwrap();
    let work = |mut trainer: Trainer| -> Vec<u64> {
        let tokens = some_tokens(24, 256);
        let sequence = || Sequence { tokens: &tokens, weights: &[], segment_starts: &[], positions: &[] };
        let mut losses = trainer.losses(sequence()).unwrap();
        losses.push(trainer.accumulate(sequence(), 1.0).unwrap());
        losses.iter().map(|x| x.to_bits()).collect()
    };
    let expected = here(make, work);
    assert_eq!(expected.len(), 24);
    assert_eq!(moved(make, work), expected);
}

/// A run of three steps over texts in `dir`.
fn run_in(model: &Model, dir: &Path) -> Run {
    let texts = dir.join("texts.txt");
    std::fs::write(&texts, "A rope is walked, a yarn is spun. ".repeat(30)).unwrap();
    let trainer = Trainer::new(model, &train_params()).unwrap();
    let optim =
        OptimParams { adamw: AdamW::default(), schedule: Schedule::constant(1e-2, 3), clip: 1.0, ema: 0.0 };
    let optimizer = Optimizer::new(optim, trainer.params()).unwrap();
    let sources = Sources::find(&[texts], &TextOptions::default()).unwrap();
    let (cache, control) = (dir.join("texts.tokens"), Control::default());
    let corpus = Corpus::open(&cache, model.vocab(), &sources, &Separator::Auto, &control).unwrap();
    let data = Dataset::new(Arc::new(corpus), &DatasetParams::new(32)).unwrap();
    Run::new(trainer, optimizer, data, RunParams::default()).unwrap()
}

#[test]
fn a_run_outlives_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let make = |model: &Model| (run_in(model, dir.path()), dir.path().join("adapter.gguf"));
    let work = |(mut run, path): (Run, std::path::PathBuf)| -> (u64, Vec<u8>) {
        run.train(&Control::default()).unwrap();
        run.write_adapter(&path).unwrap();
        let report = run.report();
        assert_eq!(report.steps, 3);
        (report.loss.unwrap().to_bits(), std::fs::read(&path).unwrap())
    };
    let expected = here(make, work);
    assert_eq!(moved(make, work), expected);
}
