//! Bad input: damaged and hostile models, texts and arguments. Refused in one line, or computed with; nothing dies, nothing hangs.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/limited.rs"]
mod limited;

mod commands;
mod damage;
#[cfg(unix)]
mod paths;
mod sparse;
mod types;
mod values;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use convert::random::{write, Shape};
use gguf::{File, Value, Writer};
use ropewalk::model::{Model, ModelParams, Result};
use ropewalk::session::{GenerateParams, Session};
use ropewalk::DType;

/// No file of a few dozen kilobytes keeps the runtime busy for longer, on a loaded machine.
const LONG: Duration = Duration::from_secs(20);

/// One layer, little of everything.
fn small_shape() -> Shape {
    Shape {
        n_layer: 1,
        n_embd: 64,
        n_head: 2,
        n_head_kv: 1,
        n_embd_head: 32,
        n_ff: 96,
        n_vocab: 260,
        ..Shape::named("llama-tiny").unwrap()
    }
}

/// A valid model to damage.
fn small_model() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = common::scratch("hostile-small.gguf");
        write(&small_shape(), DType::Q8_0, 3, &path).unwrap();
        path
    })
}

fn text(s: &str) -> Value {
    Value::String(s.as_bytes().to_vec())
}

/// The small model with other metadata; tensors for which `replace` gives something are of that type, shape and bytes.
fn rewritten(
    name: &str,
    edit: impl FnOnce(&mut Writer<'_>),
    replace: impl Fn(&str) -> Option<Option<(DType, Vec<u64>, Vec<u8>)>>,
) -> PathBuf {
    let file = File::open(small_model()).unwrap();
    let mut writer = Writer::with_metadata_of(&file);
    edit(&mut writer);
    for t in file.tensors() {
        match replace(&t.name) {
            None => {
                writer.copy_tensor(&file, t).unwrap();
            }
            Some(None) => {}
            Some(Some((dtype, shape, bytes))) => {
                writer.tensor_bytes(&t.name, dtype, &shape, bytes).unwrap();
            }
        }
    }
    let path = common::scratch(&format!("hostile-{name}.gguf"));
    writer.write(&path).unwrap();
    path
}

/// Everything a model is for, briefly: load, two kinds of sessions, a prompt, a few tokens.
fn use_model(path: &Path) -> Result<()> {
    let model = Model::load(path, &ModelParams::cpu())?;
    for portable in [false, true] {
        let params = common::params(40).portable(portable).n_ubatch(16);
        let mut session = Session::new(&model, &params)?;
        let n_vocab = model.hparams().n_vocab;
        session.append(&common::some_tokens(20, n_vocab))?;
        let prompt = common::some_tokens(5, n_vocab);
        for piece in session.generate(&prompt, &GenerateParams::greedy(3))? {
            piece?;
        }
    }
    Ok(())
}

/// [`use_model`], watched: it ends soon, and an error is one line. Gives the error's text.
fn survives(path: &Path) -> Option<String> {
    let start = Instant::now();
    let error = use_model(path).err().map(|e| e.to_string());
    assert!(start.elapsed() < LONG, "{}: took {:?}", path.display(), start.elapsed());
    if let Some(e) = &error {
        assert!(!e.contains('\n') && e.len() < 2000, "{e:?}");
    }
    error
}

/// The small model with one key set.
fn with_key(name: &str, key: &str, value: Value) -> PathBuf {
    let edit = |w: &mut Writer<'_>| {
        w.set(key, value);
    };
    rewritten(name, edit, |_| None)
}
