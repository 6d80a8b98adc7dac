//! Completions of commands in a conversation. `tests/cli/units.rs` compiles this file for itself.

use ropewalk::rope::METHODS;

/// Files whose names begin with these words, as commands take them: without quotes and escapes.
pub(super) fn files(words: &str) -> Vec<String> {
    let (dir, name) = words.split_at(words.rfind('/').map_or(0, |at| at + 1));
    let entries = std::fs::read_dir(if dir.is_empty() { "." } else { dir }).into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok().filter(|file| file.starts_with(name))?;
            let slash = if entry.path().is_dir() { "/" } else { "" };
            Some(format!("{dir}{file}{slash}"))
        })
        .collect();
    found.sort();
    found
}

/// Where the last word of a line begins, and its completions. The name of a file may have several words. Commands have a
/// name and an argument.
pub(super) fn candidates<'a>(
    line: &str,
    mut commands: impl Iterator<Item = (&'a str, &'a str)>,
) -> (usize, Vec<String>) {
    let Some(rest) = line.strip_prefix('/') else { return (line.len(), Vec::new()) };
    let Some((name, arg)) = rest.split_once(' ') else {
        let names = commands.filter(|(name, _)| name.starts_with(rest));
        let space = |arg: &str| if arg.is_empty() { "" } else { " " };
        return (0, names.map(|(name, arg)| format!("/{name}{}", space(arg))).collect());
    };
    if commands.any(|command| command == (name, "FILE")) {
        return (line.len() - arg.len(), files(arg));
    }
    if name == "rope" {
        // A plus joins two methods.
        let part = arg.rsplit('+').next().unwrap_or(arg);
        let words = METHODS.iter().map(|m| m.name).filter(|m| m.starts_with(part)).map(str::to_owned);
        return (line.len() - part.len(), words.collect());
    }
    (line.len(), Vec::new())
}
