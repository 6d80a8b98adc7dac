//! `--against`: the other setting of a comparison.

use ropewalk::adapter::AdapterSpec;
use ropewalk::rope::Spec;
use ropewalk::DType;

use super::models::{self, ModelChoice};
use super::options::KV_TYPES;
use super::usage;

/// The difference of the other setting.
#[derive(Debug, Clone)]
pub(super) enum Against {
    Model(String),
    Rope(Spec),
    Kv(DType),
    /// The adapters. Several are used together.
    Lora(AdapterSpec),
}

impl std::str::FromStr for Against {
    type Err = String;

    fn from_str(text: &str) -> Result<Against, String> {
        match text.split_once('=') {
            Some(("rope", spec)) => spec.parse().map(Against::Rope).map_err(|e| format!("{e}")),
            Some(("kv", name)) => KV_TYPES
                .contains(&name)
                .then(|| DType::parse(name))
                .flatten()
                .map(Against::Kv)
                .ok_or_else(|| format!("expected kv={}, found kv={name}", KV_TYPES.join("|"))),
            Some(("lora", adapter)) => adapter.parse().map(Against::Lora),
            _ => Ok(Against::Model(text.to_owned())),
        }
    }
}

impl Against {
    /// Returns true if the other setting needs other weights.
    pub(super) fn has_weights(&self) -> bool {
        matches!(self, Against::Model(_) | Against::Lora(_))
    }
}

/// The other setting: `choice` and `rope` with all these differences. Adapters of `choice` stay where neither the model nor
/// an adapter differs.
///
/// # Errors
/// A model that is not found; two models, ropes or types.
pub(super) fn other(
    against: &[Against],
    choice: &ModelChoice,
    rope: Option<&Spec>,
) -> anyhow::Result<(ModelChoice, Option<Spec>)> {
    let (mut choice, mut rope) = (choice.clone(), rope.cloned());
    let mut set = [false; 3];
    if against.iter().any(Against::has_weights) {
        choice.params.adapters.clear();
    }
    for what in against {
        let kind = match what {
            Against::Lora(adapter) => {
                choice.params.adapters.push(adapter.clone());
                continue;
            }
            Against::Model(name) => {
                choice.path = models::find(name)?;
                0
            }
            Against::Rope(spec) => {
                rope = Some(spec.clone());
                1
            }
            Against::Kv(dtype) => {
                choice.session.kv_type = *dtype;
                2
            }
        };
        if std::mem::replace(&mut set[kind], true) {
            let kind = ["model", "rope", "kv"][kind];
            return Err(usage(format!("--against: expected one {kind}, found two")));
        }
    }
    Ok((choice, rope))
}
