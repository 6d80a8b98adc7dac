//! Conversations and prompts with their completions, a line of JSON each, as texts to train on.

use ropewalk::control::Control;
use ropewalk::data::{
    ChatTemplate, Corpus, Dataset, DatasetParams, Packing, Records, Result, Separator, Sources, TextOptions,
};

use serde_json::{Map, Value};

use crate::{accepted, base, file};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A line for each message. It refuses a role, and under another one a conversation does not begin as its first turns do.
#[derive(Debug)]
struct Template;

impl ChatTemplate for Template {
    fn render(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> std::result::Result<String, Failure> {
        if messages.iter().any(|m| m["role"] == "tool") {
            return Err("no tools here".into());
        }
        let count = if messages.iter().any(|m| m["role"] == "count") {
            messages.len().to_string()
        } else {
            String::new()
        };
        let tools = variables.get("tools").map(Value::to_string).unwrap_or_default();
        let lines: String =
            messages.iter().map(|m| format!("<{}>{}</>\n", m["role"], m["content"])).collect();
        Ok(count + &tools + &lines + if open { "<assistant>" } else { "" })
    }

    fn source(&self) -> String {
        "tools text tool_calls".into()
    }

    fn fingerprint(&self) -> String {
        "lines".into()
    }
}

fn samples(bytes: &[u8]) -> Result<()> {
    let answers_only = bytes.first().is_some_and(|b| b & 1 == 1);
    let records = Records::Chat { answers_only };
    let options = TextOptions::default().records(records).replace_invalid(bytes.len() % 2 == 1);
    let sources =
        Sources::find(&[file("in.jsonl", bytes)], &options)?.with_template(std::sync::Arc::new(Template));
    let cache = crate::scratch(&format!("{:?}-conversations.tokens", std::thread::current().id()));
    let _ = std::fs::remove_file(&cache);
    let corpus = Corpus::open(&cache, base().0.vocab(), &sources, &Separator::Auto, &Control::default())?;
    let params = DatasetParams::new(64).packing(Packing::Truncate);
    let data = Dataset::new(std::sync::Arc::new(corpus), &params)?;
    for i in 0..data.n_train() {
        let sample = data.train(0, i)?;
        assert!(sample.weights.iter().all(|&w| w == 1.0 || (answers_only && w == 0.0)));
        assert_eq!(sample.weights.len() + 1, sample.tokens.len());
    }
    Ok(())
}

/// Reads all lines, tokenizes them and takes every sample.
pub fn run(bytes: &[u8]) -> bool {
    accepted(samples(bytes))
}

/// Lines of both forms.
pub fn seeds() -> Vec<Vec<u8>> {
    let lines = [
        r#"{"id": 1, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q\u00e9"}, "#,
        r#"{"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]}"#,
        "\n\n",
        r#"{"prompt": "2 + 2 =", "completion": " 4", "source": null}"#,
        "\n",
        r#"{"tools": [{"name": "now"}], "messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, "#,
        r#"{"role": "assistant", "content": null, "tool_calls": [{"name": "now"}]}]}"#,
    ]
    .concat();
    // The first byte says whether answers alone count: a brace is odd, a blank even.
    vec![lines.clone().into_bytes(), format!(" {lines}\n").into_bytes()]
}
