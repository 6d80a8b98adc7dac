//! The 16 English sets, in the order of LCEG's Table 4. Templates are LongBench's to the letter, its misprints
//! included.

use super::many_shot::TREC as TREC_MANY_SHOT;
use super::{Metric, Set, FORM};
use crate::metrics::rouge;
use crate::{DataFile, Info, Task};

/// A set: its static and its two names, what it asks; name and best value of its score, metric, budget of new
/// tokens; template.
macro_rules! sets {
    ($($set:ident $task:literal $dataset:literal, $about:literal $score:literal $best:expr, $metric:ident
        $max_tokens:literal, $template:expr;)*) => {
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
            template: $template,
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

/// The template of the three sets with several passages.
const PASSAGES: &str =
    "Answer the question based on the given passages. Only give me the answer and do not output \
     any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the question \
     based on the given passages. Only give me the answer and do not output any other words.\n\n\
     Question: {input}\nAnswer:";

sets! {
    NARRATIVEQA "longbench_narrativeqa" "narrativeqa",
        "Questions on whole books and film scripts." "qa_f1" 1.0, QaF1 128,
        "You are given a story, which can be either a novel or a movie script, and a question. \
         Answer the question asconcisely as you can, using a single phrase if possible. Do not \
         provide any explanation.\n\nStory: {context}\n\nNow, answer the question based on the story \
         asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\
         \nQuestion: {input}\n\nAnswer:";
    QASPER "longbench_qasper" "qasper",
        "Questions on scientific articles." "qa_f1" 1.0, QaF1 128,
        "You are given a scientific article and a question. Answer the question as concisely as you \
         can, using a single phrase or sentence if possible. If the question cannot be answered \
         based on the information in the article, write \"unanswerable\". If the question is a \
         yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any \
         explanation.\n\nArticle: {context}\n\n Answer the question based on the above article as \
         concisely as you can, using a single phrase or sentence if possible. If the question cannot \
         be answered based on the information in the article, write \"unanswerable\". If the \
         question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide \
         any explanation.\n\nQuestion: {input}\n\nAnswer:";
    MULTIFIELDQA_EN "longbench_multifieldqa_en" "multifieldqa_en",
        "Questions on long texts of several fields." "qa_f1" 1.0, QaF1 64,
        "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following \
         question based on the above text, only give me the answer and do not output any other words.\
         \n\nQuestion: {input}\nAnswer:";
    HOTPOTQA "longbench_hotpotqa" "hotpotqa",
        "Questions that take two of several passages." "qa_f1" 1.0, QaF1 32,
        PASSAGES;
    WIKIMQA_2 "longbench_2wikimqa" "2wikimqa",
        "Questions that take up to five of several passages." "qa_f1" 1.0, QaF1 32,
        PASSAGES;
    MUSIQUE "longbench_musique" "musique",
        "Questions that take up to four of several passages." "qa_f1" 1.0, QaF1 32,
        PASSAGES;
    GOV_REPORT "longbench_gov_report" "gov_report",
        "Summaries of government reports." "rouge_l" rouge::BEST, Rouge 512,
        "You are given a report by a government agency. Write a one-page summary of the report.\n\n\
         Report:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:";
    QMSUM "longbench_qmsum" "qmsum",
        "Summaries of meetings, by a query." "rouge_l" rouge::BEST, Rouge 512,
        "You are given a meeting transcript and a query containing a question or instruction. Answer \
         the query in one or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query \
         based on the above meeting transcript in one or more sentences.\n\nQuery: {input}\nAnswer:";
    MULTI_NEWS "longbench_multi_news" "multi_news",
        "Summaries of several news articles." "rouge_l" rouge::BEST, Rouge 512,
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n\
         {context}\n\nNow, write a one-page summary of all the news.\n\nSummary:";
    TREC "longbench_trec" "trec",
        "Types of questions, after examples." "classification" 1.0, Classification 64,
        "Please determine the type of the question below. Here are some examples of questions.\n\n\
         {context}\n{input}";
    TRIVIAQA "longbench_triviaqa" "triviaqa",
        "Questions on a passage, after examples." "qa_f1" 1.0, QaF1 32,
        "Answer the question based on the given passage. Only give me the answer and do not output \
         any other words. The following are some examples.\n\n{context}\n\n{input}";
    SAMSUM "longbench_samsum" "samsum",
        "Summaries of dialogues, after examples." "rouge_l" rouge::BEST, Rouge 128,
        "Summarize the dialogue into a few short sentences. The following are some examples.\n\n\
         {context}\n\n{input}";
    PASSAGE_COUNT "longbench_passage_count" "passage_count",
        "How many different paragraphs there are." "count" 1.0, Count 32,
        "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. \
         Please carefully read these paragraphs and determine how many unique paragraphs there are \
         after removing duplicates. In other words, how many non-repeating paragraphs are there in \
         total?\n\n{context}\n\nPlease enter the final count of unique paragraphs after removing \
         duplicates. The output format should only contain the number, such as 1, 2, 3, and so on.\n\
         \nThe final answer is: ";
    PASSAGE_RETRIEVAL_EN "longbench_passage_retrieval_en" "passage_retrieval_en",
        "Which paragraph a summary is of." "retrieval" 1.0, Retrieval 32,
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which \
         paragraph the abstract is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\n\
         Please enter the number of the paragraph that the abstract is from. The answer format must \
         be like \"Paragraph 1\", \"Paragraph 2\", etc.\n\nThe answer is: ";
    LCC "longbench_lcc" "lcc",
        "The next line of a file of code." "code_sim" 1.0, CodeSim 64,
        "Please complete the code given below. \n{context}Next line of code:\n";
    REPOBENCH_P "longbench_repobench_p" "repobench-p",
        "The next line of code, with files of its repository." "code_sim" 1.0, CodeSim 64,
        "Please complete the code given below. \n{context}{input}Next line of code:\n";
}
