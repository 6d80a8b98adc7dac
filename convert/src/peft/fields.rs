//! The meaning of each field of PEFT's `LoraConfig` to an import: used, without effect on an adapter that is loaded, or bound
//! to one value. `tests/fixtures/peft/fields.json` lists the fields, and a test holds the table to it.

use std::path::Path;

use ropewalk_import::Meaning::{self, Irrelevant, MustEqual, Used};
use ropewalk_import::{check_keys, meaning_in};
use serde_json::{Map, Value};

use super::{refuse, shown};
use crate::Result;

/// Every field of `LoraConfig` and of the classes that it is made of; a row may have several, with spaces between them.
pub const FIELDS: &[(&str, Meaning)] = &[
    ("peft_type base_model_name_or_path lora_alpha alpha_pattern use_rslora target_modules exclude_modules", Used),
    ("layers_to_transform layers_pattern modules_to_save trainable_token_indices ensure_weight_tying", Used),
    ("init_lora_weights", Used),
    ("r rank_pattern", Irrelevant("the tensors' shapes are the ranks")),
    ("lora_dropout inference_mode", Irrelevant("for training")),
    ("velora_config", Irrelevant("how gradients are computed")),
    (
        "loftq_config eva_config corda_config lora_ga_config",
        Irrelevant("how a training begins; the tensors are what it ended with"),
    ),
    ("fan_in_fan_out", Irrelevant("PEFT turns it off for linear maps, which are all that these models have")),
    ("bias", Irrelevant("a bias that was trained is a tensor, and refused as such")),
    ("qalora_group_size", Irrelevant("for use_qalora")),
    (
        "task_type auto_mapping peft_version revision runtime_config megatron_core",
        Irrelevant("for the program that loads the adapter"),
    ),
    ("use_dora", MustEqual("[false]", "a LoRA file has no magnitudes (DoRA); merge it with PEFT")),
    ("lora_bias", MustEqual("[false]", "a LoRA file has no biases; merge it with PEFT")),
    ("use_qalora", MustEqual("[false]", "a LoRA file has no pooled inputs (QALoRA)")),
    ("use_bdlora", MustEqual("[null]", "a LoRA file has no blocks of pairs (BD-LoRA); merge it with PEFT")),
    ("kasa_config", MustEqual("[null]", "loading changes the base weights (KaSA); merge it with PEFT")),
    ("arrow_config", MustEqual("[null]", "a LoRA file has no router of pairs (Arrow)")),
    ("monteclora_config", MustEqual("[null]", "a LoRA file has no samples of pairs (MonteCLoRA)")),
    ("alora_invocation_tokens", MustEqual("[null, []]", "a LoRA file is always on, unlike aLoRA")),
    ("layer_replication", MustEqual("[null, []]", "the model has each layer once; merge it with PEFT")),
    ("target_parameters", MustEqual("[null, []]", "a LoRA file has no pairs of experts; merge it with PEFT")),
    ("megatron_config", MustEqual("[null, {}]", "Megatron divides the maps among processes")),
];

/// Checks every key. Returns a note on those that `LoraConfig` has not, which PEFT drops.
pub(super) fn check(path: &Path, config: &Map<String, Value>) -> Result<Option<String>> {
    let mut unknown = check_keys(path, config, |key| meaning_in(FIELDS, key))?;
    let many = unknown.len();
    unknown.truncate(16);
    Ok((many > 0).then(|| {
        let dots = if many > unknown.len() { " ..." } else { "" };
        format!("{}{dots}: not fields of PEFT's LoraConfig, which drops them.", unknown.join(" "))
    }))
}

/// Checks `init_lora_weights`. Some ways to begin a training change the base weights, and PEFT changes them again when it
/// loads the adapter.
pub(super) fn check_init(path: &Path, value: Option<&Value>) -> Result<()> {
    const CHANGE: [&str; 4] = ["olora", "corda", "loftq", "lora_ga"];
    const KEEP: [&str; 4] = ["gaussian", "orthogonal", "eva", "mica"];
    let key = "init_lora_weights";
    let name = match value {
        None | Some(Value::Null | Value::Bool(_)) => return Ok(()),
        Some(Value::String(name)) => name,
        Some(other) => {
            let what = format!("expected true, false or a name, found {}", shown(&other.to_string()));
            return Err(refuse(path, key, what));
        }
    };
    let lower = name.to_ascii_lowercase();
    if KEEP.contains(&&*lower) {
        return Ok(());
    }
    let what = if lower.starts_with("pissa") || CHANGE.contains(&&*lower) {
        "it is trained on changed base weights, and a LoRA file is for the model's own; write it with PEFT's \
         save_pretrained(path_initial_model_for_weight_conversion=..), or import a model that PEFT has merged"
    } else {
        "PEFT does not know this initialization"
    };
    Err(refuse(path, key, format!("found \"{}\": {what}", shown(name))))
}
