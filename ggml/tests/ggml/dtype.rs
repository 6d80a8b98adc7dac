//! Element types: block facts against ggml's own, conversion against naive Rust, error bounds, refused input.

use ggml::dtype::{dequantize, quantize};
use ggml::{DType, Error};
use half::{bf16, f16};
use llama_cpp_sys_2 as sys;
use rand::{Rng, SeedableRng};
use DType::*;

fn back(dtype: DType, bytes: &[u8], n: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; n];
    dequantize(dtype, bytes, &mut out).unwrap();
    out
}

/// Values between -1 and 1 with a bell-like density, as weights have.
fn weights(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| (0..4).map(|_| rng.random_range(-0.25f32..0.25)).sum()).collect()
}

#[test]
fn facts_are_ggmls() {
    for raw in 0..sys::GGML_TYPE_COUNT {
        // SAFETY: the number is below GGML_TYPE_COUNT, so ggml's table has an entry, and that is never
        // written.
        let traits = unsafe { &*sys::ggml_get_type_traits(raw) };
        let Some(t) = DType::from_raw(raw) else {
            assert_eq!(traits.blck_size, 0, "type {raw} is not one that ggml removed");
            continue;
        };
        assert_eq!(t.raw(), raw);
        assert_eq!((t.block_size() as i64, t.block_bytes()), (traits.blck_size, traits.type_size), "{t}");
        // SAFETY: every entry of the table has a name, a C string literal.
        let name = unsafe { std::ffi::CStr::from_ptr(traits.type_name) };
        assert_eq!(name.to_str().unwrap().to_lowercase(), t.name());
        assert_eq!(DType::parse(t.name()), Some(t));
        assert_eq!(DType::parse(&t.name().to_uppercase()), Some(t));
        assert_eq!(traits.is_quantized, t.is_quantized(), "{t}");
        assert_eq!(traits.to_float.is_some() || t == F32, t.can_dequantize(), "{t}");
        // SAFETY: compares the number with a few others.
        if unsafe { sys::ggml_quantize_requires_imatrix(raw) } {
            assert!(!t.can_quantize(), "{t}");
        }
    }
    assert_eq!(DType::from_raw(sys::GGML_TYPE_COUNT), None);
    assert_eq!(DType::from_raw(u32::MAX), None);
    assert_eq!(DType::parse("q4_9"), None);
}

#[test]
fn row_bytes_are_checked() {
    for &t in DType::ALL {
        assert_eq!(t.row_bytes(0), Some(0));
        assert_eq!(t.row_bytes(3 * t.block_size()), Some(3 * t.block_bytes()));
        assert!(t.block_size() == 1 || t.row_bytes(t.block_size() + 1).is_none(), "{t}");
    }
    assert_eq!(F32.row_bytes(usize::MAX), None);
    assert_eq!(Q8_0.row_bytes(usize::MAX / 32 * 32), None);
    assert_eq!(Q4_0.row_bytes(1 << 40), Some((1 << 35) * 18));
}

/// Largest root-mean-square error, relative to that of the values, for weights as above.
const BOUNDS: &[(DType, f64)] = &[
    (F32, 0.0),
    (F16, 3e-4),
    (BF16, 3e-3),
    (Q8_0, 0.008),
    (Q6_K, 0.025),
    (Q5_K, 0.05),
    (Q5_1, 0.05),
    (Q5_0, 0.06),
    (Q4_K, 0.1),
    (IQ4_NL, 0.1),
    (IQ4_XS, 0.1),
    (Q4_1, 0.1),
    (Q4_0, 0.12),
    (MXFP4, 0.2),
    (NVFP4, 0.2),
    (Q3_K, 0.2),
    (IQ3_S, 0.25),
    (IQ3_XXS, 0.3),
    (Q2_K, 0.35),
    (TQ2_0, 0.8),
    (TQ1_0, 0.8),
    (Q2_0, 0.8),
    (Q1_0, 0.8),
];

#[test]
fn quantised_values_come_back() {
    for &t in DType::ALL {
        assert_eq!(BOUNDS.iter().any(|b| b.0 == t), t.can_quantize(), "{t}");
    }
    let values = weights(256 * 64, 1);
    let power = values.iter().map(|v| f64::from(v * v)).sum::<f64>();
    for &(t, bound) in BOUNDS {
        for n_per_row in [256, 1024] {
            let bytes = quantize(t, n_per_row, &values).unwrap();
            assert_eq!(bytes.len(), t.row_bytes(values.len()).unwrap(), "{t}");
            let error: f64 = back(t, &bytes, values.len())
                .iter()
                .zip(&values)
                .map(|(a, b)| f64::from(a - b).powi(2))
                .sum();
            let relative = (error / power).sqrt();
            assert!(relative <= bound, "{t}: {relative} > {bound}");
            assert!(relative >= bound / 10.0 || bound < 0.01, "{t}: {relative}, the bound says nothing");
        }
    }
}

fn half_at(b: &[u8], i: usize) -> f32 {
    f16::from_le_bytes([b[i], b[i + 1]]).to_f32()
}

/// Dequantizers written from the block layouts of `ggml-common.h`, one block at a time.
fn naive(t: DType, b: &[u8]) -> Vec<f32> {
    match t {
        F16 => vec![half_at(b, 0)],
        BF16 => vec![bf16::from_le_bytes([b[0], b[1]]).to_f32()],
        Q8_0 => b[2..].iter().map(|&q| half_at(b, 0) * f32::from(q as i8)).collect(),
        Q4_0 => {
            (0..32).map(|i| half_at(b, 0) * (f32::from(b[2 + i % 16] >> (i / 16 * 4) & 15) - 8.0)).collect()
        }
        Q4_1 => (0..32)
            .map(|i| half_at(b, 0) * f32::from(b[4 + i % 16] >> (i / 16 * 4) & 15) + half_at(b, 2))
            .collect(),
        Q4_K => {
            let scales = &b[4..16];
            // Eight 6-bit scales and minima in 12 bytes: the low ones whole, the high ones in two pieces.
            let six = |j: usize, min: bool| {
                let o = if min { 4 } else { 0 };
                f32::from(if j < 4 {
                    scales[j + o] & 63
                } else {
                    let low = if min { scales[j + 4] >> 4 } else { scales[j + 4] & 15 };
                    low | (scales[j - 4 + o] >> 6) << 4
                })
            };
            (0..256)
                .map(|i| {
                    let (j, q) = (i / 32, b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15);
                    half_at(b, 0) * six(j, false) * f32::from(q) - half_at(b, 2) * six(j, true)
                })
                .collect()
        }
        _ => unreachable!(),
    }
}

#[test]
fn dequantising_is_what_the_formats_say() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(2);
    for t in [F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K] {
        let n_blocks = 300;
        let bytes: Vec<u8> = (0..n_blocks * t.block_bytes()).map(|_| rng.random()).collect();
        let found = back(t, &bytes, n_blocks * t.block_size());
        let expected: Vec<f32> = bytes.chunks(t.block_bytes()).flat_map(|b| naive(t, b)).collect();
        for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
            let close = (f - e).abs() <= e.abs().max(1e-30) * 1e-5 || (e.is_nan() && f.is_nan()) || f == e;
            // Where the two terms of an affine format cancel, only their own size bounds the difference.
            let scale = expected[i / t.block_size() * t.block_size()..][..t.block_size()]
                .iter()
                .fold(0f32, |m, v| m.max(v.abs()));
            assert!(close || (f - e).abs() <= scale * 1e-5, "{t} value {i}: {f} is not {e}");
        }
    }
}

#[test]
fn unaligned_bytes_and_long_rows_are_the_same() {
    let values = weights(256 * 200, 3);
    for &(t, _) in BOUNDS {
        let bytes = quantize(t, 256, &values).unwrap();
        let expected = back(t, &bytes, values.len());
        let mut shifted = vec![0u8; bytes.len() + 16];
        for by in [1, 2, 7] {
            shifted[by..by + bytes.len()].copy_from_slice(&bytes);
            assert_eq!(
                back(t, &shifted[by..by + bytes.len()], values.len()),
                expected,
                "{t} shifted by {by}"
            );
        }
    }
}

#[test]
fn every_pattern_of_bytes_can_be_read() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(4);
    for &t in DType::ALL.iter().filter(|t| t.can_dequantize()) {
        for fill in [Some(0), Some(0xff), Some(0x7f), Some(0x80), None] {
            let bytes: Vec<u8> =
                (0..64 * t.block_bytes()).map(|_| fill.unwrap_or_else(|| rng.random())).collect();
            back(t, &bytes, 64 * t.block_size());
        }
    }
}

#[test]
fn ranges_of_rows_in_parallel_are_the_whole() {
    let values = weights(1024 * 64, 5);
    for &(t, _) in BOUNDS {
        let whole = quantize(t, 1024, &values).unwrap();
        let parts: Vec<Vec<u8>> = std::thread::scope(|s| {
            let jobs: Vec<_> = values
                .chunks(1024 * 16)
                .map(|rows| s.spawn(move || quantize(t, 1024, rows).unwrap()))
                .collect();
            jobs.into_iter().map(|j| j.join().unwrap()).collect()
        });
        assert!(parts.concat() == whole, "{t}");
    }
}

#[test]
fn values_no_block_can_hold_are_refused() {
    for &(t, _) in BOUNDS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = weights(512, 6);
            values[300] = bad;
            values[301] = bad;
            let e = quantize(t, 256, &values).unwrap_err();
            assert!(matches!(e, Error::NotQuantizable { index: 300, .. }), "{t}: {e}");
            assert!(e.to_string().contains(t.name()) && e.to_string().contains("300"), "{e}");
        }
        let mut values = vec![0f32; 256];
        for (i, v) in values.iter_mut().enumerate() {
            *v = if i % 2 == 1 { t.max_abs() } else { -t.max_abs() };
        }
        let found = back(t, &quantize(t, 256, &values).unwrap(), 256);
        assert!(found.iter().all(|v| v.is_finite()), "{t}");
        assert!(
            found[5] >= t.max_abs() / 4.0 && found[6] <= -t.max_abs() / 4.0,
            "{t}: {} {}",
            found[5],
            found[6]
        );
        if t != F32 {
            values[5] = t.max_abs() * 1.001;
            assert!(matches!(quantize(t, 256, &values), Err(Error::NotQuantizable { index: 5, .. })), "{t}");
        }
    }
}

/// The i-quants assert on sums that overflow or vanish; none of what passes the check may reach that.
#[test]
fn extreme_values_do_not_abort() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(8);
    for &(t, _) in BOUNDS {
        let top = t.max_abs().min(F16.max_abs());
        for magnitude in
            [0.0, f32::from_bits(1), 1e-42, 1e-38, 1e-30, 1e-20, 1e-15, 1e-8, 1e-3, 1.0, top / 8.0, top]
        {
            for kind in 0..5 {
                let values: Vec<f32> = (0..1024)
                    .map(|i| match kind {
                        0 => magnitude,
                        1 => -magnitude,
                        2 => magnitude * rng.random_range(-1f32..1.0),
                        3 => magnitude * 10f32.powi(-rng.random_range(0..40)),
                        _ => {
                            if i % 97 == 0 {
                                magnitude
                            } else {
                                0.0
                            }
                        }
                    })
                    .collect();
                let bytes = quantize(t, 256, &values).unwrap();
                let found = back(t, &bytes, values.len());
                assert!(found.iter().all(|v| v.is_finite()), "{t} {magnitude} {kind}");
            }
        }
    }
}

#[test]
fn wrong_lengths_and_types_are_refused() {
    let refused = |r: ggml::Result<Vec<u8>>, needle: &str| {
        let e = r.unwrap_err().to_string();
        assert!(e.contains(needle) && !e.contains('\n'), "{e}");
    };
    refused(quantize(Q4_K, 128, &[0.0; 256]), "whole blocks of 256 values, found a row of 128");
    refused(quantize(Q4_K, 0, &[0.0; 256]), "found a row of 0");
    refused(quantize(F16, 0, &[]), "found a row of 0");
    refused(quantize(Q8_0, 64, &[0.0; 96]), "96 values are not whole rows of 64");
    for t in [IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S] {
        refused(quantize(t, 256, &[0.0; 256]), "importance matrix");
    }
    for t in [Q8_1, Q8_K, I8, I16, I32, I64, F64] {
        refused(quantize(t, 256, &[0.0; 256]), t.name());
        assert!(dequantize(t, &[], &mut []).is_err(), "{t}");
    }
    assert_eq!(quantize(Q8_0, 32, &[]).unwrap(), Vec::<u8>::new());
    let mut out = [0f32; 32];
    for n in [0, 33, 35, 68] {
        assert!(dequantize(Q8_0, &vec![0; n], &mut out).is_err(), "{n}");
    }
    assert!(dequantize(Q8_0, &[0; 34], &mut out[..31]).is_err());
    dequantize(Q8_0, &[0; 34], &mut out).unwrap();
}
