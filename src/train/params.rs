//! The trained tensors: low-rank pairs, norms and the embedding on request (`modules_to_save`), and the network of the
//! RoPE method `clex`.

use std::collections::HashMap;
use std::sync::Arc;

use ggml::backend::Device;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::DType;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use super::seen::TrainAttention;
use super::{full, targets};
use crate::adapter::{Adapter, LowRankPair};
use crate::ids::{LinearId, ParamId, TOKEN_EMBD};
use crate::layers::LinearShape;
use crate::model::{Error, Model, Result};

/// The tensors that are trained.
#[derive(Debug, Clone, PartialEq)]
pub enum Trainable {
    /// Low-rank pairs, and on request norms and the embedding.
    Lora(LoraParams),
    /// Every parameter of a model whose weights are floats, as copies in F32, without pairs: the weights and biases of all
    /// linear maps, norms, the embedding, and the output matrix.
    Full,
}

impl Trainable {
    /// Returns the settings of pairs; `None` if all parameters are trained.
    pub fn lora(&self) -> Option<&LoraParams> {
        match self {
            Trainable::Lora(lora) => Some(lora),
            Trainable::Full => None,
        }
    }

    pub(super) fn dropout(&self) -> f32 {
        self.lora().map_or(0.0, |lora| lora.dropout)
    }

    /// The seed of random values and draws. Full training has none.
    pub(super) fn seed(&self) -> u64 {
        self.lora().map_or(0, |lora| lora.seed)
    }
}

ropewalk_core::setters! {
    /// Low-rank pairs added to weights, and norms and the embedding if they are trained with the pairs.
    #[derive(Debug, Clone, PartialEq)]
    pub struct LoraParams {
        /// Linear maps that get a low-rank pair, by name: [`Role::target`](crate::ids::Role::target), or `all` for those of every layer but its router. Where
        /// a model has queries, keys and values as one map, each of these three names means that map, and `gate`
        /// means the map that the gate is a part of. `attention.` before a name means layers with attention alone,
        /// `delta-net.` gated delta-nets alone.
        pub targets: Vec<String>,
        /// Rows of A, columns of B.
        pub rank: usize,
        /// The pair's product counts `alpha / rank` times.
        pub alpha: f64,
        /// `alpha / sqrt(rank)` instead (rank-stabilised LoRA, arXiv 2312.03732).
        pub rslora: bool,
        /// Probability with which an input of A is 0 in training.
        pub dropout: f32,
        /// Train the norms, in place (LongLoRA).
        pub norms: bool,
        /// Train the embedding, as a copy in floats (LongLoRA).
        pub embeddings: bool,
        /// Seed of the random values of A and of dropout.
        pub seed: u64,
    }
}

impl Default for LoraParams {
    fn default() -> Self {
        LoraParams {
            targets: ["q", "k", "v", "o"].map(String::from).to_vec(),
            rank: 8,
            alpha: 16.0,
            rslora: false,
            dropout: 0.0,
            norms: false,
            embeddings: false,
            seed: 42,
        }
    }
}

impl LoraParams {
    /// The factor on a pair's product.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f64;
        (self.alpha / if self.rslora { rank.sqrt() } else { rank }) as f32
    }

    fn check(&self, nothing_else: bool) -> Result<()> {
        if self.rank == 0 {
            return Err(Error::argument("rank", "at least 1", 0));
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return Err(Error::argument("alpha", "a positive number", self.alpha));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::argument("dropout", "a probability below 1", self.dropout));
        }
        if self.targets.is_empty() && !self.norms && !self.embeddings && nothing_else {
            return Err(Error::argument("targets", "at least one", "none"));
        }
        Ok(())
    }
}

/// A tensor that is trained.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// Identifier of the tensor; adapter files and checkpoints use its name.
    pub id: ParamId,
    /// Shape, `ne[0]` first.
    pub shape: [usize; 2],
    /// Values, `ne[0]` fastest.
    pub value: Vec<f32>,
}

/// The trained tensors: on the host, and as an adapter on the device.
#[derive(Debug)]
pub struct ParamSet {
    list: Vec<Trained>,
    index: HashMap<ParamId, usize>,
    values: Arc<Store>,
    grads: Arc<Store>,
    adapter: Adapter,
}

/// The tensors that these settings train, with their shapes: the halves of pairs, then norms and embedding, then
/// the rows of the landmark token and the network of CLEX, whose up projection has the shape `clex`.
fn shapes(
    model: &Model,
    trainable: &Trainable,
    attention: TrainAttention,
    clex: Option<[usize; 2]>,
) -> Result<Vec<(ParamId, [usize; 2])>> {
    if clex.is_some() && attention.landmarks().is_some() {
        let what = "expected a rope method that is not trained, found clex";
        return Err(Error::Unsupported(format!("attention: {attention}: {what}")));
    }
    let Trainable::Lora(how) = trainable else {
        if attention.landmarks().is_some() {
            let what =
                "expected low-rank pairs, found all parameters: these are written as a model file, which \
                has no landmark token";
            return Err(Error::Unsupported(format!("attention: {attention}: {what}")));
        }
        if clex.is_some() {
            let what = "all parameters are written as a model file, which cannot hold the network of clex";
            return Err(Error::Unsupported(format!("rope clex: {what}: expected pairs or norms with it")));
        }
        return full::shapes(model);
    };
    how.check(clex.is_none())?;
    let mut out = Vec::new();
    for LinearShape { id, n_in, n_out, .. } in targets::maps(model, &how.targets)? {
        // More than the larger dimension is surely a slip.
        let most = n_in.max(n_out);
        if how.rank > most {
            let found = format!("{}: {} is {n_in} x {n_out}", how.rank, id.weight());
            return Err(Error::argument("rank", format_args!("at most {most}"), found));
        }
        out.push((ParamId::LoraA(id), [n_in, how.rank]));
        out.push((ParamId::LoraB(id), [how.rank, n_out]));
    }
    if how.norms {
        let mut norms = model.transformer().norms().to_vec();
        // The output norm first, then layer by layer.
        norms.sort();
        out.extend(norms.iter().map(|&(id, n)| (id, [n, 1])));
    }
    if how.embeddings {
        let hp = model.hparams();
        out.push((ParamId::Embedding, [hp.n_embd, hp.n_vocab]));
    }
    if attention.landmarks().is_some() {
        let rows = [ParamId::LandmarkEmbedding, ParamId::LandmarkOutput];
        out.extend(rows.map(|id| (id, [model.hparams().n_embd, 1])));
    }
    if let Some([pairs, hidden]) = clex {
        out.extend([(ParamId::ClexUp, [pairs, hidden]), (ParamId::ClexDown, [hidden, pairs])]);
    }
    Ok(out)
}

/// Memory for tensors of training, or their headers alone.
pub(super) fn store(
    device: Device,
    defs: Vec<TensorDef>,
    what: &str,
    planned: bool,
) -> ggml::Result<Arc<Store>> {
    if planned {
        Store::planned(device, defs)
    } else {
        Store::new(device, defs, what)
    }
}

/// A generator for one tensor, whatever else is trained.
pub(super) fn generator(seed: u64, what: &str) -> ChaCha8Rng {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(what.as_bytes());
    ChaCha8Rng::from_seed(hash.finalize().into())
}

/// The values a tensor starts from: A random, B zero, others as they are in the model's file.
fn initial(model: &Model, how: &Trainable, id: ParamId, [n0, n1]: [usize; 2]) -> Result<Vec<f32>> {
    let name = &id.to_string();
    match id {
        ParamId::LoraB(_) | ParamId::ClexDown => return Ok(vec![0.0; n0 * n1]),
        ParamId::LoraA(_) | ParamId::ClexUp => {
            // Kaiming's uniform with a = sqrt(5), as in PEFT and in LoRA's own code. The code of CLEX keeps its
            // matrix turned, so that PyTorch takes the hidden width for the number of inputs.
            let n_in = if id == ParamId::ClexUp { n1 } else { n0 };
            let (bound, mut rng) = (1.0 / (n_in as f32).sqrt(), generator(how.seed(), name));
            return Ok((0..n0 * n1).map(|_| rng.random_range(-bound..bound)).collect());
        }
        ParamId::Weight(_)
        | ParamId::Bias(_)
        | ParamId::Norm(_)
        | ParamId::NormBias(_)
        | ParamId::Embedding => {}
        ParamId::LandmarkEmbedding => return mean_row(model, TOKEN_EMBD),
        ParamId::LandmarkOutput => {
            let own = LinearId::OUTPUT.weight();
            let is_own = model.file().tensor(&own).is_some();
            return mean_row(model, if is_own { &own } else { TOKEN_EMBD });
        }
    }
    let file = model.file();
    let info = file.tensor(name).ok_or_else(|| file.error(name, "expected a tensor, found none"))?;
    Ok(ggml::dtype::dequantize_tensor(file, info)?)
}

/// Bytes of floats that rows of a matrix are read as, at once.
const MEAN_BYTES: usize = 16 << 20;

/// The mean of the rows of a matrix of the file, which tokens that are added start from.
fn mean_row(model: &Model, name: &str) -> Result<Vec<f32>> {
    let file = model.file();
    let info = file.tensor(name).ok_or_else(|| file.error(name, "expected a tensor, found none"))?;
    let (n_in, n_rows) = (model.hparams().n_embd, model.hparams().n_vocab);
    let bad = || file.error(name, format!("expected {n_rows} rows of {n_in}, found {:?}", info.shape));
    let row_bytes = info.dtype.row_bytes(n_in).ok_or_else(bad)?;
    let all = file.data(info).get(0..row_bytes * n_rows).ok_or_else(bad)?;
    let mut sums = vec![0.0f64; n_in];
    let mut floats = Vec::new();
    for rows in all.chunks((MEAN_BYTES / (4 * n_in)).max(1) * row_bytes) {
        floats.resize(rows.len() / row_bytes * n_in, 0.0);
        ggml::dtype::dequantize(info.dtype, rows, &mut floats)?;
        for row in floats.chunks_exact(n_in) {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
        }
    }
    Ok(sums.into_iter().map(|sum| (sum / n_rows as f64) as f32).collect())
}

impl ParamSet {
    /// The values at the start of training under the model's own attention: A random, B zero, others as they are in
    /// the file.
    pub fn new(model: &Model, how: &Trainable) -> Result<ParamSet> {
        ParamSet::with_added(model, how, TrainAttention::Full, None, false)
    }

    /// [`ParamSet::new`] with more tensors: the rows of the landmark token start from the mean of the file's. If `planned`,
    /// shapes only, for graphs that are measured.
    pub(super) fn with_added(
        model: &Model,
        how: &Trainable,
        attention: TrainAttention,
        clex: Option<[usize; 2]>,
        planned: bool,
    ) -> Result<ParamSet> {
        let shapes = shapes(model, how, attention, clex)?;
        let defs: Vec<TensorDef> = shapes
            .iter()
            .map(|(id, shape)| TensorDef::new(id.to_string(), DType::F32, shape))
            .collect::<ggml::Result<_>>()?;
        let device = model.backend_device();
        let values = store(device, defs.clone(), "trained tensors", planned)?;
        let grads = store(device, defs, "gradients", planned)?;
        let mut list = Vec::with_capacity(shapes.len());
        for (id, shape) in shapes {
            let value = if planned { Vec::new() } else { initial(model, how, id, shape)? };
            list.push(Trained { id, shape, value });
        }
        let index: HashMap<ParamId, usize> = list.iter().enumerate().map(|(i, t)| (t.id, i)).collect();
        let at = |i: usize| StoreTensor { store: Arc::clone(&values), index: i };
        let scale = how.lora().map_or(1.0, LoraParams::scale);
        let (mut pairs, mut modules) = (HashMap::new(), HashMap::new());
        for (i, t) in list.iter().enumerate() {
            match t.id {
                ParamId::LoraA(map) => {
                    let b = index.get(&ParamId::LoraB(map)).copied();
                    let b = b.ok_or_else(|| Error::Invalid(format!("{}: a pair without B", t.id)))?;
                    pairs.insert(map, LowRankPair { a: at(i), b: at(b), scale });
                }
                ParamId::LoraB(_) | ParamId::ClexUp | ParamId::ClexDown => {}
                id => {
                    modules.insert(id, at(i));
                }
            }
        }
        let adapter = Adapter::from_parts(pairs, modules);
        let params = ParamSet { list, index, values, grads, adapter };
        if !planned {
            params.upload()?;
        }
        Ok(params)
    }

    /// The trained tensors on the device, as an adapter.
    pub(super) fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The trained tensors.
    pub fn list(&self) -> &[Trained] {
        &self.list
    }

    /// The trained tensors, to be changed; [`ParamSet::upload`] brings changes to the device.
    pub fn list_mut(&mut self) -> &mut [Trained] {
        &mut self.list
    }

    /// Returns true if this tensor is trained.
    pub fn trains(&self, id: ParamId) -> bool {
        self.index.contains_key(&id)
    }

    /// Values of a trained tensor.
    pub fn value(&self, id: ParamId) -> Option<&[f32]> {
        self.index.get(&id).map(|&i| self.list[i].value.as_slice())
    }

    /// The tensor in which the gradient of a trained tensor is summed.
    pub(super) fn grad(&self, id: ParamId) -> Option<StoreTensor> {
        self.index.get(&id).map(|&i| StoreTensor { store: Arc::clone(&self.grads), index: i })
    }

    /// Brings the host's values to the device.
    pub fn upload(&self) -> Result<()> {
        for (i, t) in self.list.iter().enumerate() {
            self.values.write_f32(i, 0, &t.value)?;
        }
        Ok(())
    }

    /// Adds to the gradient of a tensor, from the host.
    pub(super) fn add_to_grad(&self, id: ParamId, f: impl FnOnce(&mut [f32])) -> Result<()> {
        let Some(&i) = self.index.get(&id) else { return Ok(()) };
        let [n0, n1] = self.list[i].shape;
        let mut grad = vec![0.0; n0 * n1];
        self.grads.read_f32(i, 0, &mut grad)?;
        f(&mut grad);
        Ok(self.grads.write_f32(i, 0, &grad)?)
    }

    /// Gradients summed since the last [`ParamSet::zero_grads`], in the order of [`ParamSet::list`].
    pub fn grads(&self) -> Result<Vec<Vec<f32>>> {
        let read = |(i, t): (usize, &Trained)| {
            let mut grad = vec![0.0; t.value.len()];
            self.grads.read_f32(i, 0, &mut grad)?;
            Ok(grad)
        };
        self.list.iter().enumerate().map(read).collect()
    }

    /// Sets the gradients to 0.
    pub fn zero_grads(&self) -> Result<()> {
        (0..self.list.len()).try_for_each(|i| self.grads.zero(i))?;
        Ok(())
    }

    /// Bytes on the device.
    pub fn n_bytes(&self) -> usize {
        self.values.n_bytes() + self.grads.n_bytes()
    }
}
