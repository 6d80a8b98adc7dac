//! Keys, values and their gradients of one layer in training.

use std::sync::Arc;

use ggml::graph::Builder;
use ggml::tensor::{Store, StoreTensor, Tensor, TensorDef};
use ggml::{DType, Result};

use crate::hparams::{Hparams, LayerAttention};
use crate::rope::{LayerPlan, Plan, PosMap};

/// Keys, values and their gradients of one layer, F32 `[n_head_kv * d, n_ctx]` each; keys once under each map of
/// positions that the layer's plan has for them. Layers take turns; those with rows of another width have tensors of
/// their own.
#[derive(Debug)]
pub(super) struct Cache {
    store: Arc<Store>,
    /// For each width of rows, the maps of key positions at most.
    widths: Vec<(usize, usize)>,
}

#[derive(Debug, Clone)]
pub(super) struct LayerCache {
    pub(super) values: Stored<StoreTensor>,
    pub(super) grads: Stored<StoreTensor>,
}

/// Keys under each map of positions, and values; or the gradients of these.
#[derive(Debug, Clone)]
pub(super) struct Stored<T> {
    /// In the order of [`LayerPlan::key_maps`].
    pub(super) keys: Vec<(PosMap, T)>,
    pub(super) v: T,
}

impl Stored<StoreTensor> {
    pub(super) fn in_graph<'c>(&self, b: &Builder<'c>) -> Result<Stored<Tensor<'c>>> {
        let keys = self.keys.iter().map(|(map, k)| Ok((*map, b.stored(k)?)));
        Ok(Stored { keys: keys.collect::<Result<_>>()?, v: b.stored(&self.v)? })
    }
}

impl Cache {
    /// The widths of keys that layers of the model have, each once, and the most maps that layers of this width have.
    fn widths(hp: &Hparams, plan: &Plan) -> Vec<(usize, usize)> {
        let of = |(layer, plan): (&LayerAttention, &LayerPlan)| (layer.n_embd_kv(), plan.key_maps().len());
        let mut widths: Vec<(usize, usize)> = hp.attention.iter().zip(plan.kinds()).map(of).collect();
        // Those with more maps first.
        widths.sort_unstable_by_key(|&(width, n_maps)| (width, std::cmp::Reverse(n_maps)));
        widths.dedup_by_key(|&mut (width, _)| width);
        widths
    }

    /// A cache whose tensors `store` makes of their definitions.
    pub(super) fn new(
        hp: &Hparams,
        plan: &Plan,
        n_ctx: usize,
        store: impl FnOnce(Vec<TensorDef>) -> Result<Arc<Store>>,
    ) -> Result<Cache> {
        let widths = Cache::widths(hp, plan);
        let names = |n_maps: usize| ["v", "dv"].into_iter().chain(["k", "dk"].repeat(n_maps));
        let tensors = widths.iter().flat_map(|&(row, n_maps)| names(n_maps).map(move |name| (name, row)));
        let defs = tensors.map(|(name, row)| TensorDef::new(name, DType::F32, &[row, n_ctx]));
        Ok(Cache { store: store(defs.collect::<Result<_>>()?)?, widths })
    }

    /// The tensors for layers with this attention, keys under these maps.
    pub(super) fn of(&self, layer: &LayerAttention, maps: &[PosMap]) -> LayerCache {
        let before = self.widths.iter().take_while(|&&(width, _)| width != layer.n_embd_kv());
        let first: usize = before.map(|(_, n_maps)| 2 + 2 * n_maps).sum();
        let at = |i: usize| StoreTensor { store: Arc::clone(&self.store), index: first + i };
        // Behind each tensor stands its gradient.
        let every_second = |i: usize| {
            let keys = maps.iter().zip(1..).map(|(&map, n)| (map, at(2 * n + i))).collect();
            Stored { keys, v: at(i) }
        };
        LayerCache { values: every_second(0), grads: every_second(1) }
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.store.n_bytes()
    }
}

impl LayerCache {
    pub(super) fn zero_grads(&self) -> Result<()> {
        let mut all = self.grads.keys.iter().map(|(_, dk)| dk).chain([&self.grads.v]);
        all.try_for_each(|t| t.store.zero(t.index))
    }
}
