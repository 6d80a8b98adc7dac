//! Plans of the memory for training: linear in the context, in the order of what is kept, and never beyond what
//! there is.

use ropewalk::model::{Error, Model};
use ropewalk::train::optim::{OptimParams, Optimizer, Schedule};
use ropewalk::train::{Budget, Checkpointing, MemoryPlan, SavedType, TrainParams, Trainer};

use crate::gradients::{models, settings};

fn with(n_ctx: usize, keep: Checkpointing, portable: bool) -> TrainParams {
    settings(n_ctx, 128, "plain").checkpointing(Some(keep)).portable(portable)
}

fn total(model: &Model, settings: &TrainParams) -> i64 {
    let (device, host) = MemoryPlan::new(model, settings).unwrap().totals();
    (device + host) as i64
}

#[test]
fn need_grows_in_a_line_with_the_context() {
    for (about, model) in models() {
        for keep in [Checkpointing::Inputs, Checkpointing::Attention, Checkpointing::Products] {
            for portable in [false, true] {
                let at = |n: usize| total(&model, &with(n, keep, portable));
                let found: Vec<i64> = (2..6).map(|i| at(4096 * i)).collect();
                let steps: Vec<i64> = found.windows(2).map(|w| w[1] - w[0]).collect();
                assert!(steps[0] > 0, "{about} {keep:?}");
                // At the short end, what a block needs hides a part of it. In ops of every device the scores of a block
                // grow up to a tile's, and tensors do not always lie as close together.
                let full = |s: i64| portable && 0 < s && s < steps[0] + steps[0] / 100;
                assert!(
                    steps.iter().all(|s| *s == steps[0] || full(*s)),
                    "{about} {keep:?} portable {portable}: {found:?}"
                );
                let short = at(2048) - at(1024);
                assert!(
                    (short - steps[0] / 4).abs() <= steps[0] / 8,
                    "{about} {keep:?} portable {portable}: {short}"
                );
            }
        }
    }
}

/// In ops of every device attention takes some tiles of keys, however many there are: with them grow their places alone, four
/// bytes each, from where there is a whole tile to where there are more than 64.
#[test]
fn graphs_by_tiles_do_not_grow_with_the_context() {
    for (about, model) in models() {
        let graphs = |n: usize| {
            let plan = MemoryPlan::new(&model, &with(n, Checkpointing::Inputs, true)).unwrap();
            plan.parts.iter().find(|p| p.0 == "graphs").unwrap().1
        };
        let (short, long) = (1 << 18, 1 << 20);
        let found = [graphs(short), graphs(long)];
        println!("{about}: {found:?}");
        assert!(found[1] - found[0] <= 4 * (long - short) + 4096, "{about}: {found:?}");
    }
}

#[test]
fn what_is_kept_costs_in_order_and_half_types_cost_half() {
    for (about, model) in models() {
        let at = |keep| total(&model, &with(2048, keep, false));
        let (inputs, attention, products) =
            (at(Checkpointing::Inputs), at(Checkpointing::Attention), at(Checkpointing::Products));
        assert!(inputs < attention && attention < products, "{about}: {inputs} {attention} {products}");
        let part = |saved_type, name: &str| {
            let settings = with(2048, Checkpointing::Products, false).saved_type(saved_type);
            let plan = MemoryPlan::new(&model, &settings).unwrap();
            assert_eq!((plan.checkpointing, plan.n_ctx), (Checkpointing::Products, 2048));
            plan.parts.iter().find(|p| p.0 == name).unwrap_or_else(|| panic!("{name}")).2
        };
        for name in ["layer inputs", "saved activations of layers"] {
            let whole = part(SavedType::F32, name);
            assert_eq!(part(SavedType::F16, name) * 2, whole, "{about}: {name}");
            assert_eq!(part(SavedType::Bf16, name) * 2, whole, "{about}: {name}");
        }
        let hp = model.hparams();
        assert_eq!(part(SavedType::F32, "layer inputs"), 4 * 2048 * hp.n_embd * hp.n_layer);
    }
}

#[test]
fn the_largest_context_fits_and_the_next_does_not() {
    for (about, model) in models() {
        for keep in [Checkpointing::Inputs, Checkpointing::Products] {
            let settings = with(64, keep, false);
            let need = |n: usize| total(&model, &with(n, keep, false)) as usize;
            for n in [256, 2048, 2560] {
                let budget = |device| Budget { device, host: None };
                let largest = |bytes| MemoryPlan::largest(&model, &settings, budget(bytes)).unwrap();
                assert_eq!(largest(need(n)), Some(n), "{about} {keep:?}");
                assert_eq!(largest(need(n + 256) - 1), Some(n), "{about} {keep:?}");
                assert_eq!(largest(need(n) - 1), Some(n - 256).filter(|&n| n > 0), "{about} {keep:?}");
            }
        }
    }
}

#[test]
fn the_plan_holds_what_a_trainer_allocates() {
    for (about, model) in models() {
        for keep in [Checkpointing::Inputs, Checkpointing::Products] {
            let settings = with(512, keep, false);
            let plan = MemoryPlan::new(&model, &settings).unwrap();
            let trainer = Trainer::new(&model, &settings).unwrap();
            assert_eq!(trainer.checkpointing(), keep);
            let (_, device, host) =
                plan.parts.iter().find(|p| p.0 == "trained tensors and gradients").copied().unwrap();
            let numbers: usize = trainer.params().list().iter().map(|t| t.value.len()).sum();
            assert_eq!((device, host), (8 * numbers, 8 * numbers), "{about}");
            // Tensors begin at multiples of the device's alignment.
            let found = trainer.params().n_bytes();
            assert!(
                (device..device + 128 * trainer.params().list().len()).contains(&found),
                "{about}: {found}"
            );
        }
        // With room for all, all is kept.
        let plan =
            MemoryPlan::new(&model, &with(64, Checkpointing::Inputs, false).checkpointing(None)).unwrap();
        assert_eq!(plan.checkpointing, Checkpointing::Products, "{about}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_allocated() {
    let (_, model) = models().remove(0);
    let error = |settings: TrainParams| Trainer::new(&model, &settings).map(|_| ()).unwrap_err().to_string();
    assert!(error(with(0, Checkpointing::Inputs, false)).starts_with("ctx: expected 1 to"));
    assert!(error(with(usize::MAX, Checkpointing::Inputs, false)).starts_with("ctx: expected 1 to"));
    assert!(error(with(8, Checkpointing::Inputs, false).n_block(0)).starts_with("block: "));
    // More rows than ggml can count.
    assert!(error(with(i32::MAX as usize, Checkpointing::Inputs, false)).starts_with("ctx: expected 1 to"));
    const LONG: usize = 1 << 28;
    for portable in [false, true] {
        for keep in [Some(Checkpointing::Inputs), Some(Checkpointing::Products), None] {
            let settings = with(LONG, Checkpointing::Inputs, portable).checkpointing(keep);
            let Err(Error::OutOfMemory { needed, free: Some(free), what: e, .. }) =
                Trainer::new(&model, &settings)
            else {
                panic!("a context of {LONG} fits");
            };
            assert!(
                needed > free && e.contains(&ropewalk_core::text::bytes(free as u64)),
                "{needed} and {free}: {e}"
            );
            assert!(e.contains("training at ctx 268435456 needs") && e.contains("is available"), "{e}");
        }
    }
    let e = error(with(LONG, Checkpointing::Inputs, false).n_block(usize::MAX));
    assert!(e.starts_with("blocks of 268435456 tokens: ") && e.ends_with("is too large"), "{e}");
    // Branches are for ops of our own.
    let reach =
        settings(64, 16, "plain").rope(Some("self-extend:window=8,group=2".parse().unwrap())).portable(true);
    assert!(error(reach).contains("its 2 branches are trained on the CPU"));
}

/// The optimizer's moving average has a float for each trained parameter, and leaves room for fewer tokens.
#[test]
fn a_moving_average_is_planned() {
    let (_, model) = models().remove(0);
    let without = with(2048, Checkpointing::Inputs, false);
    let average = without.clone().average(true);
    let trainer = Trainer::new(&model, &average).unwrap();
    let optim = OptimParams::new(Schedule::constant(1e-3, 1)).ema(0.9);
    let optimizer = Optimizer::new(optim, trainer.params()).unwrap();
    let kept: usize = optimizer.average.iter().flatten().map(|values| 4 * values.len()).sum();
    assert_eq!(total(&model, &average) - total(&model, &without), kept as i64);
    let budget = Budget { device: total(&model, &without) as usize, host: None };
    assert_eq!(MemoryPlan::largest(&model, &without, budget).unwrap(), Some(2048));
    assert!(MemoryPlan::largest(&model, &average, budget).unwrap() < Some(2048));
}

/// A method that keys are kept under two maps of positions for has twice the keys; nothing else is larger but graphs.
#[test]
fn keys_of_each_map_of_positions_are_planned() {
    let (_, model) = models().remove(0);
    let part = |spec: &str, name: &str| {
        let how = settings(2048, 128, spec).checkpointing(Some(Checkpointing::Inputs));
        let plan = MemoryPlan::new(&model, &how).unwrap();
        plan.parts.iter().find(|p| p.0 == name).unwrap().1
    };
    let keys = |spec: &str| part(spec, "keys, values and their gradients of a layer");
    let own = keys("plain");
    for (spec, maps) in
        [("streaming:window=9", 1), ("rerope:window=9", 2), ("self-extend:window=8,group=2", 2)]
    {
        assert_eq!((keys(spec) - own) * 2, own * (maps - 1), "{spec}");
    }
    // Linear in the context: no pairs of tokens are held.
    let graphs = |n: usize| {
        let how = settings(n, 128, "self-extend:window=8,group=2");
        let plan = MemoryPlan::new(&model, &how).unwrap();
        plan.totals().0 + plan.totals().1
    };
    assert_eq!(graphs(8192) - graphs(4096), (graphs(16_384) - graphs(8192)) / 2);
}
