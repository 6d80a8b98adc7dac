//! IBM Granite 3: Llama with factors on embedding, attention, residual and logits (`conversion/granite.py`).

use crate::config::Config;
use crate::keys::Keys;
use crate::vocab::Kinds;
use crate::Result;

use super::{llama, standard, Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["GraniteForCausalLM"],
    arch: "granite",
    defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
        "attention_multiplier": 1.0}"#,
    keys,
    place: llama::place,
    change: llama::change,
    extra: standard::llama3,
    vocab: |_| Ok(Kinds::Llama),
    ..PLAIN
};

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    llama::keys(c, k)?;
    let factors = [
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ];
    for (to, from) in factors {
        if let Some(x) = c.object.f64(from)?.filter(|&x| x != 0.0) {
            k.float(to, x);
        }
    }
    Ok(())
}
