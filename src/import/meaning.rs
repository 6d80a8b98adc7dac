//! The meaning of each key of config.json: whether it is read, has no part in what is computed, or must have one value.
//!
//! A class of transformers reads the keys that its family has defaults for, and its family lists others that it knows
//! (`Class` of `config`); [`COMMON`] has those of every class. A key of [`FOREIGN`] changes what some model computes, but not
//! one of the family at hand: it must have the value that changes nothing. Any other key is unknown to transformers, which
//! ignores it; so does the import, and a note says so. `tests/config_keys.json` lists what the classes know, and a test holds
//! the tables to it.

use std::path::Path;

use serde_json::{Map, Value};

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

/// Keys with their meanings; a row may have several keys, with spaces between them.
pub(crate) type Meanings = &'static [(&'static str, Meaning)];

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
const COMMON: Meanings = &[
    ("architectures _name_or_path quantization_config text_config tie_word_embeddings", Used),
    ("vocab_size hidden_size intermediate_size head_dim max_position_embeddings", Used),
    ("num_hidden_layers num_attention_heads num_key_value_heads", Used),
    ("rope_theta rope_scaling rope_parameters", Used),
    ("model_type", Irrelevant("`architectures` names the class")),
    // What a list of windows for each layer says is in other keys.
    ("max_window_layers", Irrelevant("without windows there are no layers that have one")),
    ("hidden_act", MustEqual(r#"["silu", "swish"]"#, "the feed-forward of this architecture has no other")),
    ("attention_bias", MustEqual("[false]", "attention has no biases in this architecture")),
    ("use_bidirectional_attention", MustEqual("[false]", "attention sees no later tokens here")),
    (
        "partial_rotary_factor",
        MustEqual("[1.0]", "every dimension of a head is rotated in this architecture"),
    ),
    ("per_layer_config", MustEqual("[null]", "layers with different numbers cannot be imported")),
    ("is_encoder_decoder add_cross_attention", MustEqual("[false]", "only decoders can be imported")),
    ("pruned_heads", MustEqual("[{}]", "heads that were removed cannot be imported")),
    ("transformers_version name_or_path _commit_hash attn_implementation _attn_implementation", PROGRAM),
    ("_attn_implementation_autoset experts_implementation use_cache cache_implementation", PROGRAM),
    ("torchscript use_bfloat16", PROGRAM),
    ("dtype torch_dtype", Irrelevant("the weights' files say their type")),
    ("auto_map", Irrelevant("where the class's code is kept")),
    ("chunk_size_feed_forward", Irrelevant("the same in pieces")),
    ("return_dict output_attentions output_hidden_states tie_last_hidden_states", OUTPUTS),
    ("output_router_logits router_aux_loss_coef initializer_range attention_dropout", TRAINING),
    ("hidden_dropout resid_pdrop embd_pdrop", TRAINING),
    ("id2label label2id num_labels problem_type classifier_dropout", HEAD),
    ("bos_token_id eos_token_id pad_token_id sep_token_id tokenizer_class", TOKENS),
    ("max_length min_length do_sample num_beams temperature top_k top_p repetition_penalty", GENERATION),
    ("vision_config audio_config image_token_id image_token_index video_token_id", IMAGES),
    ("vision_start_token_id vision_end_token_id boi_token_id eoi_token_id boi_token_index", IMAGES),
    ("eoi_token_index mm_tokens_per_image multimodal_projector_bias projector_hidden_act", IMAGES),
    ("spatial_merge_size vision_feature_layer", IMAGES),
];

/// Keys that change what models of other families compute, or those of other programs.
const FOREIGN: Meanings = &[
    (
        "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps",
        MustEqual("[null]", "the norms of this architecture are others"),
    ),
    ("n_embd n_head n_inner n_positions", MustEqual("[null]", "the class has no such name")),
    ("mlp_bias", MustEqual("[false]", "the feed-forward has no biases in this class")),
    ("use_qk_norm qk_layernorm", MustEqual("[false]", "queries and keys have no such norms in this class")),
    ("clip_qkv", MustEqual("[null]", "queries, keys and values are not clipped in this class")),
    ("alibi", MustEqual("[false]", "positions are rotations in this class")),
    ("rotary_pct", MustEqual("[1.0]", "every dimension of a head is rotated in this class")),
    ("rotary_dim", MustEqual("[null]", "every dimension of a head is rotated in this class")),
    ("rotary_emb_base", MustEqual("[null]", "the class has no such name; rope_theta is the base")),
    ("rope_local_base_freq", MustEqual("[null]", WINDOWS)),
    ("sliding_window sliding_window_pattern", MustEqual("[null, 0]", WINDOWS)),
    ("use_sliding_window", MustEqual("[false]", WINDOWS)),
    ("layer_types", MustAllEqual(r#""full_attention""#, WINDOWS)),
    ("no_rope_layers", MustAllEqual("1", "every layer is rotated in this class")),
    ("no_rope_layer_interval", MustEqual("[null, 0]", "every layer is rotated in this class")),
    ("full_attention_interval", MustEqual("[1]", "every layer has attention in this class")),
    ("attn_logit_softcapping", MustEqual("[null]", "scores are not capped in this class")),
    ("final_logit_softcapping", MustEqual("[null]", "logits are not capped in this class")),
    (
        "query_pre_attn_scalar attention_multiplier",
        MustEqual("[null]", "scores are scaled by the width of a head in this class"),
    ),
    ("embedding_multiplier scale_emb", MustEqual("[1.0]", "the embedding is not scaled in this class")),
    ("residual_multiplier", MustEqual("[1.0]", "the residual stream is not scaled in this class")),
    ("scale_depth", MustEqual("[null]", "the residual stream is not scaled in this class")),
    ("logits_scaling logit_scale", MustEqual("[1.0]", "logits are not scaled in this class")),
    ("dim_model_base", MustEqual("[null]", "logits are not scaled in this class")),
    ("attn_temperature_tuning", MustEqual("[false]", "attention has no temperature in this class")),
    ("use_parallel_residual", MustEqual("[false]", "feed-forwards follow attention in this class")),
    ("attn_output_gate", MustEqual("[false]", "attention has no gate in this class")),
    ("kv_lora_rank", MustEqual("[null]", "keys and values are not of a low rank in this class")),
    ("q_lora_rank", MustEqual("[null]", "queries are not of a low rank in this class")),
    (
        "num_experts num_local_experts num_experts_per_tok num_experts_per_token",
        MustEqual("[null, 0]", "the class has no experts"),
    ),
    ("n_routed_experts", MustEqual("[null, 0]", "the class has no such experts")),
    ("moe_intermediate_size", MustEqual("[null]", "the class has no experts")),
    ("shared_expert_intermediate_size", MustEqual("[null, 0]", "the class has no shared expert")),
    (
        "norm_topk_prob",
        MustEqual("[true]", "the class always scales the chosen experts' weights to a sum of 1"),
    ),
    ("quantization compression_config", MustEqual("[null]", "weights must be F32, F16 or BF16")),
];

/// The meaning of a key in a table; `None` where it is not in it.
pub fn meaning_in(list: &[(&str, Meaning)], key: &str) -> Option<Meaning> {
    list.iter().find(|(keys, _)| keys.split(' ').any(|k| k == key)).map(|(_, meaning)| *meaning)
}

/// The meaning of a key to a class with these tables, which reads the keys of `read`; `None` where it does not know the key.
pub(crate) fn of(tables: &[Meanings], read: &Map<String, Value>, key: &str) -> Option<Meaning> {
    let own = tables.iter().find_map(|table| meaning_in(table, key));
    own.or_else(|| read.contains_key(key).then_some(Used)).or_else(|| meaning_in(COMMON, key))
}

/// Checks every key. Returns those that nothing knows.
pub(crate) fn check(object: &Object, tables: &[Meanings], read: &Map<String, Value>) -> Result<Vec<String>> {
    check_keys(&object.path, &object.map, |key| of(tables, read, key).or_else(|| meaning_in(FOREIGN, key)))
}

/// Checks the keys of a file. Returns those without a meaning.
///
/// # Errors
/// A key that must have another value.
pub fn check_keys(
    path: &Path,
    keys: &Map<String, Value>,
    meaning: impl Fn(&str) -> Option<Meaning>,
) -> Result<Vec<String>> {
    let mut unknown = Vec::new();
    for (key, value) in keys {
        let wrong = match meaning(key) {
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
            return Err(Error::at(path, key, format!("found {}, expected {expected}: {why}", kind(value))));
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
