//! Components in front of the model: normalizers change a text, pre-tokenizers cut it.
//!
//! Each has a bound on how much longer it makes a text. None leaves a piece of text behind that stands for no piece of
//! the original, for the crate's next step would then count past its end.

use tokenizers::normalizers::{ByteLevel as Bytes, StripAccents};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::whitespace::{Whitespace, WhitespaceSplit};
use tokenizers::tokenizer::pattern::Invert;
use tokenizers::{NormalizedString, Normalizer, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

use crate::Result;

use super::part::{Budget, Part};
use super::pattern::{Cut, Literal, Patterns};

/// Bytes of a text that is put in front, or in the place of another.
pub(super) const MAX_TEXT: usize = 64;

/// How many times longer all components together may make a text.
const MAX_GROWTH: usize = 512;

/// The growth of components in a row.
#[derive(Debug)]
pub(super) struct Growth(usize, usize);

impl Default for Growth {
    fn default() -> Self {
        Growth(1, MAX_GROWTH)
    }
}

impl Growth {
    /// At most so many times.
    pub(super) fn up_to(most: usize) -> Growth {
        Growth(1, most)
    }
    /// One more component, which makes a text at most so many times longer.
    pub(super) fn by(&mut self, times: usize, part: &Part<'_>) -> Result<()> {
        self.0 = self.0.saturating_mul(times.max(1));
        match self.0 > self.1 {
            true => Err(part.error(format!(
                "found components that make a text up to {} times longer, expected at most {} times",
                self.0, self.1
            ))),
            false => Ok(()),
        }
    }
}

/// How many times longer a text gets when `to` replaces `from`.
pub(super) fn times(from: &str, to: &str) -> usize {
    to.len().div_ceil(from.len().max(1))
}

/// The pattern and the content of a Replace.
pub(super) fn replacement<'a>(part: &Part<'a>) -> Result<(&'a str, &'a str)> {
    let pattern = part.needs("pattern", "an object with String")?;
    let entries = pattern.entries(1)?;
    let Some(("String", from)) = entries.first() else {
        return Err(pattern.error(match entries.first() {
            Some(("Regex", _)) => "found a regular expression, expected a String",
            _ => "expected an object with String",
        }));
    };
    let content = part.needs("content", "a string")?;
    let to = if content.text()?.is_empty() { "" } else { content.short(MAX_TEXT)? };
    Ok((from.short(MAX_TEXT)?, to))
}

/// Normalizers, in order.
#[derive(Debug)]
pub(super) struct Normalizers(Vec<Change>);

#[derive(Debug)]
enum Change {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    StripAccents,
    Bytes,
    Prepend(String),
    Replace(String, String),
}

impl Normalizers {
    pub(super) fn read(part: Part<'_>, budget: &mut Budget, growth: &mut Growth) -> Result<Normalizers> {
        const KNOWN: &[&str] = &[
            "NFC",
            "NFD",
            "NFKC",
            "NFKD",
            "Lowercase",
            "StripAccents",
            "ByteLevel",
            "Prepend",
            "Replace",
            "Sequence",
        ];
        let mut out = Vec::new();
        for part in budget.flat(part, "normalizers")? {
            // The largest growth of any character, in UTF-8.
            let (change, by) = match part.kind()? {
                "NFC" => (Change::Nfc, 3),
                "NFD" => (Change::Nfd, 3),
                "NFKC" => (Change::Nfkc, 11),
                "NFKD" => (Change::Nfkd, 11),
                "Lowercase" => (Change::Lowercase, 2),
                "StripAccents" => (Change::StripAccents, 1),
                "ByteLevel" => (Change::Bytes, 2),
                "Prepend" => {
                    let text = part.needs("prepend", "a string")?.short(MAX_TEXT)?;
                    // To a text of one byte.
                    (Change::Prepend(text.to_owned()), 1 + text.len())
                }
                "Replace" => {
                    let (from, to) = replacement(&part)?;
                    (Change::Replace(from.to_owned(), to.to_owned()), times(from, to))
                }
                _ => return Err(part.unknown(KNOWN)),
            };
            growth.by(by, &part)?;
            out.push(change);
        }
        Ok(Normalizers(out))
    }
}

impl Normalizer for Normalizers {
    // The crate ignores an error here, or panics: there is none.
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        for change in &self.0 {
            match change {
                Change::Nfc => _ = text.nfc(),
                Change::Nfd => _ = text.nfd(),
                Change::Nfkc => _ = text.nfkc(),
                Change::Nfkd => _ = text.nfkd(),
                Change::Lowercase => _ = text.lowercase(),
                Change::StripAccents => StripAccents.normalize(text)?,
                Change::Bytes => Bytes::new().normalize(text)?,
                Change::Prepend(front) => _ = text.prepend(front),
                Change::Replace(from, to) => text.replace(Literal(from), to)?,
            }
        }
        Ok(())
    }
}

/// Pre-tokenizers, in order.
#[derive(Debug)]
pub(super) struct PreTokenizers(Vec<Step>);

#[derive(Debug)]
enum Step {
    ByteLevel(ByteLevel),
    Digits(Digits),
    Metaspace(Metaspace),
    Punctuation(Punctuation),
    Split { cut: Cut, behavior: SplitDelimiterBehavior, invert: bool },
    Whitespace,
    WhitespaceSplit,
}

impl PreTokenizers {
    pub(super) fn read(part: Part<'_>, budget: &mut Budget, growth: &mut Growth) -> Result<PreTokenizers> {
        const KNOWN: &[&str] = &[
            "ByteLevel",
            "Digits",
            "Metaspace",
            "Punctuation",
            "Split",
            "Whitespace",
            "WhitespaceSplit",
            "Sequence",
        ];
        let mut patterns = Patterns::default();
        let mut out = Vec::new();
        for part in budget.flat(part, "pretokenizers")? {
            let flag = |key: &str| part.needs(key, "true or false")?.flag();
            // Pieces may be one byte long, and each may get a character in front.
            let (step, by) = match part.kind()? {
                "ByteLevel" => {
                    let regex = part.get("use_regex")?.map(|p| p.flag()).transpose()?.unwrap_or(true);
                    (Step::ByteLevel(ByteLevel::new(flag("add_prefix_space")?, true, regex)), 4)
                }
                "Digits" => (Step::Digits(Digits::new(flag("individual_digits")?)), 1),
                "Metaspace" => (Step::Metaspace(metaspace(&part)?), 5),
                "Punctuation" => {
                    let behavior = part.get("behavior")?.as_ref().map(behavior).transpose()?;
                    let behavior = behavior.unwrap_or(SplitDelimiterBehavior::Isolated);
                    (Step::Punctuation(Punctuation::new(behavior)), 1)
                }
                "Split" => {
                    let cut = patterns.read(&part.needs("pattern", "an object with String or Regex")?)?;
                    let behavior = behavior(&part.needs("behavior", "a string")?)?;
                    (Step::Split { cut, behavior, invert: flag("invert")? }, 1)
                }
                "Whitespace" => (Step::Whitespace, 1),
                "WhitespaceSplit" => (Step::WhitespaceSplit, 1),
                _ => return Err(part.unknown(KNOWN)),
            };
            growth.by(by, &part)?;
            out.push(step);
        }
        Ok(PreTokenizers(out))
    }
}

fn behavior(part: &Part<'_>) -> Result<SplitDelimiterBehavior> {
    Ok(match part.text()? {
        "Removed" => SplitDelimiterBehavior::Removed,
        "Isolated" => SplitDelimiterBehavior::Isolated,
        "MergedWithPrevious" => SplitDelimiterBehavior::MergedWithPrevious,
        "MergedWithNext" => SplitDelimiterBehavior::MergedWithNext,
        "Contiguous" => SplitDelimiterBehavior::Contiguous,
        _ => return Err(part.wrong("one of Removed Isolated MergedWithPrevious MergedWithNext Contiguous")),
    })
}

/// The Metaspace of a pre-tokenizer or a decoder.
pub(super) fn metaspace(part: &Part<'_>) -> Result<Metaspace> {
    let scheme = part.get("prepend_scheme")?;
    let prefix = part.get("add_prefix_space")?.map(|p| p.flag()).transpose()?;
    let scheme = match (&scheme, prefix) {
        // Older files say it so.
        (None, Some(false)) => PrependScheme::Never,
        (None, _) => PrependScheme::Always,
        (Some(scheme), prefix) => match (scheme.text()?, prefix) {
            ("never", _) => PrependScheme::Never,
            ("always", None | Some(true)) => PrependScheme::Always,
            ("first", None | Some(true)) => PrependScheme::First,
            ("always" | "first", _) => return Err(scheme.wrong("never, as add_prefix_space is false")),
            _ => return Err(scheme.wrong("always, first or never")),
        },
    };
    let split = part.get("split")?.map(|p| p.flag()).transpose()?.unwrap_or(true);
    Ok(Metaspace::new(part.needs("replacement", "one character")?.character()?, scheme, split))
}

impl PreTokenizer for PreTokenizers {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        for step in &self.0 {
            match step {
                Step::ByteLevel(step) => step.pre_tokenize(text)?,
                Step::Digits(step) => step.pre_tokenize(text)?,
                Step::Metaspace(step) => step.pre_tokenize(text)?,
                Step::Punctuation(step) => step.pre_tokenize(text)?,
                Step::Split { cut, behavior, invert: false } => text.split(|_, t| t.split(cut, *behavior))?,
                Step::Split { cut, behavior, invert: true } => {
                    text.split(|_, t| t.split(Invert(cut), *behavior))?
                }
                Step::Whitespace => Whitespace.pre_tokenize(text)?,
                Step::WhitespaceSplit => WhitespaceSplit.pre_tokenize(text)?,
            }
        }
        Ok(())
    }
}
