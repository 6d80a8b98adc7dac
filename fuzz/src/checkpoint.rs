//! Checkpoints of training, and with them safetensors: a refused one changes nothing.

use std::collections::BTreeMap;

use ropewalk::train::checkpoint::{load, save, State};
use ropewalk::train::optim::{OptimParams, Optimizer, Schedule};
use ropewalk::train::{LoraParams, ParamSet, Trainable};

use crate::{accepted, base, file};

fn fresh() -> (ParamSet, Optimizer) {
    let lora = LoraParams::default().targets(vec!["q".into()]).rank(2);
    let params = ParamSet::new(base().0, &Trainable::Lora(lora)).unwrap();
    let optim = OptimParams::new(Schedule::constant(1e-3, 4));
    let optimizer = Optimizer::new(optim, &params).unwrap();
    (params, optimizer)
}

/// Loads the checkpoint. Its checksum is not mended, for it stands inside; that there is one is tested
/// elsewhere, and what comes before it is being read here.
pub fn run(bytes: &[u8]) -> bool {
    let path = file("in.safetensors", bytes);
    let (mut params, mut optimizer) = fresh();
    let sound = accepted(load(&path, &BTreeMap::new(), &mut params, &mut optimizer));
    if !sound {
        let (untouched, _) = fresh();
        assert!(params.list() == untouched.list(), "a refused checkpoint changed values");
    }
    sound
}

/// A checkpoint of one pair.
pub fn seeds() -> Vec<Vec<u8>> {
    let path = crate::scratch("seed.safetensors");
    let (params, optimizer) = fresh();
    let state = State { step: 3, n_seen: 6, settings: BTreeMap::new() };
    save(&path, &state, &params, &optimizer).unwrap();
    vec![std::fs::read(path).unwrap()]
}
