//! Ministral 3: Llama with YaRN and an attention temperature (`conversion/mistral3.py`).

use crate::config::Config;
use crate::keys::Keys;
use crate::vocab::Kinds;
use crate::Result;

use super::{llama, standard, Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
    arch: "mistral3",
    defaults: r#"{"max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 0}"#,
    keys,
    place: llama::place,
    change: llama::change,
    extra: standard::llama3,
    vocab: |_| Ok(Kinds::Llama),
    ..PLAIN
};

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    llama::keys(c, k)?;
    if c.object.string("model_type")? == Some("ministral3") {
        k.float("rope.scaling.yarn_log_multiplier", c.rope.needs_f64("mscale_all_dim")?);
        k.float("attention.temperature_scale", c.rope.needs_f64("llama_4_scaling_beta")?);
    }
    Ok(())
}
