//! Chinese text as official metrics take it apart: the words of Python's `jieba`, and the normalization of
//! LongBench, LV-Eval and InfiniteBench.

use std::path::Path;

use jieba_rs::Jieba;

use super::python;
use crate::{DataFile, Error, Result};

/// The dictionary of the Python package jieba.
pub static DICTIONARY: DataFile = DataFile {
    name: "jieba/dict.txt",
    sha256: Some("7197c3211ddd98962b036cdf40324d1ea2bfaa12bd028e68faa70111a88e12a8"),
    from: "it is in the Python package jieba 0.42.1",
};

/// Cuts Chinese text into words as `jieba.cut` of the Python package jieba 0.42.1 does, unknown words by its
/// hidden Markov model included.
///
/// The crate `jieba-rs` differs from it in three ways, which are fixed here: the words of its dictionary
/// (this one is loaded with Python's), the characters that belong to text that is looked up, and compounds of
/// Latin letters and digits such as "2020-01", which it leaves whole.
pub struct Words(Jieba);

impl Words {
    /// With the dictionary in a folder of data.
    ///
    /// # Errors
    /// Returns the errors of [`DataFile::read_text`].
    pub fn read(folder: &Path) -> Result<Words> {
        Words::new(&DICTIONARY.read_text(folder)?).map_err(|e| Error::file(folder.join(DICTIONARY.name), e))
    }

    /// Takes the text of a dictionary, one `word frequency kind` a line: `dict.txt` of the Python package.
    ///
    /// # Errors
    /// A frequency that is not a number.
    pub fn new(dictionary: &str) -> Result<Words, String> {
        Jieba::with_dict(&mut dictionary.as_bytes()).map(Words).map_err(|e| e.to_string())
    }

    /// The words of a text, white space and punctuation among them.
    pub fn cut<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut words = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let end = if is_looked_up(c) {
                rest.find(|c| !is_looked_up(c)).unwrap_or(rest.len())
            } else if rest.starts_with("\r\n") {
                2
            } else {
                c.len_utf8()
            };
            let (piece, after) = rest.split_at(end);
            rest = after;
            if !is_looked_up(c) {
                words.push(piece);
                continue;
            }
            for token in self.0.cut(piece, true) {
                let word = token.word;
                if word.starts_with(|c: char| c.is_ascii_alphanumeric()) && !self.0.has_word(word) {
                    push_runs(word, &mut words);
                } else {
                    words.push(word);
                }
            }
        }
        words
    }
}

/// `re_han_default` of jieba: what is cut with the dictionary; all else is a word by itself.
fn is_looked_up(c: char) -> bool {
    matches!(c, '\u{4E00}'..='\u{9FD5}' | '+' | '#' | '&' | '.' | '_' | '%' | '-')
        || c.is_ascii_alphanumeric()
}

/// Splits as `re_skip` of jieba's `finalseg` does: runs of letters and digits, with decimals and a percent sign,
/// and what is between them.
fn push_runs<'a>(mut text: &'a str, words: &mut Vec<&'a str>) {
    while !text.is_empty() {
        let end = match run(text.as_bytes()) {
            0 => text.find(|c: char| c.is_ascii_alphanumeric()).unwrap_or(text.len()),
            n => n,
        };
        let (word, after) = text.split_at(end);
        words.push(word);
        text = after;
    }
}

/// The bytes that `[a-zA-Z0-9]+(?:\.\d+)?%?` matches at the beginning.
fn run(text: &[u8]) -> usize {
    let count = |from: usize, is: fn(&u8) -> bool| text[from..].iter().take_while(|b| is(b)).count();
    let mut n = count(0, u8::is_ascii_alphanumeric);
    if n > 0 && text.get(n) == Some(&b'.') {
        let decimals = count(n + 1, u8::is_ascii_digit);
        n += if decimals > 0 { 1 + decimals } else { 0 };
    }
    n + usize::from(n > 0 && text.get(n) == Some(&b'%'))
}

/// The punctuation that `normalize_zh_answer` takes away besides ASCII's.
const PUNCTUATION: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏.";

/// Lower case, without ASCII and Chinese punctuation and without white space: `normalize_zh_answer` of the
/// metrics of LongBench, LV-Eval and InfiniteBench.
pub fn normalize_zh_answer(text: &str) -> String {
    let kept = |c: &char| !python::is_punctuation(*c) && !PUNCTUATION.contains(*c) && !python::is_space(*c);
    text.to_lowercase().chars().filter(kept).collect()
}
