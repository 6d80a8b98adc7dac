//! Sessions whose query heads take a few blocks by their landmarks: logits against the naive model, which puts keys at
//! other positions where the engine turns queries, and every way to the same text against the others.

use ropewalk::landmark::TopBlocks;
use ropewalk::session::{Attention, Session, SessionParams};
use ropewalk::DType;

use crate::common::{assert_close, open, params, says, score, scratch, some_tokens, with_kv, LOGITS};
use crate::gradients::N_VOCAB;
use crate::landmark_session::{exact_of, in_pieces, pair, pair_of, without_landmark, BLOCK};
use naive::worst_row;

fn taking(top: usize, piece: Option<usize>, params: SessionParams) -> SessionParams {
    params.attention(Attention::Landmark(TopBlocks { top, piece }))
}

/// Heads in groups, of which 20 of 32 dimensions are turned, and a layer without rotation; sixteen blocks.
#[test]
fn logits_are_those_of_the_definition() {
    for (i, name) in [(0, "top-exact-0.gguf"), (1, "top-exact-1.gguf"), (4, "top-exact-4.gguf")] {
        let (model, with) = pair_of(i, name);
        let tokens = some_tokens(100, N_VOCAB);
        let full = score(&mut open(&with, &with_kv(100, DType::F32)), &tokens);
        for (top, pieces) in [(1, 1), (2, 1), (5, 1), (3, 2), (1, 4)] {
            let want = without_landmark(&exact_of(&model, &tokens, Some([top, pieces * BLOCK])));
            let piece = Some(pieces * BLOCK).filter(|_| pieces > 1);
            let mut session = open(&with, &taking(top, piece, with_kv(100, DType::F32)));
            let got = score(&mut session, &tokens);
            let worst = worst_row(&got, &want, N_VOCAB);
            assert!(worst < LOGITS, "model {i}, {top} blocks, pieces of {pieces}: {worst:e}");
            // Up to the last token that sees no more blocks than are taken, it is full attention; after it no more.
            let same = (top + pieces - 1) * (BLOCK - 1);
            let rows = (same * N_VOCAB, 100 * N_VOCAB);
            assert_close(&got[..rows.0], &full[..rows.0], LOGITS, "as many blocks as are taken");
            let off =
                got[rows.0..].iter().zip(&full[rows.0..]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off > 1e-2, "model {i}, {top} blocks: {off:e}");
        }
    }
}

#[test]
fn as_many_as_there_are_is_full_attention() {
    let (_, with) = pair("top-full.gguf");
    let tokens = some_tokens(100, N_VOCAB);
    // What is cached rounded may be rounded the other way.
    for (kv, bound) in [(DType::F32, LOGITS), (DType::F16, 5e-3), (DType::Q8_0, 5e-2)] {
        let want = score(&mut open(&with, &with_kv(100, kv)), &tokens);
        let rows = score(&mut open(&with, &taking(17, None, with_kv(100, kv))), &tokens);
        assert_close(&rows, &want, bound, kv.name());
    }
}

#[test]
fn batches_of_any_size_are_one_text() {
    let (_, with) = pair("top-batches.gguf");
    let tokens = some_tokens(90, N_VOCAB);
    for piece in [None, Some(3 * BLOCK)] {
        let kv = taking(2, piece, with_kv(90, DType::F32));
        let want = in_pieces(&with, &kv);
        let threads = kv.n_threads(3);
        assert_eq!(score(&mut open(&with, &threads), &tokens), want, "threads change no bit");
    }
}

#[test]
fn a_text_restored_is_as_one_that_never_stopped_and_other_blocks_are_refused() {
    let (_, with) = pair("top-saved.gguf");
    let tokens = some_tokens(80, N_VOCAB);
    let kv = taking(2, None, with_kv(80, DType::F16));
    let mut session = open(&with, &kv);
    score(&mut session, &tokens[..40]);
    let file = scratch("top-session.bin");
    session.save(&file, &[]).unwrap();
    let want = score(&mut session, &tokens[40..]);
    let mut again = open(&with, &kv);
    again.restore(&file).unwrap();
    assert_eq!(score(&mut again, &tokens[40..]), want);
    again.truncate(0, 40).unwrap();
    assert_eq!(score(&mut again, &tokens[40..]), want);
    for (other, found) in [
        (taking(3, None, with_kv(80, DType::F16)), "expected landmark:top=3, found landmark:top=2"),
        (with_kv(80, DType::F16), "landmarks: expected , found landmark:top=2"),
    ] {
        says(open(&with, &other).restore(&file), &[found]);
    }
}

#[test]
fn what_cannot_be_taken_is_refused() {
    let (model, with) = pair("top-refused.gguf");
    let refused = |model, params: &SessionParams| Session::new(model, params).unwrap_err().to_string();
    let e = refused(&model, &taking(2, None, params(32)));
    assert_eq!(
        e,
        "attention: landmark:top=2: expected an adapter that was trained with landmarks, found none"
    );
    let e = refused(&with, &taking(2, Some(BLOCK + 1), params(32)));
    assert!(e.ends_with("piece: expected a multiple of the block of 7, found 8"), "{e}");
    let e = refused(&with, &taking(2, None, params(32)).portable(true));
    assert!(e.contains("runs on the CPU alone"), "{e}");
}
