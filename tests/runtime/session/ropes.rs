//! Rope methods through a session: token by token, for as long as it lives, and as its plan says.

use ropewalk::session::{Session, SessionParams};
use ropewalk::{DType, Token};

use super::{assert_close, model, open, with_kv, KV};
use crate::common::{all_logits, params, some_tokens};

const N_CTX: usize = 1024;

/// Two heads of keys; the trained window is 512.
const SPECS: [&str; 12] = [
    "plain",
    "pi:factor=4",
    "ntk:factor=4",
    "dynamic-ntk:factor=2",
    "yarn:factor=4",
    "abf:base=300000",
    "sba:factor=4",
    "harpe",
    "harpe:bases=search",
    "harpe:bases=uniform",
    "harpe:bases=uniform-desc,base-min=20000,base-max=900000",
    "harpe:bases=30000/700000",
];

fn under(rope: &str, kv_type: DType, portable: bool) -> SessionParams {
    with_kv(N_CTX, kv_type).rope(Some(rope.parse().unwrap())).portable(portable)
}

fn logits(shape: &str, rope: &str, portable: bool, tokens: &[Token]) -> Vec<f32> {
    all_logits(model(shape, DType::F32), &under(rope, DType::F32, portable), tokens)
}

#[test]
fn decode_is_prefill_under_every_method() {
    for shape in ["llama-tiny", "qwen2-tiny"] {
        let tokens = some_tokens(100, 320);
        for rope in SPECS {
            for portable in [false, true] {
                let p = under(rope, DType::F32, portable).n_ubatch(1);
                let one = all_logits(model(shape, DType::F32), &p, &tokens);
                let what = format!("{shape}, {rope}, portable {portable}, token by token");
                assert_close(&one, &logits(shape, rope, portable, &tokens), KV[0].1, &what);
            }
        }
    }
}

/// The base comes from the length the session was opened for, not from what it holds.
#[test]
fn dynamic_ntk_keeps_its_base_for_life() {
    let m = model("llama-tiny", DType::F32);
    let tokens = some_tokens(900, 320);
    let rope = "dynamic-ntk:factor=2";
    let whole = all_logits(m, &under(rope, DType::F32, false), &tokens);
    let p = under(rope, DType::F32, false).n_ubatch(50);
    assert_close(&whole, &all_logits(m, &p, &tokens), KV[0].1, "in chunks, past the trained window");
    let mut s = open(m, &p);
    let before = s.plan().clone();
    s.append(&tokens).unwrap();
    assert_eq!(*s.plan(), before);
    let short = under(rope, DType::F32, false).n_ctx(512);
    assert_ne!(open(m, &short).plan().layer(0).freqs, before.layer(0).freqs, "another promise, another base");
}

#[test]
fn the_plan_says_what_is_in_force() {
    let m = model("llama-tiny", DType::F32);
    for rope in SPECS {
        let s = open(m, &under(rope, DType::F16, false));
        let spec = s.plan().spec.to_string();
        let again = open(m, &under(&spec, DType::F16, false));
        assert_eq!(
            (s.plan().layer(0).freqs.clone(), s.plan().layer(0).mscale),
            (again.plan().layer(0).freqs.clone(), again.plan().layer(0).mscale)
        );
    }
    let declared = Session::new(m, &params(64)).unwrap();
    assert_eq!(declared.plan().spec.to_string(), "plain");
}
