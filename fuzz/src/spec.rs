//! Rope specs: what parses is written back as the same spec, and plans for it have finite numbers.

use ropewalk::rope::{Plan, Spec};

use crate::{accepted, base};

/// Parses the spec and makes plans of it.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let parsed = text.parse::<Spec>();
    if !accepted(parsed.as_ref()) {
        return false;
    }
    let spec = parsed.unwrap();
    let again: Spec = spec.to_string().parse().unwrap_or_else(|e| panic!("{spec}: {e}"));
    assert_eq!(again.to_string(), spec.to_string());
    let hp = base().0.hparams();
    for n_ctx in [1, 64, 65, 4096] {
        // Not every spec suits every context.
        accepted(Plan::new(&spec, hp, n_ctx).map(|plan| assert!(!plan.kinds().is_empty())));
    }
    true
}

/// A spec of every method, with parameters.
pub fn seeds() -> Vec<Vec<u8>> {
    let named = ropewalk::rope::METHODS.iter().map(|m| m.name.as_bytes().to_vec());
    let with = [
        "yarn:factor=4,original=64",
        "dynamic-ntk:trained=128",
        "harpe:bases=20000/900000",
        "self-extend:window=16,group=4",
        "lm-infinite:window=16,global=2,evict=true",
        "sba:factor=4+self-extend:group=2",
        "string:shifted-offset=20,local-value=4,mscale=1.07",
        "rerope:window=16,leak=3,temperature=logn,original=64",
        "plain:drop=0.5,keep-short=true,temperature=llama4,temperature-scale=0.2",
    ];
    named.chain(with.map(|s| s.as_bytes().to_vec())).collect()
}
