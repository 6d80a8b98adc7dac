//! The rule and the convolution against loops in f64, whose gradients are held against finite differences.

use super::{backward, conv, forward, Inputs};
use crate::attention_train::{Heads, HeadsMut};
use crate::rounding::{rounding, two_orders};

/// Numbers that look random, from -1 to 1.
fn values(seed: &mut u32, n: usize) -> Vec<f32> {
    let mut next = || {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// # Safety
/// The promise of [`HeadsMut::new`].
unsafe fn out<'a>(x: &'a mut [f32], ne: [usize; 3]) -> HeadsMut<'a> {
    assert_eq!(x.len(), ne.iter().product::<usize>());
    // SAFETY: the rows fill the slice.
    unsafe { HeadsMut::new(x.as_mut_ptr(), ne, [ne[0], ne[0] * ne[1]]) }
}

fn heads(x: &[f32], ne: [usize; 3]) -> Heads<'_> {
    assert_eq!(x.len(), ne.iter().product::<usize>());
    // SAFETY: the rows fill the slice.
    unsafe { Heads::new(x.as_ptr(), ne, [ne[0], ne[0] * ne[1]]) }
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    d: usize,
    n_head_k: usize,
    n_head_v: usize,
    n: usize,
    /// Tokens of a document, of which the first begins within the text before.
    document: usize,
}

impl Shape {
    fn past(&self) -> Vec<i32> {
        (0..self.n).map(|t| ((t + 3) % self.document) as i32).collect()
    }

    fn heads(&self) -> usize {
        2 * self.n_head_k + self.n_head_v
    }

    /// Roundings on the longest way through all tokens: each changes the state by a sum over keys, which are made as long as 1 by
    /// another, and the last reads it. Gradients have three times as many.
    fn roundings(&self) -> usize {
        self.n * (self.d + 8) + 2 * self.d
    }
}

/// Queries, keys and values; g; beta; states. Or their gradients.
type Numbers<T> = [Vec<T>; 4];

const EPS: f64 = 1e-6;

/// Outputs and states after, in f64; and, of the gradients of these, those of the numbers.
fn naive(s: Shape, x: &Numbers<f64>, d: Option<[&[f64]; 2]>) -> ([Vec<f64>; 2], Numbers<f64>) {
    let Shape { d: n_d, n_head_k, n_head_v, n, .. } = s;
    let (past, scale) = (s.past(), 1.0 / (n_d as f64).sqrt());
    let mut outs = [vec![0.0; n * n_head_v * n_d], x[3].clone()];
    let mut grads: Numbers<f64> = [0, 1, 2, 3].map(|i| vec![0.0; x[i].len()]);
    let row = |head: usize, t: usize| (t * s.heads() + head) * n_d..(t * s.heads() + head + 1) * n_d;
    for h in 0..n_head_v {
        let (q_head, k_head, v_head) = (h % n_head_k, n_head_k + h % n_head_k, 2 * n_head_k + h);
        let unit = |head: usize, t: usize| -> Vec<f64> {
            let x = &x[0][row(head, t)];
            let length = (dot(x, x) + EPS).sqrt();
            x.iter().map(|x| x / length).collect()
        };
        let own = h * n_d * n_d..(h + 1) * n_d * n_d;
        // After the decay of each token, and after each token.
        let (mut decayed, mut after) = (Vec::new(), Vec::new());
        let mut state = x[3][own.clone()].to_vec();
        let left = |t: usize| if past[t] > 0 { x[1][t * n_head_v + h].exp() } else { 0.0 };
        let beta = |t: usize| x[2][t * n_head_v + h];
        for t in 0..n {
            let (q, k, v) = (unit(q_head, t), unit(k_head, t), &x[0][row(v_head, t)]);
            state.iter_mut().for_each(|s| *s *= left(t));
            decayed.push(state.clone());
            for (j, state) in state.chunks_exact_mut(n_d).enumerate() {
                let new = beta(t) * (v[j] - dot(state, &k));
                state.iter_mut().zip(&k).for_each(|(s, k)| *s += new * k);
                outs[0][(t * n_head_v + h) * n_d + j] = scale * dot(state, &q);
            }
            after.push(state.clone());
        }
        outs[1][own.clone()].copy_from_slice(&state);
        let Some([d_out, d_states]) = d else { continue };
        let mut d_state = d_states[own.clone()].to_vec();
        for t in (0..n).rev() {
            let (q, k, v) = (unit(q_head, t), unit(k_head, t), &x[0][row(v_head, t)]);
            let (mut d_q, mut d_k) = (vec![0.0; n_d], vec![0.0; n_d]);
            for j in 0..n_d {
                let part = j * n_d..(j + 1) * n_d;
                let (s, before, d_s) =
                    (&after[t][part.clone()], &decayed[t][part.clone()], &mut d_state[part]);
                let o = scale * d_out[(t * n_head_v + h) * n_d + j];
                let error = v[j] - dot(before, &k);
                for i in 0..n_d {
                    d_q[i] += o * s[i];
                    d_s[i] += o * q[i];
                }
                let d_new = dot(d_s, &k);
                grads[2][t * n_head_v + h] += d_new * error;
                let d_error = beta(t) * d_new;
                grads[0][row(v_head, t)][j] += d_error;
                for i in 0..n_d {
                    d_k[i] += beta(t) * error * d_s[i] - d_error * before[i];
                    d_s[i] -= d_error * k[i];
                    grads[1][t * n_head_v + h] += d_s[i] * before[i];
                    d_s[i] *= left(t);
                }
            }
            for (head, y, d_y) in [(q_head, q, d_q), (k_head, k, d_k)] {
                let x = &x[0][row(head, t)];
                let (length, along) = ((dot(x, x) + EPS).sqrt(), dot(&y, &d_y));
                let grads = grads[0][row(head, t)].iter_mut();
                grads.zip(d_y).zip(y).for_each(|((g, d), y)| *g += (d - along * y) / length);
            }
        }
        grads[3][own].copy_from_slice(&d_state);
    }
    (outs, grads)
}

fn numbers(s: Shape, seed: &mut u32) -> Numbers<f32> {
    let rates = s.n * s.n_head_v;
    let qkv = values(seed, s.d * s.heads() * s.n);
    let g = values(seed, rates).into_iter().map(|x| -0.3 * (1.0 + x)).collect();
    let beta = values(seed, rates).into_iter().map(|x| 0.5 * (1.0 + x)).collect();
    [qkv, g, beta, values(seed, s.d * s.d * s.n_head_v)]
}

fn inputs<'a>(s: Shape, x: &'a Numbers<f32>, past: &'a [i32]) -> Inputs<'a> {
    Inputs {
        qkv: heads(&x[0], [s.d, s.heads(), s.n]),
        g: &x[1],
        beta: &x[2],
        past,
        state: &x[3],
        n_head_k: s.n_head_k,
        n_head_v: s.n_head_v,
        eps: EPS as f32,
    }
}

/// Outputs and states, by key heads in this order.
fn run(s: Shape, x: &Numbers<f32>, order: impl Iterator<Item = usize>) -> [Vec<f32>; 2] {
    let (past, mut scratch) = (s.past(), forward::Scratch::default());
    let mut got = [vec![f32::NAN; s.n * s.n_head_v * s.d], vec![f32::NAN; x[3].len()]];
    let [o, states] = &mut got;
    for head in order {
        // SAFETY: nothing else runs.
        unsafe {
            let o = &mut out(o, [s.d, s.n_head_v, s.n]);
            let states = &mut out(states, [s.d * s.d, s.n_head_v, 1]);
            scratch.run(&inputs(s, x, &past), head, o, states);
        }
    }
    got
}

fn differentiate(
    s: Shape,
    x: &Numbers<f32>,
    d: [&[f32]; 2],
    order: impl Iterator<Item = usize>,
) -> Numbers<f32> {
    let (past, mut scratch) = (s.past(), backward::Scratch::default());
    let mut got: Numbers<f32> = [0, 1, 2, 3].map(|i| vec![f32::NAN; x[i].len()]);
    let [d_qkv, d_g, d_beta, d_states] = &mut got;
    // SAFETY: nothing else runs.
    unsafe {
        let mut to = backward::Outputs {
            d_qkv: out(d_qkv, [s.d, s.heads(), s.n]),
            d_g: out(d_g, [1, s.n_head_v, s.n]),
            d_beta: out(d_beta, [1, s.n_head_v, s.n]),
            d_states: out(d_states, [s.d * s.d, s.n_head_v, 1]),
        };
        let d_out = heads(d[0], [s.d, s.n_head_v, s.n]);
        for head in order {
            scratch.differentiate(&inputs(s, x, &past), head, d_out, d[1], &mut to);
        }
    }
    got
}

/// The largest of many numbers, in parts of the root of their mean square.
const FAR: f64 = 4.0;

/// The largest difference, relative to the root of the mean square.
fn off(got: &[f32], want: &[f64]) -> f64 {
    let size = (dot(want, want) / want.len() as f64).sqrt();
    let far = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs());
    // `max` would pass over a NaN.
    assert!(got.iter().all(|x| x.is_finite()) && got.len() == want.len());
    far.fold(0.0, f64::max) / size.max(1e-30)
}

/// One token; borders of chunks; widths that are no whole lanes and rows; heads of values in groups; documents.
const SHAPES: [Shape; 9] = [
    Shape { d: 4, n_head_k: 1, n_head_v: 1, n: 1, document: 99 },
    Shape { d: 4, n_head_k: 1, n_head_v: 2, n: 3, document: 4 },
    Shape { d: 16, n_head_k: 2, n_head_v: 4, n: 32, document: 999 },
    Shape { d: 16, n_head_k: 1, n_head_v: 3, n: 33, document: 20 },
    Shape { d: 16, n_head_k: 3, n_head_v: 3, n: 64, document: 999 },
    Shape { d: 20, n_head_k: 2, n_head_v: 2, n: 70, document: 35 },
    Shape { d: 64, n_head_k: 1, n_head_v: 2, n: 65, document: 999 },
    Shape { d: 128, n_head_k: 1, n_head_v: 1, n: 31, document: 999 },
    Shape { d: 128, n_head_k: 2, n_head_v: 4, n: 100, document: 68 },
];

#[test]
fn the_rule_and_its_gradients_are_those_of_loops_in_f64() {
    let mut seed = 1;
    for s in SHAPES {
        let x = numbers(s, &mut seed);
        let d = [values(&mut seed, s.n * s.n_head_v * s.d), values(&mut seed, x[3].len())];
        let exact: Numbers<f64> = [0, 1, 2, 3].map(|i| wide(&x[i]));
        let d_exact = [wide(&d[0]), wide(&d[1])];
        let (want, grads) = naive(s, &exact, Some([&d_exact[0], &d_exact[1]]));
        let got = run(s, &x, 0..s.n_head_k);
        let (bound, of_gradients) = (FAR * rounding(s.roundings()), FAR * rounding(3 * s.roundings()));
        for i in 0..2 {
            assert!(off(&got[i], &want[i]) < bound, "{s:?} {i}: {:.1e}", off(&got[i], &want[i]));
        }
        let found = differentiate(s, &x, [&d[0], &d[1]], 0..s.n_head_k);
        for (i, (found, grads)) in found.iter().zip(&grads).enumerate() {
            assert!(off(found, grads) < of_gradients, "{s:?} gradient {i}: {:.1e}", off(found, grads));
        }
        // Whichever thread comes first, and whatever its buffers held.
        assert!(got == run(s, &x, (0..s.n_head_k).rev()), "{s:?}");
        assert!(found == differentiate(s, &x, [&d[0], &d[1]], (0..s.n_head_k).rev()), "{s:?}");
    }
}

#[test]
fn the_loops_gradients_are_finite_differences() {
    let mut seed = 2;
    for s in &SHAPES[..6] {
        let x: Numbers<f64> = numbers(*s, &mut seed).map(|x| wide(&x));
        let d = [wide(&values(&mut seed, s.n * s.n_head_v * s.d)), wide(&values(&mut seed, x[3].len()))];
        let (_, grads) = naive(*s, &x, Some([&d[0], &d[1]]));
        for (i, grads) in grads.iter().enumerate() {
            for at in (0..grads.len()).step_by(grads.len().div_ceil(20)).chain([grads.len() - 1]) {
                let loss = |step: f64| {
                    let mut x = x.clone();
                    x[i][at] += step;
                    let ([o, states], _) = naive(*s, &x, None);
                    dot(&o, &d[0]) + dot(&states, &d[1])
                };
                let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                let bound = 1e-7 * (1.0 + slope.abs());
                assert!((slope - grads[at]).abs() < bound, "{s:?} {i} {at}: {slope} {}", grads[at]);
            }
        }
    }
}

/// A text in two parts: states, and what the convolution sees, go from one to the next; gradients come back.
#[test]
fn parts_come_to_the_same_as_the_whole() {
    let (s, mut seed, split) = (SHAPES[8], 3, 41);
    let x = numbers(s, &mut seed);
    let d = [values(&mut seed, s.n * s.n_head_v * s.d), values(&mut seed, x[3].len())];
    let (whole, grads) = (run(s, &x, 0..2), differentiate(s, &x, [&d[0], &d[1]], 0..2));
    let past = s.past();
    let part = |x: &[f32], at: std::ops::Range<usize>| {
        let w = x.len() / s.n;
        x[at.start * w..at.end * w].to_vec()
    };
    let cut = |at: std::ops::Range<usize>, state: &[f32], backwards: Option<[&[f32]; 2]>| {
        let n = at.len();
        let of: Numbers<f32> =
            [part(&x[0], at.clone()), part(&x[1], at.clone()), part(&x[2], at.clone()), state.into()];
        let inputs = inputs(Shape { n, ..s }, &of, &past[at.clone()]);
        let (mut o, mut states) = (vec![0.0; n * s.n_head_v * s.d], vec![0.0; state.len()]);
        let mut got: Numbers<f32> = [0, 1, 2, 3].map(|i| vec![0.0; of[i].len()]);
        for head in 0..s.n_head_k {
            // SAFETY: nothing else runs.
            unsafe {
                let (o, states) = (
                    &mut out(&mut o, [s.d, s.n_head_v, n]),
                    &mut out(&mut states, [s.d * s.d, s.n_head_v, 1]),
                );
                forward::Scratch::default().run(&inputs, head, o, states);
                if let Some([d_out, d_states]) = backwards {
                    let [d_qkv, d_g, d_beta, d_before] = &mut got;
                    let mut to = backward::Outputs {
                        d_qkv: out(d_qkv, [s.d, s.heads(), n]),
                        d_g: out(d_g, [1, s.n_head_v, n]),
                        d_beta: out(d_beta, [1, s.n_head_v, n]),
                        d_states: out(d_before, [s.d * s.d, s.n_head_v, 1]),
                    };
                    let d_out = heads(d_out, [s.d, s.n_head_v, n]);
                    backward::Scratch::default().differentiate(&inputs, head, d_out, d_states, &mut to);
                }
            }
        }
        (o, states, got)
    };
    let first = cut(0..split, &x[3], None);
    let second = cut(split..s.n, &first.1, Some([&part(&d[0], split..s.n), &d[1]]));
    assert!([first.0, second.0].concat() == whole[0] && second.1 == whole[1]);
    let before = cut(0..split, &x[3], Some([&part(&d[0], 0..split), &second.2[3]]));
    for (i, grads) in grads.iter().enumerate().take(3) {
        let parts = [before.2[i].clone(), second.2[i].clone()].concat();
        assert!(off(&parts, &wide(grads)) < FAR * two_orders(3 * s.roundings()), "{i}");
    }
    assert!(off(&before.2[3], &wide(&grads[3])) < FAR * two_orders(3 * s.roundings()));
}

#[test]
fn the_convolution_and_its_gradients_are_those_of_loops_in_f64() {
    let mut seed = 4;
    for (w, units, n_conv, n, document) in
        [(1, 1, 4, 1, 99), (5, 3, 4, 2, 99), (16, 2, 4, 9, 5), (8, 1, 2, 40, 7), (33, 2, 1, 3, 99)]
    {
        let (width, n_before) = (w * units, n_conv - 1);
        let past: Vec<i32> = (0..n).map(|t| ((t + 1) % document) as i32).collect();
        let rows = values(&mut seed, width * (n_before + n));
        let (weights, d_out) = (values(&mut seed, width * n_conv), values(&mut seed, width * n));
        let d_after = values(&mut seed, width * n_before);
        let (before, x) = rows.split_at(width * n_before);
        let inputs = conv::Inputs {
            before: heads(before, [w, units, n_before]),
            x: heads(x, [w, units, n]),
            weights: &weights,
            past: &past,
        };
        let (mut got, mut d_rows) = (vec![f32::NAN; width * n], vec![f32::NAN; rows.len()]);
        let mut scratch = conv::Scratch::default();
        for unit in 0..units {
            // SAFETY: nothing else runs.
            unsafe {
                scratch.run(&inputs, unit, &mut out(&mut got, [w, units, n]));
                let d_rows = &mut out(&mut d_rows, [w, units, n_before + n]);
                let (d_out, d_after) = (heads(&d_out, [w, units, n]), heads(&d_after, [w, units, n_before]));
                scratch.differentiate(&inputs, unit, d_out, d_after, d_rows);
            }
        }
        let exact = |rows: &[f64]| -> Vec<f64> {
            let at = |t: usize, c: usize| {
                let seen = (0..n_conv).filter(|i| (n_before - i) as i32 <= past[t]);
                let sum: f64 =
                    seen.map(|i| rows[(t + i) * width + c] * f64::from(weights[c * n_conv + i])).sum();
                sum / (1.0 + (-sum).exp())
            };
            (0..n).flat_map(|t| (0..width).map(move |c| (t, c))).map(|(t, c)| at(t, c)).collect()
        };
        let (rows, d_out) = (wide(&rows), wide(&d_out));
        // The sum, and its sigmoid; backwards each row has as many of these.
        let (bound, of_gradients) = (FAR * rounding(n_conv + 6), FAR * rounding(n_conv * (n_conv + 12)));
        assert!(off(&got, &exact(&rows)) < bound, "{w} {units} {n_conv} {n}");
        let slope = |i: usize| {
            let moved = |step: f64| {
                let mut rows = rows.clone();
                rows[i] += step;
                let after = dot(&rows[width * n..], &wide(&d_after));
                dot(&exact(&rows), &d_out) + after
            };
            (moved(1e-5) - moved(-1e-5)) / 2e-5
        };
        let want: Vec<f64> = (0..rows.len()).map(slope).collect();
        assert!(off(&d_rows, &want) < of_gradients, "{w} {units} {n_conv} {n}: {:.1e}", off(&d_rows, &want));
    }
}
