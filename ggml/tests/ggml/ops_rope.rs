//! Rotations against the definition in f64, by table and by ggml's own op; and dequantization.

use std::f64::consts::SQRT_2;

use crate::common::*;
use ggml::ops::RopeParams;
use ggml::DType;

const FAR: usize = 26_000;

fn positions(rng: &mut Rng, n: usize) -> Vec<i32> {
    (0..n).map(|i| if i == 0 { FAR as i32 } else { rng.int(0, FAR) as i32 }).collect()
}

/// How far a rotation by a table may be off, in parts of a pair's length: a cosine or sine, its product and a
/// sum are rounded for either number. Or how far one number may be, of pairs within -1..1, which are no
/// longer than a root of 2.
const TABLE_BOUND: f64 = 3.0 * SQRT_2 * UNIT;

#[test]
fn by_table() {
    let mut rng = Rng(11);
    for threads in [1, 2, 5] {
        let mut exec = executor(threads);
        for round in 0..16 {
            let n_tables = rng.int(1, 4);
            let d = 2 * rng.int(1, 40);
            let heads = Heads {
                d,
                n_head: n_tables * rng.int(1, 3),
                n_rot: if round % 3 == 0 { 2 * rng.int(1, d / 2) } else { d },
                halves: round % 2 == 0,
            };
            let n = rng.pick(&[1, 1, 2, 7, 30]);
            let pos = positions(&mut rng, n);
            let theta: Vec<f64> = (0..n_tables * heads.n_rot / 2).map(|_| f64::from(rng.unit())).collect();
            let by = |table: usize, j: usize| theta[table * heads.n_rot / 2 + j];
            let group = heads.n_head / n_tables;
            let x = rng.values((d + 6) * heads.n_head * n);
            let angles = table(&pos, n_tables, heads.n_rot, by);
            // x lies in wider rows, as queries do in a product of all projections.
            let row = (d + 6) * heads.n_head;
            let got = eval(&mut exec, |b, feed| {
                let wide = feed.f32(b, &[row, n], &x)?;
                let x = b.view(wide, [d, heads.n_head, n, 1], [4 * d, 4 * row, 4 * row * n], 24)?;
                b.rope_table(x, feed.f32(b, &[heads.n_rot, n_tables, n], &angles)?, heads.halves, false)
            })
            .unwrap();
            let inside: Vec<f32> = x.chunks(row).flat_map(|r| r[6..][..d * heads.n_head].to_vec()).collect();
            let want = heads.rotate(&to_f64(&inside), &pos, |h, j| by(h / group, j), 1.0);
            let what = format!("d {d} n_rot {} heads {} tables {n_tables}", heads.n_rot, heads.n_head);
            assert_within(&got, &want, |_| TABLE_BOUND, &what);
        }
    }
}

#[test]
fn by_ggml_with_a_geometric_series() {
    let mut rng = Rng(13);
    for threads in [1, 3] {
        let mut exec = executor(threads);
        for round in 0..12 {
            let d = 2 * rng.int(1, 64);
            let n_rot = if round % 3 == 0 { 2 * rng.int(1, d / 2) } else { d };
            let heads = Heads { d, n_head: rng.int(1, 5), n_rot, halves: round % 2 == 0 };
            let n = rng.pick(&[1, 3, 20]);
            let (pos, mscale) = (positions(&mut rng, n), rng.pick(&[1.0f32, 1.25]));
            let base = rng.pick(&[10_000.0f32, 500_000.0]);
            let x = rng.values(d * heads.n_head * n);
            let p =
                RopeParams { n_dims: n_rot, neox: heads.halves, freq_base: base, freq_scale: 1.0, mscale };
            let got = eval(&mut exec, |b, feed| {
                b.rope(feed.f32(b, &[d, heads.n_head, n], &x)?, feed.i32(b, &pos)?, None, &p, false)
            })
            .unwrap();
            let theta = |_: usize, j: usize| f64::from(base).powf(-2.0 * j as f64 / n_rot as f64);
            let want = heads.rotate(&to_f64(&x), &pos, theta, f64::from(mscale));
            let parts = |j: usize| series_off(f64::from(base), n_rot, j);
            let bound = |i: usize| heads.off(i, &pos, theta, parts, f64::from(mscale));
            assert_within(&got, &want, bound, &format!("d {d} n_rot {n_rot} base {base}"));
        }
    }
}

/// How far angles may be off that are a position over a factor, in parts of them: the factor and the quotient
/// are rounded.
const QUOTIENT: f64 = 2.0 * UNIT;

#[test]
fn by_ggml_with_a_factor_for_each_pair() {
    let mut rng = Rng(14);
    let mut exec = executor(2);
    for round in 0..12 {
        let d = 2 * rng.int(1, 64);
        let n_rot = if round % 3 == 0 { 2 * rng.int(1, d / 2) } else { d };
        let heads = Heads { d, n_head: rng.int(1, 5), n_rot, halves: round % 2 == 0 };
        let n = rng.pick(&[1, 3, 20]);
        let pos = positions(&mut rng, n);
        let mut theta: Vec<f64> = (0..n_rot / 2).map(|_| f64::from(rng.unit()).abs()).collect();
        theta[0] = 0.0; // Not rotated: an infinite factor.
        let factors: Vec<f32> = (0..d / 2)
            .map(|j| theta.get(j).map_or(1.0, |t| if *t == 0.0 { f32::INFINITY } else { (1.0 / t) as f32 }))
            .collect();
        let x = rng.values(d * heads.n_head * n);
        let (n_dims, neox) = (n_rot, heads.halves);
        let p = RopeParams { n_dims, neox, freq_base: 1.0, freq_scale: 1.0, mscale: 1.0 };
        let got = eval(&mut exec, |b, feed| {
            let factors = feed.f32(b, &[d / 2], &factors)?;
            let x = feed.f32(b, &[d, heads.n_head, n], &x)?;
            b.rope(x, feed.i32(b, &pos)?, Some(factors), &p, false)
        })
        .unwrap();
        let want = heads.rotate(&to_f64(&x), &pos, |_, j| theta[j], 1.0);
        let bound = |i: usize| heads.off(i, &pos, |_, j| theta[j], |_| QUOTIENT, 1.0);
        assert_within(&got, &want, bound, &format!("d {d} n_rot {n_rot}"));
    }
}

#[test]
fn dequantize_gives_the_values_and_rounds_them() {
    let mut rng = Rng(16);
    let types: Vec<DType> = DType::ALL.iter().copied().filter(|d| d.can_quantize()).collect();
    for threads in [1, 5] {
        let mut exec = executor(threads);
        for &dtype in &types {
            let n = 256;
            let all = [dtype, rng.pick(&types), rng.pick(&types)];
            let weights: Vec<_> = all
                .iter()
                .map(|&t| {
                    // All together are more than is rounded at once.
                    let rows = rng.int(1, 60);
                    stored(t, &[n, rows], &rng.values(n * rows))
                })
                .collect();
            let held = || weights.iter().flat_map(|(_, held)| held);
            let mut dequantize = |to: DType| {
                eval(&mut exec, |b, _| {
                    let ws = weights.iter().map(|(w, _)| b.stored(w)).collect::<Result<Vec<_>, _>>()?;
                    b.to_f32(b.dequantize(&ws, to)?)
                })
                .unwrap()
            };
            // Of types with a conversion of ours, too, the bits are ggml's.
            let bits: Vec<u32> = dequantize(DType::F32).into_iter().map(f32::to_bits).collect();
            assert_eq!(bits, held().map(|x| x.to_bits()).collect::<Vec<u32>>(), "{all:?}");
            let rounded: Vec<f32> = held().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
            assert_eq!(dequantize(DType::BF16), rounded, "{all:?}");
        }
    }
}

#[test]
fn a_dequantized_product_is_the_product() {
    let mut rng = Rng(17);
    let mut exec = executor(2);
    let (k, m, n) = (320, 40, 33);
    let (wt, w) = stored(DType::Q4_1, &[k, m], &rng.values(k * m));
    let x = rng.values(k * n);
    // With BF16 weight and activation are each rounded to 8 bits first.
    for (to, short) in [(DType::F32, 0.0), (DType::BF16, 2.0 * 2f64.powi(-9) + 2f64.powi(-18))] {
        let bound = short + rounding(k + 1);
        let got = eval(&mut exec, |b, feed| {
            b.mul_mat(b.dequantize(&[b.stored(&wt)?], to)?, feed.f32(b, &[k, n], &x)?)
        })
        .unwrap();
        for (i, got) in got.iter().enumerate() {
            let terms = w[i % m * k..][..k].iter().zip(&x[i / m * k..][..k]);
            let (sum, abs) = terms.fold((0.0, 0.0), |(s, a), (w, x)| {
                let p = f64::from(*w) * f64::from(*x);
                (s + p, a + p.abs())
            });
            assert!((f64::from(*got) - sum).abs() <= abs * bound, "{to} [{i}]");
        }
    }
}
