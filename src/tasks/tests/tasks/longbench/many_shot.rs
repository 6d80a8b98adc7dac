//! Many-shot TREC: contexts as published, and made of TREC's files.

use std::collections::HashSet;

use ropewalk_tasks::internals::longbench::labels;

use super::*;

/// Examples of a prompt, and the question.
fn parts(prompt: &str) -> (Vec<&str>, &str) {
    let head = "Please determine the type of the question below. Here are some examples of questions.\n\n";
    let rest = prompt.strip_prefix(head).unwrap_or_else(|| panic!("{prompt}"));
    let at = rest.rfind("\nQuestion: ").unwrap();
    let examples = rest[..at].split("\nQuestion: ").map(|e| e.strip_prefix("Question: ").unwrap_or(e));
    (examples.collect(), &rest[at + 1..])
}

fn rebuilt(shots: &str, seed: Option<u64>) -> Vec<Sample> {
    let (data, encoder) = (recorded_data(), Simple::framed(1, [""; 2]));
    let mut setup = setup(&encoder, &data, 1 << 20, &[("shots", shots), ("trec", "rebuilt")]);
    setup.seed = seed;
    all(task("trec"), &setup).unwrap()
}

#[test]
fn contexts_are_drawn_from_training_questions() {
    let train = std::fs::read(recorded_data().join("trec/train_5500.label")).unwrap();
    let train: Vec<String> = train
        .split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            String::from_utf8(line.iter().map(|&b| if b == 0xf0 { b' ' } else { b }).collect()).unwrap()
        })
        .map(|line| {
            let (fine, text) = line.split_once(' ').unwrap();
            format!("{text}\nType: {}", labels().find(|(name, _)| *name == fine).unwrap().1)
        })
        .collect();
    for n in [1, 5, 1000] {
        let samples = rebuilt(&n.to_string(), None);
        assert_eq!(samples.len(), 6);
        let mut asked = HashSet::new();
        for sample in &samples {
            let (examples, question) = parts(&sample.prompt);
            assert_eq!(examples.len(), n);
            assert!(examples.iter().all(|e| train.iter().any(|t| t == e)), "{examples:?}");
            assert_eq!(examples.iter().collect::<HashSet<_>>().len(), n, "drawn twice");
            assert!(
                question.starts_with("Question: Who ") && question.ends_with(" ?\nType:"),
                "{question:?}"
            );
            assert!(asked.insert(question.to_owned()), "asked twice");
            assert_eq!(sample.ask, Ask::Generate { max_tokens: 64, min_tokens: 0, stop: Vec::new() });
            assert!(sample.tags.contains(&("contexts", "rebuilt".to_owned())));
        }
    }
}

#[test]
fn more_shots_keep_the_fewer_and_questions_have_their_own() {
    let (few, many) = (rebuilt("5", None), rebuilt("75", None));
    for (a, b) in few.iter().zip(&many) {
        assert_eq!(parts(&a.prompt).1, parts(&b.prompt).1);
        assert_eq!(parts(&a.prompt).0, parts(&b.prompt).0[..5]);
    }
    assert_ne!(parts(&few[0].prompt).0, parts(&few[1].prompt).0);
    assert_eq!(rebuilt("5", Some(42))[3].prompt, few[3].prompt);
    assert_ne!(rebuilt("5", Some(43))[3].prompt, few[3].prompt);
}

#[test]
fn only_the_first_line_counts() {
    let sample = &rebuilt("1", None)[0];
    let right = sample.expected.text();
    let score = |said: String| (sample.judge)(&Answer::Text(said))[0];
    assert_eq!(score(format!(" {right}\nQuestion: Who ?")), 1.0);
    assert_eq!(score(format!("Nothing\n{right}")), 0.0);
    let other = labels().find(|(_, l)| !l.contains(right) && !right.contains(l)).unwrap().1;
    assert_eq!(score(format!("{right} or {other}")), 0.5);
}

#[test]
fn published_contexts_come_first() {
    let line = r#"{"input":"Question: Why ?\nType:","context":"Question: Who ?\nType: Individual","answers":["Reason"],"length":4,"all_classes":["Individual","Reason"]}"#;
    let folder = folder("trec/trec_1shots.jsonl", line);
    let encoder = Simple::default();
    for source in ["auto", "lceg"] {
        let setup = setup(&encoder, folder.path(), 4096, &[("shots", "1"), ("trec", source)]);
        let samples = all(task("trec"), &setup).unwrap();
        assert_eq!(parts(&samples[0].prompt), (vec!["Who ?\nType: Individual"], "Question: Why ?\nType:"));
        assert_eq!((samples[0].judge)(&Answer::Text(" Reason".into())), [1.0]);
        assert!(samples[0].tags.contains(&("contexts", "lceg".to_owned())));
    }
    let found =
        error(task("trec"), &setup(&encoder, folder.path(), 4096, &[("shots", "5"), ("trec", "lceg")]));
    assert!(found.contains("trec_5shots.jsonl: is missing: it is part of the dataset"), "{found}");
    let found = error(task("trec"), &setup(&encoder, folder.path(), 4096, &[("shots", "5")]));
    assert!(found.contains("train_5500.label: is missing"), "{found}");
}

#[test]
fn bad_questions_and_numbers_are_refused() {
    let encoder = Simple::default();
    let data = recorded_data();
    for shots in ["0", "1001", "-1", "ten", ""] {
        let found = error(task("trec"), &setup(&encoder, &data, 4096, &[("shots", shots)]));
        assert_eq!(found, format!("shots: expected a number from 1 to 1000, found {shots:?}"));
    }
    for (lines, expected) in [
        ("ENTY:food What ?\nENTY:no What ?\n", "line 2: expected a type of"),
        ("ENTY:food What ?\n\nWhat\n", "line 3: expected a type of"),
        ("ENTY:food What ?\n", "expected at least 5 questions, found 1"),
        ("", "expected at least 5 questions, found 0"),
    ] {
        let folder = folder("trec/train_5500.label", lines);
        std::fs::write(folder.path().join("trec/TREC_10.label"), "ENTY:food What ?\n").unwrap();
        let found = error(task("trec"), &setup(&encoder, folder.path(), 4096, &[("shots", "5")]));
        assert!(found.contains("train_5500.label: ") && found.contains(expected), "{found}");
    }
}

#[test]
fn names_are_those_of_longbench() {
    // As some answers of models show that were published with the names: two lack their last letter.
    let names: Vec<_> = labels().map(|(_, name)| name).collect();
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), 50);
    assert_eq!(labels().map(|(fine, _)| fine).collect::<HashSet<_>>().len(), 50);
    assert!(
        names.contains(&"Lasting time of somethin") && names.contains(&"Group or organization of person")
    );
}
