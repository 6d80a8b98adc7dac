//! The meaning of each field of PEFT's `LoraConfig` to an import: used, without effect on an adapter that is loaded, or bound
//! to one value. `tests/fixtures/peft/fields.json` lists the fields, and a test holds the table to it.

use std::path::Path;

use ropewalk_import::Meaning::{self, Irrelevant, MustAllEqual, MustEqual, Used};
use serde_json::{Map, Value};

use super::{refuse, shown};
use crate::{Error, Result};

const LOADED: Meaning = Irrelevant("how a training begins; the tensors are what it ended with");
const TRAINING: Meaning = Irrelevant("for training");
const PROGRAM: Meaning = Irrelevant("for the program that loads the adapter");
const RANKS: Meaning = Irrelevant("the tensors' shapes are the ranks");

/// Every field of `LoraConfig` and of the classes that it is made of.
pub const FIELDS: &[(&str, Meaning)] = &[
    ("peft_type", Used),
    ("base_model_name_or_path", Used),
    ("lora_alpha", Used),
    ("alpha_pattern", Used),
    ("use_rslora", Used),
    ("target_modules", Used),
    ("exclude_modules", Used),
    ("layers_to_transform", Used),
    ("layers_pattern", Used),
    ("modules_to_save", Used),
    ("trainable_token_indices", Used),
    ("ensure_weight_tying", Used),
    ("init_lora_weights", Used),
    ("r", RANKS),
    ("rank_pattern", RANKS),
    ("lora_dropout", TRAINING),
    ("inference_mode", TRAINING),
    ("velora_config", Irrelevant("how gradients are computed")),
    ("loftq_config", LOADED),
    ("eva_config", LOADED),
    ("corda_config", LOADED),
    ("lora_ga_config", LOADED),
    ("fan_in_fan_out", Irrelevant("PEFT turns it off for linear maps, which are all that these models have")),
    ("bias", Irrelevant("a bias that was trained is a tensor, and refused as such")),
    ("qalora_group_size", Irrelevant("for use_qalora")),
    ("task_type", PROGRAM),
    ("auto_mapping", PROGRAM),
    ("peft_version", PROGRAM),
    ("revision", PROGRAM),
    ("runtime_config", PROGRAM),
    ("megatron_core", PROGRAM),
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
    let mut unknown = Vec::new();
    for (key, value) in config {
        match FIELDS.iter().find(|(field, _)| field == key) {
            None => unknown.push(shown(key)),
            Some((_, Used | Irrelevant(_))) => {}
            Some((_, MustEqual(values, why) | MustAllEqual(values, why))) => {
                let values: Vec<Value> = serde_json::from_str(values)
                    .map_err(|e| Error::Invalid(format!("values of {key}: {e}")))?;
                if !value.is_null() && !values.contains(value) {
                    let expected = values.first().map_or(String::new(), Value::to_string);
                    let found = shown(&value.to_string());
                    return Err(refuse(path, key, format!("expected {expected}, found {found}: {why}")));
                }
            }
        }
    }
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
