//! Several sequences of one cache.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ropewalk::model::Error;
use ropewalk::session::Batch;
use ropewalk::{DType, Token};

use super::{assert_close, batch_of, model, open, score, with_kv, KV, SHAPES};
use crate::common::{all_logits, params, some_tokens};

/// `rows[k]` of a decoded batch, as owned vectors.
fn rows_of(s: &mut ropewalk::session::Session, batch: &Batch) -> Vec<Vec<f32>> {
    let rows = s.decode(batch).unwrap_or_else(|e| panic!("{e}"));
    (0..rows.n_rows()).map(|i| rows.row(i).to_vec()).collect()
}

#[test]
fn copies_share_a_prefix_and_go_their_own_ways() {
    for shape in SHAPES {
        let m = model(shape, DType::F32);
        let n_vocab = m.hparams().n_vocab;
        let prefix = some_tokens(90, n_vocab);
        let (a, b) = (some_tokens(60, n_vocab), some_tokens(40, n_vocab - 1));
        for (kv, bound) in KV {
            let mut s = open(m, &with_kv(190, kv));
            s.append(&prefix).unwrap();
            s.copy_seq(0, 3).unwrap();
            assert_eq!(s.tokens(3), prefix);
            let mut got = [Vec::new(), Vec::new()];
            for i in 0..60 {
                let mut batch = batch_of(0, &a[i..=i]);
                if let Some(&t) = b.get(i) {
                    batch.push(t, 3, true);
                }
                for (got, row) in got.iter_mut().zip(rows_of(&mut s, &batch)) {
                    got.extend(row);
                }
            }
            assert!(s.append(&[1]).is_err(), "90 shared cells and 60 + 40 of their own fill the context");
            for (tokens, got, seq) in [(&a, &got[0], 0), (&b, &got[1], 3)] {
                let all = [&prefix[..], tokens].concat();
                assert_eq!(s.tokens(seq), all);
                let alone = all_logits(m, &with_kv(190, kv), &all);
                assert_close(
                    &alone[90 * n_vocab..],
                    got,
                    bound,
                    &format!("{shape}, {kv} cache, sequence {seq}"),
                );
            }
        }
    }
}

#[test]
fn a_copy_outlives_its_source_and_is_replaced_whole() {
    let m = model("llama-tiny", DType::F32);
    let tokens = some_tokens(100, m.hparams().n_vocab);
    let mut s = open(m, &params(100));
    s.decode(&batch_of(1, &tokens[60..90])).unwrap();
    s.append(&tokens[..50]).unwrap();
    s.copy_seq(0, 1).unwrap();
    s.copy_seq(1, 1).unwrap();
    assert_eq!(s.tokens(1), &tokens[..50]);
    s.truncate(0, 0).unwrap();
    assert!(s.tokens(0).is_empty());
    let got = rows_of(&mut s, &batch_of(1, &tokens[50..100])).concat();
    let alone = all_logits(m, &params(100), &tokens);
    assert_close(&alone[50 * m.hparams().n_vocab..], &got, KV[1].1, "the copy");
    // 50 shared cells became sequence 1's alone, its former 30 are free again: 100 in use, none left.
    assert!(s.append(&[1]).is_err());
    s.truncate(1, 99).unwrap();
    s.append(&[1]).unwrap();
}

#[test]
fn interleaved_sequences_are_independent() {
    const N_SEQ: usize = 5;
    for shape in SHAPES {
        let m = model(shape, DType::F32);
        let n_vocab = m.hparams().n_vocab;
        let texts: Vec<Vec<Token>> =
            (0..N_SEQ).map(|i| some_tokens(300, n_vocab)[i * 17..i * 17 + 20 + 9 * i].to_vec()).collect();
        // An order that mixes all of them, each in its own.
        let mut order: Vec<usize> = texts.iter().enumerate().flat_map(|(i, t)| vec![i; t.len()]).collect();
        let shuffle = some_tokens(order.len(), 1 << 20);
        for i in (1..order.len()).rev() {
            order.swap(i, shuffle[i] as usize % (i + 1));
        }
        for (kv, bound) in KV {
            for n_ubatch in [512, 13] {
                let mut s = open(m, &with_kv(256, kv).n_ubatch(n_ubatch));
                let (mut batch, mut at) = (Batch::new(), [0; N_SEQ]);
                for &i in &order {
                    batch.push(texts[i][at[i]], i as u32 * 15, true);
                    at[i] += 1;
                }
                let rows = rows_of(&mut s, &batch);
                for (i, text) in texts.iter().enumerate() {
                    assert_eq!(s.tokens(i as u32 * 15), text);
                    let mine: Vec<f32> = order
                        .iter()
                        .zip(&rows)
                        .filter(|(o, _)| **o == i)
                        .flat_map(|(_, r)| r.clone())
                        .collect();
                    let alone = all_logits(m, &with_kv(256, kv), text);
                    let what = format!("{shape}, {kv} cache, {n_ubatch} at once, sequence {i} of {N_SEQ}");
                    assert_close(&alone, &mine, bound, &what);
                }
            }
        }
    }
}

/// A batch of several sequences, canceled somewhere in the middle by another thread: every sequence is as before.
#[test]
fn a_failed_batch_of_several_sequences_leaves_all_of_them_as_they_were() {
    let m = model("llama-tiny", DType::F32);
    let tokens = some_tokens(1200, m.hparams().n_vocab);
    let p = params(2000).n_ubatch(3);
    let prepare = || {
        let mut s = open(m, &p);
        s.append(&tokens[..50]).unwrap();
        s.copy_seq(0, 1).unwrap();
        s.decode(&batch_of(1, &tokens[50..70])).unwrap();
        s.decode(&batch_of(2, &tokens[70..75])).unwrap();
        s
    };
    let mut batch = Batch::new();
    tokens.iter().enumerate().for_each(|(i, &t)| batch.push(t, i as u32 % 4, true));
    let mut s = prepare();
    let before: Vec<Vec<Token>> = (0..4).map(|q| s.tokens(q).to_vec()).collect();
    let flag = s.cancel_flag();
    let mut interrupted = 0;
    // At four moments, and on a busy machine until one of them falls into the decode.
    for (i, ms) in [0, 1, 3, 10].into_iter().cycle().take(400).enumerate() {
        if i >= 4 && interrupted > 0 {
            break;
        }
        let failed = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(ms));
                flag.store(true, Ordering::Relaxed);
            });
            s.decode(&batch).err()
        });
        flag.store(false, Ordering::Relaxed);
        match failed {
            Some(Error::Interrupted) => interrupted += 1,
            Some(e) => panic!("{e}"),
            None => before.iter().zip(0..).for_each(|(t, q)| s.truncate(q, t.len()).unwrap()),
        }
        for (q, tokens) in before.iter().enumerate() {
            assert_eq!(s.tokens(q as u32), tokens, "sequence {q} after {ms} ms");
        }
    }
    assert!(interrupted > 0, "400 micro-batches end before any of them");
    let mut fresh = prepare();
    assert_eq!(rows_of(&mut s, &batch), rows_of(&mut fresh, &batch), "as if never interrupted");
    assert_eq!(score(&mut s, &tokens[..200]), score(&mut fresh, &tokens[..200]));
}
