//! Perplexity of models whose log-likelihoods are known.

use std::sync::Mutex;

use ropewalk::control::{Control, Progress, Stop};
use ropewalk::eval::perplexity::{run, Params, Report};
use ropewalk::eval::protocol::{protocol, Text, PROTOCOLS};
use ropewalk::eval::{Content, Document};

use crate::fakes::{letters, Fake, BOS};

fn params(name: &str, ctx: &[usize], stride: Option<usize>) -> Params {
    Params::new(protocol(name).unwrap(), ctx.to_vec()).stride(stride)
}

fn measure(fake: &Fake, documents: &[Document], params: &Params) -> Report {
    run(fake, "m.gguf", documents, params, &Control::default()).unwrap()
}

fn error(fake: &Fake, documents: &[Document], params: &Params) -> String {
    run(fake, "m.gguf", documents, params, &Control::default()).unwrap_err().to_string()
}

/// Base that longlora's source raises to the mean.
#[allow(clippy::approx_constant)]
const SHORT_E: f64 = 2.71828;

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * b.abs().max(1.0)
}

#[test]
fn a_uniform_model_has_the_perplexity_of_its_vocabulary() {
    let fake = Fake::with_nll(|_, _| 257f32.ln());
    let exact = f64::from(257f32.ln()).exp();
    assert!((exact - 257.0).abs() < 1e-4);
    for p in PROTOCOLS {
        let report =
            measure(&fake, &[letters("a", 900), letters("b", 500)], &Params::new(p, vec![300, 64 * 5]));
        assert_eq!((report.protocol, report.stride, report.results.len()), (p.name, p.stride, 2));
        for row in &report.results {
            assert!(near(row.token_weighted.ppl, exact) && near(row.window_mean.ppl, exact), "{row:?}");
            assert_eq!((row.windows, row.interrupted), (row.windows_total, false));
            // The source of both rounds e to five decimals.
            let bound = if ["longlora", "lceg-landmark"].contains(&p.name) { 2e-3 } else { 1e-9 };
            assert!((row.headline.ppl - exact).abs() < bound);
            assert!(row.buckets.iter().all(|b| near(b.value.ppl, exact)));
            assert_eq!(row.buckets.iter().map(|b| b.tokens).sum::<usize>(), row.tokens);
            assert!(row.token_weighted.nll_stderr.unwrap() < 1e-12);
        }
    }
}

/// Log-likelihood: the square of the position. 10 letters, ctx 4, stride 2; all figures worked out by hand.
#[test]
fn each_protocol_averages_as_it_says() {
    let square = || Fake::with_nll(|_, i| (i * i) as f32);
    let check = |name: &str,
                 bos: Option<bool>,
                 documents: &[Document],
                 by_token: f64,
                 by_window: f64,
                 tokens: usize| {
        let p = protocol(name).unwrap();
        let stride = p.stride.map(|_| 2);
        let report = measure(&square(), documents, &params(name, &[4], stride).bos(bos));
        let row = &report.results[0];
        assert!(near(row.token_weighted.nll, by_token), "{name}: {row:?}");
        assert!(near(row.window_mean.nll, by_window), "{name}: {row:?}");
        assert_eq!(row.tokens, tokens, "{name}");
        row.clone()
    };
    let one = [letters("a", 10)];
    let two = [letters("a", 10), letters("b", 2)];
    let row = check("window", None, &one, 14.0 / 3.0, 14.0 / 3.0, 3);
    assert!(near(row.headline.nll, 14.0 / 3.0) && row.headline.nll_stderr.is_some());
    assert_eq!(row.window_mean.nll_stderr, None);
    // Windows: 1 4 9 | 4 9 | 4 9 | 4 9.
    let row = check("yarn", Some(false), &one, 53.0 / 9.0, (14.0 / 3.0 + 3.0 * 6.5) / 4.0, 9);
    assert!(near(row.headline.nll, row.window_mean.nll) && near(row.headline.ppl, row.headline.nll.exp()));
    // Two documents with BOS: 1 4 9 | 4 9 | 4 9 | 4 9 | 4, and 1 4.
    let row = check("yarn", None, &two, 62.0 / 12.0, (14.0 / 3.0 + 3.0 * 6.5 + 4.0 + 2.5) / 6.0, 12);
    assert_eq!((row.windows, row.short_documents), (6, 1));
    // 1 4 9 and 1 4.
    let row = check("yarn-trunc", None, &two, 19.0 / 5.0, (14.0 / 3.0 + 2.5) / 2.0, 5);
    assert!(near(row.headline.nll, (14.0 / 3.0 + 2.5) / 2.0));
    assert!(near(row.headline.nll_stderr.unwrap(), (14.0 / 3.0 - 2.5) / 2.0));
    let row = check("longlora", None, &one, 14.0 / 3.0, 14.0 / 3.0, 6);
    assert!(near(row.headline.ppl, SHORT_E.powf(14.0 / 3.0)) && row.headline.ppl < row.window_mean.ppl);
    let row = check("stride", None, &one, 6.5, 6.5, 6);
    // Four and nine, three times each: population variance 6.25.
    assert!(near(row.headline.nll_stderr.unwrap(), (6.25f64 / 5.0).sqrt()));
    assert!(near(row.headline.ppl_stderr.unwrap(), (6.25f64 / 5.0).sqrt() * 6.5f64.exp()));
    let row = check("press", None, &one, 53.0 / 9.0, (14.0 / 3.0 + 3.0 * 6.5) / 4.0, 9);
    assert!(near(row.headline.nll, 53.0 / 9.0));
    check("llama-cpp", None, &one, 9.0, 9.0, 2);
    // Streams run over documents: 12 letters make three chunks of 4.
    check("llama-cpp", None, &two, 9.0, 9.0, 3);
}

#[test]
fn buckets_go_by_position_in_the_window() {
    let fake = Fake::with_nll(|_, i| i as f32);
    let report = measure(&fake, &[letters("a", 40)], &params("window", &[10], None).bucket(Some(4)));
    let buckets: Vec<_> =
        report.results[0].buckets.iter().map(|b| (b.start, b.end, b.tokens, b.value.nll)).collect();
    assert_eq!(buckets, [(0, 4, 3, 2.0), (4, 8, 4, 5.5), (8, 10, 2, 8.5)]);
    let report = measure(&fake, &[letters("a", 40)], &params("window", &[16], None));
    assert_eq!(report.results[0].buckets.len(), 8);
    // The second half of chunks of 16 is positions 9 to 15: the buckets before are left out.
    let report = measure(&fake, &[letters("a", 40)], &params("llama-cpp", &[16], None));
    let buckets: Vec<_> = report.results[0].buckets.iter().map(|b| (b.start, b.end, b.tokens)).collect();
    assert_eq!(buckets, [(8, 10, 2), (10, 12, 4), (12, 14, 4), (14, 16, 4)]);
}

/// Whoever compares methods document by document, or draws documents again, needs the sums.
#[test]
fn the_sums_of_texts_are_those_of_the_whole() {
    // Log-likelihood: the letter and the position.
    let fake = || Fake::with_nll(|t, i| (t[i] - i32::from(b'a')) as f32 + i as f32 / 4.0);
    let documents = [letters("a", 900), letters("b", 500), letters("c", 310)];
    for (p, n_texts) in PROTOCOLS.iter().map(|p| (p, if p.text == Text::Stream { 1 } else { 3 })) {
        let params = Params::new(p, vec![300]).bucket(Some(37));
        let row = measure(&fake(), &documents, &params).results.remove(0);
        assert_eq!(row.texts.len(), n_texts, "{}", p.name);
        assert_eq!(row.texts.iter().map(|t| t.windows).sum::<usize>(), row.windows, "{}", p.name);
        assert_eq!(row.texts.iter().map(|t| t.tokens).sum::<usize>(), row.tokens, "{}", p.name);
        let sum = row.texts.iter().map(|t| t.nll_sum).sum::<f64>();
        assert!(near(sum, row.token_weighted.nll * row.tokens as f64), "{}: {sum}, {row:?}", p.name);
        for bucket in &row.buckets {
            let parts = row.texts.iter().flat_map(|t| &t.buckets).filter(|b| b.start == bucket.start);
            let (tokens, nll) = parts
                .fold((0, 0.0), |(n, x), b| (n + usize::from(b.end == bucket.end) * b.tokens, x + b.nll_sum));
            assert_eq!(tokens, bucket.tokens, "{}", p.name);
            assert!(near(nll, bucket.value.nll * tokens as f64), "{}: {bucket:?}", p.name);
        }
        for text in &row.texts {
            assert!(near(text.buckets.iter().map(|b| b.nll_sum).sum(), text.nll_sum));
            assert_eq!(text.buckets.iter().map(|b| b.tokens).sum::<usize>(), text.tokens);
        }
    }
    let row = measure(&fake(), &documents, &params("window", &[8], None)).results.remove(0);
    let found: Vec<_> = row.texts.iter().map(|t| (t.name.as_str(), t.windows, t.tokens, t.nll_sum)).collect();
    // Letters 1 to 7 of the alphabet and 7 quarters, thrice.
    assert_eq!(found, [("a", 1, 7, 35.0), ("b", 1, 7, 35.0), ("c", 1, 7, 35.0)]);
}

#[test]
fn bos_stands_where_each_protocol_puts_it() {
    let fed = |name: &str, has_bos, add_bos, bos, documents: &[Document]| {
        let fake = Fake { has_bos, add_bos, ..Fake::new() };
        let stride = protocol(name).unwrap().stride.map(|_| 2);
        let report = measure(&fake, documents, &params(name, &[4], stride).bos(bos));
        let text = |(tokens, from): &(Vec<i32>, usize)| {
            let text: String =
                tokens.iter().map(|t| if *t == BOS { '^' } else { *t as u8 as char }).collect();
            format!("{text} {from}")
        };
        (report.bos, fake.calls().iter().map(text).collect::<Vec<_>>().join(", "))
    };
    let one = [letters("a", 8)];
    let no = |s: &str| (false, s.to_owned());
    let yes = |s: &str| (true, s.to_owned());
    // `yarn` takes BOS whenever there is one; the others when the model's flags ask for it.
    assert_eq!(fed("window", true, false, None, &one), no("abcd 1"));
    assert_eq!(fed("window", true, true, None, &one), yes("^abc 1"));
    assert_eq!(fed("yarn-trunc", true, false, None, &one), yes("^abc 1"));
    assert_eq!(fed("yarn-trunc", false, false, None, &one), no("abcd 1"));
    assert_eq!(fed("yarn", true, false, None, &one), yes("^abc 1, ^cde 2, ^efg 2, ^gh 2"));
    assert_eq!(fed("yarn", true, false, Some(false), &one), no("abcd 1, cdef 2, efgh 2"));
    assert_eq!(fed("llama-cpp", true, false, None, &one), no("abcd 3, efgh 3"));
    assert_eq!(fed("llama-cpp", true, true, None, &one), yes("^abc 3, ^efg 3"));
    assert_eq!(fed("stride", true, true, None, &one), yes("^abc 2, bcde 2, defg 2"));
    let two = [letters("a", 5), letters("b", 4)];
    assert_eq!(fed("press", true, true, None, &two), yes("^abc 1, bcde 2, de^a 2, ^abc 2, bcd 2"));
    assert_eq!(fed("longlora", true, true, None, &two), yes("^abc 1, bcde 1, de^a 1"));
    let fake = Fake { has_bos: false, ..Fake::new() };
    let e = error(&fake, &one, &params("window", &[4], None).bos(Some(true)));
    assert_eq!(e, "BOS is requested, but the vocabulary has none");
}

#[test]
fn several_lengths_are_planned_before_any_is_measured() {
    let fake = Fake::new();
    let report = measure(&fake, &[letters("a", 100)], &params("stride", &[8, 32], Some(4)));
    assert_eq!(fake.log.borrow().opened, [8, 32]);
    let rows: Vec<_> = report.results.iter().map(|r| (r.ctx, r.windows, r.rope.as_str())).collect();
    assert_eq!(rows, [(8, 23, "fake at 8"), (32, 17, "fake at 32")]);
    let e = error(&fake, &[letters("a.txt", 100)], &params("stride", &[8, 100], Some(4)));
    assert_eq!(e, "a.txt: protocol stride: 100 tokens are too few: ctx 100 needs one more than that");
    assert_eq!(fake.calls().len(), 23 + 17);
}

#[test]
fn documents_can_be_chosen_and_windows_sampled() {
    let documents = [letters("a", 4), letters("b", 20), letters("c", 30), letters("d", 40)];
    let p = params("window", &[16], None).min_tokens(10).max_documents(Some(2));
    let report = measure(&Fake::new(), &documents, &p);
    assert_eq!((report.documents, report.document_tokens, report.results[0].windows), (2, 50, 2));
    let e = error(&Fake::new(), &documents, &p.min_tokens(50));
    assert_eq!(e, "no documents of at least 50 tokens among the 4 given");
    let fake = Fake::new();
    let p = params("llama-cpp", &[4], None).max_windows(Some(3));
    let row = measure(&fake, &[letters("a", 26)], &p).results.remove(0);
    assert_eq!((row.windows, row.windows_planned, row.windows_total, row.tokens), (3, 3, 6, 3));
    assert_eq!(fake.calls().iter().map(|(t, _)| t[0] as u8 as char).collect::<String>(), "aiq");
    for (name, p) in [
        ("max-windows", params("window", &[4], None).max_windows(Some(0))),
        ("bucket", params("window", &[4], None).bucket(Some(0))),
        ("stride", params("window", &[4], Some(0))),
    ] {
        assert_eq!(error(&Fake::new(), &documents, &p), format!("{name}: expected at least 1, found 0"));
    }
    assert!(error(&Fake::new(), &documents, &params("window", &[], None))
        .contains("lengths: expected at least one"));
    assert!(error(&Fake::new(), &[], &params("window", &[4], None)).contains("no documents"));
}

/// The pieces of protocol `restart` are fed to a context of their own length, and stand in the buckets where
/// the window of all of them stands.
#[test]
fn restarted_texts_have_buckets_by_position_in_the_document() {
    // Log-likelihood: the letter. 26 letters and a few more.
    let letter = || Fake::with_nll(|t, i| (t[i] - i32::from(b'a')) as f32);
    let restarted = params("restart", &[14], Some(5)).bucket(Some(4));
    for (bos, fed, expected) in [
        (
            false,
            vec!["abcde", "fghij", "klmn"],
            vec![(0, 4, 3, 2.0), (4, 8, 3, 17.0 / 3.0), (8, 12, 3, 28.0 / 3.0), (12, 14, 2, 12.5)],
        ),
        // With BOS letter k is at position k + 1: 0 1 2 | 3 4 5 6 | 7 8 9 10 | 11 12.
        (
            true,
            vec!["^abcd", "^efgh", "^ijkl", "^m"],
            vec![(0, 4, 3, 1.0), (4, 8, 4, 4.5), (8, 12, 4, 8.5), (12, 14, 2, 11.5)],
        ),
    ] {
        let fake = letter();
        let row = measure(&fake, &[letters("a", 40)], &restarted.clone().bos(Some(bos))).results.remove(0);
        assert_eq!(*fake.log.borrow().opened, [5]);
        let text = |(tokens, from): &(Vec<i32>, usize)| {
            assert_eq!(*from, 1);
            tokens.iter().map(|t| if *t == BOS { '^' } else { *t as u8 as char }).collect::<String>()
        };
        assert_eq!(fake.calls().iter().map(text).collect::<Vec<_>>(), fed);
        let buckets: Vec<_> = row.buckets.iter().map(|b| (b.start, b.end, b.tokens, b.value.nll)).collect();
        assert_eq!(buckets, expected);
        assert_eq!((row.ctx, row.short_documents, row.rope.as_str()), (14, 0, "fake at 5"));
        // Whole windows put the same tokens into the same buckets, but for those that start a piece.
        let whole = measure(
            &letter(),
            &[letters("a", 40)],
            &params("window", &[14], None).bucket(Some(4)).bos(Some(bos)),
        );
        for (a, b) in row.buckets.iter().zip(&whole.results[0].buckets) {
            assert_eq!(bos.then_some(a), bos.then_some(b));
            assert_eq!((a.start, a.end), (b.start, b.end));
        }
    }
    let fake = Fake::with_nll(|t, i| if t[i] == i32::from(b'h') { f32::NAN } else { 1.0 });
    let e = error(&fake, &[letters("a", 40)], &restarted);
    assert_eq!(e, "a: ctx 14: window 1 (tokens 5..10), position 7: negative log-likelihood is NaN");
}

#[test]
fn the_mean_over_lengths_is_that_of_perplexities() {
    // Position 1 costs 2 nats, others nothing: means of 2/3, 2/7, 2/15.
    let fake = || Fake::with_nll(|_, i| if i == 1 { 2.0 } else { 0.0 });
    let document = [letters("a", 40)];
    let report = measure(&fake(), &document, &params("window", &[4, 8, 16], None));
    let [mean] = &report.mean_over_ctx[..] else { panic!("{report:?}") };
    let expected = [3.0, 7.0, 15.0].iter().map(|n: &f64| (2.0 / n).exp()).sum::<f64>() / 3.0;
    assert!(near(mean.ppl, expected), "{mean:?}");
    assert_eq!((mean.lengths, mean.rope.as_str(), mean.longppl), (3, "fake at 4", None));
    assert!(report.text().contains("mean over 3 lengths: ppl 1.474"), "{}", report.text());
    assert!(measure(&fake(), &document, &params("window", &[4], None)).mean_over_ctx.is_empty());
    // A mean over some of the lengths would pass for that over all.
    let fake = Fake { interrupt_at: Some(2), ..fake() };
    let report = measure(&fake, &document, &params("window", &[4, 8, 16], None));
    assert!(report.interrupted && report.results.len() == 2 && report.mean_over_ctx.is_empty());
}

/// Documents of 10 to 29 letters; those of 20 and more are to be drawn from.
#[test]
fn a_sample_of_documents_follows_from_its_seed() {
    let documents: Vec<Document> = (10..30).map(|n| letters(&n.to_string(), n)).collect();
    let sample = |seed, max| {
        let p = params("window", &[8], None).min_tokens(20).max_documents(max).seed(seed);
        measure(&Fake::new(), &documents, &p)
    };
    let names = |seed, max| {
        let report = sample(Some(seed), Some(max));
        let drawn = report.sample.clone().unwrap();
        assert_eq!((drawn.seed, drawn.documents.len()), (seed, report.documents));
        let numbers: Vec<usize> = drawn.documents.iter().map(|n| n.parse().unwrap()).collect();
        assert_eq!(report.document_tokens, numbers.iter().sum::<usize>());
        assert!(numbers.is_sorted() && numbers.iter().all(|n| *n >= 20), "{numbers:?}");
        numbers
    };
    assert_eq!(names(1, 4), names(1, 4));
    assert!((0..20).any(|seed| names(seed, 4) != names(seed + 1, 4)));
    assert_eq!(names(1, 99), (20..30).collect::<Vec<_>>());
    // What more documents are drawn includes what fewer are.
    assert!(names(3, 3).iter().all(|n| names(3, 6).contains(n)));
    // Each of the ten is drawn in 4 of 10 samples: 400 of 1,000, whose standard deviation is 15.5.
    let mut times = [0; 10];
    (0..1000).for_each(|seed| names(seed, 4).iter().for_each(|n| times[n - 20] += 1));
    assert!(times.iter().all(|n| (330..470).contains(n)), "{times:?}");
    let first = sample(None, Some(4));
    assert!(first.sample.is_none() && first.document_tokens == 20 + 21 + 22 + 23);
    assert!(sample(Some(7), Some(2)).text().contains("in 2 document(s), drawn by seed 7"));
}

#[test]
fn token_ids_are_documents_from_bos_to_bos() {
    let ids = |name: &str, text: &str| Document {
        name: name.into(),
        content: Content::Ids(text.bytes().map(u16::from).collect()),
    };
    let fed = |documents: &[Document], p: &Params, add_bos| {
        // BOS is a character here, and the one in the file.
        let fake = Fake { bos: i32::from(b'^'), add_bos, ..Fake::new() };
        let report = measure(&fake, documents, p);
        let text =
            |(tokens, _): &(Vec<i32>, usize)| tokens.iter().map(|t| *t as u8 as char).collect::<String>();
        (fake.calls().iter().map(text).collect::<Vec<_>>(), report)
    };
    let p = params("window", &[4], None);
    let (calls, report) = fed(&[ids("x.bin", "^abcdef^gh^ijkl")], &p, true);
    assert_eq!(calls, ["^abc", "^gh", "^ijk"]);
    assert_eq!((report.documents, report.document_tokens, report.notes.len()), (3, 12, 1));
    assert_eq!(
        report.notes,
        ["ctx 4: 1 of 3 texts are shorter than one window; the longest text has 6 tokens"]
    );
    // The protocol's rule, or --bos, holds for them as for texts.
    assert_eq!(fed(&[ids("x.bin", "^abcdef^gh")], &p, false).0, ["abcd", "gh"]);
    // The text before the first BOS is also a document; texts can be next to it.
    let (calls, _) = fed(&[ids("x.bin", "ab^cd"), Document::text("y", "efghi")], &p, true);
    assert_eq!(calls, ["^ab", "^cd", "^efg"]);
    // As a stream it is the file, BOS for BOS; LCEG takes the documents before the eleventh BOS.
    let p = params("press", &[4], Some(4)).max_documents(Some(2));
    let (calls, report) = fed(&[ids("x.bin", "^abcdef^ghi^jkl")], &p, true);
    assert_eq!((calls.concat(), report.documents), ("^abcdef^ghi".to_owned(), 2));
    // One without BOS may be another model's.
    let (calls, report) = fed(&[ids("x.bin", "abcd")], &params("window", &[4], None), true);
    assert_eq!(calls, ["^abc"]);
    assert_eq!(
        report.notes,
        ["x.bin holds no BOS (id 94), so it is one document: are its ids this model's?"]
    );
    // Names tell documents of a file apart.
    let p = params("window", &[4], None).max_documents(Some(9)).seed(Some(1));
    let (_, report) = fed(&[ids("x.bin", "^ab^cd")], &p, true);
    assert_eq!(report.sample.unwrap().documents, ["x.bin document 1", "x.bin document 2"]);

    let fake = || Fake { bos: i32::from(b'^'), n_vocab: 120, ..Fake::new() };
    let e = error(&fake(), &[ids("x.bin", "^abxyz")], &params("window", &[4], None));
    assert_eq!(e, "x.bin: offset 6: expected a token id below 120, found 120");
    let e = error(&fake(), &[ids("x.bin", "^ab^^cd")], &params("window", &[4], None));
    assert_eq!(e, "x.bin document 2: protocol window: 0 tokens are too few: nothing to score");
    let p = params("window", &[4], None).min_tokens(1);
    assert_eq!(measure(&fake(), &[ids("x.bin", "^ab^^cd^")], &p).documents, 2);
}

#[test]
fn a_bad_log_likelihood_is_an_error_that_says_where() {
    let fake = Fake::with_nll(|t, i| if t[i] == i32::from(b'h') { f32::NAN } else { 1.0 });
    let e = error(&fake, &[letters("a.txt", 10)], &params("yarn", &[4], Some(2)));
    assert_eq!(e, "a.txt: ctx 4: window 3 (tokens 6..9), position 2: negative log-likelihood is NaN");
    let fake = Fake::with_nll(|_, _| f32::INFINITY);
    assert!(error(&fake, &[letters("a", 10)], &params("window", &[4], None))
        .contains("position 1: negative log-likelihood is inf"));
    let fake = Fake::with_nll(|_, _| 1e4);
    assert!(error(&fake, &[letters("a", 10)], &params("window", &[4], None))
        .starts_with("ctx 4: up to window 0: perplexity overflows"));
}

#[test]
fn stopping_returns_what_is_done() {
    let documents = [letters("a", 26)];
    let p = params("llama-cpp", &[4, 8], None);
    let (stop, seen) = (Stop::default(), Mutex::new(Vec::new()));
    let progress = |p: &Progress<'_>| {
        let mut seen = seen.lock().unwrap();
        seen.push((p.what.to_string(), p.done, p.total));
        if seen.len() == 2 {
            stop.request();
        }
    };
    let control = Control::default().with_stop(&stop).with_progress(&progress);
    let report = run(&Fake::new(), "m", &documents, &p, &control).unwrap();
    assert!(report.interrupted && report.results.len() == 1 && report.results[0].interrupted);
    assert_eq!((report.results[0].windows, report.results[0].windows_planned), (2, 6));
    assert!(report.text().contains("2 of 6") && report.text().contains("interrupted"));
    // Eight of the 48 tokens of both lengths.
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen[1], ("ctx 4 window 2/6 ppl 2.718".to_owned(), 8, 48));
    assert_eq!(seen.len(), 2);

    // Stopped inside the second length's first window: nothing of that length is reported.
    let fake = Fake { interrupt_at: Some(6), ..Fake::new() };
    let report = measure(&fake, &documents, &p);
    assert!(report.interrupted && report.results.len() == 1 && !report.results[0].interrupted);
    let fake = Fake { interrupt_at: Some(7), ..Fake::new() };
    let report = measure(&fake, &documents, &p);
    assert!(report.results[1].interrupted && report.results[1].windows == 1);
}

#[test]
fn the_json_keeps_its_keys() {
    let report = measure(&Fake::new(), &[letters("a", 40)], &params("stride", &[8], Some(4)));
    let json = serde_json::to_value(&report).unwrap();
    for key in ["model", "rope", "protocol", "stride", "results"] {
        assert!(!json[key].is_null(), "{key}");
    }
    for key in ["ctx", "ppl", "nll", "tokens", "windows", "tokens_per_s", "ppl_stderr", "nll_stderr"] {
        assert!(json["results"][0][key].is_number(), "{key}: {json}");
    }
    assert!(json["sample"].is_null() && json["mean_over_ctx"] == serde_json::json!([]));
    assert!(json["results"][0]["longppl"].is_null());
    let text = &json["results"][0]["texts"][0];
    assert!(text["name"] == "a" && text["nll_sum"].is_number(), "{json}");
    assert_eq!(json["results"][0]["buckets"][0]["ppl"], json["results"][0]["token_weighted"]["ppl"]);
    let report = measure(&Fake::new(), &[letters("a", 40)], &params("window", &[8], Some(4)));
    assert!(serde_json::to_value(&report).unwrap()["stride"].is_null());
    assert_eq!(report.notes, ["protocol window has no stride: 4 is not used"]);
    assert!(report.text().contains("|   8 | 2.718 |"), "{}", report.text());
}
