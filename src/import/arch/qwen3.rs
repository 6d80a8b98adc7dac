//! Qwen 3 (`conversion/qwen.py`).

use crate::config::Class;
use crate::meaning::{Meanings, NO_BIASES};

use super::{qwen2, Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Qwen3ForCausalLM"],
    arch: "qwen3",
    class: Class {
        defaults: r#"{"head_dim": 128, "hidden_size": 4096, "intermediate_size": 22016, "max_position_embeddings": 32768,
            "max_window_layers": 28, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "sliding_window": 4096,
            "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936,
            "rope_theta": 10000.0}"#,
        config: &[qwen2::WINDOWS, CONFIG],
        ..Class::PLAIN
    },
    keys: qwen2::keys,
    ..PLAIN
};

const CONFIG: Meanings = &[NO_BIASES];
