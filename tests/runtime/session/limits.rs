//! Small and impossible contexts, and what memory is reported.

use std::time::{Duration, Instant};

use convert::random::Shape;
use ropewalk::model::Error;
use ropewalk::session::{Attention, Session, Step, Want};
use ropewalk::DType;

use super::{assert_close, model, open, with_kv, KV};
use crate::common::process::is_alone;
use crate::common::{all_logits, batch_of, load, params, says, scratch, some_tokens};

#[test]
fn a_context_of_one_token() {
    let m = model("llama-tiny", DType::F32);
    let mut s = open(m, &params(1));
    let row = s.append(&[7]).unwrap().to_vec();
    assert_close(&row, &all_logits(m, &params(64), &[7]), KV[1].1, "one token");
    let full = s.append(&[8]).unwrap_err();
    assert!(matches!(full, Error::ContextFull { needed: 1, free: 0, n_ctx: 1 }), "{full:?}");
    let full = full.to_string();
    assert!(full.contains("the context is full") && full.contains("ctx 1"), "{full}");
    assert_eq!(s.prompt(&[9]).unwrap().1, 0);
    assert_eq!(s.tokens(0), [9]);
}

/// A caller can make room for what does not fit: the error has the numbers.
#[test]
fn a_full_context_can_be_matched() {
    let m = model("llama-tiny", DType::F32);
    // Room for 20 tokens in two sequences of 10.
    let mut s = open(m, &params(10).n_seq_max(2));
    s.append(&[1; 7]).unwrap();
    let Err(Error::ContextFull { needed, free, n_ctx }) = s.append(&[2; 5]) else { panic!("not full") };
    assert_eq!((needed, free, n_ctx, s.tokens(0).len()), (5, 3, 10, 7));
    s.truncate(0, n_ctx - needed).unwrap();
    s.append(&[2; 5]).unwrap();
    // The room of one sequence, which another takes a part of.
    let mut s = open(m, &params(10));
    s.append(&[1; 6]).unwrap();
    let e = s.decode(&batch_of(1, &[3; 5])).unwrap_err();
    assert!(matches!(e, Error::ContextFull { needed: 5, free: 4, n_ctx: 10 }), "{e:?}");
}

/// The most resident memory this process ever had, bytes.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_context_beyond_memory_is_refused_at_once_with_one_that_fits() {
    // What is measured is the memory of the process, in which no other test may take any.
    if !is_alone(module_path!(), "a_context_beyond_memory_is_refused_at_once_with_one_that_fits") {
        return;
    }
    let m = model("llama-tiny", DType::F32);
    for (n_ctx, attention, rope) in [
        (1 << 30, Attention::Auto, None),
        (1 << 30, Attention::Explicit, None),
        (i32::MAX as usize, Attention::Auto, None),
        (1 << 30, Attention::Auto, Some("harpe")),
    ] {
        #[cfg(target_os = "linux")]
        let before = resident();
        let start = Instant::now();
        let p = params(n_ctx).attention(attention).rope(rope.map(|r| r.parse().unwrap()));
        let e = Session::new(m, &p).unwrap_err();
        let took = start.elapsed();
        let Error::OutOfMemory { needed, free: Some(free), .. } = e else { panic!("{e:?}") };
        assert!(
            needed > free
                && e.to_string().contains(&format!("needs {}", ropewalk_core::text::bytes(needed as u64))),
            "{e}"
        );
        let e = e.to_string();
        for part in
            [&format!("ctx {n_ctx} needs "), " for the ", "iB is free", "; ctx ", " fits with kv type "]
        {
            assert!(e.contains(part), "{e:?} lacks {part:?}");
        }
        assert!(!e.contains('\n') && took < Duration::from_secs(20), "{took:?}: {e}");
        // 2^30 tokens of 1 KiB each in the cache.
        #[cfg(target_os = "linux")]
        assert!(resident() - before < 1 << 30, "memory was taken");
    }
    says(Session::new(m, &params(i32::MAX as usize + 1)), &["2147483647", "2147483648"]);
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let m = model("llama-tiny", DType::F32);
    for (p, expected) in [
        (params(0), "ctx"),
        (params(8).n_batch(0), "batch and ubatch"),
        (params(8).n_seq_max(0), "sequences"),
        (with_kv(8, DType::I32), "kv type"),
    ] {
        let e = Session::new(m, &p).unwrap_err();
        assert!(matches!(&e, Error::Argument { name, .. } if name == expected), "{expected}: {e:?}");
    }
    for (p, holds) in [
        (params(0), "ctx"),
        (params(8).n_batch(0), "batch"),
        (params(8).n_ubatch(0), "ubatch"),
        (with_kv(8, DType::Q4_K), "q4_k"),
        (with_kv(8, DType::I32), "i32"),
        (params(8).n_threads(100_000), "threads"),
        (params(8).rope(Some("longrope".parse().unwrap())), "longrope"),
        (params(8).rope(Some("harpe:bases=1e4/2e4/3e4".parse().unwrap())), "harpe"),
    ] {
        let e = Session::new(m, &p).unwrap_err().to_string();
        assert!(e.contains(holds) && !e.contains('\n'), "{holds}: {e}");
    }
}

#[test]
fn memory_is_what_the_tensors_take() {
    let m = model("llama-tiny", DType::F32);
    let hp = m.hparams();
    let weights: usize = m.file().tensors().iter().map(|t| t.n_bytes).sum();
    for (kv_type, row) in
        [(DType::F32, 512), (DType::F16, 256), (DType::Q8_0, 2 * 2 * 34), (DType::Q4_0, 2 * 2 * 18)]
    {
        let mut s = open(m, &with_kv(300, kv_type));
        let memory = s.memory();
        assert_eq!(memory.weights, weights);
        // Two heads of 64 make a row; keys and values of 512 cells, 300 in whole blocks, in each layer.
        assert_eq!(memory.kv, row * 2 * 512 * hp.n_layer, "{kv_type}");
        assert!(memory.compute >= 512 * 300 * 2, "the mask alone takes this: {memory:?}");
        // The largest shape was reserved when the session opened.
        s.append(&some_tokens(300, hp.n_vocab)).unwrap();
        assert_eq!(s.memory(), memory, "{kv_type}");
    }
    let small = open(m, &params(300).n_ubatch(8)).memory().compute;
    assert!(small < open(m, &params(300)).memory().compute, "a smaller micro-batch takes less");
}

/// A micro-batch of which every token is scored takes more than is reserved for the logits of one token, and no more than
/// what is reserved for those of all.
#[test]
fn the_logits_of_a_micro_batch_can_be_reserved() {
    // A row of logits is longer than anything else of a token.
    let shape = Shape { n_layer: 1, n_vocab: 8192, ..Shape::named("llama-tiny").unwrap() };
    let path = scratch("limits-logits.gguf");
    convert::random::write(&shape, DType::F32, 1, &path).unwrap();
    let m = load(&path);
    let text = some_tokens(300, 8192);
    for (n_logits, grows) in [(1, true), (512, false)] {
        let mut s = open(&m, &params(300).n_logits(n_logits));
        assert_eq!(s.summary().contains("for the logits of 300 tokens"), !grows, "{}", s.summary());
        let before = s.memory().compute;
        let want = Want::Scores { n_top: 1, next: Some(5) };
        s.step(&mut [Step { seq: 0, tokens: &text, want }]).unwrap().remove(0).unwrap();
        assert_eq!(s.memory().compute > before, grows, "{n_logits}: {before}, {:?}", s.memory());
    }
}

/// In ops of every device attention takes a tile of keys, however many there are: with them grow their places alone, four
/// bytes for each key of each branch, as long as there are at most 64 tiles.
#[test]
fn attention_by_tiles_takes_a_tile_at_any_length() {
    let m = model("llama-tiny", DType::F32);
    for (rope, n_branches) in
        [("plain", 1), ("self-extend:window=512,group=8", 2), ("dca:chunk=512,local=64", 3)]
    {
        let compute = |n_ctx: usize| {
            let p =
                params(n_ctx).rope(Some(rope.parse().unwrap())).attention(Attention::Explicit).portable(true);
            open(m, &p).memory().compute
        };
        let found: Vec<usize> = [14, 15, 16].map(|n| compute(1 << n)).into();
        println!("{rope}: {found:?}");
        for (i, pair) in found.windows(2).enumerate() {
            let more = 1 << (14 + i);
            assert!(pair[1] - pair[0] <= 4 * n_branches * more + 4096, "{rope}: {found:?}");
        }
    }
}
