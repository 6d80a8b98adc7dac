//! Damaged files: an error or a file that opens, never a panic.

use std::sync::OnceLock;

use convert::random::{self, Shape};
use convert::{convert, Options};
use ggml::DType;
use gguf::File;
use proptest::prelude::*;
use ropewalk_core::control::Control;
use ropewalk_core::hparams::Hparams;

/// A converted model, so that our own keys are damaged too, and where its tensor data begins.
fn model() -> &'static (Vec<u8>, usize) {
    static MODEL: OnceLock<(Vec<u8>, usize)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let (plain, path) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
        let shape = Shape { n_layer: 1, n_ff: 256, n_vocab: 259, ..Shape::named("llama-tiny-gqa").unwrap() };
        random::write(&shape, DType::Q2_K, 1, &plain).unwrap();
        let options = Options::default().rope(Some("harpe".parse().unwrap()));
        convert(&plain, &path, &options, &Control::default()).unwrap();
        let file = File::open(&path).unwrap();
        let start = file.tensors().iter().map(|t| t.offset).min().unwrap();
        (std::fs::read(&path).unwrap(), start)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn flipped_bytes_are_errors_or_still_a_model(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let (bytes, header) = model();
        let mut bytes = bytes.clone();
        for (at, value) in flips {
            bytes[at.index(*header)] = value;
        }
        if let Some(cut) = cut {
            let n = cut.index(bytes.len());
            bytes.truncate(n);
        }
        let dir = tempfile::tempdir().unwrap();
        let (path, out) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
        std::fs::write(&path, bytes).unwrap();
        if let Ok(file) = File::open(&path) {
            for hp in [Hparams::from_gguf(&file), Hparams::as_trained(&file)].into_iter().flatten() {
                prop_assert!(hp.layer_attention(0).n_rot() >= 2 && hp.layer_attention(0).n_rot() <= hp.layer_attention(0).n_embd_head && hp.layer_attention(0).n_head % hp.layer_attention(0).n_head_kv == 0);
                prop_assert!(hp.layer_attention(0).rotation.unwrap().freq_base > 0.0 && hp.norm_eps > 0.0);
            }
        }
        for (spec, dtype, llama_cpp) in [("sba", None, true), ("harpe", Some(DType::Q8_0), false)] {
            let rope = Some(spec.parse().unwrap());
            let options = Options::default().rope(rope).n_ctx(Some(2048)).dtype(dtype).llama_cpp(llama_cpp);
            match convert(&path, &out, &options, &Control::default()) {
                Ok(_) => drop(File::open(&out).unwrap()),
                Err(e) => prop_assert!(!e.to_string().contains('\n'), "{e}"),
            }
        }
    }
}

#[test]
fn names_do_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("\u{1b}]0;title\u{7}\u{9b}2J.gguf");
    std::fs::write(&path, "no model").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_convert"));
    command.args(["--rope", "yarn"]).arg(&path).arg("-o").arg(dir.path().join("out.gguf"));
    let run = command.output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("\\u{1b}]0;title") && !said.trim_end().contains(char::is_control), "{said:?}");
}
