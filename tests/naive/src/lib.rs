//! A decoder in plain f64, straight from the definitions: nothing cached, nothing fused, no plan's branches.
//!
//! Attention knows a method only as a function from a pair of positions to the distance the model is shown, and turns the
//! query by it: q_i^T R(rel) k_j, the form every paper defines its method in. The engine rotates queries and keys apart.

mod delta_net;
mod landmark;

use std::cell::RefCell;
use std::collections::HashMap;

use ropewalk::hparams::{Gelu, Hparams, LayerAttention};
use ropewalk::model::Model;
use ropewalk::rope::Plan;
use ropewalk::Token;

use landmark::{grouped, taken};

/// The attention a naive model computes: which keys a query sees, at which distance, and how both are rotated.
pub trait Definition {
    /// The distance query `i` is shown to key `j <= i`, in parts of a position; `None` where it does not see it.
    fn distance(&self, i: i64, j: i64) -> Option<i64>;
    /// The same in layers of one kind, which may be at other positions.
    fn distance_in(&self, _kind: usize, i: i64, j: i64) -> Option<i64> {
        self.distance(i, j)
    }
    /// A distance, in positions, that none of a text of `n` tokens reaches: a method adds no more than a constant to the
    /// true one.
    fn farthest(&self, n: usize) -> usize {
        n + 100
    }
    /// Parts of a position that distances count.
    fn unit(&self) -> i64 {
        1
    }
    /// Factor on rotated queries and on rotated keys, in layers of this kind.
    fn mscale(&self, kind: usize) -> f64;
    /// Whether query `i` sees key `j <= i` in layers without rotation, on which no rope method acts.
    fn sees_unrotated(&self, _i: i64, _j: i64) -> bool {
        true
    }
    /// Whether head `h` of query `i` sees key `j`, which its layer lets it see.
    fn head_sees(&self, _layer: &LayerAttention, _h: usize, _i: i64, _j: i64) -> bool {
        true
    }
    /// Positions of a block under landmark attention, the last of which is a landmark.
    fn block(&self) -> Option<usize> {
        None
    }
    /// Under landmark attention, how many of the blocks before its own piece a query head takes, and positions of a piece,
    /// where it does not see all of them.
    fn top(&self) -> Option<[usize; 2]> {
        None
    }
    /// Factor on the scores of query `i`, in layers of this kind.
    fn q_scale(&self, kind: usize, i: i64) -> f64;
    /// Radians per unit of distance for each pair of dimensions: one table, or one for each key head of layers of
    /// this kind, which are rotated. The plan's, which `tests/rope/tables` compares with papers.
    fn tables(&self, _hp: &Hparams, plan: &Plan, kind: usize) -> Vec<Vec<f64>> {
        plan.kinds()[kind].freqs.tables().map(<[f64]>::to_vec).collect()
    }
}

/// The weights of a model, as f64.
#[derive(Clone)]
pub struct Naive {
    hp: Hparams,
    /// Pairs are `(2j, 2j+1)`; else `(j, j + n_rot/2)`.
    adjacent: bool,
    tensors: HashMap<String, Vec<f64>>,
}

/// Receives a row of probabilities: layer, head and query, pairs of key and probability.
type See<'s> = dyn FnMut(usize, [usize; 2], &[(usize, f64)]) + 's;

/// Angles of the distances a text can show, one table for each key head or for all: `[distance][pair]`, cosine and sine.
struct Turns(Vec<Vec<Vec<(f64, f64)>>>);

impl Turns {
    fn new(tables: &[Vec<f64>], mscale: f64, farthest: usize, unit: usize) -> Turns {
        // The magnitude is on rotated q and on rotated k.
        let m = mscale * mscale;
        let at = |rel: usize, table: &Vec<f64>| {
            let angle = |theta: &f64| (rel as f64 / unit as f64 * theta).sin_cos();
            table.iter().map(angle).map(|(sin, cos)| (cos * m, sin * m)).collect()
        };
        Turns(tables.iter().map(|t| (0..=farthest * unit).map(|rel| at(rel, t)).collect()).collect())
    }
}

/// For each matrix, by the name of its weight, the sums of the squares of what it reads and the tokens summed over; of
/// experts one after another.
pub type Squares = HashMap<String, (Vec<f64>, Vec<f64>)>;

thread_local! {
    /// Filled where it is there.
    static SQUARES: RefCell<Option<Squares>> = const { RefCell::new(None) };
}

/// Takes in what matrix `e` of `n` reads.
fn record(name: &str, [e, n]: [usize; 2], x: &[f64]) {
    SQUARES.with_borrow_mut(|squares| {
        let Some(squares) = squares else { return };
        let entry = squares.entry(format!("{name}.weight"));
        let (sums, counts) = entry.or_insert_with(|| (vec![0.0; n * x.len()], vec![0.0; n]));
        sums[e * x.len()..].iter_mut().zip(x).for_each(|(sum, x)| *sum += x * x);
        counts[e] += 1.0;
    });
}

impl Naive {
    /// The values of importance matrices, over one text.
    pub fn squares(&self, tokens: &[Token], case: &dyn Definition, plan: &Plan) -> Squares {
        SQUARES.set(Some(Squares::new()));
        self.logits(tokens, case, plan);
        SQUARES.take().unwrap()
    }

    /// The weights of a loaded model.
    pub fn of(model: &Model) -> Naive {
        let file = model.file();
        let values =
            |t| ggml::dtype::dequantize_tensor(file, t).unwrap().into_iter().map(f64::from).collect();
        Naive {
            hp: model.hparams().clone(),
            adjacent: among(model.hparams(), &["cohere2", "granite", "llama", "mistral3", "smollm3"]),
            tensors: file.tensors().iter().map(|t| (t.name.clone(), values(t))).collect(),
        }
    }

    /// A tensor, to be changed.
    pub fn tensor_mut(&mut self, name: &str) -> &mut Vec<f64> {
        self.tensors.get_mut(name).unwrap()
    }

    /// Gives the model a separate output matrix, if the embedding was the output matrix.
    pub fn untie(&mut self) {
        let embedding = self.tensors["token_embd.weight"].clone();
        self.tensors.entry("output.weight".into()).or_insert(embedding);
    }

    /// All rows of logits, `[n][n_vocab]`. As no token sees a later one, the first rows are those of a shorter text.
    pub fn logits(&self, tokens: &[Token], case: &dyn Definition, plan: &Plan) -> Vec<f64> {
        self.watched(tokens, case, plan, &mut |_, _, _| {})
    }

    /// The probabilities of every head, `[layer][head][query][key]`, with keys up to the query.
    pub fn probabilities(
        &self,
        tokens: &[Token],
        case: &dyn Definition,
        plan: &Plan,
    ) -> Vec<Vec<Vec<Vec<f64>>>> {
        let heads = |il| vec![vec![Vec::new(); tokens.len()]; self.hp.attention_of(il).unwrap().n_head];
        let mut all: Vec<Vec<Vec<Vec<f64>>>> = (0..self.hp.n_layer).map(heads).collect();
        self.watched(tokens, case, plan, &mut |il, [h, i], row| {
            let mut keys = vec![0.0; i + 1];
            row.iter().for_each(|&(j, p)| keys[j] = p);
            all[il][h][i] = keys;
        });
        all
    }

    /// [`Naive::logits`], with every layer's rows of probabilities handed to `see`.
    fn watched(&self, tokens: &[Token], case: &dyn Definition, plan: &Plan, see: &mut See<'_>) -> Vec<f64> {
        let (hp, n) = (&self.hp, tokens.len());
        let of_kind = |(kind, layer): (usize, &LayerAttention)| {
            let tables = layer.rotation.map_or(Vec::new(), |_| case.tables(hp, plan, kind));
            Turns::new(&tables, case.mscale(kind), case.farthest(n), case.unit() as usize)
        };
        let turns: Vec<Turns> = hp.attention.iter().enumerate().map(of_kind).collect();
        let embd = &self.tensors["token_embd.weight"];
        let row = |t: Token| &embd[t as usize * hp.n_embd..(t as usize + 1) * hp.n_embd];
        let mut x: Vec<f64> = tokens.iter().flat_map(|&t| row(t).to_vec()).collect();
        x.iter_mut().for_each(|x| *x *= f64::from(hp.embedding_scale));
        for il in 0..hp.n_layer {
            let name = |part: &str| format!("blk.{il}.{part}");
            let read = self.norm(&x, &name("attn_norm"));
            let mut attended = match hp.layers[il].kind {
                Some(kind) => {
                    let mixed = self.attention(il, &read, n, case, &turns[kind], see);
                    self.linear(&mixed, n, &name("attn_output"))
                }
                None => self.linear(&self.delta_net(il, &read, n, case), n, &name("ssm_out")),
            };
            // The norm before the feed-forward of some has this name.
            let renamed = among(hp, &["gpt-oss", "qwen35", "qwen35moe"]);
            if !renamed {
                attended = self.norm(&attended, &name("post_attention_norm"));
            }
            attended.iter_mut().for_each(|x| *x *= f64::from(hp.residual_scale));
            let before = x.clone();
            add(&mut x, &attended);
            // The feed-forward reads what attention added to, or what attention read.
            let reads = match () {
                () if among(hp, &["phi2", "cohere2"]) => read,
                () if renamed => self.norm(&x, &name("post_attention_norm")),
                () if hp.parallel_residual => self.norm(&before, &name("ffn_norm")),
                () => self.norm(&x, &name("ffn_norm")),
            };
            let h = self.norm(&self.feed_forward(il, &reads, n), &name("post_ffw_norm"));
            h.iter().zip(&mut x).for_each(|(h, x)| *x += h * f64::from(hp.residual_scale));
        }
        let normed = self.norm(&x, "output_norm");
        let own = self.tensors.contains_key("output.weight");
        let mut logits = self.linear(&normed, n, if own { "output" } else { "token_embd" });
        logits.iter_mut().for_each(|x| *x *= f64::from(hp.logit_scale));
        if let Some(cap) = hp.logit_softcap.map(f64::from) {
            logits.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
        logits
    }

    /// Attention's output, before its projection.
    fn attention(
        &self,
        il: usize,
        read: &[f64],
        n: usize,
        case: &dyn Definition,
        turns: &Turns,
        see: &mut See<'_>,
    ) -> Vec<f64> {
        let name = |part: &str| format!("blk.{il}.{part}");
        let [q, k, v] = self.qkv(il, read, n);
        let (q, gate) = self.gates(il, q);
        let (q, k) = (self.norm(&q, &name("attn_q_norm")), self.norm(&k, &name("attn_k_norm")));
        let mut out = self.attend(il, [&q, &k, &v], case, turns, see);
        out.iter_mut().zip(gate.into_iter().flatten()).for_each(|(x, open)| *x *= open);
        out
    }

    /// Queries, keys and values, of three maps or of one whose rows are all of them.
    fn qkv(&self, il: usize, x: &[f64], n: usize) -> [Vec<f64>; 3] {
        let name = |part: &str| format!("blk.{il}.{part}");
        if !self.tensors.contains_key(&name("attn_qkv.weight")) {
            return ["attn_q", "attn_k", "attn_v"].map(|part| self.linear(x, n, &name(part)));
        }
        let (all, layer) = (self.linear(x, n, &name("attn_qkv")), self.hp.attention_of(il).unwrap());
        let (q, kv) = (layer.n_embd_q(), layer.n_embd_kv());
        let rows = || all.chunks_exact(q + 2 * kv);
        [(0, q), (q, q + kv), (q + kv, q + 2 * kv)]
            .map(|(from, to)| rows().flat_map(|row| row[from..to].to_vec()).collect())
    }

    fn feed_forward(&self, il: usize, x: &[f64], n: usize) -> Vec<f64> {
        let name = |part: &str| format!("blk.{il}.{part}");
        let gelu = |x: f64| {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            match self.hp.gelu {
                Gelu::Tanh => 0.5 * x * (1.0 + (c * (x + 0.044715 * x * x * x)).tanh()),
                Gelu::Erf => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
            }
        };
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let act = |x: f64| if self.hp.arch.starts_with("gemma") { gelu(x) } else { silu(x) };
        if self.tensors.contains_key(&name("ffn_gate_inp.weight")) {
            return self.experts(il, x, n);
        }
        let up = self.linear(x, n, &name("ffn_up"));
        let n_ff = self.hp.layers[il].n_ff;
        let h: Vec<f64> = if self.tensors.contains_key(&name("ffn_gate.weight")) {
            let gate = self.linear(x, n, &name("ffn_gate"));
            gate.iter().zip(&up).map(|(g, u)| act(*g) * u).collect()
        } else if up.len() == 2 * n_ff * n {
            let gated = |row: &[f64]| (0..n_ff).map(|i| silu(row[i]) * row[n_ff + i]).collect::<Vec<_>>();
            up.chunks_exact(2 * n_ff).flat_map(gated).collect()
        } else {
            up.into_iter().map(gelu).collect()
        };
        self.linear(&h, n, &name("ffn_down"))
    }

    /// A mixture of experts: those with the largest probabilities, weighted by these over their sum.
    fn experts(&self, il: usize, x: &[f64], n: usize) -> Vec<f64> {
        let name = |part: &str| format!("blk.{il}.{part}");
        let ffn = self.hp.experts.unwrap();
        let logits = self.linear(x, n, &name("ffn_gate_inp"));
        let row_of = |part: &str, e: usize, x: &[f64]| {
            let all = &self.tensors[&name(&format!("{part}.weight"))];
            let w = &all[e * all.len() / ffn.n_expert..(e + 1) * all.len() / ffn.n_expert];
            let bias = self.tensors.get(&name(&format!("{part}.bias")));
            let rows = w.chunks_exact(x.len());
            let bias = |o: usize| bias.map_or(0.0, |b| b[e * b.len() / ffn.n_expert + o]);
            record(&name(part), [e, ffn.n_expert], x);
            rows.enumerate().map(|(o, w)| dot(w, x) + bias(o)).collect::<Vec<f64>>()
        };
        let activation = |g: f64, u: f64| match self.hp.arch.as_str() {
            "gpt-oss" => g.min(7.0) / (1.0 + (-1.702 * g.min(7.0)).exp()) * (u.clamp(-7.0, 7.0) + 1.0),
            _ => g / (1.0 + (-g).exp()) * u,
        };
        let one = |(x, logits): (&[f64], &[f64])| {
            let mut order: Vec<usize> = (0..ffn.n_expert).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            order.truncate(ffn.n_used);
            // Of probabilities over their sum, the sum over all experts cancels.
            let total: f64 = order.iter().map(|&e| (logits[e] - logits[order[0]]).exp()).sum();
            let mut out = vec![0.0; x.len()];
            for &e in &order {
                let (gate, up) = (row_of("ffn_gate_exps", e, x), row_of("ffn_up_exps", e, x));
                let h: Vec<f64> = gate.iter().zip(&up).map(|(&g, &u)| activation(g, u)).collect();
                let weight = (logits[e] - logits[order[0]]).exp() / total;
                let down = row_of("ffn_down_exps", e, &h);
                out.iter_mut().zip(down).for_each(|(o, d)| *o += weight * d);
            }
            out
        };
        let rows = x.chunks_exact(x.len() / n).zip(logits.chunks_exact(ffn.n_expert));
        let mut out: Vec<f64> = rows.flat_map(one).collect();
        self.add_shared(il, x, n, &mut out);
        out
    }

    /// `x W^T + bias` for each of `n` rows.
    fn linear(&self, x: &[f64], n: usize, name: &str) -> Vec<f64> {
        let w = &self.tensors[&format!("{name}.weight")];
        let n_in = x.len() / n;
        let bias = self.tensors.get(&format!("{name}.bias"));
        let mut out = Vec::with_capacity(n * w.len() / n_in);
        for x in x.chunks_exact(n_in) {
            record(name, [0, 1], x);
            for (o, row) in w.chunks_exact(n_in).enumerate() {
                out.push(dot(row, x) + bias.map_or(0.0, |b| b[o]));
            }
        }
        out
    }

    /// Rows as wide as the norm's scale; what has no norm of this name stays as it is.
    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let Some(w) = self.tensors.get(&format!("{name}.weight")) else { return x.to_vec() };
        let bias = self.tensors.get(&format!("{name}.bias"));
        let centered = among(&self.hp, &["cohere2", "gptneox", "phi2"]);
        let one = |row: &[f64]| {
            let n = row.len() as f64;
            let mean = if centered { row.iter().sum::<f64>() / n } else { 0.0 };
            let square = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (square + f64::from(self.hp.norm_eps)).sqrt();
            let one =
                |(i, (x, w)): (usize, (&f64, &f64))| (x - mean) * scale * w + bias.map_or(0.0, |b| b[i]);
            row.iter().zip(w).enumerate().map(one).collect::<Vec<_>>()
        };
        x.chunks_exact(w.len()).flat_map(one).collect()
    }

    /// q `[n][n_head * d]`, k and v `[n][n_head_kv * d]` to `[n][n_head * d]`.
    fn attend(
        &self,
        il: usize,
        [q, k, v]: [&[f64]; 3],
        case: &dyn Definition,
        turns: &Turns,
        see: &mut See<'_>,
    ) -> Vec<f64> {
        let layer = self.hp.attention_of(il).unwrap();
        let (d, q_row, kv_row) = (layer.n_embd_head, layer.n_embd_q(), layer.n_embd_kv());
        let n = q.len() / q_row;
        let mut out = vec![0.0; q.len()];
        for i in 0..n {
            let kind = self.hp.layers[il].kind.unwrap();
            // A key, and its distance where the layer is rotated.
            let sees = |j: usize| {
                if layer.window.is_some_and(|w| i - j >= w) {
                    return None;
                }
                let (i, j) = (i as i64, j as i64);
                if layer.rotation.is_none() {
                    return case.sees_unrotated(i, j).then_some(None);
                }
                case.distance_in(kind, i, j)
                    .map(|rel| Some(usize::try_from(rel).expect("no key lies ahead of its query")))
            };
            let seen: Vec<(usize, Option<usize>)> = (0..=i).filter_map(|j| Some((j, sees(j)?))).collect();
            let q_scale = if layer.rotation.is_some() { case.q_scale(kind, i as i64) } else { 1.0 };
            let scale = q_scale * f64::from(layer.scale);
            let of_layer = seen;
            for h in 0..layer.n_head {
                let sees = |(j, _): &&(usize, Option<usize>)| case.head_sees(layer, h, i as i64, *j as i64);
                let seen: Vec<_> = of_layer.iter().filter(sees).copied().collect();
                // Query heads in groups share a key head, and its table.
                let g = h / (layer.n_head / layer.n_head_kv);
                let table = turns.0.get(g).or(turns.0.first());
                let q = &q[i * q_row + h * d..][..d];
                let key = |j: usize| &k[j * kv_row + g * d..][..d];
                let score = |&(j, rel): &(usize, Option<usize>)| match rel {
                    Some(rel) => self.score(q, key(j), &table.expect("a rotated layer")[rel]) * scale,
                    None => dot(q, key(j)) * scale,
                };
                let seen = match case.block().zip(case.top()) {
                    Some((block, top)) => {
                        let most = |j: usize| (dot(q, q) * dot(key(j), key(j))).sqrt() * scale;
                        taken(seen, i, block, top, &score, &most)
                    }
                    None => seen,
                };
                let capped = |s: f64| layer.softcap.map(f64::from).map_or(s, |c| c * (s / c).tanh());
                let scores: Vec<f64> = seen.iter().map(score).map(capped).collect();
                let sink = self.tensors.get(&format!("blk.{il}.attn_sinks.weight")).map(|sinks| sinks[h]);
                let top = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - top).exp()).sum();
                let out = &mut out[i * q_row + h * d..][..d];
                let p = seen.iter().zip(&scores).map(|(&(j, _), s)| (j, (s - top).exp() / sum));
                let mut p: Vec<(usize, f64)> = p.collect();
                if let Some(block) = case.block() {
                    p = grouped(&seen.iter().map(|s| s.0).zip(scores).collect::<Vec<_>>(), i, block);
                }
                see(il, [h, i], &p);
                for (j, p) in p {
                    out.iter_mut().zip(&v[j * kv_row + g * d..][..d]).for_each(|(o, v)| *o += p * v);
                }
            }
        }
        out
    }

    /// `(R(rel) q) . k`; dimensions past those that `turn` has pairs for are not turned and have no magnitude.
    fn score(&self, q: &[f64], k: &[f64], turn: &[(f64, f64)]) -> f64 {
        let half = turn.len();
        let pair = |j: usize| if self.adjacent { (2 * j, 2 * j + 1) } else { (j, j + half) };
        let turned = turn.iter().enumerate().map(|(j, (cos, sin))| {
            let (a, b) = pair(j);
            (q[a] * cos - q[b] * sin) * k[a] + (q[a] * sin + q[b] * cos) * k[b]
        });
        turned.sum::<f64>() + dot(&q[2 * half..], &k[2 * half..])
    }
}

/// In four sums, as one would wait for itself at every step.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    for (a, b) in a.chunks(4).zip(b.chunks(4)) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(s, (a, b))| *s += a * b);
    }
    sums.iter().sum()
}

fn among(hp: &Hparams, archs: &[&str]) -> bool {
    archs.contains(&hp.arch.as_str())
}

/// The error function: its power series, and 1 where that has lost its digits and the function is within 1e-9 of it.
fn erf(x: f64) -> f64 {
    if x.abs() > 4.5 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    2.0 / std::f64::consts::PI.sqrt() * sum
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Largest error of a row of logits, relative to the row's norm.
pub fn worst_row(got: &[f32], want: &[f64], n_vocab: usize) -> f64 {
    assert!(got.len() == want.len() && got.len().is_multiple_of(n_vocab), "{} of {}", got.len(), want.len());
    let error = |(got, want): (&[f32], &[f64])| {
        let off: f64 = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum();
        let error = (off / dot(want, want)).sqrt();
        // `max` would pass over a NaN.
        assert!(error.is_finite(), "logits that are no numbers");
        error
    };
    got.chunks_exact(n_vocab).zip(want.chunks_exact(n_vocab)).map(error).fold(0.0, f64::max)
}
