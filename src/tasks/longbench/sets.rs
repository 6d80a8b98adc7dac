//! The 16 English sets, in the order of LCEG's Table 4. Their templates (`dataset2prompt.json`) are LongBench's to the
//! letter, its misprints included; the newline at the end of a file is not part of them.

use super::many_shot::TREC as TREC_MANY_SHOT;
use super::{Metric, Set, FORM};
use crate::metrics::rouge;
use crate::{DataFile, Info, Task};

/// A set: its static, its two names, and that of its template; metric, budget of new tokens, name and best value of its
/// score; what it asks.
macro_rules! sets {
    ($($set:ident $task:literal $dataset:literal $template:literal, $metric:ident $max_tokens:literal $score:literal
        $best:expr, $about:literal;)*) => {
        $(pub(super) static $set: Set = Set {
            info: Info {
                name: $task,
                about: $about,
                source: SOURCE,
                metrics: &[$score],
                best: $best,
                options: &[&FORM],
                files: &[&DataFile {
                    name: concat!("longbench/", $dataset, ".jsonl"),
                    sha256: None,
                    from: "it is in data.zip of the dataset THUDM/LongBench",
                }],
                ..Info::OF_LENGTH
            },
            dataset: $dataset,
            template: include_str!(concat!("templates/", $template, ".txt")),
            max_tokens: $max_tokens,
            metric: Metric::$metric,
        };)*

        /// The sets, and many-shot TREC.
        pub(crate) static TASKS: &[&dyn Task] = &[$(&$set,)* &TREC_MANY_SHOT];

        /// Names of the sets.
        pub(crate) const NAMES: &[&str] = &[$($task),*];
    };
}

const SOURCE: &str =
    "LongBench v1, pred.py and eval.py at 2e00731; longbench=lceg: LCEG, longbench/ at 2ce672d";

sets! {
    NARRATIVEQA "longbench_narrativeqa" "narrativeqa" "narrativeqa", QaF1 128 "qa_f1" 1.0,
        "Questions on whole books and film scripts.";
    QASPER "longbench_qasper" "qasper" "qasper", QaF1 128 "qa_f1" 1.0,
        "Questions on scientific articles.";
    MULTIFIELDQA_EN "longbench_multifieldqa_en" "multifieldqa_en" "multifieldqa_en", QaF1 64 "qa_f1" 1.0,
        "Questions on long texts of several fields.";
    HOTPOTQA "longbench_hotpotqa" "hotpotqa" "passages", QaF1 32 "qa_f1" 1.0,
        "Questions that need two of several passages.";
    WIKIMQA_2 "longbench_2wikimqa" "2wikimqa" "passages", QaF1 32 "qa_f1" 1.0,
        "Questions that need up to five of several passages.";
    MUSIQUE "longbench_musique" "musique" "passages", QaF1 32 "qa_f1" 1.0,
        "Questions that need up to four of several passages.";
    GOV_REPORT "longbench_gov_report" "gov_report" "gov_report", Rouge 512 "rouge_l" rouge::BEST,
        "Summaries of government reports.";
    QMSUM "longbench_qmsum" "qmsum" "qmsum", Rouge 512 "rouge_l" rouge::BEST,
        "Summaries of meetings, by a query.";
    MULTI_NEWS "longbench_multi_news" "multi_news" "multi_news", Rouge 512 "rouge_l" rouge::BEST,
        "Summaries of several news articles.";
    TREC "longbench_trec" "trec" "trec", Classification 64 "classification" 1.0,
        "Types of questions, after examples.";
    TRIVIAQA "longbench_triviaqa" "triviaqa" "triviaqa", QaF1 32 "qa_f1" 1.0,
        "Questions on a passage, after examples.";
    SAMSUM "longbench_samsum" "samsum" "samsum", Rouge 128 "rouge_l" rouge::BEST,
        "Summaries of dialogues, after examples.";
    PASSAGE_COUNT "longbench_passage_count" "passage_count" "passage_count", Count 32 "count" 1.0,
        "The number of different paragraphs.";
    PASSAGE_RETRIEVAL_EN "longbench_passage_retrieval_en" "passage_retrieval_en" "passage_retrieval_en",
        Retrieval 32 "retrieval" 1.0, "The paragraph that a summary describes.";
    LCC "longbench_lcc" "lcc" "lcc", CodeSim 64 "code_sim" 1.0,
        "The next line of a source file.";
    REPOBENCH_P "longbench_repobench_p" "repobench-p" "repobench-p", CodeSim 64 "code_sim" 1.0,
        "The next line of code, given other files of the repository.";
}
