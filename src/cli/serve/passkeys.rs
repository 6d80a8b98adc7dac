//! The prompts of a self-test: the first samples of the benchmark `passkey`.

use std::collections::BTreeMap;
use std::path::Path;

use ropewalk::control::Control;
use ropewalk::eval::suite::TaskEncoder;
use ropewalk::eval::SessionSource;
use ropewalk::tasks::{find, Answer, Ask, Encoder as _, Error, Result, Setup, Template};
use ropewalk::{Model, SessionParams};
use ropewalk_serve::Passkey;

/// Prompts of at most `n` tokens with the answer, as `ropewalk eval passkey` has them for a base model.
pub(super) fn passkeys(model: &Model, n: usize, count: usize, control: Control<'_>) -> Result<Vec<Passkey>> {
    let source = SessionSource::new(model, SessionParams::new(n));
    let encoder = TaskEncoder::new(&source, Template::Base, None).map_err(|e| Error::Encoder(Box::new(e)))?;
    let setup = Setup {
        length: Some(n),
        samples: Some(count),
        seed: None,
        template: Template::Base,
        options: BTreeMap::new(),
        data: Path::new(""),
        encoder: &encoder,
        control,
    };
    let bos = model.vocab().bos().filter(|_| model.vocab().add_bos());
    let mut out = Vec::new();
    for task in find("passkey")? {
        for sample in task.samples(&setup)?.iter {
            let sample = sample?;
            let Ask::Generate { max_tokens, .. } = sample.ask else { continue };
            let mut prompt = encoder.encode(&sample.prompt)?;
            if let Some(bos) = bos {
                prompt.insert(0, bos);
            }
            let judge = sample.judge;
            let is_found = move |text: &str| judge(&Answer::Text(text.to_owned())).first() == Some(&1.0);
            out.push(Passkey { prompt, max_tokens, is_found: Box::new(is_found) });
        }
    }
    Ok(out)
}
