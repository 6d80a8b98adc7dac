//! `ropewalk inspect`: shows the metadata and tensors of a GGUF file of any architecture.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

use clap::{Arg, Args as _, FromArgMatches};
use ropewalk::adapter::{AdapterMeta, AdapterReader, Ancestor};
use ropewalk::gguf::{File, FromValue, TensorInfo, Value};
use ropewalk::hparams::Hparams;
use ropewalk::rope::Spec;
use ropewalk_core::text::bytes;
use serde_json::{json, Map, Value as Json};

use super::map::{self, MapArgs};
use super::output::{self, count, OutputArgs};
use super::{kernels, models, Command};
use ropewalk_core::terminal::inline;

/// Elements of an array and characters of a text that are shown without `--all`.
const SHORT_ARRAY: usize = 6;
const SHORT_TEXT: usize = 100;

pub(crate) const COMMAND: Command = Command {
    name: "inspect",
    about: "Show metadata, tensors, sizes, and declared RoPE of a GGUF file, or the attention of a head",
    details: "Reads any valid GGUF file, whatever its architecture, and checks its complete structure. Long arrays \
              and texts are truncated unless --all is given. --map runs the model on a text and draws the attention \
              of one head, under one setting or two.",
    example: "inspect smollm2\n\
              inspect smollm2 --map layer=18,head=8 -f essays.txt --ctx 4096 --plot map.svg",
    args: |command| {
        let of_map = |arg: Arg| match arg.get_id().as_str() {
            "input" | "all" | "kernels" | "map" | "json" | "quiet" => arg,
            _ => arg.requires("map"),
        };
        Args::augment_args(command).mut_args(of_map)
    },
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// GGUF file, or the name of a downloaded model
    ///
    /// For a split model, name the first part; it shows all of the model
    #[arg(value_name = "FILE")]
    input: String,
    /// Show arrays and texts in full
    #[arg(long, conflicts_with = "map")]
    all: bool,
    /// Show which kernels multiply the weights on this machine, instead of metadata and tensors
    #[arg(long, conflicts_with = "map")]
    kernels: bool,
    #[command(flatten)]
    map: MapArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    if args.map.asked() {
        return map::run(&args.input, &args.map, &args.out);
    }
    let path: PathBuf = models::find(&args.input)?;
    let file = File::open(&path)?;
    if args.kernels {
        return match args.out.json {
            true => output::print_json(&kernels::json(file.tensors())?),
            false => output::print(&kernels::text(file.tensors())?),
        };
    }
    // A file that is no language model has no rope, but still has metadata and tensors to show.
    let hp = Hparams::from_gguf(&file).map_err(|e| e.to_string());
    let unread = hp.as_ref().ok().and_then(Hparams::unread_note);
    let rope = hp.and_then(|hp| Spec::declared(&hp).map(|s| s.to_string()).map_err(|e| e.to_string()));
    let is_adapter = file.get_opt::<String>("general.type").is_ok_and(|t| t.as_deref() == Some("adapter"));
    let adapter = is_adapter.then(|| AdapterReader::open(&path).map_err(|e| e.to_string()));
    // A broken record of training is shown with the other metadata.
    let trained = AdapterMeta::of_model(&file).ok().filter(|meta| !is_adapter && meta.steps.is_some());
    if args.out.json {
        let mut json = as_json(&file, &rope, args.all);
        if let Some(adapter) = &adapter {
            json["adapter"] = adapter_json(adapter);
        }
        if let Some(meta) = &trained {
            json["trained"] = trained_json(meta);
        }
        output::print_json(&json)
    } else {
        let about = match &adapter {
            Some(adapter) => format!("adapter: {}\n", adapter_text(adapter)),
            None => {
                let trained = trained.as_ref().map_or(String::new(), |meta| trained_text(meta) + "\n");
                let unread = unread.map_or(String::new(), |unread| format!("note: {unread}\n"));
                rope_text(&rope) + &unread + &trained
            }
        };
        output::print(&as_text(&file, &about, args.all))
    }
}

fn rope_text(rope: &Result<String, String>) -> String {
    match rope {
        Ok(spec) => format!("declared rope: {spec}\n"),
        Err(why) => format!("declared rope: not known ({})\n", inline(why)),
    }
}

/// The different ranks of the adapter's pairs.
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
    let _ = write!(s, ", alpha {}{}", alpha(o), if k.rslora { " (rsLoRA)" } else { "" });
    if !o.modules_to_save().is_empty() {
        let _ = write!(s, ", {} replaced tensors (modules_to_save)", o.modules_to_save().len());
    }
    if o.keeps_output() {
        s.push_str(", a tied output keeps the model's own embedding (keeps_output)");
    }
    if let Some(net) = o.clex() {
        let _ = write!(s, ", a network of CLEX of {} pairs, {} wide", net.n_pairs, net.n_hidden);
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
        *row = (row.0 + 1, row.1 + t.n_elements() as u64, row.2 + t.n_bytes as u64);
    }
    by_type
}

/// The report for people. `about` goes after its first line.
fn as_text(file: &File, about: &str, all: bool) -> String {
    let mut s = String::new();
    let (tensors, metadata) = (file.tensors(), file.metadata());
    let n_elements: u64 = tensors.iter().map(|t| t.n_elements() as u64).sum();
    let n_bytes: u64 = tensors.iter().map(|t| t.n_bytes as u64).sum();
    let size: u64 = file.shards().iter().map(|m| m.len() as u64).sum();
    let parts = file.shards().len();
    let _ = writeln!(
        s,
        "{}: GGUF version {}, alignment {}, {}{}",
        inline(&file.path().display().to_string()),
        file.version(),
        file.alignment(),
        bytes(size),
        if parts > 1 { format!(" in {parts} parts") } else { String::new() },
    );
    s.push_str(about);
    let _ = writeln!(s, "\nmetadata, {} keys", metadata.len());
    let width = metadata.iter().map(|(k, _)| k.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in metadata {
        let _ = writeln!(s, "  {:width$}  {:8}  {}", inline(key), type_name(value), show(value, all));
    }
    let _ = writeln!(s, "\ntensors, {}", tensors.len());
    let width = tensors.iter().map(|t| t.name.chars().count()).max().unwrap_or(0).min(48);
    for t in tensors {
        let shape = t.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let row = format!("[{shape}]");
        let _ = writeln!(
            s,
            "  {:width$}  {:7}  {row:22}  {}",
            inline(&t.name),
            t.dtype.name(),
            bytes(t.n_bytes as u64)
        );
    }
    let _ = writeln!(s, "\ntotals");
    for (name, (n, elements, size)) in totals(tensors) {
        let _ = writeln!(s, "  {name:8}  {n:5} tensors  {:>16} elements  {}", count(elements), bytes(size));
    }
    let bits = if n_elements == 0 { 0.0 } else { n_bytes as f64 * 8.0 / n_elements as f64 };
    let _ = writeln!(
        s,
        "  {:8}  {:5} tensors  {:>16} elements  {} ({bits:.2} bits each)",
        "all",
        tensors.len(),
        count(n_elements),
        bytes(n_bytes)
    );
    s
}

fn as_json(file: &File, rope: &Result<String, String>, all: bool) -> Json {
    let metadata: Map<String, Json> =
        file.metadata().iter().map(|(k, v)| (k.clone(), value_json(v, limit(all)))).collect();
    let tensors: Vec<Json> = file
        .tensors()
        .iter()
        .map(|t| {
            json!({ "name": t.name, "type": t.dtype.name(), "shape": t.shape, "shard": t.shard,
                    "offset": t.offset, "bytes": t.n_bytes })
        })
        .collect();
    let totals: Map<String, Json> = totals(file.tensors())
        .into_iter()
        .map(|(name, (n, elements, size))| {
            (name.to_owned(), json!({ "tensors": n, "elements": elements, "bytes": size }))
        })
        .collect();
    json!({
        "file": file.path(),
        "version": file.version(),
        "alignment": file.alignment(),
        "bytes": file.shards().iter().map(|m| m.len() as u64).sum::<u64>(),
        "parts": file.shards().len(),
        "rope": rope.as_ref().ok(),
        "rope_error": rope.as_ref().err(),
        "n_elements": file.tensors().iter().map(|t| t.n_elements() as u64).sum::<u64>(),
        "metadata": metadata,
        "tensors": tensors,
        "totals": totals,
    })
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

/// A value in one line for people.
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
