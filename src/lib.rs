//! Long context for quantized GGUF language models: run, extend, measure, train, convert.
//!
//! # A tour
//!
//! A [`Model`] is a file on a device. It is a handle: a clone shares the weights, and whatever works with the model keeps
//! one, so all of these can live in one struct or go to a thread. A [`Session`] is a model, a cache, and one rope method
//! ([`Spec`], by [`Plan`] made exact for the model and the context) for life. An error is an [`Error`]: what a caller can
//! act on, a full context or too little memory, is a variant with its numbers, and its [`remedy`] is data.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let [path, texts, adapter, output] =
//! #     ["model.gguf", "texts.txt", "adapter.gguf", "long.gguf"].map(|name| dir.path().join(name));
//! # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
//! use ropewalk::adapter::AdapterSpec;
//! use ropewalk::control::Control;
//! use ropewalk::convert::{self, Options};
//! use ropewalk::eval::{perplexity, protocol::protocol, Document, SessionSource};
//! use ropewalk::finetune::{self, Job};
//! use ropewalk::{Error, GenerateParams, Model, ModelParams, Session, SessionParams};
//!
//! // Load. `auto` takes the best device there is.
//! let model = Model::load(&path, &ModelParams::auto())?;
//! let tokens = model.vocab().tokenize("A rope is walked, a yarn is spun.", true, false)?;
//!
//! // Extend: YaRN, at four times the trained context. Without a method, a session has the one that the file declares.
//! let mut params = SessionParams::new(4 * model.hparams().n_ctx_train);
//! params.rope = Some("yarn:factor=4".parse()?);
//! # params.n_threads = 1;
//! let mut session = Session::new(&model, &params)?;
//! println!("{}", session.plan().spec); // with every default filled in
//!
//! // Generate: an iterator over tokens and the text that is ready with them.
//! for piece in session.generate(&tokens, &GenerateParams::greedy(8))? {
//!     print!("{}", piece?.text);
//! }
//! // A full context is an error with numbers, and the session is as it was.
//! let many = vec![tokens[0]; 3000];
//! assert!(matches!(session.sequence(2).append(&many), Err(Error::ContextFull { needed: 3000, .. })));
//!
//! // Measure: how well each token is predicted, in nats, in any of 64 sequences; and perplexity by a named protocol.
//! let nll = session.sequence(1).nll(&tokens, 1..tokens.len())?;
//! assert_eq!(nll.len(), tokens.len() - 1);
//! let text = "A rope is walked, a yarn is spun. ".repeat(40);
//! let source = SessionSource::new(&model, params.clone());
//! let how = perplexity::Params::new(protocol("window")?, vec![128, 256]);
//! let documents = [Document::text("a saying", text.as_str())];
//! let report = perplexity::run(&source, "model.gguf", &documents, &how, &Control::default())?;
//! println!("{}", report.text());
//!
//! // Train a low-rank adapter on the quantized weights, under the same method.
//! # std::fs::write(&texts, &text)?;
//! let mut job = Job::new(vec![texts.into()], &adapter);
//! job.rope = params.rope.clone();
//! job.n_ctx = Some(64);
//! job.given.steps = Some(2);
//! # job.n_threads = 1;
//! let trained = finetune::run(&job, &model, &Control::default())?;
//! assert_eq!(trained.run.steps, 2);
//!
//! // Convert: merge the adapter, and declare the method in a file that other programs can run.
//! let adapters = vec![AdapterSpec::new(&adapter, 1.0)];
//! let options = Options::default().rope(params.rope).adapters(adapters);
//! let report = convert::convert(&path, &output, &options, &Control::default())?;
//! println!("{} bytes: {}", report.bytes, report.llama_server.unwrap_or_default());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to look next
//!
//! - [`session`]: [`Generation`] and [`Session::advance`] generate several texts at once, [`Session::step`] extends several
//!   sequences, each with the answer that its caller wants, and sessions are saved to files.
//! - [`scheduler`]: requests of many callers, batched together on a thread of their own.
//! - [`rope`]: the methods, and what a plan does to positions.
//! - [`train`]: [`Trainer`] computes losses and gradients. [`Run`] is the loop over a data set ([`data`]), with validation
//!   and checkpoints; it writes the adapter.
//! - [`finetune`]: a whole job, from texts to the written adapter, as `ropewalk finetune` runs it.
//! - [`studies`]: every method by every task at every length of a plan, and the report of [`study`].
//! - [`eval`]: perplexity by named protocols, passkeys, published benchmarks ([`tasks`]).
//! - [`convert`]: import, quantize, merge, and write methods; adapters to and from PEFT.
//! - [`adapter`], [`chat`], [`fetch`], [`origin`], [`plot`]: adapters in force, chat templates, downloads, files with a
//!   record of where they came from, charts.
//!
//! Modules are listed in layer order: each uses only those above it.
#![forbid(unsafe_code)]

mod error;
pub mod math;
pub mod origin;
mod weights;
pub mod adapter;
mod layers;
mod kv;
mod states;
mod graph;
mod arch;
pub mod model;
pub mod session;
pub mod scheduler;
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
pub use ropewalk_core::{contents, control, hparams, ids, landmark, remedy, rope};
pub use ropewalk_data::{self as data, jsonl};
pub use ropewalk_study as study;
pub use ropewalk_tasks as tasks;
