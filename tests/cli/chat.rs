//! Conversations: what `/save` writes and never overwrites, what `/restore` refuses.

use std::ops::ControlFlow;

use ropewalk::chat::{Conversation, ConversationParams, Template};
use ropewalk::control::{Control, Stop};
use ropewalk::model::Error;
use ropewalk::{GenerateParams, Model, ModelParams, SessionParams};

use crate::common::program::{run_with, Output};
use crate::hub::names;
use crate::models::{model, ok};

/// A conversation of these lines, on stdin.
pub(crate) fn chat(more: &[&str], lines: impl AsRef<[u8]>) -> Output {
    let head = ["chat", "-m", model(), "--temp", "0", "-q", "--device", "cpu", "-t", "1", "-n", "4"];
    run_with(&[&head[..], &["--ctx", "512"], more].concat(), lines)
}

/// The only line on stderr but the last, which counts the lines that failed.
#[track_caller]
fn one_failure(output: &Output) -> &str {
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert!(output.code == 1 && lines.len() == 2 && lines[1] == "error: failed lines: 1", "{output:?}");
    lines[0]
}

#[test]
fn messages_end_where_they_end() {
    let lines = "a\n\nb\\\r\nc\n\"\"\"d\n\ne\"\"\"\none\\\ntwo\n\"\"\"\nf\ng\n\"\"\"\n\"\"\"\nno end\n";
    let code = "\"\"\"\n    def f():\n        pass\n\"\"\"\n\"\"\"\n// a\n\"\"\"\n";
    let lines = format!("{code}{lines}");
    let talk = ok(chat(&["--json"], lines)).json();
    let asked = talk["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user");
    let asked: Vec<&str> = asked.map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(asked[..2], ["    def f():\n        pass", "// a"]);
    assert_eq!(asked[2..], ["a", "b\nc", "d\n\ne", "one\ntwo", "f\ng", "no end"]);
    let long = vec![b'x'; (64 << 20) + 1];
    for (input, why) in [
        (&b"\xff\n"[..], "stdin: not UTF-8: bad byte at offset 0"),
        (&long, "stdin: expected a message of at most 67108864 bytes, found more"),
    ] {
        let output = chat(&[], input);
        assert!(output.code == 1 && output.stderr.contains(why), "{output:?}");
    }
}

#[test]
fn commands_are_listed_with_what_they_do() {
    let help = ok(chat(&[], "/help\n")).stdout;
    let rows: Vec<_> = help.lines().filter_map(|line| line.strip_prefix('/')?.split_once(' ')).collect();
    let mut names: Vec<&str> = rows.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert!(rows.len() > 8 && names.len() == rows.len(), "{help}");
    // Behind the argument.
    assert!(rows.iter().all(|(_, rest)| rest.trim_start().contains(' ')), "{help}");
}

#[test]
fn a_conversation_is_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let (package, json) = (dir.path().join("package"), dir.path().join("package.json"));
    std::fs::write(&json, "{\"name\": \"mine\"}").unwrap();
    let path = package.to_str().unwrap();
    let saved = ok(chat(&["--json"], format!("one\n/save {path}\n"))).json();
    assert_eq!(std::fs::read_to_string(&json).unwrap(), "{\"name\": \"mine\"}");
    assert_eq!(names(dir.path()), ["package", "package.json"]);
    // A second time replaces it, and what was loaded for the next message is part of it.
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "some notes").unwrap();
    let text = text.to_str().unwrap();
    ok(chat(&[], format!("/restore {path}\n/load {text}\n/save {path}\n")));
    let restored = ok(chat(&["--json"], format!("/restore {path}\ntwo\n"))).json();
    let (before, after) = (saved["messages"].as_array().unwrap(), restored["messages"].as_array().unwrap());
    assert_eq!(before[..], after[..2]);
    assert!(after[2]["content"].as_str().unwrap().contains("some notes"), "{restored}");
}

/// A small file asks for a cache of gigabytes, or for a search of minutes: the header says what the session was opened with.
#[test]
fn a_saved_session_gets_no_more_than_it_needs() {
    use sha2::{Digest, Sha256};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let name = path.to_str().unwrap();
    ok(chat(&[], format!("hello\n/save {name}\n")));
    let whole = std::fs::read(&path).unwrap();
    let n = u64::from_le_bytes(whole[8..16].try_into().unwrap()) as usize;
    let (json, rest) = whole[16..whole.len() - 32].split_at(n);
    let json = std::str::from_utf8(json).unwrap();
    let search = "harpe:base-min=1e4,base-max=1e6,stride=500,lo=10,hi=120000";
    for (from, to, why) in [
        ("\"n_ctx\":512", "\"n_ctx\":300000".to_owned(), "ctx: expected at most 8192 tokens, found 300000"),
        ("\"rope\":\"plain\"", format!("\"rope\":\"{search}\""), "harpe: search: expected a cost of at most"),
    ] {
        assert!(json.contains(from), "{json}");
        let json = json.replace(from, &to);
        let length = (json.len() as u64).to_le_bytes();
        let mut forged = [&whole[..8], &length, json.as_bytes(), rest].concat();
        let digest = Sha256::digest(&forged);
        forged.extend_from_slice(&digest);
        std::fs::write(&path, forged).unwrap();
        let output = chat(&[], format!("one\n/restore {name}\ntwo\n"));
        assert!(one_failure(&output).contains(why), "{why}: {output:?}");
    }
}

#[test]
fn a_file_that_cannot_be_restored_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let name = path.to_str().unwrap();
    ok(chat(&[], format!("/rope yarn:factor=2\n/ctx 1024\nhello\n/save {name}\n")));
    let whole = std::fs::read(&path).unwrap();
    let middle = whole.len() / 2;
    let mut flipped = whole.clone();
    flipped[middle] ^= 1;
    let mut older = whole.clone();
    older[7] = b'2';
    for (bytes, why) in [
        (&flipped[..], "checksum"),
        (&whole[..middle], "expected"),
        (&older, "version 2"),
        (b"{}", "not a saved session"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let output = chat(&["--json"], format!("one\n/restore {name}\ntwo\n"));
        assert!(one_failure(&output).contains(why), "{why}: {output:?}");
        let json: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!((json["n_ctx"].as_u64(), json["rope"].as_str()), (Some(512), Some("plain")), "{why}");
        assert_eq!(json["messages"].as_array().unwrap().len(), 4, "{why}");
        assert!(json["turns"][1]["reused"].as_u64().unwrap() > 10, "{why}: {json}");
    }
}

/// A later context is planned as if nothing had been saved in between.
#[test]
fn a_restored_method_follows_the_context() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("s").to_str().unwrap().to_owned();
    let rope = |line: String| ok(chat(&["--json"], line)).json()["rope"].as_str().unwrap().to_owned();
    let saved = rope(format!("/rope yarn\n/ctx 1024\nhello\n/save {name}\n"));
    assert!(saved.starts_with("yarn:factor=2"), "{saved}");
    assert_eq!(rope(format!("/restore {name}\n")), saved);
    let longer = rope(format!("/restore {name}\n/ctx 2048\n"));
    assert!(longer.starts_with("yarn:factor=4"), "{longer}");
}

/// An answer stays until another one begins.
#[test]
fn an_answer_that_is_not_replaced_stays() {
    let model = Model::load(model(), &ModelParams::cpu()).unwrap();
    let params = ConversationParams::new(SessionParams::new(256).n_threads(1), GenerateParams::greedy(4));
    let mut talk = Conversation::open(&model, Template::of(&model).unwrap(), params).unwrap();
    let mut go_on = |_: &str| ControlFlow::Continue(());
    talk.say("a", &Control::default(), &mut go_on).unwrap();
    let before = talk.messages().to_vec();
    let stop = Stop::default();
    stop.request();
    let control = Control::default().with_stop(&stop);
    // Nothing of the text is read yet.
    talk.reopen(256, Some("pi:factor=2".parse().unwrap()), &control).unwrap();
    assert!(talk.drop_answer() && talk.messages().len() == 1);
    assert!(matches!(talk.answer(&control, &mut go_on), Err(Error::Interrupted)));
    assert_eq!(talk.messages(), before);
    stop.clear();
    assert!(talk.drop_answer());
    talk.answer(&control, &mut go_on).unwrap();
    assert_eq!((talk.messages().len(), &talk.messages()[0]), (2, &before[0]));
}
