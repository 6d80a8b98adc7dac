//! The sets: their files, prompts, budgets and metrics, as `config.py` has them.

use super::{LvEval, Score, LEVEL, STYLE};
use crate::metrics::{chinese, rouge};
use crate::{DataFile, Info, Opt, Task};

macro_rules! file {
    ($set:literal, $level:literal) => {
        &DataFile {
            name: concat!("lveval/", $set, "/", $set, "_", $level, ".jsonl"),
            sha256: None,
            from: concat!("it is in ", $set, ".zip of the dataset Infinigence/LVEval"),
        }
    };
}

/// Each set: its static and its two names; prompt, score, and the score's name; options, budget of new tokens, and more
/// files; what it asks.
macro_rules! sets {
    ($($id:ident $name:literal $set:literal $prompt:literal $score:ident $metric:literal $options:ident $max:literal
        [$($dictionary:expr)?] $about:literal;)*) => {
        $(pub static $id: LvEval = LvEval {
            info: Info {
                name: $name,
                about: $about,
                source: "LV-Eval (Yuan et al. 2024), infinigence/LVEval at 63e7ae9, config.py and metrics.py",
                metrics: &[$metric],
                best: if matches!(Score::$score, Score::RougeZh) { rouge::BEST } else { 1.0 },
                options: $options,
                files: &[
                    file!($set, "16k"),
                    file!($set, "32k"),
                    file!($set, "64k"),
                    file!($set, "128k"),
                    file!($set, "256k"),
                    $($dictionary,)?
                ],
                ..Info::OF_LENGTH
            },
            set: $set,
            prompt: include_str!(concat!("prompts/", $prompt, ".txt")),
            max_tokens: $max,
            score: Score::$score,
        };)*

        pub(crate) static TASKS: &[&dyn Task] = &[$(&$id,)*];

        pub static ALL: &[&LvEval] = &[$(&$id,)*];

        const EVERY: &[&str] = &[$($name,)*];
    };
}

const OPTIONS: &[&Opt] = &[&STYLE, &LEVEL];
/// Factrecall has no passages to ask about.
const FACTRECALL: &[&Opt] = &[&LEVEL];

sets! {
    CMRC "lveval_cmrc" "cmrc_mixup" "cmrc" KeywordsZh "f1" OPTIONS 64 [&chinese::DICTIONARY]
        "A question on one of many articles, in Chinese.";
    LOOGLE_SD "lveval_loogle_sd" "loogle_SD_mixup" "one_passage" Keywords "f1" OPTIONS 64 []
        "A question on one of many articles.";
    MULTIFIELDQA_EN "lveval_multifieldqa_en" "multifieldqa_en_mixup" "one_passage" Keywords "f1" OPTIONS 64 []
        "A question on one of many documents of several fields.";
    MULTIFIELDQA_ZH "lveval_multifieldqa_zh" "multifieldqa_zh_mixup" "multifieldqa_zh" KeywordsZh "f1" OPTIONS 64
        [&chinese::DICTIONARY] "A question on one of many documents of several fields, in Chinese.";
    DUREADER "lveval_dureader" "dureader_mixup" "cmrc" RougeZh "rouge_l" OPTIONS 64 [&chinese::DICTIONARY]
        "A question that several of many documents help to answer, in Chinese.";
    HOTPOTWIKIQA "lveval_hotpotwikiqa" "hotpotwikiqa_mixup" "some_passages" Keywords "f1" OPTIONS 64 []
        "A question that takes facts out of two or more of many articles.";
    LIC "lveval_lic" "lic_mixup" "lic" KeywordsZh "f1" OPTIONS 64 [&chinese::DICTIONARY]
        "A question that takes facts out of several documents, in Chinese.";
    LOOGLE_CR "lveval_loogle_cr" "loogle_CR_mixup" "one_passage" Keywords "f1" OPTIONS 64 []
        "A question that takes comprehension and reasoning over one of many articles.";
    LOOGLE_MIR "lveval_loogle_mir" "loogle_MIR_mixup" "one_passage" Keywords "f1" OPTIONS 64 []
        "A question on several places of one of many articles.";
    FACTRECALL_EN "lveval_factrecall_en" "factrecall_en" "factrecall_en" F1 "f1" FACTRECALL 16 []
        "An invented fact in a long text, asked for in other words.";
    FACTRECALL_ZH "lveval_factrecall_zh" "factrecall_zh" "factrecall_zh" F1Zh "f1" FACTRECALL 16
        [&chinese::DICTIONARY] "An invented fact in a long text, asked for in other words, in Chinese.";
}

/// The sets that Untie the Knots reports: all but factrecall.
pub(crate) const NAMES: &[&str] = EVERY.split_at(9).0;
/// Sets whose answers are in one place.
pub(crate) const SINGLE_HOP: &[&str] = NAMES.split_at(4).0;
/// Sets whose answers are put together from several places.
pub(crate) const MULTI_HOP: &[&str] = NAMES.split_at(4).1;
