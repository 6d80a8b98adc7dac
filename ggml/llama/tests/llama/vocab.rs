//! Vocabularies: tokenizer keys that libllama must never see, and the tokenizers it has.

use std::path::Path;

use gguf::{Array, Value};
use llama::vocab::Vocab;
use ropewalk_core::tokenizer::Tokenizer;

type Metadata = Vec<(String, Value)>;

fn strings<S: AsRef<[u8]>>(items: &[S]) -> Value {
    Value::Array(Array::String(items.iter().map(|s| s.as_ref().to_vec()).collect()))
}

fn with(mut m: Metadata, key: &str, value: Value) -> Metadata {
    let key = format!("tokenizer.ggml.{key}");
    m.retain(|(k, _)| *k != key);
    m.push((key, value));
    m
}

fn without(mut m: Metadata, key: &str) -> Metadata {
    m.retain(|(k, _)| *k != format!("tokenizer.ggml.{key}"));
    m
}

fn vocabulary<S: AsRef<[u8]>>(model: &str, tokens: &[S]) -> Metadata {
    let m = vec![("general.architecture".to_string(), Value::String(b"llama".to_vec()))];
    with(with(m, "model", Value::String(model.into())), "tokens", strings(tokens))
}

/// The 256 letters byte-level BPE writes bytes in.
fn byte_letters() -> Vec<String> {
    let plain = |b: u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 256;
    let letter = |b: u32| {
        let c = if plain(b) { b } else { next };
        next += u32::from(!plain(b));
        char::from_u32(c).unwrap().to_string()
    };
    (0..256).map(letter).collect()
}

/// Byte-level BPE with a few merges and two control tokens at 259 and 260.
fn bpe(pre: &str) -> Metadata {
    let mut tokens = byte_letters();
    tokens.extend(["ab", "Ġa", "Ġab", "<|im_start|>", "<|im_end|>"].map(String::from));
    let mut types = vec![1; tokens.len()];
    types[259..].fill(3);
    let m = with(vocabulary("gpt2", &tokens), "merges", strings(&["a b", "Ġ a", "Ġa b", "Ġ ab"]));
    let m = with(m, "token_type", Value::Array(Array::I32(types)));
    let m = with(m, "eos_token_id", Value::U32(260));
    with(m, "pre", Value::String(pre.into()))
}

/// SentencePiece with `<0xHH>` for every byte.
fn spm() -> Metadata {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    tokens.extend(["▁", "a", "b", "ab", "▁ab"].map(String::from));
    let mut types = vec![6; tokens.len()];
    types[..3].copy_from_slice(&[2, 3, 3]);
    types[259..].fill(1);
    let scores = (0..tokens.len()).map(|i| i as f32).collect();
    let m = with(vocabulary("llama", &tokens), "scores", Value::Array(Array::F32(scores)));
    with(m, "token_type", Value::Array(Array::I32(types)))
}

fn load(m: &Metadata) -> ggml::Result<Vocab> {
    Vocab::from_metadata(Path::new("some.gguf"), m)
}

#[track_caller]
fn refused(m: Metadata, expected: &str) {
    match load(&m) {
        Ok(_) => panic!("accepted; expected an error with '{expected}'"),
        Err(e) => {
            let e = e.to_string();
            assert!(e.contains(expected) && e.contains("some.gguf") && !e.contains('\n'), "{e}");
        }
    }
}

#[test]
fn byte_level_bpe_is_read_and_round_trips() {
    let v = load(&bpe("smollm")).unwrap();
    assert_eq!(v.n_tokens(), 261);
    assert_eq!(v.tokenize("ab ab", false, false).unwrap(), [256, 258]);
    assert_eq!(v.tokenize("ab<|im_end|>", false, true).unwrap(), [256, 260]);
    assert!(v.tokenize("ab<|im_end|>", false, false).unwrap().len() > 2);
    assert_eq!(v.piece(258, false).unwrap(), b" ab");
    assert_eq!(v.piece(260, true).unwrap(), b"<|im_end|>");
    assert_eq!(v.piece(260, false).unwrap(), b"");
    assert_eq!(v.eos(), Some(260));
    assert_eq!(v.eot(), Some(260));
    assert!(v.is_eog(260) && !v.is_eog(0) && !v.is_eog(-1) && !v.is_eog(i32::MAX));
    let text = "nul \0 tab\t é \u{10FFFF} 日本 \u{FEFF} \r\n";
    let tokens = v.tokenize(text, false, false).unwrap();
    assert_eq!(v.detokenize(&tokens, false).unwrap(), text);
    assert!(v.tokenize("", false, false).unwrap().is_empty());
    assert_eq!(v.detokenize(&[], true).unwrap(), "");
}

#[test]
fn tokens_outside_the_vocabulary_are_errors() {
    let v = load(&bpe("smollm")).unwrap();
    for t in [-1, i32::MIN, 261, i32::MAX] {
        assert!(v.piece(t, true).unwrap_err().to_string().contains("not in the vocabulary"), "{t}");
        assert!(v.detokenize(&[0, t], true).is_err(), "{t}");
    }
}

#[test]
fn long_runs_do_not_overflow_the_stack() {
    // 'tekken' goes through std::regex, which recurses per character; test threads have small stacks.
    for pre in ["tekken", "gpt-4o", "bloom", "exaone-moe"] {
        let v = load(&bpe(pre)).unwrap();
        for unit in ["a", "A", " ", "é", "!", "\n", "aB"] {
            let text = unit.repeat(14_000 / unit.len());
            let tokens = v.tokenize(&text, false, false).unwrap();
            assert!(!tokens.is_empty(), "{pre} {unit:?}");
        }
    }
}

/// What it takes of the stack is memory. The words of a line are a run for one of the pre-tokenizers only.
#[test]
fn the_longest_run_is_read_and_a_longer_one_refused() {
    let v = load(&bpe("tekken")).unwrap();
    let (longest, line) = ("é".repeat(1 << 20), "ab ".repeat(1 << 19));
    assert_eq!(v.tokenize(&longest, false, false).unwrap().len(), 1 << 21);
    assert_eq!(v.tokenize(&line, false, false).unwrap().len(), (1 << 19) + 1);
    let run = "at most 1048576 characters without a break";
    for (pre, text) in [("tekken", longest + "!"), ("exaone-moe", line)] {
        let e = load(&bpe(pre)).unwrap().tokenize(&text, false, false).unwrap_err().to_string();
        assert!(e.contains(&format!("expected {run}")), "{pre}: {e}");
    }
}

/// The time of three pre-tokenizers grows with the square of a run's length. The others take the same runs.
#[test]
fn runs_that_would_take_minutes_are_refused() {
    let (blanks, digits) = (" ".repeat(20_000), "1".repeat(20_000));
    let line = format!("{blanks}1");
    let refused = |pre: &str, text: &str, what: &str| {
        let e = load(&bpe(pre)).unwrap().tokenize(text, false, false).unwrap_err().to_string();
        assert_eq!(e, format!("text: expected runs of {what}"));
    };
    let like = |name, n| {
        format!("{name} that take no longer than one of 8192, found those that take as long as one of {n}")
    };
    refused("deepseek-llm", &line, &like("blanks", 20_000));
    refused("deepseek-llm", &format!("{}1", "\u{3000}".repeat(20_000)), &like("blanks", 20_000));
    refused("superbpe", &digits, &like("digits", 20_000));
    // Several that are short enough alone: 4 times the square of 5,000.
    refused("superbpe", &format!("{}a", "1".repeat(5_000)).repeat(4), &like("digits", 10_000));
    let long = format!("{}1", " ".repeat(200_000));
    let what =
        "blanks that take no longer than one of 131072, found those that take as long as one of 200000";
    refused("jais-2", &long, what);
    for (pre, text) in [("deepseek-llm", &digits), ("superbpe", &line), ("jais-2", &line), ("tekken", &line)]
    {
        assert!(load(&bpe(pre)).unwrap().tokenize(text, false, false).is_ok(), "{pre}");
    }
    // What prose and code have.
    let indented = format!("{}1\n", " ".repeat(200)).repeat(50);
    assert!(load(&bpe("deepseek-llm")).unwrap().tokenize(&indented, false, false).is_ok());
}

/// libllama's time grows with the square of the number of special tokens in a text.
#[test]
fn texts_of_many_special_tokens_are_cut_where_their_tokens_stay() {
    let n = 50_000;
    let v = load(&bpe("gpt-2")).unwrap();
    let tokens = v.tokenize(&"ab<|im_end|>".repeat(n), false, true).unwrap();
    assert!(tokens == [256, 260].repeat(n));
    // Each fragment of SentencePiece begins with a blank; BOS and EOS are around the whole.
    let v = load(&with(spm(), "add_eos_token", Value::Bool(true))).unwrap();
    let tokens = v.tokenize(&"ab</s>".repeat(n), true, true).unwrap();
    assert!(tokens == [vec![1], [263, 2].repeat(n), vec![2]].concat());

    // Some that overlap others, and themselves. They are special where special tokens are not parsed.
    let mut tokens = byte_letters();
    tokens.extend(["--", "----", "-+-", "+-+", "ab"].map(String::from));
    let mut types = vec![1; tokens.len()];
    types[256..260].fill(4);
    let m = with(vocabulary("gpt2", &tokens), "merges", strings(&["a b"]));
    let m = with(m, "pre", Value::String(b"gpt-2".to_vec()));
    let v = load(&with(m, "token_type", Value::Array(Array::I32(types)))).unwrap();
    let n = 2000;
    let tokens = v.tokenize(&"-----a".repeat(n), false, false).unwrap();
    assert!(tokens == [257, 45, 97].repeat(n));
    for unit in ["-----a-+-+b", "--------ab", "----+-+-ab-+-é"] {
        let alone = v.tokenize(unit, false, false).unwrap();
        assert!(v.tokenize(&unit.repeat(n), false, false).unwrap() == alone.repeat(n), "{unit}");
    }
    assert!(v.tokenize(&"-".repeat(4 * n), false, false).unwrap() == vec![257; n]);
}

#[test]
fn sentencepiece_is_read_and_falls_back_to_bytes() {
    let v = load(&spm()).unwrap();
    let tokens = v.tokenize("ab é", true, false).unwrap();
    assert_eq!(tokens, [1, 263, 259, 3 + 0xC3, 3 + 0xA9]);
    assert_eq!(v.detokenize(&tokens, false).unwrap(), "ab é");
    assert_eq!((v.bos(), v.eos(), v.add_bos(), v.add_eos()), (Some(1), Some(2), true, false));
}

/// Places are those of the bytes, the added blank has none, and tokens do not depend on how a text is cut.
#[test]
fn tokens_have_their_places_in_the_text() {
    let of = |v: &Vocab, text: &str| {
        let tokens = v.tokenize(text, false, true).unwrap();
        let places = Tokenizer::places(v, text, &tokens).unwrap();
        (tokens, places.into_iter().map(|p| (p.start, p.end)).collect::<Vec<_>>())
    };
    let v = load(&spm()).unwrap();
    assert_eq!(of(&v, "ab é"), (vec![263, 259, 198, 172], vec![(0, 2), (2, 3), (3, 4), (4, 5)]));
    assert_eq!(of(&v, "b"), (vec![259, 261], vec![(0, 0), (0, 1)]));
    // A blank before what follows a special token, and none of it.
    assert_eq!(
        of(&v, "<s>ab</s>b"),
        (vec![1, 263, 2, 259, 261], vec![(0, 3), (3, 5), (5, 9), (9, 9), (9, 10)])
    );
    let v = load(&with(spm(), "add_space_prefix", Value::Bool(false))).unwrap();
    assert_eq!(of(&v, "<s>ab b"), (vec![1, 262, 259, 261], vec![(0, 3), (3, 5), (5, 6), (6, 7)]));
    let v = load(&bpe("smollm")).unwrap();
    assert_eq!(of(&v, "ab ab<|im_end|>"), (vec![256, 258, 260], vec![(0, 2), (2, 5), (5, 15)]));
    assert!(Tokenizer::places(&v, "ba", &[256]).is_err());
}

#[test]
fn sentencepiece_without_bytes_says_what_it_cannot_express() {
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "é", "▁a"];
    let v = load(&vocabulary("llama", &tokens)).unwrap();
    assert_eq!(v.tokenize("a é", false, false).unwrap(), [7, 3, 6]);
    for text in ["z", "a日", "\n", "a\0"] {
        let e = v.tokenize(text, false, false).unwrap_err().to_string();
        assert!(e.contains("no tokens for the character"), "{text:?}: {e}");
    }
}

#[test]
fn missing_ends_are_errors() {
    let m = with(bpe("smollm"), "add_bos_token", Value::Bool(true));
    let v = load(&m).unwrap();
    assert!(v.add_bos());
    assert_eq!(v.tokenize("a", true, false).unwrap().len(), 2, "libllama's default BOS");
    // The default BOS of this tokenizer is token 11, which so small a vocabulary does not have.
    let m = with(vocabulary("gpt2", &["a", "b", "ab"]), "merges", strings(&["a b"]));
    let m = with(m, "add_bos_token", Value::Bool(true));
    let v = load(&m).unwrap();
    let e = v.tokenize("a", true, false).unwrap_err().to_string();
    assert!(e.contains("beginning-of-text"), "{e}");
    assert!(v.tokenize("a", false, false).is_ok());
}

#[test]
fn a_file_without_a_vocabulary_loads_and_refuses_text() {
    let mut m = with(vocabulary("none", &["x"]), "model", Value::String(b"no_vocab".to_vec()));
    m.push(("llama.vocab_size".into(), Value::U32(1 << 30)));
    let v = load(&m).unwrap();
    assert_eq!(v.n_tokens(), 1 << 30);
    assert!(v.bos().is_none() && !v.add_bos() && !v.is_eog(0));
    for e in [v.tokenize("a", false, false).unwrap_err(), v.piece(0, true).unwrap_err()] {
        assert!(e.to_string().contains("no vocabulary"), "{e}");
    }
    assert!(v.detokenize(&[], false).is_err());
}

#[test]
fn broken_token_lists_are_refused() {
    refused(without(bpe("smollm"), "model"), "tokenizer.ggml.model: missing");
    refused(with(bpe("smollm"), "model", Value::String(b"gpt5".to_vec())), "'gpt5'");
    refused(with(bpe("smollm"), "model", Value::U8(1)), "expected a string");
    refused(without(bpe("smollm"), "tokens"), "tokenizer.ggml.tokens: missing");
    refused(with(bpe("smollm"), "tokens", Value::Array(Array::I32(vec![1]))), "expected an array of strings");
    refused(vocabulary("test", &[""; 0]), "empty");
    refused(vocabulary("test", &["a", "b", "a"]), "token 2 repeats token 0 (\"a\")");
    refused(vocabulary("test", &["a\0b", "a\0c"]), "token 1 repeats token 0");
    refused(vocabulary("test", &["[EMPTY_1]", ""]), "token 1 repeats token 0");
    refused(vocabulary("test", &["\0", "[EMPTY_0]"]), "token 1 repeats token 0");
    refused(vocabulary("test", &["x".repeat(100_000)]), "100000 bytes");
    assert!(load(&vocabulary("test", &["", "a", "b"])).is_ok());
}

#[test]
fn broken_companions_of_the_tokens_are_refused() {
    let types = |t: Vec<i32>| Value::Array(Array::I32(t));
    let scores = |s: Vec<f32>| Value::Array(Array::F32(s));
    refused(with(spm(), "token_type", types(vec![1; 10])), "expected 264 entries");
    refused(with(spm(), "token_type", Value::Array(Array::U32(vec![1; 264]))), "expected an array of i32");
    refused(with(spm(), "scores", scores(vec![0.0; 263])), "expected 264 entries");
    refused(with(spm(), "scores", scores(vec![f32::NAN; 264])), "token 0 is not a number");
    refused(with(spm(), "scores", Value::Array(Array::F64(vec![0.0; 264]))), "expected an array of f32");
    refused(with(bpe("smollm"), "bos_token_id", Value::U32(261)), "expected a token below 261, found 261");
    refused(with(bpe("smollm"), "eos_token_id", Value::I32(-1)), "expected a u32");
    refused(with(vocabulary("bert", &["a", "b"]), "token_type", types(vec![1, 6])), "byte token 1");
    refused(with(vocabulary("llama", &["a", "b"]), "token_type", types(vec![1, 6])), "byte token 1");
    let split: [&[u8]; 2] = [b"a", b"\xC3"];
    refused(with(vocabulary("test", &split), "token_type", types(vec![1, 4])), "special token 1");
    assert!(
        load(&with(bpe("smollm"), "padding_token_id", Value::U32(u32::MAX))).is_ok(),
        "harmless and common"
    );
}

/// Uses the form that ollama's converter writes (`[]int32`).
#[test]
fn more_tokens_that_end_a_text_are_read() {
    let ids = |ids: Vec<i32>| Value::Array(Array::I32(ids));
    let ends = |m: &Metadata| {
        let vocab = load(m).unwrap();
        (0..vocab.n_tokens() as i32).filter(|&id| vocab.is_eog(id)).collect::<Vec<_>>()
    };
    let own = ends(&bpe("smollm"));
    assert!(own.contains(&260) && !own.contains(&3) && !own.contains(&258), "{own:?}");
    let with_both = ends(&with(bpe("smollm"), "eos_token_ids", ids(vec![260, 258, 3])));
    assert_eq!(with_both, [vec![3, 258], own.clone()].concat());
    assert_eq!(ends(&with(bpe("smollm"), "eos_token_ids", ids(vec![]))), own);
    assert_eq!(
        ends(&with(bpe("smollm"), "eos_token_ids", Value::Array(Array::U32(vec![3])))),
        [vec![3], own].concat()
    );
    for wrong in [261, -1] {
        let what = format!("eos_token_ids: expected tokens below 261, found {wrong}");
        refused(with(bpe("smollm"), "eos_token_ids", ids(vec![260, wrong])), &what);
    }
    refused(with(bpe("smollm"), "eos_token_ids", ids(vec![3; 1025])), "expected at most 1024 entries");
    refused(with(bpe("smollm"), "eos_token_ids", Value::U32(3)), "expected an array of i32 or u32");
}

#[test]
fn broken_bpe_is_refused() {
    refused(without(bpe("smollm"), "merges"), "tokenizer.ggml.merges: missing");
    refused(with(bpe("smollm"), "merges", strings(&["a b", "ab"])), "merge 1 (\"ab\")");
    refused(with(bpe("smollm"), "merges", Value::Array(Array::U8(vec![]))), "expected an array of strings");
    refused(bpe("no-such-pre"), "no-such-pre");
    refused(bpe("whitespace"), "goes with the tokenizer 'whitespace'");
    let blanks: Vec<String> = (1..3000).map(|n| " ".repeat(n)).collect();
    let m = with(vocabulary("gpt2", &blanks), "merges", strings(&["a b"]));
    refused(m, "not byte-level BPE");
}

#[test]
fn tokenizers_of_models_that_are_not_run_are_refused_by_name() {
    for name in ["t5", "rwkv", "plamo2"] {
        let message = "tokenizer.ggml.model: expected a tokenizer that ropewalk supports";
        refused(vocabulary(name, &["<pad>", "</s>", "<unk>", "a"]), message);
        refused(vocabulary(name, &["a"]), &format!("found '{name}'"));
    }
}
