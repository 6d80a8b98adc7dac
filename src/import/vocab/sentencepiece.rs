//! tokenizer.model: SentencePiece's `ModelProto`, and tokens that other files add to it
//! (`_create_vocab_sentencepiece` of llama.cpp's `conversion/base.py`).

use crate::json::{bytes, Object, SMALL};
use crate::{Error, Result};

use super::{looks_special, Added, Files, Tokens, BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};

pub(super) const FILE: &str = "tokenizer.model";
/// Bytes of tokenizer.model; Gemma's has 5 million.
const LIMIT: u64 = 64 << 20;

/// One of SentencePiece's tokens.
struct Piece<'a> {
    text: &'a [u8],
    score: f32,
    kind: u64,
}

/// `n` tokens; with `all`, also those that tokenizer.json adds, as for Phi-3.
pub(super) fn read(files: &Files, n: u32, all: bool) -> Result<Tokens> {
    let path = files.folder.join(FILE);
    let missing = || Error::of(&files.folder, format!("has no {FILE}, expected one"));
    let model = bytes(&path, LIMIT)?.ok_or_else(missing)?;
    let pieces = pieces(&model).ok_or_else(|| Error::of(&path, "is not a SentencePiece model"))?;
    let mut tokens = Tokens::new(n);
    for (id, piece) in pieces.iter().enumerate() {
        // Numbers of `ModelProto.SentencePiece.Type`; 4, user-defined, llama.cpp takes for normal.
        let kind = match piece.kind {
            2 => UNKNOWN,
            3 => CONTROL,
            5 => UNUSED,
            6 => BYTE,
            _ => NORMAL,
        };
        if !tokens.set(id as u64, piece.text, piece.score, kind) {
            break;
        }
    }
    if let Some(added) = Object::read(&files.folder.join("added_tokens.json"), SMALL)? {
        for (text, id) in &added.map {
            let id = id.as_u64().ok_or_else(|| added.error(text, "expected an id"))?;
            tokens.set(id, text.as_bytes(), -1000.0, USER_DEFINED);
        }
    }
    let mut more = files.decoder()?;
    if all {
        more.extend(files.added()?);
    }
    for Added { id, text, special, .. } in more {
        let (text, kind) = match special || !all && looks_special(&text) {
            true => (text, CONTROL),
            false if all => (text, USER_DEFINED),
            false => (text.replace('▁', " "), USER_DEFINED),
        };
        tokens.set(id, text.as_bytes(), -1000.0, kind);
    }
    Ok(tokens)
}

/// The pieces of a `ModelProto`: field 1, each with text (1), score (2) and type (3, 1 if absent).
fn pieces(model: &[u8]) -> Option<Vec<Piece<'_>>> {
    let mut out = Vec::new();
    let mut rest = model;
    while !rest.is_empty() {
        let (number, field) = field(&mut rest)?;
        let Field::Bytes(mut inside) = field else { continue };
        if number != 1 {
            continue;
        }
        let mut piece = Piece { text: &[], score: 0.0, kind: 1 };
        while !inside.is_empty() {
            match self::field(&mut inside)? {
                (1, Field::Bytes(text)) => piece.text = text,
                (2, Field::Four(bits)) => piece.score = f32::from_le_bytes(bits),
                (3, Field::Number(kind)) => piece.kind = kind,
                _ => {}
            }
        }
        if std::str::from_utf8(piece.text).is_err() || !piece.score.is_finite() {
            return None;
        }
        out.push(piece);
    }
    Some(out).filter(|out| !out.is_empty())
}

/// A field of a message in protobuf's encoding.
enum Field<'a> {
    Number(u64),
    Four([u8; 4]),
    Eight,
    Bytes(&'a [u8]),
}

/// Takes a field and its number off the front.
fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let tag = varint(rest)?;
    let field = match tag & 7 {
        0 => Field::Number(varint(rest)?),
        1 => {
            take(rest, 8)?;
            Field::Eight
        }
        2 => {
            let n = varint(rest)?;
            Field::Bytes(take(rest, usize::try_from(n).ok()?)?)
        }
        5 => Field::Four(take(rest, 4)?.try_into().ok()?),
        _ => return None,
    };
    Some((tag >> 3, field))
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(n)?;
    *rest = left;
    Some(taken)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(value);
        }
    }
    None
}
