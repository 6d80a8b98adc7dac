//! Patterns of `adapter_config.json`, which say of which modules a setting is. They come from strangers: their number,
//! their length and what they compile to are bounded.

use regex::{Regex, RegexBuilder};

/// Most patterns of a file. Tools write one for each module, of which the largest models have some thousand.
pub(super) const MAX_PATTERNS: usize = 4096;
/// Most of them that are more than a name, and so are compiled.
const MAX_REGEXES: usize = 64;
/// Longest pattern, bytes. It is parsed before any limit of the compiler counts: a class of letters, in two bytes, takes
/// several thousand then.
const MAX_BYTES: usize = 512;
/// Most bytes that one compiles to, and that it holds while it is matched.
const MAX_COMPILED: usize = 256 << 10;

/// A regular expression, as large as a stranger's may be; the error is the text of what was expected.
pub(super) fn compiled(regex: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(regex).size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED).build();
    built.map_err(|e| match e {
        regex::Error::CompiledTooBig(_) => {
            format!("regular expressions that compile to at most {MAX_COMPILED} bytes")
        }
        _ => "regular expressions without lookaround".into(),
    })
}

/// The first of several patterns that a module matches.
#[derive(Default)]
pub(super) struct Patterns {
    all: Vec<Pattern>,
    n_regexes: usize,
}

enum Pattern {
    /// The end of a name, last character first; `None` for a dot that is any character.
    Name(Vec<Option<char>>),
    Regex(Box<Regex>),
}

impl Patterns {
    /// Adds a pattern, which PEFT matches as `(.*\.)?(PATTERN)$`, from the start.
    ///
    /// # Errors
    /// The texts of what was expected, and of what was found.
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), [String; 2]> {
        let shown: String = pattern.chars().take(64).flat_map(char::escape_debug).collect();
        if self.all.len() == MAX_PATTERNS {
            return Err([format!("at most {MAX_PATTERNS} patterns"), "more".into()]);
        }
        if pattern.len() > MAX_BYTES {
            let found = format!("{} bytes: {shown}...", pattern.len());
            return Err([format!("patterns of at most {MAX_BYTES} bytes"), found]);
        }
        if let Some(name) = name(pattern) {
            self.all.push(Pattern::Name(name));
            return Ok(());
        }
        if self.n_regexes == MAX_REGEXES {
            let expected = format!("at most {MAX_REGEXES} patterns that are more than a name");
            return Err([expected, format!("another, {shown}")]);
        }
        self.n_regexes += 1;
        let regex = compiled(&format!(r"^(?:.*\.)?(?:{pattern})$")).map_err(|expected| [expected, shown])?;
        self.all.push(Pattern::Regex(Box::new(regex)));
        Ok(())
    }

    /// The index of the first that matches.
    pub(super) fn find(&self, module: &str) -> Option<usize> {
        self.all.iter().position(|pattern| match pattern {
            Pattern::Regex(regex) => regex.is_match(module),
            Pattern::Name(name) => {
                let mut module = module.chars().rev();
                let same = name.iter().all(|c| module.next().is_some_and(|m| c.is_none_or(|c| c == m)));
                same && module.next().is_none_or(|before| before == '.')
            }
        })
    }
}

/// A pattern of letters, digits, `_`, `-` and dots, each of which may be escaped, last character first.
pub(super) fn name(pattern: &str) -> Option<Vec<Option<char>>> {
    let mut out = Vec::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        out.push(match c {
            '.' => None,
            '\\' => Some(rest.next().filter(|c| *c == '.')?),
            c if c.is_ascii_alphanumeric() || c == '_' || c == '-' => Some(c),
            _ => return None,
        });
    }
    out.reverse();
    Some(out)
}
