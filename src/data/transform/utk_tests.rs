//! Untie the Knots: the output of the released class on recorded draws, a second implementation that goes by ids
//! alone, and properties.

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::random::rng;
use crate::sample::SpanKind;
use crate::testing::{Bytes, EOS, N_VOCAB};

const KNOTS: [Token; 4] = [256, 257, 258, 259];
const MARKS: [Token; 5] = [260, 261, 262, 263, 264];

fn utk(order: bool, random: bool, backtrace: bool, mix: &[(f64, &[f64])]) -> Utk {
    Utk {
        mix: mix.iter().map(|(w, p)| (*w, p.to_vec())).collect(),
        knots: KNOTS.to_vec(),
        marks: backtrace.then_some(MARKS),
        order,
        random,
        min_split: 0,
        size: 1024,
        tokenizer: Arc::new(Bytes::default()),
    }
}

/// A sample that is cut at EOS, as Megatron cuts it.
fn sample(tokens: Vec<Token>) -> Sample {
    let ends = (1..tokens.len() as u32).filter(|&i| tokens[i as usize - 1] == EOS);
    let starts = std::iter::once(0).chain(ends).collect();
    let mut sample = Sample::new(tokens, starts);
    if let Some(last) = sample.spans.last_mut() {
        last.ends = sample.tokens.last() == Some(&EOS);
    }
    sample
}

fn masked(mut sample: Sample) -> Sample {
    sample.mask_ends();
    sample
}

#[derive(Deserialize)]
struct Case {
    tokens: Vec<Token>,
    order: bool,
    backtrace: bool,
    fixed: bool,
    cuts: Vec<Vec<usize>>,
    places: Vec<Vec<usize>>,
    labels: Vec<String>,
    expected: Vec<Token>,
    weights: String,
}

/// `tests/reference/utk.py` says how the cases were made.
#[test]
fn samples_and_weights_are_those_of_the_released_class() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../tests/fixtures/utk.json")).unwrap();
    let (mut labelled, mut several) = (0, 0);
    for (i, case) in cases.into_iter().enumerate() {
        let utk = utk(case.order, true, case.backtrace, &[(1.0, &[1.0])]);
        let cuts = case.cuts.into_iter().map(|cuts| (cuts, case.fixed)).collect();
        several += case.places.len();
        labelled += usize::from(case.backtrace);
        let draws = Draws { cuts, places: case.places, labels: case.labels };
        let out = masked(utk.assemble(&sample(case.tokens), &draws).unwrap());
        assert_eq!(out.tokens, case.expected, "case {i}");
        let weights: String = out.weights.iter().map(|w| if *w == 0.0 { '0' } else { '1' }).collect();
        assert_eq!(weights, case.weights, "case {i}");
    }
    assert!(labelled > 10 && several > 100, "{labelled} {several}");
}

/// The sample again, as nested lists and searches for ids: slow, and with none of the code above.
fn naive(sample: &Sample, draws: &Draws, backtrace: bool) -> (Vec<Token>, Vec<f32>) {
    let bytes = |text: &str| text.bytes().map(Token::from).collect::<Vec<Token>>();
    let mut documents: Vec<Vec<Token>> = vec![Vec::new()];
    for &token in &sample.tokens {
        documents.last_mut().unwrap().push(token);
        if token == EOS {
            documents.push(Vec::new());
        }
    }
    documents.retain(|d| !d.is_empty());
    let n: usize = draws.places.iter().map(Vec::len).sum();
    let mut slots: Vec<Vec<Token>> = vec![Vec::new(); n];
    for ((document, (cuts, fixed)), places) in documents.iter().zip(&draws.cuts).zip(&draws.places) {
        let mut bounds = vec![0];
        bounds.extend(cuts);
        bounds.push(document.len());
        for (k, &place) in places.iter().enumerate() {
            let slot = &mut slots[place];
            if backtrace && places.len() > 1 {
                slot.push(MARKS[0]);
                slot.extend(bytes(&draws.labels[place]));
                slot.push(MARKS[1]);
            }
            if k > 0 && *fixed {
                slot.push(KNOTS[0]);
                slot.extend(bytes(&format!("{k}")));
                slot.push(KNOTS[1]);
            } else if k > 0 {
                // Ids in the order tail 1, head 2, tail 2, head 3.
                slot.push(KNOTS[[9, 1, 3][k]]);
            }
            slot.extend(&document[bounds[k]..bounds[k + 1]]);
            if k + 1 < places.len() && *fixed {
                slot.push(KNOTS[2]);
                slot.extend(bytes(&format!("{k}")));
                slot.push(KNOTS[3]);
            } else if k + 1 < places.len() {
                slot.push(KNOTS[[0, 2][k]]);
            }
        }
        if backtrace && places.len() > 1 {
            let list = places.iter().map(|&p| bytes(&draws.labels[p])).collect::<Vec<_>>().join(&MARKS[3]);
            let last = places.iter().max().unwrap();
            slots[*last].extend([vec![MARKS[2]], list, vec![MARKS[4]]].concat());
        }
    }
    let tokens: Vec<Token> = slots.concat().into_iter().take(sample.tokens.len()).collect();
    let (x, y) = (&tokens[..tokens.len() - 1], &tokens[1..]);
    let mut weights = vec![1.0; x.len()];
    let mut inside = false;
    for i in 0..x.len() {
        inside |= x[i] == MARKS[0];
        let zero = KNOTS.contains(&x[i])
            || KNOTS.contains(&y[i])
            || inside
            || [MARKS[0], MARKS[2]].contains(&y[i])
            || [MARKS[4], EOS].contains(&x[i]);
        if zero {
            weights[i] = 0.0;
        }
        inside &= x[i] != MARKS[1];
    }
    (tokens, weights)
}

/// Texts of lower bytes; a number that says how often a document ends.
fn tokens() -> impl Strategy<Value = Vec<Token>> {
    (2u8..40, 2usize..300).prop_flat_map(|(every, n)| {
        prop::collection::vec((0..250, 0..every).prop_map(|(t, e)| if e == 0 { EOS } else { t }), n)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_second_implementation_agrees(
        tokens in tokens(), order in any::<bool>(), random in any::<bool>(), backtrace in any::<bool>(),
        size in 1usize..40, seed in any::<u64>(),
    ) {
        let mix: [(f64, &[f64]); 3] = [(0.5, &[0.2, 0.4, 0.4]), (0.3, &[0.0, 0.0, 0.5, 0.5]), (0.2, &[1.0])];
        let utk = Utk { size, ..utk(order, random, backtrace, &mix) };
        let sample = sample(tokens);
        let documents: Vec<_> = pieces::documents(&sample).into_iter().map(|(r, _)| r).collect();
        let draws = utk.draw(&documents, &mut rng(seed, "test", 0, 0));
        let out = masked(utk.apply(sample.clone(), &mut rng(seed, "test", 0, 0)).unwrap());
        out.check(sample.tokens.len() - 1, N_VOCAB).unwrap();
        let (tokens, weights) = naive(&sample, &draws, backtrace);
        prop_assert_eq!(&out.tokens, &tokens);
        prop_assert_eq!(&out.weights, &weights);
    }

    /// Without what was put in, and sorted by document and place, the chunks are a beginning of each document.
    #[test]
    fn documents_can_be_put_together_again(
        tokens in tokens(), order in any::<bool>(), random in any::<bool>(), backtrace in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let utk = utk(order, random, backtrace, &[(1.0, &[0.1, 0.4, 0.5])]);
        let sample = sample(tokens);
        let out = utk.apply(sample.clone(), &mut rng(seed, "test", 0, 0)).unwrap();
        prop_assert_eq!(out.tokens.len(), sample.tokens.len());
        let mut texts: Vec<_> = out.ranges().filter(|(s, _)| s.kind == SpanKind::Text).collect();
        if order {
            for d in 0..sample.spans.len() as u32 {
                let from: Vec<u32> = texts.iter().filter(|(s, _)| s.document == d).map(|(s, _)| s.from).collect();
                prop_assert!(from.is_sorted());
            }
        }
        // The text is that of the sample at the same place; what is missing fell off the end.
        for (span, range) in &texts {
            let from = span.from as usize;
            prop_assert_eq!(&out.tokens[range.clone()], &sample.tokens[from..from + range.len()]);
            let document = sample.spans[span.document as usize];
            prop_assert!(span.from >= document.start);
        }
        texts.sort_by_key(|(s, _)| (s.document, s.from));
        for pair in texts.windows(2).filter(|p| p[0].0.document == p[1].0.document) {
            prop_assert!(pair[0].0.from as usize + pair[0].1.len() <= pair[1].0.from as usize);
        }
        let inserted = out.ranges().filter(|(s, _)| s.kind != SpanKind::Text).map(|(_, r)| r.len()).sum::<usize>();
        let kept: usize = texts.iter().map(|(_, r)| r.len()).sum();
        prop_assert_eq!(inserted + kept, sample.tokens.len());
        // Nothing is lost but for the room that is taken: complete chunks are cut by what comes before.
        prop_assert!(out.tokens.iter().filter(|t| KNOTS.contains(t)).count() <= inserted);
        if !backtrace {
            prop_assert!(out.tokens.iter().all(|t| !MARKS.contains(t)));
        }
    }
}

#[test]
fn shares_are_as_often_as_they_say() {
    let tokens: Vec<Token> = (0..2000).map(|i| if i % 100 == 99 { EOS } else { i % 250 }).collect();
    for (text, share, two) in [
        ("utk-80:backtrace=false", 0.8, 0.5),
        ("utk-30:backtrace=false", 0.3, 0.5),
        ("utk:share=0.5,chunks=0.5/0.5,backtrace=false", 0.5, 1.0),
    ] {
        let utk = super::super::parse(text, 1999, Arc::new(Bytes::default())).unwrap();
        let (mut changed, mut twos, mut cut) = (0, 0, 0);
        for seed in 0..400 {
            let out = utk.apply(sample(tokens.clone()), &mut rng(seed, "test", 0, 0)).unwrap();
            let before = cut;
            let texts: Vec<_> = out.spans.iter().filter(|s| s.kind == SpanKind::Text).collect();
            for d in 0..10 {
                match texts.iter().filter(|s| s.document == d).count() {
                    2 => (twos, cut) = (twos + 1, cut + 1),
                    3 => cut += 1,
                    _ => {}
                }
            }
            // In other samples whole documents are shuffled.
            changed += u32::from(cut > before);
        }
        let found = f64::from(changed) / 400.0;
        assert!((found - share).abs() < 0.08, "{text}: {found}");
        // Some of three chunks look like two, where the last fell off the end.
        let found = f64::from(twos) / f64::from(cut);
        assert!((found - two).abs() < 0.12, "{text}: {found}");
    }
}

#[test]
fn short_documents_stay_whole() {
    let tokens: Vec<Token> = (0..100).map(|i| if i % 10 == 9 { EOS } else { i }).collect();
    let utk = Utk { min_split: 11, ..utk(true, true, true, &[(1.0, &[0.0, 1.0])]) };
    let out = utk.apply(sample(tokens.clone()), &mut rng(1, "test", 0, 0)).unwrap();
    assert!(out.spans.iter().all(|s| s.kind == SpanKind::Text));
    assert_eq!(out.spans.len(), 10);
    assert_eq!(utk.shortest(), 11);
    let parse = |text| super::super::parse(text, 64, Arc::new(Bytes::default())).unwrap();
    assert_eq!(parse("utk:chunks=0/0/0/1,size=7").shortest(), 8);
    assert_eq!((parse("utk-30").shortest(), parse("utk:share=0").shortest()), (2, 1));
}

#[test]
fn ids_are_those_given_or_unused_ones() {
    let parse = |text: &str, unused| {
        super::super::parse(text, 64, Arc::new(Bytes { unused, ..Bytes::default() }))
            .map(|t| t.describe())
            .map_err(|e| e.to_string())
    };
    let found = parse("utk", true).unwrap();
    assert!(found.contains("knots [256, 257, 258, 259], marks Some([260, 261, 262, 263, 264])"), "{found}");
    let found = parse("utk:backtrace=false,knots=<1>/a/#200/<0>", false).unwrap();
    assert!(found.contains("knots [257, 97, 200, 256], marks None"), "{found}");
    // Given ones are not taken a second time; two chunks need two.
    let found = parse("utk:chunks=0/1,knots=<0>/<1>", true).unwrap();
    assert!(found.contains("knots [256, 257], marks Some([258, 259, 260, 261, 262])"), "{found}");
    for (text, what) in [
        ("utk", "0 unused tokens, 9 are needed"),
        ("utk:knots=ab/<1>/<2>/<3>", "knot token 'ab': expected one token of the vocabulary, found 2"),
        ("utk:knots=/<1>/<2>/<3>", "knot token '': expected one token of the vocabulary, found 0"),
        ("utk:knots=<1>", "knot token: expected 4, found 1"),
        ("utk:knots=#268/<1>/<2>/<3>", "expected a token below #268, found #268"),
        ("utk:knots=<1>/<1>/<2>/<3>,marks=a/b/c/d/e", "found #257 twice"),
        ("utk:share=1.5", "share: expected a number from 0 to 1, found '1.5'"),
        ("utk:share=NaN", "share: expected a number from 0 to 1, found 'NaN'"),
        ("utk:chunks=0.5/0.6", "chunks: expected 1 to 4 probabilities"),
        ("utk:chunks=0/0/0/0/1", "chunks: expected 1 to 4 probabilities"),
        ("utk:mix=0.8@0/1", "mix: expected weights that add up to 1, found 0.8"),
        ("utk:mix=0.8", "mix: expected weights and probabilities"),
        ("utk:mix=1@0/1,share=0.5", "mix stands in place of share"),
        ("utk:order=yes", "order: expected true or false, found 'yes'"),
        ("utk:nots=3", "unknown parameter `nots` (did you mean `knots`?); known: share, chunks"),
        ("utk:order", "expected key=value, found `order`"),
        ("utk:order=true,order=true", "order is given twice"),
        ("knots", "data method: expected one of utk-80, utk-30, utk, cip, pose, found 'knots'"),
    ] {
        let e = parse(text, false).unwrap_err();
        assert!(e.contains(what) && !e.contains('\n'), "{text}: {e}");
    }
}
