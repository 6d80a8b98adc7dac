//! `POST /v1/chat/completions`.

use std::sync::Arc;

use crate::answer::Choice;
use crate::app::{App, Caller};
use crate::backend::Fault;
use crate::completions::{each, prepare, rule};
use crate::stream::{begin, Work};
use crate::wire;

pub(crate) fn work(app: &Arc<App>, caller: Caller, body: &[u8]) -> Result<Work, Fault> {
    let request = wire::chat(body)?;
    let mut common = request.common;
    prepare(app, caller, &mut common)?;
    let messages = request.messages;
    let template = app.backend.card().chat_template.as_deref();
    let reader = messages.tools.reader(template, request.json.is_some());
    let prompt = messages.tokens(&*app.backend)?;
    let param = if request.json.is_some() { "response_format" } else { "tools" };
    let shape = messages.tools.shape(template, request.json, prompt.header)?;
    common.job.rule = rule(app, shape, prompt.thinks, param)?;
    common.job.stop.extend(prompt.stop);
    let scored = common.job.n_top.is_some();
    // Without splitting, marks still have to become text.
    let split = || Some((prompt.split)(request.split));
    let choice = |_| Choice::new(0, scored, None, split()).with_calls(reader.clone());
    let mut choices: Vec<Choice> = (0..common.n).map(choice).collect();
    let (jobs, headers) = begin(app, each(&common, &prompt.tokens), &mut choices)?;
    let listing = |choice: Choice| choice.listing(common.ids, &prompt.tokens, common.prompt_scores);
    let choices = choices.into_iter().map(listing).collect();
    let head = app.head(common.model.as_deref(), true);
    Ok(Work { head, choices, jobs, headers, stream: common.stream })
}
