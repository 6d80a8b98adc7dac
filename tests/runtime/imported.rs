//! Logits and greedy text against those of transformers: tiny checkpoints that it made, with the logits of their last
//! token, imported here (`tests/reference/checkpoints.py` and `greedy.py` record them).

use convert::{convert, Options, Tokenizing};
use ropewalk::control::Control;
use ropewalk::session::{Batch, Session};
use ropewalk::{DType, Token};

use crate::checkpoints::{recorded, Recorded};
use crate::common::*;

/// A checkpoint imported in F32.
fn imported(recorded: &Recorded) -> ropewalk::model::Model {
    let (name, dir) = (&recorded.name, tempfile::tempdir().unwrap());
    // libllama's tokenizer takes the name of a model, which the folder's becomes, for more than it is.
    let folder = dir.path().join("checkpoint");
    recorded.copy(&folder);
    let out = dir.path().join("imported.gguf");
    let pre = recorded.pre().map(str::to_owned);
    let options = Options::default().dtype(Some(DType::F32)).pre(pre).tokenizing(Some(Tokenizing::Trusted));
    convert(&folder, &out, &options, &Control::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    if name != "gpt-oss" {
        return load(&out);
    }
    // Experts in MXFP4 stay so in an import. As floats they are multiplied without rounding what they are multiplied by.
    let (packed, floats) = (out, dir.path().join("floats.gguf"));
    let options = Options::default().dtype(Some(DType::F32));
    convert(packed, &floats, &options, &Control::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    load(&floats)
}

/// The prompt of the recordings.
fn prompt() -> Vec<Token> {
    (0..100).map(|i| i * 37 % 300).collect()
}

#[test]
fn imported_checkpoints_have_the_logits_of_transformers() {
    let tokens = prompt();
    let mut faults = Vec::new();
    for checkpoint in Recorded::all() {
        let (model, Recorded { name, expected }) = (imported(&checkpoint), checkpoint);
        let wanted: Vec<f64> =
            expected["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        for portable in [false, true] {
            let p = params(128).kv_type(DType::F32).portable(portable);
            let all = all_logits(&model, &p, &tokens);
            let last = &all[all.len() - model.hparams().n_vocab..];
            let off = last.iter().zip(&wanted).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            let limit = match name.as_str() {
                // As llama.cpp's converter does, 1 is added to the norms of a checkpoint in F16 in that type.
                "gemma2" => 1e-3,
                // Portable GELU on the CPU is a table of half precision.
                "gemma3" | "gemma3-windows" | "gemma3-every-second" | "phi2" | "phi2-narrow" if portable => {
                    1e-3
                }
                _ => 1e-5,
            };
            if off.is_nan() || off > limit {
                faults.push(format!("{name}, portable {portable}: differs by {off}"));
            }
            println!("{name}, portable {portable}: {off:.1e}");
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// `tests/reference/greedy.py` records the text, and by how much each token was ahead of the next one.
#[test]
fn imported_checkpoints_write_the_text_of_transformers() {
    let path = recorded().with_file_name("greedy.json");
    let greedy: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut faults = Vec::new();
    for checkpoint in Recorded::all() {
        let (model, name) = (imported(&checkpoint), checkpoint.name);
        let wanted: Vec<Token> = serde_json::from_value(greedy[&name]["tokens"].clone()).unwrap();
        let margins: Vec<f64> = serde_json::from_value(greedy[&name]["margins"].clone()).unwrap();
        let p = params(256).kv_type(DType::F32);
        let mut session = Session::new(&model, &p).unwrap();
        let mut next = prompt();
        for (i, (wanted, margin)) in wanted.iter().zip(&margins).enumerate() {
            let mut batch = Batch::new();
            for (j, token) in next.iter().enumerate() {
                batch.push(*token, 0, j + 1 == next.len());
            }
            let logits = session.decode(&batch).unwrap();
            let logits = logits.row(0).to_vec();
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as Token;
            if best != *wanted {
                // Where two tokens are as good as equal, rounding decides, and the texts go their own ways.
                if *margin > 1e-4 {
                    faults.push(format!("{name}: token {i} is {best}, expected {wanted}, ahead by {margin}"));
                }
                break;
            }
            next = vec![best];
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
