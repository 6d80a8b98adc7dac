//! Long context for quantized GGUF language models: run, extend, measure, train.
//!
//! # A tour
//!
//! A [`Model`] is a file on a device. It is a handle: a clone shares the weights, and whatever works with the model keeps
//! one, so all of these can live in one struct or go to a thread. A [`Session`] is a model, a cache, and one rope method
//! ([`Spec`], by [`Plan`] made exact for the model and the context) for life. An error is an [`Error`]: what a caller can
//! act on, a full context or too little memory, is a variant with its numbers.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.gguf");
//! # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
//! use ropewalk::{Error, GenerateParams, Model, ModelParams, Session, SessionParams, TrainParams, Trainer};
//!
//! // Load. `auto` takes the best device there is.
//! let model = Model::load(&path, &ModelParams::auto())?;
//! let tokens = model.vocab().tokenize("A rope is walked, a yarn is spun.", true, false)?;
//!
//! // A session under the rope method that the file declares.
//! let params = SessionParams::new(512);
//! # let params = SessionParams { n_threads: 1, ..params };
//! let mut session = Session::new(&model, &params)?;
//!
//! // Generate: an iterator over tokens and the text that is ready with them.
//! for piece in session.generate(&tokens, &GenerateParams::greedy(8))? {
//!     print!("{}", piece?.text);
//! }
//!
//! // Extend: the same model with YaRN, at four times its context.
//! let n_ctx = 4 * model.hparams().n_ctx_train;
//! let yarn = SessionParams { rope: Some("yarn:factor=4".parse()?), n_ctx, ..params };
//! let mut long = Session::new(&model, &yarn)?;
//! println!("{}", long.plan().spec); // with every default filled in
//!
//! // Score: how well it predicts each token, in nats. Any of 64 sequences, which share one cache.
//! let nll = long.sequence(1).nll(&tokens, 1..tokens.len())?;
//! assert_eq!(nll.len(), tokens.len() - 1);
//!
//! // A context that is full is an error with numbers, and the session is as it was.
//! let many = vec![tokens[0]; 600];
//! assert!(matches!(session.sequence(2).append(&many), Err(Error::ContextFull { needed: 600, .. })));
//!
//! // Train a low-rank adapter on the quantized weights, under the same method.
//! let mut how = TrainParams::new(64);
//! how.rope = yarn.rope.clone();
//! # how.n_threads = 1;
//! let mut trainer = Trainer::new(&model, &how)?;
//! drop(model); // each of them has its own handle
//! let sequence = ropewalk::train::Sequence { tokens: &tokens, weights: &[], segment_starts: &[], positions: &[] };
//! println!("{} nats", trainer.loss(sequence)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to look next
//!
//! - [`session`]: [`Generation`] and [`Session::advance`] generate several texts at once, [`Session::step`] extends several
//!   sequences, each with the answer that its caller wants, and sessions are saved to files.
//! - [`rope`]: the methods, and what a plan does to positions.
//! - [`train`]: [`Run`] is the loop over a data set ([`data`]), with validation and checkpoints; it writes the adapter.
//! - [`finetune`]: a whole job, from texts to the written adapter, as `ropewalk finetune` runs it.
//! - [`studies`]: every method by every task at every length of a plan, and the report of [`study`].
//! - [`eval`]: perplexity by named protocols, passkeys, published benchmarks ([`tasks`]).
//! - [`adapter`], [`chat`], [`fetch`], [`plot`]: adapters in force, chat templates, models by name, charts.
//!
//! Modules are listed in layer order: each uses only those above it.
#![forbid(unsafe_code)]

mod error;
pub mod math;
mod weights;
pub mod adapter;
mod layers;
mod kv;
mod states;
mod graph;
mod arch;
pub mod model;
pub mod session;
pub mod chat;
pub mod eval;
pub mod fetch;
pub mod train;
pub mod plot;
pub mod finetune;
pub mod studies;
#[doc(hidden)]
pub mod internals;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use error::{Error, Result};
pub use model::{Device, Model, ModelParams};
pub use rope::{Plan, Spec};
pub use session::{Batch, GenerateParams, Generation, Session, SessionParams};
pub use train::{Run, RunParams, TrainParams, Trainer};

pub use convert;
pub use ggml::DType;
pub use gguf;
pub use llama::{sampler, vocab, Token};
pub use ropewalk_core::{control, hparams, ids, landmark, remedy, rope};
pub use ropewalk_data::{self as data, jsonl};
pub use ropewalk_study as study;
pub use ropewalk_tasks as tasks;
