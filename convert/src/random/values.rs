//! Streams of random weights, the same on every platform and for any number of threads.
//!
//! Values come from one ChaCha8 key per seed, one stream per tensor, and a position per block of 256, so any
//! block can be made by any thread. Large tensors repeat: a pool of blocks is quantized once per type and
//! scale, and every block of the tensor is drawn from it. Speed does not depend on values, and quantizing is
//! what would take minutes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write;
use std::rc::Rc;

use gguf::DType;
use rand::RngCore;
use rand_chacha::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::rows::{self, quantize};

/// Values of one block: whole blocks of every type.
const BLOCK: usize = 256;
/// Blocks of a pool; tensors with more are drawn from it.
const POOL: usize = 8192;
/// Only tensors with rows of this many values are: two draws of four blocks or more never meet in practice,
/// so no row repeats.
const POOLED_ROW: usize = 4 * BLOCK;
/// Blocks one thread makes at a time.
const RUN: usize = 64;
/// Blocks written at a time: what bounds memory (1 Mi values).
const BATCH: usize = 64 * RUN;
/// Stream of the pool; tensors have their number plus one.
const POOL_STREAM: u64 = 0;
/// Added to a tensor's stream for its draws from the pool.
const DRAWS: u64 = 1 << 32;

/// `n` values of mean `mean` and deviation `std`, from block `block` of a stream on. Bell-shaped: each is the
/// sum of four uniform ones, which unlike a transform through logarithms is exact everywhere; none is further
/// than 3.5 deviations out.
pub(super) fn normal(seed: u64, stream: u64, block: usize, n: usize, mean: f32, std: f32) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    // Two 32-bit words make a value.
    rng.set_word_pos(2 * (block * BLOCK) as u128);
    let scale = std * 3f32.sqrt() / 65536.0;
    let one = |bits: u64| {
        let sum = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as i32).sum::<i32>();
        mean + (sum - 2 * 65535) as f32 * scale
    };
    (0..n).map(|_| one(rng.next_u64())).collect()
}

/// Pools by element type and the bits of their deviation.
type Pools = HashMap<(DType, u32), Rc<Vec<u8>>>;

/// Makes the bytes of random tensors.
pub(super) struct Source {
    pub(super) seed: u64,
    pools: RefCell<Pools>,
}

impl Source {
    pub(super) fn new(seed: u64) -> Self {
        Source { seed, pools: Default::default() }
    }

    /// Writes a tensor of `n` values in rows of `row`, whole blocks of `dtype`, with mean 0.
    pub(super) fn write(
        &self,
        out: &mut dyn Write,
        stream: u64,
        dtype: DType,
        (n, row): (usize, usize),
        std: f32,
    ) -> std::io::Result<()> {
        let n_blocks = n.div_ceil(BLOCK);
        if n_blocks <= POOL || row < POOLED_ROW {
            for start in (0..n_blocks).step_by(BATCH) {
                let n = n.min((start + BATCH) * BLOCK) - start * BLOCK;
                out.write_all(&self.blocks(stream, dtype, start, n, std)?)?;
            }
            return Ok(());
        }
        let pool = self.pool(dtype, std)?;
        let bytes = pool.len() / POOL;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(stream | DRAWS);
        let tail = n - (n_blocks - 1) * BLOCK;
        for start in (0..n_blocks).step_by(BATCH) {
            let mut batch = Vec::with_capacity(BATCH * bytes);
            for i in start..n_blocks.min(start + BATCH) {
                let at = rng.next_u32() as usize % POOL * bytes;
                // A block's bytes are divisible as its values are: 256 values are whole blocks of the type.
                let len = if i + 1 == n_blocks { bytes * tail / BLOCK } else { bytes };
                batch.extend_from_slice(&pool[at..at + len]);
            }
            out.write_all(&batch)?;
        }
        Ok(())
    }

    fn pool(&self, dtype: DType, std: f32) -> std::io::Result<Rc<Vec<u8>>> {
        let key = (dtype, std.to_bits());
        if let Some(pool) = self.pools.borrow().get(&key) {
            return Ok(pool.clone());
        }
        let pool = Rc::new(self.blocks(POOL_STREAM, dtype, 0, POOL * BLOCK, std)?);
        self.pools.borrow_mut().insert(key, pool.clone());
        Ok(pool)
    }

    /// `n` values of a stream from block `start` on, as `dtype`.
    fn blocks(
        &self,
        stream: u64,
        dtype: DType,
        start: usize,
        n: usize,
        std: f32,
    ) -> std::io::Result<Vec<u8>> {
        let seed = self.seed;
        let runs: Vec<Vec<u8>> = (0..n.div_ceil(RUN * BLOCK))
            .into_par_iter()
            .map(|i| {
                let n = (RUN * BLOCK).min(n - i * RUN * BLOCK);
                let values = normal(seed, stream, start + i * RUN, n, 0.0, std);
                quantize(dtype, n, &values)
            })
            .collect::<rows::Result<_>>()
            .map_err(std::io::Error::other)?;
        Ok(runs.concat())
    }
}
