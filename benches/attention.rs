//! Attention in operations a second (two for each multiply-add of keys and values that are seen): a prompt's last 512 tokens,
//! and a single one. On one core of the CPU our own op, ggml's flash attention, attention by tiles of keys, which is made of
//! ops of every backend, and what a single token does on devices in place of that; where `ROPEWALK_BENCH_DEVICE` names another
//! device, as `--device` does, all but the first there. Times are those of the processor, which other work on the machine changes less, where `ROPEWALK_BENCH_CLOCK` is `cpu`.
//!
//!     cargo bench --bench attention                      all of them
//!     cargo bench --bench attention -- tiles 1x8192_f16  those with one of these parts in their names

use std::ops::Range;
use std::time::{Duration, Instant};

use ggml::attention::{index_mask, mask_shape, AttentionBranch, Scoring};
use ggml::backend::Device;
use ggml::graph::{Builder, Executor, InputId};
use ggml::machine::processor_time;
use ggml::tensor::{Store, StoreTensor, Tensor, TensorDef};
use ggml::{dtype, DType, Error, Result};
use ropewalk::internals::graph::{
    middle_and_half, n_tensors_of_single, n_tensors_of_tiles, Online, Part, Places, Single, TILE_BYTES,
};

const D: usize = 64;
const N_HEAD: usize = 9;
const N_HEAD_KV: usize = 3;

fn values(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}

fn device() -> Result<Device> {
    Device::find(&std::env::var("ROPEWALK_BENCH_DEVICE").unwrap_or_else(|_| "cpu".into()))
}

fn cache(dtype: DType, n_kv: usize) -> Result<[StoreTensor; 2]> {
    let row = D * N_HEAD_KV;
    let defs = ["k", "v"].map(|name| TensorDef::new(name, dtype, &[row, n_kv]));
    let store = Store::new(device()?, defs.into_iter().collect::<Result<_>>()?, "a bench")?;
    let bytes = dtype::quantize(dtype, row, &values(row * n_kv))?;
    store.write(0, 0, &bytes)?;
    store.write(1, 0, &bytes)?;
    Ok([0, 1].map(|index| StoreTensor { store: store.clone(), index }))
}

/// The heads of some keys or values, `[D, keys, N_HEAD_KV]`.
fn heads<'c>(b: &Builder<'c>, t: &StoreTensor, keys: Range<usize>) -> Result<Tensor<'c>> {
    let t = b.stored(t)?;
    let (head, row) = (t.dtype().row_bytes(D).unwrap_or(0), t.nb()[1]);
    b.view(t, [D, keys.len(), N_HEAD_KV, 1], [row, head, t.nb()[2]], keys.start * row)
}

/// Causal attention of the last `n` positions by tiles of keys, in `parts` branches.
fn load_tiles(n: usize, n_kv: usize, dtype: DType, parts: usize) -> Result<Executor> {
    let [k, v] = cache(dtype, n_kv)?;
    let mut exec = Executor::new(device()?, 1)?;
    // As windows do, each branch has an equal share of the keys, and no others.
    let share = |part: usize| (part * n_kv).div_ceil(parts)..((part + 1) * n_kv).div_ceil(parts);
    let n_tensors = 64 + n_tensors_of_tiles(n * N_HEAD, (0..parts).map(|part| share(part).len()));
    let (q, places) = exec.build::<(InputId, Places), Error>(n_tensors, |b| {
        let (q_id, q) = b.input("q", DType::F32, &[D, N_HEAD, n])?;
        let seen = Places::new(b, [n_kv, 1], n, parts)?;
        let part = |range: usize| {
            let (k, v) = (heads(b, &k, share(range))?, heads(b, &v, share(range))?);
            Ok(Part { branch: AttentionBranch { q, k, v }, first: share(range).start, range })
        };
        let all = (0..parts).map(part).collect::<Result<Vec<_>>>()?;
        let scoring = Scoring::from(1.0 / (D as f32).sqrt());
        let online = Online { b, seen, scoring, tile_bytes: TILE_BYTES };
        b.output(online.forward(&all)?.heads(b)?);
        Ok((q_id, seen))
    })?;
    exec.set(q, &values(D * N_HEAD * n))?;
    exec.set(places.keys, &(0..n_kv).map(|key| key as f32).collect::<Vec<_>>())?;
    exec.set(places.tables, &vec![0i32; n])?;
    let seen = |part: usize, t: usize| {
        let keys = share(part);
        middle_and_half(keys.start as i32..keys.end.min(n_kv - n + t + 1) as i32)
    };
    let numbers = (0..parts).flat_map(|part| (0..2).map(move |i| (part, i)));
    let ranges: Vec<f32> = numbers.flat_map(|(part, i)| (0..n).map(move |t| seen(part, t)[i])).collect();
    exec.set(places.ranges, &ranges)?;
    Ok(exec)
}

/// Keys of the shorter of two branches in [`load_single`].
const WINDOW: usize = 512;

/// Attention of a single token to all keys: in two branches, one of which is a window, or in more that are equally long.
fn load_single(n: usize, n_kv: usize, dtype: DType, parts: usize) -> Result<Executor> {
    let [k, v] = cache(dtype, n_kv)?;
    let mut exec = Executor::new(device()?, 1)?;
    let share = |part: usize| match parts {
        2 => [0..n_kv - WINDOW, n_kv - WINDOW..n_kv][part].clone(),
        // Cells are attended to in blocks, and flash attention wants its keys to begin at such places.
        _ => (part * n_kv / parts).next_multiple_of(256)..((part + 1) * n_kv / parts).next_multiple_of(256),
    };
    let (q, mask) = exec.build::<(InputId, InputId), Error>(64 + n_tensors_of_single(parts), |b| {
        let (q_id, q) = b.input("q", DType::F32, &[D, N_HEAD, n])?;
        let (mask_id, mask) = b.input("mask", DType::F16, &[n_kv, n])?;
        let part = |range: usize| {
            let (k, v) = (heads(b, &k, share(range))?, heads(b, &v, share(range))?);
            Ok(Part { branch: AttentionBranch { q, k, v }, first: share(range).start, range })
        };
        let all = (0..parts).map(part).collect::<Result<Vec<_>>>()?;
        let scoring = Scoring::from(1.0 / (D as f32).sqrt());
        b.output(Single { b, mask, mask_f32: b.to_f32(mask)?, scoring }.forward(&all)?);
        Ok((q_id, mask_id))
    })?;
    exec.set(q, &values(D * N_HEAD * n))?;
    exec.set(mask, &vec![0u16; n_kv * n])?;
    Ok(exec)
}

/// Causal attention of the last `n` positions, in `parts` branches (0: ggml's own op).
fn load(n: usize, n_kv: usize, dtype: DType, parts: usize) -> Result<Executor> {
    let [k, v] = cache(dtype, n_kv)?;
    let mut exec = Executor::new(device()?, 1)?;
    let n_columns = n_kv * parts.max(1);
    let shape = if parts == 0 { [n_columns, n] } else { mask_shape(n_columns, n)? };
    let (q, mask) = exec.build::<(InputId, InputId), Error>(32, |b| {
        let (q_id, q) = b.input("q", DType::F32, &[D, N_HEAD, n])?;
        let (mask_id, mask) = b.input("mask", DType::F16, &shape)?;
        let (k, v, scale) = (heads(b, &k, 0..n_kv)?, heads(b, &v, 0..n_kv)?, 1.0 / (D as f32).sqrt());
        b.output(match parts {
            0 => b.flash_attn(b.permute(q, [0, 2, 1, 3])?, k, v, mask, scale)?,
            _ => b.attention(&vec![AttentionBranch { q, k, v }; parts], mask, scale)?,
        });
        Ok((q_id, mask_id))
    })?;
    exec.set(q, &values(D * N_HEAD * n))?;
    // Each branch has an equal share of the keys, as windows do.
    let bits = |i: usize| {
        let (t, c) = (i / n_columns, i % n_columns);
        let (part, c) = (c / n_kv, c % n_kv);
        let mine = c * parts.max(1) / n_kv == part;
        if mine && c + n <= n_kv + t {
            0u16
        } else {
            0xfc00
        }
    };
    let mut values: Vec<u16> = (0..n_columns * n).map(bits).collect();
    if parts > 0 {
        values.resize(shape[0] * shape[1], 0);
        index_mask(&mut values, n_columns, n)?;
    }
    exec.set(mask, &values)?;
    Ok(exec)
}

/// The time since some moment that passed, or that processors spent on this process.
fn now(start: Instant) -> Duration {
    let of_processors = std::env::var("ROPEWALK_BENCH_CLOCK").is_ok_and(|kind| kind == "cpu");
    let spent = if of_processors { processor_time() } else { None };
    spent.unwrap_or_else(|| start.elapsed())
}

/// Samples of a cell, of about 40 ms each.
const SAMPLES: usize = 20;
const SAMPLE: f64 = 0.04;

/// Seconds of a run: the median of the samples.
fn seconds(exec: &mut Executor) -> Result<f64> {
    let start = Instant::now();
    let mut sample = |n: usize| -> Result<f64> {
        let at = now(start);
        for _ in 0..n {
            exec.compute()?;
        }
        Ok((now(start) - at).as_secs_f64() / n as f64)
    };
    sample(1)?;
    let n = (SAMPLE / sample(1)?).clamp(1.0, 1e6) as usize;
    let mut all = (0..SAMPLES).map(|_| sample(n)).collect::<Result<Vec<_>>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[SAMPLES / 2])
}

fn main() -> Result<()> {
    // `cargo bench` adds another option. The others are parts of names.
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let on_cpu = device()?.is_cpu();
    for (n, n_kv) in
        [(512usize, 2048usize), (512, 8192), (512, 16384), (8, 8192), (1, 4096), (1, 8192), (1, 16384)]
    {
        let seen = n * n_kv - n * (n - 1) / 2;
        let n_ops = (4 * seen * N_HEAD * D) as f64;
        for dtype in [DType::F16, DType::Q8_0] {
            type Load = fn(usize, usize, DType, usize) -> Result<Executor>;
            let own = [("attention", load as Load, 1), ("attention_3", load, 3)];
            let all = [("flash_attn", load as Load, 0), ("tiles", load_tiles, 1), ("tiles_3", load_tiles, 3)];
            let single = [("single_window", load_single as Load, 2), ("single_3", load_single, 3)];
            let single = single.into_iter().filter(|_| n == 1);
            for (name, load, parts) in all.into_iter().chain(own.into_iter().filter(|_| on_cpu)).chain(single)
            {
                let name = format!("{name}/{n}x{n_kv}_{dtype}");
                if !asked.is_empty() && !asked.iter().any(|part| name.contains(part.as_str())) {
                    continue;
                }
                let seconds = seconds(&mut load(n, n_kv, dtype, parts)?)?;
                println!("{name:<28} {:>10.3} ms {:>9.2} Gops/s", 1e3 * seconds, n_ops / seconds / 1e9);
            }
        }
    }
    Ok(())
}
