//! The texts of the libraries, checked: they speak of settings. The program adds its options and commands.

use super::reading::literals;
use super::{check, sources, Source};

/// Files whose texts may have options, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("src/eval/protocol.rs", "names options of the programs that its protocols come from"),
    ("convert/src/import.rs", "has the argument of the process that runs a tokenizer"),
    ("ggml/processor/src/lib.rs", "shows how to compile for another processor"),
];

/// Whether a file is of a library, and not its tests.
fn is_library(path: &str) -> bool {
    let inside = ["src/", "convert/src/"].iter().any(|folder| path.starts_with(folder))
        || path.starts_with("ggml/") && path.contains("/src/");
    let program = ["src/cli/", "convert/src/cli"].iter().any(|folder| path.starts_with(folder));
    let tests = path.contains("/tests/") || path.ends_with("tests.rs");
    inside && !program && !tests && !path.ends_with("main.rs")
}

/// Whether a text has an option of a command line.
fn has_option(text: &str) -> bool {
    text.match_indices("--").any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + 2..]);
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '-')
            && after.starts_with(|c: char| c.is_ascii_lowercase())
    })
}

/// The parts of a file's literals, outside its tests, that speak of the program.
fn faults_of(source: &Source) -> Vec<String> {
    let end = source.text.find("#[cfg(test)]\nmod tests {").unwrap_or(source.text.len());
    literals(&source.text[..end])
        .into_iter()
        .filter(|(_, text)| has_option(text) || text.contains("`ropewalk "))
        .map(|(at, text)| format!("{}:{}: {text}", source.path, source.line_of(at)))
        .collect()
}

#[test]
fn libraries_name_neither_options_nor_commands() {
    let (mut faults, mut excepted) = (Vec::new(), Vec::new());
    for source in sources().iter().filter(|source| is_library(&source.path)) {
        let found = faults_of(source);
        match EXCEPTIONS.iter().find(|(path, _)| *path == source.path) {
            Some((path, _)) if !found.is_empty() => excepted.push(*path),
            _ => faults.extend(found),
        }
    }
    check("Name the setting in words; src/cli/hints.rs or convert/src/cli.rs adds the option.", faults);
    assert_eq!(excepted.len(), EXCEPTIONS.len(), "only {excepted:?} need to be in EXCEPTIONS");
}
