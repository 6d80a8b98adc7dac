//! Completions of commands in a conversation. `tests/cli/units.rs` compiles this file for itself.

use ropewalk::rope::METHODS;

/// Where the last word of a line begins, and its completions; `None` for the name of a file. Commands have a name and an
/// argument.
pub(super) fn candidates<'a>(
    line: &str,
    mut commands: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<(usize, Vec<String>)> {
    let Some(rest) = line.strip_prefix('/') else { return Some((line.len(), Vec::new())) };
    let Some((name, arg)) = rest.split_once(' ') else {
        let names = commands.filter(|(name, _)| name.starts_with(rest));
        let space = |arg: &str| if arg.is_empty() { "" } else { " " };
        return Some((0, names.map(|(name, arg)| format!("/{name}{}", space(arg))).collect()));
    };
    if commands.any(|command| command == (name, "FILE")) {
        return None;
    }
    if name == "rope" {
        // A plus joins two methods.
        let part = arg.rsplit('+').next().unwrap_or(arg);
        let words = METHODS.iter().map(|m| m.name).filter(|m| m.starts_with(part)).map(str::to_owned);
        return Some((line.len() - part.len(), words.collect()));
    }
    Some((line.len(), Vec::new()))
}
