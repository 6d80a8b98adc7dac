//! The parts of `finetune`'s help that come of tables.

use std::fmt::Write;

use ropewalk::data::METHODS;
use ropewalk::train::set::{Group, KEYS};

pub(super) const TARGETS: &str = "\
Target modules [default: q,k,v,o, and the modules that the recipe trains in full]

Modules that get a LoRA pair: q, k, v (qkv if the model has them in one), o, gate, up, down, output, router, and in gated \
delta-nets attn_gate, ssm_alpha, ssm_beta, and ssm_out (also o). all selects every one except output and router; none selects \
nothing. The prefix attention. (attention.q) limits a name to layers with attention, and delta-net. to the other layers. norms \
and embeddings are trained in full. full, alone, trains every parameter of a model with floating-point weights, and writes a \
model";

pub(super) fn keys() -> String {
    let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    format!("Other settings; can be repeated. Keys: {}", names.join(", "))
}

pub(super) fn settings() -> String {
    let mut out = "Other settings; can be repeated. A value with settings in it, such as upsample=fu:length=300,keep=0.1, must be \
                   the last in its list. A recipe replaces the defaults in brackets"
        .to_owned();
    let mut before = None;
    for key in KEYS {
        if before.replace(key.group) != Some(key.group) {
            out += match key.group {
                Group::Optimiser => "\n\nOptimizer (also in a [[stage]]):",
                Group::Adapter => "\n\nAdapter or model:",
                Group::Texts => "\n\nTexts:",
                Group::Run => "\n\nMemory, validation, and checkpoints:",
                Group::Files => "\n\nFiles:",
            };
        }
        let default = if key.default.is_empty() { String::new() } else { format!(" [{}]", key.default) };
        let option = match key.name {
            "steps" | "lr" => format!(", as --{}", key.name),
            _ => String::new(),
        };
        let _ = write!(out, "\n  {}: {}{option}{default}", key.name, key.about);
    }
    out
}

pub(super) fn transforms() -> String {
    let mut out = "Data method, NAME or NAME:KEY=VALUE,... [default: none]\n".to_owned();
    for method in METHODS {
        let _ = writeln!(out, "  {}: {}", method.name, method.about);
        // The first of those that share parameters lists them.
        let first = METHODS.iter().find(|m| std::ptr::eq(m.params, method.params));
        if first.is_some_and(|m| m.name == method.name) {
            method.params.iter().for_each(|(key, about)| {
                let _ = writeln!(out, "    {key}: {about}");
            });
        }
    }
    out
}
