//! Random-weight models: deterministic, readable, sane.

use convert::random::{self, Shape, SHAPES};
use ggml::DType;
use gguf::File;
use llama::vocab::Vocab;
use ropewalk_core::hparams::Hparams;

fn tiny(arch: &str) -> Shape {
    Shape::named(&format!("{arch}-tiny")).unwrap()
}

/// Tensors of both sorts: made whole, and (over 2^21 values) drawn from the pool.
fn pooled() -> Shape {
    Shape { n_vocab: 2100, n_embd: 1024, n_ff: 256, n_layer: 1, ..tiny("llama") }
}

fn in_folder<T>(f: impl FnOnce(&std::path::Path) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    f(folder.path())
}

#[test]
fn every_tiny_shape_reads_back_in_every_type() {
    in_folder(|dir| {
        for named in SHAPES.iter().filter(|s| s.name.contains("tiny")) {
            for (dtype, file_type) in convert::types::TARGETS {
                if named.name != "llama-tiny" && *dtype != DType::Q8_0 {
                    continue;
                }
                let shape = (named.shape)();
                let path = dir.join("m.gguf");
                let n = random::write(&shape, *dtype, 7, &path).unwrap();
                assert_eq!(n, std::fs::metadata(&path).unwrap().len());
                let file = File::open(&path).unwrap();
                let hp = Hparams::from_gguf(&file).unwrap();
                assert_eq!(
                    (hp.n_layer, hp.n_embd, hp.layers[0].n_ff),
                    (shape.n_layer, shape.n_embd, shape.n_ff)
                );
                assert_eq!(
                    (hp.attention[0].n_head, hp.attention[0].n_head_kv),
                    (shape.n_head, shape.n_head_kv)
                );
                assert_eq!((hp.attention[0].n_embd_head, hp.n_vocab), (shape.n_embd_head, shape.n_vocab));
                assert_eq!(hp.rope_scaling.freq_factors, shape.rope_factors);
                assert_eq!(file.get::<u32>("general.file_type").unwrap(), *file_type);
                assert_eq!(file.tensor("output.weight").is_none(), shape.tied);
                assert_eq!(file.tensor("blk.1.attn_k.bias").is_some(), shape.qkv_bias && !shape.fused_qkv);
                for t in file.tensors() {
                    // Routers, the biases of experts and convolutions, two-dimensional, stay floats.
                    let floats = ["ffn_gate_inp", "ssm_conv1d", ".bias"];
                    let stays = t.shape.len() == 1 || floats.iter().any(|part| t.name.contains(part));
                    let wanted = if stays { DType::F32 } else { *dtype };
                    assert_eq!(t.dtype, wanted, "{} {}", named.name, t.name);
                }
            }
        }
    });
}

#[test]
fn values_are_as_intended() {
    in_folder(|dir| {
        let path = dir.join("m.gguf");
        let shape = tiny("qwen2");
        random::write(&shape, DType::F32, 1, &path).unwrap();
        let file = File::open(&path).unwrap();
        for (name, mean, std) in [
            ("token_embd.weight", 0.0, 1.0),
            ("blk.0.ffn_gate.weight", 0.0, 1.0 / 16.0),
            ("blk.1.attn_norm.weight", 1.0, 0.1),
            ("blk.1.attn_q.bias", 0.0, 0.5),
        ] {
            let v = ggml::dtype::dequantize_tensor(&file, file.tensor(name).unwrap()).unwrap();
            let n = v.len() as f64;
            let m = v.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
            let s = (v.iter().map(|x| (f64::from(*x) - m).powi(2)).sum::<f64>() / n).sqrt();
            // Five standard errors of each.
            assert!((m - mean).abs() < 5.0 * std / n.sqrt(), "{name}: mean {m}");
            assert!((s / std - 1.0).abs() < 5.0 / (2.0 * n).sqrt(), "{name}: deviation {s}");
        }
        let row = |name: &str| {
            ggml::dtype::dequantize_tensor(&file, file.tensor(name).unwrap()).unwrap()[..64].to_vec()
        };
        assert_ne!(row("blk.0.ffn_gate.weight"), row("blk.0.ffn_up.weight"));
    });
}

#[test]
fn same_arguments_same_bytes_whatever_the_threads() {
    in_folder(|dir| {
        let shape = Shape { tied: true, ..pooled() };
        for dtype in [DType::Q4_K, DType::F16] {
            let bytes = |threads: usize, seed: u64| {
                let path = dir.join("m.gguf");
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| random::write(&shape, dtype, seed, &path)).unwrap();
                std::fs::read(path).unwrap()
            };
            let one = bytes(1, 3);
            assert!(one == bytes(2, 3));
            assert!(one != bytes(2, 4));
        }
    });
}

#[test]
fn the_pool_repeats_no_row() {
    in_folder(|dir| {
        let path = dir.join("m.gguf");
        random::write(&pooled(), DType::F16, 3, &path).unwrap();
        let file = File::open(&path).unwrap();
        let t = file.tensor("output.weight").unwrap();
        let data = file.data(t).to_vec().unwrap();
        let mut rows: Vec<&[u8]> = data.chunks(2 * 1024).collect();
        assert_eq!(rows.len(), 2100);
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), 2100);
    });
}

#[test]
fn odd_widths_fall_back_like_llama_cpp() {
    in_folder(|dir| {
        let path = dir.join("m.gguf");
        let shape = Shape { n_embd: 160, n_embd_head: 40, n_ff: 272, n_layer: 1, ..tiny("llama") };
        random::write(&shape, DType::Q4_K, 3, &path).unwrap();
        let file = File::open(&path).unwrap();
        let dtype = |name: &str| file.tensor(name).unwrap().dtype;
        assert_eq!(dtype("blk.0.attn_q.weight"), DType::Q5_0);
        assert_eq!(dtype("blk.0.ffn_down.weight"), DType::F16);
    });
}

#[test]
fn impossible_shapes_are_refused() {
    in_folder(|dir| {
        let path = dir.join("m.gguf");
        for (shape, part) in [
            (Shape { n_vocab: 10, ..tiny("llama") }, "n_vocab"),
            (Shape { n_head_kv: 3, ..tiny("llama") }, "n_head_kv must divide"),
            (Shape { n_head: 0, ..tiny("llama") }, "n_head"),
            (Shape { freq_base: f32::NAN, ..tiny("llama") }, "freq_base"),
            (Shape { rope_factors: Some(vec![1.0]), ..tiny("llama") }, "expected 32"),
        ] {
            let error = random::write(&shape, DType::F16, 0, &path).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(random::write(&tiny("llama"), DType::IQ2_XXS, 0, &path).is_err());
        assert!(!path.exists());
    });
    let error = Shape::named("gpt-5").unwrap_err().to_string();
    assert!(error.contains("llama-tiny") && error.contains("qwen2-7b"), "{error}");
}

#[test]
fn the_tokenizer_is_one_token_a_byte() {
    in_folder(|dir| {
        for named in SHAPES.iter().filter(|s| s.name.contains("tiny")) {
            let path = dir.join("m.gguf");
            random::write(&(named.shape)(), DType::F16, 7, &path).unwrap();
            let vocab = Vocab::load(&File::open(&path).unwrap()).unwrap();
            assert_eq!(vocab.n_tokens(), (named.shape)().n_vocab);
            let text = "Hello, world!\n\t 12 naïve 漢字 \u{1f600}\0\u{7f}";
            let tokens = vocab.tokenize(text, true, false).unwrap();
            assert_eq!(tokens.len(), text.len());
            assert_eq!(vocab.detokenize(&tokens, false).unwrap(), text);
            let turn = vocab.tokenize("<|im_start|>a<|im_end|>", true, true).unwrap();
            assert_eq!(turn.len(), 3);
            assert_eq!((vocab.eos(), vocab.eot(), vocab.add_bos()), (Some(256), Some(turn[2]), false));
            assert!(vocab.is_eog(turn[2]) && vocab.is_eog(256) && !vocab.is_eog(65));
        }
    });
}

#[test]
fn bytes_are_spelled_as_in_gpt2() {
    in_folder(|dir| {
        let path = dir.join("m.gguf");
        random::write(&tiny("llama"), DType::F32, 7, &path).unwrap();
        let tokens = File::open(&path).unwrap().get::<Vec<String>>("tokenizer.ggml.tokens").unwrap();
        let all: std::collections::BTreeSet<&String> = tokens[..256].iter().collect();
        assert_eq!(all.len(), 256);
        let of = |bytes: &[u8]| bytes.iter().map(|&b| tokens[usize::from(b)].as_str()).collect::<String>();
        assert_eq!(of(b"A \n"), "AĠĊ");
        assert_eq!(of(&[0, 127, 173, 160]), "ĀġŃł");
    });
}
