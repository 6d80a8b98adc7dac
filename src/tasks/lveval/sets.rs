//! The sets: their files, prompts, budgets and metrics, as `config.py` has them.

use super::{prompts, LvEval, Score, LEVEL, STYLE};
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

macro_rules! set {
    ($name:literal, $set:literal, $about:literal, $prompt:ident, $score:ident, $metric:literal, $options:expr, $max:literal
     $(, $dictionary:expr)?) => {
        LvEval {
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
            prompt: prompts::$prompt,
            max_tokens: $max,
            score: Score::$score,
        }
    };
}

const OPTIONS: &[&Opt] = &[&STYLE, &LEVEL];
/// Factrecall has no passages to ask about.
const FACTRECALL: &[&Opt] = &[&LEVEL];

pub(super) static CMRC: LvEval = set!(
    "lveval_cmrc",
    "cmrc_mixup",
    "A question on one of many articles, in Chinese.",
    CMRC,
    KeywordsZh,
    "f1",
    OPTIONS,
    64,
    &chinese::DICTIONARY
);
pub(super) static LOOGLE_SD: LvEval = set!(
    "lveval_loogle_sd",
    "loogle_SD_mixup",
    "A question on one of many articles.",
    ONE_PASSAGE,
    Keywords,
    "f1",
    OPTIONS,
    64
);
pub(super) static MULTIFIELDQA_EN: LvEval = set!(
    "lveval_multifieldqa_en",
    "multifieldqa_en_mixup",
    "A question on one of many documents of several fields.",
    ONE_PASSAGE,
    Keywords,
    "f1",
    OPTIONS,
    64
);
pub(super) static MULTIFIELDQA_ZH: LvEval = set!(
    "lveval_multifieldqa_zh",
    "multifieldqa_zh_mixup",
    "A question on one of many documents of several fields, in Chinese.",
    MULTIFIELDQA_ZH,
    KeywordsZh,
    "f1",
    OPTIONS,
    64,
    &chinese::DICTIONARY
);
pub(super) static DUREADER: LvEval = set!(
    "lveval_dureader",
    "dureader_mixup",
    "A question that several of many documents help to answer, in Chinese.",
    CMRC,
    RougeZh,
    "rouge_l",
    OPTIONS,
    64,
    &chinese::DICTIONARY
);
pub(super) static HOTPOTWIKIQA: LvEval = set!(
    "lveval_hotpotwikiqa",
    "hotpotwikiqa_mixup",
    "A question that takes facts out of two or more of many articles.",
    SOME_PASSAGES,
    Keywords,
    "f1",
    OPTIONS,
    64
);
pub(super) static LIC: LvEval = set!(
    "lveval_lic",
    "lic_mixup",
    "A question that takes facts out of several documents, in Chinese.",
    LIC,
    KeywordsZh,
    "f1",
    OPTIONS,
    64,
    &chinese::DICTIONARY
);
pub(super) static LOOGLE_CR: LvEval = set!(
    "lveval_loogle_cr",
    "loogle_CR_mixup",
    "A question that takes comprehension and reasoning over one of many articles.",
    ONE_PASSAGE,
    Keywords,
    "f1",
    OPTIONS,
    64
);
pub(super) static LOOGLE_MIR: LvEval = set!(
    "lveval_loogle_mir",
    "loogle_MIR_mixup",
    "A question on several places of one of many articles.",
    ONE_PASSAGE,
    Keywords,
    "f1",
    OPTIONS,
    64
);
pub(super) static FACTRECALL_EN: LvEval = set!(
    "lveval_factrecall_en",
    "factrecall_en",
    "An invented fact in a long text, asked for in other words.",
    FACTRECALL_EN,
    F1,
    "f1",
    FACTRECALL,
    16
);
pub(super) static FACTRECALL_ZH: LvEval = set!(
    "lveval_factrecall_zh",
    "factrecall_zh",
    "An invented fact in a long text, asked for in other words, in Chinese.",
    FACTRECALL_ZH,
    F1Zh,
    "f1",
    FACTRECALL,
    16,
    &chinese::DICTIONARY
);

pub(crate) static TASKS: &[&dyn Task] = &[
    &CMRC,
    &LOOGLE_SD,
    &MULTIFIELDQA_EN,
    &MULTIFIELDQA_ZH,
    &DUREADER,
    &HOTPOTWIKIQA,
    &LIC,
    &LOOGLE_CR,
    &LOOGLE_MIR,
    &FACTRECALL_EN,
    &FACTRECALL_ZH,
];

/// The sets that Untie the Knots reports.
pub(crate) const NAMES: &[&str] = &[
    "lveval_cmrc",
    "lveval_loogle_sd",
    "lveval_multifieldqa_en",
    "lveval_multifieldqa_zh",
    "lveval_dureader",
    "lveval_hotpotwikiqa",
    "lveval_lic",
    "lveval_loogle_cr",
    "lveval_loogle_mir",
];
/// Sets whose answers are in one place.
pub(crate) const SINGLE_HOP: &[&str] = NAMES.split_at(4).0;
/// Sets whose answers are put together from several places.
pub(crate) const MULTI_HOP: &[&str] = NAMES.split_at(4).1;
