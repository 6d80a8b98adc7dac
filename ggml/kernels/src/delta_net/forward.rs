//! The gated delta rule, token by token.

use super::{add_dot, decay, Inputs, Unit, ROWS};
use crate::attention_train::HeadsMut;
use crate::simd::{with_registers, FloatLanes, Registers};

#[derive(Debug, Default)]
pub struct Scratch {
    unit: Unit,
    /// The part of the state that each token leaves.
    left: Vec<f32>,
}

impl Scratch {
    /// Computes the outputs `[d, n_head_v, n]` of the value heads that a key head belongs to, and their states after
    /// the last token, `[d * d, n_head_v, 1]`.
    ///
    /// # Safety
    /// Nobody else reads or writes these heads of both meanwhile, and they are no memory of each other or of the operands.
    pub unsafe fn run(
        &mut self,
        x: &Inputs<'_>,
        head_k: usize,
        out: &mut HeadsMut<'_>,
        states: &mut HeadsMut<'_>,
    ) {
        // SAFETY: the caller's promise.
        with_registers!(Registers::best(), s => unsafe { self.run_with(s, x, head_k, out, states) });
    }

    /// # Safety
    /// The promise of [`Scratch::run`].
    unsafe fn run_with<S: FloatLanes>(
        &mut self,
        s: S,
        x: &Inputs<'_>,
        head_k: usize,
        out: &mut HeadsMut<'_>,
        states: &mut HeadsMut<'_>,
    ) {
        x.check();
        let ([d, _, n], scale) = (x.qkv.shape(), x.scale());
        self.unit.load(s, x, head_k);
        for h in (head_k..x.n_head_v).step_by(x.n_head_k) {
            self.left.clear();
            self.left.extend((0..n).map(|t| x.left(h, t)));
            // SAFETY: the head is the caller's, apart from the other result and the operands.
            let state = unsafe { states.row(h, 0) };
            state.copy_from_slice(x.state_of(h));
            for (i, rows) in state.chunks_mut(ROWS * d).enumerate() {
                for t in 0..n {
                    let ((q, k), left, beta) = (self.unit.at(t), self.left[t], x.beta(h, t));
                    // SAFETY: as above.
                    let out = unsafe { out.row(h, t) }[i * ROWS..].iter_mut();
                    let values = &x.value(h, t)[i * ROWS..];
                    for ((row, v), out) in rows.chunks_exact_mut(d).zip(values).zip(out) {
                        let delta = (v - decay(s, row, left, k)) * beta;
                        *out = add_dot(s, row, delta, k, q) * scale;
                    }
                }
            }
        }
    }
}
