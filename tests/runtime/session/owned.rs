//! Sessions, trainers and runs own what they need: each goes to a thread, and works there when the caller's model is gone.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use ropewalk::control::Control;
use ropewalk::data::{Corpus, Dataset, DatasetParams, Separator, Sources, TextOptions};
use ropewalk::eval::SessionSource;
use ropewalk::model::Model;
use ropewalk::session::{GenerateParams, Generation, Session};
use ropewalk::train::optim::{OptimParams, Optimizer, Schedule};
use ropewalk::train::{Run, RunParams, TrainParams, Trainer};
use ropewalk::{DType, Token};

use crate::common::{load, open, params, random_model, some_tokens, N_THREADS};

/// A model of the test's own, so that dropping it drops the last handle that the caller has.
fn own_model() -> Model {
    load(&random_model("llama-tiny", DType::Q8_0, "owned"))
}

#[test]
fn all_of_them_can_be_sent() {
    fn sent<T: Send + 'static>() {}
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Model>();
    sent::<Session>();
    sent::<Trainer>();
    sent::<Run>();
    sent::<Generation>();
    sent::<SessionSource>();
    let source = SessionSource::new(&own_model(), params(64));
    assert!(source.identity().unwrap().contains("f16"));
}

/// What a server holds for a client: a session of a model whose handle is gone, and what it generates there.
struct Held {
    session: Session,
    running: Vec<Generation>,
}

impl Held {
    /// A session with a generation in each of its sequences.
    fn new(model: &Model, prompts: &[Vec<Token>]) -> Held {
        let how = GenerateParams::greedy(12).ignore_eos(true);
        let n_seq_max = prompts.len();
        let mut session = open(model, &params(256).n_seq_max(n_seq_max).n_threads(1));
        let start =
            |(seq, prompt): (u32, &Vec<Token>)| Generation::new(&mut session, seq, prompt, &how).unwrap();
        let running = (0..).zip(prompts).map(start).collect();
        Held { session, running }
    }

    /// The tokens of all generations, a token of each in turn.
    fn run(mut self) -> Vec<Vec<Token>> {
        let mut made = vec![Vec::new(); self.running.len()];
        loop {
            let mut more = false;
            for (generation, made) in self.running.iter_mut().zip(&mut made) {
                if let Some(piece) = generation.next(&mut self.session) {
                    made.extend(piece.unwrap().token);
                    more = true;
                }
            }
            if !more {
                return made;
            }
        }
    }
}

fn prompts(n: usize) -> Vec<Vec<Token>> {
    let tokens = some_tokens(64, 256);
    (0..n).map(|i| tokens[i..20 + 2 * i].to_vec()).collect()
}

#[test]
fn sessions_and_generations_are_held_side_by_side() {
    let prompts = prompts(4);
    let alone: Vec<Vec<Token>> = prompts
        .iter()
        .flat_map(|prompt| Held::new(&own_model(), std::slice::from_ref(prompt)).run())
        .collect();
    assert!(alone.iter().all(|made| made.len() == 12), "{alone:?}");
    let model = own_model();
    let held = [Held::new(&model, &prompts[..2]), Held::new(&model, &prompts[2..])];
    drop(model);
    let threads = held.map(|held| thread::spawn(move || held.run()));
    assert_eq!(threads.map(|thread| thread.join().unwrap()).concat(), alone);
}

#[test]
fn sixteen_sessions_share_a_pool_of_threads() {
    let prompts = prompts(16);
    let model = own_model();
    let alone: Vec<_> = prompts.iter().map(|p| Held::new(&model, std::slice::from_ref(p)).run()).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let made = pool.install(|| {
        use rayon::prelude::*;
        prompts.par_iter().map(|p| Held::new(&model, std::slice::from_ref(p)).run()).collect::<Vec<_>>()
    });
    assert_eq!(made, alone);
}

/// A generation of another session, or of a sequence that was changed since, ends with an error.
#[test]
fn a_generation_goes_with_its_sequence() {
    let prompts = prompts(2);
    let mut held = Held::new(&own_model(), &prompts);
    let mut other = Held::new(&own_model(), &prompts[..1]);
    let [first, second] = &mut held.running[..] else { panic!("two") };
    held.session.truncate(0, 5).unwrap();
    let refused = first.next(&mut held.session).unwrap().unwrap_err().to_string();
    let expected = format!("expected sequence 0 to hold {} tokens, found 5", prompts[0].len());
    assert!(refused.contains(&expected), "{refused}");
    assert!(first.next(&mut held.session).is_none());
    let refused = second.next(&mut other.session).unwrap().unwrap_err().to_string();
    assert!(refused.contains("expected sequence 1 to hold"), "{refused}");
    assert!(other.running[0].next(&mut other.session).unwrap().is_ok());
}

/// A run of three steps over texts in `dir`.
fn run_in(model: &Model, dir: &Path) -> Run {
    let texts = dir.join("texts.txt");
    std::fs::write(&texts, "A rope is walked, a yarn is spun. ".repeat(30)).unwrap();
    let how = TrainParams::new(32).rope(Some("pi:factor=2".parse().unwrap())).n_threads(N_THREADS);
    let trainer = Trainer::new(model, &how).unwrap();
    let optim = OptimParams::new(Schedule::constant(1e-2, 3));
    let optimizer = Optimizer::new(optim, trainer.params()).unwrap();
    let sources = Sources::find(&[texts], &TextOptions::default()).unwrap();
    let (cache, control) = (dir.join("texts.tokens"), Control::default());
    let corpus = Corpus::open(&cache, model.vocab(), &sources, &Separator::Auto, &control).unwrap();
    let data = Dataset::new(Arc::new(corpus), &DatasetParams::new(32)).unwrap();
    Run::new(trainer, optimizer, data, RunParams::default()).unwrap()
}

/// And so does its trainer.
#[test]
fn a_run_outlives_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    let work = |mut run: Run, path: &Path| -> (u64, Vec<u8>) {
        run.train(&Control::default()).unwrap();
        run.write_adapter(path).unwrap();
        let report = run.report();
        assert_eq!(report.steps, 3);
        (report.loss.unwrap().to_bits(), std::fs::read(path).unwrap())
    };
    let model = own_model();
    let expected = work(run_in(&model, dir.path()), &path);
    let run = run_in(&model, dir.path());
    drop(model);
    assert_eq!(thread::spawn(move || work(run, &path)).join().unwrap(), expected);
}
