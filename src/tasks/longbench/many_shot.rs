//! Many-shot TREC (LCEG, Figure 2): LongBench's `trec` with 1 to 1,000 examples in the context.
//!
//! The template, the budget of 64 tokens, the first line of the answer and its score are those of `trec`. The
//! prompt may be as long as the context, without a chat template. LCEG's own contexts are the data set
//! `Leooyii/manyshots_trec`: files `trec/trec_Nshots.jsonl` in LongBench's schema, for 1, 5, 10, 25, 50, 75, 100,
//! 200, 300, 400, 500, 625, 750, 875 and 1000 examples.
//!
//! How those were drawn is not published. Where they are missing, contexts are made of TREC's own files: 200 of
//! the 500 test questions, and for each of them examples out of the 5,452 training questions, without repetition.
//! A question's examples are the beginning of one row of 1,000, so that more shots keep the fewer ones. Each
//! question has its own row, so prompts share no beginning but the template's.

use crate::data::Records;
use crate::draws::Random;
use crate::{Error, Info, Opt, Result, Sample, Samples, Setup, Task, Template};

use super::questions::{self, labels, Question};
use super::record::{Form, Metric, Record};
use super::sets;

static SHOTS: Opt =
    Opt { name: "shots", values: &[], default: "100", about: "examples in the context, 1 to 1000" };

static SOURCE: Opt = Opt {
    name: "trec",
    values: &["auto", "lceg", "rebuilt"],
    default: "auto",
    about:
        "lceg: contexts as published by LCEG; rebuilt: drawn from TREC's training questions; auto: LCEG's \
            where its file is there",
};

const MAX_SHOTS: usize = 1000;
const TEST_QUESTIONS: usize = 200;
/// The seed of LongBench's scripts, which draw nothing with it.
const SEED: u64 = 42;

pub(super) struct ManyShot {
    info: Info,
}

pub(super) static TREC: ManyShot = ManyShot {
    info: Info {
        name: "trec",
        about: "Types of questions, after up to 1,000 examples.",
        source: "LCEG, longbench/pred.py and eval_trec.py at 2ce672d; rebuilt contexts are this program's",
        metrics: &["classification"],
        samples: Some(TEST_QUESTIONS),
        options: &[&SHOTS, &SOURCE],
        files: &[&questions::TRAIN, &questions::TEST],
        ..Info::OF_LENGTH
    },
};

impl Task for ManyShot {
    fn info(&self) -> &Info {
        &self.info
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let set = &sets::TREC;
        if setup.template == Template::Chat {
            return Err(Error::invalid("trec: has no chat form: expected the template base"));
        }
        let max = Form::Lceg.max_prompt(setup.length()?)?;
        let beyond = set.beyond(Form::Lceg, max, setup)?;
        let shots = setup.number(&SHOTS, 1..=MAX_SHOTS)?;
        let wanted = setup.samples.unwrap_or(TEST_QUESTIONS);
        let published = setup.data.join(format!("trec/trec_{shots}shots.jsonl"));
        let here = || published.try_exists().map_err(|e| Error::file(&published, e));
        let sample = move |i: usize, record: Record, source: &str| {
            let mut sample = Sample { id: i.to_string(), ..set.sample(record, Form::Lceg, max, setup)? };
            sample.tags.push(("shots", shots.to_string()));
            sample.tags.push(("contexts", source.to_owned()));
            Ok(sample)
        };
        match setup.option(&SOURCE)? {
            "lceg" if !here()? => Err(Error::file(
                &published,
                "is missing: it is part of the dataset Leooyii/manyshots_trec, for some numbers of shots; \
                 trec=rebuilt makes contexts for any",
            )),
            source if source == "lceg" || (source == "auto" && here()?) => {
                let records =
                    Records::open(&published, &setup.control, |r: &Record| r.check(Metric::Classification))?;
                let n = wanted.min(records.len());
                let make = move |i| sample(i, records.get(i)?, "lceg");
                Ok(Samples::new(setup, n, make).with_beyond(beyond))
            }
            _ => {
                let rebuilt = Rebuilt::new(shots, setup)?;
                let n = wanted.min(rebuilt.asked.len());
                let make = move |i| sample(i, rebuilt.record(i), "rebuilt");
                Ok(Samples::new(setup, n, make).with_beyond(beyond))
            }
        }
    }
}

/// Contexts made of TREC's own files.
struct Rebuilt {
    shots: usize,
    train: Vec<Question>,
    /// Questions to ask, each with the seed of its examples.
    asked: Vec<(Question, u64)>,
}

impl Rebuilt {
    fn new(shots: usize, setup: &Setup<'_>) -> Result<Rebuilt> {
        let train = questions::read(&questions::TRAIN, setup.data)?;
        let test = questions::read(&questions::TEST, setup.data)?;
        let too_few = |file: &crate::DataFile, least: usize, found: usize| {
            let what = format!("expected at least {least} questions, found {found}");
            Error::file(setup.data.join(file.name), what)
        };
        if train.len() < shots {
            return Err(too_few(&questions::TRAIN, shots, train.len()));
        }
        if test.is_empty() {
            return Err(too_few(&questions::TEST, 1, 0));
        }
        let mut random = Random::new(setup.seed.unwrap_or(SEED));
        let chosen = random.sample_range(test.len(), TEST_QUESTIONS.min(test.len()));
        let asked = chosen.into_iter().map(|i| (test[i].clone(), random.getrandbits(64) as u64)).collect();
        Ok(Rebuilt { shots, train, asked })
    }

    fn record(&self, i: usize) -> Record {
        let (question, seed) = &self.asked[i];
        let row = Random::new(*seed).sample_range(self.train.len(), MAX_SHOTS.min(self.train.len()));
        let examples: Vec<_> = row[..self.shots].iter().map(|&i| self.train[i].answered()).collect();
        let context = examples.join("\n");
        Record {
            input: question.open(),
            length: context.split_whitespace().count() as u64,
            context,
            answers: vec![question.label.to_owned()],
            dataset: None,
            all_classes: Some(labels().map(|(_, name)| name.to_owned()).collect()),
            id: None,
        }
    }
}
