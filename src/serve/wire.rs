//! Requests, checked before anything is looked at that takes long.

use serde_json::{json, Map, Value};

use crate::backend::{Backend, Bit, ChatPrompt, Fault, Job, Sampling};
use crate::calls::{earlier, taken, Tools};
use crate::fields::{short, token, wrong, Fields};

/// Answers that one request may ask for.
pub const MAX_ANSWERS: usize = 128;
/// The most likely tokens that one token can come with.
pub(crate) const MAX_TOP: u32 = 20;
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 1024;
const MAX_BIASES: usize = 4096;
const MAX_LORAS: usize = 64;
pub(crate) const MAX_MESSAGES: usize = 16_384;
pub(crate) const MAX_COUNT: u32 = i32::MAX as u32;
/// Tokens of a completion whose request does not say: OpenAI's default.
const N_COMPLETION: usize = 16;

/// Fields that are known but not served, with the values that ask for nothing.
#[rustfmt::skip]
const NOT_SERVED: &[(&str, &[&str])] = &[
    ("allowed_token_ids", &[]), ("audio", &[]), ("bad_words", &["[]"]), ("best_of", &["1"]), ("chat_template", &[]),
    ("continue_final_message", &["false"]), ("documents", &["[]"]), ("dry_sequence_breakers", &[]),
    ("dynatemp_range", &["0", "0.0"]), ("function_call", &["\"none\"", "\"auto\""]),
    ("functions", &["[]"]), ("grammar", &["\"\""]), ("guided_choice", &[]), ("guided_grammar", &[]), ("guided_json", &[]),
    ("guided_regex", &[]), ("id_slot", &["-1"]), ("include_stop_str_in_output", &["false"]), ("json_schema", &[]),
    ("length_penalty", &["1", "1.0"]), ("mirostat", &["0"]), ("modalities", &["[\"text\"]"]), ("n_predict", &[]),
    ("n_probs", &["0"]), ("prediction", &[]), ("priority", &["0"]), ("prompt_embeds", &[]),
    ("samplers", &[]), ("stop_token_ids", &["[]"]),
    ("structured_outputs", &[]), ("suffix", &["\"\""]), ("t_max_predict_ms", &["-1", "0"]), ("thinking_budget_tokens", &[]),
    ("top_n_sigma", &["-1", "-1.0", "0", "0.0"]),
    ("truncate_prompt_tokens", &[]), ("use_beam_search", &["false"]), ("web_search_options", &[]),
    ("xtc_probability", &["0", "0.0"]),
];

/// Variables of a chat template that are not a request's to give.
const OWN_VARIABLES: &[&str] = &[
    "add_generation_prompt",
    "bos_token",
    "chat_template",
    "continue_final_message",
    "eos_token",
    "messages",
    "tokenize",
    "tools",
];

/// Fields that both kinds of requests have.
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    pub(crate) rope: Option<String>,
    /// Adapters by their numbers, and their scales.
    pub(crate) lora: Option<Vec<(usize, f32)>>,
    /// Answers for each prompt.
    pub(crate) n: usize,
    /// None for an answer in one piece.
    pub(crate) stream: Option<Stream>,
    /// Whether tokens are listed by number.
    pub(crate) ids: bool,
    /// Whether the prompt's tokens are scored apart from the answer's; how is in the job.
    pub(crate) prompt_scores: bool,
    /// A job without a prompt.
    pub(crate) job: Job,
}

/// How an answer is streamed.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) usage: bool,
    pub(crate) progress: bool,
    /// Seconds between signs of life; 0 is off, none is the server's setting.
    pub(crate) ping: Option<u64>,
}

/// A prompt of a completion.
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<i32>),
}

/// `POST /v1/completions`.
pub(crate) struct Completions {
    pub(crate) common: Common,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) echo: bool,
    pub(crate) add_special: bool,
}

/// `POST /v1/chat/completions`.
pub(crate) struct Chat {
    pub(crate) common: Common,
    pub(crate) messages: Messages,
    /// Whether reasoning is apart from the text.
    pub(crate) split: bool,
    /// The JSON that the text is to be.
    pub(crate) json: Option<Bit>,
}

/// A conversation.
pub(crate) struct Messages {
    pub(crate) list: Vec<Value>,
    pub(crate) variables: Map<String, Value>,
    pub(crate) open: bool,
    pub(crate) tools: Tools,
}

impl Messages {
    /// The conversation as tokens.
    pub(crate) fn tokens(&self, backend: &dyn Backend) -> Result<ChatPrompt, Fault> {
        let template = backend.card().chat_template.as_deref();
        let (list, variables) = taken(template, &self.list, &self.variables);
        backend.chat_tokens(&list, &variables, self.open)
    }

    /// The conversation as text.
    pub(crate) fn text(&self, backend: &dyn Backend) -> Result<String, Fault> {
        let template = backend.card().chat_template.as_deref();
        let (list, variables) = taken(template, &self.list, &self.variables);
        backend.render(&list, &variables, self.open)
    }
}

/// Reads a request for completions.
pub(crate) fn completions(body: &[u8]) -> Result<Completions, Fault> {
    let mut fields = Fields::parse(body)?;
    let prompts = match fields.take("prompt") {
        Some(value) => prompts(value)?,
        None => return Err(Fault::invalid("prompt", "prompt: expected a text or tokens, found none")),
    };
    let echo = fields.bool("echo")?.unwrap_or(false);
    let add_special = fields.bool("add_special_tokens")?.unwrap_or(true);
    let n_top = fields.count("logprobs", MAX_TOP)?;
    fields.refuse("tools", &["[]"])?;
    fields.refuse("tool_choice", &["\"none\"", "\"auto\""])?;
    fields.refuse("response_format", &["{\"type\":\"text\"}"])?;
    let mut common = common(&mut fields)?;
    common.job.n_top = n_top;
    common.job.max_tokens.get_or_insert(N_COMPLETION);
    if let Some(n_top) = n_top.filter(|_| echo) {
        if common.prompt_scores {
            let what = "prompt_logprobs: expected it or echo with logprobs, found both";
            return Err(Fault::invalid("prompt_logprobs", what));
        }
        common.job.echo = Some(n_top);
        // Who scores a prompt counts on one token after it, also where the model would end the text.
        common.job.ignore_eos |= common.job.max_tokens == Some(1);
    }
    if prompts.len().saturating_mul(common.n) > MAX_ANSWERS {
        let found = format!("{} prompts times n {}", prompts.len(), common.n);
        return Err(Fault::invalid(
            "n",
            format_args!("n: expected at most {MAX_ANSWERS} answers, found {found}"),
        ));
    }
    Ok(Completions { common, prompts, echo, add_special })
}

/// Reads a request for the next message of a chat.
pub(crate) fn chat(body: &[u8]) -> Result<Chat, Fault> {
    let mut fields = Fields::parse(body)?;
    let messages = messages(&mut fields)?;
    let logprobs = fields.bool("logprobs")?.unwrap_or(false);
    let n_top = fields.count("top_logprobs", MAX_TOP)?;
    if n_top.is_some() && !logprobs {
        return Err(Fault::invalid(
            "top_logprobs",
            "top_logprobs: expected logprobs to be true, found it is not",
        ));
    }
    let split = match fields.text("reasoning_format")?.as_deref() {
        None | Some("auto" | "deepseek") => true,
        Some("none") => false,
        Some(other) => {
            let what = format!("reasoning_format: expected auto, deepseek, or none, found {}", short(other));
            return Err(Fault::invalid("reasoning_format", what));
        }
    };
    let json = match fields.object("response_format")? {
        Some(format) => form("response_format", &Value::Object(format), Some("json_schema"))?,
        None => None,
    };
    let mut common = common(&mut fields)?;
    common.job.n_top = logprobs.then(|| n_top.unwrap_or(0));
    Ok(Chat { common, messages, split, json })
}

/// The JSON that an answer is to be, as the format in the field `at` says. A schema is in the format itself, or in what it has
/// under `inner`.
pub(crate) fn form(at: &str, format: &Value, inner: Option<&str>) -> Result<Option<Bit>, Fault> {
    let (name, schema, strict) = match format["type"].as_str() {
        Some("text") => return Ok(None),
        Some("json_object") => {
            // llama-server takes a schema here.
            let schema = format.get("schema").cloned().unwrap_or_else(|| json!({ "type": "object" }));
            (at.to_owned(), schema, false)
        }
        Some("json_schema") => {
            let (name, of) = match inner {
                Some(inner) => (format!("{at}.{inner}"), &format[inner]),
                None => (at.to_owned(), format),
            };
            let strict = match &of["strict"] {
                Value::Null => false,
                Value::Bool(strict) => *strict,
                other => return Err(wrong(&format!("{name}.strict"), "true or false", other)),
            };
            (name, of["schema"].clone(), strict)
        }
        _ => {
            let expected = "text, json_object, or json_schema";
            return Err(wrong(&format!("{at}.type"), expected, &format["type"]));
        }
    };
    match schema {
        schema @ Value::Object(_) => Ok(Some(Bit::Json { schema, strict })),
        other => Err(wrong(&format!("{name}.schema"), "a JSON schema", &other)),
    }
}

/// Takes a conversation, its functions, and the variables of its template.
pub(crate) fn messages(fields: &mut Fields) -> Result<Messages, Fault> {
    let tools = Tools::take(fields, Some("function"))?;
    conversation(fields, tools)
}

/// The same with functions that were taken.
pub(crate) fn conversation(fields: &mut Fields, mut tools: Tools) -> Result<Messages, Fault> {
    let list = match fields.take("messages") {
        Some(Value::Array(list)) if (1..=MAX_MESSAGES).contains(&list.len()) => list,
        Some(other) => {
            return Err(wrong("messages", &format!("a list of 1 to {MAX_MESSAGES} messages"), &other))
        }
        None => return Err(Fault::invalid("messages", "messages: expected a list, found none")),
    };
    let list = list.into_iter().enumerate().map(|(i, m)| message(i, m)).collect::<Result<Vec<_>, _>>()?;
    let mut variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
    if let Some(name) = OWN_VARIABLES.iter().find(|name| variables.contains_key(**name)) {
        let what = format!("chat_template_kwargs: `{name}` is not a request's to set");
        return Err(Fault::invalid("chat_template_kwargs", what));
    }
    if let Some(effort) = fields.text("reasoning_effort")? {
        variables.insert("reasoning_effort".to_owned(), effort.into());
    }
    if tools.offered() {
        variables.insert("tools".to_owned(), tools.given.take());
    }
    let open = fields.bool("add_generation_prompt")?.unwrap_or(true);
    Ok(Messages { list, variables, open, tools })
}

/// Takes what all kinds of requests have.
pub(crate) fn common(fields: &mut Fields) -> Result<Common, Fault> {
    for (name, neutral) in NOT_SERVED {
        fields.refuse(name, neutral)?;
    }
    let [short_name, long_name] = ["max_tokens", "max_completion_tokens"];
    let (max_tokens, of_answer) = (fields.count(short_name, MAX_COUNT)?, fields.count(long_name, MAX_COUNT)?);
    if let (Some(a), Some(b)) = (max_tokens, of_answer) {
        if a != b {
            let what = format!("{long_name}: expected {short_name} or the same, found {a} and {b}");
            return Err(Fault::invalid(long_name, what));
        }
    }
    let streams = fields.bool("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?;
    let progress = fields.bool("return_progress")?.unwrap_or(false);
    if !streams && (options.is_some() || progress) {
        let name = if progress { "return_progress" } else { "stream_options" };
        return Err(Fault::invalid(
            name,
            format_args!("{name}: expected stream to be true, found it is not"),
        ));
    }
    let usage = match options.as_ref().and_then(|o| o.get("include_usage")) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(usage)) => *usage,
        Some(other) => return Err(wrong("stream_options.include_usage", "true or false", other)),
    };
    let echo = fields.count("prompt_logprobs", MAX_TOP)?;
    if streams && echo.is_some() {
        let what = "prompt_logprobs: expected stream to be false, found it is not";
        return Err(Fault::invalid("prompt_logprobs", what));
    }
    let ping = fields.int("sse_ping_interval", -1..=86_400)?.map(|seconds| seconds.max(0) as u64);
    Ok(Common {
        model: fields.text("model")?,
        rope: fields.text("rope")?,
        lora: lora(fields)?,
        n: fields.int("n", 1..=MAX_ANSWERS as i64)?.map_or(1, |n| n as usize),
        stream: streams.then_some(Stream { usage, progress, ping }),
        ids: fields.bool("return_token_ids")?.unwrap_or(false),
        prompt_scores: echo.is_some(),
        job: Job {
            echo,
            max_tokens: of_answer.or(max_tokens),
            sampling: sampling(fields)?,
            bias: bias(fields)?,
            stop: stop(fields)?,
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            special: !fields.bool("skip_special_tokens")?.unwrap_or(true),
            reuse: fields.bool("cache_prompt")?.unwrap_or(true),
            salt: fields.text("cache_salt")?.unwrap_or_default().into_bytes(),
            ..Job::default()
        },
    })
}

fn sampling(fields: &mut Fields) -> Result<Sampling, Fault> {
    let top = i64::from(i32::MAX);
    let mut int = |name, min| Ok::<_, Fault>(fields.int(name, min..=top)?.map(|n| n as i32));
    let (top_k, last_n) = (int("top_k", -1)?, int("repeat_last_n", -1)?);
    let (dry_allowed, dry_last_n) = (int("dry_allowed_length", 0)?, int("dry_penalty_last_n", -1)?);
    let penalty = fields.float("repeat_penalty", 0.01..=10.0)?;
    Ok(Sampling {
        temperature: fields.float("temperature", 0.0..=100.0)?,
        top_p: fields.float("top_p", 0.0..=1.0)?,
        // Both -1 and 0 are in use for all tokens.
        top_k: top_k.map(|k| k.max(0)),
        min_p: fields.float("min_p", 0.0..=1.0)?,
        typical_p: fields.float("typical_p", 0.0..=1.0)?,
        repeat_penalty: fields.float("repetition_penalty", 0.01..=10.0)?.or(penalty),
        repeat_last_n: last_n,
        frequency_penalty: fields.float("frequency_penalty", -10.0..=10.0)?,
        presence_penalty: fields.float("presence_penalty", -10.0..=10.0)?,
        dry_multiplier: fields.float("dry_multiplier", 0.0..=100.0)?,
        dry_base: fields.float("dry_base", 1.0..=100.0)?,
        dry_allowed_length: dry_allowed,
        dry_penalty_last_n: dry_last_n,
        // The low half of a seed of 64 bits. With -1, llama-server draws one, and clients send that for a new one each time.
        seed: fields
            .int("seed", i64::MIN..=i64::MAX)?
            .map(|seed| seed as u32)
            .filter(|&seed| seed != u32::MAX),
        min_tokens: fields.count("min_tokens", MAX_COUNT)?,
    })
}

fn lora(fields: &mut Fields) -> Result<Option<Vec<(usize, f32)>>, Fault> {
    let list = match fields.take("lora") {
        None => return Ok(None),
        Some(Value::Array(list)) if list.len() <= MAX_LORAS => list,
        Some(other) => return Err(wrong("lora", &format!("a list of at most {MAX_LORAS}"), &other)),
    };
    let one = |(i, entry): (usize, &Value)| -> Result<(usize, f32), Fault> {
        let bad = |name: &str, expected: &str| wrong(&format!("lora[{i}].{name}"), expected, &entry[name]);
        let id = token(&entry["id"]).ok_or_else(|| bad("id", "an adapter's number"))?;
        let scale = entry["scale"].as_f64().ok_or_else(|| bad("scale", "a number"))?;
        Ok((id as usize, scale as f32))
    };
    list.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>().map(Some)
}

fn bias(fields: &mut Fields) -> Result<Vec<(i32, f32)>, Fault> {
    let map = fields.object("logit_bias")?.unwrap_or_default();
    if map.len() > MAX_BIASES {
        let what = format!("logit_bias: expected at most {MAX_BIASES} tokens, found {}", map.len());
        return Err(Fault::invalid("logit_bias", what));
    }
    let one = |(name, value): (&String, &Value)| -> Result<(i32, f32), Fault> {
        let token = name.parse::<i32>().ok().filter(|token| *token >= 0).ok_or_else(|| {
            Fault::invalid("logit_bias", format_args!("logit_bias: expected a token, found {}", short(name)))
        })?;
        let bias = value.as_f64().filter(|x| (-100.0..=100.0).contains(x));
        Ok((token, bias.ok_or_else(|| wrong("logit_bias", "a number from -100 to 100", value))? as f32))
    };
    map.iter().map(one).collect()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Fault> {
    let list = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() > MAX_STOPS => {
            return Err(wrong("stop", &format!("at most {MAX_STOPS} texts"), &Value::Array(list)))
        }
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    let text = |value: Value| match value {
        Value::String(text) if (1..=MAX_STOP_BYTES).contains(&text.len()) => Ok(text),
        other => Err(wrong("stop", &format!("texts of 1 to {MAX_STOP_BYTES} bytes"), &other)),
    };
    list.into_iter().map(text).collect()
}

/// The prompts of a completion.
pub(crate) fn prompts(value: Value) -> Result<Vec<Prompt>, Fault> {
    const EXPECTED: &str = "a text, tokens, or a list of one kind of these";
    let list = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(list) if matches!(list.first(), Some(Value::Number(_))) => {
            return Ok(vec![Prompt::Tokens(tokens("prompt", &list)?)])
        }
        Value::Array(list) if (1..=MAX_ANSWERS).contains(&list.len()) => list,
        other => return Err(wrong("prompt", EXPECTED, &other)),
    };
    let texts = list[0].is_string();
    let one = |value: Value| match value {
        Value::String(text) if texts => Ok(Prompt::Text(text)),
        Value::Array(list) if !texts => Ok(Prompt::Tokens(tokens("prompt", &list)?)),
        other => Err(wrong("prompt", EXPECTED, &other)),
    };
    list.into_iter().map(one).collect()
}

/// The tokens of a list of numbers.
pub(crate) fn tokens(name: &str, list: &[Value]) -> Result<Vec<i32>, Fault> {
    list.iter().map(|value| token(value).ok_or_else(|| wrong(name, "tokens", value))).collect()
}

/// A message as the template is to see it.
fn message(i: usize, value: Value) -> Result<Value, Fault> {
    let mut given = match value {
        Value::Object(given) => given,
        other => return Err(wrong(&format!("messages[{i}]"), "an object", &other)),
    };
    let at = |name: &str| format!("messages[{i}].{name}");
    let role = match given.get("role").and_then(Value::as_str) {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        Some("function") => {
            let what = format!("{}: expected tool, found function, which is not served", at("role"));
            return Err(Fault::invalid(&at("role"), what));
        }
        _ => {
            let found = given.get("role").unwrap_or(&Value::Null);
            return Err(wrong(&at("role"), "system, developer, user, assistant, or tool", found));
        }
    };
    let mut out = Map::new();
    out.insert("role".to_owned(), role.into());
    let calls = given.get("tool_calls").filter(|calls| !calls.is_null());
    let calls = calls.map(|calls| earlier(&at("tool_calls"), calls)).transpose()?;
    let calls = calls.filter(|calls| calls.as_array().is_some_and(|calls| !calls.is_empty()));
    if calls.is_some() && role != "assistant" {
        let what = format!("{}: expected them in messages of assistant, found {role}", at("tool_calls"));
        return Err(Fault::invalid(&at("tool_calls"), what));
    }
    let text = match given.remove("content") {
        Some(Value::String(text)) => Some(text),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text),
                _ => Err(wrong(&at("content"), "parts of type text", part)),
            });
            Some(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        None | Some(Value::Null) if calls.is_some() => None,
        found => {
            return Err(wrong(&at("content"), "a text or parts of type text", &found.unwrap_or_default()))
        }
    };
    // Templates take a message without a content for one that only calls.
    out.extend(text.map(|text| ("content".to_owned(), text.into())));
    out.extend(calls.map(|calls| ("tool_calls".to_owned(), calls)));
    for name in ["name", "reasoning_content", "tool_call_id"] {
        match given.remove(name) {
            None | Some(Value::Null) => {}
            Some(text @ Value::String(_)) => drop(out.insert(name.to_owned(), text)),
            Some(other) => return Err(wrong(&at(name), "a text", &other)),
        }
    }
    Ok(out.into())
}
