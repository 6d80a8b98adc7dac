//! The manifest of models that are known by name.

use anyhow::{anyhow, bail, Context};
use ropewalk::fetch::{is_sha256, Source};
use ropewalk_core::terminal::one_line;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) aliases: Vec<String>,
    pub(crate) source: String,
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
    /// SPDX identifier or name of the license.
    pub(crate) licence: String,
    #[serde(default)]
    pub(crate) notes: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    #[serde(default, rename = "model")]
    pub(crate) models: Vec<Entry>,
}

impl Entry {
    /// The name to type: the first alias, if there is one.
    pub(crate) fn short_name(&self) -> &str {
        self.aliases.first().unwrap_or(&self.name)
    }
}

impl Manifest {
    /// The manifest compiled into the program, `models/manifest.toml`.
    pub(crate) fn builtin() -> anyhow::Result<Manifest> {
        Manifest::parse(include_str!("../../models/manifest.toml"), "models/manifest.toml")
    }

    /// Reads and checks a manifest; `origin` names it in errors.
    pub(crate) fn parse(text: &str, origin: &str) -> anyhow::Result<Manifest> {
        let manifest: Manifest = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(0, |s| text[..s.start].matches('\n').count() + 1);
            anyhow!("manifest {origin}: line {line}: {}", one_line(e.message()))
        })?;
        let mut seen = std::collections::HashSet::new();
        for entry in &manifest.models {
            let of = format!("manifest {origin}: {}", entry.name);
            entry.source.parse::<Source>().with_context(|| of.clone())?;
            if !is_sha256(&entry.sha256) {
                bail!("{of}: sha256: expected 64 lower-case hexadecimal digits, found '{}'", entry.sha256);
            }
            for name in std::iter::once(&entry.name).chain(&entry.aliases) {
                if name.is_empty() || !seen.insert(name) {
                    bail!("manifest {origin}: name '{name}': empty or duplicate");
                }
            }
        }
        Ok(manifest)
    }

    /// The entry with this name, alias or source.
    pub(crate) fn get(&self, name: &str) -> Option<&Entry> {
        self.models.iter().find(|m| m.name == name || m.source == name || m.aliases.iter().any(|a| a == name))
    }
}
