//! Every sequence is equal: what sequence 0 does, any other does, and none harms another.

use ropewalk::control::Control;
use ropewalk::model::{Error, Model};
use ropewalk::session::{GenerateParams, SeqId, Session, SessionParams};
use ropewalk::{DType, Token};

use super::{assert_close, model, open};
use crate::common::{params, some_tokens, LOGITS};

/// A model with gated delta-nets keeps both states and keys.
const SHAPES: [&str; 3] = ["llama-tiny", "gemma3-tiny", "qwen35-tiny"];

fn four(n_ctx: usize) -> SessionParams {
    params(n_ctx).n_seq_max(4).kv_type(DType::F32)
}

/// All that one sequence made: rows of scores and of the prompt, `-ln p`, generated tokens, tokens used again.
#[derive(Debug, PartialEq)]
struct Made {
    rows: Vec<f32>,
    nll: Vec<f32>,
    tokens: Vec<Token>,
    shared: Vec<usize>,
}

/// Everything that a sequence can do, one after the other.
fn work(s: &mut Session, seq: SeqId, text: &[Token]) -> Made {
    let (mut rows, mut shared) = (Vec::new(), Vec::new());
    let n = text.len();
    let mut sequence = s.sequence(seq);
    assert_eq!((sequence.id(), sequence.tokens().len()), (seq, 0));
    let nll = sequence.nll(text, 1..n).unwrap();
    sequence.truncate(0).unwrap();
    sequence.score(text, 10..n, &mut |_, row| rows.extend_from_slice(row)).unwrap();
    assert_eq!(sequence.tokens(), text);
    shared.push(sequence.reuse_prefix(&text[..n / 2], n).unwrap());
    let held = sequence.tokens().len();
    rows.extend_from_slice(sequence.append(&text[held..]).unwrap());
    let (row, again) = sequence.prompt(&[&text[..n / 2], &[3, 5, 7]].concat()).unwrap();
    rows.extend_from_slice(row);
    shared.push(again);
    shared.push(sequence.prefill(text, &Control::default()).unwrap());
    assert_eq!(sequence.tokens(), text);
    let how = GenerateParams::greedy(10).ignore_eos(true);
    let made = sequence.generate(text, &how).unwrap();
    let tokens: Vec<Token> = made.filter_map(|piece| piece.unwrap().token).collect();
    // The last token that was made is not decoded.
    assert_eq!(s.tokens(seq), [text, &tokens[..tokens.len() - 1]].concat());
    Made { rows, nll, tokens, shared }
}

fn models() -> impl Iterator<Item = (&'static str, &'static Model)> {
    SHAPES.into_iter().map(|shape| (shape, model(shape, DType::F32)))
}

/// In sessions of their own, sequences 0, 2 and 63 take the same cells: bit for bit.
#[test]
fn the_same_prompt_gives_the_same_on_every_sequence() {
    for (shape, m) in models() {
        let text = some_tokens(60, m.hparams().n_vocab);
        for rope in [None, Some("lm-infinite:window=24,global=3,evict=true"), Some("dca:chunk=48,local=8")] {
            let Ok(mut first) = Session::new(m, &four(100).rope(rope.map(|r| r.parse().unwrap()))) else {
                continue;
            };
            let made = work(&mut first, 0, &text);
            assert_eq!((made.tokens.len(), made.nll.len()), (10, 59));
            for seq in [2, 63] {
                let mut other = open(m, first.params());
                assert_eq!(work(&mut other, seq, &text), made, "{shape}, {rope:?}, sequence {seq}");
            }
        }
    }
}

/// In one session they take other cells.
#[test]
fn sequences_of_one_session_agree_and_leave_each_other_alone() {
    for (shape, m) in models() {
        let text = some_tokens(60, m.hparams().n_vocab);
        let mut s = open(m, &four(100));
        let zero = work(&mut s, 0, &text);
        let held = s.tokens(0).to_vec();
        let two = work(&mut s, 2, &text);
        assert_eq!((&two.tokens, &two.shared), (&zero.tokens, &zero.shared), "{shape}");
        assert_close(&two.rows, &zero.rows, LOGITS, shape);
        assert_close(&two.nll, &zero.nll, LOGITS, shape);
        assert_eq!(s.tokens(0), held, "{shape}");

        // Sequence 0 goes on as if there had never been another.
        let next = some_tokens(9, 200);
        s.sequence(2).truncate(0).unwrap();
        assert_eq!((s.tokens(0), s.tokens(2).len()), (&held[..], 0), "{shape}");
        let row = s.append(&next).unwrap().to_vec();
        let mut alone = open(m, &four(100));
        alone.append(&held).unwrap();
        assert_close(&row, alone.append(&next).unwrap(), LOGITS, shape);
    }
}

#[test]
fn a_sequence_that_does_not_exist_is_an_error_of_each_call() {
    let m = model("llama-tiny", DType::F32);
    let evicting = four(100).rope(Some("streaming".parse().unwrap()));
    for p in [four(100), evicting] {
        let mut s = open(m, &p);
        s.append(&[1, 2, 3]).unwrap();
        for seq in [64, u32::MAX] {
            assert!(s.sequence(seq).tokens().is_empty());
            let greedy = GenerateParams::greedy(1);
            let refused = [
                s.sequence(seq).truncate(0).unwrap_err(),
                s.sequence(seq).reuse_prefix(&[1], 1).unwrap_err(),
                s.sequence(seq).prompt(&[1]).unwrap_err(),
                s.sequence(seq).prefill(&[1, 2], &Control::default()).unwrap_err(),
                s.sequence(seq).append(&[1]).unwrap_err(),
                s.sequence(seq).score(&[1], 0..1, &mut |_, _| {}).unwrap_err(),
                s.sequence(seq).nll(&[1, 2], 1..2).unwrap_err(),
                s.sequence(seq).generate(&[1], &greedy).unwrap_err(),
            ];
            for e in refused {
                assert!(e.to_string().contains("0 to 63"), "{e:?}");
                assert!(matches!(&e, Error::Argument { name, .. } if name == "sequence"), "{e:?}");
            }
        }
        assert_eq!(s.tokens(0), [1, 2, 3]);
    }
}
