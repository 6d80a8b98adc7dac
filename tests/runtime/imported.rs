//! Our logits beside those of transformers: tiny checkpoints that it made, with the logits of their last token,
//! imported here (`tests/reference/checkpoints.py` records them).

use std::path::Path;

use convert::{convert, Options};
use ropewalk::control::Control;
use ropewalk::session::SessionParams;
use ropewalk::{DType, Token};

use crate::common::*;

#[test]
fn imported_checkpoints_have_the_logits_of_transformers() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/import/tests/checkpoints");
    let tokens: Vec<Token> = (0..100).map(|i| i * 37 % 300).collect();
    let (mut faults, mut seen) = (Vec::new(), 0);
    for entry in std::fs::read_dir(&recorded).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name == "tokenizers" {
            continue;
        }
        seen += 1;
        let expected = std::fs::read(recorded.join(&name).join("expected.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
        let tokenizer = expected["tokenizer"].as_str().unwrap();
        let dir = tempfile::tempdir().unwrap();
        // libllama's tokenizer takes the name of a model, which the folder's becomes, for more than it is.
        let folder = dir.path().join("checkpoint");
        std::fs::create_dir(&folder).unwrap();
        for from in [recorded.join(&name), recorded.join("tokenizers").join(tokenizer)] {
            for file in std::fs::read_dir(from).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
            }
        }
        let out = dir.path().join("imported.gguf");
        let pre = tokenizer.starts_with("bpe").then(|| "gpt-2".to_owned());
        let options = Options { dtype: Some(DType::F32), pre, ..Options::default() };
        convert(&folder, &out, &options, &Control::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let model = load(&out);
        let wanted: Vec<f64> =
            expected["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        for portable in [false, true] {
            let p = SessionParams { kv_type: DType::F32, portable, ..params(128) };
            let all = all_logits(&model, &p, &tokens);
            let last = &all[all.len() - model.hparams().n_vocab..];
            let off = last.iter().zip(&wanted).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            let limit = match name.as_str() {
                // GELU by its tanh form, as in llama.cpp, where transformers has the error function.
                "gptneox" => 1e-3,
                // As llama.cpp's converter does, 1 is added to the norms of a checkpoint in F16 in that type.
                "gemma2" => 1e-3,
                // Portable GELU on the CPU is a table of half precision.
                "gemma3" | "phi2" if portable => 1e-3,
                _ => 1e-5,
            };
            if off.is_nan() || off > limit {
                faults.push(format!("{name}, portable {portable}: differs by {off}"));
            }
            println!("{name}, portable {portable}: {off:.1e}");
        }
    }
    assert!(faults.is_empty() && seen >= 17, "{seen} checkpoints, {faults:#?}");
}
