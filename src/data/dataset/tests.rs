//! Data sets from files on: packing, weights, transforms, made samples.

use std::path::PathBuf;

use ropewalk_core::control::Control;

use super::*;
use crate::corpus::Separator;
use crate::testing::{Bytes, BOS, EOS};
use crate::text::{self, Records, Source, Sources, TextOptions};
use crate::transform::parse;

struct World(tempfile::TempDir);

impl World {
    fn of(files: &[(&str, &[u8])]) -> World {
        let world = World(tempfile::tempdir().unwrap());
        for (name, bytes) in files {
            std::fs::write(world.path(name), bytes).unwrap();
        }
        world
    }

    /// Texts of these lengths in bytes, all different.
    fn texts(lengths: &[usize]) -> World {
        let world = World::of(&[]);
        for (i, n) in lengths.iter().enumerate() {
            let text: String =
                (0..*n).map(|k| char::from(b'a' + ((k * (i + 3) + k / 26) % 26) as u8)).collect();
            std::fs::write(world.path(&format!("{i:03}.txt")), text).unwrap();
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn corpus_of(
        &self,
        sources: &[Source],
        separator: &Separator,
        options: &TextOptions,
    ) -> Result<Arc<Corpus>> {
        let sources = Sources::mixed(sources, options)?;
        let cache = tempfile::tempdir().unwrap();
        let path = cache.path().join("cache.tokens");
        Ok(Arc::new(Corpus::open(&path, &Bytes::default(), &sources, separator, &Control::default())?))
    }

    fn corpus(&self, separator: &Separator) -> Arc<Corpus> {
        self.corpus_of(&[self.path("").into()], separator, &TextOptions::default()).unwrap()
    }
}

fn samples(data: &Dataset) -> Vec<Sample> {
    (0..data.n_train()).map(|i| data.train(0, i).unwrap()).collect()
}

fn refused<T>(result: Result<T>) -> String {
    let e = result.map(|_| ()).unwrap_err().to_string();
    assert!(!e.contains('\n'), "{e}");
    e
}

/// Each document once, between BOS and EOS; longer ones cut so that EOS is still their end.
#[test]
fn truncated_documents_are_samples_of_their_own() {
    let world = World::texts(&[3, 14, 15, 40, 400]);
    let corpus = world.corpus(&Separator::Both);
    let params = DatasetParams { packing: Packing::Truncate, ..DatasetParams::new(16) };
    let data = Dataset::new(Arc::clone(&corpus), &params).unwrap();
    let samples = samples(&data);
    assert_eq!(samples.len(), 5);
    let mut lengths: Vec<usize> = samples.iter().map(|s| s.tokens.len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [5, 16, 17, 17, 17]);
    for sample in &samples {
        let text = &sample.tokens[1..sample.tokens.len() - 1];
        assert_eq!((sample.tokens[0], *sample.tokens.last().unwrap()), (BOS, EOS));
        assert!(!text.contains(&EOS) && sample.weights.iter().all(|w| *w == 1.0));
        assert_eq!((sample.segment_starts.as_slice(), sample.spans.len()), (&[0][..], 1));
        // It is how a document begins.
        let mut all = Vec::new();
        corpus.read(0..corpus.n_tokens(), &mut all);
        assert!(all.windows(text.len() + 1).any(|w| w == &sample.tokens[..text.len() + 1]));
    }
    let inputs: Vec<u64> = (0..11).map(|n| data.n_inputs(n)).collect();
    let second: Vec<usize> = (0..5).map(|i| data.train(1, i).unwrap().inputs().len()).collect();
    let mut sum = 0;
    for (n, found) in inputs.iter().enumerate() {
        assert_eq!(*found, sum as u64, "{n}");
        sum += match n {
            0..5 => samples[n].inputs().len(),
            5..10 => second[n - 5],
            _ => 0,
        };
    }
    let held = DatasetParams { held_out: HeldOut::Samples(2), ..params };
    let data = Dataset::new(corpus, &held).unwrap();
    assert_eq!((data.n_train(), data.n_held_out()), (3, 2));
    let short = DatasetParams { n_ctx: 64, ..DatasetParams::new(1) };
    assert_eq!(
        Dataset::new(
            World::texts(&[1]).corpus(&Separator::Both),
            &DatasetParams { packing: Packing::Truncate, ..short }
        )
        .unwrap()
        .n_train(),
        1
    );
}

/// Megatron's `eod_mask_loss`: weight 0 where the input is EOD, and nowhere else.
#[test]
fn no_loss_is_taken_where_a_document_ends() {
    let world = World::texts(&[20, 3, 50, 7, 90, 1, 33, 60]);
    let params = DatasetParams { mask_ends: true, held_out: HeldOut::Samples(1), ..DatasetParams::new(16) };
    let data = Dataset::new(world.corpus(&Separator::Auto), &params).unwrap();
    let mut ends = 0;
    for sample in samples(&data).into_iter().chain([data.held_out(0).unwrap()]) {
        for (input, weight) in sample.inputs().iter().zip(&sample.weights) {
            assert_eq!(*weight, if *input == EOS { 0.0 } else { 1.0 });
            ends += usize::from(*input == EOS);
        }
    }
    assert!(ends > 4);
    // Where no token ends a document there is no such input.
    let data = Dataset::new(world.corpus(&Separator::Bos), &params).unwrap();
    assert!(samples(&data).iter().all(|s| s.weights.iter().all(|w| *w == 1.0)));
}

#[test]
fn weights_of_answers_go_with_their_tokens() {
    let lines = b"{\"prompt\":\"abc\",\"completion\":\"XY\"}\n{\"prompt\":\"d\",\"completion\":\"ZZZ\"}\n";
    let world = World::of(&[("a.jsonl", lines)]);
    for (answers_only, separator) in
        [(true, Separator::Both), (false, Separator::Eos), (true, Separator::Eos)]
    {
        let options = TextOptions { records: Records::Chat { answers_only }, ..TextOptions::default() };
        let corpus = world.corpus_of(&[world.path("a.jsonl").into()], &separator, &options).unwrap();
        for packing in [Packing::Pack, Packing::Truncate, Packing::Records, Packing::Whole] {
            let data = Dataset::new(Arc::clone(&corpus), &DatasetParams { packing, ..DatasetParams::new(8) })
                .unwrap();
            for sample in samples(&data) {
                for (target, weight) in sample.targets().iter().zip(&sample.weights) {
                    let answer = *target == EOS || (65..=90).contains(target);
                    assert_eq!(*weight > 0.0, answer || !answers_only, "{target} {sample:?}");
                }
            }
        }
    }
    let e =
        refused(world.corpus_of(&[world.path("a.jsonl").into()], &Separator::Eos, &TextOptions::default()));
    assert!(e.contains("a.jsonl:1: no \"text\" field"), "{e}");
}

/// Tokens do not depend on whose loss counts, and a token that is partly an answer is none.
#[test]
fn answers_change_weights_and_no_token() {
    let lines = b"{\"prompt\":\"a<\",\"completion\":\"1>XY\"}\n{\"prompt\":\"abc\",\"completion\":\"\"}\n";
    let world = World::of(&[("a.jsonl", lines)]);
    let marked = |answers_only| {
        let options = TextOptions { records: Records::Chat { answers_only }, ..TextOptions::default() };
        let corpus = world.corpus_of(&[world.path("a.jsonl").into()], &Separator::Eos, &options).unwrap();
        (corpus.marked(corpus.range(0)).collect::<Vec<_>>(), corpus.n_documents(), corpus.notes().to_vec())
    };
    let (all, n, notes) = marked(false);
    assert!(all.iter().all(|(_, trained)| *trained) && n == 2 && notes.is_empty());
    let (answers, n, notes) = marked(true);
    let tokens = |marked: &[(i32, bool)]| marked.iter().map(|(t, _)| *t).collect::<Vec<_>>();
    assert_eq!(tokens(&answers), tokens(&all));
    let trained: Vec<bool> = answers.iter().map(|(_, trained)| *trained).collect();
    assert_eq!(trained, [false, false, true, true, true, true, true]);
    assert!(n == 1 && notes[0].contains("a.jsonl:2: no token lies wholly in an answer"), "{notes:?}");
    // Places that are partly in an answer, and the blank before one.
    let record =
        text::Record { text: String::new(), special: true, answers: Some(vec![2..5, 7..9]), whole: None };
    let trains = [
        (1..3, false),
        (2..5, true),
        (4..6, false),
        (2..2, true),
        (5..5, false),
        (7..8, true),
        (9..9, false),
    ];
    for (place, expected) in trains {
        assert_eq!(record.trains(&place), expected, "{place:?}");
    }
}

#[test]
fn records_are_never_cut_unless_asked() {
    let line = |i: usize, n: usize| format!("{{\"prompt\":\"{i}\",\"completion\":\"{}\"}}\n", "x".repeat(n));
    let world = World::of(&[("a.jsonl", (0..10).map(|i| line(i, 2 + i)).collect::<String>().as_bytes())]);
    let options = TextOptions { records: Records::Chat { answers_only: true }, ..TextOptions::default() };
    let corpus = world.corpus_of(&[world.path("a.jsonl").into()], &Separator::Eos, &options).unwrap();
    let lengths: Vec<usize> = (0..10).map(|i| 4 + i).collect();
    for (packing, held_out) in [
        (Packing::Records, HeldOut::None),
        (Packing::Records, HeldOut::Samples(3)),
        (Packing::Whole, HeldOut::None),
        (Packing::Whole, HeldOut::Samples(2)),
    ] {
        let params = DatasetParams { packing, held_out, ..DatasetParams::new(16) };
        let data = Dataset::new(Arc::clone(&corpus), &params).unwrap();
        let (mut found, mut n_inputs) = (Vec::new(), 0);
        let held = (0..data.n_held_out()).map(|i| data.held_out(i).unwrap());
        let trained = samples(&data);
        n_inputs += trained.iter().map(|s| s.inputs().len() as u64).sum::<u64>();
        for sample in trained.into_iter().chain(held) {
            assert!(sample.tokens.len() <= 17 && sample.spans.iter().all(|s| s.ends));
            assert!(packing == Packing::Whole || sample.spans.len() == 1);
            assert_eq!(sample.tokens.last(), Some(&EOS));
            found.extend(sample.tokens.split_inclusive(|t| *t == EOS).map(<[_]>::len));
            assert_eq!(packing == Packing::Records, sample.spans.len() == 1 && packing == Packing::Records);
        }
        found.sort_unstable();
        if held_out == HeldOut::None {
            assert_eq!(found, lengths, "{packing}: each record once, and whole");
            assert!(packing == Packing::Records || data.n_train() < 10);
        }
        assert_eq!(data.n_inputs(data.n_train() as u64), n_inputs);
    }
    let short = |packing| DatasetParams { packing, ..DatasetParams::new(10) };
    let e = refused(Dataset::new(Arc::clone(&corpus), &short(Packing::Whole)));
    assert!(e.contains("a.jsonl:9: 12 tokens, more than the 11 that context 10 takes: only whole"), "{e}");
    assert!(e.contains("2 records are longer, and a context of 12 tokens takes them whole"), "{e}");
    let data = Dataset::new(Arc::clone(&corpus), &short(Packing::Records)).unwrap();
    assert!(data
        .note()
        .is_some_and(|n| n.contains("a.jsonl:9: 12 tokens, more than") && n.contains(": cut; 2 records")));
    let cut = samples(&data).into_iter().filter(|s| s.tokens.len() == 11 && s.tokens.last() != Some(&EOS));
    assert_eq!((data.n_train(), cut.count()), (10, 2));
    let data = Dataset::new(corpus, &short(Packing::Truncate)).unwrap();
    assert!(data.note().is_none() && samples(&data).iter().all(|s| s.tokens.last() == Some(&EOS)));
}

#[test]
fn token_ids_are_documents_between_separators() {
    let ids: Vec<u32> = vec![1, 2, 3, EOS as u32, 4, EOS as u32, 5, 6];
    let bytes =
        |width: usize| ids.iter().flat_map(|id| id.to_le_bytes()[..width].to_vec()).collect::<Vec<u8>>();
    let (two, four) = (bytes(2), bytes(4));
    let world = World::of(&[("a.bin", &two), ("b.bin", &four), ("c.bin", &two[..5]), ("d.bin", &[255, 255])]);
    let open = |name: &str, token_bytes, separator: &Separator| {
        let options = TextOptions { token_bytes, ..TextOptions::default() };
        world.corpus_of(&[world.path(name).into()], separator, &options)
    };
    for (name, width) in [("a.bin", 2), ("b.bin", 4)] {
        let corpus = open(name, width, &Separator::Eos).unwrap();
        let ranges: Vec<_> = (0..corpus.n_documents()).map(|d| corpus.range(d)).collect();
        assert_eq!(ranges, [0..4, 4..6, 6..8]);
        let mut all = Vec::new();
        corpus.read(0..99, &mut all);
        assert_eq!(all.iter().map(|&t| t as u32).collect::<Vec<_>>(), ids);
        assert_eq!((corpus.end_of(1), corpus.end_of(2)), (&[EOS][..], &[][..]));
        // Where BOS begins documents, this is one.
        assert_eq!(open(name, width, &Separator::Bos).unwrap().n_documents(), 1);
    }
    assert!(refused(open("c.bin", 2, &Separator::Eos))
        .ends_with("expected token ids of 2 bytes, found 1 at offset 4"));
    assert!(refused(open("d.bin", 2, &Separator::Eos))
        .ends_with("expected token ids below 268, found 65535 at offset 0"));
    assert!(refused(open("a.bin", 4, &Separator::Eos)).contains("expected token ids below 268"));
}

/// A resumed run relies on this, for each method: sample `n` is the same whoever asks for it, and when.
#[test]
fn transformed_samples_are_the_same_again() {
    let corpus = World::texts(&[300, 20, 500, 77, 1000, 3, 640, 210]).corpus(&Separator::Auto);
    for spec in [
        "utk-80",
        "utk-30",
        "utk:order=false,random=false,chunks=0/0/0.5/0.5,size=50",
        "cip",
        "pose:target=256",
        "pose:target=256,join=true",
    ] {
        let made = || {
            let params = DatasetParams { held_out: HeldOut::Samples(2), seed: 3, ..DatasetParams::new(64) };
            let plain = Dataset::new(Arc::clone(&corpus), &params).unwrap();
            plain.with_transform(parse(spec, 64, Arc::new(Bytes::default())).unwrap()).unwrap()
        };
        let data = made();
        let n = data.n_train() as u64;
        let first: Vec<Sample> = (0..2 * n).map(|i| data.nth(i).unwrap()).collect();
        let mut changed = 0;
        for i in (0..2 * n).rev() {
            assert_eq!(made().nth(i).unwrap(), first[i as usize], "{spec}");
            changed += usize::from(first[i as usize] != data.untransformed(i / n, (i % n) as usize).unwrap());
        }
        assert!(changed > 4, "{spec}: {changed}");
        let plain = Dataset::new(Arc::clone(&corpus), data.params()).unwrap();
        assert_eq!(data.held_out(1).unwrap(), plain.held_out(1).unwrap());
        assert_ne!(data.settings(), plain.settings());
        // Inputs that end a document have no loss under utk.
        let masked = first.iter().flat_map(|s| s.inputs().iter().zip(&s.weights)).filter(|(t, _)| **t == EOS);
        // After the end of its document a sample of PoSE has nothing.
        assert_eq!(masked.clone().count() == 0, spec == "pose:target=256", "{spec}");
        assert!(masked.clone().all(|(_, w)| (*w == 0.0) == spec.starts_with("utk")), "{spec}");
    }
}

#[test]
fn texts_that_are_too_short_for_a_method_are_refused() {
    let corpus = World::texts(&[1; 60]).corpus(&Separator::Auto);
    let with = |spec: &str| {
        let transform = parse(spec, 16, Arc::new(Bytes::default())).unwrap();
        Dataset::new(Arc::clone(&corpus), &DatasetParams::new(16)).unwrap().with_transform(transform)
    };
    let e = refused(with("utk:chunks=0/0/1"));
    assert_eq!(e, "data method: a document needs 3 tokens to be cut, the longest has 2");
    assert!(refused(with("utk:chunks=0/0/0/1")).contains("needs 1025 tokens"));
    assert!(refused(with("utk:min-split=9")).contains("needs 9 tokens"));
    assert!(with("utk:chunks=0/1").is_ok() && with("cip").is_ok());
    let e = refused(with("pose:target=64,text=9"));
    assert_eq!(
        e,
        "data method: a sample of context 16 takes 17 tokens of one document: none of the 60 to train on has as many, the \
         longest has 2"
    );
    let e = refused(with("pose:target=64,text=9,join=true"));
    assert!(e.contains("a sample of context 16 is drawn from 145 tokens, the texts have 120"), "{e}");
}

/// Follows the released `train_pose.py`: both chunks are from one document, of which the first five windows are read,
/// and the first chunk is its beginning, BOS included. Documents shorter than a sample are skipped.
#[test]
fn chunks_of_pose_are_of_one_document() {
    let world = World::texts(&[10, 63, 64, 70, 100, 150, 320, 400, 5000, 65, 3]);
    let of = |packing, separator: &Separator, method: &str| {
        let params = DatasetParams { packing, seed: 5, ..DatasetParams::new(64) };
        let data = Dataset::new(world.corpus(separator), &params).unwrap();
        data.with_transform(parse(method, 64, Arc::new(Bytes::default())).unwrap())
    };
    for separator in [Separator::Bos, Separator::Both, Separator::Eos] {
        for packing in [Packing::Pack, Packing::Truncate] {
            let data = of(packing, &separator, "pose:factor=4").unwrap();
            let corpus = data.corpus();
            let length = |d: u32| corpus.range(d as usize).end - corpus.range(d as usize).start;
            let short = (0..corpus.n_documents() as u32).filter(|&d| length(d) < 65).count();
            assert_eq!((data.n_train(), data.n_short()), (corpus.n_documents() - short, short));
            assert!(data.train_documents().iter().all(|&d| length(d) >= 65));
            assert_eq!(data.n_inputs(2 * data.n_train() as u64), 2 * 64 * data.n_train() as u64);
            for epoch in 0..20 {
                for i in 0..data.n_train() {
                    let (sample, text) =
                        (data.train(epoch, i).unwrap(), data.untransformed(epoch, i).unwrap());
                    assert_eq!((sample.tokens.len(), sample.positions.len()), (65, 64));
                    assert!(sample.spans.iter().all(|s| s.document == 0) && sample.segment_starts == [0]);
                    // The text is how a document begins, and the whole of it up to five windows.
                    let begins = |d: &u32| {
                        let range = corpus.range(*d as usize);
                        let mut own = Vec::new();
                        corpus.read(range.start..range.end.min(range.start + 5 * 64 + 1), &mut own);
                        own == text.tokens
                    };
                    assert!(data.train_documents().iter().any(begins), "{:?}", text.tokens);
                    let gap = sample.positions.windows(2).position(|w| w[1] != w[0] + 1).map(|at| at + 1);
                    let first = gap.unwrap_or(1);
                    assert_eq!(sample.tokens[..first], text.tokens[..first]);
                    let rest = &sample.tokens[first..];
                    assert!(text.tokens.windows(rest.len()).any(|w| w == rest), "{first}");
                    // EOS stands nowhere but at the end of a document.
                    assert!(sample.inputs().iter().all(|t| *t != EOS));
                }
            }
        }
    }
    // Windows of long documents alone; texts joined; no order of the texts.
    let data = of(Packing::Long, &Separator::Bos, "pose:factor=4").unwrap();
    assert_eq!((data.n_train(), data.n_read()), (1 + 1 + 15, 5 * 64));
    let joined = of(Packing::Pack, &Separator::Eos, "pose:factor=4,join=true").unwrap();
    joined.at(7).unwrap();
    assert!(samples(&joined).iter().any(|s| s.spans.iter().any(|span| span.document > 0)));
    let e = refused(of(Packing::Pack, &Separator::Eos, "pose:factor=4").unwrap().at(0));
    assert!(e.contains("takes each sample from one document"), "{e}");
    assert_ne!(of(Packing::Pack, &Separator::Eos, "pose:factor=4").unwrap().settings(), joined.settings());
}

#[test]
fn sources_are_mixed_by_their_shares() {
    let world = World::texts(&[200; 40]);
    let mut sources: Vec<Source> = Vec::new();
    for i in 0..40 {
        let (name, share) = if i < 10 { ("few", 0.5) } else { ("many", 0.5) };
        let path = world.path(&format!("{i:03}.txt"));
        sources.push(Source { name: name.into(), path, share: [0, 10].contains(&i).then_some(share) });
    }
    let corpus = world.corpus_of(&sources, &Separator::Auto, &TextOptions::default()).unwrap();
    let names: Vec<&str> = corpus.groups().iter().map(|g| g.name.as_str()).collect();
    assert_eq!(names, ["few", "many"]);
    let of = |params: &DatasetParams| {
        let data = Dataset::new(Arc::clone(&corpus), params).unwrap();
        let few = data.train_documents().iter().filter(|&&d| corpus.group(d as usize) == 0).count();
        (few, data.train_documents().len() - few, data.n_train())
    };
    let params = DatasetParams { seed: 1, ..DatasetParams::new(67) };
    assert_eq!(of(&params), (10, 10, 59));
    let mixture = Mixture { tokens: Some(201 * 40), ..Mixture::default() };
    assert_eq!(of(&DatasetParams { mixture, ..params }), (20, 20, 119));
    // What is held out is held out in every copy.
    let params = DatasetParams { mixture, held_out: HeldOut::Samples(3), ..params };
    let data = Dataset::new(Arc::clone(&corpus), &params).unwrap();
    assert!(data.train_documents().iter().all(|d| !data.held_out_documents().contains(d)));
}

#[test]
fn shares_that_make_no_sense_are_refused() {
    let world = World::texts(&[10, 10]);
    let (a, b) = (world.path("000.txt").display().to_string(), world.path("001.txt").display().to_string());
    let find = |list: &[String]| -> Result<Sources> {
        let sources = list.iter().map(|s| s.parse()).collect::<Result<Vec<Source>>>()?;
        Sources::mixed(&sources, &TextOptions::default())
    };
    let found = find(&[format!("x={a}:0.25"), format!("y={b}:0.75")]).unwrap();
    assert_eq!(found.groups().iter().map(|g| g.share).collect::<Vec<_>>(), [Some(0.25), Some(0.75)]);
    for (list, what) in [
        (
            [format!("x={a}:0.5"), format!("y={b}:0.4")],
            "shares: expected a sum of 1, found 0.9 (x 0.5, y 0.4)",
        ),
        (
            [format!("x={a}:0.5"), format!("y={b}")],
            "shares: expected one for each name or none at all, found x 0.5, y none",
        ),
        ([format!("x={a}:0.5"), format!("x={b}:0.5")], "x: two shares"),
        ([format!("x={a}"), b.clone()], "some texts have a name"),
        ([format!("x={a}:1.5"), b.clone()], "expected a share above 0 and up to 1, found 1.5"),
        ([format!("x={a}:NaN"), b.clone()], "expected a share above 0 and up to 1, found NaN"),
        ([format!("x={a}:-1"), b], "expected a share above 0 and up to 1, found -1"),
    ] {
        let e = refused(find(&list));
        assert!(e.contains(what), "{e}");
    }
    // What is there as it stands is a path.
    std::fs::write(world.path("x=y.txt"), "a").unwrap();
    let path = world.path("x=y.txt").display().to_string();
    assert_eq!(path.parse::<Source>().unwrap().name, "");
}

#[test]
fn made_samples_are_among_the_others() {
    let corpus = World::texts(&[40_000]).corpus(&Separator::Both);
    let made = |answers_only| {
        let synthetic = Synthetic::new(0.3, answers_only, Arc::new(Bytes::default())).unwrap();
        Dataset::new(Arc::clone(&corpus), &DatasetParams::new(1500))
            .unwrap()
            .with_synthetic(synthetic)
            .unwrap()
    };
    let data = made(true);
    assert_eq!((data.n_train(), data.n_inputs(7)), (26 + 11, 7 * 1500));
    let is_made = |s: &Sample| s.weights.contains(&0.0);
    let all = samples(&data);
    let records: Vec<&Sample> = all.iter().filter(|s| is_made(s)).collect();
    assert_eq!(records.len(), 11);
    for record in &records {
        assert!((1100..=1501).contains(&record.tokens.len()));
        assert_eq!((record.tokens[0], *record.tokens.last().unwrap()), (BOS, EOS));
        let text: String =
            record.tokens[1..record.tokens.len() - 1].iter().map(|&t| t as u8 as char).collect();
        let answer = text.rfind(" Answer:").or(text.rfind("Answer:")).unwrap() + " Answer:".len();
        // Token 0 is BOS, so byte i of the text is token i + 1, which is target i.
        let trained: Vec<usize> = (0..record.weights.len()).filter(|&i| record.weights[i] > 0.0).collect();
        assert_eq!(trained, (answer..record.weights.len()).collect::<Vec<_>>(), "{text}");
    }
    assert_eq!(samples(&made(true)), all);
    assert!(samples(&made(false)).iter().all(|s| s.weights.iter().all(|w| *w == 1.0)));
    let second: Vec<Sample> = (0..data.n_train()).map(|i| data.train(1, i).unwrap()).collect();
    assert!(second.iter().filter(|s| is_made(s)).all(|s| !all.contains(s)), "anew in each epoch");
    let small = Dataset::new(corpus, &DatasetParams::new(50)).unwrap();
    let e = refused(small.with_synthetic(Synthetic::new(0.3, true, Arc::new(Bytes::default())).unwrap()));
    assert!(e.contains("have no room for the shortest"), "{e}");
}
