//! Metrics, words and prompts against LV-Eval's official code (see `tests/reference/lveval.py`), and what users
//! can get wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use ropewalk_tasks::internals::lveval::{
    max_prompt, pseudo, titles, LvEval, ALL, CMRC, HOTPOTWIKIQA, LIC, LOOGLE_CR, LOOGLE_SD,
};
use ropewalk_tasks::internals::text::cut_middle;
use ropewalk_tasks::metrics::chinese::Words;
use ropewalk_tasks::metrics::lveval as metrics;
use ropewalk_tasks::{Answer, Result, Sample, Setup, Task};
use serde_json::Value;

use crate::testing::{check_prompts, setup, Simple};

const EN: &str = include_str!("../fixtures/lveval/en.jsonl");
const ZH: &str = include_str!("../fixtures/lveval/zh.jsonl");

fn words() -> Arc<Words> {
    Arc::new(Words::new(include_str!("../fixtures/lveval/dict.txt")).unwrap())
}

/// Whether a set has to cut Chinese into words, with jieba's dictionary.
fn is_chinese(task: &LvEval) -> bool {
    task.info().files.iter().any(|file| file.name.starts_with("jieba/"))
}

/// A folder of data with the recorded records as the 16k level of every set.
fn data() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for task in ALL {
        let of = folder.path().join("lveval").join(task.set);
        std::fs::create_dir_all(&of).unwrap();
        let records = if is_chinese(task) { ZH } else { EN };
        std::fs::write(of.join(format!("{}_16k.jsonl", task.set)), records).unwrap();
    }
    folder
}

fn samples(task: &LvEval, setup: &Setup<'_>) -> Result<Vec<Sample>> {
    task.samples_with(setup, Some(words()))?.iter.collect()
}

/// The message of the error that a file with these lines gives.
fn complaint(task: &LvEval, lines: &str, options: &[(&str, &str)]) -> String {
    let folder = data();
    std::fs::write(folder.path().join(format!("lveval/{}_16k.jsonl", task.set)), lines).unwrap();
    let encoder = Simple::default();
    let setup = setup(&encoder, folder.path(), 16_384, options);
    samples(task, &setup).err().expect("an error").to_string()
}

#[test]
fn metrics_are_those_of_the_official_code() {
    let words = words();
    type Case = (String, Vec<String>, Option<String>, String);
    let recorded: BTreeMap<String, Vec<Case>> =
        serde_json::from_str(include_str!("../fixtures/lveval/metrics.json")).unwrap();
    assert_eq!(recorded.len(), 5);
    for (set, cases) in &recorded {
        assert!(cases.len() >= 250, "{set} has {} cases", cases.len());
        for (at, (prediction, answers, keywords, expected)) in cases.iter().enumerate() {
            let (gold, keywords) = (&answers[0], keywords.as_deref());
            let found = match set.as_str() {
                "loogle_SD_mixup" => metrics::f1_with_keywords(prediction, gold, keywords),
                "factrecall_en" => metrics::f1(prediction, gold),
                "cmrc_mixup" => metrics::f1_zh_with_keywords(&words, prediction, gold, keywords),
                "factrecall_zh" => metrics::f1_zh(&words, prediction, gold),
                "dureader_mixup" => metrics::rouge_zh(&words, prediction, gold),
                other => panic!("no metric for {other}"),
            };
            let expected: f64 = expected.parse().unwrap();
            assert!(found == expected, "{set}, case {at}: found {found:?}, expected {expected:?}");
        }
    }
}

#[test]
fn chinese_words_are_those_of_jieba() {
    let words = words();
    let recorded: Vec<(String, Vec<String>)> =
        serde_json::from_str(include_str!("../fixtures/lveval/words.json")).unwrap();
    assert!(recorded.len() >= 500);
    for (text, expected) in &recorded {
        assert_eq!(&words.cut(text), expected, "{text:?}");
    }
}

#[test]
fn prompts_are_those_of_the_official_code() {
    let (folder, recorded) = (data(), include_str!("../fixtures/lveval/prompts.json"));
    check_prompts(recorded, 11 * 5 * 2 * 3, |set, encoder, max| {
        let task = ALL.iter().find(|t| t.set == set).unwrap();
        samples(task, &setup(encoder, folder.path(), max + 500, &[("lveval_level", "16k")])).unwrap()
    });
}

#[test]
fn right_answers_get_full_marks_and_silence_none() {
    let folder = data();
    let encoder = Simple::default();
    for task in ALL {
        for style in ["official", "utk"] {
            let setup = setup(&encoder, folder.path(), 20_000, &[("lveval", style)]);
            let found = samples(task, &setup).unwrap();
            assert_eq!(found.len(), 3);
            for sample in found {
                assert_eq!((sample.judge)(&sample.expected), [task.info().best], "{}", task.info().name);
                assert_eq!((sample.judge)(&Answer::Text(String::new())), [0.0]);
                assert_eq!((sample.judge)(&Answer::Text("猫 dog".to_owned())), [0.0]);
                assert_eq!(sample.tags, [("level", "16k".to_owned())]);
            }
        }
    }
}

#[test]
fn only_the_first_line_counts_for_utk_and_all_for_the_official_code() {
    let folder = data();
    let encoder = Simple::default();
    let score = |style| {
        let setup = setup(&encoder, folder.path(), 16_384, &[("lveval", style)]);
        let sample = samples(&LOOGLE_SD, &setup).unwrap().swap_remove(0);
        (sample.judge)(&Answer::Text("\nin 2020 of course\n\nQuestion: and now?".to_owned()))[0]
    };
    assert_eq!(score("utk"), 1.0);
    assert_eq!(score("official"), 2.0 * (4.0 / 7.0) / (4.0 / 7.0 + 1.0));
}

#[test]
fn three_questions_stand_before_the_real_one_for_utk() {
    let folder = data();
    let encoder = Simple::default();
    let prompt = |task: &LvEval, i| {
        let setup = setup(&encoder, folder.path(), 31_999, &[("lveval", "utk")]);
        samples(task, &setup).unwrap().swap_remove(i).prompt
    };
    let titles = |text: &'static str, heading: &str| -> Vec<String> {
        let record: Value = serde_json::from_str(text.lines().nth(2).unwrap()).unwrap();
        let context = record["context"].as_str().unwrap().to_owned();
        let after = |n: usize| {
            let (_, rest) = context.split_once(&format!("{heading}{n}\n")).unwrap();
            rest.lines().next().unwrap().to_owned()
        };
        vec![after(10), after(1)]
    };
    let en = titles(EN, "### Passage ");
    let end = format!(
        "evidence.\n\nQuestion: How many passages are there in total?\nAnswer:11\n\n\
         Question: What is the title of Passage 10?\nAnswer:{}\n\n\
         Question: What is the title of Passage 1?\nAnswer:{}\n\n\
         Question: 谁是电影《毕业风暴》的导演？\nAnswer:",
        en[0].trim(),
        en[1].trim()
    );
    let found = prompt(&HOTPOTWIKIQA, 2);
    assert!(found.ends_with(&end), "{found}\nends otherwise than\n{end}");

    let zh = titles(ZH, "### 文章");
    let end = format!(
        "问题：一共有多少篇文章？\n回答：11\n\n问题：文章10的标题是什么？\n回答：{}\n\n\
         问题：文章1的标题是什么？\n回答：{}\n\n问题：谁是电影《毕业风暴》的导演？\n回答：",
        zh[0].trim(),
        zh[1].trim()
    );
    let found = prompt(&LIC, 2);
    assert!(found.ends_with(&end), "{found}\nends otherwise than\n{end}");
    // One passage is the first and the last.
    assert!(prompt(&LOOGLE_CR, 0).contains("Answer:1\n\nQuestion: What is the title of Passage 1?"));
}

#[test]
fn headings_of_passages_take_several_forms() {
    let context = "Passage 1\n\nA\nPassage 2 of the book\n### 文章2：\n B \n#Passage 3\n### Passage 4\nC";
    let found: Vec<_> = titles(context).collect();
    assert_eq!(found, [("1", "A"), ("2", "B"), ("4", "C")]);
    assert_eq!(titles("Passage\nPassages 7\n文章\n").count(), 0);
    assert!(pseudo("nothing", false).is_empty());
}

#[test]
fn the_length_chooses_file_and_truncation() {
    let folder = data();
    let path = |level: &str| folder.path().join(format!("lveval/lic_mixup/lic_mixup_{level}.jsonl"));
    let line = ZH.lines().next().unwrap();
    for (n, level) in ["32k", "64k", "128k", "256k"].iter().enumerate() {
        std::fs::write(path(level), [line].repeat(n + 4).join("\n")).unwrap();
    }
    let encoder = Simple::default();
    let n = |length, level| {
        let setup = setup(&encoder, folder.path(), length, &[("lveval_level", level)]);
        LIC.samples_with(&setup, Some(words())).map(|s| s.n)
    };
    let lengths = [16_000, 31_999, 32_000, 32_768, 65_536, 131_072, 262_144, 1_000_000];
    assert_eq!(lengths.map(|length| n(length, "auto").unwrap()), [3, 3, 4, 4, 5, 6, 7, 7]);
    assert_eq!(n(600, "128k").unwrap(), 6);
    let found = n(15_999, "auto").unwrap_err().to_string();
    assert_eq!(
        found,
        "length 15999: LV-Eval has files for 16000, 32000, 64000, 128000, 256000 tokens; shorter lengths need the \
         option lveval_level"
    );
    assert_eq!(
        n(501, "16k").unwrap_err().to_string(),
        "length 501: expected at least 502 tokens, of which LV-Eval leaves 500 to the answer"
    );
    assert!(n(16_384, "8k").unwrap_err().to_string().contains("found \"8k\""));

    assert_eq!(
        [32_768, 131_072, 32_000, 200_000].map(|l| max_prompt(l).unwrap()),
        [31_500, 127_500, 31_500, 199_500]
    );
    let beyond = |length| {
        let setup = setup(&encoder, folder.path(), length, &[("lveval_level", "16k")]);
        let found = LIC.samples_with(&setup, None).unwrap();
        found.beyond
    };
    // A prompt 500 below the length leaves room for 64 tokens of answer.
    assert_eq!([beyond(502), beyond(16_384)], [0, 0]);
    let setup = Setup { samples: Some(2), ..setup(&encoder, folder.path(), 16_384, &[]) };
    assert_eq!(samples(&LIC, &setup).unwrap().len(), 2);
}

#[test]
fn cutting_never_fails() {
    let encoder = Simple::framed(1, [""; 2]);
    for (text, max) in [("", 0), ("", 2), ("a", 1), ("a b c", 0), ("a b c", 1), ("a b c", 2), ("a b c", 4)] {
        cut_middle(&encoder, text.to_owned(), max, false).unwrap();
    }
    assert_eq!(cut_middle(&encoder, "a b c d".to_owned(), 7, false).unwrap(), "a c d");
    assert_eq!(cut_middle(&encoder, "a b c d".to_owned(), 8, false).unwrap(), "a b c d");
}

#[test]
fn damaged_files_are_named_with_their_line() {
    let record = EN.lines().next().unwrap();
    let find = |lines: &str, expected: &str| {
        let found = complaint(&LOOGLE_SD, lines, &[]);
        assert!(found.contains("loogle_SD_mixup_16k.jsonl: "), "{found}");
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    };
    find(
        &format!("{record}\n\n{{\"input\": 3}}\n"),
        "line 3, byte 11: expected a record, found: invalid type: integer `3`",
    );
    find(
        r#"{"input": "a", "answers": ["b"]}"#,
        "line 1, byte 32: expected a record, found: missing field `context`",
    );
    find(
        r#"{"input": "a", "context": "c", "answers": []}"#,
        "line 1: expected at least one of `answers`, found none",
    );
    let keywords = r#"{"input": "a", "context": "c", "answers": ["b"], "answer_keywords": "the"}"#;
    find(keywords, "line 1: expected `answer_keywords` with a word in them, found Some(\"the\")");
    find(&format!("{record}\n{{"), "line 2");
    find("\n \n", "expected records, one a line, found none");
    let long = format!(r#"{{"input": "a", "context": "c", "answers": ["{}"]}}"#, "b ".repeat(40_000));
    find(&long, "line 1: expected `answers` of at most 65536 bytes, found one of 80000");

    let no_passages = r#"{"input": "a", "context": "c", "answers": ["b"]}"#;
    let found = complaint(&LOOGLE_SD, no_passages, &[("lveval", "utk")]);
    assert!(found.contains("line 1: expected passages under headings"), "{found}");
    let empty = r#"{"input": "a", "context": "c", "answers": ["。"]}"#;
    assert!(complaint(&CMRC, empty, &[]).contains("found None"));
}
