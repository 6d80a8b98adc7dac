//! Several prompts and several endings at once give what each gives alone.

use proptest::prelude::*;
use ropewalk::session::{Batch, GenerateParams, Greedy, SeqId, Session, SessionParams};
use ropewalk::{DType, Token};

use super::{model, SHAPES};
use crate::common::{assert_close, open, params, LOGITS};

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

/// Sequences that a call does not name go on as they would have, also when it fails or finds too little room.
#[test]
fn other_sequences_stay_as_they_are() {
    for shape in SHAPES.into_iter().chain(["qwen35-tiny"]) {
        let model = model(shape, DType::F32);
        let prompts = prompts(model.hparams().n_vocab);
        let mut batch = Batch::new();
        batch.push(9, 2, true);
        let next = |s: &mut Session| s.decode(&batch).unwrap().row(0).to_vec();
        let mut expected = open(model, &many(4, "plain"));
        expected.sequence(2).append(&prompts[3]).unwrap();
        let expected = next(&mut expected);
        let mut s = open(model, &many(4, "plain"));
        s.sequence(2).append(&prompts[3]).unwrap();
        let how = Greedy { n_predict: 5, ..Greedy::default() };
        for seqs in [&EVERY[..3], &[0, 1, 3]] {
            s.continue_all(seqs, &prompts[..3], &how).unwrap();
            s.endings(seqs, &prompts[0], &prompts[1..4]).unwrap();
            assert!(s.continue_all(seqs, &prompts[..4], &how).is_err());
        }
        // The last alone has no copies.
        s.endings(&[63], &prompts[3], &prompts[..2]).unwrap();
        assert_eq!(s.tokens(2), prompts[3], "{shape}");
        // The cache is longer, and with it the sums of attention.
        assert_close(&next(&mut s), &expected, LOGITS, shape);
    }
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
    // A token whose text is one, has not come before, and behind which the answer would go on.
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
    let none = Greedy { n_predict: 0, ..Greedy::default() };
    assert!(session.continue_all(&EVERY, &prompts[..2], &none).unwrap().iter().all(Vec::is_empty));
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
    assert!(refused(&mut session, &[vec![]]).contains("found 0"));
    assert!(refused(&mut session, &[vec![1; N_CTX]]).contains(&format!("1 to {}", N_CTX - 20)));
    // A sequence may not outgrow its context, though the cache has room.
    assert!(session.append(&vec![1; N_CTX + 1]).unwrap_err().to_string().contains("context is full"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

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
