//! The meaning of each key of config.json: whether it is read, has no part in what is computed, or must have one value.
//!
//! A family lists the keys that its class of transformers knows (`Family::config`); [`COMMON`] has those of every class. A
//! key of [`FOREIGN`] changes what some model computes, but not one of the family at hand: it must have the value that
//! changes nothing. Any other key is unknown to transformers, which ignores it; so does the import, and a note says so.
//! `tests/config_keys.json` lists what the classes know, and a test holds the tables to it.

use serde_json::Value;

use crate::error::shown;
use crate::json::{kind, Object};
use crate::{Error, Result};

/// The meaning of a key.
#[derive(Debug, Clone, Copy)]
pub enum Meaning {
    /// It is read: its value goes into the file, or is checked against the rest.
    Used,
    /// It has no part in what the model computes, and why.
    Irrelevant(&'static str),
    /// It must have one of these values (a JSON array, the first named in errors), and why.
    MustEqual(&'static str, &'static str),
    /// It must be a list of nothing but this value (JSON), and why.
    MustAllEqual(&'static str, &'static str),
}

use Meaning::{Irrelevant, MustAllEqual, MustEqual, Used};

/// Keys with their meanings.
pub(crate) type Meanings = &'static [(&'static str, Meaning)];

/// SiLU, the only activation of most layers.
pub(crate) const SILU: (&str, Meaning) =
    ("hidden_act", MustEqual(r#"["silu", "swish"]"#, "the feed-forward of this architecture has no other"));
pub(crate) const RMS: (&str, Meaning) = ("rms_norm_eps", Used);
pub(crate) const NO_BIASES: (&str, Meaning) =
    ("attention_bias", MustEqual("[false]", "attention has no biases in this architecture"));
pub(crate) const CAUSAL: (&str, Meaning) =
    ("use_bidirectional_attention", MustEqual("[false]", "attention sees no later tokens here"));
pub(crate) const TIED: (&str, Meaning) =
    ("tie_word_embeddings", MustEqual("[true]", "the output is the embedding in this architecture"));

const TRAINING: Meaning = Irrelevant("for training");
const HEAD: Meaning = Irrelevant("for classifiers");
const OUTPUTS: Meaning = Irrelevant("which results a call returns");
const PROGRAM: Meaning = Irrelevant("for the program that runs the model");
const GENERATION: Meaning = Irrelevant("for sampling, which generation_config.json states");
const TOKENS: Meaning =
    Irrelevant("the tokenizer's files come first; where they are silent, its reader takes it");
const IMAGES: Meaning = Irrelevant("for images, which are left out");
const WINDOWS: &str = "the class has no windowed layers";

/// Keys of every class.
pub(crate) const COMMON: Meanings = &[
    ("architectures", Used),
    ("model_type", Irrelevant("`architectures` names the class")),
    ("_name_or_path", Used),
    ("quantization_config", Used),
    ("text_config", Used),
    ("vocab_size", Used),
    ("hidden_size", Used),
    ("intermediate_size", Used),
    ("num_hidden_layers", Used),
    ("num_attention_heads", Used),
    ("num_key_value_heads", Used),
    ("head_dim", Used),
    ("max_position_embeddings", Used),
    ("rope_theta", Used),
    ("rope_scaling", Used),
    ("rope_parameters", Used),
    ("tie_word_embeddings", Used),
    // What a list of windows for each layer says is in other keys.
    ("max_window_layers", Irrelevant("without windows there are no layers that have one")),
    (
        "partial_rotary_factor",
        MustEqual("[1.0]", "every dimension of a head is rotated in this architecture"),
    ),
    ("per_layer_config", MustEqual("[null]", "layers with different numbers cannot be imported")),
    ("is_encoder_decoder", MustEqual("[false]", "only decoders can be imported")),
    ("add_cross_attention", MustEqual("[false]", "only decoders can be imported")),
    ("pruned_heads", MustEqual("[{}]", "heads that were removed cannot be imported")),
    ("transformers_version", PROGRAM),
    ("name_or_path", PROGRAM),
    ("_commit_hash", PROGRAM),
    ("dtype", Irrelevant("the weights' files say their type")),
    ("torch_dtype", Irrelevant("the weights' files say their type")),
    ("auto_map", Irrelevant("where the class's code is kept")),
    ("attn_implementation", PROGRAM),
    ("_attn_implementation", PROGRAM),
    ("_attn_implementation_autoset", PROGRAM),
    ("experts_implementation", PROGRAM),
    ("use_cache", PROGRAM),
    ("cache_implementation", PROGRAM),
    ("torchscript", PROGRAM),
    ("use_bfloat16", PROGRAM),
    ("chunk_size_feed_forward", Irrelevant("the same in pieces")),
    ("return_dict", OUTPUTS),
    ("output_attentions", OUTPUTS),
    ("output_hidden_states", OUTPUTS),
    ("tie_last_hidden_states", OUTPUTS),
    ("output_router_logits", TRAINING),
    ("router_aux_loss_coef", TRAINING),
    ("initializer_range", TRAINING),
    ("attention_dropout", TRAINING),
    ("hidden_dropout", TRAINING),
    ("resid_pdrop", TRAINING),
    ("embd_pdrop", TRAINING),
    ("id2label", HEAD),
    ("label2id", HEAD),
    ("num_labels", HEAD),
    ("problem_type", HEAD),
    ("classifier_dropout", HEAD),
    ("bos_token_id", TOKENS),
    ("eos_token_id", TOKENS),
    ("pad_token_id", TOKENS),
    ("sep_token_id", TOKENS),
    ("tokenizer_class", TOKENS),
    ("max_length", GENERATION),
    ("min_length", GENERATION),
    ("do_sample", GENERATION),
    ("num_beams", GENERATION),
    ("temperature", GENERATION),
    ("top_k", GENERATION),
    ("top_p", GENERATION),
    ("repetition_penalty", GENERATION),
    ("vision_config", IMAGES),
    ("audio_config", IMAGES),
    ("image_token_id", IMAGES),
    ("image_token_index", IMAGES),
    ("video_token_id", IMAGES),
    ("vision_start_token_id", IMAGES),
    ("vision_end_token_id", IMAGES),
    ("boi_token_id", IMAGES),
    ("eoi_token_id", IMAGES),
    ("boi_token_index", IMAGES),
    ("eoi_token_index", IMAGES),
    ("mm_tokens_per_image", IMAGES),
    ("multimodal_projector_bias", IMAGES),
    ("projector_hidden_act", IMAGES),
    ("spatial_merge_size", IMAGES),
    ("vision_feature_layer", IMAGES),
];

/// Keys that change what models of other families compute, or those of other programs.
pub(crate) const FOREIGN: Meanings = &[
    ("rms_norm_eps", MustEqual("[null]", "the norms of this architecture are others")),
    ("layer_norm_eps", MustEqual("[null]", "the norms of this architecture are others")),
    ("layer_norm_epsilon", MustEqual("[null]", "the norms of this architecture are others")),
    ("norm_epsilon", MustEqual("[null]", "the norms of this architecture are others")),
    ("norm_eps", MustEqual("[null]", "the norms of this architecture are others")),
    ("n_embd", MustEqual("[null]", "the class has no such name")),
    ("n_head", MustEqual("[null]", "the class has no such name")),
    ("n_inner", MustEqual("[null]", "the class has no such name")),
    ("n_positions", MustEqual("[null]", "the class has no such name")),
    ("attention_bias", MustEqual("[false]", "attention has no biases in this class")),
    ("mlp_bias", MustEqual("[false]", "the feed-forward has no biases in this class")),
    ("use_qk_norm", MustEqual("[false]", "queries and keys have no such norms in this class")),
    ("qk_layernorm", MustEqual("[false]", "queries and keys have no such norms in this class")),
    ("clip_qkv", MustEqual("[null]", "queries, keys and values are not clipped in this class")),
    ("alibi", MustEqual("[false]", "positions are rotations in this class")),
    ("rotary_pct", MustEqual("[1.0]", "every dimension of a head is rotated in this class")),
    ("rotary_dim", MustEqual("[null]", "every dimension of a head is rotated in this class")),
    ("rotary_emb_base", MustEqual("[null]", "the class has no such name; rope_theta is the base")),
    ("rope_local_base_freq", MustEqual("[null]", WINDOWS)),
    ("sliding_window", MustEqual("[null, 0]", WINDOWS)),
    ("use_sliding_window", MustEqual("[false]", WINDOWS)),
    ("sliding_window_pattern", MustEqual("[null, 0]", WINDOWS)),
    ("layer_types", MustAllEqual(r#""full_attention""#, WINDOWS)),
    ("no_rope_layers", MustAllEqual("1", "every layer is rotated in this class")),
    ("no_rope_layer_interval", MustEqual("[null, 0]", "every layer is rotated in this class")),
    ("full_attention_interval", MustEqual("[1]", "every layer has attention in this class")),
    CAUSAL,
    ("attn_logit_softcapping", MustEqual("[null]", "scores are not capped in this class")),
    ("final_logit_softcapping", MustEqual("[null]", "logits are not capped in this class")),
    ("query_pre_attn_scalar", MustEqual("[null]", "scores are scaled by the width of a head in this class")),
    ("attention_multiplier", MustEqual("[null]", "scores are scaled by the width of a head in this class")),
    ("embedding_multiplier", MustEqual("[1.0]", "the embedding is not scaled in this class")),
    ("residual_multiplier", MustEqual("[1.0]", "the residual stream is not scaled in this class")),
    ("logits_scaling", MustEqual("[1.0]", "logits are not scaled in this class")),
    ("logit_scale", MustEqual("[1.0]", "logits are not scaled in this class")),
    ("scale_emb", MustEqual("[1.0]", "the embedding is not scaled in this class")),
    ("scale_depth", MustEqual("[null]", "the residual stream is not scaled in this class")),
    ("dim_model_base", MustEqual("[null]", "logits are not scaled in this class")),
    ("attn_temperature_tuning", MustEqual("[false]", "attention has no temperature in this class")),
    ("use_parallel_residual", MustEqual("[false]", "feed-forwards follow attention in this class")),
    ("attn_output_gate", MustEqual("[false]", "attention has no gate in this class")),
    ("kv_lora_rank", MustEqual("[null]", "keys and values are not of a low rank in this class")),
    ("q_lora_rank", MustEqual("[null]", "queries are not of a low rank in this class")),
    ("num_experts", MustEqual("[null, 0]", "the class has no experts")),
    ("num_local_experts", MustEqual("[null, 0]", "the class has no experts")),
    ("n_routed_experts", MustEqual("[null, 0]", "the class has no such experts")),
    ("num_experts_per_tok", MustEqual("[null, 0]", "the class has no experts")),
    ("num_experts_per_token", MustEqual("[null, 0]", "the class has no experts")),
    ("moe_intermediate_size", MustEqual("[null]", "the class has no experts")),
    ("shared_expert_intermediate_size", MustEqual("[null, 0]", "the class has no shared expert")),
    (
        "norm_topk_prob",
        MustEqual("[true]", "the class always scales the chosen experts' weights to a sum of 1"),
    ),
    ("quantization", MustEqual("[null]", "weights must be F32, F16 or BF16")),
    ("compression_config", MustEqual("[null]", "weights must be F32, F16 or BF16")),
];

fn found(list: &[Meanings], key: &str) -> Option<Meaning> {
    list.iter().flat_map(|list| list.iter()).find(|(k, _)| *k == key).map(|(_, meaning)| *meaning)
}

/// The meaning of a key in a family with these tables; `None` where the class does not know it.
pub(crate) fn of(family: &[Meanings], key: &str) -> Option<Meaning> {
    found(family, key).or_else(|| found(&[COMMON], key))
}

/// Checks every key. Returns those that nothing knows.
pub(crate) fn check(object: &Object, family: &[Meanings]) -> Result<Vec<String>> {
    let mut unknown = Vec::new();
    for (key, value) in &object.map {
        let meaning = of(family, key).or_else(|| found(&[FOREIGN], key));
        let wrong = match meaning {
            None => {
                unknown.push(shown(key));
                None
            }
            Some(Used | Irrelevant(_)) => None,
            // None stands for the value that the class has by itself.
            Some(_) if value.is_null() => None,
            Some(MustEqual(values, why)) => {
                let values = parsed(values)?;
                let values = values.as_array().map_or(&[][..], Vec::as_slice);
                let first = values.first().map_or("none".to_owned(), named);
                (!values.iter().any(|wanted| same(wanted, value))).then_some((first, why))
            }
            Some(MustAllEqual(wanted, why)) => {
                let wanted = parsed(wanted)?;
                let all = value.as_array().is_some_and(|v| v.iter().all(|v| same(&wanted, v)));
                (!all).then(|| (format!("a list of nothing but {}", named(&wanted)), why))
            }
        };
        if let Some((expected, why)) = wrong {
            return Err(object.error(key, format!("found {}, expected {expected}: {why}", kind(value))));
        }
    }
    Ok(unknown)
}

fn named(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        other => kind(other),
    }
}

fn parsed(json: &str) -> Result<Value> {
    serde_json::from_str(json).map_err(|e| Error::Invalid(format!("meanings of keys: {e}")))
}

/// Returns true if two values are the same; 1 equals 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}
