//! Qwen 2 and 2.5 (`conversion/qwen.py`).

use super::{Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Qwen2ForCausalLM"],
    arch: "qwen2",
    defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}"#,
    ..PLAIN
};
