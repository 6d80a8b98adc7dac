//! Prompts and scores against LongBench's and LCEG's own code, as `tests/reference/longbench.py` recorded them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ropewalk_tasks::internals::longbench::Form;
use ropewalk_tasks::{Answer, Ask, Encoder, Sample, Task, Template};

use crate::testing::{all, error, setup, sha256, task, Simple};

mod many_shot;

/// The chat template of `tests/reference/longbench.py`.
const CHAT: [&str; 2] = ["[INST]", "[/INST]"];

/// The folder of data of the recorded cases.
fn recorded_data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/longbench/data")
}

fn set(dataset: &str) -> &'static dyn Task {
    task(&format!("longbench_{}", dataset.replace('-', "_")))
}

/// The samples of a set under a form of the recorded cases: official, chat, lceg.
fn of_form(dataset: &str, form: &str, length: usize, bos: usize) -> Vec<Sample> {
    let frame = if form == "chat" { CHAT } else { [""; 2] };
    let (data, encoder) = (recorded_data(), Simple::framed(bos, frame));
    let option = if form == "lceg" { "lceg" } else { "official" };
    let mut setup = setup(&encoder, &data, length, &[("longbench", option)]);
    if form == "chat" {
        setup.template = Template::Chat;
    }
    all(set(dataset), &setup).unwrap()
}

#[test]
fn prompts_equal_those_of_the_official_code() {
    type Row = (String, String, usize, usize, usize, usize, usize, usize, String);
    let rows: Vec<Row> = serde_json::from_str(include_str!("../../fixtures/longbench/prompts.json")).unwrap();
    assert_eq!(rows.len(), 16 * 3 * 5 * 2);
    let mut made = BTreeMap::new();
    for (dataset, form, length, bos, i, most, least, chars, hash) in rows {
        let key = (dataset.clone(), form.clone(), length, bos);
        let samples = made.entry(key).or_insert_with(|| of_form(&dataset, &form, length, bos));
        let at = format!("{dataset}, {form}, {length} tokens, BOS {bos}, record {i}");
        let prompt = &samples[i].prompt;
        assert_eq!(prompt.chars().count(), chars, "{at}");
        assert_eq!(sha256(prompt), hash, "{at}");
        let stop = if dataset == "samsum" { vec!["\n".to_owned()] } else { Vec::new() };
        assert_eq!(samples[i].ask, Ask::Generate { max_tokens: most, min_tokens: least, stop }, "{at}");
    }
}

#[test]
fn some_prompts_in_full() {
    let rows: Vec<(String, String, usize, usize, usize, String)> =
        serde_json::from_str(include_str!("../../fixtures/longbench/texts.json")).unwrap();
    assert!(rows.len() >= 16, "{} prompts", rows.len());
    for (dataset, form, length, bos, i, text) in rows {
        assert_eq!(of_form(&dataset, &form, length, bos)[i].prompt, text, "{dataset}, {form}");
    }
}

#[test]
fn scores_equal_those_of_the_official_code() {
    let rows: Vec<(String, String, usize, String, String)> =
        serde_json::from_str(include_str!("../../fixtures/longbench/scores.json")).unwrap();
    assert_eq!(rows.len(), 16 * 2 * 2 * 8);
    let mut made = BTreeMap::new();
    for (dataset, form, i, prediction, percent) in rows {
        let key = (dataset.clone(), form.clone());
        let samples = made.entry(key).or_insert_with(|| of_form(&dataset, &form, 4096, 0));
        let found = (samples[i].judge)(&Answer::Text(prediction.clone()));
        assert_eq!(found.len(), 1);
        let percent: f64 = percent.parse().unwrap();
        // `scorer` rounds to two decimals.
        assert!(
            (100.0 * found[0] - percent).abs() <= 0.005 + 1e-9,
            "{dataset}, {form}, record {i}: \
            {prediction:?} gets {}, expected {percent}",
            100.0 * found[0]
        );
    }
}

#[test]
fn the_prompt_leaves_what_the_forms_leave() {
    let model2maxlen = [(4096, 3500), (8192, 7500), (16384, 15500), (32768, 31500), (131_072, 127_500)];
    for (length, max) in model2maxlen {
        assert_eq!(Form::Official.max_prompt(length).unwrap(), max);
        assert_eq!(Form::Lceg.max_prompt(length).unwrap(), length);
    }
    assert_eq!(Form::Official.max_prompt(4000).unwrap(), 3500);
    for (form, length, least) in
        [(Form::Official, 501, "502"), (Form::Official, 0, "502"), (Form::Lceg, 1, "2")]
    {
        let said = form.max_prompt(length).unwrap_err().to_string();
        assert_eq!(said, format!("LongBench: expected a length of at least {least} tokens, found {length}"));
    }
    assert_eq!(Form::Official.max_prompt(usize::MAX).unwrap(), usize::MAX - 500);
}

#[test]
fn what_is_cut_fits_with_its_answer_and_template() {
    let data = recorded_data();
    for (form, length) in [("official", 600), ("official", 1024), ("lceg", 600)] {
        for template in [Template::Base, Template::Chat] {
            if form == "lceg" && template == Template::Chat {
                continue;
            }
            let encoder = Simple::framed(1, if template == Template::Chat { CHAT } else { [""; 2] });
            for name in ["gov_report", "lcc"] {
                let mut setup = setup(&encoder, &data, length, &[("longbench", form)]);
                setup.template = template;
                let room = length + set(name).samples(&setup).unwrap().beyond;
                for sample in all(set(name), &setup).unwrap() {
                    let Ask::Generate { max_tokens, .. } = sample.ask else { panic!("{:?}", sample.ask) };
                    let need = 1 + encoder.count(&sample.prompt).unwrap() + max_tokens;
                    assert!(need <= room, "{form}, {name}: {need} tokens in {room}");
                }
            }
        }
    }
    let encoder = Simple::framed(1, [""; 2]);
    let setup = setup(&encoder, &data, 4096, &[]);
    assert_eq!(set("gov_report").samples(&setup).unwrap().beyond, 0);
}

/// A folder with one file of LongBench.
fn folder(name: &str, text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    folder
}

#[test]
fn files_of_another_schema_are_refused_with_their_line() {
    let good = r#"{"input":"?","context":"c","answers":["Paragraph 3"],"length":1,"dataset":"NAME","all_classes":["a"],"_id":"x"}"#;
    let cases = [
        ("qasper", good.replace("\"?\"", "3"), "expected a string"),
        ("qasper", good.replace("\"context\":\"c\",", ""), "missing field `context`"),
        ("qasper", good.replace("NAME", "qmsum"), "expected the dataset \"qasper\", found \"qmsum\""),
        ("qasper", good.replace("[\"Paragraph 3\"]", "[]"), "expected answers, found none"),
        (
            "qasper",
            good.replace("[\"Paragraph 3\"]", &format!("[{}1]", "\"\",".repeat(10_000))),
            "invalid type",
        ),
        (
            "qasper",
            good.replace("[\"Paragraph 3\"]", &format!("[{}\"\"]", "\"\",".repeat(10_000))),
            "expected at most 10000 answers, found 10001",
        ),
        ("qasper", good[..12].to_owned(), "EOF"),
        ("trec", good.replace("[\"a\"]", "null"), "expected a list of names in all_classes, found none"),
        ("passage_retrieval_en", good.replace("Paragraph 3", "3"), "expected \"Paragraph\" and a number"),
        ("qasper", good.replace("Paragraph 3", &"x".repeat(70_000)), "of at most 65536 bytes"),
    ];
    let encoder = Simple::default();
    for (name, bad, expected) in cases {
        let lines = format!("{good}\n\n{bad}\n").replace("NAME", name);
        let folder = folder(&format!("longbench/{name}.jsonl"), &lines);
        let found = error(set(name), &setup(&encoder, folder.path(), 4096, &[]));
        assert!(found.contains(&format!("{name}.jsonl: line 3")), "{found}");
        assert!(found.contains(expected), "{found}");
    }
    let none = folder("longbench/lcc.jsonl", "\n");
    assert!(
        error(set("lcc"), &setup(&encoder, none.path(), 4096, &[])).contains("lcc.jsonl: expected records")
    );
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let (data, encoder) = (recorded_data(), Simple::default());
    let found = error(set("lcc"), &setup(&encoder, &data, 4096, &[("longbench", "v2")]));
    assert_eq!(found, "longbench: expected one of official, lceg, found \"v2\"");
    let mut chat = setup(&encoder, &data, 4096, &[("longbench", "lceg")]);
    chat.template = Template::Chat;
    assert!(error(set("lcc"), &chat).contains("longbench=lceg has no chat form"));
    let mut none = setup(&encoder, &data, 4096, &[]);
    none.length = None;
    assert!(error(set("lcc"), &none).contains("expected a length in tokens"));
    none.length = Some(4096);
    none.samples = Some(1);
    assert_eq!(all(set("lcc"), &none).unwrap().len(), 1);
}
