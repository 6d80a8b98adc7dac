//! Fills the inputs of a layer's graph before it runs.

use rand::Rng;

use super::layer::{attention, Block, LayerIds};
use super::saved::saved_rows;
use super::seen::Seen;
use super::{delta_net, head, params, Trainer};
use crate::graph::{Positions, SavedActivation};
use crate::model::Result;

impl Trainer {
    /// For the tokens of a block.
    pub(super) fn fill(&mut self, ids: &LayerIds, block: Block, seen: &Seen) -> Result<()> {
        let (exec, hp) = (&mut self.exec, self.setup.model.hparams());
        let at = block.start..block.start + block.n;
        for (id, rows) in [(ids.x, &self.inputs[block.il]), (ids.d_y, &self.grad)] {
            if let Some(id) = id {
                exec.fill(id, |out: &mut [f32]| rows.get(block.start, out))?;
            }
        }
        if let Some(rotation) = &ids.rotation {
            let (layer, plan) = attention(hp, &self.setup.plan, block.il)?;
            let drawn = self.clex.as_ref().filter(|clex| clex.plan.layer(block.il).applies);
            let in_document: Vec<i32>;
            let (rotated, pos) = match drawn {
                Some(clex) => (clex.plan.layer(block.il), Positions::Real(&clex.positions()[at.clone()])),
                None if plan.is_own_reach(layer) => (plan, Positions::Whole(&self.positions[at.clone()])),
                None => {
                    in_document = at.clone().map(|i| seen.past(i)).collect();
                    (plan, Positions::Whole(&in_document))
                }
            };
            rotation.fill(exec, layer, rotated, pos, &mut self.scratch)?;
            for (input, branch) in ids.seen.iter().zip(&plan.branches) {
                let reach = Some(&branch.reach).filter(|_| !plan.is_own_reach(layer));
                input.fill(exec, at.clone(), seen, layer, reach)?;
            }
        }
        if let Some(cells) = ids.cells {
            exec.set(cells, &at.clone().map(|i| i as i64).collect::<Vec<_>>())?;
        }
        delta_net::fill(ids, exec, at, seen)?;
        for &(what, activation) in &ids.saved {
            if let SavedActivation::Load(id) = activation {
                let rows = saved_rows(&mut self.saved[block.il], what)?;
                exec.fill(id, |out: &mut [f32]| rows.get(block.start, out))?;
            }
        }
        for (map, id) in &ids.dropout_masks {
            let keep_p = 1.0 - self.setup.settings.trainable.dropout();
            let what = format!("dropout {} {} {}", self.n_seen, map.weight(), block.start);
            let mut rng = params::generator(self.setup.settings.trainable.seed(), &what);
            let mut value = || if rng.random::<f32>() < keep_p { 1.0 / keep_p } else { 0.0 };
            exec.fill(*id, |out: &mut [f32]| out.iter_mut().for_each(|m| *m = value()))?;
        }
        head::fill_row_ids(exec, &ids.row_ids)?;
        Ok(())
    }
}
