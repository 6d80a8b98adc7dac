//! Generation: why it ends, what text it hands out.

use std::sync::atomic::Ordering;

use ropewalk::model::Error;
use ropewalk::sampler::SamplerParams;
use ropewalk::session::{GenerateParams, Session, StopReason};
use ropewalk::{DType, Token};

use super::{model, open};
use crate::common::{default_model, load, params, some_tokens};

/// Result of a generation.
#[derive(Debug, PartialEq)]
struct Made {
    tokens: Vec<Token>,
    pieces: Vec<String>,
    reason: StopReason,
}

fn generate(s: &mut Session, prompt: &[Token], p: &GenerateParams) -> Made {
    let mut generation = s.generate(prompt, p).unwrap();
    assert!(p.n_predict == 0 || generation.stop_reason().is_none());
    let (mut tokens, mut pieces) = (Vec::new(), Vec::new());
    for piece in generation.by_ref() {
        let piece = piece.unwrap();
        tokens.extend(piece.token);
        pieces.push(piece.text);
    }
    assert!(generation.next().is_none(), "an ended iterator stays ended");
    let reason = generation.stop_reason().unwrap();
    Made { tokens, pieces, reason }
}

/// Chosen at random, so that text does not run in circles.
fn random(n_predict: usize, seed: u32) -> GenerateParams {
    let sampler = SamplerParams::greedy().temp(1.0).top_k(0).top_p(1.0).min_p(0.0).seed(seed);
    GenerateParams::greedy(n_predict).sampler(sampler).ignore_eos(true)
}

/// The text of bytes of a generation: tokens of the random models are one byte each, or none.
fn bytes_of(s: &Session, tokens: &[Token]) -> Vec<u8> {
    tokens.iter().flat_map(|&t| s.model().vocab().piece(t, false).unwrap()).collect()
}

#[test]
fn length_is_what_was_asked_for() {
    let m = model("llama-tiny", DType::F32);
    let prompt = some_tokens(20, 256);
    for n in [0, 1, 2, 33] {
        let mut s = open(m, &params(128));
        let made = generate(&mut s, &prompt, &random(n, 1));
        assert_eq!((made.tokens.len(), made.reason), (n, StopReason::Length));
        let held = [&prompt[..], &made.tokens[..n.saturating_sub(1)]].concat();
        assert_eq!(s.tokens(0), held, "all but the last are in the session");
    }
}

#[test]
fn the_same_seed_is_the_same_text_and_greedy_is_the_top() {
    let m = model("qwen2-tiny", DType::F32);
    let prompt = some_tokens(20, 256);
    let mut s = open(m, &params(128));
    let one = generate(&mut s, &prompt, &random(50, 9));
    assert_eq!(generate(&mut s, &prompt, &random(50, 9)).tokens, one.tokens);
    assert_ne!(generate(&mut s, &prompt, &random(50, 10)).tokens, one.tokens);
    let p = GenerateParams::greedy(30).ignore_eos(true);
    let made = generate(&mut s, &prompt, &p);
    let mut fresh = open(m, &params(128));
    let mut row = fresh.append(&prompt).unwrap();
    for &t in &made.tokens {
        assert_eq!(t as usize, crate::common::top(row));
        row = fresh.append(&[t]).unwrap();
    }
}

#[test]
fn a_full_context_ends_it() {
    let m = model("llama-tiny", DType::F32);
    let prompt = some_tokens(10, 256);
    let mut s = open(m, &params(16));
    let made = generate(&mut s, &prompt, &random(100, 3));
    assert_eq!(
        (made.tokens.len(), made.reason),
        (7, StopReason::ContextFull),
        "six fit, the last needs no place"
    );
    assert_eq!(s.tokens(0).len(), 16);
    let mut one = open(m, &params(1));
    let made = generate(&mut one, &[5], &random(100, 3));
    assert_eq!((made.tokens.len(), made.reason), (1, StopReason::ContextFull));
    let long = some_tokens(17, 256);
    assert!(matches!(s.generate(&long, &random(1, 3)), Err(Error::ContextFull { .. })));
    assert!(matches!(s.generate(&[], &random(1, 3)), Err(Error::Argument { name, .. }) if name == "prompt"));
}

#[test]
fn end_tokens_end_it_unless_ignored() {
    let m = model("llama-tiny", DType::F32);
    let prompt = some_tokens(20, 256);
    let mut s = open(m, &params(512));
    let ends = |t: &Token| m.vocab().is_eog(*t);
    let (seed, on) = (0..50)
        .map(|seed| (seed, generate(&mut s, &prompt, &random(200, seed))))
        .find(|(_, made)| made.tokens.iter().position(ends).is_some_and(|i| i > 0))
        .expect("some seed whose text has an end token");
    assert_eq!(on.tokens.len(), 200);
    let made = generate(&mut s, &prompt, &random(200, seed).ignore_eos(false));
    let at = on.tokens.iter().position(ends).unwrap();
    assert_eq!((&made.tokens[..], made.reason), (&on.tokens[..at], StopReason::EndOfGeneration));
}

#[test]
fn stop_strings_are_found_across_tokens() {
    let m = model("llama-tiny", DType::F32);
    let prompt = some_tokens(20, 256);
    let mut s = open(m, &params(512));
    let mut found = 0;
    for seed in 0..12 {
        let free = generate(&mut s, &prompt, &random(200, seed));
        let bytes = bytes_of(&s, &free.tokens);
        let whole = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(without_broken(&free.pieces.concat()), without_broken(&whole), "text is the bytes'");
        // Two to four bytes in a row that are text: the shortest way a stop string spans tokens.
        for n in 2..=4 {
            let Some(at) = (20..bytes.len() - n).find(|&i| bytes[i..i + n].is_ascii()) else { continue };
            let stop = String::from_utf8(bytes[at..at + n].to_vec()).unwrap();
            let at = bytes.windows(n).position(|w| w == stop.as_bytes()).unwrap();
            let p = random(200, seed).stop(vec!["never there \u{1F600}".into(), stop.clone()]);
            let made = generate(&mut s, &prompt, &p);
            assert_eq!(made.reason, StopReason::StopString);
            assert_eq!(
                bytes_of(&s, &made.tokens),
                bytes[..at + n],
                "it ends with the stop string's last token"
            );
            let text = made.pieces.concat();
            let whole = String::from_utf8_lossy(&bytes[..at]).into_owned();
            assert_eq!(without_broken(&text), without_broken(&whole), "nothing of it is shown");
            found += 1;
        }
    }
    assert!(found >= 12, "{found}");
    let p = random(5, 1).stop(vec![String::new()]);
    assert!(matches!(s.generate(&prompt, &p), Err(Error::Argument { name, .. }) if name == "stop"));
}

/// Emoji are several tokens each: pieces hold whole ones, and a stop string ends between them.
#[test]
fn characters_are_whole() {
    let m = load(&default_model());
    let text = "😀🎉😀🎉😀🎉😀🎉😀🎉😀🎉😀🎉😀🎉";
    let prompt = m.vocab().tokenize(text, false, false).unwrap();
    let mut s = open(&m, &params(256));
    let p = GenerateParams::greedy(40).ignore_eos(true);
    let made = generate(&mut s, &prompt, &p);
    let is_part = |t: &&Token| String::from_utf8(m.vocab().piece(**t, false).unwrap()).is_err();
    assert!(
        made.tokens.iter().filter(is_part).count() > 3,
        "the text has tokens that are parts of characters"
    );
    let whole = String::from_utf8_lossy(&bytes_of(&s, &made.tokens)).into_owned();
    let shown = made.pieces.concat();
    let broken = |text: &str| text.matches('\u{fffd}').count();
    assert_eq!((without_broken(&shown), broken(&shown)), (without_broken(&whole), broken(&whole)));

    let first = shown.chars().next().unwrap();
    let stop = shown.chars().find(|c| *c != first && c.len_utf8() == 4).unwrap();
    let p = p.stop(vec![stop.to_string()]);
    // A new session computes the prompt in one batch again: in the one at hand only its last token would be computed,
    // by the product for few rows, whose rounding may choose another of two emoji that are as likely.
    let mut s = open(&m, &params(256));
    let made = generate(&mut s, &prompt, &p);
    let before = shown.split(stop).next().unwrap();
    assert_eq!((made.pieces.concat().as_str(), made.reason), (before, StopReason::StopString));
}

/// Text less the marks of bytes that are no characters: where those stand in a row, how many marks depends on the cuts.
fn without_broken(text: &str) -> String {
    text.replace('\u{fffd}', "")
}

#[test]
fn cancelling_ends_it_and_the_session_lives_on() {
    let m = model("llama-tiny", DType::F32);
    let prompt = some_tokens(20, 256);
    let mut s = open(m, &params(256));
    let all = generate(&mut s, &prompt, &random(50, 5));
    let flag = s.cancel_flag();
    let mut generation = s.generate(&prompt, &random(50, 5)).unwrap();
    let mut tokens = Vec::new();
    for piece in generation.by_ref() {
        tokens.extend(piece.unwrap().token);
        if tokens.len() == 10 {
            flag.store(true, Ordering::Relaxed);
        }
    }
    assert_eq!(generation.stop_reason(), Some(StopReason::Cancelled));
    assert_eq!(tokens, all.tokens[..11], "the token at hand is still handed out");
    assert!(matches!(s.generate(&prompt, &random(50, 5)), Err(Error::Interrupted)));
    flag.store(false, Ordering::Relaxed);
    assert_eq!(generate(&mut s, &prompt, &random(50, 5)), all);
}
