//! The memory that a session needs, as it is computed for a model of eight billion parameters.

use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams};
use ropewalk::internals::kv::{whole_blocks, KvCache};
use ropewalk::internals::session::Cost;
use ropewalk::rope::{Plan, Spec};
use ropewalk::session::{Attention, SessionParams};
use ropewalk::{DType, Error};

/// Llama 3 8B.
fn hp() -> Hparams {
    Hparams {
        arch: "llama".into(),
        n_layer: 32,
        n_embd: 4096,
        n_vocab: 128_256,
        n_ctx_train: 8192,
        norm_eps: 1e-5,
        attention: vec![LayerAttention::new(32, 8, 128).rotated(5e5, 128)],
        layers: LayerHparams::alike(32, 14336),
        ..Hparams::default()
    }
}

fn advised(line: &str) -> Vec<(usize, DType)> {
    line.split("; ctx ")
        .skip(1)
        .filter_map(|s| s.split_once(" fits with kv type "))
        .map(|(n, t)| (n.parse().unwrap(), DType::parse(t.split(';').next().unwrap()).unwrap()))
        .collect()
}

fn plan(spec: &str, n_ctx: usize) -> Plan {
    Plan::new(&spec.parse::<Spec>().unwrap(), &hp(), n_ctx).unwrap()
}

#[test]
fn what_is_advised_fits() {
    let hp = hp();
    for spec in ["plain", "self-extend:window=1024,group=8", "dca"] {
        let plan = plan(spec, 1 << 20);
        for attention in [Attention::Auto, Attention::Explicit] {
            for gib in [1usize, 4, 16, 64] {
                let free = gib << 30;
                let p = SessionParams::new(1 << 20).attention(attention);
                let Err(Error::OutOfMemory { needed, free: Some(left), what: line, .. }) =
                    Cost::new(&hp, &p, &plan).check(free)
                else {
                    panic!("{spec} in {gib} GiB fits");
                };
                assert!(needed > free && left == free, "{line}");
                let advice = advised(&line);
                assert!(!advice.is_empty(), "{line}");
                for (n_ctx, kv_type) in advice {
                    let q = p.clone().n_ctx(n_ctx).kv_type(kv_type);
                    let need = Cost::new(&hp, &q, &plan).total();
                    assert!(need < free, "{line}: {n_ctx} needs {need}");
                    assert!(need > free / 2 || n_ctx == p.n_ctx, "{line}: {n_ctx} is far from what fits");
                }
            }
        }
    }
}

#[test]
fn a_cell_of_llama_8b_is_what_its_rows_are() {
    let params = SessionParams::new(8192);
    let (plain, extended) = (plan("plain", 8192), plan("self-extend:group=8", 8192));
    assert_eq!(Cost::new(&hp(), &params, &plain).kv, 8192 * 32 * 2 * 8 * 128 * 2);
    assert_eq!(Cost::new(&hp(), &params, &extended).kv, 8192 * 32 * 3 * 8 * 128 * 2);
    let q8 = SessionParams::new(8192).kv_type(DType::Q8_0);
    assert_eq!(Cost::new(&hp(), &q8, &plain).kv, 8192 * 32 * 2 * 8 * 4 * 34);
}

/// The computed memory equals the allocated memory.
#[test]
fn keys_of_first_positions_cost_as_much_as_their_tensors() {
    let hp = hp();
    for spec in ["plain", "lm-infinite:global=0", "lm-infinite", "lm-infinite:global=200", "dca", "streaming"]
    {
        for n_ctx in [100, 1500, 1600, 8192, 100_000] {
            let (params, plan) = (SessionParams::new(n_ctx), plan(spec, n_ctx));
            let cost = Cost::new(&hp, &params, &plan);
            let defs = KvCache::defs(&hp, &plan, cost.n_cells, params.kv_type).unwrap();
            assert_eq!(
                cost.kv,
                defs.iter().map(|def| def.n_bytes().unwrap()).sum::<usize>(),
                "{spec}, {n_ctx}"
            );
            let rows = cost.kv / (32 * 8 * 128 * 2);
            let starts = match (spec, n_ctx) {
                // 64 sequences of ten, or of 200, in blocks of 256.
                ("lm-infinite", 1600..) => 768,
                ("lm-infinite:global=200", 100_000) => 12_800,
                _ => continue,
            };
            assert_eq!(rows, 2 * whole_blocks(n_ctx) + 2 * starts, "{spec}, {n_ctx}");
        }
    }
}

#[test]
fn an_evicting_plan_costs_the_same_at_any_length() {
    let at = |n_ctx| {
        let plan = plan("lm-infinite:window=4096,evict=true", n_ctx);
        Cost::new(&hp(), &SessionParams::new(n_ctx), &plan).total()
    };
    assert_eq!(at(8192), at(1 << 20));
    let plan = plan("streaming", 8192);
    let line = Cost::new(&hp(), &SessionParams::new(8192), &plan).check(1 << 20).unwrap_err().to_string();
    assert!(line.contains("streaming") && line.contains("smaller window"), "{line}");
}

#[test]
fn without_room_nothing_is_advised() {
    let line = Cost::new(&hp(), &SessionParams::new(8192), &plan("plain", 8192))
        .check(1000)
        .unwrap_err()
        .to_string();
    assert!(line.ends_with("not even ctx 256 fits") && line.contains("1.00 GiB for"), "{line}");
}
