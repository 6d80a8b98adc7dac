//! Several texts at once, as a server would: one model, a session for each client, and generations that advance in turns.
//!
//! ```sh
//! cargo run --release --example embed -- model.gguf
//! ```
//!
//! Without a file, it uses a tiny model of random weights.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ropewalk::session::{Generation, StopReason};
use ropewalk::{convert, DType, GenerateParams, Model, ModelParams, Session, SessionParams};

/// A client: its session, and the texts that are generated there, one for each sequence.
struct Client {
    session: Session,
    running: Vec<Generation>,
    texts: Vec<String>,
}

impl Client {
    /// Starts a generation after each prompt, in sequences 0, 1, ...
    fn new(model: &Model, rope: &str, prompts: &[&str], n_predict: usize) -> Result<Client, Box<dyn Error>> {
        let mut params = SessionParams::new(2 * model.hparams().n_ctx_train.min(2048));
        params.rope = Some(rope.parse()?);
        params.n_seq_max = prompts.len();
        let mut session = Session::new(model, &params)?;
        let how = GenerateParams::greedy(n_predict).ignore_eos(true);
        let mut running = Vec::new();
        for (seq, prompt) in (0..).zip(prompts) {
            let prompt = model.vocab().tokenize(prompt, true, false)?;
            running.push(Generation::new(&mut session, seq, &prompt, &how)?);
        }
        let texts = vec![String::new(); prompts.len()];
        Ok(Client { session, running, texts })
    }

    /// Adds a token to every text; returns false once all have ended.
    fn advance(&mut self) -> Result<bool, Box<dyn Error>> {
        let mut running: Vec<&mut Generation> = self.running.iter_mut().collect();
        let pieces = self.session.advance(&mut running)?;
        let more = pieces.iter().any(Option::is_some);
        for (text, piece) in self.texts.iter_mut().zip(pieces) {
            text.push_str(&piece.transpose()?.map(|piece| piece.text).unwrap_or_default());
        }
        Ok(more)
    }
}

/// Runs the example; `model`: a GGUF file.
pub(crate) fn run(model: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let model = Model::load(&model.map_or_else(|| random(dir.path()), Ok)?, &ModelParams::auto())?;
    let mut plain = Client::new(&model, "plain", &["The rope walk was", "Hemp is"], 24)?;
    let mut long = Client::new(&model, "yarn:factor=2", &["Once upon a time"], 1000)?;
    drop(model); // the sessions have their own handles

    // Another thread stops the long one after 40 turns. This thread works on both until then.
    let stop = long.session.cancel_flag();
    let (turns, counted) = std::sync::mpsc::channel();
    let stopper = std::thread::spawn(move || {
        counted.iter().take(40).count();
        stop.store(true, Ordering::Relaxed);
    });
    let (mut more, mut longer) = (true, true);
    while more || longer {
        more = more && plain.advance()?;
        longer = longer && long.advance()?;
        let _ = turns.send(());
    }
    stopper.join().map_err(|_| "the thread failed")?;
    for (text, generation) in plain.texts.iter().zip(&plain.running) {
        println!("{:?} {text:?}", generation.stop_reason());
        assert_eq!(generation.stop_reason(), Some(StopReason::Length));
    }
    println!("{:?} {:?}", long.running[0].stop_reason(), long.texts[0]);
    assert_eq!(long.running[0].stop_reason(), Some(StopReason::Cancelled));

    // A session that was stopped works on.
    long.session.cancel_flag().store(false, Ordering::Relaxed);
    long.session.truncate(0, 4)?;
    let next = long.session.model().vocab().tokenize(" again", false, false)?;
    println!("{} logits", long.session.append(&next)?.len());
    Ok(())
}

/// A tiny model of random weights, which writes nonsense.
fn random(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let path = dir.join("random.gguf");
    convert::random::write(&convert::random::Shape::named("llama-tiny")?, DType::Q8_0, 1, &path)?;
    Ok(path)
}

fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args_os().nth(1).map(PathBuf::from))
}
