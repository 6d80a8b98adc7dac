//! Forms of answers, as grammars that say at each token which ones may come next.
//!
//! Of a client, only JSON schemas get into a grammar, as JSON. Schemas have limits of size and depth, grammars of states, and
//! each step of work.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie, INVALID_TOKEN};
use llguidance::{Matcher, ParserFactory};
use ropewalk::chat::answer::hidden_marks;
use ropewalk::scheduler::Mask;
use ropewalk::{Error, Model, Token};
use ropewalk_serve::{Bit, Shape};
use serde_json::{json, Map, Value};

/// Bytes of all schemas of a request.
const MAX_BYTES: usize = 256 << 10;
/// Patterns for names of one object: every pair of them is compared.
const MAX_PATTERNS: usize = 64;
/// Comparisons of options: those of one choice with each other, again for every schema that is joined with it.
const MAX_WORK: usize = 100_000_000;
/// Levels that the compiler of schemas may descend, which it does on its stack.
const MAX_DEPTH: usize = 2000;
/// The stack for that.
const STACK: usize = 128 << 20;
/// Bytes of a token; longer ones are not used.
const MAX_WORD: usize = 1000;
/// Calls after the first one.
const MAX_MORE: usize = 15;
/// White space between the parts of a JSON text. Models can go on with it without end.
const SPACE: &str = r"[\x20\x0A\x0D\x09]{1,20}";

/// Makes grammar rules for a vocabulary.
pub(super) struct Rules {
    model: Model,
    factory: ParserFactory,
    ends: Arc<[Token]>,
}

/// A shape that is ready for any number of answers.
pub(super) struct Rule {
    first: Mutex<Matcher>,
    model: Model,
    ends: Arc<[Token]>,
    thinks: Option<&'static str>,
    trigger: Option<&'static str>,
}

/// The rule of an answer under way.
struct Step {
    matcher: Matcher,
    model: Model,
    ends: Arc<[Token]>,
    /// A text that comes before the grammar's, and before that the end of the thinking.
    trigger: Option<&'static str>,
    thinks: Option<&'static str>,
    /// The last bytes before these.
    seen: Vec<u8>,
}

impl Rules {
    pub(super) fn new(model: &Model) -> Result<Rules, String> {
        let vocab = model.vocab();
        let n = vocab.n_tokens() as Token;
        // Control tokens are none of a text's, nor is what ends it.
        let word = |token| match vocab.piece(token, false) {
            Ok(bytes) if bytes.len() <= MAX_WORD && bytes.first() != Some(&0xff) && !vocab.is_eog(token) => {
                bytes
            }
            _ => Vec::new(),
        };
        let words: Vec<Vec<u8>> = (0..n).map(word).collect();
        if words.iter().all(Vec::is_empty) {
            return Err("the model has no vocabulary".to_owned());
        }
        let ends: Vec<Token> = (0..n).filter(|&token| vocab.is_eog(token)).collect();
        let marked: Vec<u32> = ends.iter().map(|&token| token as u32).collect();
        let end = marked.first().copied().unwrap_or(INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
        if !marked.is_empty() {
            trie = trie.with_eos_tokens(&marked);
        }
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| why(&e))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_lexer_states = 20_000;
        limits.max_grammar_size = 100_000;
        limits.precompute_large_lexemes = false;
        limits.verbose_errors = false;
        Ok(Rules { model: model.clone(), factory, ends: ends.into() })
    }

    /// Prepares a shape.
    pub(super) fn compile(&self, shape: &Shape) -> Result<Rule, String> {
        let (rules, grammar) = (self, self.grammar(shape)?);
        let matcher = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK);
            let work = move || rules.matcher(grammar);
            match thread.spawn_scoped(scope, work).map(|thread| thread.join()) {
                Ok(Ok(matcher)) => matcher,
                _ => Err("it is too complex".to_owned()),
            }
        })?;
        Ok(Rule {
            first: Mutex::new(matcher),
            model: self.model.clone(),
            ends: Arc::clone(&self.ends),
            thinks: shape.thinks,
            trigger: shape.trigger,
        })
    }

    fn matcher(&self, grammar: String) -> Result<Matcher, String> {
        let parser = self.factory.create_parser(TopLevelGrammar::from_lark(grammar));
        let mut matcher = Matcher::new(Ok(parser.map_err(|e| why(&e))?));
        // One that no text has is known here.
        matcher.compute_mask().map_err(|e| why(&e))?;
        Ok(matcher)
    }

    /// A shape in the language of grammars.
    fn grammar(&self, shape: &Shape) -> Result<String, String> {
        let (mut text, mut schemas) = (String::from("sp: /[ \\n]{1,4}/\n"), Vec::new());
        let mut starts = Vec::new();
        for (i, series) in shape.any.iter().enumerate() {
            let mut names = Vec::new();
            for (k, bits) in series.one_of.iter().enumerate() {
                text += &format!("a{i}_{k}: {}\n", self.bits(bits, &mut schemas)?);
                names.push(format!("a{i}_{k}"));
            }
            text += &format!("i{i}: {}\n", names.join(" | "));
            let more = match &series.between {
                None => String::new(),
                Some(bits) => format!("( {} i{i} ){{0,{MAX_MORE}}}", self.bits(bits, &mut schemas)?),
            };
            let begin = self.bits(&series.begin, &mut schemas)?;
            let end = self.bits(&series.end, &mut schemas)?;
            text += &format!("s{i}: {begin} i{i} {more} {end}\n");
            starts.push(format!("s{i}"));
        }
        let n_bytes: usize = schemas.iter().map(String::len).sum();
        if n_bytes > MAX_BYTES {
            return Err(format!("expected schemas of at most {MAX_BYTES} bytes, found {n_bytes}"));
        }
        for (i, schema) in schemas.iter().enumerate() {
            text += &format!("j{i}: %json {schema}\n");
        }
        Ok(format!("start: {}\n{text}", starts.join(" | ")))
    }

    fn bits(&self, bits: &[Bit], schemas: &mut Vec<String>) -> Result<String, String> {
        let quoted = |text: &str| Value::from(text).to_string();
        let mut out = Vec::new();
        for bit in bits {
            out.push(match bit {
                Bit::Text(text) => quoted(text),
                Bit::Mark(mark) => {
                    let hidden = hidden_marks(self.model.vocab(), &[*mark]).map_err(|e| e.to_string())?;
                    hidden.keys().next().map_or_else(|| quoted(mark), |token| format!("<[{token}]>"))
                }
                Bit::Space => "sp?".to_owned(),
                Bit::Free(but) => format!(r"/[^\{but}\s](.|\n)*/"),
                Bit::Json { schema, strict } => {
                    check(schema)?;
                    let mut schema = schema.clone();
                    // Not a client's to set.
                    schema["x-guidance"] = json!({ "whitespace_pattern": SPACE, "lenient": !strict });
                    schemas.push(schema.to_string());
                    format!("j{}", schemas.len() - 1)
                }
            });
        }
        Ok(out.join(" "))
    }
}

/// The most options of one choice, and the schemas that can be joined with it, after each of which options are compared again.
fn work(schema: &Value) -> Result<(usize, usize), String> {
    let (mut n_options, mut n_joined) = (1, 1);
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(list) => left.extend(list),
            Value::Object(map) => {
                n_joined += map.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
                n_joined += usize::from(map.contains_key("$ref"));
                for key in ["oneOf", "anyOf"] {
                    n_options = n_options.max(map.get(key).and_then(Value::as_array).map_or(0, Vec::len));
                }
                let patterns = map.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
                if patterns > MAX_PATTERNS {
                    return Err(format!(
                        "patternProperties: expected at most {MAX_PATTERNS}, found {patterns}"
                    ));
                }
                left.extend(map.values());
            }
            _ => {}
        }
    }
    Ok((n_options, n_joined))
}

/// Checks that a schema is not too deep, and not too much work to compile. What references name is read once, but inside
/// of what names it.
fn check(schema: &Value) -> Result<(), String> {
    fn walk<'a>(value: &'a Value, names: &mut BTreeSet<&'a str>) -> usize {
        let deepest = match value {
            Value::Array(list) => list.iter().map(|value| walk(value, names)).max(),
            Value::Object(map) => {
                names.extend(map.get("$ref").and_then(Value::as_str));
                map.values().map(|value| walk(value, names)).max()
            }
            _ => None,
        };
        1 + deepest.unwrap_or(0)
    }
    let (n_options, n_joined) = work(schema)?;
    if n_options.saturating_mul(n_options).saturating_mul(n_joined) > MAX_WORK {
        let found =
            format!("{n_options} options in one `oneOf` or `anyOf`, {n_joined} in `allOf` and `$ref`");
        return Err(format!("expected a schema that is less work, found {found}"));
    }
    let mut names = BTreeSet::new();
    let depth = walk(schema, &mut names);
    let all = depth * (1 + names.len());
    if all > MAX_DEPTH {
        let found = format!("{depth} levels and {} references", names.len());
        return Err(format!(
            "expected a schema of at most {MAX_DEPTH} levels with its references, found {found}"
        ));
    }
    Ok(())
}

/// An error of the grammar in one line, without the grammar.
fn why(e: &anyhow::Error) -> String {
    let text = e.to_string();
    let text = text.split_once("failed to compile JSON schema: ").map_or(&*text, |(_, text)| text);
    match text.lines().next() {
        Some("NoExtensionBias") => "no text fits".to_owned(),
        Some(line) if !line.starts_with("panic") => line.to_owned(),
        _ => "it is too complex".to_owned(),
    }
}

impl Rule {
    /// The rule of a new answer.
    pub(super) fn mask(&self) -> Box<dyn Mask> {
        Box::new(Step {
            matcher: self.first.lock().unwrap_or_else(PoisonError::into_inner).deep_clone(),
            model: self.model.clone(),
            ends: Arc::clone(&self.ends),
            trigger: self.trigger,
            thinks: self.thinks,
            seen: Vec::new(),
        })
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step")
            .field("trigger", &self.trigger)
            .field("thinks", &self.thinks)
            .finish_non_exhaustive()
    }
}

impl Step {
    fn error(e: &anyhow::Error) -> Error {
        Error::Invalid(format!("the answer's form: {}", why(e)))
    }

    /// Takes the text that the token of the mark has after it, if the form can begin so: `{` of `<tool_call>{`.
    fn begin(&mut self) -> anyhow::Result<()> {
        let rest = self.matcher.tok_env()?.tokenize_bytes(&std::mem::take(&mut self.seen));
        match self.matcher.validate_tokens(&rest)? == rest.len() {
            true => self.matcher.consume_tokens(&rest),
            false => Ok(()),
        }
    }
}

impl Mask for Step {
    fn apply(&mut self, logits: &mut [f32]) -> ropewalk::Result<()> {
        if self.thinks.is_some() {
            self.ends.iter().for_each(|&token| logits[token as usize] = f32::NEG_INFINITY);
        }
        if self.thinks.or(self.trigger).is_some() {
            return Ok(());
        }
        let allowed = self.matcher.compute_mask_or_eos().map_err(|e| Step::error(&e))?;
        let n = self.model.vocab().n_tokens();
        for (token, logit) in logits.iter_mut().enumerate() {
            if token >= n || !allowed.is_allowed(token as u32) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: Token) -> ropewalk::Result<bool> {
        if self.thinks.or(self.trigger).is_none() {
            if self.ends.contains(&token) {
                return Ok(true);
            }
            self.matcher.consume_token(token as u32).map_err(|e| Step::error(&e))?;
            return Ok(self.matcher.is_stopped());
        }
        self.seen.extend(self.model.vocab().piece(token, true)?);
        while let Some(mark) = self.thinks.or(self.trigger) {
            let Some(at) = self.seen.windows(mark.len()).position(|bytes| bytes == mark.as_bytes()) else {
                self.seen.drain(..self.seen.len().saturating_sub(mark.len()));
                return Ok(false);
            };
            self.seen.drain(..at + mark.len());
            if self.thinks.take().is_none() {
                self.trigger = None;
            }
        }
        self.begin().map_err(|e| Step::error(&e))?;
        Ok(self.matcher.is_stopped())
    }

    fn copy(&self) -> Box<dyn Mask> {
        Box::new(Step {
            matcher: self.matcher.deep_clone(),
            model: self.model.clone(),
            ends: Arc::clone(&self.ends),
            trigger: self.trigger,
            thinks: self.thinks,
            seen: self.seen.clone(),
        })
    }
}
