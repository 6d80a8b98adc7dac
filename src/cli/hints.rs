//! Hints that the program adds to errors of the library: the option or the command for a [`Remedy`].

use std::error::Error as StdError;

use gguf::Defect;
use ropewalk::remedy::Remedy;
use ropewalk::rope::RopeError;
use ropewalk::Error;

use super::packages::PackagedSet;

pub(super) fn of(e: &anyhow::Error) -> String {
    e.chain().find_map(remedy).map_or(String::new(), text)
}

/// The hint for an error in a cell of a study, whose plan sets the context.
pub(super) fn of_cell(e: &Error) -> String {
    let remedy = e.remedy().filter(|r| !matches!(r, Remedy::Context | Remedy::Cache));
    remedy.map_or(String::new(), text)
}

fn remedy(e: &(dyn StdError + 'static)) -> Option<Remedy> {
    if let Some(e) = e.downcast_ref::<Error>() {
        return e.remedy();
    }
    if let Some(e) = e.downcast_ref::<convert::Error>() {
        return e.remedy();
    }
    if let Some(e) = e.downcast_ref::<RopeError>() {
        return e.remedy;
    }
    if files::Exists::causes(e) {
        return Some(Remedy::Force);
    }
    match e.downcast_ref::<gguf::Error>() {
        Some(gguf::Error::Gguf(e)) if e.defect == Defect::Adapter => Some(Remedy::Adapter),
        _ => None,
    }
}

pub(super) fn text(remedy: Remedy) -> String {
    let text = match remedy {
        Remedy::Adapter => " (--lora)",
        Remedy::Context => " (--ctx)",
        Remedy::Cache => " (--ctx, --kv)",
        Remedy::Search => " (`ropewalk advise --search`)",
        Remedy::Force => ", or replace it with --force",
        Remedy::Chat => " (`ropewalk finetune --chat`)",
        Remedy::Data(name) => {
            let set = PackagedSet::with(name);
            return set.map_or(String::new(), |set| format!("; `ropewalk pull {}` fetches it", set.name));
        }
        // `convert::cli::with_options` has added the option.
        Remedy::Method
        | Remedy::OneMethod
        | Remedy::Type
        | Remedy::PreTokenizer
        | Remedy::Window
        | Remedy::LlamaCpp => "",
    };
    text.to_owned()
}
