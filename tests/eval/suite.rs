//! The runner of benchmarks, with fake models and a task of our own.

use std::cell::Cell;
use std::path::Path;

use gguf::Output;
use ropewalk::control::{Control, Stop};
use ropewalk::eval::suite::{means, paired, run, FileStore, Outcome, Params, Report, Store, Unkept};
use ropewalk::model::Error;
use ropewalk::rope::Spec;
use ropewalk::tasks::{
    Answer, Ask, Group, Info, Result as TaskResult, Sample, Samples, Setup, Task, Template,
};

use crate::fakes::{Fake, Tokenizer};

/// Asks for the letter after another one in the alphabet.
struct Letters {
    info: Info,
    choices: bool,
    max_tokens: usize,
    stop: &'static [&'static str],
}

const fn letters(name: &'static str, choices: bool, has_length: bool) -> Letters {
    Letters {
        info: Info {
            name,
            about: "The letter behind another one in the alphabet.",
            source: "this file",
            metrics: &["exact"],
            best: 1.0,
            chance: None,
            has_length,
            samples: Some(6),
            options: &[],
            files: &[],
            groups: &["half"],
        },
        choices,
        max_tokens: 4,
        stop: &["\n"],
    }
}

impl Task for Letters {
    fn info(&self) -> &Info {
        &self.info
    }
    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> TaskResult<Samples<'a>> {
        let n = setup.samples.or(self.info.samples).unwrap_or(0);
        Ok(Samples::new(setup, n, move |i| {
            let (letter, next) = ((b'a' + i as u8) as char, (b'b' + i as u8) as char);
            let prompt = setup.encoder.frame(&format!("{} behind {letter}: ", setup.length.unwrap_or(0)))?;
            let (ask, expected) = if self.choices {
                let choices = [next, letter].map(|c| c.to_string()).to_vec();
                (Ask::Choose(choices), Answer::choose(2, 0))
            } else {
                let stop = self.stop.iter().map(|&text| text.to_owned()).collect();
                let ask = Ask::Generate { max_tokens: self.max_tokens, min_tokens: 0, stop };
                (ask, Answer::Text(next.to_string()))
            };
            Ok(Sample {
                id: i.to_string(),
                prompt,
                ask,
                expected,
                // The letter is in no group: reports do not list it.
                tags: vec![
                    ("half", if i < n / 2 { "first" } else { "second" }.into()),
                    ("letter", letter.to_string()),
                ],
                judge: Box::new(move |answer| {
                    let right = match answer {
                        Answer::Text(text) => *text == next.to_string(),
                        Answer::Choices(c) => c[0].sum > c[1].sum,
                    };
                    vec![f64::from(u8::from(right))]
                }),
            })
        }))
    }
}

static WRITTEN: Letters = letters("written", false, true);
static STOPPED: Letters = Letters { stop: &["", ".", "\n"], ..letters("stopped", false, true) };
static CHOSEN: Letters = letters("chosen", true, false);

fn params(lengths: &[usize]) -> Params<'static> {
    Params::new(lengths.to_vec(), Path::new("no data"))
}

fn asked(source: &Fake, task: &dyn Task, params: &Params<'_>, store: &mut dyn Store) -> Report {
    run(source, "fake", task, params, store, &Control::default()).unwrap()
}

/// The letter before the colon, then the next one, then a line that is not part of the answer.
fn knows(tokenizer: Tokenizer, prompt: &[i32]) -> String {
    let text = tokenizer.decode(prompt);
    let letter = text.trim_end().trim_end_matches(':').chars().last().unwrap();
    format!("{}\nz", (letter as u8 + 1) as char)
}

fn knows_half(tokenizer: Tokenizer, prompt: &[i32]) -> String {
    let answer = knows(tokenizer, prompt);
    if answer.starts_with(['b', 'c', 'd']) {
        answer
    } else {
        String::new()
    }
}

#[test]
fn who_knows_scores_100_and_a_mute_0() {
    let report = asked(&Fake::with_answer(knows), &WRITTEN, &params(&[64, 128]), &mut Unkept);
    let rows: Vec<_> = report.results.iter().map(|r| (r.length, r.score, r.samples, r.ci_high)).collect();
    assert_eq!(rows, [(Some(64), 100.0, 6, 100.0), (Some(128), 100.0, 6, 100.0)]);
    let mute = asked(&Fake::new(), &WRITTEN, &params(&[64]), &mut Unkept);
    assert_eq!((mute.results[0].score, mute.results[0].ci_low), (0.0, 0.0));
    assert!(mute.results[0].ci_high > 30.0, "six samples do not say much: {}", mute.results[0].ci_high);
    let half = asked(&Fake::with_answer(knows_half), &WRITTEN, &params(&[64]), &mut Unkept);
    let by: Vec<_> = half.results[0].by.iter().map(|b| (b.value.as_str(), b.score)).collect();
    assert_eq!(by, [("first", 100.0), ("second", 0.0)]);
    assert!(half.text().contains("50.00") && half.text().contains("this file"), "{}", half.text());
}

#[test]
fn choices_are_weighed_behind_their_prompt() {
    // The likelier ending is the one whose letter is the next in the alphabet.
    let nll = |tokens: &[i32], i: usize| {
        let letter = tokens[..i].iter().rev().find(|t| (97..123).contains(*t)).copied().unwrap();
        if tokens[i] == letter + 1 {
            0.5
        } else {
            2.0
        }
    };
    let report = asked(&Fake::with_nll(nll), &CHOSEN, &params(&[]), &mut Unkept);
    let row = &report.results[0];
    assert_eq!((row.length, row.score, row.n_ctx), (None, 100.0, 256));
    let record = &row.records[2];
    assert_eq!(record.expected, 0, "the number of the right choice");
    let choices = record.choices.as_ref().unwrap();
    // The blank at the end of the prompt belongs to the ending: two tokens, one of them the letter.
    assert_eq!((choices[0].1, choices[1].1), (2, 2));
    assert!(choices[0].0 > choices[1].0);
}

#[test]
fn a_stopped_run_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("samples.jsonl");
    let stopped = Fake { interrupt_at: Some(4), ..Fake::with_answer(knows) };
    let mut store = FileStore::open(&path).unwrap();
    let batch = params(&[64]).batch(1);
    let report = asked(&stopped, &WRITTEN, &batch, &mut store);
    assert!(report.interrupted && report.results[0].samples == 4, "{:?}", report.results[0].samples);
    drop(store);
    // A line that a killed process had begun.
    let mut text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 5, "a header and four samples");
    text += "{\"task\":\"wri";
    std::fs::write(&path, &text).unwrap();
    let fake = Fake::with_answer(knows);
    let mut store = FileStore::open(&path).unwrap();
    assert_eq!(store.len(), 4);
    let again = asked(&fake, &WRITTEN, &batch, &mut store);
    assert_eq!((again.results[0].samples, fake.calls().len()), (6, 2), "four samples are known");
    drop(store);
    let whole = asked(&Fake::with_answer(knows), &WRITTEN, &batch, &mut Unkept);
    assert_eq!(again.results[0].records, whole.results[0].records);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 7);
    // Under another identity nothing is known.
    let fake = Fake::with_answer(knows);
    let other = batch.identity("another model".into());
    asked(&fake, &WRITTEN, &other, &mut FileStore::open(&path).unwrap());
    assert_eq!(fake.calls().len(), 6);
}

#[test]
fn files_of_something_else_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.jsonl");
    std::fs::write(&path, "{\"text\": \"mine\"}\n").unwrap();
    // Lines like ours, of a file without our header, and the last line of such a file.
    let task = "{\"task\":\"water the plants\",\"id\":\"1\"}\n{\"task\":";
    for text in ["{\"text\": \"mine\"}\n", task, "{", "all I wrote"] {
        std::fs::write(&path, text).unwrap();
        let e = FileStore::open(&path).unwrap_err().to_string();
        assert!(e.contains("notes.jsonl: exists and is not the record of an evaluation"), "{e}");
        // Nothing is lost before the first record.
        assert!(FileStore::open(Output::new(&path, true)).unwrap().is_empty());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "and left as they are");
    }
    let mut store = FileStore::open(Output::new(&path, true)).unwrap();
    asked(&Fake::with_answer(knows), &WRITTEN, &params(&[64]), &mut store);
    drop(store);
    assert_eq!(FileStore::open(&path).unwrap().len(), 6);
    // A line that is no record is not taken for one after the header.
    let ours = std::fs::read_to_string(&path).unwrap() + "{\"task\":1}\n";
    std::fs::write(&path, &ours).unwrap();
    let e = FileStore::open(&path).unwrap_err().to_string();
    assert!(e.contains("notes.jsonl: line 8: expected the record of a sample"), "{e}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), ours);
    let first = FileStore::open(dir.path().join("a.jsonl")).unwrap();
    let e = FileStore::open(dir.path().join("a.jsonl")).unwrap_err().to_string();
    assert!(e.contains("a.jsonl"), "{e}");
    drop(first);
}

#[test]
fn what_does_not_fit_is_an_error_that_says_what_would() {
    let long = Letters { max_tokens: 100, ..letters("long", false, true) };
    let run =
        |p: &Params<'_>| run(&Fake::with_answer(knows), "fake", &long, p, &mut Unkept, &Control::default());
    let e = run(&params(&[64])).unwrap_err().to_string();
    assert!(e.contains("long: sample 0 needs 113 tokens") && e.contains("at least 113"), "{e}");
    assert!(run(&params(&[128])).is_ok());
    assert!(run(&params(&[])).unwrap_err().to_string().contains("lengths: expected at least one for long"));
    let none = params(&[128]).samples(Some(0));
    assert!(run(&none).unwrap_err().to_string().contains("samples: expected at least 1"));
}

#[test]
fn methods_are_worked_out_for_the_context_asked_for() {
    let fake = Fake::with_nll(|_, _| 1.0);
    asked(&fake, &CHOSEN, &params(&[]).ctx(Some(8192)), &mut Unkept);
    assert_eq!(fake.log.borrow().opened, [8192]);
}

#[test]
fn chat_prompts_go_through_the_template() {
    let frame = |message: &str| Ok::<_, Error>(format!("<user>{message}<assistant>"));
    let how = params(&[128]).template(Template::Chat).frame(Some(&frame));
    let fake = Fake::new();
    asked(&fake, &WRITTEN, &how, &mut Unkept);
    let prompt = Tokenizer::Bytes.decode(&fake.calls()[0].0);
    assert_eq!(prompt, "<user>128 behind a: <assistant>");
    let none = how.frame(None);
    let e = run(&fake, "fake", &WRITTEN, &none, &mut Unkept, &Control::default()).unwrap_err().to_string();
    assert!(e.contains("no chat template"), "{e}");
}

#[test]
fn differences_are_of_the_same_samples() {
    let a = asked(&Fake::new(), &WRITTEN, &params(&[64]), &mut Unkept);
    let b = asked(&Fake::with_answer(knows_half), &WRITTEN, &params(&[64]), &mut Unkept);
    let found = paired(&a, &b);
    assert_eq!((found.len(), found[0].samples, found[0].difference), (1, 6, 50.0));
    assert!(found[0].ci_low > -50.0 && found[0].ci_low < 50.0 && found[0].ci_high <= 100.0);
    let c = asked(&Fake::new(), &WRITTEN, &params(&[128]), &mut Unkept);
    assert!(paired(&a, &c).is_empty(), "other lengths have other samples");
}

/// A default factor depends on the context, which depends on the task's budget.
#[test]
fn methods_are_compared_by_their_place() {
    let names = ["plain", "yarn"].map(|name| Some(name.parse::<Spec>().unwrap()));
    let report = |source: &Fake, task: &dyn Task, rope: &str| {
        let mut report = asked(source, task, &params(&[64]), &mut Unkept);
        report.rope = rope.into();
        report
    };
    let (knowing, half) = (Fake::with_answer(knows), Fake::with_answer(knows_half));
    let reports = vec![
        report(&knowing, &WRITTEN, "plain"),
        report(&half, &WRITTEN, "yarn:factor=2"),
        report(&knowing, &CHOSEN, "plain"),
        report(&knowing, &CHOSEN, "yarn:factor=3"),
    ];
    let found = Outcome::new(reports, &names, &[]).differences;
    assert_eq!(found.iter().map(|d| d.task.as_str()).collect::<Vec<_>>(), ["written", "chosen"]);
}

#[test]
fn means_are_of_whole_groups() {
    static GROUP: Group = Group { name: "both", about: "Two.", tasks: &["written", "chosen"] };
    static ONE: Group = Group { name: "one", about: "One.", tasks: &["written"] };
    let reports = [asked(&Fake::with_answer(knows), &WRITTEN, &params(&[64, 128]), &mut Unkept)];
    assert!(means(&GROUP, &reports).is_empty());
    let found: Vec<_> = means(&ONE, &reports).iter().map(|m| (m.length, m.score, m.tasks)).collect();
    assert_eq!(found, [(Some(64), 100.0, 1), (Some(128), 100.0, 1)]);
}

#[test]
fn a_stop_between_samples_keeps_what_is_done() {
    let (stop, seen) = (Stop::default(), Cell::new(0));
    struct Counting<'a>(&'a Stop, &'a Cell<usize>);
    impl Store for Counting<'_> {
        fn get(&self, _: &str, _: &str, _: &str) -> Option<ropewalk::eval::suite::Record> {
            None
        }
        fn put(&mut self, _: &ropewalk::eval::suite::Record) -> ropewalk::model::Result<()> {
            self.1.set(self.1.get() + 1);
            if self.1.get() == 3 {
                self.0.request();
            }
            Ok(())
        }
    }
    let control = Control::default().with_stop(&stop);
    let how = params(&[64, 128]).batch(1);
    let mut store = Counting(&stop, &seen);
    let report = run(&Fake::with_answer(knows), "fake", &WRITTEN, &how, &mut store, &control).unwrap();
    assert!(report.interrupted && report.results.len() == 1);
    assert_eq!((report.results[0].samples, report.results[0].samples_planned), (3, 6));
}

#[test]
fn answers_end_before_the_first_stop_text() {
    // Both stop texts, of which the last in the list comes first; one; and none.
    let answers: [fn(Tokenizer, &[i32]) -> String; 3] = [
        |tokenizer, prompt| knows(tokenizer, prompt).replace('z', "."),
        |tokenizer, prompt| knows(tokenizer, prompt).replace("\nz", ".z"),
        |tokenizer, prompt| knows(tokenizer, prompt).replace("\nz", ""),
    ];
    for answer in answers {
        let report = asked(&Fake::with_answer(answer), &STOPPED, &params(&[64]), &mut Unkept);
        assert_eq!(report.results[0].score, 100.0);
    }
    let wrong = Fake::with_answer(|_, _| "a.".to_owned());
    assert_eq!(asked(&wrong, &STOPPED, &params(&[64]), &mut Unkept).results[0].score, 0.0);
}
