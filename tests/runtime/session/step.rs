//! Many sequences in one call: any interleaving gives each what it would get alone, and what does not fit concerns nobody
//! else.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use ropewalk::model::{Error, Model};
use ropewalk::sampler::{Sampler, SamplerParams};
use ropewalk::session::{GenerateParams, Generation, Scored, Session, Step, Stepped, StopReason, Want};
use ropewalk::{DType, Token};

use super::{assert_close, model, open};
use crate::common::{params, some_tokens, LOGITS};

/// The context of a sequence, tokens.
const N_CTX: usize = 48;

fn session(m: &Model, rope: Option<&str>, n_seq_max: usize) -> Session {
    let rope = rope.map(|spec| spec.parse().unwrap());
    open(m, &params(N_CTX).n_seq_max(n_seq_max).kv_type(DType::F32).rope(rope))
}

/// What is done next, in terms that fit any state.
#[derive(Debug, Clone)]
enum Op {
    /// Tokens for up to three sequences: how many, and whether their `-ln p` is asked for.
    Step(Vec<(u32, usize, bool)>),
    Truncate(u32, usize),
    Fork(u32, u32),
    Stop(u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let seq = 0u32..3;
    let step = (seq.clone(), 1usize..30, any::<bool>());
    let op = prop_oneof![
        5 => prop::collection::vec(step, 1..4).prop_map(Op::Step),
        1 => (seq.clone(), 0usize..40).prop_map(|(seq, n)| Op::Truncate(seq, n)),
        1 => (seq.clone(), seq.clone()).prop_map(|(from, to)| Op::Fork(from, to)),
        1 => seq.prop_map(Op::Stop),
    ];
    prop::collection::vec(op, 1..10)
}

/// What a session alone says of these tokens: the last row, and `-ln p` of the last `n` of them.
fn alone(m: &Model, rope: Option<&str>, tokens: &[Token], n: usize) -> (Vec<f32>, Vec<f32>) {
    let row = session(m, rope, 1).append(tokens).unwrap().to_vec();
    let from = tokens.len() - n;
    let nll = if n > 0 && from > 0 {
        session(m, rope, 1).nll(tokens, from..tokens.len()).unwrap()
    } else {
        Vec::new()
    };
    (row, nll)
}

/// Does everything in one session, and holds each answer against a session that has the sequence alone.
fn check(shape: &str, rope: Option<&str>, ops: &[Op]) {
    let m = model(shape, DType::F32);
    let mut s = session(m, rope, 2);
    let evicts = s.plan().evict;
    let mut held: Vec<Vec<Token>> = vec![Vec::new(); 3];
    let text = some_tokens(400, m.hparams().n_vocab);
    let mut at = 0;
    for op in ops {
        match op {
            Op::Step(asked) => {
                let new: Vec<&[Token]> =
                    asked.iter().map(|&(_, n, _)| &text[at % 300..at % 300 + n.max(2)]).collect();
                at += 37;
                let mut steps: Vec<Step<'_>> = asked
                    .iter()
                    .zip(&new)
                    .map(|(&(seq, _, nll), tokens)| Step {
                        seq,
                        tokens,
                        want: if nll { Want::Nll } else { Want::Logits },
                    })
                    .collect();
                let answers = s.step(&mut steps).unwrap();
                let mut seen = Vec::new();
                for ((&(seq, ..), tokens), answer) in asked.iter().zip(&new).zip(answers) {
                    let own = &mut held[seq as usize];
                    let twice = seen.contains(&seq);
                    seen.push(seq);
                    match answer {
                        Ok(answer) => {
                            assert!(!twice, "{ops:?}");
                            assert!(evicts || own.len() + tokens.len() <= N_CTX);
                            own.extend_from_slice(tokens);
                            let (row, nll) = alone(m, rope, own, tokens.len() - 1);
                            match answer {
                                Stepped::Logits(found) => assert_close(&found, &row, LOGITS, shape),
                                Stepped::Nll(found) => assert_close(&found, &nll, LOGITS, shape),
                                other => panic!("{other:?}"),
                            }
                        }
                        Err(Error::ContextFull { needed, free, .. }) => {
                            assert!(!twice && needed == tokens.len() && free < needed, "{needed} of {free}");
                        }
                        Err(e @ (Error::Argument { .. } | Error::Invalid(_))) => {
                            assert!(twice || e.to_string().contains("states of recurrent layers"), "{e}");
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            }
            Op::Truncate(seq, n) => {
                let own = &mut held[*seq as usize];
                // States and evicted keys may not allow it, and then nothing happens.
                if s.truncate(*seq, *n).is_ok() {
                    own.truncate(*n);
                }
            }
            Op::Fork(from, to) => {
                s.copy_seq(*from, *to).unwrap();
                held[*to as usize] = held[*from as usize].clone();
            }
            Op::Stop(seq) => {
                let flag = s.cancel_flag();
                flag.store(true, Ordering::Relaxed);
                let step = Step { seq: *seq, tokens: &text[..2], want: Want::Logits };
                let stopped = s.step(&mut [step]).unwrap().pop().unwrap();
                flag.store(false, Ordering::Relaxed);
                assert!(
                    matches!(stopped, Err(Error::Interrupted | Error::ContextFull { .. })),
                    "{stopped:?}"
                );
            }
        }
        for (seq, own) in (0..).zip(&held) {
            assert_eq!(s.tokens(seq), own, "sequence {seq} after {op:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn interleaved_is_as_one_by_one(ops in ops()) {
        check("llama-tiny", None, &ops);
        check("gemma3-tiny", None, &ops);
        check("qwen35-tiny", None, &ops);
        check("llama-tiny", Some("lm-infinite:window=24,global=3,evict=true"), &ops);
    }
}

#[test]
fn what_cannot_be_done_concerns_one_sequence() {
    let m = model("llama-tiny", DType::F32);
    let mut s = session(m, None, 2);
    let text = some_tokens(20, m.hparams().n_vocab);
    let long = vec![text[0]; N_CTX + 1];
    let mut sampler = Sampler::new(&SamplerParams::greedy(), m.vocab(), N_CTX).unwrap();
    let unknown = [text[0], m.hparams().n_vocab as Token];
    let mut steps = vec![
        Step { seq: 0, tokens: &text, want: Want::Token(&mut sampler) },
        Step { seq: 1, tokens: &long, want: Want::Logits },
        Step { seq: 64, tokens: &text, want: Want::Logits },
        Step { seq: 0, tokens: &text, want: Want::Logits },
        Step { seq: 2, tokens: &unknown, want: Want::Logits },
        Step { seq: 3, tokens: &[], want: Want::Nothing },
        Step { seq: 4, tokens: &text[..1], want: Want::Nll },
        Step { seq: 5, tokens: &text[..7], want: Want::Nothing },
    ];
    let answers = s.step(&mut steps).unwrap();
    let row = session(m, None, 1).append(&text).unwrap().to_vec();
    let top = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as Token;
    assert_eq!(answers[0].as_ref().unwrap(), &Stepped::Token(top));
    assert!(matches!(answers[1], Err(Error::ContextFull { needed: 49, free: 48, n_ctx: 48 })), "{answers:?}");
    let texts = [
        "0 to 63, found 64",
        "expected one step of it, found two",
        "token: expected",
        "at least 1 tokens",
        "at least 2 tokens",
    ];
    for (answer, text) in answers[2..7].iter().zip(texts) {
        let why = answer.as_ref().unwrap_err().to_string();
        assert!(why.contains(text), "{text}: {why}");
    }
    assert_eq!(answers[7].as_ref().unwrap(), &Stepped::Nothing);
    let lengths: Vec<usize> = (0..8).map(|seq| s.tokens(seq).len()).collect();
    assert_eq!(lengths, [20, 0, 0, 0, 0, 7, 0, 0]);
    assert!(s.step(&mut []).unwrap().is_empty());
}

/// Scores are what the losses are, with the best tokens, and reach one token further if that is known.
#[test]
fn scores_are_losses_with_the_best_tokens() {
    let m = model("llama-tiny", DType::F32);
    let mut s = session(m, None, 2);
    let text = some_tokens(20, m.hparams().n_vocab);
    let scores = |n_top, next| Want::Scores { n_top, next };
    let answers = s
        .step(&mut [
            Step { seq: 0, tokens: &text, want: Want::Nll },
            Step { seq: 1, tokens: &text[..12], want: scores(3, Some(text[12])) },
            Step { seq: 2, tokens: &text[..12], want: scores(0, None) },
            Step { seq: 3, tokens: &text[..1], want: scores(1, None) },
            Step { seq: 4, tokens: &text[..1], want: scores(1, Some(-1)) },
        ])
        .unwrap();
    let (Ok(Stepped::Nll(nll)), Ok(Stepped::Scores(more)), Ok(Stepped::Scores(plain))) =
        (&answers[0], &answers[1], &answers[2])
    else {
        panic!("{answers:?}");
    };
    assert_eq!((more.len(), plain.len()), (12, 11));
    let logprobs = |scores: &[Scored]| scores.iter().map(|score| -score.logprob).collect::<Vec<f32>>();
    assert_close(&logprobs(more), &nll[..12], LOGITS, "with the next token");
    assert_close(&logprobs(plain), &nll[..11], LOGITS, "without");
    assert!(more.iter().map(|score| score.token).eq(text[1..13].iter().copied()));
    let row = session(m, None, 1).append(&text[..12]).unwrap().to_vec();
    let mut best: Vec<usize> = (0..row.len()).collect();
    best.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let top: Vec<usize> = more[11].top.iter().map(|top| top.0 as usize).collect();
    assert_eq!((top, plain[3].top.len()), (best[..3].to_vec(), 0));
    for (answer, text) in answers[3..].iter().zip(["at least 2 tokens", "found -1"]) {
        let why = answer.as_ref().unwrap_err().to_string();
        assert!(why.contains(text), "{text}: {why}");
    }
}

/// The cache has room for two sequences: the third is refused, and the first two go on.
#[test]
fn sequences_are_admitted_while_there_is_room() {
    let m = model("llama-tiny", DType::F32);
    let mut s = session(m, None, 2);
    let text = some_tokens(40, m.hparams().n_vocab);
    let all = |tokens| [0, 1, 2].map(|seq| Step { seq, tokens, want: Want::Logits });
    let answers = s.step(&mut all(&text)).unwrap();
    assert!(answers[0].is_ok() && answers[1].is_ok(), "{answers:?}");
    assert!(matches!(answers[2], Err(Error::ContextFull { needed: 40, free: 16, .. })), "{answers:?}");
    assert!(s.tokens(2).is_empty());
    assert!(s.step(&mut all(&text[..5])).unwrap().iter().all(Result::is_ok));
}

/// Generations that advance together give what each gives alone, end for their own reasons, and come and go.
#[test]
fn generations_advance_together() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(60, m.hparams().n_vocab);
    let how = |n| GenerateParams::greedy(n).ignore_eos(true);
    let prompts = [&text[..10], &text[10..25], &text[25..30]];
    let alone: Vec<Vec<Token>> = prompts
        .iter()
        .zip([5, 12, 100])
        .map(|(prompt, n)| {
            let mut s = session(m, None, 1);
            let made = s.generate(prompt, &how(n)).unwrap();
            made.filter_map(|piece| piece.unwrap().token).collect()
        })
        .collect();
    assert_eq!(alone.iter().map(Vec::len).collect::<Vec<_>>(), [5, 12, N_CTX - 5 + 1]);

    let mut s = session(m, None, 3);
    let mut running: Vec<Generation> = Vec::new();
    for ((seq, prompt), n) in (0..).zip(prompts).zip([5, 12, 100]) {
        running.push(Generation::new(&mut s, seq, prompt, &how(n)).unwrap());
    }
    let mut made = vec![Vec::new(); 3];
    loop {
        let mut all: Vec<&mut Generation> = running.iter_mut().collect();
        let pieces = s.advance(&mut all).unwrap();
        if pieces.iter().all(Option::is_none) {
            break;
        }
        for (made, piece) in made.iter_mut().zip(pieces) {
            made.extend(piece.and_then(|piece| piece.unwrap().token));
        }
    }
    assert_eq!(made, alone);
    let reasons: Vec<_> = running.iter().map(Generation::stop_reason).collect();
    assert_eq!(reasons, [Some(StopReason::Length), Some(StopReason::Length), Some(StopReason::ContextFull)]);

    // Without a cell left, both end.
    let mut full = session(m, None, 1);
    let mut both =
        [(0, 10), (1, 11)].map(|(seq, n)| Generation::new(&mut full, seq, &text[..n], &how(100)).unwrap());
    loop {
        let [one, two] = &mut both;
        if full
            .advance(&mut [one, two])
            .unwrap()
            .into_iter()
            .map(Option::transpose)
            .all(|p| p.unwrap().is_none())
        {
            break;
        }
    }
    assert!(both.iter().all(|g| g.stop_reason() == Some(StopReason::ContextFull)));

    // One whose sequence was changed ends with an error; the other does not notice.
    s.clear();
    let mut first = Generation::new(&mut s, 0, prompts[0], &how(5)).unwrap();
    let mut second = Generation::new(&mut s, 1, prompts[1], &how(12)).unwrap();
    s.truncate(0, 3).unwrap();
    let mut tokens = Vec::new();
    for turn in 0..12 {
        let pieces = s.advance(&mut [&mut first, &mut second]).unwrap();
        match &pieces[0] {
            Some(Err(e)) => {
                assert!(turn == 0 && e.to_string().contains("expected sequence 0 to hold"), "{e}")
            }
            other => assert!(turn > 0 && other.is_none(), "{other:?}"),
        }
        tokens.extend(pieces[1].as_ref().unwrap().as_ref().unwrap().token);
    }
    assert_eq!(tokens, alone[1]);
}
