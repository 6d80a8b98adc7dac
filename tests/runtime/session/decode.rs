//! One sequence: quantized weights in chunks, rows that are wanted, truncation, and calls that fail.

use ropewalk::model::Error;
use ropewalk::session::{Attention, Session};
use ropewalk::{DType, Token};

use super::{assert_close, batch_of, distance, model, open, score, with_kv, KV, SHAPES};
use crate::common::{all_logits, compare, params, some_tokens};

/// More than one block of 256 cells, no multiple of anything.
const N: usize = 301;

/// Mean KL divergence, nats, between two orders of the same sums where activations are rounded to 8 bits on the way.
const QUANTISED_KL: f64 = 3e-3;

#[test]
fn chunked_prefill_is_one_shot_with_quantised_weights() {
    for shape in SHAPES {
        for dtype in [DType::Q8_0, DType::Q4_1, DType::Q4_K] {
            let m = model(shape, dtype);
            let n_vocab = m.hparams().n_vocab;
            let tokens = some_tokens(N, n_vocab);
            let p = params(512).portable(true);
            let whole = all_logits(m, &p, &tokens);
            for n_ubatch in [1, 32, 200] {
                let p = p.clone().n_ubatch(n_ubatch);
                let d = compare(&whole, &all_logits(m, &p, &tokens), &tokens, n_vocab);
                println!("{shape} {dtype}, {n_ubatch} at once: {d:?}");
                assert!(d.kl < QUANTISED_KL, "{shape} {dtype}, {n_ubatch} at once: {d:?}");
            }
        }
    }
}

#[test]
fn rows_wanted_are_the_rows_of_all() {
    let m = model("llama-tiny", DType::F32);
    let n_vocab = m.hparams().n_vocab;
    let tokens = some_tokens(50, n_vocab);
    let all = all_logits(m, &params(64), &tokens);
    for n_ubatch in [64, 9] {
        let mut s = open(m, &params(64).n_ubatch(n_ubatch));
        let mut batch = ropewalk::session::Batch::new();
        tokens.iter().enumerate().for_each(|(i, &t)| batch.push(t, 0, i % 7 == 3));
        let rows = s.decode(&batch).unwrap();
        assert_eq!(rows.n_rows(), 7);
        for i in 0..7 {
            let at = (i * 7 + 3) * n_vocab;
            assert_close(&all[at..at + n_vocab], rows.row(i), KV[1].1, "a wanted row");
        }
        let mut unwanted = ropewalk::session::Batch::new();
        unwanted.push(1, 0, false);
        assert_eq!(s.decode(&unwanted).unwrap().n_rows(), 0);
    }
}

#[test]
fn nll_is_that_of_the_logits() {
    let m = model("llama-tiny", DType::F32);
    let n_vocab = m.hparams().n_vocab;
    let tokens = some_tokens(80, n_vocab);
    let all = all_logits(m, &params(128), &tokens);
    let mut s = open(m, &params(128).n_ubatch(33));
    let nll = s.nll(&tokens, 1..80).unwrap();
    for (i, x) in nll.iter().enumerate() {
        let p = crate::common::log_softmax(&all[i * n_vocab..(i + 1) * n_vocab]);
        assert!((f64::from(*x) + p[tokens[i + 1] as usize]).abs() < KV[1].1, "token {}", i + 1);
    }
    s.clear();
    let some = s.nll(&tokens, 40..60).unwrap();
    assert!(some.iter().zip(&nll[39..]).all(|(a, b)| (a - b).abs() < 1e-3));
    for bad in [0..5, 5..5, 70..81] {
        assert!(matches!(s.nll(&tokens, bad), Err(Error::Argument { name, .. }) if name == "nll"));
    }
}

/// Bit for bit: dropped cells are used again in the same order, and what they held before is not seen.
#[test]
fn after_truncation_it_is_as_if_never_there() {
    for shape in SHAPES {
        let m = model(shape, DType::F32);
        let tokens = some_tokens(N + 80, m.hparams().n_vocab);
        let (kept, other) = (&tokens[..120], &tokens[N..]);
        for (kv, _) in KV {
            for attention in [Attention::Auto, Attention::Explicit] {
                let p = with_kv(400, kv).attention(attention);
                let mut fresh = open(m, &p);
                fresh.append(kept).unwrap();
                let mut s = open(m, &p);
                s.append(kept).unwrap();
                s.append(&tokens[120..N]).unwrap();
                s.truncate(0, 120).unwrap();
                assert_eq!(s.tokens(0), kept);
                s.truncate(0, 200).unwrap();
                assert_eq!(s.tokens(0), kept, "truncating past the end is nothing");
                assert_eq!(score(&mut fresh, other), score(&mut s, other), "{shape} {kv} {attention:?}");
            }
        }
    }
}

#[test]
fn a_cleared_session_is_a_new_one() {
    let m = model("llama-tiny", DType::F32);
    let tokens = some_tokens(90, m.hparams().n_vocab);
    let mut s = open(m, &params(100));
    s.append(&tokens[..70]).unwrap();
    s.copy_seq(0, 5).unwrap();
    s.clear();
    assert!(s.tokens(0).is_empty() && s.tokens(5).is_empty());
    assert_eq!(score(&mut s, &tokens), all_logits(m, &params(100), &tokens));
}

#[test]
fn explicit_attention_is_flash_attention() {
    for shape in ["llama-tiny", "llama-tiny-mha", "llama-tiny-gqa", "qwen2-tiny"] {
        let m = model(shape, DType::F32);
        let tokens = some_tokens(N, m.hparams().n_vocab);
        for (kv, bound) in KV {
            for n_ubatch in [512, 16] {
                let p = with_kv(512, kv).n_ubatch(n_ubatch);
                let flash = all_logits(m, &p, &tokens);
                let p = p.attention(Attention::Explicit);
                let what = format!("{shape}, {kv} cache, {n_ubatch} at once: explicit");
                // Explicit products round the queries as the cache's type asks; our own op does not.
                assert_close(&flash, &all_logits(m, &p, &tokens), 3.0 * bound, &what);
            }
        }
    }
}

/// Rows of logits handed over before the failure stay handed over; the session is as before the call.
#[test]
fn a_call_that_fails_halfway_leaves_the_session_as_it_was() {
    let m = model("llama-tiny", DType::F32);
    let tokens = some_tokens(N, m.hparams().n_vocab);
    let p = params(512).n_ubatch(16);
    let mut s = open(m, &p);
    s.append(&tokens[..100]).unwrap();
    let flag = s.cancel_flag();
    let mut seen = Vec::new();
    let failed = s.score(&tokens[100..], 0..200, &mut |i, _| {
        seen.push(i);
        flag.store(seen.len() >= 40, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(matches!(failed, Err(Error::Interrupted)), "{failed:?}");
    assert_eq!(seen, (0..48).collect::<Vec<_>>(), "three micro-batches of 16");
    assert_eq!(s.tokens(0), &tokens[..100]);
    assert!(matches!(s.append(&tokens[100..]), Err(Error::Interrupted)), "the flag stays set");
    flag.store(false, std::sync::atomic::Ordering::Relaxed);
    let mut fresh = open(m, &p);
    fresh.append(&tokens[..100]).unwrap();
    assert_eq!(score(&mut s, &tokens[100..]), score(&mut fresh, &tokens[100..]));
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let m = model("llama-tiny", DType::F32);
    let n_vocab = m.hparams().n_vocab as Token;
    let p = params(16).n_batch(8);
    let mut s = open(m, &p);
    s.append(&[1, 2, 3]).unwrap();
    let held = |s: &Session| assert_eq!((s.tokens(0), s.tokens(1)), (&[1, 2, 3][..], &[][..]));
    let mut refused = |what: &str, holds: &str, f: &mut dyn FnMut(&mut Session) -> Option<Error>| {
        let e = f(&mut s).unwrap_or_else(|| panic!("{what}: not refused"));
        let full = matches!(e, Error::ContextFull { needed: 14, free: 13, n_ctx: 16 });
        let wrong = matches!(e, Error::Argument { .. } | Error::Invalid(_));
        assert!(full == (what == "a full context") && (full || wrong), "{what}: {e:?}");
        assert!(e.to_string().contains(holds), "{what}: {e}");
        held(&s);
    };
    refused("nothing", "at least one", &mut |s| s.append(&[]).err());
    refused("an empty batch", "at least one", &mut |s| s.decode(&batch_of(0, &[])).err());
    refused("an empty prompt", "at least one token", &mut |s| s.prompt(&[]).err());
    refused("a token past the vocabulary", "319", &mut |s| s.append(&[5, n_vocab]).err());
    refused("a negative token", "-1", &mut |s| s.append(&[5, -1]).err());
    refused("a long batch", "at most 8", &mut |s| s.decode(&batch_of(0, &[1; 9])).err());
    refused("a sequence past the last", "0 to 63", &mut |s| s.decode(&batch_of(64, &[1])).err());
    refused("a copy to nowhere", "0 to 63", &mut |s| s.copy_seq(0, 64).err());
    refused("a copy from nowhere", "0 to 63", &mut |s| s.copy_seq(u32::MAX, 1).err());
    refused("truncation of nothing", "0 to 63", &mut |s| s.truncate(64, 0).err());
    refused("a full context", "13 free of ctx 16", &mut |s| s.append(&[1; 14]).err());
    refused("a full context", "13 free of ctx 16", &mut |s| s.score(&[1; 14], 0..1, &mut |_, _| {}).err());
    let mut two = batch_of(1, &[7, 8]);
    two.push(n_vocab, 0, true);
    refused("a bad token after good ones", "319", &mut |s| s.decode(&two).err());
    let mut fresh = open(m, &p);
    fresh.append(&[1, 2, 3]).unwrap();
    assert_eq!(distance(s.append(&[4; 13]).unwrap(), fresh.append(&[4; 13]).unwrap()), 0.0);
    assert!(s.append(&[1]).is_err() && fresh.append(&[1]).is_err(), "both are full");
}

/// The base comes from the length the session was opened for, not from what it holds.
#[test]
fn dynamic_ntk_keeps_its_base_for_life() {
    let m = model("llama-tiny", DType::F32);
    let tokens = some_tokens(900, 320);
    let under = |n_ctx| with_kv(n_ctx, DType::F32).rope(Some("dynamic-ntk:factor=2".parse().unwrap()));
    let (whole, p) = (all_logits(m, &under(1024), &tokens), under(1024).n_ubatch(50));
    assert_close(&whole, &all_logits(m, &p, &tokens), KV[0].1, "in chunks, past the trained window");
    let mut s = open(m, &p);
    let before = s.plan().clone();
    s.append(&tokens).unwrap();
    assert_eq!(*s.plan(), before);
    assert_ne!(
        open(m, &under(512)).plan().layer(0).freqs,
        before.layer(0).freqs,
        "another promise, another base"
    );
}
