//! Components behind the model: processors put special tokens around those of a text, decoders make text of tokens.

use std::collections::HashMap;

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::Metaspace;
use tokenizers::Decoder;

use crate::Result;

use super::before::{metaspace, replacement, times, Growth};
use super::part::{Budget, Part};

/// Pieces of a template, special tokens of one, and ids of a special token.
const MAX_PIECES: usize = 64;
/// Characters that a Strip takes away at one end.
const MAX_STRIP: u64 = 64;
/// How many times longer all decoders together may make a text.
const MAX_GROWTH: usize = 64;

/// Ids of special tokens before and behind those of a text.
#[derive(Debug, Default)]
pub(super) struct Around {
    pub(super) before: Vec<u32>,
    pub(super) behind: Vec<u32>,
}

impl Around {
    pub(super) fn read(part: Part<'_>, budget: &mut Budget) -> Result<Around> {
        const KNOWN: &[&str] = &["ByteLevel", "RobertaProcessing", "TemplateProcessing", "Sequence"];
        let mut found: Option<Around> = None;
        for part in budget.flat(part, "processors")? {
            let around = match part.kind()? {
                // It changes offsets only.
                "ByteLevel" => continue,
                "RobertaProcessing" => {
                    Around { before: vec![pair(&part, "cls")?], behind: vec![pair(&part, "sep")?] }
                }
                "TemplateProcessing" => template(&part)?,
                _ => return Err(part.unknown(KNOWN)),
            };
            if found.replace(around).is_some() {
                return Err(part.error("found a second processor that adds tokens, expected one"));
            }
        }
        Ok(found.unwrap_or_default())
    }
}

/// The id of a text with its id.
fn pair(part: &Part<'_>, key: &str) -> Result<u32> {
    let part = part.needs(key, "a text and its id")?;
    match &part.items(2)?[..] {
        [text, id] => {
            text.text()?;
            id_of(id)
        }
        _ => Err(part.wrong("a text and its id")),
    }
}

fn id_of(part: &Part<'_>) -> Result<u32> {
    Ok(part.number(u64::from(u32::MAX))? as u32)
}

fn template(part: &Part<'_>) -> Result<Around> {
    let mut special: HashMap<&str, Vec<u32>> = HashMap::new();
    for (name, token) in part.needs("special_tokens", "an object")?.entries(MAX_PIECES)? {
        let ids = token.needs("ids", "an array")?.items(MAX_PIECES)?;
        special.insert(name, ids.iter().map(id_of).collect::<Result<_>>()?);
    }
    let single = part.needs("single", "an array")?;
    let (mut around, mut seen) = (Around::default(), false);
    for piece in single.items(MAX_PIECES)? {
        match piece_of(&piece, &special)? {
            Piece::Special(ids) if seen => around.behind.extend(ids),
            Piece::Special(ids) => around.before.extend(ids),
            Piece::A if !seen => seen = true,
            Piece::A => return Err(piece.error("found sequence A again, expected it once")),
            Piece::B => return Err(piece.error("found sequence B, expected A: there is one text")),
        }
    }
    if !seen {
        return Err(single.error("found no sequence A, expected it once"));
    }
    // It is for two texts, and is checked like the other.
    if let Some(pair) = part.get("pair")? {
        for piece in pair.items(MAX_PIECES)? {
            piece_of(&piece, &special)?;
        }
    }
    Ok(around)
}

enum Piece<'a> {
    A,
    B,
    Special(&'a [u32]),
}

fn piece_of<'a>(piece: &Part<'_>, special: &'a HashMap<&str, Vec<u32>>) -> Result<Piece<'a>> {
    let entries = piece.entries(1)?;
    match entries.first() {
        Some(("Sequence", sequence)) => {
            let id = sequence.needs("id", "A or B")?;
            match id.text()? {
                "A" => Ok(Piece::A),
                "B" => Ok(Piece::B),
                _ => Err(id.wrong("A or B")),
            }
        }
        Some(("SpecialToken", token)) => {
            let id = token.needs("id", "a string")?;
            let ids = special.get(id.text()?);
            ids.map(|ids| Piece::Special(ids)).ok_or_else(|| id.wrong("one of special_tokens"))
        }
        _ => Err(piece.wrong("an object with Sequence or SpecialToken")),
    }
}

/// Decoders, in order; `None` where there are none, and tokens are joined with spaces.
#[derive(Debug, Default)]
pub(super) struct Decoders(Option<Vec<Step>>);

#[derive(Debug)]
enum Step {
    ByteLevel,
    ByteFallback,
    Fuse,
    Metaspace(Metaspace),
    Replace(String, String),
    Strip { content: char, start: usize, stop: usize },
}

impl Decoders {
    pub(super) fn read(part: Part<'_>, budget: &mut Budget) -> Result<Decoders> {
        const KNOWN: &[&str] =
            &["ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "Sequence"];
        let mut growth = Growth::up_to(MAX_GROWTH);
        let mut out = Vec::new();
        for part in budget.flat(part, "decoders")? {
            let (step, by) = match part.kind()? {
                // A byte that is no UTF-8 becomes a character of three.
                "ByteLevel" => (Step::ByteLevel, 3),
                "ByteFallback" => (Step::ByteFallback, 1),
                "Fuse" => (Step::Fuse, 1),
                "Metaspace" => (Step::Metaspace(metaspace(&part)?), 1),
                "Replace" => {
                    let (from, to) = replacement(&part)?;
                    (Step::Replace(from.to_owned(), to.to_owned()), times(from, to))
                }
                "Strip" => {
                    let number = |key: &str| {
                        Ok::<usize, crate::Error>(part.needs(key, "a number")?.number(MAX_STRIP)? as usize)
                    };
                    let content = part.needs("content", "one character")?.character()?;
                    (Step::Strip { content, start: number("start")?, stop: number("stop")? }, 1)
                }
                _ => return Err(part.unknown(KNOWN)),
            };
            growth.by(by, &part)?;
            out.push(step);
        }
        Ok(Decoders(Some(out)))
    }

    /// The text of tokens.
    pub(super) fn text(&self, mut tokens: Vec<String>) -> tokenizers::Result<String> {
        let Some(steps) = &self.0 else { return Ok(tokens.join(" ")) };
        for step in steps {
            tokens = match step {
                Step::ByteLevel => ByteLevel::default().decode_chain(tokens)?,
                Step::ByteFallback => ByteFallback::new().decode_chain(tokens)?,
                Step::Fuse => Fuse::new().decode_chain(tokens)?,
                Step::Metaspace(step) => step.decode_chain(tokens)?,
                Step::Replace(from, to) => tokens.iter().map(|t| t.replace(from, to)).collect(),
                Step::Strip { content, start, stop } => {
                    let stripped = tokens.iter().map(|t| strip(t, *content, *start, *stop));
                    stripped.collect::<tokenizers::Result<_>>()?
                }
            };
        }
        Ok(tokens.concat())
    }
}

/// The token without at most so many of these characters at either end.
fn strip(token: &str, content: char, start: usize, stop: usize) -> tokenizers::Result<String> {
    let first = token.chars().take(start).take_while(|&c| c == content).count();
    let last = token.chars().rev().take(stop).take_while(|&c| c == content).count();
    let n = token.chars().count();
    if first + last > n {
        return Err(format!("decoder Strip: takes {} characters off a token of {n}", first + last).into());
    }
    Ok(token.chars().skip(first).take(n - first - last).collect())
}
