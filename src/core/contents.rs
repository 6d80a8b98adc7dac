//! The contents of a GGUF file as text and as JSON: metadata, tensors, the declared rope, and how it was trained.

use std::collections::{BTreeMap, BTreeSet};

use gguf::{File, FromValue, TensorInfo, Value};
use serde_json::{json, Map, Value as Json};

use crate::adapter::{AdapterMeta, AdapterReader, Ancestor};
use crate::hparams::Hparams;
use crate::rope::Spec;
use crate::terminal::inline;
use crate::text::{bytes, count};

/// Elements of an array and characters of a text that are shown, unless all are.
const SHORT_ARRAY: usize = 6;
const SHORT_TEXT: usize = 100;

/// The contents of a file of any architecture.
#[derive(Debug)]
pub struct Contents<'f> {
    file: &'f File,
    all: bool,
    rope: Result<String, String>,
    unread: Option<String>,
    adapter: Option<Result<AdapterReader, String>>,
    trained: Option<AdapterMeta>,
}

impl<'f> Contents<'f> {
    /// Reads what the file says of itself. Long arrays and texts are cut unless `all`.
    pub fn new(file: &'f File, all: bool) -> Contents<'f> {
        // A file that is no language model has no rope, but still has metadata and tensors to show.
        let hp = Hparams::from_gguf(file).map_err(|e| e.to_string());
        let unread = hp.as_ref().ok().and_then(Hparams::unread_note);
        let rope = hp.and_then(|hp| Spec::declared(&hp).map(|s| s.to_string()).map_err(|e| e.to_string()));
        let kind = file.get_opt::<String>("general.type");
        let is_adapter = kind.is_ok_and(|kind| kind.as_deref() == Some("adapter"));
        let adapter = is_adapter.then(|| AdapterReader::open(file.path()).map_err(|e| e.to_string()));
        // A broken record of training is shown with the other metadata.
        let trained = AdapterMeta::of_model(file).ok().filter(|meta| !is_adapter && meta.steps.is_some());
        Contents { file, all, rope, unread, adapter, trained }
    }

    /// The contents for people.
    pub fn text(&self) -> String {
        let (file, tensors) = (self.file, self.file.tensors());
        let (_, n_elements, n_bytes) = totals(tensors).into_values().fold((0, 0, 0), sum);
        let parts = file.shards().len();
        let mut s = format!(
            "{}: GGUF version {}, alignment {}, {}{}\n",
            inline(&file.path().display().to_string()),
            file.version(),
            file.alignment(),
            bytes(self.size()),
            if parts > 1 { format!(" in {parts} parts") } else { String::new() },
        );
        s += &match &self.adapter {
            Some(adapter) => format!("adapter: {}\n", adapter_text(adapter)),
            None => {
                let trained = self.trained.as_ref().map_or(String::new(), |meta| trained_text(meta) + "\n");
                let unread = self.unread.as_ref().map_or(String::new(), |unread| format!("note: {unread}\n"));
                let rope = self.rope.clone().unwrap_or_else(|why| format!("not known ({})", inline(&why)));
                format!("declared rope: {rope}\n{unread}{trained}")
            }
        };
        s += &format!("\nmetadata, {} keys\n", file.metadata().len());
        let width = file.metadata().iter().map(|(k, _)| k.chars().count()).max().unwrap_or(0).min(48);
        for (key, value) in file.metadata() {
            let value_text = show(value, self.all);
            s += &format!("  {:width$}  {:8}  {value_text}\n", inline(key), type_name(value));
        }
        s += &format!("\ntensors, {}\n", tensors.len());
        let width = tensors.iter().map(|t| t.name.chars().count()).max().unwrap_or(0).min(48);
        for t in tensors {
            let shape = t.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            let (shape, size) = (format!("[{shape}]"), bytes(t.n_bytes as u64));
            s += &format!("  {:width$}  {:7}  {shape:22}  {size}\n", inline(&t.name), t.dtype.name());
        }
        s += "\ntotals\n";
        let line = |name: &str, n: u64, elements: u64, size: u64| {
            format!("  {name:8}  {n:5} tensors  {:>16} elements  {}", count(elements), bytes(size))
        };
        for (name, (n, elements, size)) in totals(tensors) {
            s += &(line(name, n, elements, size) + "\n");
        }
        let bits = if n_elements == 0 { 0.0 } else { n_bytes as f64 * 8.0 / n_elements as f64 };
        s + &line("all", tensors.len() as u64, n_elements, n_bytes) + &format!(" ({bits:.2} bits each)\n")
    }

    /// The contents for programs.
    pub fn json(&self) -> Json {
        let file = self.file;
        let metadata: Map<String, Json> =
            file.metadata().iter().map(|(k, v)| (k.clone(), value_json(v, limit(self.all)))).collect();
        let tensor = |t: &TensorInfo| {
            json!({ "name": t.name, "type": t.dtype.name(), "shape": t.shape, "shard": t.shard,
                    "offset": t.offset, "bytes": t.n_bytes })
        };
        let total = |(name, (n, elements, size)): (&'static str, (u64, u64, u64))| {
            (name.to_owned(), json!({ "tensors": n, "elements": elements, "bytes": size }))
        };
        let mut json = json!({
            "file": file.path(),
            "version": file.version(),
            "alignment": file.alignment(),
            "bytes": self.size(),
            "parts": file.shards().len(),
            "rope": self.rope.as_ref().ok(),
            "rope_error": self.rope.as_ref().err(),
            "n_elements": file.tensors().iter().map(|t| t.n_elements() as u64).sum::<u64>(),
            "metadata": metadata,
            "tensors": file.tensors().iter().map(tensor).collect::<Vec<_>>(),
            "totals": totals(file.tensors()).into_iter().map(total).collect::<Map<_, _>>(),
        });
        if let Some(adapter) = &self.adapter {
            json["adapter"] = adapter_json(adapter);
        }
        if let Some(meta) = &self.trained {
            json["trained"] = trained_json(meta);
        }
        json
    }

    /// Bytes of all parts.
    fn size(&self) -> u64 {
        self.file.shards().iter().map(|part| part.len() as u64).sum()
    }
}

fn sum(a: (u64, u64, u64), b: (u64, u64, u64)) -> (u64, u64, u64) {
    (a.0 + b.0, a.1 + b.1, a.2 + b.2)
}

fn ranks(adapter: &AdapterReader) -> BTreeSet<usize> {
    adapter.pairs().iter().map(|p| p.rank).collect()
}

/// Alpha as it was given for training. For rsLoRA the file has it times the square root of the rank.
fn alpha(adapter: &AdapterReader) -> f32 {
    match ranks(adapter).first() {
        Some(&rank) if adapter.meta().rslora => adapter.alpha() / (rank as f32).sqrt(),
        _ => adapter.alpha(),
    }
}

fn adapter_json(adapter: &Result<AdapterReader, String>) -> Json {
    let o = match adapter {
        Ok(o) => o,
        Err(why) => return json!({ "error": why }),
    };
    let k = o.meta();
    let modules: Vec<&String> = o.modules_to_save().iter().map(|m| &m.name).collect();
    let own = [
        ("architecture", json!(o.arch())),
        ("ranks", json!(ranks(o))),
        ("alpha", json!(alpha(o))),
        ("rslora", json!(k.rslora)),
        ("pairs", json!(o.pairs().len())),
        ("modules_to_save", json!(modules)),
        // The same list under its older name, which stays.
        ("whole", json!(modules)),
        ("keeps_output", json!(o.keeps_output())),
        ("clex", json!(o.clex().map(|net| json!({ "pairs": net.n_pairs, "hidden": net.n_hidden })))),
    ];
    let mut json = trained_json(k);
    own.into_iter().for_each(|(key, value)| json[key] = value);
    json
}

/// How an adapter was trained, or all parameters of a model.
fn trained_json(meta: &AdapterMeta) -> Json {
    json!({
        "rope": meta.rope.as_ref().map(ToString::to_string), "n_ctx": meta.n_ctx, "attention": meta.attention,
        "steps": meta.steps, "tokens": meta.tokens, "data": meta.data, "base": meta.base,
        "data_end": meta.data_end.as_ref().map(|end| end.token), "lineage": meta.ancestors,
    })
}

fn adapter_text(adapter: &Result<AdapterReader, String>) -> String {
    let o = match adapter {
        Ok(o) => o,
        Err(why) => return format!("cannot be used ({})", inline(why)),
    };
    let k = o.meta();
    let ranks = ranks(o).iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let mut s = format!("LoRA for {}, {} pairs of rank {ranks}", inline(o.arch()), o.pairs().len());
    s += &format!(", alpha {}{}", alpha(o), if k.rslora { " (rsLoRA)" } else { "" });
    if !o.modules_to_save().is_empty() {
        s += &format!(", {} replaced tensors (modules_to_save)", o.modules_to_save().len());
    }
    if o.keeps_output() {
        s.push_str(", a tied output keeps the model's own embedding (keeps_output)");
    }
    if let Some(net) = o.clex() {
        s += &format!(", a network of CLEX of {} pairs, {} wide", net.n_pairs, net.n_hidden);
    }
    s + "\n" + &trained_text(k)
}

/// The runs of training, the last one first: a line for each.
fn trained_text(meta: &AdapterMeta) -> String {
    let line = |(i, run): (usize, &Ancestor)| {
        let parts = [
            Some(run.rope.as_deref().map_or("not said".into(), |rope| inline(rope).into_owned())),
            run.n_ctx.map(|n| format!("context {}", count(n as u64))),
            run.attention.as_ref().map(|how| format!("attention {}", inline(how))),
            run.steps.map(|n| format!("{} steps", count(n))),
            run.tokens.map(|n| format!("{} tokens", count(n))),
        ];
        let when = if i == 0 { "trained under" } else { "before that" };
        format!("{when}: {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    };
    meta.lineage(String::new()).iter().rev().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// Numbers of tensors, elements and bytes of each element type.
fn totals(tensors: &[TensorInfo]) -> BTreeMap<&'static str, (u64, u64, u64)> {
    let mut by_type = BTreeMap::new();
    for t in tensors {
        let row: &mut (u64, u64, u64) = by_type.entry(t.dtype.name()).or_default();
        *row = sum(*row, (1, t.n_elements() as u64, t.n_bytes as u64));
    }
    by_type
}

fn type_name(value: &Value) -> String {
    match value {
        Value::Array(a) => format!("{}[{}]", a.element_name(), a.len()),
        one => one.type_name().to_owned(),
    }
}

/// Most elements of an array that are shown.
fn limit(all: bool) -> usize {
    if all {
        usize::MAX
    } else {
        SHORT_ARRAY
    }
}

/// A value, with at most `limit` elements of an array; for one that was cut, an object with its type, length, and first
/// elements. NaN and infinities become text, because JSON has none.
fn value_json(value: &Value, limit: usize) -> Json {
    let float = |x: f64| if x.is_finite() { json!(x) } else { json!(x.to_string()) };
    match value {
        Value::F32(v) => float(f64::from(*v)),
        Value::F64(v) => float(*v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(String::from_utf8_lossy(v)),
        Value::U64(v) => json!(v),
        Value::Array(a) => {
            let shown: Json = a.first(limit).iter().map(|v| value_json(v, SHORT_ARRAY)).collect();
            match a.len() > limit {
                true => json!({ "type": a.element_name(), "length": a.len(), "first": shown }),
                false => shown,
            }
        }
        integer => json!(i64::from_value(integer)),
    }
}

fn show(value: &Value, all: bool) -> String {
    match value {
        Value::F32(v) => v.to_string(),
        Value::String(v) => cut(&String::from_utf8_lossy(v), all),
        Value::Array(a) => {
            let first = a.first(limit(all));
            let items = first.iter().map(|v| cut(&plain(&value_json(v, SHORT_ARRAY)), all));
            let more = (a.len() > first.len()).then(|| "...".to_owned());
            format!("[{}]", items.chain(more).collect::<Vec<_>>().join(", "))
        }
        other => plain(&value_json(other, SHORT_ARRAY)),
    }
}

fn plain(v: &Json) -> String {
    v.as_str().map_or_else(|| v.to_string(), str::to_owned)
}

fn cut(text: &str, all: bool) -> String {
    let text = inline(text);
    match text.char_indices().nth(SHORT_TEXT) {
        Some((at, _)) if !all => format!("{}...", &text[..at]),
        _ => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_arrays_are_cut_and_say_so() {
        let a = Value::from((0..100).collect::<Vec<u32>>());
        assert_eq!(type_name(&a), "u32[100]");
        assert_eq!(show(&a, false), "[0, 1, 2, 3, 4, 5, ...]");
        assert_eq!(value_json(&a, limit(false))["length"], 100);
        assert_eq!(value_json(&a, limit(true)).as_array().unwrap().len(), 100);
    }

    #[test]
    fn nothing_in_a_file_reaches_the_terminal_raw() {
        let v = Value::String(b"a\x1b[31m\n\xff".to_vec());
        assert_eq!(show(&v, false), "a\\u{1b}[31m\\n\u{fffd}");
        assert_eq!(value_json(&Value::F32(f32::NAN), SHORT_ARRAY), json!("NaN"));
    }
}
