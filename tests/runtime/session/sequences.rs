//! Several sequences of one cache.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ropewalk::model::Error;
use ropewalk::session::Batch;
use ropewalk::{DType, Token};

use super::{assert_close, batch_of, model, open, score, KV};
use crate::common::{all_logits, params, rows_of, some_tokens};

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
