//! Trains an adapter under YaRN, and loads it: a text, a run with its log and checkpoints, the loss before and after.
//!
//! ```sh
//! cargo run --release --example finetune -- model.gguf texts/ adapter.gguf
//! ```
//!
//! Without arguments, it trains a tiny model of random weights on a text of one sentence.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use ropewalk::adapter::AdapterSpec;
use ropewalk::control::{Control, Progress};
use ropewalk::data::{Corpus, Dataset, DatasetParams, Separator, Sources, TextOptions};
use ropewalk::train::optim::{Decay, OptimParams, Optimizer, Schedule};
use ropewalk::{
    convert, DType, Model, ModelParams, Run, RunParams, Session, SessionParams, TrainParams, Trainer,
};

/// Tokens of a training sequence.
const N_CTX: usize = 128;

/// Runs the example; `model`: a GGUF file, `texts`: a file or folder to train on, `output`: the adapter to write.
pub(crate) fn run(
    model: Option<PathBuf>,
    texts: Option<PathBuf>,
    output: Option<PathBuf>,
) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = match model {
        Some(path) => path,
        None => {
            let (path, shape) =
                (dir.path().join("random.gguf"), convert::random::Shape::named("llama-tiny")?);
            convert::random::write(&shape, DType::Q8_0, 1, &path)?;
            path
        }
    };
    let sentence = "The rope walk was a long shed in which hemp was spun into rope. ";
    let texts = match texts {
        Some(texts) => texts,
        None => {
            let texts = dir.path().join("text.txt");
            std::fs::write(&texts, sentence.repeat(100))?;
            texts
        }
    };
    let output = output.unwrap_or_else(|| dir.path().join("adapter.gguf"));

    // The model's weights stay as they are; pairs of rank 8 on q, k, v and o are trained.
    let model = Model::load(&path, &ModelParams::cpu())?;
    let mut how = TrainParams::new(N_CTX);
    how.rope = Some("yarn:factor=2".parse()?);
    let trainer = Trainer::new(&model, &how)?;
    let schedule = Schedule::constant(1e-2, 12).warmup(2).decay(Decay::Cosine);
    let optim = OptimParams::new(schedule);
    let optimizer = Optimizer::new(optim, trainer.params())?;

    // Texts are tokenized once, into a file.
    let sources = Sources::find(&[texts], &TextOptions::default())?;
    let cache = dir.path().join("tokens");
    let corpus = Corpus::open(&cache, model.vocab(), &sources, &Separator::Auto, &Control::default())?;
    let data = Dataset::new(Arc::new(corpus), &DatasetParams::new(N_CTX))?;

    let params = RunParams::default().log(Some(dir.path().join("log.jsonl").into()));
    let mut run = Run::new(trainer, optimizer, data, params)?;
    let show = |p: &Progress<'_>| eprintln!("step {} of {}: {}", p.done, p.total, p.what);
    run.train(&Control::default().with_progress(&show))?;
    run.write_adapter(&output)?;
    println!("{}", serde_json::to_string_pretty(&run.report())?);

    // The adapter remembers its method, so a session of a model with it needs no spec.
    let mut with = ModelParams::cpu();
    with.adapters.push(AdapterSpec::new(output, 1.0));
    let trained = Model::load(&path, &with)?;
    let [before, after] = [&model, &trained].map(|model| -> Result<f32, Box<dyn Error>> {
        let mut params = SessionParams::new(N_CTX);
        params.rope = Some("yarn:factor=2".parse()?);
        let tokens = model.vocab().tokenize(&sentence.repeat(2), true, false)?;
        let tokens = &tokens[..tokens.len().min(N_CTX)];
        let nll = Session::new(model, &params)?.nll(tokens, 1..tokens.len())?;
        Ok(nll.iter().sum::<f32>() / nll.len() as f32)
    });
    let (before, after) = (before?, after?);
    println!("{before:.3} nats before, {after:.3} after; under {}", trained.default_rope()?);
    assert!(after < before);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    run(args.next(), args.next(), args.next())
}
