//! Qwen 3 (`conversion/qwen.py`).

use super::{Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Qwen3ForCausalLM"],
    arch: "qwen3",
    defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "head_dim": 128}"#,
    ..PLAIN
};
