//! Models with recurrent layers: states that move on, are shared, kept, saved, and never wrong.

use std::sync::atomic::Ordering;

use ropewalk::model::{Error, Model};
use ropewalk::session::{Batch, Greedy, Session, SessionParams};
use ropewalk::{DType, Token};

use super::{assert_close, batch_of, model, open, score, with_kv};
use crate::common::{all_logits, rows_of, says, scratch, some_tokens, LOGITS};

const BOUND: f64 = LOGITS;

fn recurrent() -> &'static Model {
    model("qwen35-tiny", DType::F32)
}

fn params(n_ctx: usize, n_seq_max: usize) -> SessionParams {
    with_kv(n_ctx, DType::F32).n_seq_max(n_seq_max)
}

fn tokens(n: usize) -> Vec<Token> {
    some_tokens(n, recurrent().hparams().n_vocab)
}

/// The logits of the last `n` of these tokens, read by a session of their own.
fn last_rows(all: &[Token], n: usize) -> Vec<f32> {
    let rows = all_logits(recurrent(), &params(512, 1), all);
    rows[rows.len() - n * recurrent().hparams().n_vocab..].to_vec()
}

/// A session goes on from `held` tokens as if they had been read at once.
#[track_caller]
fn goes_on(s: &mut Session, seq: u32, held: &[Token], what: &str) {
    assert_eq!(s.tokens(seq), held, "{what}");
    let next = tokens(7);
    let got = rows_of(s, &batch_of(seq, &next)).concat();
    assert_close(&last_rows(&[held, &next].concat(), next.len()), &got, BOUND, what);
}

#[test]
fn ways_of_reading_agree() {
    let text = tokens(150);
    let whole = all_logits(recurrent(), &params(150, 1), &text);
    for (n_batch, n_ubatch) in [(1, 1), (150, 7), (32, 32), (40, 3)] {
        let p = params(150, 1).n_batch(n_batch).n_ubatch(n_ubatch);
        let parts = all_logits(recurrent(), &p, &text);
        assert_close(&whole, &parts, BOUND, &format!("batches of {n_batch}, {n_ubatch} at once"));
    }
}

#[test]
fn sequences_of_unlike_lengths_are_read_together() {
    let all = [tokens(120), tokens(93)[13..].to_vec(), tokens(50)[25..].to_vec()];
    let seqs = [2u32, 0, 9];
    // In turns and one after the other; with room for all at once, and cut where one is much longer.
    for (n_ubatch, in_turns) in [(512, true), (512, false), (64, true), (20, false)] {
        let what = format!("{n_ubatch} at once, in turns: {in_turns}");
        let mut s = open(recurrent(), &params(256, 3).n_ubatch(n_ubatch));
        let (mut batch, mut owners) = (Batch::new(), Vec::new());
        let mut push = |which: usize, i: usize| {
            batch.push(all[which][i], seqs[which], true);
            owners.push(which);
        };
        if in_turns {
            (0..120).for_each(|i| (0..3).filter(|&w| i < all[w].len()).for_each(|w| push(w, i)));
        } else {
            (0..3).for_each(|w| (0..all[w].len()).for_each(|i| push(w, i)));
        }
        let logits = s.decode(&batch).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut got = vec![Vec::new(); 3];
        owners.iter().enumerate().for_each(|(row, &w)| got[w].extend_from_slice(logits.row(row)));
        for (w, own) in all.iter().enumerate() {
            assert_close(&last_rows(own, own.len()), &got[w], BOUND, &format!("{what}, sequence {w}"));
            goes_on(&mut s, seqs[w], own, &what);
        }
    }
}

#[test]
fn copies_share_a_state_and_go_their_own_ways() {
    let text = tokens(60);
    let mut s = open(recurrent(), &params(256, 2));
    s.append(&text).unwrap();
    s.copy_seq(0, 1).unwrap();
    goes_on(&mut s, 1, &text, "the copy");
    goes_on(&mut s, 0, &text, "the source");
    s.copy_seq(1, 0).unwrap();
    let longer = [&text[..], &tokens(7)].concat();
    goes_on(&mut s, 0, &longer, "the source, replaced");
    s.truncate(1, 0).unwrap();
    goes_on(&mut s, 1, &[], "the copy, emptied");
    s.clear();
    goes_on(&mut s, 0, &[], "the session, emptied");
}

#[test]
fn what_has_no_state_is_not_cut_back_to() {
    let text = tokens(90);
    let mut s = open(recurrent(), &params(256, 1));
    s.append(&text).unwrap();
    says(s.truncate(0, 50), &["layers 0 1 2 4 (gated delta-net)", "but not after 50"]);
    goes_on(&mut s, 0, &text, "after a refusal");

    // Prompts keep a state a little before their end, and where they departed from what was held.
    s.truncate(0, 0).unwrap();
    assert_eq!(s.prompt(&text).unwrap().1, 0);
    s.append(&tokens(5)).unwrap();
    assert_eq!(s.reuse_prefix(&text, 80).unwrap(), 58);
    goes_on(&mut s, 0, &text[..58], "cut back to a kept state");
    let other = [&text[..40], &tokens(30)].concat();
    assert_eq!(s.prompt(&other).unwrap().1, 0, "40 tokens are the same, and no state is behind any");
    let got = s.prompt(&text).unwrap();
    assert_eq!(got.1, 40, "the state where the second prompt departed from the first");
    let got = got.0.to_vec();
    assert_close(&last_rows(&text, 1), &got, BOUND, "a prompt from a kept state");
    goes_on(&mut s, 0, &text, "behind it");
}

#[test]
fn failed_calls_leave_states_as_they_were() {
    let (text, more) = (tokens(40), tokens(64));
    for n_before in [0, 40] {
        let mut s = open(recurrent(), &params(256, 1).n_ubatch(16));
        if n_before > 0 {
            s.append(&text).unwrap();
        }
        let cancel = s.cancel_flag();
        // The first micro-batch is computed, the second one is not.
        let stop = &mut |_: usize, _: &[f32]| cancel.store(true, Ordering::Relaxed);
        assert!(matches!(s.score(&more, 0..64, stop), Err(Error::Interrupted)));
        s.cancel_flag().store(false, Ordering::Relaxed);
        goes_on(&mut s, 0, &text[..n_before], "after a canceled call");
    }
}

#[test]
fn a_restored_session_goes_on() {
    let (path, text) = (scratch("recurrent.session"), tokens(90));
    let mut s = open(recurrent(), &params(256, 2));
    s.prompt(&text).unwrap();
    s.copy_seq(0, 3).unwrap();
    s.append(&tokens(9)).unwrap();
    s.save(&path, b"with it").unwrap();

    let mut again = open(recurrent(), &params(256, 2));
    again.decode(&batch_of(1, &tokens(20))).unwrap();
    assert_eq!(again.restore(&path).unwrap(), b"with it");
    goes_on(&mut again, 3, &text, "the copy, restored");
    goes_on(&mut again, 0, &[&text[..], &tokens(9)].concat(), "restored");
    again.truncate(0, 58).unwrap();
    goes_on(&mut again, 0, &text[..58], "a kept state, restored");

    // Five states do not fit where one sequence has room for four.
    for seq in [5, 6] {
        s.decode(&batch_of(seq, &text[..30])).unwrap();
    }
    s.save(&path, b"").unwrap();
    let mut small = open(recurrent(), &params(256, 1));
    small.append(&text[..20]).unwrap();
    says(small.restore(&path), &["states: a session for 1 sequences has room for 4, found 5"]);
    goes_on(&mut small, 0, &text[..20], "after a refusal");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn sequences_without_room_for_their_states_are_refused() {
    let mut s = open(recurrent(), &params(256, 1));
    for seq in 0..4 {
        s.decode(&batch_of(seq, &tokens(10 + seq as usize))).unwrap();
    }
    says(s.decode(&batch_of(4, &tokens(3))), &["no room for the states of recurrent layers"]);
    assert!(s.tokens(4).is_empty());
    s.truncate(3, 0).unwrap();
    for seq in 0..3 {
        assert_eq!(s.tokens(seq).len(), 10 + seq as usize);
    }
    goes_on(&mut s, 2, &tokens(12), "beside the refused");
}

#[test]
fn many_are_answered_as_alone() {
    let prompts: Vec<Vec<Token>> =
        vec![tokens(70), [tokens(50), tokens(9)].concat(), tokens(80)[60..].to_vec()];
    let how = Greedy { n_predict: 6, n_min: 6, ..Greedy::default() };
    let mut alone = open(recurrent(), &params(256, 1));
    let mut answer = |prompt: &Vec<Token>| {
        alone.clear();
        alone
            .continue_all(&[0], std::slice::from_ref(prompt), &how)
            .unwrap_or_else(|e| panic!("{e}"))
            .remove(0)
    };
    let expected: Vec<Vec<Token>> = prompts.iter().map(&mut answer).collect();
    let mut s = open(recurrent(), &params(256, 3));
    for _ in 0..2 {
        assert_eq!(s.continue_all(&[0, 1, 2], &prompts, &how).unwrap_or_else(|e| panic!("{e}")), expected);
    }
    // Twenty endings share the state of one text, more than there are slots.
    let endings: Vec<Vec<Token>> = (0..20).map(|i| tokens(60)[i..i + 1 + i % 5].to_vec()).collect();
    let mut s = open(recurrent(), &params(256, 1));
    let every: Vec<_> = (0..64).collect();
    let found = s.endings(&every, &prompts[0], &endings).unwrap_or_else(|e| panic!("{e}"));
    for (ending, found) in endings.iter().zip(&found) {
        let all = [&prompts[0][..], ending].concat();
        let mut one = open(recurrent(), &params(256, 1));
        let nll = one.nll(&all, prompts[0].len()..all.len()).unwrap();
        let off = nll.iter().zip(&found.logprobs).map(|(a, b)| (a + b).abs()).fold(0.0, f32::max);
        assert!(nll.len() == found.logprobs.len() && off < 1e-4, "{off}");
    }
}

#[test]
fn methods_act_on_layers_with_attention_alone() {
    let text = tokens(200);
    for rope in ["yarn:factor=4", "self-extend:window=32,group=8", "streaming:sinks=4,window=64"] {
        let p = params(256, 1).rope(Some(rope.parse().unwrap()));
        let mut s = open(recurrent(), &p);
        let notes = s.plan().notes.join(" ");
        assert!(notes.contains("Unchanged: layers 0, 1, 2, 4 (gated delta-net"), "{rope}: {notes}");
        let whole = score(&mut s, &text);
        let parts = all_logits(recurrent(), &p.clone().n_ubatch(9), &text);
        assert_close(&whole, &parts, BOUND, rope);
    }
}
