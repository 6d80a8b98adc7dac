//! Measures a model under two RoPE methods: perplexity past its trained context, and passkeys. Prints JSON.
//!
//! ```sh
//! cargo run --release --example evaluate -- model.gguf text.txt
//! ```
//!
//! Without files, it uses a tiny model of random weights and a text of one sentence.

use std::error::Error;
use std::path::PathBuf;

use ropewalk::control::Control;
use ropewalk::eval::suite::{self, Params, Unkept};
use ropewalk::eval::{perplexity, protocol::protocol, Document, SessionSource};
use ropewalk::{convert, tasks, DType, Model, ModelParams, SessionParams};

/// Runs the example; `model`: a GGUF file, `text`: a text of at least twice its trained context.
pub(crate) fn run(model: Option<PathBuf>, text: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
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
    let text = match text {
        Some(path) => std::fs::read_to_string(path)?,
        None => "The rope walk was a long shed in which hemp was spun into rope. ".repeat(80),
    };
    let model = Model::load(&path, &ModelParams::auto())?;
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let length = 2 * model.hparams().n_ctx_train;
    let documents = [Document::text("text", text)];
    let progress = |p: &ropewalk::control::Progress<'_>| eprintln!("{} of {}: {}", p.done, p.total, p.what);
    let control = Control::default().with_progress(&progress);

    let mut reports = Vec::new();
    for rope in ["plain", "yarn:factor=2"] {
        let mut params = SessionParams::new(0); // each measurement opens a context of its length
        params.rope = Some(rope.parse()?);
        let source = SessionSource::new(&model, params);
        let how = perplexity::Params::new(protocol("window")?, vec![length]);
        let report = perplexity::run(&source, &name, &documents, &how, &control)?;
        println!("{rope}: perplexity {:.2} at {length} tokens", report.results[0].headline.ppl);
        reports.push(serde_json::to_value(&report)?);
        // A passkey needs no data. Other tasks read theirs from this folder.
        let how = Params::new(vec![length], dir.path()).samples(Some(2));
        for task in tasks::find("passkey")? {
            let report = suite::run(&source, &name, task, &how, &mut Unkept, &control)?;
            println!("{rope}: {} {:.0} of 100 at {length} tokens", report.task, report.results[0].score);
            reports.push(serde_json::to_value(&report)?);
        }
    }
    println!("{}", serde_json::to_string_pretty(&reports)?);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    run(args.next(), args.next())
}
