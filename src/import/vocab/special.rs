//! Special tokens, merges and chat template (`SpecialVocab` of llama.cpp's `gguf-py/gguf/vocab.py`).

use std::collections::BTreeMap;

use gguf::{Array, Value as Gguf};
use serde_json::{Map, Value};

use crate::error::shown;
use crate::json::{text, Object, SMALL};
use crate::keys::Keys;
use crate::Result;

use super::Files;

/// Roles of tokens in config files, and the key of each in GGUF where it has one.
const ROLES: [(&str, Option<&str>); 9] = [
    ("bos", Some("bos")),
    ("eos", Some("eos")),
    ("unk", Some("unknown")),
    // So spelled in GGUF.
    ("sep", Some("seperator")),
    ("pad", Some("padding")),
    ("cls", None),
    ("mask", Some("mask")),
    ("eot", Some("eot")),
    ("eom", Some("eom")),
];

/// The special tokens found, by role.
#[derive(Default)]
pub(super) struct Special {
    n_vocab: Option<usize>,
    ids: BTreeMap<&'static str, u32>,
    add: BTreeMap<&'static str, bool>,
    /// Merges of byte-level BPE, which llama.cpp does not open without them; the list can be empty.
    merges: Option<Vec<Vec<u8>>>,
    lowercase: Option<bool>,
    strip_accents: Option<bool>,
    template: Option<Value>,
}

/// The text of a token that is given as a string or as an object with `content`.
pub(super) fn content(entry: &Value) -> Option<String> {
    entry.as_str().or_else(|| entry.get("content")?.as_str()).map(str::to_owned)
}

fn id(step: &Value) -> Option<&str> {
    step.get("SpecialToken")?.get("id")?.as_str()
}

impl Special {
    /// Reads what the files of a folder say. With `n_vocab` the tokens are pieces: ids beyond it are left out, and merges.
    pub(super) fn read(files: &Files, n_vocab: Option<usize>) -> Result<Special> {
        let mut out = Special { n_vocab, template: template(files)?, ..Special::default() };
        // Where there is none, what the post-processor shows is not kept.
        let config = roles_of(files)?;
        let (has_config, mut config) = (config.is_some(), config.map_or_else(Map::new, |c| c.map));
        let mut more_roles: Vec<&'static str> = Vec::new();
        if let Some(file) = &files.tokenizer {
            if n_vocab.is_none() {
                out.merges = Some(file.merges.pairs().map(merge).collect());
            }
            if let Some(normalizer) = file.object.get("normalizer") {
                out.normalizer(normalizer);
            }
            if let Some(post) = file.object.get("post_processor") {
                out.post_processor(post, &mut config, &mut more_roles);
            }
        }
        if has_config {
            out.roles(files, &config, &more_roles)?;
        }
        out.ids_of_config(files)?;
        Ok(out)
    }

    fn roles(&mut self, files: &Files, config: &Map<String, Value>, more: &[&'static str]) -> Result<()> {
        let added = files.added()?;
        let vocab = files.tokenizer.as_ref().and_then(|file| file.vocab.as_deref()).unwrap_or_default();
        for (role, _) in ROLES.iter().filter(|(r, _)| !matches!(*r, "eot" | "eom") || more.contains(r)) {
            if let Some(Value::Bool(add)) = config.get(&format!("add_{role}_token")) {
                self.add.entry(role).or_insert(*add);
            }
            let Some(text) = config.get(&format!("{role}_token")).and_then(content) else { continue };
            let of_vocab = || vocab.iter().find(|(token, _)| *token == text).map(|(_, id)| *id);
            if let Some(id) = added.iter().find(|a| a.text == text).map(|a| a.id).or_else(of_vocab) {
                self.set(role, id);
            }
        }
        Ok(())
    }

    /// Ids that config.json gives, where nothing else has.
    fn ids_of_config(&mut self, files: &Files) -> Result<()> {
        let Some(config) = Object::read(&files.folder.join("config.json"), SMALL)? else { return Ok(()) };
        for (role, _) in &ROLES[..7] {
            let key = format!("{role}_token_id");
            let inside = || config.get("text_config").and_then(|t| t.get(&key));
            if let Some(id) = config.get(&key).or_else(inside).and_then(Value::as_u64) {
                self.set(role, id);
            }
        }
        Ok(())
    }

    fn set(&mut self, role: &'static str, id: u64) {
        let Some(id) = u32::try_from(id).ok().filter(|&id| self.n_vocab.is_none_or(|n| (id as usize) < n))
        else {
            return;
        };
        self.ids.entry(role).or_insert(id);
    }

    fn normalizer(&mut self, normalizer: &Value) {
        let flag = |key: &str| normalizer.get(key).and_then(Value::as_bool);
        match normalizer.get("type").and_then(Value::as_str) {
            Some("Lowercase") => self.lowercase = Some(true),
            Some("StripAccents") => self.strip_accents = Some(true),
            Some("BertNormalizer") => {
                self.lowercase = flag("lowercase").or(self.lowercase);
                self.strip_accents = flag("strip_accents").or(self.strip_accents);
            }
            Some("Sequence") => {
                let inside = normalizer.get("normalizers").and_then(Value::as_array);
                inside.into_iter().flatten().for_each(|n| self.normalizer(n));
            }
            _ => {}
        }
    }

    /// Which special tokens the tokenizer puts around a text. `config` is tokenizer_config.json, completed
    /// where the tokenizer shows what it does not say.
    fn post_processor(
        &mut self,
        post: &Value,
        config: &mut Map<String, Value>,
        more_roles: &mut Vec<&'static str>,
    ) {
        let of = |role: &str| content(config.get(&format!("{role}_token"))?).filter(|t| !t.is_empty());
        let [mut bos, mut eos, mut cls, sep] = ["bos", "eos", "cls", "sep"].map(of);
        let mut put = |role: &str, text: &Option<String>| {
            if let Some(text) = text {
                config.insert(format!("{role}_token"), text.as_str().into());
            }
        };
        for (role, text, other) in [("bos", &mut bos, &cls), ("eos", &mut eos, &sep)] {
            if text.is_none() {
                text.clone_from(other);
                put(role, text);
            }
        }
        let several = post.get("processors").and_then(Value::as_array);
        for step in several.map_or(std::slice::from_ref(post), Vec::as_slice) {
            match step.get("type").and_then(Value::as_str) {
                Some("ByteLevel") => {
                    self.add.entry("bos").or_insert(false);
                    self.add.entry("eos").or_insert(false);
                }
                Some("RobertaProcessing") => {
                    self.add.extend([("bos", true), ("eos", true), ("sep", true)]);
                }
                Some("TemplateProcessing") => {
                    let list =
                        |key: &str| step.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                    let (first, last) = match list("single") {
                        [start, .., end] => (id(start), id(end)),
                        _ => (None, None),
                    };
                    if let Some(first) = first {
                        let is = |role: &Option<String>| role.as_deref() == Some(first);
                        if !is(&bos) && !is(&cls) {
                            for (role, text) in [("bos", &mut bos), ("cls", &mut cls)] {
                                if text.is_none() {
                                    *text = Some(first.to_owned());
                                    put(role, text);
                                }
                            }
                        }
                        self.add.insert("bos", is(&bos) || is(&cls));
                    }
                    if let Some(last) = last {
                        if eos.as_deref() != Some(last) {
                            let free = ["eot", "eom"].into_iter().find(|role| !more_roles.contains(role));
                            if let Some(role) = free {
                                more_roles.push(role);
                                put(role, &eos);
                            }
                            eos = Some(last.to_owned());
                            put("eos", &eos);
                        }
                        self.add.insert("eos", true);
                    }
                    if let Some(add) = separator(list("pair"), first, last, &sep, &eos) {
                        self.add.insert("sep", add);
                        if add && sep.is_none() {
                            put("sep", &eos);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Sets the keys.
    pub(super) fn write(self, keys: &mut Keys) {
        if let Some(merges) = self.merges {
            keys.plain("tokenizer.ggml.merges", Gguf::Array(Array::String(merges)));
        }
        for (role, name) in ROLES {
            if let (Some(name), Some(&id)) = (name, self.ids.get(role)) {
                keys.plain(&format!("tokenizer.ggml.{name}_token_id"), id);
            }
            if let (true, Some(&add)) = (matches!(role, "bos" | "eos" | "sep"), self.add.get(role)) {
                keys.plain(&format!("tokenizer.ggml.add_{role}_token"), add);
            }
        }
        for (key, flag) in [("lowercase", self.lowercase), ("strip_accents", self.strip_accents)] {
            flag.into_iter().for_each(|flag| keys.plain(&format!("tokenizer.ggml.normalizer.{key}"), flag));
        }
        match self.template {
            Some(Value::String(template)) => keys.plain("tokenizer.chat_template", template.as_str()),
            Some(Value::Array(several)) => templates(&several, keys),
            _ => {}
        }
    }
}

/// Returns true if a pair of texts gets a separator: `A [sep] [eos] B`, less the tokens before and after one text.
fn separator(
    pair: &[Value],
    first: Option<&str>,
    last: Option<&str>,
    sep: &Option<String>,
    eos: &Option<String>,
) -> Option<bool> {
    let start = usize::from(first.is_some() && pair.first().and_then(id) == first);
    let stop = usize::from(last.is_some() && pair.last().and_then(id) == last);
    let inner = pair.get(start..pair.len().checked_sub(stop)?)?;
    let is = |step: Option<&Value>, name: &str| {
        step.and_then(|s| s.get("Sequence")?.get("id")?.as_str()) == Some(name)
    };
    if !is(inner.first(), "A") || !is(inner.last(), "B") {
        return None;
    }
    let between = inner.get(1..inner.len() - 1).filter(|b| !b.is_empty())?;
    let known =
        |step: &Value| id(step).is_some_and(|t| [sep, eos].iter().any(|role| role.as_deref() == Some(t)));
    let one = known(&between[0]) && last.is_none();
    Some(one || between.len() == 2 && known(&between[1]))
}

/// A merge as GGUF files have it: two parts with a space between them, whose own spaces are written as byte-level BPE
/// writes them.
fn merge((first, second): (&str, &str)) -> Vec<u8> {
    format!("{} {}", first.replace(' ', "Ġ"), second.replace(' ', "Ġ")).into_bytes()
}

/// tokenizer_config.json, with the roles that special_tokens_map.json gives in its place: transformers reads that where the
/// other has no `added_tokens_decoder`, and then it has the last word.
fn roles_of(files: &Files) -> Result<Option<Object>> {
    let config = files.config.clone();
    if config.as_ref().is_some_and(|c| c.map.contains_key("added_tokens_decoder")) {
        return Ok(config);
    }
    let Some(map) = Object::read(&files.folder.join("special_tokens_map.json"), SMALL)? else {
        return Ok(config);
    };
    let mut out = config.unwrap_or_else(|| map.inside(Map::new()));
    out.map.extend(map.map);
    Ok(Some(out))
}

/// Most templates of a folder, one in each file.
const MAX_TEMPLATES: usize = 64;

/// The chat template, in the order of transformers: files of templates, then tokenizer_config.json (a text, a list of names
/// and texts, or an object of them), and last the file that processors of images and texts have.
fn template(files: &Files) -> Result<Option<Value>> {
    let mut several = additional(files)?;
    let default = text(&files.folder.join("chat_template.jinja"))?;
    if !several.is_empty() {
        several.extend(default.map(|text| serde_json::json!({"name": "default", "template": text})));
        return Ok(Some(several.into()));
    }
    if let Some(default) = default {
        return Ok(Some(default.into()));
    }
    let json = Object::read(&files.folder.join("chat_template.json"), SMALL)?;
    for config in [&files.config, &json].into_iter().flatten() {
        let Some(found) = config.get("chat_template") else { continue };
        let wrong = || {
            let what = format!("found {}, expected a text, or names and texts", crate::json::kind(found));
            config.error("chat_template", what)
        };
        return match found {
            Value::String(_) => Ok(Some(found.clone())),
            Value::Array(list) if list.iter().all(is_named) => Ok(Some(found.clone())),
            Value::Object(map) if map.values().all(Value::is_string) => {
                let named =
                    map.iter().map(|(name, text)| serde_json::json!({"name": name, "template": text}));
                Ok(Some(named.collect()))
            }
            _ => Err(wrong()),
        };
    }
    Ok(None)
}

fn is_named(entry: &Value) -> bool {
    ["name", "template"].iter().all(|key| entry.get(key).is_some_and(Value::is_string))
}

/// The templates in the folder for more of them, by their names.
fn additional(files: &Files) -> Result<Vec<Value>> {
    let folder = files.folder.join(crate::needed::TEMPLATES);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let io = |e| crate::Error::from(::files::Error::new(&folder, e));
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".jinja") {
            names.push(name.to_owned());
        }
        if names.len() > MAX_TEMPLATES {
            let what = format!("found more than {MAX_TEMPLATES} templates, expected fewer");
            return Err(crate::Error::of(&folder, what));
        }
    }
    names.sort();
    let read = |name: &String| {
        let path = folder.join(format!("{name}.jinja"));
        let found = text(&path)?.ok_or_else(|| crate::Error::of(&path, "is a link to nothing"))?;
        Ok(serde_json::json!({"name": name, "template": found}))
    };
    names.iter().map(read).collect()
}

/// Templates with names: `default` is the template, and the others are listed with it.
fn templates(several: &[Value], keys: &mut Keys) {
    let mut names: Vec<Vec<u8>> = Vec::new();
    for entry in several {
        let part = |key: &str| entry.get(key).and_then(Value::as_str);
        let (Some(name), Some(template)) = (part("name"), part("template")) else { continue };
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        match name.as_str() {
            "" => {}
            "default" => keys.plain("tokenizer.chat_template", template),
            name => {
                keys.plain(&format!("tokenizer.chat_template.{}", shown(name)), template);
                names.push(name.as_bytes().to_vec());
            }
        }
    }
    if !names.is_empty() {
        keys.plain("tokenizer.chat_templates", Gguf::Array(Array::String(names)));
    }
}
