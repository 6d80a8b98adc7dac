//! Random adapters for the tests' models.
#![allow(unreachable_pub)] // As `common`: one module of a test program.

use std::path::{Path, PathBuf};

use ropewalk::adapter::{self, AdapterFile, AdapterMeta, AdapterSpec, NewPair, NewTensor};
use ropewalk::gguf::File;
use ropewalk::model::{Model, ModelParams};
use ropewalk::DType;

/// Every linear map of a layer.
pub const LINEARS: [&str; 7] =
    ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

/// Numbers around 0, evenly spread with this deviation.
pub fn noise(n: usize, deviation: f32, seed: u64) -> Vec<f32> {
    let mut next = crate::common::xorshift(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed + 1) | 1);
    let mut unit = || (next() >> 40) as f32 / (1u32 << 24) as f32;
    (0..n).map(|_| (unit() - 0.5) * 12f32.sqrt() * deviation).collect()
}

/// By how much logits deviate from 0: what their roundings are parts of.
pub fn deviation(logits: &[f32]) -> f64 {
    (logits.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / logits.len() as f64).sqrt()
}

/// Weight, n_in, n_out, a, b.
pub type MadePair = (String, usize, usize, Vec<f32>, Vec<f32>);

/// An adapter in memory.
#[derive(Debug, Clone)]
pub struct Made {
    pub arch: String,
    pub rank: usize,
    pub alpha: f32,
    pub pairs: Vec<MadePair>,
    /// Name, shape, values.
    pub modules: Vec<(String, Vec<usize>, Vec<f32>)>,
    pub meta: AdapterMeta,
    pub dtype: DType,
}

impl Made {
    /// Pairs on all linear maps of all layers, and on the output where asked, large enough to change every logit.
    pub fn on(model: &Path, rank: usize, output: bool, seed: u64) -> Made {
        let file = File::open(model).unwrap();
        let n_layer = file.tensors().iter().filter(|t| t.name.ends_with("attn_q.weight")).count();
        let mut weights: Vec<String> =
            (0..n_layer).flat_map(|il| LINEARS.map(|name| format!("blk.{il}.{name}.weight"))).collect();
        if output {
            weights.push("output.weight".into());
        }
        let pairs = weights.into_iter().enumerate().map(|(i, weight)| {
            let t = file.tensor(adapter::target(&file, &weight)).unwrap();
            let (n_in, n_out) = (t.shape[0] as usize, t.shape[1] as usize);
            let seed = seed * 1000 + 2 * i as u64;
            let a = noise(n_in * rank, (n_in as f32).sqrt().recip(), seed);
            (weight, n_in, n_out, a, noise(rank * n_out, 0.15, seed + 1))
        });
        Made {
            arch: file.get("general.architecture").unwrap(),
            rank,
            alpha: 2.0 * rank as f32,
            pairs: pairs.collect(),
            modules: Vec::new(),
            meta: AdapterMeta { base: Some(adapter::fingerprint(&file)), ..AdapterMeta::default() },
            dtype: DType::F32,
        }
    }

    /// Also with norms and the embedding as values of the adapter.
    pub fn with_whole(mut self, model: &Path) -> Made {
        let file = File::open(model).unwrap();
        let names =
            ["blk.0.attn_norm.weight", "blk.1.ffn_norm.weight", "output_norm.weight", "token_embd.weight"];
        for (i, name) in names.into_iter().enumerate() {
            let t = file.tensor(name).unwrap();
            let mut values = ggml::dtype::dequantize_tensor(&file, t).unwrap();
            let changes = noise(values.len(), 0.1, 77 + i as u64);
            values.iter_mut().zip(changes).for_each(|(v, n)| *v += n);
            self.modules.push((name.into(), t.shape.iter().map(|&n| n as usize).collect(), values));
        }
        self
    }

    pub fn try_write(&self, path: &Path) -> gguf::Result<u64> {
        let pairs = self.pairs.iter().map(|(weight, n_in, n_out, a, b)| NewPair {
            weight: weight.clone(),
            n_in: *n_in,
            n_out: *n_out,
            a,
            b,
        });
        let modules = self.modules.iter();
        let file = AdapterFile {
            arch: &self.arch,
            rank: self.rank,
            alpha: self.alpha,
            pairs: pairs.collect(),
            modules_to_save: modules
                .map(|(name, shape, values)| NewTensor { name: name.clone(), shape: shape.clone(), values })
                .collect(),
            meta: self.meta.clone(),
            dtype: self.dtype,
        };
        adapter::write(path, &file)
    }

    /// Written into the tests' folder.
    pub fn write(&self, name: &str) -> PathBuf {
        let path = crate::common::scratch(name);
        self.try_write(&path).unwrap_or_else(|e| panic!("{e}"));
        path
    }
}

pub fn spec(path: &Path, scale: f32) -> AdapterSpec {
    AdapterSpec::new(path.to_owned(), scale)
}

pub fn params(adapters: &[(&Path, f32)]) -> ModelParams {
    let adapters = adapters.iter().map(|(path, scale)| spec(path, *scale)).collect();
    ModelParams::cpu().adapters(adapters)
}

/// The model with adapters.
pub fn load_with(model: &Path, adapters: &[(&Path, f32)]) -> Model {
    Model::load(model, &params(adapters)).unwrap_or_else(|e| panic!("{e}"))
}
