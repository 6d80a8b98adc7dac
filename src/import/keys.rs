//! Metadata under way.

use gguf::Value;

/// Keys and values of a file to be.
pub(crate) struct Keys {
    pub(crate) arch: &'static str,
    pub(crate) list: Vec<(String, Value)>,
    /// Notes for the user about the keys, in complete sentences.
    pub(crate) notes: Vec<String>,
}

impl Keys {
    pub(crate) fn new(arch: &'static str) -> Keys {
        Keys { arch, list: Vec::new(), notes: Vec::new() }
    }
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.list.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }
    /// Sets a key of the architecture: `rope.freq_base` is `llama.rope.freq_base`.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.plain(&format!("{}.{key}", self.arch), value);
    }
    /// The same for a number with a fraction, which files have as F32.
    pub(crate) fn float(&mut self, key: &str, value: f64) {
        self.set(key, value as f32);
    }
    /// Sets a key by its whole name.
    pub(crate) fn plain(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.list.iter_mut().find(|(k, _)| k == key) {
            Some(pair) => pair.1 = value,
            None => self.list.push((key.to_owned(), value)),
        }
    }
}
