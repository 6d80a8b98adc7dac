//! The plan's frequencies as graph ops: the only file that rotates.
//!
//! On the CPU, a table of cosines and sines is made once per micro-batch (angles in f64). Elsewhere, `ggml_rope_ext`
//! rotates: a geometric series is its base and scale, and any other frequency per pair is a factor that divides an
//! angle of base 1. A base per head is the same op over a tensor seen as one head of `n_embd_head * n_head`
//! dimensions. For training at positions that are not integers, ops of every backend apply the table there.

use ggml::graph::{Builder, Executor, InputId};
use ggml::ops::RopeParams;
use ggml::tensor::Tensor;
use ggml::{DType, Error, Result};
use rayon::prelude::*;

use crate::hparams::LayerAttention;
use crate::rope::{Freqs, LayerPlan, PosMap};

/// Which dimensions of a head form a pair. A property of an architecture's weights, not of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// `(2j, 2j+1)`: Llama.
    Adjacent,
    /// `(j, j + n_rot/2)`: GPT-NeoX, Qwen2.
    Halves,
}

/// The rotation of one kind of layer in one graph, its inputs declared: one lowering for each position map in
/// use. They are filled before the graph runs.
#[derive(Debug, Clone)]
pub struct Rotation {
    maps: Vec<(PosMap, Lowering)>,
    neox: bool,
    /// Factor on queries, F32 `[1, 1, T]`.
    q_scale: Option<InputId>,
}

/// The rotation under one position map.
#[derive(Debug, Clone, Copy)]
enum Lowering {
    /// Layers without rotation: queries and keys as they are.
    Nothing,
    /// Our op, by a table F32 `[n_rot, n_tables, T]`: cosines, then sines.
    Table(InputId),
    /// Products with cosines and sines, F32 `[n_rot/2, 1, T]` each.
    Products([InputId; 2]),
    /// `ggml_rope_ext`.
    Scalars {
        /// Positions, I32 `[T]`.
        pos: InputId,
        /// Divisors of the angles, F32: of all query heads, or of one head when there is one table. `None`
        /// for a geometric series.
        q: Option<InputId>,
        /// The same of all key heads, when there is a table for each.
        k: Option<InputId>,
        params: RopeParams,
    },
}

impl Rotation {
    /// Declares the inputs of every map among `maps`, once each: a table where the device runs our op, else
    /// positions and factors for `ggml_rope_ext`.
    pub fn new(
        b: &Builder<'_>,
        layer: &LayerAttention,
        plan: &LayerPlan,
        pairing: Pairing,
        n_tokens: usize,
        by_table: bool,
        maps: impl Iterator<Item = PosMap>,
    ) -> Result<Rotation> {
        let mut all: Vec<(PosMap, Lowering)> = Vec::new();
        for map in maps {
            if all.iter().all(|(m, _)| *m != map) {
                all.push((map, Lowering::new(b, layer, plan, pairing, n_tokens, by_table, map)?));
            }
        }
        Rotation::declared(b, plan, pairing, n_tokens, all)
    }

    /// The same for positions that need not be whole numbers, as they are, in ops of every backend: for plans with
    /// one table for all heads.
    pub fn of_products(
        b: &Builder<'_>,
        plan: &LayerPlan,
        pairing: Pairing,
        n_tokens: usize,
    ) -> Result<Rotation> {
        if plan.freqs.n_tables != 1 || plan.freqs.n_pairs() == 0 {
            let what = format!("expected one table of frequencies, found {}", plan.freqs.n_tables);
            return Err(Error::Op { op: "rope", what });
        }
        let shape = [plan.freqs.n_pairs(), 1, n_tokens];
        let (cos, _) = b.input("rope_cos", DType::F32, &shape)?;
        let (sin, _) = b.input("rope_sin", DType::F32, &shape)?;
        let all = vec![(PosMap::IDENTITY, Lowering::Products([cos, sin]))];
        Rotation::declared(b, plan, pairing, n_tokens, all)
    }

    fn declared(
        b: &Builder<'_>,
        plan: &LayerPlan,
        pairing: Pairing,
        n_tokens: usize,
        maps: Vec<(PosMap, Lowering)>,
    ) -> Result<Rotation> {
        let scale = || b.input("q_scale", DType::F32, &[1, 1, n_tokens]);
        let q_scale = plan.scales_queries().then(scale).transpose()?.map(|(id, _)| id);
        Ok(Rotation { maps, neox: pairing == Pairing::Halves, q_scale })
    }

    /// The gradient of each angle, F32 `[n_rot/2, n_heads, T]`, from queries or keys as [`Rotation::queries`] and
    /// [`Rotation::keys`] gave them and the gradient of that.
    pub fn angles_back<'c>(
        &self,
        b: &Builder<'c>,
        rotated: Tensor<'c>,
        grad: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let n_rot = match self.at(PosMap::IDENTITY)? {
            Lowering::Table(table) => b.given(table)?.ne()[0],
            Lowering::Products([cos, _]) => 2 * b.given(cos)?.ne()[0],
            Lowering::Nothing | Lowering::Scalars { .. } => {
                return Err(Error::Op { op: "rope", what: "angles have no gradient without a table".into() })
            }
        };
        let ([x, y], [d_x, d_y]) = (pairs(b, rotated, n_rot, self.neox)?, pairs(b, grad, n_rot, self.neox)?);
        b.sub(b.mul(d_y, x)?, b.mul(d_x, y)?)
    }

    fn at(&self, map: PosMap) -> Result<Lowering> {
        let of_map = self.maps.iter().find(|(m, _)| *m == map).map(|(_, lowering)| *lowering);
        of_map.ok_or_else(|| Error::Op { op: "rope", what: format!("no input for positions under {map:?}") })
    }

    /// Rotates query heads F32 `[d, n_head, T]` at positions under this map. Without the table op, halves
    /// with a base for each head come back with pairs side by side, in queries and keys alike.
    pub fn queries<'c>(&self, b: &Builder<'c>, x: Tensor<'c>, map: PosMap) -> Result<Tensor<'c>> {
        let q = self.turn(b, x, map, false, false)?;
        self.q_scale.map_or(Ok(q), |scale| b.mul(q, b.given(scale)?))
    }

    /// Rotates key heads F32 `[d, n_head_kv, T]` at positions under this map.
    pub fn keys<'c>(&self, b: &Builder<'c>, x: Tensor<'c>, map: PosMap) -> Result<Tensor<'c>> {
        self.turn(b, x, map, true, false)
    }

    /// The gradient of the queries given, where that of [`Rotation::queries`]' result is `grad`.
    pub fn queries_back<'c>(&self, b: &Builder<'c>, grad: Tensor<'c>, map: PosMap) -> Result<Tensor<'c>> {
        let grad = self.q_scale.map_or(Ok(grad), |scale| b.mul(grad, b.given(scale)?))?;
        self.turn(b, grad, map, false, true)
    }

    /// The gradient of the keys given, where that of [`Rotation::keys`]' result is `grad`.
    pub fn keys_back<'c>(&self, b: &Builder<'c>, grad: Tensor<'c>, map: PosMap) -> Result<Tensor<'c>> {
        self.turn(b, grad, map, true, true)
    }

    /// Turns queries or keys by the angles of a map, or gradients of the result back by them.
    fn turn<'c>(
        &self,
        b: &Builder<'c>,
        x: Tensor<'c>,
        map: PosMap,
        keys: bool,
        back: bool,
    ) -> Result<Tensor<'c>> {
        let [_, heads, n, _] = x.ne();
        match self.at(map)? {
            Lowering::Nothing => b.cont(x),
            Lowering::Table(table) => b.rope_table(x, b.given(table)?, self.neox, back),
            Lowering::Products([cos, sin]) => {
                let (cos, sin) = (b.given(cos)?, b.given(sin)?);
                let [first, second] = pairs(b, x, 2 * cos.ne()[0], self.neox)?;
                let sum = |x, y, minus: bool| if minus { b.sub(x, y) } else { b.add(x, y) };
                let turned = [
                    sum(b.mul(first, cos)?, b.mul(second, sin)?, !back)?,
                    sum(b.mul(second, cos)?, b.mul(first, sin)?, back)?,
                ];
                with_rest(b, from_pairs(b, turned, self.neox)?, x)
            }
            Lowering::Scalars { pos, q, k, params } => {
                let pos = b.given(pos)?;
                let factors = if keys { k.or(q) } else { q };
                let factors = factors.map(|id| b.given(id)).transpose()?;
                if k.is_none() {
                    return b.rope(x, pos, factors, &params, back);
                }
                let n_rot = params.n_dims;
                let swapped = |x, shape: [usize; 3]| b.cont(b.permute(b.reshape(x, &shape)?, [1, 0, 2, 3])?);
                let mut turned = b.cont(b.columns(x, 0, n_rot)?)?;
                // Queries and keys permuted alike have the same products, so pairs side by side need no way
                // back.
                if self.neox && !back {
                    turned = swapped(turned, [n_rot / 2, 2, heads * n])?;
                }
                let one_head = b.reshape(turned, &[n_rot * heads, 1, n])?;
                let params = RopeParams { n_dims: n_rot * heads, ..params };
                turned = b.rope(one_head, pos, factors, &params, back)?;
                if self.neox && back {
                    turned = swapped(turned, [2, n_rot / 2, heads * n])?;
                }
                with_rest(b, b.reshape(turned, &[n_rot, heads, n])?, x)
            }
        }
    }
}

/// The first and the second dimensions of the pairs of `x`, `[d, H, T]`: `[n_rot/2, H, T]` each.
fn pairs<'c>(b: &Builder<'c>, x: Tensor<'c>, n_rot: usize, neox: bool) -> Result<[Tensor<'c>; 2]> {
    let [_, heads, n, _] = x.ne();
    let half = n_rot / 2;
    if neox {
        return Ok([b.cont(b.columns(x, 0, half)?)?, b.cont(b.columns(x, half, half)?)?]);
    }
    let sides = b.reshape(b.cont(b.columns(x, 0, n_rot)?)?, &[2, half, heads * n])?;
    let side = |i: usize| b.reshape(b.cont(b.columns(sides, i, 1)?)?, &[half, heads, n]);
    Ok([side(0)?, side(1)?])
}

/// The other way: pairs `[n_rot/2, H, T]` as heads `[n_rot, H, T]`.
fn from_pairs<'c>(b: &Builder<'c>, [x, y]: [Tensor<'c>; 2], neox: bool) -> Result<Tensor<'c>> {
    let [half, heads, n, _] = x.ne();
    if neox {
        return b.concat(x, y, 0);
    }
    let side = |t: Tensor<'c>| b.reshape(t, &[1, half, heads * n]);
    b.reshape(b.concat(side(x)?, side(y)?, 0)?, &[2 * half, heads, n])
}

impl Lowering {
    fn new(
        b: &Builder<'_>,
        layer: &LayerAttention,
        plan: &LayerPlan,
        pairing: Pairing,
        n_tokens: usize,
        by_table: bool,
        map: PosMap,
    ) -> Result<Self> {
        let (n_rot, n_tables) = (plan.freqs.n_rot(), plan.freqs.n_tables);
        if n_rot == 0 {
            return Ok(Lowering::Nothing);
        }
        if by_table {
            return Ok(Lowering::Table(b.input("rope_table", DType::F32, &[n_rot, n_tables, n_tokens])?.0));
        }
        let per_head = n_tables > 1;
        let (pos, _) = b.input("pos", DType::I32, &[n_tokens])?;
        let factors = |name: &str, len: usize| b.input(name, DType::F32, &[len]).map(|(id, _)| id);
        // Factors of one head cover all of it, as ggml wants them; those of each head what is rotated.
        let len = |heads: usize| if per_head { n_rot / 2 * heads } else { layer.n_embd_head / 2 };
        let series = geometric(&plan.freqs.over(map.unit));
        let q = series.is_none().then(|| factors("rope_factors_q", len(layer.n_head))).transpose()?;
        let k = per_head.then(|| factors("rope_factors_k", len(layer.n_head_kv))).transpose()?;
        let (freq_scale, freq_base) = series.unwrap_or((1.0, 1.0));
        let neox = pairing == Pairing::Halves && !per_head;
        let params = RopeParams { n_dims: n_rot, neox, freq_base, freq_scale, mscale: plan.mscale as f32 };
        Ok(Lowering::Scalars { pos, q, k, params })
    }
}

/// `rotated`, followed by the dimensions of `x` that are not rotated: `[n_rot, H, T]` and `[d, H, T]` to `[d, H, T]`.
fn with_rest<'c>(b: &Builder<'c>, rotated: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
    let (n_rot, d) = (rotated.ne()[0], x.ne()[0]);
    if n_rot == d {
        return Ok(rotated);
    }
    b.concat(rotated, b.cont(b.columns(x, n_rot, d - n_rot)?)?, 0)
}

#[derive(Clone, Copy)]
pub enum Positions<'p> {
    Whole(&'p [i32]),
    /// Any numbers: by tables, and for the map that leaves them as they are. What depends on a position by the model's own
    /// attention temperature takes it rounded down.
    Real(&'p [f64]),
}

impl Rotation {
    /// Fills the inputs for tokens at these positions, under the layer and plan the rotation was declared
    /// with.
    pub fn fill(
        &self,
        exec: &mut Executor,
        layer: &LayerAttention,
        plan: &LayerPlan,
        pos: Positions<'_>,
        scratch: &mut Vec<f32>,
    ) -> Result<()> {
        for (map, ids) in &self.maps {
            let mapped: Vec<i32>;
            let at = match pos {
                Positions::Whole(pos) => {
                    mapped = pos.iter().map(|&i| map.at(i)).collect();
                    Positions::Whole(&mapped)
                }
                Positions::Real(_) if *map != PosMap::IDENTITY => {
                    let what = format!("positions that are no whole numbers cannot be mapped by {map:?}");
                    return Err(Error::Op { op: "rope", what });
                }
                Positions::Real(_) => pos,
            };
            ids.fill(exec, layer, &plan.freqs.over(map.unit), plan.mscale, at, scratch)?;
        }
        let Some(id) = self.q_scale else { return Ok(()) };
        let scale = |i: i32| plan.q_scale(i) as f32;
        let scales: Vec<f32> = match pos {
            Positions::Whole(pos) => pos.iter().map(|&i| scale(i)).collect(),
            Positions::Real(pos) => pos.iter().map(|&p| scale(p as i32)).collect(),
        };
        exec.set(id, &scales)
    }
}

impl Positions<'_> {
    fn real(self) -> Vec<f64> {
        match self {
            Positions::Whole(pos) => pos.iter().map(|&p| f64::from(p)).collect(),
            Positions::Real(pos) => pos.to_vec(),
        }
    }
}

impl Lowering {
    fn fill(
        &self,
        exec: &mut Executor,
        layer: &LayerAttention,
        freqs: &Freqs,
        mscale: f64,
        pos: Positions<'_>,
        scratch: &mut Vec<f32>,
    ) -> Result<()> {
        match *self {
            Lowering::Nothing => Ok(()),
            Lowering::Table(id) => {
                table(freqs, mscale, &pos.real(), scratch);
                exec.set(id, scratch)
            }
            Lowering::Products(ids) => {
                table(freqs, mscale, &pos.real(), scratch);
                let half = freqs.n_pairs();
                for (i, id) in ids.into_iter().enumerate() {
                    let rows = scratch.chunks_exact(2 * half);
                    exec.set(
                        id,
                        &rows.flat_map(|row| row[i * half..][..half].to_vec()).collect::<Vec<f32>>(),
                    )?;
                }
                Ok(())
            }
            Lowering::Scalars { pos: pos_id, q, k, .. } => {
                let Positions::Whole(pos) = pos else {
                    let what = "positions that are no whole numbers need a table".into();
                    return Err(Error::Op { op: "rope", what });
                };
                exec.set(pos_id, pos)?;
                let of_heads = |n: usize| factors(freqs, freqs.n_rot(), n);
                match (q, k) {
                    (Some(q), None) => exec.set(q, &factors(freqs, layer.n_embd_head, 1)),
                    (Some(q), Some(k)) => {
                        exec.set(q, &of_heads(layer.n_head))?;
                        exec.set(k, &of_heads(layer.n_head_kv))
                    }
                    (None, _) => Ok(()),
                }
            }
        }
    }
}

/// `(scale, base)` of a single table that is `scale * base^(-2j/n_rot)`, as ggml's scalars have it.
fn geometric(freqs: &Freqs) -> Option<(f32, f32)> {
    let [first, .., last] = freqs.theta[..] else { return None };
    if freqs.n_tables != 1 || first <= 0.0 || last <= 0.0 {
        return None;
    }
    let half = freqs.n_pairs() as f64;
    let base = (first / last).powf(half / (half - 1.0));
    let fits = |(j, t): (usize, &f64)| (t / (first * base.powf(-(j as f64) / half)) - 1.0).abs() < 1e-9;
    freqs.theta.iter().enumerate().all(fits).then_some((first as f32, base as f32))
}

/// Cosines and then sines of what `0, 1, ...` times `step` positions turn each pair of dimensions by, `[n][n_tables]
/// [n_rot]`, without magnitude: keys that are rotated already are moved by them.
pub fn turns(plan: &LayerPlan, step: usize, n: usize) -> Vec<f32> {
    let at: Vec<f64> = (0..n).map(|i| (i * step) as f64).collect();
    let mut out = Vec::new();
    table(&plan.freqs, 1.0, &at, &mut out);
    out
}

/// `[T][n_tables][n_rot]`: cosines then sines, times the plan's magnitude.
fn table(freqs: &Freqs, mscale: f64, pos: &[f64], out: &mut Vec<f32>) {
    let n_rot = freqs.n_rot();
    let per_token = n_rot * freqs.n_tables;
    out.resize(per_token * pos.len(), 0.0);
    let fill = |(row, &p): (&mut [f32], &f64)| {
        for (row, theta) in row.chunks_exact_mut(n_rot).zip(freqs.theta.chunks_exact(n_rot / 2)) {
            let (cos, sin) = row.split_at_mut(n_rot / 2);
            for ((c, s), t) in cos.iter_mut().zip(sin).zip(theta) {
                let (y, x) = (p * t).sin_cos();
                (*c, *s) = ((x * mscale) as f32, (y * mscale) as f32);
            }
        }
    };
    if out.len() > 1 << 14 {
        out.par_chunks_exact_mut(per_token).zip(pos).for_each(fill);
    } else {
        out.chunks_exact_mut(per_token).zip(pos).for_each(fill);
    }
}

/// The divisors that `ggml_rope_ext` applies to an angle of base 1: `1/theta`, infinite for pairs that are
/// not rotated. An entry for each pair of `width` dimensions of each head, where heads of a group share a table.
fn factors(freqs: &Freqs, width: usize, n_heads: usize) -> Vec<f32> {
    let half = freqs.n_pairs();
    let inverse = |t: &f64| if *t == 0.0 { f32::INFINITY } else { (1.0 / t) as f32 };
    let mut out = Vec::with_capacity(n_heads * width / 2);
    for head in 0..n_heads {
        let at = head * freqs.n_tables / n_heads * half;
        out.extend(freqs.theta[at..at + half].iter().map(inverse));
        out.resize((head + 1) * width / 2, f32::INFINITY);
    }
    out
}
