//! Gated delta-nets in plain f64, from their definition: token by token, and each head alone.

use ropewalk::hparams::DeltaNetHparams;

use super::{dot, Definition, Naive};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// As long as 1, but for `eps` under the root.
fn unit(x: &[f64], eps: f64) -> Vec<f64> {
    let length = (dot(x, x) + eps).sqrt();
    x.iter().map(|x| x / length).collect()
}

impl Naive {
    /// The result of a gated delta-net from `n` rows, before its output projection. A document begins with a state of 0, and
    /// its convolution sees nothing before it.
    pub(super) fn delta_net(&self, il: usize, x: &[f64], n: usize, case: &dyn Definition) -> Vec<f64> {
        let name = |part: &str| format!("blk.{il}.{part}");
        let DeltaNetHparams { n_head_k, n_head_v, n_embd_head: d, n_conv, .. } = self.hp.delta_net.unwrap();
        let [qkv, z] = ["attn_qkv", "attn_gate"].map(|part| self.linear(x, n, &name(part)));
        let [alpha, beta] = ["ssm_alpha", "ssm_beta"].map(|part| self.linear(x, n, &name(part)));
        let [weights, dt, a] =
            ["ssm_conv1d.weight", "ssm_dt.bias", "ssm_a"].map(|part| &self.tensors[&name(part)]);
        let (width, eps) = (qkv.len() / n, f64::from(self.hp.norm_eps));
        let sees =
            |t: usize, before: usize| t >= before && case.sees_unrotated(t as i64, (t - before) as i64);
        let mixed = |t: usize, c: usize| {
            let seen = (0..n_conv).filter(|&before| sees(t, before));
            let sum: f64 = seen
                .map(|before| weights[c * n_conv + n_conv - 1 - before] * qkv[(t - before) * width + c])
                .sum();
            sum * sigmoid(sum)
        };
        let head = |t: usize, first: usize| -> Vec<f64> { (first..first + d).map(|c| mixed(t, c)).collect() };
        let mut out = vec![0.0; n * n_head_v * d];
        for h in 0..n_head_v {
            let h_k = h % n_head_k;
            let mut state = vec![0.0; d * d];
            for t in 0..n {
                let at = t * n_head_v + h;
                let q = unit(&head(t, h_k * d), eps);
                let k = unit(&head(t, (n_head_k + h_k) * d), eps);
                let v = head(t, (2 * n_head_k + h) * d);
                let left = (a[h] * (1.0 + (alpha[at] + dt[h]).exp()).ln()).exp();
                let left = if sees(t, 1) { left } else { 0.0 };
                for (j, row) in state.chunks_exact_mut(d).enumerate() {
                    row.iter_mut().for_each(|s| *s *= left);
                    let new = sigmoid(beta[at]) * (v[j] - dot(row, &k));
                    row.iter_mut().zip(&k).for_each(|(s, k)| *s += new * k);
                    out[at * d + j] = dot(row, &q) / (d as f64).sqrt();
                }
            }
        }
        let normed = self.norm(&out, &name("ssm_norm"));
        normed.iter().zip(z).map(|(x, z)| x * z * sigmoid(z)).collect()
    }

    /// Parts queries from the gates of attention's output, which their map gives in turns, where it does.
    pub(super) fn gates(&self, il: usize, q: Vec<f64>) -> (Vec<f64>, Option<Vec<f64>>) {
        if self.hp.delta_net.is_none() {
            return (q, None);
        }
        let d = self.hp.attention_of(il).unwrap().n_embd_head;
        let half = |at: usize| q.chunks_exact(2 * d).flat_map(|both| both[at..at + d].to_vec()).collect();
        let gate: Vec<f64> = half(d);
        (half(0), Some(gate.into_iter().map(sigmoid).collect()))
    }

    /// The expert that every token is given to, through its gate; added to what the chosen ones give.
    pub(super) fn add_shared(&self, il: usize, x: &[f64], n: usize, out: &mut [f64]) {
        let name = |part: &str| format!("blk.{il}.{part}_shexp");
        if !self.tensors.contains_key(&format!("{}.weight", name("ffn_gate_inp"))) {
            return;
        }
        let [gate, up, open] =
            ["ffn_gate", "ffn_up", "ffn_gate_inp"].map(|part| self.linear(x, n, &name(part)));
        let h: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g * sigmoid(*g) * u).collect();
        let all = self.linear(&h, n, &name("ffn_down"));
        let rows = out.chunks_exact_mut(all.len() / n).zip(all.chunks_exact(all.len() / n));
        for ((out, row), open) in rows.zip(open) {
            out.iter_mut().zip(row).for_each(|(o, x)| *o += sigmoid(open) * x);
        }
    }
}
