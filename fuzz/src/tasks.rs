//! Files of benchmarks that are read whatever bytes they hold: published data without a pinned checksum, and books of
//! the user's.

use std::path::Path;

use ropewalk::control::Control;
use ropewalk_tasks::{Answer, Encoder, Result, Setup, Template, Token};

use crate::{accepted, scratch};

/// A task and the file it reads.
const READERS: &[(&str, &str)] = &[
    ("longbench_hotpotqa", "longbench/hotpotqa.jsonl"),
    ("longbench_trec", "longbench/trec.jsonl"),
    ("longbench_passage_count", "longbench/passage_count.jsonl"),
    ("longbench_lcc", "longbench/lcc.jsonl"),
    ("trec", "trec/train_5500.label"),
    ("lveval_hotpotwikiqa", "lveval/hotpotwikiqa_mixup/hotpotwikiqa_mixup_16k.jsonl"),
    ("infinitebench_en_mc", "infinitebench/longbook_choice_eng.jsonl"),
    ("infinitebench_en_sum", "infinitebench/longbook_sum_eng.jsonl"),
    ("infinitebench_zh_qa", "infinitebench/longbook_qa_chn.jsonl"),
    ("needle_kamradt", "needle/essays.txt"),
    ("babilong_qa1", "babilong/book.txt"),
];

/// Tokens are three bytes, or what is left of them; the highest byte says how many.
struct Bytes;

impl Encoder for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        let token = |chunk: &[u8]| {
            let mut bytes = [0, 0, 0, chunk.len() as u8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            Token::from_le_bytes(bytes)
        };
        Ok(text.as_bytes().chunks(3).map(token).collect())
    }

    fn decode(&self, tokens: &[Token]) -> Result<String> {
        let bytes = tokens.iter().map(|t| t.to_le_bytes());
        let bytes: Vec<u8> = bytes.flat_map(|b| b.into_iter().take(usize::from(b[3]))).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn frame(&self, message: &str) -> Result<String> {
        Ok(message.into())
    }
}

/// The first byte chooses the task, the others are its file. Whether all of its first samples are made.
pub fn run(bytes: &[u8]) -> bool {
    let Some((&first, bytes)) = bytes.split_first() else { return false };
    let (task, name) = READERS[usize::from(first) % READERS.len()];
    let folder = scratch(&format!("{:?}-data", std::thread::current().id()));
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    if task == "trec" {
        std::fs::write(folder.join("trec/TREC_10.label"), "ENTY:food What ?\n").unwrap();
    }
    samples(task, &folder)
}

fn samples(name: &str, data: &Path) -> bool {
    let task = ropewalk_tasks::find(name).unwrap()[0];
    let info = task.info();
    let setup = Setup {
        length: Some(if name.starts_with("lveval") { 16_000 } else { 4096 }),
        samples: Some(3),
        seed: Some(1),
        template: Template::Base,
        options: [("shots".to_owned(), "2".to_owned())]
            .into_iter()
            .filter(|(k, _)| info.options.iter().any(|o| o.name == k))
            .collect(),
        data,
        encoder: &Bytes,
        control: Control::default(),
    };
    let mut all = true;
    match task.samples(&setup) {
        Err(e) => all = accepted::<()>(Err(e)),
        Ok(samples) => {
            for sample in samples.iter.take(3) {
                all &= accepted(sample.map(|sample| {
                    for answer in
                        [&sample.expected, &Answer::Text(String::new()), &Answer::Text(sample.id.clone())]
                    {
                        let scores = (sample.judge)(answer);
                        assert_eq!(scores.len(), info.metrics.len());
                        assert!(scores.iter().all(|s| (0.0..=1.0).contains(s)), "{name}: {scores:?}");
                    }
                }));
            }
        }
    }
    all
}

/// A sound file for each task.
pub fn seeds() -> Vec<Vec<u8>> {
    let longbench = |name: &str, answer: &str| {
        format!(
            r#"{{"input":"Who?","context":"A long time ago é。","answers":["{answer}"],"length":5,"dataset":"{name}","all_classes":["Food","Animal"],"_id":"x"}}"#
        ) + "\n"
    };
    let infinite = |answer: &str| {
        format!(
            r#"{{"id":1,"context":"Call me.","input":"Who?","answer":{answer},"options":["a","b","c","d"]}}"#
        ) + "\n"
    };
    let text = "It was the best of times, and for everybody it was the worst of times. ".repeat(400);
    let files = [
        longbench("hotpotqa", "He"),
        longbench("trec", "Food"),
        longbench("passage_count", "3"),
        longbench("lcc", "return x"),
        "ENTY:food What ?\nENTY:animal Which one ?\nHUM:ind Who ?\n".into(),
        r#"{"input":"Who?","context":"A. B.","answers":["He"],"answer_keywords":"He","confusing_facts":""}"#
            .to_owned()
            + "\n",
        infinite(r#"["b"]"#),
        infinite(r#"["A short book."]"#),
        infinite(r#"["他"]"#),
        text.clone(),
        text,
    ];
    assert_eq!(files.len(), READERS.len());
    files.iter().enumerate().map(|(i, file)| [&[i as u8], file.as_bytes()].concat()).collect()
}
