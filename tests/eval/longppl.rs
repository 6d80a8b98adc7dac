//! LongPPL against what the package `longppl` computes from the same log-probabilities, and by hand.

use std::sync::Mutex;

use ropewalk::control::{Control, Progress, Stop};
use ropewalk::eval::perplexity::{longppl, run, Params, Report};
use ropewalk::eval::protocol::{protocol, PROTOCOLS};
use ropewalk::eval::Document;
use ropewalk::Token;

use crate::fakes::{letters, Fake, BOS};

fn params(ctx: &[usize], longppl: longppl::Params) -> Params {
    Params::new(protocol("window").unwrap(), ctx.to_vec()).longppl(Some(longppl))
}

fn measure(fake: &Fake, documents: &[Document], params: &Params) -> Report {
    run(fake, "m.gguf", documents, params, &Control::default()).unwrap()
}

/// That of tests/reference/longppl.py.
fn by_pairs(tokens: &[Token], i: usize) -> f32 {
    let eighths = |x: i32, n: i32| (x.rem_euclid(n)) as f32 / 8.0;
    match (1..i).rev().find(|&j| tokens[j - 1..=j] == tokens[i - 1..=i]) {
        None => 2.5 + eighths(tokens[i] * 5 + tokens[i - 1], 40),
        Some(seen) => eighths(tokens[i] * 7 + tokens[i - 1] * 3 + ((i - seen) % 5) as i32, 28),
    }
}

#[test]
fn the_package_finds_the_same() {
    let recorded: serde_json::Value =
        serde_json::from_str(include_str!("../reference/longppl.json")).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    let mut with_key_tokens = 0;
    for (i, case) in cases.iter().enumerate() {
        let text = case["text"].as_str().unwrap();
        let n = case["n_token"].as_u64().unwrap() as usize;
        assert_eq!(text.len(), n, "the fake's tokens are bytes");
        let bounds = longppl::Params::default()
            .trunc_len(case["trunc_len"].as_u64().unwrap() as usize)
            .sliding_window(case["sliding_window"].as_u64().unwrap() as usize)
            .alpha(case["alpha"].as_f64().unwrap())
            .beta(case["beta"].as_f64().unwrap());
        let fake = Fake { add_bos: case["bos"].as_bool().unwrap(), ..Fake::with_nll(by_pairs) };
        let report = measure(&fake, &[Document::text("d", text)], &params(&[n + 1], bounds));
        let found = report.results[0].longppl.unwrap();
        let near = |a: Option<f64>, b: &serde_json::Value| match (a, b.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * b,
            (a, b) => a == b,
        };
        assert!(near(found.longppl, &case["longppl"]), "case {i}: {found:?}, {}", case["longppl"]);
        assert!(near(found.ppl, &case["ppl"]), "case {i}: {found:?}, {}", case["ppl"]);
        assert_eq!(found.key_tokens as u64, case["n_key_token"].as_u64().unwrap_or(0), "case {i}");
        assert_eq!((found.tokens, found.documents), (n - 1, usize::from(found.key_tokens > 0)), "case {i}");
        with_key_tokens += usize::from(found.key_tokens > 0);
    }
    assert!((cases.len(), with_key_tokens) == (9, 6), "{with_key_tokens} of {}", cases.len());
}

/// A model that knows the letter `z` if it saw an `a` before, at whatever distance.
fn knows_z(tokens: &[Token], i: usize) -> f32 {
    let [a, z] = [b'a', b'z'].map(Token::from);
    match tokens[i] == z && tokens[..i].contains(&a) {
        true => 0.5 + if tokens[0] == BOS { 0.0 } else { 0.25 },
        false => 3.0,
    }
}

#[test]
fn contexts_and_key_tokens_by_hand() {
    let bounds = longppl::Params::default().trunc_len(3).sliding_window(2);
    let fed = |text: &str, add_bos| {
        let fake = Fake { add_bos, ..Fake::with_nll(knows_z) };
        let report = measure(&fake, &[Document::text("d", text)], &params(&[100], bounds));
        let shown = |(tokens, from): &(Vec<Token>, usize)| {
            let text: String =
                tokens.iter().map(|t| if *t == BOS { '^' } else { *t as u8 as char }).collect();
            format!("{text} {from}")
        };
        (fake.calls().iter().map(shown).collect::<Vec<_>>().join(", "), report.results[0].clone())
    };
    // The z at 4 sees the a in the first short context, the whole text's start; those at 6 and 8 do not.
    let (calls, row) = fed("abbbzbzbzz", false);
    assert_eq!(calls, "abbbzbzbzz 1, bbzbz 3, zbzbz 3, zbzz 3");
    let found = row.longppl.unwrap();
    assert_eq!((found.key_tokens, found.documents, found.tokens), (3, 1, 9));
    assert_eq!((found.nll, found.nll_stderr), (Some(0.75), Some(0.0)));
    assert_eq!(found.longppl, Some(0.75f64.exp()));
    assert!((found.ppl.unwrap() - ((5.0 * 3.0 + 4.0 * 0.75) / 9.0f64).exp()).abs() < 1e-12);
    assert_eq!(row.headline.ppl, found.ppl.unwrap());
    assert_eq!(row.tokens_fed, 10 + 5 + 5 + 4);
    // BOS stands in the context that finds key tokens, and moves the short ones; it is not there to measure.
    let (calls, row) = fed("abbbzbzbzz", true);
    assert_eq!(calls, "^abbbzbzbzz 1, bbbzb 3, bzbzb 3, bzbzz 3, abbbzbzbzz 1");
    let found = row.longppl.unwrap();
    assert_eq!((found.key_tokens, found.nll), (4, Some(0.75)));
    assert!((row.headline.nll - (6.0 * 3.0 + 4.0 * 0.5) / 10.0).abs() < 1e-12);
}

#[test]
fn documents_are_pooled_by_key_token() {
    let bounds = longppl::Params::default().trunc_len(3).sliding_window(2);
    // One key token in the first, two in the second, none in the others, of which one is short.
    let texts = ["abbbbbz", "abbbbbzz", "bbbbbbbbbb", "ab"];
    let documents: Vec<Document> = texts.iter().map(|t| Document::text(*t, *t)).collect();
    // The second z costs more.
    let fake =
        || Fake::with_nll(|t, i| knows_z(t, i) + if t[i - 1] == Token::from(b'z') { 0.75 } else { 0.0 });
    let report = measure(&fake(), &documents, &params(&[50, 7], bounds));
    let found = report.results[0].longppl.unwrap();
    assert_eq!((found.key_tokens, found.documents, found.tokens), (3, 2, 6 + 7 + 9 + 1));
    assert_eq!(found.nll, Some((0.75 + 0.75 + 1.5) / 3.0));
    // At 7 tokens the second document ends before its second z.
    let cut = report.results[1].longppl.unwrap();
    assert_eq!((cut.key_tokens, cut.nll), (2, Some(0.75)));
    let mean = report.mean_over_ctx[0].longppl.unwrap();
    assert!((mean - (1f64.exp() + 0.75f64.exp()) / 2.0).abs() < 1e-12);
    assert!(report.text().contains("| ctx | LongPPL |"), "{}", report.text());

    let none = measure(&fake(), &documents[2..], &params(&[50, 7], bounds));
    let row = none.results[0].longppl.unwrap();
    assert_eq!((row.longppl, row.nll, row.key_tokens, row.documents), (None, None, 0, 0));
    assert!(row.ppl.is_some() && none.mean_over_ctx[0].longppl.is_none());
    let json = serde_json::to_value(&report).unwrap();
    for key in ["longppl", "nll", "longppl_stderr", "nll_stderr", "key_tokens", "documents", "ppl", "tokens"]
    {
        assert!(json["results"][0]["longppl"][key].is_number(), "{key}: {json}");
    }
}

#[test]
fn what_longppl_cannot_be_measured_with_is_an_error() {
    let error = |fake: &Fake, params: &Params| {
        run(fake, "m", &[letters("a.txt", 40)], params, &Control::default()).unwrap_err().to_string()
    };
    let usual = longppl::Params::default();
    for (bounds, expected) in [
        (usual.trunc_len(0), "trunc-len: expected at least 1, found 0"),
        (usual.sliding_window(0), "sliding-window: expected at least 1, found 0"),
        (usual.alpha(f64::NAN), "alpha: expected a finite number, found NaN"),
        (usual.beta(f64::INFINITY), "beta: expected a finite number, found inf"),
    ] {
        assert_eq!(error(&Fake::new(), &params(&[20], bounds)), expected);
    }
    for p in PROTOCOLS.iter().filter(|p| p.name != "window") {
        let e = error(&Fake::new(), &Params::new(p, vec![20]).longppl(Some(usual)));
        assert_eq!(e, format!("longppl: expected protocol window, found {}", p.name));
    }
    // A bad value in a short context, and in the text without BOS.
    let small = params(&[20], usual.trunc_len(4).sliding_window(3));
    let bad = |t: &[Token], i: usize| if t.len() < 20 && t[i] == Token::from(b'l') { f32::NAN } else { 1.0 };
    let e = error(&Fake::with_nll(bad), &small);
    assert_eq!(e, "a.txt: ctx 20: longppl: a short context: token 11: negative log-likelihood is NaN");
    let bad =
        |t: &[Token], i: usize| if t[0] == BOS || t.len() < 19 { 1.0 } else { f32::INFINITY + i as f32 };
    let e = error(&Fake { add_bos: true, ..Fake::with_nll(bad) }, &small);
    assert_eq!(e, "a.txt: ctx 20: longppl: the text without BOS: token 1: negative log-likelihood is inf");
}

/// A document whose short contexts are not all done counts for nothing.
#[test]
fn stopping_leaves_whole_documents() {
    let bounds = longppl::Params::default().trunc_len(4).sliding_window(3);
    let documents = [letters("a", 12), letters("b", 12)];
    let whole = Fake::new();
    let all = measure(&whole, &documents, &params(&[20], bounds));
    // One whole pass and the contexts from 3 and 6 on.
    assert_eq!((whole.calls().len(), all.results[0].tokens_fed), (6, 2 * (12 + 7 + 6)));
    for interrupted in 3..6 {
        let fake = Fake { interrupt_at: Some(interrupted), ..Fake::new() };
        let report = measure(&fake, &documents, &params(&[20], bounds));
        assert!(report.interrupted && report.results[0].interrupted);
        assert_eq!((report.results[0].windows, report.results[0].longppl.unwrap().tokens), (1, 11));
    }
    let (stop, seen) = (Stop::default(), Mutex::new(Vec::new()));
    let progress = |p: &Progress<'_>| {
        let mut seen = seen.lock().unwrap();
        seen.push((p.what.to_string(), p.done, p.total));
        if seen.len() == 4 {
            stop.request();
        }
    };
    let control = Control::default().with_stop(&stop).with_progress(&progress);
    let report = run(&Fake::new(), "m", &documents, &params(&[20], bounds), &control).unwrap();
    assert_eq!(report.results[0].windows, 1);
    let seen = seen.into_inner().unwrap();
    let expected =
        [(19, "short contexts"), (25, "short contexts"), (25, "ppl 2.718"), (44, "short contexts")];
    for ((what, done, total), (expected, words)) in seen.iter().zip(expected) {
        assert_eq!((*done, *total), (expected, 50), "{what}");
        assert!(what.contains(words), "{what}");
    }
    assert_eq!(seen.len(), 4);
}

/// What is fed after the whole text, as ranges of it, and the number of tokens announced beforehand.
fn again(n: usize, add_bos: bool, bounds: longppl::Params) -> (Vec<(usize, usize)>, u64) {
    let fake = Fake { add_bos, ..Fake::new() };
    let total = Mutex::new(0);
    let progress = |p: &Progress<'_>| *total.lock().unwrap() = p.total;
    let control = Control::default().with_progress(&progress);
    run(&fake, "m", &[letters("a", n)], &params(&[100], bounds), &control).unwrap();
    let range = |(tokens, _): &(Vec<Token>, usize)| {
        let start = (tokens[0] - Token::from(b'a')) as usize;
        (start, start + tokens.len())
    };
    let ranges = fake.calls()[1..].iter().map(range).collect();
    (ranges, total.into_inner().unwrap())
}

#[test]
fn short_contexts_by_hand() {
    let bounds = longppl::Params::default().trunc_len(10).sliding_window(4);
    let all = |n| again(n, false, bounds).0;
    // Token 14 is the first that a context other than the whole scores.
    assert_eq!(all(14), []);
    assert_eq!(all(15), [(4, 15)]);
    assert_eq!(all(18), [(4, 18)]);
    assert_eq!(all(23), [(4, 18), (8, 22), (12, 23)]);
    assert_eq!(all(5), []);
    assert_eq!(again(23, false, bounds).1, 23 + 14 + 14 + 11);
    assert_eq!(again(22, true, bounds).1, 23 + 22 + 14 + 14 + 11);
    assert_eq!(again(23, false, bounds.trunc_len(usize::MAX).sliding_window(usize::MAX)), (vec![], 23));
}

/// The loss of each of five letters in a short context, and in the whole text of 20 tokens.
fn by_letter(tokens: &[Token], i: usize) -> f32 {
    // Two are key tokens. One loses exactly alpha, one has exactly -beta, and one loses nothing.
    let losses = [(3.125, 1.0), (4.0, 1.9375), (3.0, 1.0), (9.0, 2.0), (1.0, 1.5)];
    let (short, full) = losses[(tokens[i] - Token::from(b'a')) as usize % losses.len()];
    if tokens.len() == 20 {
        full
    } else {
        short
    }
}

#[test]
fn both_bounds_are_strict() {
    let bounds = longppl::Params::default().trunc_len(3).sliding_window(2);
    let report = measure(&Fake::with_nll(by_letter), &[letters("a", 20)], &params(&[100], bounds));
    let found = report.results[0].longppl.unwrap();
    // Of each letter, three are in short contexts.
    assert_eq!(found.key_tokens, 6);
    assert!((found.nll.unwrap() - (1.0 + 1.9375) / 2.0).abs() < 1e-12, "{found:?}");
}
