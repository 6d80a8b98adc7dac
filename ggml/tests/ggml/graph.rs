//! Executors: rebuilding, measuring, canceling, sharing stores between threads, and what outlives what.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::common::*;
use ggml::graph::{Executor, InputId, Outcome, OutputId};
use ggml::tensor::{Mapped, Store, TensorDef};
use ggml::{DType, Error, Result};

/// `n` times x + x over `len` values.
fn doubling(exec: &mut Executor, len: usize, n: usize) -> Result<(InputId, OutputId)> {
    exec.build(n + 1, |b| {
        let (id, mut x) = b.input("x", DType::F32, &[len])?;
        for _ in 0..n {
            x = b.add(x, x)?;
        }
        Ok((id, b.output(x)))
    })
}

fn read(exec: &Executor, id: OutputId) -> Vec<f32> {
    let mut out = Vec::new();
    exec.read_f32(id, &mut out).unwrap();
    assert_eq!(exec.borrow_f32(id).unwrap().unwrap(), out);
    out
}

#[test]
fn graphs_replace_each_other() {
    let mut exec = executor(2);
    for (len, n) in [(1, 1), (1000, 3), (7, 10), (100_000, 2), (1, 5), (100_000, 2)] {
        let (id, out) = doubling(&mut exec, len, n).unwrap();
        for start in [1.0f32, -3.0] {
            exec.set(id, &vec![start; len]).unwrap();
            assert_eq!(exec.compute().unwrap(), Outcome::Done);
            assert_eq!(read(&exec, out), vec![start * 2f32.powi(n as i32); len]);
        }
    }
    let (id, _) = doubling(&mut exec, 4, 1).unwrap();
    refused(exec.set(id, &[1.0f32; 5]), "set");
}

#[test]
fn measuring_predicts_the_buffer_and_disturbs_nothing() {
    let mut exec = executor(1);
    let (id, out) = doubling(&mut exec, 50, 2).unwrap();
    let before = exec.buffer_bytes();
    let len = 1 << 20;
    let bytes = exec
        .measure::<_, Error>(8, |b| {
            let x = b.input("x", DType::F32, &[len])?.1;
            b.output(b.rms_norm(b.add(x, x)?, 1e-5)?);
            Ok(())
        })
        .unwrap();
    assert!(bytes >= 4 * len, "an input of {len} f32 needs {bytes} bytes");
    assert_eq!(exec.buffer_bytes(), before);
    exec.set(id, &[1.5f32; 50]).unwrap();
    exec.compute().unwrap();
    assert_eq!(read(&exec, out), [6.0; 50], "the graph built before still runs");

    // Measure, then build the same.
    for len in [1 << 20, 1 << 22] {
        let mut fresh = executor(1);
        let graph = |b: &ggml::graph::Builder<'_>| {
            let (id, x) = b.input("x", DType::F32, &[len])?;
            Ok::<_, Error>((id, b.output(b.scale(x, 3.0)?)))
        };
        let measured = fresh.measure(8, graph).unwrap();
        assert_eq!(fresh.buffer_bytes(), 0);
        let (id, out) = fresh.build(8, graph).unwrap();
        let real = fresh.buffer_bytes();
        assert!(real >= measured && real <= measured + 4096, "measured {measured}, allocated {real}");
        fresh.set(id, &vec![1.0f32; len]).unwrap();
        fresh.compute().unwrap();
        assert_eq!(read(&fresh, out), vec![3.0; len]);
    }
}

#[test]
fn an_executor_survives_what_cannot_be_allocated() {
    let mut exec = executor(1);
    for _ in 0..2 {
        let huge = exec.build::<_, Error>(2, |b| {
            let (_, x) = b.input("x", DType::F32, &[1 << 23, 1 << 23])?;
            Ok(b.output(b.add(x, x)?))
        });
        let Err(Error::OutOfMemory { bytes, .. }) = huge else { panic!("{huge:?}") };
        assert!(bytes >= 4 << 46);
        assert!(exec.compute().is_err(), "the graph before is gone");
        let (id, _) = doubling(&mut exec, 2, 1).unwrap();
        exec.set(id, &[1.0f32, 2.0]).unwrap();
        assert_eq!(exec.compute().unwrap(), Outcome::Done);
    }
    let failed = exec.build::<(), Error>(4, |_| Err(Error::Argument("no".into())));
    assert_eq!(failed.unwrap_err().to_string(), "no");
    assert_eq!(exec.compute().unwrap(), Outcome::Done, "a graph that failed to build replaces nothing");
}

#[test]
fn results_are_read_only_when_there_are_some() {
    let mut exec = executor(1);
    assert!(exec.compute().is_err());
    let (id, out) = doubling(&mut exec, 3, 1).unwrap();
    assert!(exec.read_f32(out, &mut Vec::new()).is_err() && exec.borrow_f32(out).is_err(), "not computed");
    exec.set(id, &[1.0f32; 3]).unwrap();
    exec.compute().unwrap();
    read(&exec, out);

    // Outputs with gaps or of another type are refused rather than read as something else.
    let [half, turned, wide, rows] = exec
        .build::<_, Error>(16, |b| {
            let x = b.input("x", DType::F32, &[4, 3])?.1;
            let y = b.add(x, x)?;
            let half = b.output(b.columns(y, 0, 2)?);
            let turned = b.output(b.permute(y, [1, 0, 2, 3])?);
            let rows = b.output(b.view(y, [4, 2, 1, 1], [16, 32, 32], 16)?);
            Ok([half, turned, b.output(b.dequantize(&[y], DType::BF16)?), rows])
        })
        .unwrap();
    exec.set(first_input(), &[1.0f32; 12]).unwrap();
    exec.compute().unwrap();
    for id in [half, turned, wide] {
        refused(exec.read_f32(id, &mut Vec::new()), "read");
        refused(exec.borrow_f32(id).map(|_| ()), "read");
    }
    assert_eq!(read(&exec, rows), [2.0; 8]);
}

/// Ids are indices: that of another graph's first input is this one's.
fn first_input() -> InputId {
    doubling(&mut executor(1), 1, 1).unwrap().0
}

#[test]
fn an_input_nothing_depends_on_may_be_set() {
    let mut exec = executor(1);
    let (idle, id, out) = exec
        .build::<_, Error>(8, |b| {
            let idle = b.input("idle", DType::F16, &[5])?.0;
            let (id, x) = b.input("x", DType::F32, &[2])?;
            Ok((idle, id, b.output(b.scale(x, 2.0)?)))
        })
        .unwrap();
    exec.set(idle, &[0u16; 5]).unwrap();
    exec.fill(idle, |_: &mut [u16]| ()).unwrap();
    refused(exec.fill(id, |_: &mut [u16]| ()), "fill");
    exec.set(id, &[1.0f32, 2.0]).unwrap();
    exec.compute().unwrap();
    assert_eq!(read(&exec, out), [2.0, 4.0]);
}

/// The compute buffer is memory that others have used, or that nobody has written.
#[test]
fn inputs_must_be_set_and_are_zero_before() {
    let mut exec = executor(1);
    // Leaves other numbers behind in the buffer.
    let (id, _) = doubling(&mut exec, 4096, 2).unwrap();
    exec.set(id, &[7.0f32; 4096]).unwrap();
    exec.compute().unwrap();
    let ([x, y], out) = exec
        .build::<_, Error>(8, |b| {
            let (x_id, x) = b.input("left", DType::F32, &[100])?;
            let (y_id, y) = b.input("right", DType::F32, &[100])?;
            Ok(([x_id, y_id], b.output(b.add(x, y)?)))
        })
        .unwrap();
    exec.set(x, &[1.0f32; 100]).unwrap();
    let Err(Error::Argument(what)) = exec.compute() else { panic!("computed") };
    assert_eq!(what, "input 'right' of the graph, f32 [100, 1, 1, 1], is not set");
    assert!(exec.read_f32(out, &mut Vec::new()).is_err());
    exec.fill(y, |values: &mut [f32]| assert_eq!(values, [0.0; 100])).unwrap();
    exec.compute().unwrap();
    assert_eq!(read(&exec, out), [1.0; 100]);
    // An output that is an input, too.
    let (id, out) =
        exec.build::<_, Error>(4, |b| b.input("x", DType::F32, &[3]).map(|(i, x)| (i, b.output(x)))).unwrap();
    assert!(exec.compute().is_err());
    exec.set(id, &[1.0f32, 2.0, 3.0]).unwrap();
    exec.compute().unwrap();
    assert_eq!(read(&exec, out), [1.0, 2.0, 3.0]);
}

#[test]
fn the_cancel_flag_stops_a_graph() {
    for threads in [1, 2] {
        let mut exec = executor(threads);
        let cancel = exec.backend().cancel_flag();
        // Seconds of work, canceled from another thread while it runs.
        let id = exec
            .build::<_, Error>(2000, |b| {
                let (id, mut x) = b.input("x", DType::F32, &[512, 512])?;
                for _ in 0..1000 {
                    x = b.mul_mat(x, x)?;
                }
                b.output(x);
                Ok(id)
            })
            .unwrap();
        exec.set(id, &vec![0.0f32; 512 * 512]).unwrap();
        let other = cancel.clone();
        let waiter = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            other.store(true, Ordering::Relaxed);
        });
        assert_eq!(exec.compute().unwrap(), Outcome::Cancelled);
        waiter.join().unwrap();
        cancel.store(false, Ordering::Relaxed);
        let (id, out) = doubling(&mut exec, 3, 1).unwrap();
        exec.set(id, &[1.0f32; 3]).unwrap();
        assert_eq!(exec.compute().unwrap(), Outcome::Done, "the flag is off again");
        assert_eq!(read(&exec, out), [2.0; 3]);
    }
}

#[test]
fn stores_keep_to_their_bounds() {
    let defs = vec![
        TensorDef::new("a", DType::F32, &[4, 2]).unwrap(),
        TensorDef::new("b", DType::Q8_0, &[32]).unwrap(),
    ];
    let store = Store::new(cpu(), defs, "a test").unwrap();
    assert_eq!(store.n_bytes(), 32 + 34);
    let mut all = [1u8; 32];
    store.read(0, 0, &mut all).unwrap();
    assert_eq!(all, [0; 32], "new stores are zero");
    store.write(0, 28, &[1, 2, 3, 4]).unwrap();
    store.read(0, 28, &mut all[..4]).unwrap();
    assert_eq!(all[..4], [1, 2, 3, 4]);
    store.read(1, 34, &mut []).unwrap();
    for (index, offset, n) in
        [(0, 29, 4), (0, 33, 0), (0, usize::MAX, 2), (1, 0, 35), (2, 0, 1), (usize::MAX, 0, 0)]
    {
        assert!(store.read(index, offset, &mut vec![0; n]).is_err());
        assert!(store.write(index, offset, &vec![0; n]).is_err());
    }
    assert!(Store::new(cpu(), Vec::new(), "nothing").unwrap().read(0, 0, &mut []).is_err());
    let huge = TensorDef::new("huge", DType::F32, &[1 << 23, 1 << 23]).unwrap();
    assert!(matches!(Store::new(cpu(), vec![huge; 2], "too much"), Err(Error::OutOfMemory { .. })));
}

/// A file of f32 counting up from 0, mapped.
fn mapped(n: usize) -> Arc<files::Map> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for i in 0..n {
        file.write_all(&(i as f32).to_le_bytes()).unwrap();
    }
    Arc::new(files::Map::open(file.path()).unwrap())
}

#[test]
fn weights_from_a_file_in_place_and_copied() {
    let file = mapped(4096);
    let def = TensorDef::new("w", DType::F32, &[8, 3]).unwrap();
    // 32-byte aligned offsets are used in place, others copied.
    for offset in [0, 64, 36, 4] {
        let store =
            Store::from_mapped(cpu(), vec![(def.clone(), Mapped { file: file.clone(), offset })]).unwrap();
        let mut exec = executor(1);
        let got = eval(&mut exec, |b, _| b.scale(b.stored(&one(&store, 0))?, 2.0)).unwrap();
        let want: Vec<f32> = (0..24).map(|i| (i + offset / 4) as f32 * 2.0).collect();
        assert_eq!(got, want);
        assert!(store.write(0, 0, &[0]).is_err());
    }
    for offset in [4096 * 4, 4096 * 4 - 95, usize::MAX] {
        let entry = (def.clone(), Mapped { file: file.clone(), offset });
        assert!(Store::from_mapped(cpu(), vec![entry]).is_err(), "offset {offset}");
    }
}

#[test]
fn graphs_keep_their_stores_and_executors_their_devices() {
    let file = mapped(1024);
    let def = TensorDef::new("w", DType::F32, &[16]).unwrap();
    let store = Store::from_mapped(cpu(), vec![(def, Mapped { file: file.clone(), offset: 32 })]).unwrap();
    let mut exec = Executor::new(cpu(), 2).unwrap();
    let out = exec.build::<_, Error>(4, |b| Ok(b.output(b.scale(b.stored(&one(&store, 0))?, 1.0)?))).unwrap();
    drop(store);
    drop(file);
    exec.compute().unwrap();
    assert_eq!(read(&exec, out)[..3], [8.0, 9.0, 10.0]);
    let flag = exec.backend().cancel_flag();
    drop(exec);
    flag.store(true, Ordering::Relaxed); // The flag outlives the backend it stopped.
}

#[test]
fn threads_share_weights_and_take_turns_on_caches() {
    let n = 64;
    let (weights, w) = stored(DType::F16, &[n, n], &Rng(7).values(n * n));
    let def = |name: &str| TensorDef::new(name, DType::F32, &[n, 8]).unwrap();
    let caches: Vec<_> = ["a", "b"].map(|c| Store::new(cpu(), vec![def(c)], "a test").unwrap()).into();
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread: usize| {
            let (weights, w, caches) = (&weights, &w, &caches);
            scope.spawn(move || {
                let mut exec = executor(1);
                for round in 0..50 {
                    let x = Rng((thread * 1000 + round) as u64).values(n);
                    // The two threads take the caches in opposite orders.
                    let order = [thread, 1 - thread];
                    let got = eval(&mut exec, |b, feed| {
                        let y = b.mul_mat(b.stored(weights)?, feed.f32(b, &[n, 1], &x)?)?;
                        let at = feed.i64(b, &[thread as i64])?;
                        for i in order {
                            b.expand(b.set_rows(b.stored(&one(&caches[i], 0))?, y, at)?);
                        }
                        Ok(y)
                    })
                    .unwrap();
                    for (row, got) in w.chunks(n).zip(&got) {
                        let want: f64 = row.iter().zip(&x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        assert!((f64::from(*got) - want).abs() < 0.05);
                    }
                    for cache in caches {
                        let mut mine = vec![0u8; n * 4];
                        cache.read(0, thread * n * 4, &mut mine).unwrap();
                        let bytes: Vec<u8> = got.iter().flat_map(|x| x.to_le_bytes()).collect();
                        assert_eq!(mine, bytes, "the row this thread wrote");
                    }
                }
            })
        });
        // ThreadSanitizer sees who joins, and not how a scope waits.
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_graph_as_deep_as_allowed_fits_the_stack_of_a_thread() {
    let deepest = (1 << 16) - 1;
    let mut exec = executor(1);
    let (id, out) = doubling(&mut exec, 1, deepest).unwrap();
    exec.set(id, &[0.0f32]).unwrap();
    exec.compute().unwrap();
    assert_eq!(read(&exec, out), [0.0]);
}
