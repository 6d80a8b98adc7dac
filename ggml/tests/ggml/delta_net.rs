//! Gated delta-nets for training against ggml's own ops, which inference runs; their gradients, whose definition is
//! tested where the kernels are, with any number of threads.

use crate::common::*;
use ggml::delta_net::{ConvSilu, DeltaRule};
use ggml::graph::Builder;
use ggml::tensor::Tensor;
use ggml::{recurrent, DType, Error, Result};

const EPS: f32 = 1e-6;

#[derive(Debug, Clone, Copy)]
struct Shape {
    d: usize,
    h_k: usize,
    h: usize,
    n: usize,
}

impl Shape {
    fn width(&self) -> usize {
        self.d * (2 * self.h_k + self.h)
    }
}

const SHAPES: [Shape; 4] = [
    Shape { d: 4, h_k: 1, h: 1, n: 1 },
    Shape { d: 16, h_k: 2, h: 6, n: 40 },
    Shape { d: 32, h_k: 3, h: 3, n: 33 },
    Shape { d: 128, h_k: 1, h: 2, n: 65 },
];

struct Data {
    qkv: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
    past: Vec<i32>,
}

impl Data {
    fn new(s: Shape, rng: &mut Rng) -> Data {
        let rates = s.h * s.n;
        Data {
            qkv: rng.values(s.width() * s.n),
            g: rng.values(rates).iter().map(|x| -x.abs()).collect(),
            beta: rng.values(rates).iter().map(|x| x.abs()).collect(),
            state: rng.values(s.d * s.d * s.h),
            past: (1..=s.n as i32).collect(),
        }
    }

    fn rule<'c>(&self, b: &Builder<'c>, feed: &mut Feed, s: Shape) -> Result<DeltaRule<'c>> {
        Ok(DeltaRule {
            qkv: feed.f32(b, &[s.width(), s.n], &self.qkv)?,
            g: feed.f32(b, &[s.h, s.n], &self.g)?,
            beta: feed.f32(b, &[s.h, s.n], &self.beta)?,
            past: Some(feed.i32(b, &self.past)?),
            state: feed.f32(b, &[s.d, s.d, s.h], &self.state)?,
            n_head_k: s.h_k,
            eps: EPS,
        })
    }
}

/// Any tensor as one row.
fn flat<'c>(b: &Builder<'c>, t: Tensor<'c>) -> Result<Tensor<'c>> {
    b.reshape(b.cont(t)?, &[t.ne().iter().product()])
}

#[test]
fn the_rule_is_ggmls() {
    let mut rng = Rng(5);
    for s in SHAPES {
        let data = Data::new(s, &mut rng);
        let ours = |n_threads: usize| {
            eval_all(&mut executor(n_threads), 1, |b, feed| {
                let [out, state] = b.delta_rule(data.rule(b, feed, s)?)?;
                Ok([flat(b, out)?, flat(b, state)?])
            })
            .unwrap()
        };
        let theirs = eval_all(&mut executor(2), 1, |b, feed| {
            let Shape { d, h_k, h, n } = s;
            let x = data.rule(b, feed, s)?;
            let row = x.qkv.nb()[1];
            let heads = |first: usize, heads: usize| {
                b.view(x.qkv, [d, heads, n, 1], [4 * d, row, row * n], 4 * d * first)
            };
            let unit = |t| b.scale(b.rms_norm(t, EPS / d as f32)?, 1.0 / (d as f32).sqrt());
            let rates = |t| b.reshape(t, &[1, h, n, 1]);
            let rule = recurrent::DeltaRule {
                q: unit(heads(0, h_k)?)?,
                k: unit(heads(h_k, h_k)?)?,
                v: heads(2 * h_k, h)?,
                g: rates(x.g)?,
                beta: rates(x.beta)?,
                state: x.state,
            };
            let [out, state] = b.gated_delta_net(rule)?;
            Ok([flat(b, out)?, flat(b, state)?])
        });
        let (ours, more) = (ours(1), ours(3));
        assert!(ours == more, "{s:?}");
        for (ours, theirs) in ours.iter().zip(&theirs.unwrap()) {
            // Each token changes the state by a sum over keys, which are made as long as 1 by another, and the last reads it; a sum
            // may be smaller than its terms.
            let size = 4.0 * theirs.iter().fold(1.0f32, |max, x| x.abs().max(max));
            let bound = size * two_orders(s.n * (s.d + 8) + 2 * s.d) as f32;
            for (a, b) in ours.iter().zip(theirs) {
                assert!((a - b).abs() < bound, "{s:?}: {a} {b}");
            }
        }
    }
}

/// Sequences in one node, of rows that lie apart, have the bits that each has alone.
#[test]
fn several_sequences_at_once() {
    let mut rng = Rng(15);
    let (s, n_seqs, n_conv) = (Shape { d: 16, h_k: 2, h: 4, n: 5 }, 3, 4);
    let width = s.d * (2 * s.h_k + s.h);
    let (rows, weights) = (rng.values(width * (n_conv - 1 + s.n) * n_seqs), rng.values(width * n_conv));
    let (of_rates, of_state) = (s.h * s.n, s.d * s.d * s.h);
    let [g, beta] = [-1.0f32, 1.0]
        .map(|sign| -> Vec<f32> { rng.values(of_rates * n_seqs).iter().map(|x| sign * x.abs()).collect() });
    let state = rng.values(of_state * n_seqs);
    let run = |n_threads: usize, seqs: std::ops::Range<usize>| {
        let part = |all: &[f32]| {
            let each = all.len() / n_seqs;
            all[each * seqs.start..each * seqs.end].to_vec()
        };
        let n = seqs.len();
        eval_all(&mut executor(n_threads), 1, |b, feed| {
            let seen = feed.f32(b, &[width, n_conv - 1 + s.n, n], &part(&rows))?;
            let nb = seen.nb();
            let of = |first, many| b.view(seen, [width, many, n, 1], [nb[1], nb[2], nb[3]], first * nb[1]);
            let conv = ConvSilu {
                before: of(0, n_conv - 1)?,
                x: of(n_conv - 1, s.n)?,
                weights: feed.f32(b, &[n_conv, width], &weights)?,
                past: None,
            };
            let [g, beta] = [&g, &beta].map(|rates| feed.f32(b, &[s.h, s.n, n], &part(rates)));
            let state = feed.f32(b, &[s.d, s.d, s.h, n], &part(&state))?;
            let qkv = b.conv_silu(conv)?;
            let rule = DeltaRule { qkv, g: g?, beta: beta?, past: None, state, n_head_k: s.h_k, eps: EPS };
            let [out, state] = b.delta_rule(rule)?;
            Ok([flat(b, out)?, flat(b, state)?])
        })
        .unwrap()
    };
    let alone: Vec<[Vec<f32>; 2]> = (0..n_seqs).map(|seq| run(1, seq..seq + 1)).collect();
    let each = [0, 1].map(|which| alone.iter().flat_map(|all| all[which].clone()).collect::<Vec<f32>>());
    for n_threads in [1, 2, 5] {
        assert_eq!(run(n_threads, 0..n_seqs), each, "{n_threads} threads");
    }
}

#[test]
fn the_convolution_is_ggmls() {
    let mut rng = Rng(6);
    for (channels, n_conv, n) in [(1, 2, 1), (48, 4, 1), (640, 4, 20), (96, 3, 7)] {
        let (before, x) = (rng.values(channels * (n_conv - 1)), rng.values(channels * n));
        let (weights, past): (_, Vec<i32>) = (rng.values(channels * n_conv), (9..9 + n as i32).collect());
        let ours = |n_threads: usize| {
            eval(&mut executor(n_threads), |b, feed| {
                b.conv_silu(ConvSilu {
                    before: feed.f32(b, &[channels, n_conv - 1], &before)?,
                    x: feed.f32(b, &[channels, n], &x)?,
                    weights: feed.f32(b, &[n_conv, channels], &weights)?,
                    past: Some(feed.i32(b, &past)?),
                })
            })
            .unwrap()
        };
        let theirs = eval(&mut executor(1), |b, feed| {
            let before = feed.f32(b, &[channels, n_conv - 1], &before)?;
            let all = b.concat(before, feed.f32(b, &[channels, n], &x)?, 1)?;
            let all = b.cont(b.permute(b.reshape(all, &[channels, n_conv - 1 + n, 1])?, [1, 0, 2, 3])?)?;
            b.silu(b.ssm_conv(all, feed.f32(b, &[n_conv, channels], &weights)?)?)
        });
        let (ours, more, theirs) = (ours(1), ours(3), theirs.unwrap());
        assert!(ours == more && ours.len() == theirs.len());
        for (a, b) in ours.iter().zip(&theirs) {
            assert!(
                f64::from((a - b).abs()) < two_orders(n_conv + 12) * n_conv as f64,
                "{channels} {n_conv} {n}: {a} {b}"
            );
        }
    }
}

#[test]
fn gradients_do_not_depend_on_threads() {
    let mut rng = Rng(7);
    for s in SHAPES {
        let data = Data::new(s, &mut rng);
        let (d_out, d_state) = (rng.values(s.d * s.h * s.n), rng.values(s.d * s.d * s.h));
        let (before, weights) = (rng.values(s.width() * 3), rng.values(s.width() * 4));
        let run = |n_threads: usize| {
            eval_all(&mut executor(n_threads), 1, |b, feed| {
                let rule = data.rule(b, feed, s)?;
                let d_out = feed.f32(b, &[s.d, s.h, s.n], &d_out)?;
                let grads = b.delta_rule_back(rule, d_out, feed.f32(b, &[s.d * s.d * s.h], &d_state)?)?;
                let rates = b.add(grads.g, grads.beta)?;
                let before = feed.f32(b, &[s.width(), 3], &before)?;
                let weights = feed.f32(b, &[4, s.width()], &weights)?;
                let conv = ConvSilu { before, x: rule.qkv, weights, past: rule.past };
                let [d_before, d_x] = b.conv_silu_back(conv, grads.qkv, before)?;
                let of = |t| flat(b, t);
                Ok([of(grads.qkv)?, of(rates)?, of(grads.state)?, of(d_before)?, of(d_x)?])
            })
            .unwrap()
        };
        let one = run(1);
        for (which, one) in one.iter().enumerate() {
            assert!(one.iter().all(|x| x.is_finite()) && one.iter().any(|x| *x != 0.0), "{s:?} {which}");
        }
        assert!(one == run(2) && one == run(5), "{s:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |result: Result<Vec<f32>>| assert!(matches!(result, Err(Error::Op { .. })), "{result:?}");
    // Of the rule: qkv, g, beta, state, the gradients of outputs and states; past has three.
    let good: [&[usize]; 6] = [&[32, 3], &[4, 3], &[4, 3], &[4, 4, 4], &[4, 4, 3], &[64]];
    let rule = |shapes: &[Vec<usize>], n_head_k: usize, past: DType| {
        eval(&mut executor(1), |b, _| {
            let input = |i: usize| b.input("x", DType::F32, &shapes[i]).map(|x| x.1);
            let past = b.input("past", past, &[3])?.1;
            let (qkv, g, beta, state) = (input(0)?, input(1)?, input(2)?, input(3)?);
            let rule = DeltaRule { qkv, g, beta, past: Some(past), state, n_head_k, eps: EPS };
            b.delta_rule(rule)?;
            b.cont(b.delta_rule_back(rule, input(4)?, input(5)?)?.qkv)
        })
    };
    let shapes: Vec<Vec<usize>> = good.iter().map(|s| s.to_vec()).collect();
    for (arg, dim) in (0..6).flat_map(|arg| (0..good[arg].len()).map(move |dim| (arg, dim))) {
        let mut shapes = shapes.clone();
        shapes[arg][dim] += 1;
        refused(rule(&shapes, 2, DType::I32));
    }
    for n_head_k in [0, 1, 3, usize::MAX] {
        refused(rule(&shapes, n_head_k, DType::I32));
    }
    refused(rule(&shapes, 2, DType::F32));
    // Of the convolution: before, x, weights, the gradients of the result and of what comes after; past has three.
    let good: [&[usize]; 5] = [&[8, 3], &[8, 3], &[4, 8], &[8, 3], &[8, 3]];
    let conv = |shapes: &[Vec<usize>]| {
        eval(&mut executor(1), |b, _| {
            let input = |i: usize| b.input("x", DType::F32, &shapes[i]).map(|x| x.1);
            let past = b.input("past", DType::I32, &[3])?.1;
            let conv = ConvSilu { before: input(0)?, x: input(1)?, weights: input(2)?, past: Some(past) };
            b.conv_silu(conv)?;
            b.cont(b.conv_silu_back(conv, input(3)?, input(4)?)?[1])
        })
    };
    let shapes: Vec<Vec<usize>> = good.iter().map(|s| s.to_vec()).collect();
    for (arg, dim) in (0..5).flat_map(|arg| (0..2).map(move |dim| (arg, dim))) {
        let mut shapes = shapes.clone();
        shapes[arg][dim] += 1;
        refused(conv(&shapes));
    }
}
