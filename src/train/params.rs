//! What is trained: low-rank pairs, and, where asked for, norms and the embedding whole.

use std::collections::HashMap;
use std::sync::Arc;

use ggml::backend::Device;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::DType;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::adapter::{Adapter, Pair};
use crate::model::{Error, Model, Result};
use crate::weights::{TensorSpec, TOKEN_EMBD};

/// Names that users have for the weights of a layer, and what files call them.
pub const TARGETS: &[(&str, &str)] = &[
    ("q", "attn_q"),
    ("k", "attn_k"),
    ("v", "attn_v"),
    ("o", "attn_output"),
    ("gate", "ffn_gate"),
    ("up", "ffn_up"),
    ("down", "ffn_down"),
    ("output", "output"),
];

/// What to train.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraParams {
    /// Weights that get a low-rank pair: names of [`TARGETS`].
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
    /// Where A and dropout start from.
    pub seed: u64,
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

    fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if self.rank == 0 {
            return invalid("rank: expected at least 1, found 0".into());
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return invalid(format!("alpha: expected a positive number, found {}", self.alpha));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return invalid(format!("dropout: expected a probability below 1, found {}", self.dropout));
        }
        if self.targets.is_empty() && !self.norms && !self.embeddings {
            return invalid("targets: expected at least one, found none".into());
        }
        Ok(())
    }
}

/// A tensor that is trained.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// `{weight}.lora_a`, `{weight}.lora_b`, or the tensor's own name.
    pub name: String,
    /// Shape, `ne[0]` first.
    pub shape: [usize; 2],
    /// Values, `ne[0]` fastest.
    pub value: Vec<f32>,
}

/// All that is trained: on the host, and as an adapter on the device.
#[derive(Debug)]
pub struct Params {
    list: Vec<Trained>,
    index: HashMap<String, usize>,
    values: Arc<Store>,
    grads: Arc<Store>,
    adapters: [Adapter; 1],
}

/// What would be trained, as shapes: the pairs' halves, then whole tensors.
pub(super) fn shapes(model: &Model, how: &LoraParams) -> Result<Vec<(String, [usize; 2])>> {
    how.check()?;
    let specs = model.tensor_specs();
    let of = |spec: &TensorSpec| [spec.shape[0], spec.shape.get(1).copied().unwrap_or(1)];
    let mut out = Vec::new();
    for (i, target) in how.targets.iter().enumerate() {
        if how.targets[..i].contains(target) {
            return Err(Error::Invalid(format!("targets: {target:?} is there twice")));
        }
        let known = || TARGETS.iter().map(|t| t.0).collect::<Vec<_>>().join(", ");
        let part = TARGETS.iter().find(|(name, _)| name == target).map(|t| t.1);
        let part = part.ok_or_else(|| {
            Error::Invalid(format!("targets: expected some of {}, found {target:?}", known()))
        })?;
        // The head of a model without an output matrix of its own is its embedding, and goes by that name in graphs.
        let tied = part == "output" && model.tensor("output.weight").is_none();
        let fits = |name: &str| match tied {
            true => name == TOKEN_EMBD,
            false => name == format!("{part}.weight") || name.ends_with(&format!(".{part}.weight")),
        };
        let before = out.len();
        for spec in specs.iter().filter(|s| fits(&s.name) && model.tensor(&s.name).is_some()) {
            let [n_in, n_out] = of(spec);
            if how.rank > n_in.min(n_out) {
                let what = format!("rank: expected at most {}, found {}", n_in.min(n_out), how.rank);
                return Err(Error::Invalid(format!("{what}: {} is {n_in} x {n_out}", spec.name)));
            }
            out.push((format!("{}.lora_a", spec.name), [n_in, how.rank]));
            out.push((format!("{}.lora_b", spec.name), [how.rank, n_out]));
        }
        if out.len() == before {
            return Err(Error::Invalid(format!("targets: the model has no tensor {part}.weight")));
        }
    }
    if how.norms {
        let norms = specs.iter().filter(|s| s.name.ends_with("norm.weight"));
        out.extend(norms.map(|s| (s.name.clone(), of(s))));
    }
    if how.embeddings {
        out.extend(specs.iter().filter(|s| s.name == TOKEN_EMBD).map(|s| (s.name.clone(), of(s))));
    }
    Ok(out)
}

/// A generator for one tensor, whatever else is trained.
pub(super) fn generator(seed: u64, what: &str) -> ChaCha8Rng {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(what.as_bytes());
    ChaCha8Rng::from_seed(hash.finalize().into())
}

fn start(model: &Model, how: &LoraParams, name: &str, [n0, n1]: [usize; 2]) -> Result<Vec<f32>> {
    if name.ends_with(".lora_b") {
        return Ok(vec![0.0; n0 * n1]);
    }
    if name.ends_with(".lora_a") {
        // Kaiming's uniform with a = sqrt(5), as in PEFT and in LoRA's own code.
        let (bound, mut rng) = (1.0 / (n0 as f32).sqrt(), generator(how.seed, name));
        return Ok((0..n0 * n1).map(|_| rng.random_range(-bound..bound)).collect());
    }
    let file = model.file();
    let info = file.tensor(name).ok_or_else(|| file.error(name, "expected a tensor, found none"))?;
    Ok(ggml::dtype::dequantize_tensor(file, info)?)
}

impl Params {
    /// Fresh: A random, B zero, whole tensors as they are in the file.
    pub fn new(model: &Model, how: &LoraParams) -> Result<Params> {
        let params = Params::with(model, how, Store::new, |name, shape| start(model, how, name, shape))?;
        params.upload()?;
        Ok(params)
    }

    /// Shapes only, for graphs that are measured.
    pub(super) fn planned(model: &Model, how: &LoraParams) -> Result<Params> {
        Params::with(model, how, |device, defs, _| Store::planned(device, defs), |_, _| Ok(Vec::new()))
    }

    fn with(
        model: &Model,
        how: &LoraParams,
        store: impl Fn(Device, Vec<TensorDef>, &str) -> ggml::Result<Arc<Store>>,
        value: impl Fn(&str, [usize; 2]) -> Result<Vec<f32>>,
    ) -> Result<Params> {
        let shapes = shapes(model, how)?;
        let defs: Vec<TensorDef> = shapes
            .iter()
            .map(|(name, shape)| TensorDef::new(name, DType::F32, shape))
            .collect::<ggml::Result<_>>()?;
        let device = model.backend_device();
        let values = store(device, defs.clone(), "trained tensors")?;
        let grads = store(device, defs, "gradients")?;
        let mut list = Vec::with_capacity(shapes.len());
        for (name, shape) in shapes {
            let value = value(&name, shape)?;
            list.push(Trained { name, shape, value });
        }
        let index: HashMap<String, usize> =
            list.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        let at = |i: usize| StoreTensor { store: Arc::clone(&values), index: i };
        let (mut pairs, mut whole) = (HashMap::new(), HashMap::new());
        for (i, t) in list.iter().enumerate() {
            if let Some(weight) = t.name.strip_suffix(".lora_a") {
                let b = index.get(&format!("{weight}.lora_b")).copied().unwrap_or(i);
                pairs.insert(weight.to_string(), Pair { a: at(i), b: at(b), scale: how.scale() });
            } else if !t.name.ends_with(".lora_b") {
                whole.insert(t.name.clone(), at(i));
            }
        }
        let adapters = [Adapter::from_parts(pairs, whole)];
        Ok(Params { list, index, values, grads, adapters })
    }

    /// As the graphs take them.
    pub(super) fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    /// The trained tensors.
    pub fn list(&self) -> &[Trained] {
        &self.list
    }

    /// The same, to be changed; [`Params::upload`] brings changes to the device.
    pub fn list_mut(&mut self) -> &mut [Trained] {
        &mut self.list
    }

    /// Whether a tensor of this name is trained whole.
    pub fn is_whole(&self, name: &str) -> bool {
        self.adapters[0].whole(name).is_some()
    }

    /// Values of a tensor by name.
    pub fn value(&self, name: &str) -> Option<&[f32]> {
        self.index.get(name).map(|&i| self.list[i].value.as_slice())
    }

    /// Where the gradient of a tensor is summed.
    pub(super) fn grad(&self, name: &str) -> Option<StoreTensor> {
        self.index.get(name).map(|&i| StoreTensor { store: Arc::clone(&self.grads), index: i })
    }

    /// Brings the host's values to the device.
    pub fn upload(&self) -> Result<()> {
        for (i, t) in self.list.iter().enumerate() {
            self.values.write_f32(i, 0, &t.value)?;
        }
        Ok(())
    }

    /// Adds to the gradient of a tensor, from the host.
    pub(super) fn add_to_grad(&self, name: &str, f: impl FnOnce(&mut [f32])) -> Result<()> {
        let Some(&i) = self.index.get(name) else { return Ok(()) };
        let [n0, n1] = self.list[i].shape;
        let mut grad = vec![0.0; n0 * n1];
        self.grads.read_f32(i, 0, &mut grad)?;
        f(&mut grad);
        Ok(self.grads.write_f32(i, 0, &grad)?)
    }

    /// Gradients summed since the last [`Params::zero_grads`], in the order of [`Params::list`].
    pub fn grads(&self) -> Result<Vec<Vec<f32>>> {
        let read = |(i, t): (usize, &Trained)| {
            let mut grad = vec![0.0; t.value.len()];
            self.grads.read_f32(i, 0, &mut grad)?;
            Ok(grad)
        };
        self.list.iter().enumerate().map(read).collect()
    }

    /// Forgets the gradients.
    pub fn zero_grads(&self) -> Result<()> {
        (0..self.list.len()).try_for_each(|i| self.grads.zero(i))?;
        Ok(())
    }

    /// Bytes on the device.
    pub fn n_bytes(&self) -> usize {
        self.values.n_bytes() + self.grads.n_bytes()
    }

    /// The embedding on the device, if it is trained.
    pub(super) fn embedding(&self) -> Option<&StoreTensor> {
        self.adapters[0].whole(TOKEN_EMBD)
    }
}
