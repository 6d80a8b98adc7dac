//! Second moments of linear-layer inputs under the session's plan, used to build importance matrices.

use super::Session;
use crate::graph::Shape;
use crate::model::{Error, Result};
use crate::Token;

/// Squares of one input of linear layers, summed over the tokens of a micro-batch.
#[derive(Debug, Clone, Copy)]
pub struct InputMoments<'a> {
    /// Names of the weights that this input is multiplied by.
    pub weights: &'a [String],
    /// Sums over tokens, `[n_in]` for each matrix: one, or one for each expert.
    pub sums: &'a [f32],
    /// Number of tokens summed, for each matrix.
    pub counts: &'a [f32],
}

impl Session {
    /// Empties the session, reads `tokens` as sequence 0, and calls `f` with the second moments of the input of every
    /// linear layer, including the output matrix, micro-batch by micro-batch. All tokens count in every layer. No
    /// logits are computed.
    ///
    /// # Errors
    /// Returns an error if there are no tokens, if sums are not finite, or for a mixture of experts on a device
    /// without ropewalk's own ops; the errors of [`Session::decode`]; and the errors of `f`.
    pub fn moments(
        &mut self,
        tokens: &[Token],
        f: &mut dyn FnMut(&InputMoments<'_>) -> Result<()>,
    ) -> Result<()> {
        self.refuse_landmarks("moments")?;
        if tokens.is_empty() {
            return Err(Error::argument("moments", "at least one token", "none"));
        }
        let largest = Shape { moments: true, ..self.largest_of_one(self.params.n_ubatch) };
        self.read_watched(tokens, &largest, &mut |session, n| session.read_moments(n, f))
    }

    /// The outputs of a micro-batch of the last `n` tokens.
    fn read_moments(&self, n: usize, f: &mut dyn FnMut(&InputMoments<'_>) -> Result<()>) -> Result<()> {
        let (mut sums, mut counts) = (Vec::new(), Vec::new());
        for moments in self.current.iter().flat_map(|built| &built.moments) {
            self.exec.read_f32(moments.sums, &mut sums)?;
            match moments.counts {
                Some(output) => self.exec.read_f32(output, &mut counts)?,
                None => counts = vec![n as f32],
            }
            let weights = &moments.weights;
            if let Some((i, sum)) = sums.iter().enumerate().find(|(_, sum)| !sum.is_finite()) {
                let (names, end) = (weights.join(", "), self.tokens[0].len());
                return Err(Error::Invalid(format!(
                    "{names}: tokens {} to {}: expected finite squares of what it reads, found {sum} in column {i}",
                    end - n,
                    end - 1
                )));
            }
            f(&InputMoments { weights, sums: &sums, counts: &counts })?;
        }
        Ok(())
    }
}
