//! Weights of every type, of any bytes.

use std::path::PathBuf;

use ropewalk::DType;

use crate::{common, rewritten, survives};

/// The model whose matrices are of a type; `byte` makes their bytes from positions.
fn with_type(dtype: DType, tag: &str, shape: &convert::random::Shape, byte: impl Fn(usize) -> u8) -> PathBuf {
    let base = common::scratch(&format!("hostile-base-{}-{tag}.gguf", dtype.name()));
    convert::random::write(shape, DType::F32, 3, &base).unwrap();
    let path = common::scratch(&format!("hostile-{}-{tag}.gguf", dtype.name()));
    let file = gguf::File::open(&base).unwrap();
    let matrices: Vec<_> = file.tensors().iter().filter(|t| t.shape.len() > 1).collect();
    let names: Vec<&str> = matrices.iter().map(|t| t.name.as_str()).collect();
    common::rewritten(&base, &path, &names, |writer| {
        for t in &matrices {
            let n = dtype.row_bytes(t.shape[0] as usize).unwrap() * t.shape[1] as usize;
            writer.tensor_bytes(&t.name, dtype, &t.shape, (0..n).map(&byte).collect::<Vec<u8>>()).unwrap();
        }
    });
    drop(file);
    std::fs::remove_file(base).unwrap();
    path
}

/// Each type that converts to f32 has a product too: models of it load and compute, from bytes that mean anything, NaN included.
/// Types without a product are refused by name.
#[test]
fn every_type_computes_or_is_refused() {
    // Rows of 256 values are whole blocks of every type.
    let shape = convert::random::Shape {
        n_embd: 256,
        n_head: 4,
        n_head_kv: 2,
        n_embd_head: 64,
        n_ff: 256,
        ..crate::small_shape()
    };
    let mut next = common::xorshift(88172645463325252);
    let noise: Vec<u8> = (0..65536).map(|_| (next() >> 32) as u8).collect();
    for &dtype in DType::ALL {
        for (tag, byte) in [
            ("zeros", &(|_| 0u8) as &dyn Fn(usize) -> u8),
            ("ones", &|_| 0xff),
            ("noise", &|i| noise[(i ^ i >> 16) % noise.len()]),
        ] {
            let path = with_type(dtype, tag, &shape, byte);
            let error = survives(&path);
            std::fs::remove_file(path).unwrap();
            match &error {
                _ if !dtype.can_dequantize() => {
                    let e = error.unwrap_or_else(|| panic!("{dtype} is taken"));
                    assert!(e.contains("token_embd.weight") && e.contains(dtype.name()), "{e}");
                }
                // Numbers that are none end in logits no token can be chosen by.
                Some(e) => assert!(tag != "zeros" && e.contains("logit"), "{dtype} {tag}: {e}"),
                None => {}
            }
        }
    }
}

fn f32s(n: usize, value: f32) -> Vec<u8> {
    (0..n).flat_map(|_| value.to_le_bytes()).collect()
}

#[test]
fn numbers_that_are_none_reach_the_sampler_and_no_further() {
    for (i, value) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 0.0].into_iter().enumerate() {
        for name in ["output_norm.weight", "blk.0.attn_norm.weight"] {
            let path = rewritten(
                &format!("nan-{i}-{name}"),
                |_| {},
                |t| (t == name).then(|| Some((DType::F32, vec![64], f32s(64, value)))),
            );
            let error = survives(&path);
            let fine = value == 0.0 || (value == f32::MAX && error.is_none());
            assert!(fine == error.is_none(), "{name} {value}: {error:?}");
            assert!(error.is_none_or(|e| e.contains("logit")), "{name} {value}");
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn tensors_of_wrong_type_or_shape_or_none_are_named() {
    let f32_of = |shape: &[u64]| {
        let n = shape.iter().product::<u64>() as usize;
        Some(Some((DType::F32, shape.to_vec(), f32s(n, 0.5))))
    };
    for (i, (name, other, holds)) in [
        ("blk.0.attn_q.weight", f32_of(&[64, 63]), "[64, 63]"),
        ("blk.0.attn_q.weight", f32_of(&[32, 128]), "[32, 128]"),
        ("blk.0.attn_k.weight", f32_of(&[64, 64]), "expected shape [64, 32]"),
        ("blk.0.attn_v.weight", f32_of(&[64]), "[64]"),
        ("blk.0.attn_output.weight", f32_of(&[64, 64, 2]), "[64, 64, 2]"),
        ("blk.0.ffn_down.weight", f32_of(&[64, 96]), "expected shape [96, 64]"),
        ("blk.0.ffn_norm.weight", f32_of(&[65]), "expected shape [64]"),
        ("output_norm.weight", Some(Some((DType::F16, vec![64], vec![0; 128]))), "expected f32, found f16"),
        ("blk.0.ffn_up.weight", Some(Some((DType::I8, vec![64, 96], vec![0; 6144]))), "found i8"),
        ("blk.0.ffn_up.weight", Some(None), "found none"),
        ("output_norm.weight", Some(None), "found none"),
        ("token_embd.weight", Some(None), "found none"),
        ("token_embd.weight", f32_of(&[64, 261]), "expected 261 tokens"),
        ("token_embd.weight", f32_of(&[63, 260]), "token_embd.weight"),
        ("output.weight", f32_of(&[64, 259]), "output.weight"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = rewritten(&format!("shape-{i}"), |_| {}, |t| if t == name { other.clone() } else { None });
        let e = survives(&path).unwrap_or_else(|| panic!("{name}: {holds}: taken"));
        assert!(e.contains(holds) && e.contains(&path.display().to_string()), "{name}: {holds}: {e}");
        std::fs::remove_file(path).unwrap();
    }
}
