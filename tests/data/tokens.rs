//! Texts to tokens: what stands around documents, and long texts cut into pieces.

use std::str::FromStr;

use ropewalk::data::{Separator, TextOptions};
use ropewalk::gguf::{self, Array, Value};
use ropewalk::vocab::Vocab;
use ropewalk::{DType, Token};

use crate::world::{document, prose, refused, vocab, words, World};

/// The vocabulary of a small model with some keys set or, with `None`, taken out.
fn changed(keys: &[(&str, Option<Value>)]) -> Vocab {
    let file = gguf::File::open(&crate::common::random_model("llama-tiny", DType::F32, "data-ends")).unwrap();
    let mut metadata = file.metadata().to_vec();
    for (key, value) in keys {
        let key = format!("tokenizer.ggml.{key}");
        metadata.retain(|(k, _)| *k != key);
        metadata.extend(value.clone().map(|v| (key, v)));
    }
    Vocab::from_metadata(file.path(), &metadata).unwrap()
}

/// A SentencePiece vocabulary of bytes, letters and a few words, which puts a space in front of every text.
fn spm() -> Vocab {
    let mut tokens: Vec<(String, f32, i32)> =
        vec![("<unk>".into(), 0.0, 2), ("<s>".into(), 0.0, 3), ("</s>".into(), 0.0, 3)];
    tokens.extend((0..256).map(|b| (format!("<0x{b:02X}>"), 0.0, 6)));
    tokens.extend(('a'..='z').chain(['\u{2581}', '.']).map(|c| (c.to_string(), -9.0, 1)));
    let words = ["ro", "pe", "rope", "\u{2581}r", "\u{2581}rope", "s.", "\u{2581}\u{2581}"];
    tokens.extend(words.iter().enumerate().map(|(i, word)| ((*word).into(), -(i as f32) / 4.0, 1)));
    let strings = tokens.iter().map(|t| t.0.clone().into_bytes()).collect();
    let metadata = [
        ("model", Value::String(b"llama".to_vec())),
        ("tokens", Value::Array(Array::String(strings))),
        ("scores", Value::Array(Array::F32(tokens.iter().map(|t| t.1).collect()))),
        ("token_type", Value::Array(Array::I32(tokens.iter().map(|t| t.2).collect()))),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value));
    Vocab::from_metadata(std::path::Path::new("spm.gguf"), &metadata).unwrap()
}

/// Of a text of several chunks, each tokenized by itself, only the space that the tokenizer adds is left out.
#[test]
fn chunks_of_a_long_text_have_the_tokens_of_the_whole() {
    let vocab = spm();
    assert_eq!(vocab.tokenize("rope", false, false).unwrap().len(), 1, "a space is put in front");
    for unit in ["rope ropes. a ropewalk\n", "rope  walk ropes. "] {
        let text = unit.repeat((3 << 18) / unit.len());
        let corpus = World::of(&[("a.txt", &text)])
            .open_with(&vocab, &Separator::Eos, &TextOptions::default())
            .unwrap();
        let found = document(&corpus, 0);
        let expected = vocab.tokenize(&text, false, false).unwrap();
        let inner = found.strip_prefix(&[1]).and_then(|inner| inner.strip_suffix(&[2]));
        assert!(inner == Some(&expected[..]), "{unit:?}");
    }
}

/// Tokens before and after the text of a document.
fn ends(vocab: &Vocab, separator: &Separator) -> Result<(Vec<Token>, Vec<Token>), String> {
    let world = World::of(&[("a.txt", "middle"), ("b.txt", "other")]);
    let corpus = world.open_with(vocab, separator, &TextOptions::default()).map_err(|e| e.to_string())?;
    let (tokens, inner) = (document(&corpus, 0), vocab.tokenize("middle", false, false).unwrap());
    let at = tokens.windows(inner.len()).position(|w| w == inner).expect("the text is there");
    Ok((tokens[..at].to_vec(), tokens[at + inner.len()..].to_vec()))
}

#[test]
fn documents_begin_and_end_by_the_flags_and_the_choice() {
    let (bos, eos) = (257, 258);
    let flags = |add_bos, add_eos| {
        let vocab = changed(&[
            ("bos_token_id", Some(Value::U32(257))),
            ("eos_token_id", Some(Value::U32(258))),
            ("add_bos_token", Some(Value::Bool(add_bos))),
            ("add_eos_token", Some(Value::Bool(add_eos))),
        ]);
        assert_eq!((vocab.bos(), vocab.eos()), (Some(bos), Some(eos)));
        vocab
    };
    let (none, with_bos, with_both) = (flags(false, false), flags(true, false), flags(true, true));
    for (vocab, separator, want) in [
        (&none, Separator::Auto, (vec![], vec![eos])),
        (&with_bos, Separator::Auto, (vec![bos], vec![eos])),
        (&with_both, Separator::Auto, (vec![bos], vec![eos])),
        (&with_bos, Separator::Flags, (vec![bos], vec![])),
        (&with_both, Separator::Flags, (vec![bos], vec![eos])),
        (&none, Separator::Bos, (vec![bos], vec![])),
        (&with_both, Separator::Bos, (vec![bos], vec![eos])),
        (&none, Separator::Eos, (vec![], vec![eos])),
        (&with_bos, Separator::Eos, (vec![bos], vec![eos])),
    ] {
        assert_eq!(ends(vocab, &separator), Ok(want), "{separator:?}");
    }
    let e = ends(&none, &Separator::Flags).unwrap_err();
    assert!(e.contains("nothing stands between two documents"), "{e}");
}

#[test]
fn one_token_for_both_ends_stands_between_documents_once() {
    let both =
        changed(&[("add_bos_token", Some(Value::Bool(true))), ("add_eos_token", Some(Value::Bool(true)))]);
    assert_eq!(both.bos(), both.eos());
    assert_eq!(ends(&both, &Separator::Auto), Ok((vec![], vec![both.eos().unwrap()])));
}

#[test]
fn a_vocabulary_without_end_tokens_still_separates() {
    // The default BOS and EOS of byte-level BPE are token 11, which so small a vocabulary does not have.
    // U+010A is the newline; the rest are the letters of the texts.
    let strings =
        |items: &[&str]| Value::Array(Array::String(items.iter().map(|s| s.as_bytes().to_vec()).collect()));
    let metadata = [
        ("tokenizer.ggml.model".to_owned(), Value::String(b"gpt2".to_vec())),
        (
            "tokenizer.ggml.tokens".to_owned(),
            strings(&["\u{10a}", "m", "i", "d", "l", "e", "o", "t", "h", "r", "th"]),
        ),
        ("tokenizer.ggml.merges".to_owned(), strings(&["t h"])),
    ];
    let bare = Vocab::from_metadata(std::path::Path::new("bare.gguf"), &metadata).unwrap();
    assert_eq!((bare.bos(), bare.eos(), bare.eot()), (None, None, None));
    let line = bare.tokenize("\n\n", false, false).unwrap();
    assert_eq!(line.len(), 2);
    assert_eq!(ends(&bare, &Separator::Auto), Ok((vec![], line)));
    assert!(ends(&bare, &Separator::Eos).unwrap_err().contains("no end-of-text token"));
    assert!(ends(&bare, &Separator::Eot).unwrap_err().contains("no end-of-turn token"));
    assert!(ends(&bare, &Separator::Bos).unwrap_err().contains("no beginning-of-text token"));
}

#[test]
fn a_separator_can_be_any_token() {
    let separator = Separator::from_str("<|endoftext|>").unwrap();
    let end = words().tokenize("<|endoftext|>", false, true).unwrap();
    assert_eq!(end.len(), 1);
    assert_eq!(ends(words(), &separator), Ok((vec![], end)));
    let e = ends(words(), &Separator::Token("two words".into())).unwrap_err();
    assert!(e.contains("separator 'two words': expected one token of the vocabulary, found 2"), "{e}");
    for (text, want) in [("auto", Separator::Auto), ("flags", Separator::Flags), ("eot", Separator::Eot)] {
        assert_eq!(Separator::from_str(text).unwrap(), want);
    }
    refused(Separator::from_str(""));
}

#[test]
fn text_that_looks_like_a_special_token_stays_text() {
    let world = World::of(&[("a.txt", "one<|im_end|>two")]);
    let corpus = world.open_with(words(), &Separator::Auto, &TextOptions::default()).unwrap();
    let tokens = document(&corpus, 0);
    let eos = words().eos().unwrap();
    assert_eq!(tokens.iter().filter(|&&t| t == eos).count(), 1, "{tokens:?}");
    assert_eq!(words().detokenize(&tokens[..tokens.len() - 1], false).unwrap(), "one<|im_end|>two");
}

#[test]
fn a_model_without_a_vocabulary_is_an_error() {
    let origin = std::path::Path::new("bare.gguf");
    let none = [("tokenizer.ggml.model".to_owned(), Value::String(b"no_vocab".to_vec()))];
    let vocab = Vocab::from_metadata(origin, &none).unwrap();
    let world = World::of(&[("a.txt", "a")]);
    let e = refused(world.open_with(&vocab, &Separator::Auto, &TextOptions::default()));
    assert!(e.contains("no vocabulary"), "{e}");
}

/// A long text makes the tokens it makes in one piece.
fn same_in_pieces(vocab: &Vocab, text: &str) {
    let world = World::of(&[("a.txt", text)]);
    let corpus = world.open_with(vocab, &Separator::Auto, &TextOptions::default()).unwrap();
    let tokens = document(&corpus, 0);
    let whole = text.replace("\r\n", "\n").replace('\r', "\n");
    let whole = vocab.tokenize(&whole, false, false).unwrap();
    assert_eq!(tokens.len(), whole.len() + 1);
    assert!(tokens[..whole.len()] == whole[..], "tokens of pieces differ from those of the whole");
}

#[test]
fn pieces_have_the_tokens_of_the_whole() {
    let long = prose(18_000, 9);
    assert!(long.len() > 600_000);
    same_in_pieces(words(), &long);
    same_in_pieces(words(), &long.replace(['\n', '\r'], " "));
    same_in_pieces(words(), &format!("a{}b", "\n \n\t".repeat(80_000)));
    same_in_pieces(words(), &"船は綱を引く。".repeat(30_000));
    same_in_pieces(words(), &"1234567890".repeat(60_000));
    same_in_pieces(vocab(), &long);
    // A run without any break is one piece.
    same_in_pieces(words(), &"ab".repeat(150_000));
}
