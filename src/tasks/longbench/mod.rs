//! LongBench (Bai et al. 2023), its 16 English sets, and many-shot TREC, which is one of them with other
//! contexts.
//!
//! Protocol: `pred.py`, `eval.py` and `config/` of THUDM/LongBench at 2e00731, or, with `longbench=lceg`,
//! those of Leooyii/LCEG at 2ce672d (Lu et al. 2024, "A Controlled Study on Long Context Extension"). Both have
//! the same templates, budgets and metrics. They differ in this:
//!
//! | | `official` | `lceg` |
//! |---|---|---|
//! | tokens of a prompt, at most | 500 less than the context (see `Form::max_prompt`) | the context |
//! | chat template | under `--template chat`, but for trec, triviaqa, samsum, lcc, repobench-p | none |
//! | only the first line of an answer counts | trec, triviaqa, samsum | these, all question answering, passage_count, passage_retrieval_en |
//!
//! Longer prompts are cut in their middle, in tokens of the model. If the answer and the chat template do
//! not fit after it, the context must be that much longer than the length ([`Samples::beyond`]). The mean over the
//! sets is unweighted.
//!
//! Files: `longbench/NAME.jsonl` in the folder of data, as in `data.zip` of the data set `THUDM/LongBench`: one
//! JSON object a line with `input`, `context`, `answers` (texts), `length`, `dataset`, `language`, `all_classes`
//! (texts or null) and `_id`. When fewer samples are wanted than a file has, they are its first ones.

use crate::data::Records;
use crate::{text, Answer, Ask, Error, Info, Judge, Opt, Result, Sample, Samples, Setup, Task, Template};

mod many_shot;
pub(crate) mod questions;
pub(crate) mod record;
mod sets;

use record::{Form, Metric, Record};

pub(crate) use sets::{NAMES, TASKS};

static FORM: Opt = Opt {
    name: "longbench",
    values: &["official", "lceg"],
    default: "official",
    about:
        "official: prompts 500 tokens below the context, first lines as LongBench judges them; lceg: prompts \
            as long as the context, first lines of 11 sets",
};

struct Set {
    info: Info,
    /// The set's own name, which its records repeat.
    dataset: &'static str,
    /// With a newline at its end that is none of the prompt.
    template: &'static str,
    /// `dataset2maxlen.json`.
    max_tokens: usize,
    metric: Metric,
}

/// Sets whose prompts go without the chat template: a list in `pred.py`.
const NO_CHAT: &[&str] = &["trec", "triviaqa", "samsum", "lcc", "repobench-p"];

/// Sets of whose answers only the first line counts: lists in the two `eval.py`.
const FIRST_LINE: &[&str] = &["trec", "triviaqa", "samsum"];
/// And of which more than that counts under LCEG.
const WHOLE_LCEG: &[&str] = &["gov_report", "qmsum", "multi_news", "lcc", "repobench-p"];

impl Set {
    /// The sample of a record; `max` is the most tokens that its prompt may have.
    fn sample(&self, record: Record, form: Form, max: usize, setup: &Setup<'_>) -> Result<Sample> {
        // Files were looked at when they were opened, and may be others by now.
        record.check(self.metric).map_err(|what| Error::invalid(format!("a record has changed: {what}")))?;
        let template = self.template.strip_suffix('\n').unwrap_or(self.template);
        let prompt = text::fill(template, &[("{context}", &record.context), ("{input}", &record.input)]);
        let mut prompt = text::cut_middle(setup.encoder, prompt, max, false)?;
        if self.in_chat(form) {
            prompt = setup.encoder.frame(&prompt)?;
        }
        // "pred.py" forces a token and stops at a newline, lest models go on with the next dialogue.
        let one_line = self.dataset == "samsum";
        let ask = Ask::Generate {
            max_tokens: self.max_tokens,
            min_tokens: usize::from(one_line),
            stop: if one_line { vec!["\n".into()] } else { Vec::new() },
        };
        let first = match form {
            Form::Official => FIRST_LINE.contains(&self.dataset),
            Form::Lceg => !WHOLE_LCEG.contains(&self.dataset),
        };
        let (metric, answers) = (self.metric, record.answers);
        let all_classes = record.all_classes.unwrap_or_default();
        let score = move |text: &str, answers: &[String]| {
            let text = if first { text::first_line(text) } else { text };
            metric.score(text, answers, &all_classes)
        };
        // Some right answers get no full marks, such as a line of code with a comment.
        let mut expected = (&answers[0], 0.0);
        for answer in answers.iter().take(16) {
            let found = score(answer, &answers);
            if found > expected.1 {
                expected = (answer, found);
            }
            if found >= self.info.best {
                break;
            }
        }
        let expected = Answer::Text(expected.0.clone());
        let mut tags = vec![("words", record.length.to_string())];
        tags.extend(record.id.map(|id| ("record", id)));
        let judge: Judge = Box::new(move |answer| vec![score(answer.text(), &answers)]);
        Ok(Sample { id: String::new(), prompt, ask, expected, tags, judge })
    }

    /// Tokens beyond the length that prompts of `max` tokens take with their answers. Both protocols cut a
    /// prompt before the chat template and the answer come to it, and do not look again.
    fn beyond(&self, form: Form, max: usize, setup: &Setup<'_>) -> Result<usize> {
        let mut need = max.saturating_add(self.max_tokens + text::SEAM);
        if setup.template == Template::Chat && self.in_chat(form) {
            need = need.saturating_add(setup.encoder.count(&setup.encoder.frame("")?)?);
        }
        Ok(need.saturating_sub(setup.length()?))
    }

    fn in_chat(&self, form: Form) -> bool {
        form == Form::Official && !NO_CHAT.contains(&self.dataset)
    }

    /// Checks that prompts can be made for a template.
    fn check_template(&self, form: Form, setup: &Setup<'_>) -> Result<()> {
        if form == Form::Lceg && setup.template == Template::Chat {
            return Err(Error::invalid(format!(
                "{}: longbench=lceg has no chat form: expected the template base or longbench=official",
                self.info.name
            )));
        }
        Ok(())
    }
}

impl Task for Set {
    fn info(&self) -> &Info {
        &self.info
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let form = if setup.option(&FORM)? == "lceg" { Form::Lceg } else { Form::Official };
        self.check_template(form, setup)?;
        let max = form.max_prompt(setup.length()?)?;
        let path = self.info.files[0].path(setup.data)?;
        let records = Records::open(&path, &setup.control, |record: &Record| {
            match &record.dataset {
                Some(name) if name != self.dataset => {
                    return Err(format!("expected the dataset {:?}, found {name:?}", self.dataset))
                }
                _ => {}
            }
            record.check(self.metric)
        })?;
        let beyond = self.beyond(form, max, setup)?;
        let samples = Samples::new(setup, setup.samples_of(records.len()), move |i| {
            Ok(Sample { id: i.to_string(), ..self.sample(records.get(i)?, form, max, setup)? })
        });
        Ok(samples.with_beyond(beyond))
    }
}
