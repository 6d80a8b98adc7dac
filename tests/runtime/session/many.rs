//! Several prompts and several endings at once give what each gives alone.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use ropewalk::model::Error;
use ropewalk::session::{Batch, GenerateParams, Greedy, SeqId, Session, SessionParams};
use ropewalk::{DType, Token};

use super::{model, SHAPES};
use crate::common::{assert_close, open, params, rows_of, some_tokens, LOGITS};

const N_CTX: usize = 512;
/// Sequences of a call, not in order.
const EVERY: [SeqId; 5] = [3, 1, 40, 0, 7];

fn many(n_seq_max: usize, rope: &str) -> SessionParams {
    params(N_CTX).n_seq_max(n_seq_max).kv_type(DType::F32).rope(Some(rope.parse().unwrap()))
}

fn alone(session: &mut Session, prompt: &[Token], n: usize) -> Vec<Token> {
    session.clear();
    session.generate(prompt, &GenerateParams::greedy(n)).unwrap().filter_map(|p| p.unwrap().token).collect()
}

/// Prompts that share beginnings of different lengths.
fn prompts(n_vocab: usize) -> Vec<Vec<Token>> {
    let token = |i: usize| ((i * 7919 + 13) % (n_vocab - 10) + 5) as Token;
    let head: Vec<Token> = (0..120).map(token).collect();
    let tail = |from: usize, n: usize| (from..from + n).map(token).collect::<Vec<_>>();
    vec![
        [head.clone(), tail(1000, 30)].concat(),
        [head.clone(), tail(2000, 1)].concat(),
        tail(3000, 77),
        [head[..50].to_vec(), tail(4000, 90)].concat(),
        head.clone(),
        head,
    ]
}

#[test]
fn prompts_together_are_answered_as_alone() {
    for shape in SHAPES {
        for rope in ["plain", "self-extend:window=64,group=4", "lm-infinite:window=64,evict=true"] {
            let model = model(shape, DType::F32);
            let prompts = prompts(model.hparams().n_vocab);
            let how = Greedy { n_predict: 20, ..Greedy::default() };
            let (mut one, mut all) = (open(model, &many(1, rope)), open(model, &many(3, rope)));
            let expected: Vec<_> = prompts.iter().map(|p| alone(&mut one, p, 20)).collect();
            // Twice, so that the second round finds what the first one left.
            for round in 0..2 {
                let found: Vec<_> =
                    prompts.chunks(3).flat_map(|p| all.continue_all(&EVERY, p, &how).unwrap()).collect();
                assert_eq!(found, expected, "{shape}, {rope}, round {round}");
            }
        }
    }
}

/// What a prompt's last micro-batch made superfluous is room for the prompt after it.
#[test]
fn prompts_longer_than_what_a_plan_keeps_are_answered_together() {
    let model = model("llama-tiny", DType::F32);
    let n_vocab = model.hparams().n_vocab;
    let prompt =
        |k: usize| (0..400).map(|i| ((i * (k + 3) * 7919 + k) % (n_vocab - 10) + 5) as Token).collect();
    let prompts: Vec<Vec<Token>> = (0..4).map(prompt).collect();
    let rope = "streaming:sinks=4,window=60";
    let (mut one, mut all) = (open(model, &many(1, rope)), open(model, &many(4, rope)));
    let expected: Vec<_> = prompts.iter().map(|p| alone(&mut one, p, 20)).collect();
    let how = Greedy { n_predict: 20, ..Greedy::default() };
    assert_eq!(all.continue_all(&EVERY, &prompts, &how).unwrap(), expected);
}

/// Prompts that have separate sequences.
#[derive(Debug, Clone)]
enum Call {
    /// Answers of so many tokens to prompts of these lengths.
    Answers(Vec<usize>, usize),
    /// Endings of these lengths, after a text.
    Endings(usize, Vec<usize>),
}

/// Calls, and whether each is cancelled.
fn calls() -> impl Strategy<Value = Vec<(Call, bool)>> {
    let answers = (prop::collection::vec(1usize..50, 1..4), 0usize..12);
    let endings = (1usize..40, prop::collection::vec(1usize..8, 1..6));
    let call = prop_oneof![
        answers.prop_map(|(lens, n)| Call::Answers(lens, n)),
        endings.prop_map(|(n, lens)| Call::Endings(n, lens)),
    ];
    prop::collection::vec((call, prop::bool::weighted(0.25)), 1..6)
}

/// Sequences that no call names, each with the place and length of its text, go on as without the calls. A call that
/// fails, for whatever reason, leaves its own sequences empty.
fn check_others(
    shape: &str,
    rope: &str,
    others: &BTreeMap<SeqId, (usize, usize)>,
    first: SeqId,
    calls: &[(Call, bool)],
) {
    let m = model(shape, DType::F32);
    let text = some_tokens(200, m.hparams().n_vocab);
    let open_others = || {
        let p = params(64).n_seq_max(3).kv_type(DType::F32).rope(Some(rope.parse().unwrap()));
        let mut s = open(m, &p);
        for (&seq, &(from, n)) in others {
            s.sequence(seq).append(&text[from..from + n]).unwrap();
        }
        s
    };
    let next = |s: &mut Session| {
        let mut batch = Batch::new();
        for &seq in others.keys() {
            text[150..153].iter().for_each(|&token| batch.push(token, seq, true));
        }
        rows_of(s, &batch).concat()
    };
    let expected = next(&mut open_others());
    let mut s = open_others();
    let evicts = s.plan().evict;
    let free = (0..64).map(|i| (first + 37 * i) % 64).filter(|seq| !others.contains_key(seq));
    let own: Vec<SeqId> = free.take(3).collect();
    let flag = s.cancel_flag();
    for (call, cancelled) in calls {
        flag.store(*cancelled, Ordering::Relaxed);
        let (n_used, done) = match call {
            Call::Answers(lens, n) => {
                let from = [0usize, 50, 0];
                let prompts: Vec<Vec<Token>> =
                    lens.iter().zip(from).map(|(&len, from)| text[from..from + len].to_vec()).collect();
                let how = Greedy { n_predict: *n, n_min: *n, ..Greedy::default() };
                (lens.len(), s.continue_all(&own, &prompts, &how).map(|_| ()))
            }
            Call::Endings(n, lens) => {
                let endings: Vec<Vec<Token>> =
                    lens.iter().zip(100usize..).map(|(&len, from)| text[from..from + len].to_vec()).collect();
                (own.len(), s.endings(&own, &text[..*n], &endings).map(|_| ()))
            }
        };
        flag.store(false, Ordering::Relaxed);
        match &done {
            Ok(()) => assert!(!cancelled, "{shape}, {rope}: {call:?}"),
            Err(Error::Interrupted) => assert!(*cancelled, "{shape}, {rope}: {call:?}"),
            // A cache that evicts keys has fewer cells for first positions than for others.
            Err(Error::ContextFull { needed, free, .. }) => assert!(evicts || needed > free, "{done:?}"),
            Err(e) => panic!("{shape}, {rope}: {call:?}: {e}"),
        }
        let empty = own[..n_used].iter().all(|&seq| s.tokens(seq).is_empty());
        assert!(done.is_ok() || empty, "{shape}, {rope}: {call:?}: {done:?}");
        for (&seq, &(from, n)) in others {
            assert_eq!(s.tokens(seq), &text[from..from + n], "{shape}, {rope}: {call:?}");
        }
    }
    own.iter().for_each(|&seq| s.truncate(seq, 0).unwrap());
    // The cells are others, and so is the order of the sums of attention.
    assert_close(&next(&mut s), &expected, LOGITS, &format!("{shape}, {rope}"));
}

/// A call fails before it makes a token if other sequences leave no room for its answers.
#[test]
fn answers_need_room_beside_other_sequences() {
    let model = model("llama-tiny", DType::F32);
    let text = some_tokens(N_CTX, model.hparams().n_vocab);
    let mut s = open(model, &many(1, "plain"));
    s.sequence(5).append(&text[..N_CTX - 22]).unwrap();
    let how = Greedy { n_predict: 20, n_min: 20, ..Greedy::default() };
    // The last token of an answer takes no room.
    for (n, fits) in [(3, true), (4, false), (30, false), (3, true)] {
        match s.continue_all(&[0], &[text[1..=n].to_vec()], &how) {
            Ok(made) => assert!(fits && made[0].len() == 20, "{n}"),
            Err(Error::ContextFull { needed, free, n_ctx: N_CTX }) => {
                let expected = if n == 4 { (19, 18) } else { (30, 22) };
                assert!(!fits && (needed, free) == expected, "{n}: {needed} of {free}");
                assert!(s.tokens(0).is_empty());
            }
            Err(e) => panic!("{n}: {e}"),
        }
    }
    assert_eq!(s.tokens(5), &text[..N_CTX - 22]);
}

/// Sequences that a call names give up the states of recurrent layers that it needs.
#[test]
fn named_sequences_make_room_for_states() {
    let model = model("qwen35-tiny", DType::F32);
    let text = some_tokens(90, model.hparams().n_vocab);
    let mut s = open(model, &many(1, "plain"));
    for seq in 0..4 {
        s.sequence(seq).append(&text[seq as usize..][..9]).unwrap();
    }
    let how = Greedy { n_predict: 5, n_min: 5, ..Greedy::default() };
    let made = s.continue_all(&[3, 1, 0], &[text[40..].to_vec()], &how).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(made[0].len(), 5);
    assert_eq!(s.tokens(2), &text[2..11]);
}

#[test]
fn answers_end_where_they_are_told_to() {
    let model = model("llama-tiny", DType::F32);
    let prompts = prompts(model.hparams().n_vocab);
    let mut session = open(model, &many(2, "plain"));
    let whole = Greedy { n_predict: 60, n_min: 60, ..Greedy::default() };
    let free = session.continue_all(&EVERY, &prompts[..1], &whole).unwrap();
    assert_eq!(free[0].len(), 60, "no end before there are n_min tokens");
    let text = |tokens: &[Token]| {
        let pieces = tokens.iter().flat_map(|&t| model.vocab().piece(t, false).unwrap());
        String::from_utf8_lossy(&pieces.collect::<Vec<u8>>()).into_owned()
    };
    // A token whose text is one, has not come before, and after which the answer would go on.
    let freely = Greedy { n_predict: 60, ..Greedy::default() };
    let found = prompts.iter().find_map(|prompt| {
        let answer = session.continue_all(&EVERY, std::slice::from_ref(prompt), &freely).unwrap().remove(0);
        let at = (0..answer.len().saturating_sub(1)).find(|&i| {
            let piece = text(&answer[i..i + 1]);
            !piece.is_empty() && !piece.contains('\u{fffd}') && !text(&answer[..i]).contains(&piece)
        })?;
        Some((prompt.clone(), answer, at))
    });
    let (prompt, answer, at) = found.expect("a prompt whose answer has text");
    let stop = Greedy { stop: vec![text(&answer[at..at + 1])], ..freely };
    assert_eq!(session.continue_all(&EVERY, &[prompt], &stop).unwrap()[0], answer[..=at]);
    // Nor does the text of two tokens end an answer before there are n_min.
    let two = free[0]
        .windows(2)
        .find(|two| two.iter().all(|&t| !text(&[t]).is_empty()) && !text(two).contains('\u{fffd}'));
    let held = Greedy { stop: vec![text(two.expect("two tokens with text"))], ..whole };
    assert_eq!(session.continue_all(&EVERY, &prompts[..1], &held).unwrap()[0].len(), 60);
    let none = Greedy { n_predict: 0, ..Greedy::default() };
    assert!(session.continue_all(&EVERY, &prompts[..2], &none).unwrap().iter().all(Vec::is_empty));
}

/// `n_batch` bounds a call of `decode`, not the number of answers or the length of an ending.
#[test]
fn small_batches_give_what_large_ones_give() {
    let model = model("llama-tiny", DType::F32);
    let prompts = prompts(model.hparams().n_vocab);
    let how = Greedy { n_predict: 6, ..Greedy::default() };
    let [mut large, mut small] =
        [2048, 2].map(|n_batch| open(model, &many(3, "plain").n_batch(n_batch).n_ubatch(2)));
    let made = large.continue_all(&EVERY, &prompts[..3], &how).unwrap();
    assert_eq!(small.continue_all(&EVERY, &prompts[..3], &how).unwrap(), made);
    let endings = [&prompts[2][..40], &made[0]].map(<[Token]>::to_vec);
    let [large, small] = [&mut large, &mut small].map(|s| s.endings(&EVERY, &prompts[0], &endings).unwrap());
    for (large, small) in large.iter().zip(&small) {
        assert_close(&small.logprobs, &large.logprobs, LOGITS, "endings");
    }
}

#[test]
fn what_cannot_be_continued_is_refused() {
    let model = model("llama-tiny", DType::F32);
    let mut session = open(model, &many(2, "plain"));
    let how = Greedy { n_predict: 20, ..Greedy::default() };
    let refused = |s: &mut Session, prompts: &[Vec<Token>]| {
        s.continue_all(&EVERY, prompts, &how).unwrap_err().to_string()
    };
    assert!(refused(&mut session, &vec![vec![1]; 3]).contains("at most 2, found 3"));
    let mut of = |seqs: &[SeqId]| session.continue_all(seqs, &[vec![1]], &how).unwrap_err().to_string();
    assert!(of(&[]).contains("at most 0, found 1"));
    assert!(of(&[64]).contains("below 64, found 64") && of(&[1, 1]).contains("found 1"));
    assert!(session.endings(&[], &[1], &[vec![1]]).unwrap_err().to_string().contains("at least 1"));
    let past = model.hparams().n_vocab as Token;
    for ending in [vec![past], vec![1, past], vec![-1]] {
        assert!(session.endings(&EVERY, &[1, 2], &[ending]).unwrap_err().to_string().contains("token"));
    }
    assert!(refused(&mut session, &[vec![]]).contains("found 0"));
    assert!(refused(&mut session, &[vec![1; N_CTX]]).contains(&format!("1 to {}", N_CTX - 20)));
    // A sequence may not outgrow its context, though the cache has room.
    assert!(session.append(&vec![1; N_CTX + 1]).unwrap_err().to_string().contains("context is full"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn other_sequences_stay_as_they_are(
        others in prop::collection::btree_map(
            0u32..64,
            (prop::sample::select(vec![0usize, 50]), 1usize..40),
            1..4,
        ),
        first in 0u32..64,
        calls in calls(),
    ) {
        check_others("llama-tiny", "plain", &others, first, &calls);
        check_others("qwen35-tiny", "plain", &others, first, &calls);
        check_others("llama-tiny", "lm-infinite:window=24,global=3,evict=true", &others, first, &calls);
    }

    #[test]
    fn endings_are_as_likely_as_alone(
        lens in prop::collection::vec(1usize..30, 1..8),
        text in 1usize..200,
        rope in prop::sample::select(vec!["plain", "dca:chunk=64", "lm-infinite:window=64,evict=true"]),
    ) {
        let model = model("llama-tiny", DType::F32);
        let n_vocab = model.hparams().n_vocab;
        let token = |i: usize| ((i * 7919 + 13) % (n_vocab - 10) + 5) as Token;
        let text: Vec<Token> = (0..text).map(token).collect();
        let endings: Vec<Vec<Token>> = lens
            .iter()
            .enumerate()
            .map(|(e, &n)| (0..n).map(|i| token(500 * (e + 1) + i)).collect())
            .collect();
        let mut session = open(model, &many(1, rope));
        for round in 0..2 {
            let found = session.endings(&EVERY, &text, &endings).unwrap();
            for (found, ending) in found.iter().zip(&endings) {
                let mut fresh = open(model, &many(1, rope));
                let all = [&text[..], ending].concat();
                let nll = fresh.nll(&all, text.len()..all.len()).unwrap();
                prop_assert_eq!(found.logprobs.len(), nll.len());
                for (a, b) in found.logprobs.iter().zip(&nll) {
                    prop_assert!((a + b).abs() < 1e-3, "round {}: {} and {}", round, a, -b);
                }
            }
        }
    }
}

#[test]
fn a_greedy_ending_is_known_as_such() {
    let model = model("llama-tiny", DType::F32);
    let prompt = prompts(model.hparams().n_vocab).remove(0);
    let mut session = open(model, &many(1, "plain"));
    let made = session
        .continue_all(&EVERY, std::slice::from_ref(&prompt), &Greedy { n_predict: 6, ..Greedy::default() })
        .unwrap();
    let mut other = made[0].clone();
    other[3] = if other[3] == 7 { 8 } else { 7 };
    let endings = session.endings(&EVERY, &prompt, &[made[0].clone(), other]).unwrap();
    assert!(endings[0].greedy && !endings[1].greedy, "{endings:?}");
}
