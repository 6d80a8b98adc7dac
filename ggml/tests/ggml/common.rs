//! Helpers of the op and graph tests: seeded numbers, one-shot graphs, error measures.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../tests/common/rounding.rs"]
mod rounding;

use std::f64::consts::SQRT_2;
use std::sync::Arc;

use ggml::attention::{index_mask, mask_shape, place_mask, placed_shape, KEYS};
use ggml::backend::Device;
use ggml::graph::{Builder, Executor, InputId, Outcome, OutputId};
use ggml::tensor::{Store, StoreTensor, Tensor, TensorDef};
use ggml::{dtype, DType, Error, Result};

pub use rounding::{rounding, two_orders, UNIT};

pub fn cpu() -> Device {
    Device::find("cpu").unwrap()
}

/// Whose threads divide the smallest op.
pub fn executor(n_threads: usize) -> Executor {
    Executor::dividing_from(0, cpu(), n_threads).unwrap()
}

/// Whose ops are ggml's.
pub fn portable() -> Executor {
    Executor::portable(cpu()).unwrap()
}

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// In `lo..=hi`.
    pub fn int(&mut self, lo: usize, hi: usize) -> usize {
        lo + (self.next() % (hi - lo + 1) as u64) as usize
    }
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.int(0, of.len() - 1)]
    }
    /// In `-1..1`.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

enum Values {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F16(Vec<u16>),
}

/// Inputs of a one-shot graph with what fills them.
#[derive(Default)]
pub struct Feed(Vec<(InputId, Values)>);

impl Feed {
    pub fn f32<'c>(&mut self, b: &Builder<'c>, shape: &[usize], v: &[f32]) -> Result<Tensor<'c>> {
        let (id, t) = b.input("f32", DType::F32, shape)?;
        self.0.push((id, Values::F32(v.to_vec())));
        Ok(t)
    }
    pub fn i32<'c>(&mut self, b: &Builder<'c>, v: &[i32]) -> Result<Tensor<'c>> {
        self.i32_of(b, &[v.len()], v)
    }
    pub fn i32_of<'c>(&mut self, b: &Builder<'c>, shape: &[usize], v: &[i32]) -> Result<Tensor<'c>> {
        let (id, t) = b.input("i32", DType::I32, shape)?;
        self.0.push((id, Values::I32(v.to_vec())));
        Ok(t)
    }
    pub fn i64<'c>(&mut self, b: &Builder<'c>, v: &[i64]) -> Result<Tensor<'c>> {
        let (id, t) = b.input("i64", DType::I64, &[v.len()])?;
        self.0.push((id, Values::I64(v.to_vec())));
        Ok(t)
    }
    pub fn f16<'c>(&mut self, b: &Builder<'c>, shape: &[usize], v: &[f32]) -> Result<Tensor<'c>> {
        let (id, t) = b.input("f16", DType::F16, shape)?;
        let bits = v.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
        self.0.push((id, Values::F16(bits)));
        Ok(t)
    }
    /// The mask of [`Builder::attention`].
    pub fn mask<'c>(
        &mut self,
        b: &Builder<'c>,
        [n_columns, n_tokens]: [usize; 2],
        v: &[f32],
    ) -> Result<Tensor<'c>> {
        let shape = mask_shape(n_columns, n_tokens)?;
        let (id, t) = b.input("mask", DType::F16, &shape)?;
        let mut bits: Vec<u16> = v.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
        bits.resize(shape[0] * shape[1], 0xffff);
        index_mask(&mut bits, n_columns, n_tokens)?;
        self.0.push((id, Values::F16(bits)));
        Ok(t)
    }
    /// The mask of [`Builder::placed_attention`], with the rows and the place of each block.
    pub fn placed_mask<'c>(
        &mut self,
        b: &Builder<'c>,
        n_tokens: usize,
        v: &[f32],
        blocks: &[([u32; KEYS], u16)],
    ) -> Result<Tensor<'c>> {
        let n_columns = blocks.len() * KEYS;
        let shape = placed_shape(n_columns, n_tokens)?;
        let (id, t) = b.input("mask", DType::F16, &shape)?;
        let mut bits: Vec<u16> = v.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
        bits.resize(shape[0] * shape[1], 0xffff);
        place_mask(&mut bits, n_columns, n_tokens, blocks.iter().copied())?;
        self.0.push((id, Values::F16(bits)));
        Ok(t)
    }
}

/// Builds, fills, computes, reads.
pub fn eval(
    exec: &mut Executor,
    f: impl for<'c> FnOnce(&Builder<'c>, &mut Feed) -> Result<Tensor<'c>>,
) -> Result<Vec<f32>> {
    eval_all(exec, 1, |b, feed| Ok([f(b, feed)?])).map(|[out]| out)
}

/// Builds a graph with several results, fills and computes it so many times, and reads them.
pub fn eval_all<const N: usize>(
    exec: &mut Executor,
    times: usize,
    f: impl for<'c> FnOnce(&Builder<'c>, &mut Feed) -> Result<[Tensor<'c>; N]>,
) -> Result<[Vec<f32>; N]> {
    let mut feed = Feed::default();
    let ids = exec.build::<_, Error>(128, |b| Ok(f(b, &mut feed)?.map(|t| b.output(t))))?;
    let mut all = ids.map(|_| Vec::new());
    compute(exec, times, &feed, &ids, &mut all)?;
    Ok(all)
}

/// The part that does not depend on the function that builds: compiled once.
fn compute(
    exec: &mut Executor,
    times: usize,
    feed: &Feed,
    ids: &[OutputId],
    all: &mut [Vec<f32>],
) -> Result<()> {
    for _ in 0..times {
        for (id, values) in &feed.0 {
            match values {
                Values::F32(v) => exec.set(*id, v)?,
                Values::I32(v) => exec.set(*id, v)?,
                Values::I64(v) => exec.set(*id, v)?,
                Values::F16(v) => exec.set(*id, v)?,
            }
        }
        assert_eq!(exec.compute()?, Outcome::Done);
    }
    ids.iter().zip(all).try_for_each(|(id, out)| exec.read_f32(*id, out))
}

/// Runs `f` on a builder with room.
pub fn with(f: impl for<'c> FnOnce(&Builder<'c>) -> Result<()>) {
    executor(1).measure::<_, Error>(512, f).unwrap();
}

/// A writable stored tensor of this type, and the values it really holds.
pub fn stored(dtype: DType, shape: &[usize], values: &[f32]) -> (StoreTensor, Vec<f32>) {
    let store = Store::new(cpu(), vec![TensorDef::new("w", dtype, shape).unwrap()], "a test").unwrap();
    let bytes = dtype::quantize(dtype, shape[0], values).unwrap();
    store.write(0, 0, &bytes).unwrap();
    let mut held = vec![0.0; values.len()];
    dtype::dequantize(dtype, &bytes, &mut held).unwrap();
    (StoreTensor { store, index: 0 }, held)
}

/// The values of a stored tensor, as floats.
pub fn contents(t: &StoreTensor) -> Vec<f32> {
    let def = t.def();
    let mut bytes = vec![0u8; def.n_bytes().unwrap()];
    t.store.read(t.index, 0, &mut bytes).unwrap();
    let mut out = vec![0.0; def.ne.iter().product()];
    dtype::dequantize(def.dtype, &bytes, &mut out).unwrap();
    out
}

/// The first `used` cells of a cache whose cells hold their heads side by side, as `[d, used, n_heads]`.
pub fn heads_of<'c>(b: &Builder<'c>, t: Tensor<'c>, d: usize, used: usize, n: usize) -> Result<Tensor<'c>> {
    let head = t.dtype().row_bytes(d).unwrap();
    b.view(t, [d, used, n, 1], [t.nb()[1], head, t.nb()[2]], 0)
}

/// Heads to rotate: x `[d, n_head, T]`, the first `n_rot` dimensions by `pos * theta(head, pair)`.
pub struct Heads {
    pub d: usize,
    pub n_head: usize,
    pub n_rot: usize,
    /// Pairs `(j, j + n_rot/2)` rather than `(2j, 2j + 1)`.
    pub halves: bool,
}

impl Heads {
    /// Where the two members of a pair are in a head.
    pub fn pair(&self, j: usize) -> (usize, usize) {
        if self.halves {
            (j, j + self.n_rot / 2)
        } else {
            (2 * j, 2 * j + 1)
        }
    }

    /// The head, and the pair in it, that an element of all tokens is of; none if it is not rotated.
    pub fn head_and_pair(&self, i: usize) -> Option<(usize, usize)> {
        let (head, i) = (i / self.d % self.n_head, i % self.d);
        let pair = if self.halves { i % (self.n_rot / 2) } else { i / 2 };
        (i < self.n_rot).then_some((head, pair))
    }

    /// How far a rotated element of numbers within -1..1 may be off, whose angle is off by so many parts of
    /// `pos * theta`.
    pub fn off(
        &self,
        i: usize,
        pos: &[i32],
        theta: impl Fn(usize, usize) -> f64,
        parts: impl Fn(usize) -> f64,
        mscale: f64,
    ) -> f64 {
        let Some((head, pair)) = self.head_and_pair(i) else { return 0.0 };
        let angle = f64::from(pos[i / (self.d * self.n_head)]) * theta(head, pair);
        // A pair is no longer than a root of 2. Cosine and sine are right to 2 of these units; their factor,
        // a product and a sum.
        SQRT_2 * mscale.abs() * (angle.abs() * parts(pair) + 5.0 * UNIT)
    }

    /// The rotation by definition, in f64.
    pub fn rotate(
        &self,
        x: &[f64],
        pos: &[i32],
        theta: impl Fn(usize, usize) -> f64,
        mscale: f64,
    ) -> Vec<f64> {
        let mut y = x.to_vec();
        for (t, &p) in pos.iter().enumerate() {
            for h in 0..self.n_head {
                let at = (t * self.n_head + h) * self.d;
                for j in 0..self.n_rot / 2 {
                    let (a, b) = self.pair(j);
                    let (sin, cos) = (f64::from(p) * theta(h, j)).sin_cos();
                    y[at + a] = (x[at + a] * cos - x[at + b] * sin) * mscale;
                    y[at + b] = (x[at + a] * sin + x[at + b] * cos) * mscale;
                }
            }
        }
        y
    }
}

/// How far the angles of pair `j` may be off, in parts of them, which ggml multiplies up from pair to pair:
/// of a ratio with a rounded exponent, itself right to 2 of these units, and a rounding of each product.
pub fn series_off(base: f64, n_rot: usize, j: usize) -> f64 {
    UNIT * j as f64 * (3.0 + 2.0 * base.ln() / n_rot as f64)
}

/// The logistic function, and how far it may be off, in parts of it: exponentials are right to 4 of these
/// units, of what may have been rounded twice; a sum and a quotient.
pub fn logistic(x: f64) -> (f64, f64) {
    let s = 1.0 / (1.0 + (-x).exp());
    (s, UNIT * ((4.0 + 2.0 * x.abs()) * (1.0 - s) + 2.0))
}

/// `x` times its logistic function, and how far it may be off, with a product.
pub fn silu(x: f64) -> (f64, f64) {
    let (s, parts) = logistic(x);
    (x * s, (x * s).abs() * (parts + UNIT))
}

/// `[T][n_tables][n_rot]`: cosines then sines, rounded once from f64.
pub fn table(pos: &[i32], n_tables: usize, n_rot: usize, theta: impl Fn(usize, usize) -> f64) -> Vec<f32> {
    let mut out = Vec::new();
    for &p in pos {
        for i in 0..n_tables {
            let angle = |j: usize| f64::from(p) * theta(i, j);
            out.extend((0..n_rot / 2).map(|j| angle(j).cos() as f32));
            out.extend((0..n_rot / 2).map(|j| angle(j).sin() as f32));
        }
    }
    out
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn magnitude(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum()
}

/// Adds a multiple.
pub fn add(to: &mut [f64], x: &[f64], factor: f64) {
    to.iter_mut().zip(x).for_each(|(t, x)| *t += x * factor);
}

pub fn to_f64(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

pub fn one(store: &Arc<Store>, index: usize) -> StoreTensor {
    StoreTensor { store: Arc::clone(store), index }
}

/// Every value within its bound of the expected one.
pub fn assert_within(got: &[f32], want: &[f64], bound: impl Fn(usize) -> f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(*g) - w).abs();
        assert!(off <= bound(i), "{what}: [{i}] is {g}, expected {w}, off by {off:e}, bound {:e}", bound(i));
    }
}

/// Fails unless it is an error of this op, with a message.
pub fn refused<T>(result: Result<T>, op: &str) {
    match result {
        Err(Error::Op { op: found, what }) => {
            assert_eq!(found, op, "{what}");
            assert!(!what.is_empty());
        }
        Err(other) => panic!("{op}: another error: {other}"),
        Ok(_) => panic!("{op}: accepted"),
    }
}
