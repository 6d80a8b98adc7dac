//! Sessions as evaluations see them: whatever windows come one after another, each is measured as in a fresh
//! context.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use convert::random::{write, Shape};
use ropewalk::control::{Control, Progress, Stop};
use ropewalk::eval::perplexity::{run, Params};
use ropewalk::eval::protocol::protocol;
use ropewalk::eval::{LmSource, SessionSource};
use ropewalk::model::{Model, ModelParams};
use ropewalk::session::{Greedy, Session, SessionParams};
use ropewalk::{DType, Token};

use crate::fakes::letters;

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("eval-session.gguf");
        write(&Shape::named("llama-tiny").unwrap(), DType::F32, 7, &path).unwrap();
        Model::load(&path, &ModelParams::cpu()).unwrap()
    })
}

fn params(rope: &str) -> SessionParams {
    SessionParams::new(0)
        .rope(Some(rope.parse().unwrap()))
        .kv_type(DType::F32)
        .n_threads(1)
        .n_batch(64)
        .n_ubatch(32)
}

/// Tokens of a text, a window of them after BOS (token 1).
fn window(start: usize, n: usize) -> Vec<Token> {
    let text = (start..start + n).map(|i| ((i * i + i / 3) % 90) as Token + 40);
    std::iter::once(1).chain(text).collect()
}

#[test]
fn files_with_other_hyperparameters_are_other_models() {
    let identity = |theta: f32| {
        let name = format!("eval-identity-{theta}.gguf");
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let shape = Shape { freq_base: theta, ..Shape::named("llama-tiny").unwrap() };
        write(&shape, DType::F32, 7, &path).unwrap();
        let model = Model::load(&path, &ModelParams::cpu()).unwrap();
        let identity = SessionSource::new(&model, params("plain")).identity().unwrap();
        std::fs::remove_file(path).unwrap();
        identity
    };
    assert_ne!(identity(1e4), identity(5e6));
    assert_eq!(identity(1e4), identity(1e4));
}

#[test]
fn files_with_another_tokenizer_are_other_models() {
    let identity = |name: &str, key: &str, value: gguf::Value| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        // A model's own file has no vocabulary any more.
        let file = gguf::File::open(model().file().path()).unwrap();
        let mut out = gguf::Writer::with_metadata_of(&file);
        file.tensors().iter().for_each(|t| _ = out.copy_tensor(&file, t).unwrap());
        out.set(key, value);
        out.write(gguf::Output::new(&path, true)).unwrap();
        let model = Model::load(&path, &ModelParams::cpu()).unwrap();
        SessionSource::new(&model, params("plain")).identity().unwrap()
    };
    let own = SessionSource::new(model(), params("plain")).identity().unwrap();
    assert_eq!(identity("eval-named.gguf", "general.name", "other".into()), own);
    assert_ne!(identity("eval-bos.gguf", "tokenizer.ggml.add_bos_token", gguf::Value::Bool(true)), own);
}

/// Windows that share nothing but BOS, a long beginning, all of it; scored from the start and from further
/// on.
#[test]
fn a_window_after_others_is_measured_as_if_alone() {
    let windows = [
        (window(0, 300), 0),
        (window(128, 300), 173),
        ([window(128, 200), window(9, 60)].concat(), 190),
        (window(128, 200), 1),
        (window(128, 200), 150),
        (window(128, 280), 201),
    ];
    for rope in [
        "plain",
        "streaming:sinks=0,window=32",
        "streaming:sinks=4,window=64",
        "lm-infinite:window=32,global=0,evict=true",
    ] {
        let source = SessionSource::new(model(), params(rope));
        let mut lm = source.open(320, 1).unwrap();
        for (i, (tokens, from)) in windows.iter().enumerate() {
            let found =
                lm.nll(tokens, *from, &mut |_| {}).unwrap_or_else(|e| panic!("{rope}: window {i}: {e}"));
            let alone = source.open(320, 1).unwrap().nll(tokens, *from, &mut |_| {}).unwrap();
            assert_eq!(found.len(), tokens.len() - (*from).max(1), "{rope}: window {i}");
            let apart = found.iter().zip(&alone).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
            assert!(apart < 1e-4, "{rope}: window {i}: {apart} from a fresh context");
        }
    }
}

#[test]
fn continuations_are_those_of_a_fresh_context() {
    let source = SessionSource::new(model(), params("streaming:sinks=0,window=32"));
    let mut lm = source.open(320, 1).unwrap();
    let prompts = [window(0, 200), window(60, 90), window(60, 91)];
    let how = Greedy { n_predict: 8, ..Greedy::default() };
    let found: Vec<_> = prompts.chunks(1).map(|p| lm.answers(p, &how).unwrap()).collect();
    let fresh = |p: &[Vec<Token>]| source.open(320, 1).unwrap().answers(p, &how).unwrap();
    let alone: Vec<_> = prompts.chunks(1).map(fresh).collect();
    assert_eq!(found, alone);
}

/// A window that takes seconds says how far it is, and is left when the stop is requested, not at its end.
#[test]
fn a_stop_reaches_into_a_window() {
    let stop = Stop::default();
    let opened = |session: &Session| assert_eq!(session.params().n_ctx, 40_000);
    let progress = |p: &Progress<'_>| {
        assert!(p.done > 0 && p.done < p.total, "{p:?}");
        let stop = stop.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            stop.request();
        });
    };
    let source = SessionSource::new(model(), params("plain")).on_open(opened);
    let how = Params::new(protocol("window").unwrap(), vec![40_000]);
    let control = Control::default().with_stop(&stop).with_progress(&progress);
    let report = run(&source, "m", &[letters("a", 40_000)], &how, &control).unwrap();
    assert!(report.interrupted && report.results.is_empty(), "{report:?}");
}

/// What does not fit is an error before hours are spent on the lengths before it.
#[test]
fn a_last_length_that_does_not_fit_is_an_error_before_the_first() {
    let opened = |_: &Session| panic!("a context was opened");
    let source = SessionSource::new(model(), params("plain")).on_open(opened);
    let how = Params::new(protocol("window").unwrap(), vec![64, 1 << 30]);
    let error = run(&source, "m", &[letters("a", 200)], &how, &Control::default()).unwrap_err().to_string();
    assert!(error.contains("is free"), "{error}");
}
