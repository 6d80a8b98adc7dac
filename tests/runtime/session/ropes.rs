//! Rope methods through a session: token by token, and for as long as it lives.

use ropewalk::session::SessionParams;
use ropewalk::DType;

use super::{assert_close, model, open, with_kv, KV};
use crate::common::{all_logits, some_tokens};

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

fn under(rope: &str, portable: bool) -> SessionParams {
    with_kv(N_CTX, DType::F32).rope(Some(rope.parse().unwrap())).portable(portable)
}

#[test]
fn decode_is_prefill_under_every_method() {
    for shape in ["llama-tiny", "qwen2-tiny"] {
        let (m, tokens) = (model(shape, DType::F32), some_tokens(100, 320));
        for rope in SPECS {
            for portable in [false, true] {
                let p = under(rope, portable);
                let (all, one) = (all_logits(m, &p, &tokens), all_logits(m, &p.n_ubatch(1), &tokens));
                let what = format!("{shape}, {rope}, portable {portable}, token by token");
                assert_close(&one, &all, KV[0].1, &what);
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
    let whole = all_logits(m, &under(rope, false), &tokens);
    let p = under(rope, false).n_ubatch(50);
    assert_close(&whole, &all_logits(m, &p, &tokens), KV[0].1, "in chunks, past the trained window");
    let mut s = open(m, &p);
    let before = s.plan().clone();
    s.append(&tokens).unwrap();
    assert_eq!(*s.plan(), before);
    let short = under(rope, false).n_ctx(512);
    assert_ne!(open(m, &short).plan().layer(0).freqs, before.layer(0).freqs, "another promise, another base");
}
