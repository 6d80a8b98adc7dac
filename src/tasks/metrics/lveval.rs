//! The metrics of LV-Eval: `metrics.py` of infinigence/LVEval at 63e7ae9.
//!
//! Keywords decide first: an answer that has too few of the annotated ones scores 0. Else its F1 counts all its
//! words, those of the blacklist too (the paper and the README take them out there; the code does not). The
//! blacklist only keeps common words from counting as keywords found.

use super::chinese::{normalize_zh_answer, Words};
use super::rouge::rouge_l_within;
use super::{normalize_answer, python, shared, token_f1};

/// `qa_f1_score`: F1 of words, for factrecall in English.
pub use super::longbench::qa_f1_score as f1;

/// The share of keywords below which an English answer scores 0.
const ENOUGH: f64 = 0.2;
/// The share of keywords below which a Chinese answer scores 0.
const ENOUGH_ZH: f64 = 0.4;

/// The steps that the package `rouge` can go before Python raises `RecursionError`, which scores 0: one less than
/// in LongBench's code, which calls it through a function less.
const MAX_STEPS: usize = 989;

/// `ABANDON_WORDS_EN`.
const COMMON: &[&str] = &[
    "and", "to", "of", "in", "her", "was", "with", "for", "it", "from", "is", "that", "his", "he", "by",
    "she", "they", "or", "at", "because", "be", "on", "are", "their", "what", "as", "had", "were", "about",
    "being", "this", "who", "but", "have", "has", "when", "which", "does",
];

/// `ABANDON_WORDS_ZH`.
const COMMON_ZH: &[&str] = &[
    "的", "和", "是", "等", "在", "年", "可以", "为", "与", "‰", "了", "或", "一种", "月", "c", "至", "日",
    "有", "进行", "于", "不", "中", "×", "根据", "小", "由", "亩", "也", "要", "指", "法", "会", "元",
    "主要", "以及", "通过", "首先", "对", "然后", "号", "以", "所", "后", "丁", "包括", "无", "将", "用",
    "能", "形", "方面", "因素", "位于", "而", "从", "到", "一定", "用于", "但", "使用", "让", "具有", "并",
    "亿元", "万元", "上", "类", "基于", "才", "来", "地", "片", "其他", "个", "或者", "变得", "时", "给",
    "你", "使", "条", "受", "已经", "带", "度",
];

/// `qa_f1_score_with_gold_ans`: F1 of words, 0 where fewer than a fifth of the keywords are found. Absent or
/// empty keywords decide nothing. Keywords without a word score 0, where the official code divides by zero.
pub fn f1_with_keywords(prediction: &str, gold: &str, keywords: Option<&str>) -> f64 {
    if let Some(keywords) = keywords.filter(|k| !k.is_empty()) {
        let (prediction, keywords) = (normalize_answer(prediction), normalize_answer(keywords));
        if !has_enough(&words(&prediction), &words(&keywords), COMMON, ENOUGH) {
            return 0.0;
        }
    }
    f1(prediction, gold)
}

/// `qa_f1_zh_score`: F1 of Chinese words, for factrecall in Chinese.
pub fn f1_zh(cutter: &Words, prediction: &str, gold: &str) -> f64 {
    token_f1(&words_zh(cutter, prediction), &words_zh(cutter, gold))
}

/// `qa_f1_zh_score_with_gold_ans`: F1 of Chinese words, 0 where fewer than two fifths of the keywords are found.
/// Where there are none, the answer itself serves as keywords. Keywords without a word score 0, where the
/// official code divides by zero.
pub fn f1_zh_with_keywords(cutter: &Words, prediction: &str, gold: &str, keywords: Option<&str>) -> f64 {
    let keywords = keywords.filter(|k| !k.is_empty()).unwrap_or(gold);
    let prediction = words_zh(cutter, prediction);
    let gold = words_zh(cutter, gold);
    // An empty answer without keywords is no keyword either, and decides nothing.
    if !keywords.is_empty() && !has_enough(&prediction, &words_zh(cutter, keywords), COMMON_ZH, ENOUGH_ZH) {
        return 0.0;
    }
    token_f1(&prediction, &gold)
}

/// `rouge_zh_score_blacklist`: ROUGE-L of Chinese words without those of the blacklist. Text is cut, joined with
/// blanks and cut again.
pub fn rouge_zh(cutter: &Words, prediction: &str, gold: &str) -> f64 {
    let kept = |text: &str| {
        let cut = cutter.cut(text).join(" ");
        let words = cutter.cut(&cut).into_iter().map(normalize_zh_answer);
        words.filter(|w| !COMMON_ZH.contains(&w.as_str())).collect::<Vec<_>>().join(" ")
    };
    rouge_l_within(&kept(prediction), &kept(gold), MAX_STEPS)
}

/// Returns true if the share of keywords found, common words aside, reaches a threshold. All keywords count below the
/// line, the common ones too.
fn has_enough<T: AsRef<str> + Eq + std::hash::Hash>(
    found: &[T],
    keywords: &[T],
    common: &[&str],
    least: f64,
) -> bool {
    let found: Vec<&T> = found.iter().filter(|w| !common.contains(&w.as_ref())).collect();
    let keywords: Vec<&T> = keywords.iter().collect();
    !keywords.is_empty() && shared(&found, &keywords) as f64 / keywords.len() as f64 >= least
}

fn words(text: &str) -> Vec<&str> {
    python::split(text).collect()
}

fn words_zh(cutter: &Words, text: &str) -> Vec<String> {
    cutter.cut(text).into_iter().map(normalize_zh_answer).filter(|w| !w.is_empty()).collect()
}
