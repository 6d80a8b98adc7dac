//! Starts a run from the adapter of an earlier one, under another RoPE method, context, or schedule.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;

use ropewalk_core::text::hex;
use sha2::{Digest, Sha256};

use super::params::{LoraParams, Trained};
use super::Trainer;
use crate::adapter::{self, AdapterMeta, AdapterReader, Ancestor, DataEnd};
use crate::data::{Dataset, Packing};
use crate::ids::{LinearId, ParamId, Role};
use crate::model::{Error, Result};

/// The order in which a run takes its samples from the texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SampleOrder {
    /// The samples of an epoch in a random order. The tokens of a run are a range of the texts only in whole epochs,
    /// and at another context they differ.
    #[default]
    Shuffled,
    /// In the order of the joined texts, with documents in their seeded order: tokens 0 to `n_ctx`, then
    /// `n_ctx` to `2 n_ctx`, and so on. Runs at different contexts that begin at the same token see the same tokens
    /// in the same order, cut at other places.
    Text,
}

/// The adapter that a run started from.
#[derive(Debug, Clone, PartialEq)]
pub struct Init {
    /// The runs before, first to last; the last one wrote the adapter.
    pub ancestors: Vec<Ancestor>,
    /// Where in the texts the last one ended.
    pub data_end: Option<DataEnd>,
}

impl Init {
    /// Gives the trained tensors of `trainer` the values of an adapter. RoPE method, context, and attention can differ
    /// from those of its training.
    ///
    /// # Errors
    /// Returns an error if the file is not an adapter, or if its model, tensors, ranks, or alpha differ from the
    /// trainer's; also for a trainer of all parameters, which starts from the model itself.
    pub fn adapter(path: impl AsRef<Path>, trainer: &mut Trainer) -> Result<Init> {
        let path = path.as_ref();
        let reader = AdapterReader::open(path)?;
        let Some(lora) = trainer.settings().trainable.lora().cloned() else {
            return Err(Error::Unsupported(
                "init: training of all parameters starts from the model itself; pass the earlier run's model \
                 in its place"
                    .into(),
            ));
        };
        let file = trainer.setup.model.file();
        reader.check(file, &adapter::fingerprint(file), false)?;
        let wrong = |key: &str, expected: String, found: String| {
            let what = format!("expected {expected} as in this run, found {found}");
            Err(Error::from(reader.file().error(key, what)))
        };
        if reader.keeps_output() && file.tensor(&LinearId::OUTPUT.weight()).is_none() {
            let what =
                "expected an embedding that is also the output, found one for the input only, as PEFT \
                 trains it";
            return Err(reader.file().error(crate::hparams::keys::LORA_KEEPS_OUTPUT, what).into());
        }
        let (expected, found) = (of_trainer(trainer), of_file(&reader));
        if expected != found {
            return wrong("tensors", describe(&expected), describe(&found));
        }
        for pair in reader.pairs() {
            let found = reader.pair_scale(pair, 1.0)?;
            if (found / lora.scale() - 1.0).abs() > 1e-6 {
                let alpha = |scale: f32| format!("alpha {}", alpha(&lora, scale));
                return wrong("adapter.lora.alpha", alpha(lora.scale()), alpha(found));
            }
        }
        // Read whole before anything changes. A pair of tied embeddings has the output's name in both.
        let read = |t: &Trained| reader.values(&t.id.to_string(), ggml::dtype::dequantize_tensor);
        let values = trainer.params().list().iter().map(read).collect::<ggml::Result<Vec<_>>>()?;
        trainer.params_mut().list_mut().iter_mut().zip(values).for_each(|(t, values)| t.value = values);
        trainer.params().upload()?;
        let ancestors = reader.meta().lineage(sha256(reader.file()));
        Ok(Init { ancestors, data_end: reader.meta().data_end.clone() })
    }

    /// The runs that made a model by training all its parameters, first to last; none for other models.
    ///
    /// # Errors
    /// Metadata of another type, or that cannot be read.
    pub fn model(model: &crate::model::Model) -> Result<Vec<Ancestor>> {
        let meta = AdapterMeta::of_model(model.file())?;
        Ok(if meta.steps.is_some() { meta.lineage(sha256(model.file())) } else { Vec::new() })
    }

    /// The token of the texts at which this run's data begins: the place where the last run stopped.
    ///
    /// # Errors
    /// Returns an error if the adapter does not record that place, or if the texts or their order have changed.
    pub fn data_offset(&self, data: &Dataset, order: SampleOrder) -> Result<u64> {
        let way = "pass the token to start at (a data offset; 0 is the start)";
        match &self.data_end {
            None => Err(Error::Invalid(format!("init: the adapter does not record where its data ended: {way}"))),
            Some(end) if end.order == order_hash(data, order) => Ok(end.token),
            Some(_) => Err(Error::Invalid(format!(
                "init: the earlier run's data ended at a place that this run does not share, because texts, \
                 seed, packing, held-out part or order differ{}: {way}",
                match order {
                    SampleOrder::Shuffled =>
                        ", or the context, at which samples are shuffled (the order of texts in both runs keeps the place)",
                    SampleOrder::Text => "",
                }
            ))),
        }
    }
}

fn sha256(file: &gguf::File) -> String {
    let mut hash = Sha256::new();
    for part in file.shards() {
        let Ok(()) = part.bytes().each(|bytes| {
            hash.update(bytes);
            Ok::<_, Infallible>(())
        });
    }
    format!("{:x}", hash.finalize())
}

/// Alpha under the settings of a run, of a factor on pairs.
fn alpha(lora: &LoraParams, scale: f32) -> f32 {
    let rank = lora.rank as f64;
    (f64::from(scale) * if lora.rslora { rank.sqrt() } else { rank }) as f32
}

/// Trained tensors: of a pair by its layer and rank, and of whole tensors by name.
type Tensors = (BTreeSet<(LinearId, usize)>, BTreeSet<String>);

fn of_trainer(trainer: &Trainer) -> Tensors {
    let mut all = Tensors::default();
    for t in trainer.params().list() {
        match t.id {
            ParamId::LoraA(map) => _ = all.0.insert((map, t.shape[1])),
            ParamId::LoraB(_) => {}
            id if id.is_clex() => _ = all.1.insert(matrix(id, t.shape)),
            id => _ = all.1.insert(id.to_string()),
        }
    }
    all
}

fn of_file(reader: &AdapterReader) -> Tensors {
    let map = |name: &str| LinearId::from_weight(name).unwrap_or(LinearId::OUTPUT);
    let network = reader.clex().map(|net| {
        let (up, down) = ([net.n_pairs, net.n_hidden], [net.n_hidden, net.n_pairs]);
        [matrix(ParamId::ClexUp, up), matrix(ParamId::ClexDown, down)]
    });
    let whole = reader.modules_to_save().iter().map(|m| m.name.clone());
    (
        reader.pairs().iter().map(|p| (map(&p.weight), p.rank)).collect(),
        whole.chain(network.into_iter().flatten()).collect(),
    )
}

/// A matrix of CLEX, whose shape the model does not decide.
fn matrix(id: ParamId, [n0, n1]: [usize; 2]) -> String {
    format!("{id} {n0} x {n1}")
}

/// `rank 8 on q, k, v, o (96 pairs), 61 whole tensors`.
fn describe((pairs, whole): &Tensors) -> String {
    let ranks: BTreeSet<usize> = pairs.iter().map(|(_, rank)| *rank).collect();
    let roles: BTreeSet<Role> = pairs.iter().map(|(map, _)| map.role).collect();
    let ranks = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(" and ");
    let roles = roles.into_iter().map(Role::target).collect::<Vec<_>>().join(", ");
    match (pairs.len(), whole.len()) {
        (0, n) => format!("{n} whole tensors"),
        (n, 0) => format!("rank {ranks} on {roles} ({n} pairs)"),
        (n, m) => format!("rank {ranks} on {roles} ({n} pairs), {m} whole tensors"),
    }
}

/// A hash of the texts and of the order in which they are trained on: two runs of equal hash have the same tokens at
/// the same places. The context counts only where samples are shuffled or documents cut one by one.
pub(super) fn order_hash(data: &Dataset, order: SampleOrder) -> String {
    let (corpus, params) = (data.corpus(), data.params());
    let mut hash = Sha256::new();
    hash.update(order.to_string());
    hash.update(params.packing.to_string());
    if order == SampleOrder::Shuffled || params.packing != Packing::Pack {
        hash.update((params.n_ctx as u64).to_le_bytes());
    }
    if order == SampleOrder::Shuffled {
        hash.update((data.n_read() as u64).to_le_bytes());
        hash.update((data.n_train() as u64).to_le_bytes());
    }
    if data.transform().is_some_and(|t| t.in_one_document()) {
        hash.update("one document");
    }
    hash.update(params.seed.to_le_bytes());
    for &d in data.train_documents() {
        let range = corpus.range(d as usize);
        hash.update(corpus.text_hash(d as usize).to_le_bytes());
        hash.update((range.end - range.start).to_le_bytes());
    }
    hex(&hash.finalize()[..8])
}
