//! Embedding rows of a sequence, and their gradients where they are trained.

use super::Trainer;
use crate::ids::ParamId;
use crate::model::Result;
use crate::Token;

impl Trainer {
    pub(super) fn embed(&mut self, tokens: &[Token]) -> Result<()> {
        let hp = self.setup.model.hparams();
        let mut rows = vec![0.0; hp.n_embd * self.setup.settings.n_block];
        for (i, part) in tokens.chunks(self.setup.settings.n_block).enumerate() {
            let rows = &mut rows[..part.len() * hp.n_embd];
            self.setup.model.embed_with(&self.setup.transformer, part, rows)?;
            self.inputs[0].put(i * self.setup.settings.n_block, rows);
        }
        Ok(())
    }

    pub(super) fn embedding_gradient(&mut self, tokens: &[Token]) -> Result<()> {
        let (hp, grad) = (self.setup.model.hparams(), &self.grad);
        let (n_embd, factor, landmark) = (hp.n_embd, hp.embedding_scale, self.setup.model.landmark_token());
        // The landmark token has a separate row, after the rows of the vocabulary.
        for (id, of_landmark) in [(ParamId::Embedding, false), (ParamId::LandmarkEmbedding, true)] {
            let mut row = vec![0.0; n_embd];
            self.setup.params.add_to_grad(id, |sum| {
                let those = |&(_, &t): &(usize, &Token)| (t == landmark) == of_landmark;
                for (i, &token) in tokens.iter().enumerate().filter(those) {
                    grad.get(i, &mut row);
                    let at = if of_landmark { 0 } else { token as usize * n_embd };
                    sum[at..][..n_embd].iter_mut().zip(&row).for_each(|(s, g)| *s += factor * g);
                }
            })?;
        }
        Ok(())
    }
}
