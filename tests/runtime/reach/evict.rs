//! Plans that drop keys: text past the context, in constant memory, with the logits of the definition to its end.

use std::sync::atomic::Ordering;

use ropewalk::model::Error;
use ropewalk::session::{Attention, Batch, Session, SessionParams};
use ropewalk::DType;

use super::cases::{self, Case};
use super::exact::definition;
use super::same::SAME;
use super::starts::ANGLES;
use super::{apart, text, twins, under, Failures, N_VOCAB};
use crate::common::{all_logits, batch_of, open, rows_of, score, scratch};
use naive::worst_row;

/// Room for any window here and a micro-batch, and no more than one block.
const N_CTX: usize = 128;
/// Many times windows and context.
const LONG: usize = 1000;

/// Of a row's norm: as in `same`. Queries see no more keys there, for older ones are evicted.
const BOUND: f64 = SAME;
/// With angles in f32, as in `starts`.
const PORTABLE: f64 = BOUND + ANGLES;

fn small(case: &Case) -> SessionParams {
    under(case.spec, N_CTX, DType::F32).n_ubatch(16).n_seq_max(3)
}

/// Cases whose plan drops keys.
fn evicting() -> Vec<&'static Case> {
    let model = &twins()[0].model;
    let cases: Vec<_> = cases::all()
        .filter(|c| {
            ropewalk::rope::Plan::new(&c.spec.parse().unwrap(), model.hparams(), N_CTX).unwrap().evict
        })
        .collect();
    assert!(cases.len() >= 3, "cases.rs has too few plans that evict");
    cases
}

#[test]
fn text_runs_past_the_context_at_constant_memory() {
    let mut failures = Failures::default();
    for case in evicting() {
        let want = definition(&twins()[0], case, LONG);
        for (n_ubatch, attention, portable) in
            [(16, Attention::Auto, false), (16, Attention::Explicit, true), (1, Attention::Auto, false)]
        {
            let p = small(case).n_ubatch(n_ubatch).attention(attention).portable(portable);
            let mut s = open(&twins()[0].model, &p);
            let memory = s.memory();
            let mut rows = Vec::new();
            for part in text(LONG).chunks(75) {
                rows.extend(score(&mut s, part));
                assert_eq!(s.memory(), memory, "{}: memory grows", case.spec);
            }
            assert_eq!(s.tokens(0), text(LONG), "{}", case.spec);
            let bound = if portable { PORTABLE } else { BOUND };
            let what = format!("{}: {LONG} tokens in ctx {N_CTX}, {n_ubatch} at once", case.spec);
            failures.at_most(bound, worst_row(&rows, &want, N_VOCAB), &what);
        }
        // One call with more tokens than the context has.
        let mut s = open(&twins()[0].model, &small(case));
        let last = s.append(&text(LONG)).unwrap_or_else(|e| panic!("{}: {e}", case.spec));
        let what = format!("{}: {LONG} tokens in one call", case.spec);
        failures.at_most(BOUND, worst_row(last, &want[(LONG - 1) * N_VOCAB..], N_VOCAB), &what);
    }
    failures.none();
}

/// Going back to where keys are gone is refused and changes nothing; a prompt starts over by itself.
#[test]
fn what_is_gone_is_not_gone_back_to() {
    let mut failures = Failures::default();
    for case in evicting() {
        let model = &twins()[0].model;
        let (p, roomy) = (small(case), small(case).n_ctx(1024));
        let mut s = open(model, &p);
        s.append(&text(500)).unwrap();
        for n in [100, 200, 300, 350] {
            let e = s.truncate(0, n).expect_err("these keys are gone");
            assert!(
                matches!(e, Error::Unsupported(_)) && !e.to_string().contains('\n'),
                "{}: {e}",
                case.spec
            );
            assert_eq!(s.tokens(0), text(500), "{}", case.spec);
        }
        s.truncate(0, 500).unwrap();
        let want = definition(&twins()[0], case, 560);
        let got = score(&mut s, &text(560)[500..]);
        let what = format!("{}: going on after a refusal", case.spec);
        failures.at_most(BOUND, worst_row(&got, &want[500 * N_VOCAB..], N_VOCAB), &what);

        let prompt = [&text(300)[..], &[1, 2, 3]].concat();
        let (got, reused) = s.prompt(&prompt).unwrap_or_else(|e| panic!("{}: {e}", case.spec));
        let (got, want) = (got.to_vec(), all_logits(model, &roomy, &prompt));
        let what = format!("{}: a prompt that goes back, {reused} reused", case.spec);
        failures.at_most(BOUND, apart(&want[302 * N_VOCAB..], &got), &what);
        assert_eq!(s.tokens(0), prompt, "{}", case.spec);

        s.truncate(0, 0).unwrap();
        assert!(s.tokens(0).is_empty());
        let want = definition(&twins()[0], case, 200);
        let what = format!("{}: from the start again", case.spec);
        failures.at_most(BOUND, worst_row(&score(&mut s, &text(200)), &want, N_VOCAB), &what);
    }
    failures.none();
}

/// Sequences that each run past the context, a copy among them, saved and restored on the way.
#[test]
fn sequences_past_the_context() {
    let mut failures = Failures::default();
    let path = scratch("reach-evict.session");
    for case in evicting() {
        let model = &twins()[0].model;
        let want = definition(&twins()[0], case, 400);
        let mut s = open(model, &small(case));
        s.append(&text(300)).unwrap();
        s.copy_seq(0, 7).unwrap();
        s.append(&text(400)[300..390]).unwrap();
        s.save(&path, &[]).unwrap();
        let mut restored = open(model, &small(case));
        restored.restore(&path).unwrap_or_else(|e| panic!("{}: {e}", case.spec));
        for (s, how) in [(&mut s, "stayed"), (&mut restored, "restored")] {
            assert_eq!((s.tokens(0), s.tokens(7)), (&text(390)[..], &text(300)[..]), "{}", case.spec);
            for (seq, at) in [(7, 300), (0, 390), (7, 310)] {
                let got = rows_of(s, &batch_of(seq, &text(400)[at..at + 10])).concat();
                let what = format!("{}: {how}, sequence {seq} from {at}", case.spec);
                let want = &want[at * N_VOCAB..(at + 10) * N_VOCAB];
                failures.at_most(BOUND, worst_row(&got, want, N_VOCAB), &what);
            }
        }
    }
    std::fs::remove_file(path).unwrap();
    failures.none();
}

/// Whatever a canceled call leaves, it is the text that `tokens` tells.
#[test]
fn a_cancelled_call_leaves_the_text_it_says() {
    let mut failures = Failures::default();
    for case in evicting() {
        let mut s = open(&twins()[0].model, &small(case));
        s.append(&text(200)).unwrap();
        let flag = s.cancel_flag();
        let failed = s.score(&text(600)[200..], 0..400, &mut |i, _| {
            flag.store(i >= 250, Ordering::Relaxed);
        });
        assert!(matches!(failed, Err(Error::Interrupted)), "{}: {failed:?}", case.spec);
        flag.store(false, Ordering::Relaxed);
        let n = s.tokens(0).len();
        assert_eq!(s.tokens(0), &text(600)[..n], "{}", case.spec);
        assert!(n <= 200, "{}: {n} tokens: nothing of a failed call is kept", case.spec);
        let want = definition(&twins()[0], case, n + 50);
        let got = score(&mut s, &text(n + 50)[n..]);
        let what = format!("{}: canceled, {n} tokens kept, then 50 more", case.spec);
        failures.at_most(BOUND, worst_row(&got, &want[n * N_VOCAB..], N_VOCAB), &what);
    }
    failures.none();
}

/// More sequences than there are cells for: refused or not, the first one is the text that `tokens` tells.
#[test]
fn a_batch_of_too_many_sequences_leaves_the_text_it_says() {
    let mut failures = Failures::default();
    for case in evicting() {
        let mut s = open(&twins()[0].model, &small(case));
        s.append(&text(200)).unwrap();
        let mut batch = Batch::new();
        (0..40).for_each(|seq| {
            let at = if seq == 0 { 200 } else { 0 };
            text(203)[at..at + 3].iter().for_each(|&t| batch.push(t, seq, false));
        });
        let n = match s.decode(&batch) {
            Ok(_) => 203,
            Err(Error::Argument { .. } | Error::Unsupported(_) | Error::Invalid(_)) => s.tokens(0).len(),
            Err(e) => panic!("{}: {e}", case.spec),
        };
        assert_eq!(s.tokens(0), &text(203)[..n], "{}", case.spec);
        (1..40).for_each(|seq| assert_eq!(s.tokens(seq).len(), if n == 203 { 3 } else { 0 }));
        (1..40).for_each(|seq| s.truncate(seq, 0).unwrap());
        let want = definition(&twins()[0], case, n + 20);
        let what = format!("{}: {n} tokens after too many sequences, then 20 more", case.spec);
        let got = score(&mut s, &text(n + 20)[n..]);
        failures.at_most(BOUND, worst_row(&got, &want[n * N_VOCAB..], N_VOCAB), &what);
    }
    failures.none();
}

/// A context smaller than the window is refused, when the session opens or when it is full, or does not matter: never wrong logits.
#[test]
fn a_context_smaller_than_its_window_is_refused_or_right() {
    let mut failures = Failures::default();
    for case in evicting() {
        let p = small(case).n_ctx(16);
        let mut rows = Vec::new();
        let done = Session::new(&twins()[0].model, &p)
            .and_then(|mut s| s.score(&text(100), 0..100, &mut |_, row| rows.extend_from_slice(row)));
        match done {
            Ok(()) => assert_eq!(rows.len(), 100 * N_VOCAB),
            Err(e) => {
                let refused = matches!(
                    e,
                    Error::Argument { .. }
                        | Error::Unsupported(_)
                        | Error::Invalid(_)
                        | Error::ContextFull { .. }
                );
                assert!(refused && !e.to_string().contains('\n'), "{}: {e}", case.spec)
            }
        }
        let want = definition(&twins()[0], case, 100);
        let what = format!("{}: 100 tokens in ctx 16", case.spec);
        failures.at_most(BOUND, worst_row(&rows, &want[..rows.len()], N_VOCAB), &what);
    }
    failures.none();
}
