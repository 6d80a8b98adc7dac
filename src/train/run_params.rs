//! The parameters and the report of a run, and the settings that identify it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gguf::Output;
use ropewalk_core::text::hex;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::checkpoint;
use super::init::SampleOrder;
use super::optim::{Decay, Optimizer};
use super::{LongCe, LoraParams, SavedType, TrainAttention, Trainable, Trainer};
use crate::adapter::{self, Ancestor};
use crate::data::Dataset;
use crate::math::Math;
use crate::model::{Error, Result};

ropewalk_core::setters! {
    /// Settings of a run, except those of its trainer, optimizer, and data.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RunParams {
        /// Sequences of a step.
        pub batch: usize,
        /// The order of samples.
        pub order: SampleOrder,
        /// The token of the texts at which the run's data begins. Under [`SampleOrder::Shuffled`] it must be a multiple
        /// of the context: that many samples are skipped.
        pub data_offset: u64,
        /// The earlier runs that this one continues, first to last.
        pub ancestors: Vec<Ancestor>,
        /// Attention stays within documents: it starts again at each.
        pub doc_mask: bool,
        /// Weights targets by how much the long context improves their likelihood.
        pub longce: Option<LongCe>,
        /// Steps between validations. `Some(0)`: only before the first step and after the last; `None`: a tenth
        /// of all.
        pub eval_every: Option<u64>,
        /// The folder for checkpoints; `None` writes none, and such a run cannot be resumed.
        pub checkpoints: Option<PathBuf>,
        /// Steps between checkpoints; 0: only after the last step, and when the run is stopped.
        pub save_every: u64,
        /// The number of newest checkpoints that stay in the folder.
        pub keep_last: usize,
        /// A file that gets a line of JSON for each step and each validation.
        pub log: Option<Output>,
        /// The names of the texts, for the adapter's metadata.
        pub texts: Option<String>,
        /// Settings by name that must be the same when the run is resumed, beyond those that the run knows by
        /// itself.
        pub settings: BTreeMap<String, String>,
    }
}

impl Default for RunParams {
    /// One sequence a step; ten validations; no files but the adapter.
    fn default() -> Self {
        RunParams {
            batch: 1,
            order: SampleOrder::Shuffled,
            data_offset: 0,
            ancestors: Vec::new(),
            doc_mask: false,
            longce: None,
            eval_every: None,
            checkpoints: None,
            save_every: 50,
            keep_last: 2,
            log: None,
            texts: None,
            settings: BTreeMap::new(),
        }
    }
}

/// The figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    /// Steps of the optimizer.
    pub steps: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// The training loss of the last step, in nats/token.
    pub loss: Option<f64>,
    /// The loss on held-out sequences at the first validation.
    pub val_before: Option<f64>,
    /// The loss on held-out sequences at the last validation.
    pub val_after: Option<f64>,
    /// The median speed of this process's steps.
    pub tokens_per_s: Option<f64>,
    /// The most memory this process has held, in bytes, where the system says.
    pub peak_bytes: Option<u64>,
    /// Output that could not be written and still is not: lines of the log, the last checkpoint. A sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// The settings that must be the same when a run is resumed, by name.
pub(super) fn settings(
    trainer: &Trainer,
    optimizer: &Optimizer,
    data: &Dataset,
    params: &RunParams,
) -> Result<BTreeMap<String, String>> {
    let (model, settings) = (&trainer.setup.model, trainer.settings());
    // Checkpoints of full training also name settings of pairs, without effect. Their seed is that of the data.
    let without = LoraParams { targets: Vec::new(), seed: data.params().seed, ..LoraParams::default() };
    let lora = settings.trainable.lora().unwrap_or(&without);
    let corpus = data.corpus();
    let mut hash = Sha256::new();
    (0..corpus.n_documents()).for_each(|d| hash.update(corpus.text_hash(d).to_le_bytes()));
    let mut optim =
        serde_json::to_value(optimizer.params).map_err(|e| Error::Invalid(format!("optimizer: {e}")))?;
    if optimizer.params.schedule.decay == Decay::Constant {
        // Under a constant rate a longer run begins as a shorter one does.
        optim["schedule"]["steps"] = "any".into();
    }
    // Results that are stored exactly are the same as computed again; rounded ones are not.
    let saved = match settings.saved_type {
        SavedType::F32 => "any".to_owned(),
        _ => format!("{:?}", trainer.checkpointing()),
    };
    let text = |v: &dyn ToString| v.to_string();
    let known = [
        ("model", adapter::fingerprint(model.file())),
        ("rope", trainer.plan().frozen(model.hparams())?.to_string()),
        ("ctx", text(&settings.n_ctx)),
        ("targets", lora.targets.join(",")),
        ("rank", text(&lora.rank)),
        ("alpha", text(&lora.alpha)),
        ("rslora", text(&lora.rslora)),
        ("dropout", text(&lora.dropout)),
        ("norms", text(&lora.norms)),
        ("embeddings", text(&lora.embeddings)),
        ("seed", text(&lora.seed)),
        ("batch", text(&params.batch)),
        ("block", text(&settings.n_block)),
        ("keep-type", format!("{:?}", settings.saved_type)),
        ("keep", saved),
        ("portable", text(&settings.portable)),
        (checkpoint::OPTIMIZER, optim.to_string()),
        ("tokens", text(&corpus.n_tokens())),
        ("data", hex(&hash.finalize()[..8])),
        ("doc-mask", text(&params.doc_mask)),
    ];
    // Named only where they are not as in checkpoints that do not know them.
    let undecayed =
        optimizer.params.adamw.weight_decay > 0.0 && trainer.params().list().iter().any(|t| !t.id.decays());
    let others = [
        ("undecayed", undecayed, "norms and biases".to_owned()),
        ("attention", settings.attention != TrainAttention::Full, text(&settings.attention)),
        ("train-all", settings.trainable == Trainable::Full, text(&true)),
        ("math", settings.math != Math::Auto, text(&settings.math)),
        ("order", params.order != SampleOrder::Shuffled, text(&params.order)),
        ("data-offset", params.data_offset > 0, text(&params.data_offset)),
        ("longce", params.longce.is_some(), format!("{:?}", params.longce)),
        ("positions", settings.n_positions.is_some(), text(&settings.planned_ctx())),
    ];
    let others = others.into_iter().filter(|(_, named, _)| *named).map(|(name, _, value)| (name, value));
    let init = params.ancestors.last().map(|a| ("init", a.sha256.clone()));
    let known = known.into_iter().chain(data.settings()).chain(others).chain(init);
    let known = known.map(|(name, value)| (name.to_owned(), value));
    Ok(params.settings.clone().into_iter().chain(known).collect())
}
