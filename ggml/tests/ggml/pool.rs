//! Threads that share the ops of a graph: the bits do not depend on them, and those that wait sleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ggml::machine::processor_time;
use ggml::matmul::Kernel;
use ggml::DType;
use kernels::pool::{share, ThreadPool};

use crate::common::*;
use crate::process::is_alone;

/// ggml's own products of weights with one token, few and many, in shapes whose parts are not alike.
#[test]
fn products_in_parts_have_the_bits_of_the_whole() {
    let mut rng = Rng(52);
    for &dtype in DType::ALL.iter().filter(|d| d.can_quantize()) {
        let k = dtype.block_size().max(64);
        for (m, n) in [(1, 1), (97, 1), (160, 3), (161, 3), (96, 64), (70, 130), (96, 33)] {
            let (wt, _) = stored(dtype, &[k, m], &rng.values(k * m));
            let x = rng.values(k * n);
            let product = |n_threads| {
                let mut exec = if n_threads == 0 { portable() } else { executor(n_threads) };
                eval(&mut exec, |b, feed| b.mul_mat(b.stored(&wt)?, feed.f32(b, &[k, n], &x)?)).unwrap()
            };
            let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let whole = bits(product(0));
            for n_threads in [1, 2, 3, 5] {
                assert_eq!(bits(product(n_threads)), whole, "{dtype} [{k},{m}] x {n}, {n_threads} threads");
            }
        }
    }
}

#[test]
fn products_of_heads_and_experts_in_parts() {
    let mut rng = Rng(53);
    let (d, cells, kv, group, n) = (64, 40, 2, 3, 5);
    let (k, m, n_expert, n_used) = (64, 80, 4, 2);
    let (keys, q) = (rng.values(d * cells * kv), rng.values(d * n * kv * group));
    let (stack, _) = stored(DType::F16, &[k, m, n_expert], &rng.values(k * m * n_expert));
    let (x, scores) = (rng.values(k * n), rng.values(n_expert * n));
    let run = |n_threads| {
        let mut exec = if n_threads == 0 { portable() } else { executor(n_threads) };
        let scored = eval(&mut exec, |b, feed| {
            b.mul_mat(feed.f32(b, &[d, cells, kv], &keys)?, feed.f32(b, &[d, n, kv * group], &q)?)
        });
        let mixed = eval(&mut exec, |b, feed| {
            let chosen = b.top_k(feed.f32(b, &[n_expert, n], &scores)?, n_used)?;
            b.matmul_experts(Kernel::Ggml, b.stored(&stack)?, feed.f32(b, &[k, 1, n], &x)?, chosen, false)
        });
        (scored.unwrap(), mixed.unwrap())
    };
    let whole = run(0);
    for n_threads in [1, 2, 4, 7] {
        assert_eq!(run(n_threads), whole, "{n_threads} threads");
    }
}

/// One thread is held in an op for a second while the others wait. The test runs in its own process, so that all its processor time is theirs.
#[test]
fn threads_that_wait_sleep() {
    if !is_alone(module_path!(), "threads_that_wait_sleep") {
        return;
    }
    let caller = std::thread::current().id();
    for caller_is_held in [true, false] {
        let mut pool = ThreadPool::new(4, 0, || None).unwrap();
        let held = AtomicBool::new(false);
        let before = processor_time();
        pool.run(|| {
            share(4, |_| {
                let is_caller = std::thread::current().id() == caller;
                if is_caller == caller_is_held && !held.swap(true, Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_secs(1));
                }
                // Nobody takes all parts before the one to be held has come.
                let end = Instant::now() + Duration::from_secs(60);
                while !held.load(Ordering::Relaxed) && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert!(held.load(Ordering::Relaxed));
            });
        });
        if let (Some(before), Some(after)) = (before, processor_time()) {
            let spent = after - before;
            assert!(spent < Duration::from_millis(100), "{spent:?}, caller held: {caller_is_held}");
        }
    }
}
