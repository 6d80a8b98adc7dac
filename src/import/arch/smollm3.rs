//! SmolLM3: Llama without rotation in every fourth layer, which llama.cpp knows by itself
//! (`conversion/llama.py`).

use crate::vocab::Kinds;

use super::{llama, standard, Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["SmolLM3ForCausalLM"],
    arch: "smollm3",
    defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 2000000.0,
        "num_key_value_heads": 4}"#,
    keys: llama::keys,
    place: llama::place,
    change: llama::change,
    extra: standard::llama3,
    vocab: |_| Ok(Kinds::Llama),
    ..PLAIN
};
