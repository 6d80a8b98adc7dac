//! tokenizer.json composed of components of every kind that the crate `tokenizers` has, with extreme parameters: a byte
//! changed in a sound file does not invent such. The bytes of an input choose.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ropewalk_import::Checkpoint;
use serde_json::{json, Map, Value};

use crate::{accepted, replace, scratch};

/// Choices, one byte each; those behind the last are the first there is, which is sound.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(first)
    }
    fn below(&mut self, n: usize) -> usize {
        self.byte() % n
    }
    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
    /// True in one of so many cases.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }
    fn text(&mut self) -> Value {
        const TEXTS: &[&str] = &[
            "a",
            " ",
            "▁",
            "o",
            "HH",
            "3",
            "\n",
            "",
            "\u{301}",
            "é",
            "İ",
            "ﷺ",
            "🚀",
            "\u{0}",
            "<|endoftext|>",
            "oooooooo",
            "\t \n ",
            "\u{feff}",
            "ΐ",
            "RE",
            "가",
            "\u{200d}",
        ];
        match self.below(16) {
            14 => "o".repeat([64, 65, 512, 513, 100_000][self.below(5)]).into(),
            15 => self.odd(),
            _ => self.of(TEXTS).into(),
        }
    }
    /// A value of another type than expected.
    fn odd(&mut self) -> Value {
        match self.below(8) {
            0 => Value::Null,
            1 => json!(true),
            2 => json!([]),
            3 => json!({}),
            4 => json!(-1),
            5 => json!(u64::MAX),
            6 => json!(1e300),
            _ => json!("odd"),
        }
    }
    fn flag(&mut self) -> Value {
        if self.once_in(32) {
            return self.odd();
        }
        json!(self.below(2) == 1)
    }
    fn number(&mut self) -> Value {
        match self.below(12) {
            11 => self.odd(),
            i => json!([0, 1, 2, 3, 64, 65, 255, 65_536, u64::from(u32::MAX), 1 << 40, u64::MAX][i]),
        }
    }
    fn regex(&mut self) -> Value {
        const REGEXES: &[&str] = &[
            r"\s+(?!\S)|\s+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"\w{60}",
            r"\w{64}",
            r"\w{65}",
            r"[\s\S]{64}",
            r"(?=o\K)",
            r"o\K",
            "^",
            "$",
            "",
            r"\b",
            r"\B",
            r"(a*)*b",
            r"(\s*)*\S\z",
            r"(?<=o)",
            r"(?<!\w)(?=\w)",
            r"(\w)\1",
            r"(?:(?:\w{9}){9}){9}",
            "(",
            "[",
            "|",
            r"(?x) \w # (
 {60}",
            r"(?i)[\x{0}-\x{10FFFF}]{64}",
            r"\G",
            r"(?!)",
            r"(?>a+)+$",
            r"(?:a|aa|a?)+$",
            r"(?(1)a|b)",
            r"(a)?(?(1)b|c)",
            r"\p{L}{1000}",
            r"\p{Nope}",
            r".{1,24}",
            r"(?s).+",
            r"(?<n>o)\k<n>",
            r"\h+",
            r"(?=.*(?=.*(?=.*o)))",
            "\u{301}",
            r"[^\x00-\x7F]",
            r"(?m)^",
            r"x{99999999999}",
        ];
        match self.below(24) {
            20 => "(".repeat(1000).into(),
            21 => r"\w(?=\w)".repeat([1, 20, 120, 500][self.below(4)]).into(),
            22 => r"\w{16}".repeat([1, 16, 64, 600][self.below(4)]).into(),
            23 => self.text(),
            _ => self.of(REGEXES).into(),
        }
    }
    fn pattern(&mut self) -> Value {
        match self.below(8) {
            0..=3 => json!({"String": self.text()}),
            4..=6 => json!({"Regex": self.regex()}),
            _ => self.odd(),
        }
    }
    /// A list of up to four, sometimes of thousands.
    fn list(&mut self, depth: usize, one: fn(&mut Self, usize) -> Value) -> Value {
        let n = self.below(5);
        let mut list: Vec<Value> = (0..n).map(|_| one(self, depth + 1)).collect();
        if self.once_in(24) {
            let last = list.last().cloned().unwrap_or(Value::Null);
            list.resize([16, 64, 65, 3000][self.below(4)], last);
        }
        Value::Array(list)
    }
    /// A component of a type, less a key or with an odd one now and then.
    fn component(&mut self, kind: &str, parameters: Vec<(&str, Value)>) -> Value {
        let mut map: Map<String, Value> = parameters.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        map.insert("type".into(), kind.into());
        match self.below(48) {
            45 => drop(map.remove("type")),
            46 => {
                let keys: Vec<String> = map.keys().cloned().collect();
                map.remove(&keys[self.below(keys.len())]);
            }
            47 => {
                let keys: Vec<String> = map.keys().cloned().collect();
                let odd = self.odd();
                map.insert(keys[self.below(keys.len())].clone(), odd);
            }
            _ => {}
        }
        Value::Object(map)
    }
    fn sequence(&mut self, key: &str, depth: usize, one: fn(&mut Self, usize) -> Value) -> Value {
        let list = if depth < 4 { self.list(depth, one) } else { json!([]) };
        let mut out = self.component("Sequence", vec![(key, list)]);
        if self.once_in(32) {
            for _ in 0..[7, 8, 9, 50][self.below(4)] {
                out = json!({"type": "Sequence", key: [out]});
            }
        }
        out
    }
}

/// The kinds of `NormalizerWrapper`.
fn normalizer(c: &mut Choices<'_>, depth: usize) -> Value {
    match c.below(15) {
        0 => c.component("NFC", vec![]),
        1 => c.component("NFD", vec![]),
        2 => c.component("NFKC", vec![]),
        3 => c.component("NFKD", vec![]),
        4 => c.component("Lowercase", vec![]),
        5 => c.component("StripAccents", vec![]),
        6 => c.component("ByteLevel", vec![]),
        7 => {
            let text = c.text();
            c.component("Prepend", vec![("prepend", text)])
        }
        8 | 9 => {
            let (pattern, content) = (c.pattern(), c.text());
            c.component("Replace", vec![("pattern", pattern), ("content", content)])
        }
        10 => {
            let (left, right) = (c.flag(), c.flag());
            c.component("Strip", vec![("strip_left", left), ("strip_right", right)])
        }
        11 => c.component("Nmt", vec![]),
        12 => {
            let map = json!(["AAAAAA==", "/////w==", "", "?", "AQAAAAAAAAA="][c.below(5)]);
            c.component("Precompiled", vec![("precompiled_charsmap", map)])
        }
        13 => {
            let keys = ["clean_text", "handle_chinese_chars", "strip_accents", "lowercase"];
            let parameters = keys.map(|key| (key, c.flag())).to_vec();
            let kind = c.of(&["Bert", "BertNormalizer"]);
            c.component(kind, parameters)
        }
        _ => c.sequence("normalizers", depth, normalizer),
    }
}

/// The kinds of `PreTokenizerWrapper`.
fn pre_tokenizer(c: &mut Choices<'_>, depth: usize) -> Value {
    let behavior = |c: &mut Choices<'_>| match c.below(7) {
        6 => c.odd(),
        i => json!(["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous", "None"][i]),
    };
    match c.below(14) {
        0 => {
            let parameters =
                ["add_prefix_space", "trim_offsets", "use_regex"].map(|key| (key, c.flag())).to_vec();
            c.component("ByteLevel", parameters)
        }
        1..=3 => {
            let parameters = vec![("pattern", c.pattern()), ("behavior", behavior(c)), ("invert", c.flag())];
            c.component("Split", parameters)
        }
        4 => {
            let flag = c.flag();
            c.component("Digits", vec![("individual_digits", flag)])
        }
        5 => metaspace(c),
        6 => {
            let behavior = behavior(c);
            c.component("Punctuation", vec![("behavior", behavior)])
        }
        7 => c.component("Whitespace", vec![]),
        8 => c.component("WhitespaceSplit", vec![]),
        9 => c.component("BertPreTokenizer", vec![]),
        10 => {
            let text = c.text();
            let kind = c.of(&["CharDelimiterSplit", "Delimiter"]);
            c.component(kind, vec![("delimiter", text)])
        }
        11 => c.component("UnicodeScripts", vec![]),
        12 => {
            let length = c.number();
            c.component("FixedLength", vec![("length", length)])
        }
        _ => c.sequence("pretokenizers", depth, pre_tokenizer),
    }
}

fn metaspace(c: &mut Choices<'_>) -> Value {
    let scheme = json!(["always", "first", "never", "maybe"][c.below(4)]);
    let mut parameters = vec![("replacement", c.text()), ("split", c.flag())];
    if c.below(2) == 1 {
        parameters.push(("prepend_scheme", scheme));
    }
    if c.below(2) == 1 {
        parameters.push(("add_prefix_space", c.flag()));
    }
    c.component("Metaspace", parameters)
}

/// The kinds of `PostProcessorWrapper`.
fn processor(c: &mut Choices<'_>, depth: usize) -> Value {
    let names = ["<|endoftext|>", "<s>", "", "A"];
    let piece = |c: &mut Choices<'_>| match c.below(12) {
        0..=4 => json!({"Sequence": {"id": "A", "type_id": c.number()}}),
        5 => json!({"Sequence": {"id": c.of(&["B", "C"]), "type_id": 0}}),
        11 => c.odd(),
        _ => json!({"SpecialToken": {"id": c.of(&names), "type_id": 0}}),
    };
    match c.below(6) {
        0 => {
            let parameters =
                ["add_prefix_space", "trim_offsets", "use_regex"].map(|key| (key, c.flag())).to_vec();
            c.component("ByteLevel", parameters)
        }
        1 | 2 => {
            let n = [1, 2, 3, 64, 65][c.below(5)];
            let ids: Vec<Value> = (0..n).map(|_| c.number()).collect();
            let mut special = Map::new();
            for name in &names[..c.below(4)] {
                special.insert((*name).into(), json!({"id": name, "ids": ids, "tokens": vec![name; n]}));
            }
            let list = |c: &mut Choices<'_>| Value::Array((0..c.below(5)).map(|_| piece(c)).collect());
            let parameters = vec![("single", list(c)), ("pair", list(c)), ("special_tokens", special.into())];
            c.component("TemplateProcessing", parameters)
        }
        3 | 4 => {
            let parameters = vec![
                ("sep", json!([c.text(), c.number()])),
                ("cls", json!([c.text(), c.number()])),
                ("trim_offsets", c.flag()),
                ("add_prefix_space", c.flag()),
            ];
            let kind = c.of(&["RobertaProcessing", "BertProcessing"]);
            c.component(kind, parameters)
        }
        _ => c.sequence("processors", depth, processor),
    }
}

/// The kinds of `DecoderWrapper`.
fn decoder(c: &mut Choices<'_>, depth: usize) -> Value {
    match c.below(12) {
        0 => {
            let parameters =
                ["add_prefix_space", "trim_offsets", "use_regex"].map(|key| (key, c.flag())).to_vec();
            c.component("ByteLevel", parameters)
        }
        1 => c.component("ByteFallback", vec![]),
        2 => c.component("Fuse", vec![]),
        3 => metaspace(c),
        4 | 5 => {
            let (pattern, content) = (c.pattern(), c.text());
            c.component("Replace", vec![("pattern", pattern), ("content", content)])
        }
        6 | 7 => {
            let parameters = vec![("content", c.text()), ("start", c.number()), ("stop", c.number())];
            c.component("Strip", parameters)
        }
        8 => {
            let text = c.text();
            c.component("BPEDecoder", vec![("suffix", text)])
        }
        9 => {
            let (prefix, flag) = (c.text(), c.flag());
            c.component("WordPiece", vec![("prefix", prefix), ("cleanup", flag)])
        }
        10 => {
            let (pad, word, flag) = (c.text(), c.text(), c.flag());
            c.component("CTC", vec![("pad_token", pad), ("word_delimiter_token", word), ("cleanup", flag)])
        }
        _ => c.sequence("decoders", depth, decoder),
    }
}

fn added(c: &mut Choices<'_>) -> Value {
    // Free ids of the vocabulary, and others.
    let id = match c.below(8) {
        7 => c.number(),
        i => json!(334 + i),
    };
    let mut out = json!({"id": id, "content": c.text()});
    for key in ["single_word", "lstrip", "rstrip", "normalized", "special"] {
        if !c.once_in(8) {
            out[key] = c.flag();
        }
    }
    out
}

/// Changes of a sound tokenizer.
fn compose(mut tokenizer: Value, c: &mut Choices<'_>) -> Value {
    type Kind = fn(&mut Choices<'_>, usize) -> Value;
    let sections: [(&str, Kind); 4] = [
        ("normalizer", normalizer),
        ("pre_tokenizer", pre_tokenizer),
        ("post_processor", processor),
        ("decoder", decoder),
    ];
    for (key, kind) in sections {
        match c.below(8) {
            0..=4 => {}
            5 if c.once_in(4) => tokenizer[key] = c.odd(),
            _ => tokenizer[key] = kind(c, 0),
        }
    }
    for _ in 0..c.below(5) {
        let added = added(c);
        if let Some(list) = tokenizer["added_tokens"].as_array_mut() {
            list.push(added);
        }
    }
    let model = &mut tokenizer["model"];
    match c.below(16) {
        8 => model["type"] = json!(["Unigram", "WordPiece", "WordLevel"][c.below(3)]),
        9 => model["unk_token"] = c.text(),
        10 => model["byte_fallback"] = c.flag(),
        11 => model["ignore_merges"] = c.flag(),
        12 => model["dropout"] = json!([0.0, 1.0, -1.0, 1e300][c.below(4)]),
        13 => model[["continuing_subword_prefix", "end_of_word_suffix"][c.below(2)]] = c.text(),
        14 => model["vocab"][c.text().as_str().unwrap_or("x")] = c.number(),
        15 => model["merges"] = json!([[c.text(), c.text()]]),
        _ => {}
    }
    match c.below(8) {
        6 => {
            tokenizer["truncation"] = json!({"max_length": c.number(), "stride": c.number(), "strategy": "LongestFirst", "direction": "Right"})
        }
        7 => {
            tokenizer["padding"] = json!({"strategy": {"Fixed": c.number()}, "direction": "Right", "pad_to_multiple_of": c.number(),
                "pad_id": 0, "pad_type_id": 0, "pad_token": c.text()})
        }
        _ => {}
    }
    tokenizer
}

fn recorded(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/import/tests/checkpoints").join(path)
}

/// Composes a tokenizer as the bytes choose, and imports it with and without a forced kind.
pub fn run(bytes: &[u8]) -> bool {
    static SOUND: OnceLock<Value> = OnceLock::new();
    let sound = || {
        serde_json::from_slice(&std::fs::read(recorded("tokenizers/bpe/tokenizer.json")).unwrap()).unwrap()
    };
    let tokenizer = compose(SOUND.get_or_init(sound).clone(), &mut Choices(bytes));
    let folder = scratch(&format!("{:?}-tokenizer", std::thread::current().id()));
    if !folder.is_dir() {
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(recorded("qwen2").join(file), folder.join(file)).unwrap();
        }
        let config = "tokenizer_config.json";
        std::fs::copy(recorded("tokenizers/bpe").join(config), folder.join(config)).unwrap();
    }
    replace(&folder.join("tokenizer.json"), tokenizer.to_string().as_bytes());
    // No list has it: what is accepted with a kind says so without one.
    accepted(Checkpoint::open(&folder, None));
    accepted(Checkpoint::open(&folder, Some("gpt-2")))
}

/// The sound one, and compositions that are accepted.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut out = vec![vec![0; 16]];
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    while out.len() < 12 {
        let bytes = draw(&mut random);
        if run(&bytes) {
            out.push(bytes);
        }
    }
    out
}

/// Choices at random.
pub fn draw(random: &mut u64) -> Vec<u8> {
    let mut next = || {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        (*random >> 24) as u8
    };
    (0..96).map(|_| next()).collect()
}
