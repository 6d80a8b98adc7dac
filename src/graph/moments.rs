//! Second moments of linear-layer inputs: sums of squares over tokens, from which importance matrices are made.

use std::cell::RefCell;

use ggml::experts::Chosen;
use ggml::graph::{Builder, OutputId};
use ggml::tensor::Tensor;
use ggml::{Error, Result};

use super::blocks::Graph;
use super::Capabilities;
use crate::layers::{ExpertStack, Linear};

/// The sums of squares of one input, as outputs of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moments {
    /// Names of the weights that it is multiplied by.
    pub weights: Vec<String>,
    /// F32 `[n_in]`, sums over all tokens, or `[n_in, n_expert]`, over the tokens given to each expert.
    pub sums: OutputId,
    /// F32 `[n_expert]`: the tokens given to each expert. `None` where every token is counted.
    pub counts: Option<OutputId>,
}

/// The inputs watched so far, by tensor.
#[derive(Debug, Default)]
pub(super) struct Watch(RefCell<Vec<(usize, Moments)>>);

impl<'a, 'c> Graph<'a, 'c> {
    /// A graph that only runs forwards, and whose outputs are the second moments of what linear maps read.
    pub fn watched(b: &'a Builder<'c>, capabilities: Capabilities) -> Self {
        Graph { moments: Some(Watch::default()), ..Graph::new(b, capabilities) }
    }

    /// The outputs, once the graph is built: one for each input, in the order they are computed.
    pub fn into_moments(self) -> Vec<Moments> {
        self.moments.map_or_else(Vec::new, |watch| watch.0.into_inner().into_iter().map(|(_, m)| m).collect())
    }

    /// Makes the second moments of `x`, F32 `[n_in, T]`, which this map reads, an output, where the graph is watched.
    pub fn watch(&self, x: Tensor<'c>, map: &Linear) -> Result<()> {
        let Some(watch) = &self.moments else { return Ok(()) };
        let name = map.weight_id.to_string();
        if let Some((_, m)) = watch.0.borrow_mut().iter_mut().find(|(id, _)| *id == x.id()) {
            m.weights.push(name);
            return Ok(());
        }
        let sums = self.b.output(self.sum_rows(self.b.mul(x, x)?)?);
        watch.0.borrow_mut().push((x.id(), Moments { weights: vec![name], sums, counts: None }));
        Ok(())
    }

    /// The same for `x`, F32 `[n_in, 1 or n_used, T]`, which these maps of each expert read.
    pub(super) fn watch_experts(
        &self,
        x: Tensor<'c>,
        chosen: Chosen<'c>,
        stacks: &[&ExpertStack],
    ) -> Result<()> {
        let Some(watch) = &self.moments else { return Ok(()) };
        if !self.capabilities.custom_ops {
            let what = "second moments of a mixture of experts are for the CPU, and by ops of our own (not portable)";
            return Err(Error::Op { op: "moments", what: what.into() });
        }
        let (b, [n_in, places, n, _]) = (self.b, x.ne());
        let hot = b.one_hot(chosen, places > 1)?;
        let rows = b.reshape(x, &[n_in, places * n])?;
        let sums = b.output(self.outer(b.mul(rows, rows)?, hot)?);
        let counts = Some(b.output(self.sum_rows(hot)?));
        let weights = stacks.iter().map(|stack| stack.weight.def().name.clone()).collect();
        watch.0.borrow_mut().push((x.id(), Moments { weights, sums, counts }));
        Ok(())
    }
}
