//! Texts that go in and come out: files and pipes without an end, and characters that a terminal obeys.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use flate2::{write::GzEncoder, Compression};
use gguf::Value;

use crate::common::program::{command, finish, run, run_with, Output};
use crate::common::rewritten;
#[cfg(unix)]
use crate::limited::{self as limits, through};
use crate::models::{model, ok};

const FIXED: &[&str] = &["--device", "cpu", "-t", "1", "--ctx", "256"];

/// Runs it with at most this much address space, MiB. It must end within five minutes.
#[cfg(unix)]
fn limited(mib: u64, args: &[&str], stdin: Stdio) -> Output {
    let mut call = through(&["timeout", "300"], &limits::limited(&command(args), mib << 10));
    call.stdin(stdin);
    finish(call)
}

#[track_caller]
fn refused(output: &Output, what: &[&str]) {
    assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{output:?}");
    assert!(output.stderr.starts_with("error: "), "{output:?}");
    for what in what {
        assert!(output.stderr.contains(what), "{what} is not in {output:?}");
    }
}

/// A line of JSON with a short text and an array of millions of empty arrays.
fn line_with_much_else(mib: usize, text: &str) -> Vec<u8> {
    let else_ = b"[],".repeat((mib << 20) / 3);
    [b"{\"else\":[", &else_[..], format!("0],\"text\":\"{text}\"}}\n").as_bytes()].concat()
}

#[cfg(unix)]
#[test]
fn fields_that_nobody_asked_for_take_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let words = "the rope walks on ".repeat(40);
    let path = dir.path().join("texts.jsonl");
    std::fs::write(&path, line_with_much_else(60, &words)).unwrap();
    let base = ["perplexity", "-m", model(), "-f", path.to_str().unwrap(), "-q", "--json"];
    let output = limited(1000, &[&base[..], FIXED].concat(), Stdio::null());
    assert!(ok(output).json()["results"][0]["ppl"].is_number());

    // A packed one of less than a megabyte, to train on.
    let path = dir.path().join("texts.jsonl.gz");
    let mut packed = GzEncoder::new(std::fs::File::create(&path).unwrap(), Compression::best());
    packed.write_all(&line_with_much_else(60, &words)).unwrap();
    packed.write_all(&line_with_much_else(1, &words.to_uppercase())).unwrap();
    packed.finish().unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
    let out = dir.path().join("a.gguf");
    let base = ["finetune", "-m", model(), "-d", path.to_str().unwrap()];
    let more =
        ["--device", "cpu", "-t", "1", "--ctx", "48", "--steps", "1", "--set", "held-out=1", "-q", "-o"];
    ok(limited(2000, &[&base[..], &more, &[out.to_str().unwrap()]].concat(), Stdio::null()));
    assert!(out.exists());

    // A line without an end.
    let mut packed = GzEncoder::new(std::fs::File::create(&path).unwrap(), Compression::best());
    packed.write_all(&line_with_much_else(80, &words)).unwrap();
    packed.finish().unwrap();
    let out = dir.path().join("b.gguf");
    let output = limited(2000, &[&base[..], &more, &[out.to_str().unwrap()]].concat(), Stdio::null());
    refused(&output, &["texts.jsonl.gz:1", "67108864 bytes"]);
}

#[cfg(unix)]
#[test]
fn input_without_an_end_is_refused() {
    let zero = || Stdio::from(std::fs::File::open("/dev/zero").unwrap());
    let (run, chat) = (["run", "-q", "-m", model()], ["chat", "-q", "-m", model()]);
    let output = limited(1000, &[&chat[..], FIXED].concat(), zero());
    refused(&output, &["stdin", "67108864 bytes"]);
    for file in ["-", "/dev/stdin"] {
        let output = limited(1000, &[&run[..], FIXED, &["-f", file]].concat(), zero());
        refused(&output, &["stdin", "67108864 bytes"]);
    }
}

/// libllama takes many times the memory of a text, and ends the program where it gets none.
#[cfg(target_os = "linux")]
#[test]
fn a_text_that_there_is_no_memory_to_tokenize_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    std::fs::write(&path, "1 2\n".repeat(1 << 20)).unwrap();
    for command in ["run", "perplexity"] {
        let args = [&[command, "-q", "-m", model(), "-f", path.to_str().unwrap()], FIXED].concat();
        refused(
            &limited(1000, &args, Stdio::null()),
            &["text: 4194304 bytes may need 1152 MiB of memory", "free"],
        );
    }
}

/// Nobody may ever write into a pipe: it is not waited for.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_where_a_file_is_expected() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    let chat = ["chat", "-q", "-m", model()];
    for file in [pipe, "/dev/zero"] {
        let lines = dir.path().join("lines");
        std::fs::write(&lines, format!("/load {file}\n/restore {file}\n/load -\n")).unwrap();
        let lines = Stdio::from(std::fs::File::open(&lines).unwrap());
        let output = limited(1000, &[&chat[..], FIXED].concat(), lines);
        assert_eq!((output.code, output.stderr.matches("regular file").count()), (1, 2), "{output:?}");
        assert_eq!(output.stderr.lines().count(), 4, "{output:?}");
    }
    // What the program was started with is read, whatever it is.
    let head = ["run", "-q", "--json", "-n", "1", "-m", model(), "-f"];
    let direct = ["run", "-q", "--json", "-n", "1", "-m", model(), "-p", "a pipe"];
    let want = crate::common::program::run(&[&direct[..], FIXED].concat()).json();
    for file in ["-", "/dev/stdin", "/dev/fd/0"] {
        let got = run_with(&[&head[..], &[file], FIXED].concat(), "a pipe").json();
        assert_eq!(got["n_prompt"], want["n_prompt"], "{file}");
    }
}

/// Characters that a terminal obeys, or that turn the direction of text.
fn acts(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t' || ('\u{202a}'..='\u{202e}').contains(&c)
}

#[test]
fn what_a_model_writes_cannot_control_a_terminal() {
    // Every byte is a token of this model, and at such a temperature all are equally likely.
    let head = ["run", "-q", "-m", model(), "-p", "x", "--temp", "50", "--seed", "3", "-n", "200"];
    let args = |more: &[&'static str]| [&head[..], &["--ignore-eos"], FIXED, more].concat();
    let raw = ok(run(&args(&["--raw"]))).stdout;
    assert!(raw.contains(acts), "the model writes none: {raw:?}");
    let shown = ok(run(&args(&[]))).stdout;
    assert!(!shown.contains(acts) && shown.contains("\\u{"), "{shown:?}");
    let json = ok(run(&args(&["--json"])));
    assert!(!json.stdout.contains(acts), "{json:?}");
    assert_eq!(json.json()["text"].as_str().unwrap(), raw.strip_suffix('\n').unwrap_or(&raw));
    // A prompt can also come from anywhere.
    let echo =
        ["run", "-q", "--echo", "-n", "0", "-m", model(), "-p", "a\u{1b}]0;b\u{7}\u{9b}\u{202e}\r\nc\td"];
    let echo = ok(run(&[&echo[..], FIXED].concat()));
    assert_eq!(echo.stdout.trim_end(), "a\\u{1b}]0;b\\u{7}\\u{9b}\\u{202e}\nc\td");

    let head = ["chat", "-q", "-m", model(), "--temp", "50", "--seed", "3", "-n", "200", "--ignore-eos"];
    let chat = |more: &[&str]| {
        ok(run_with(
            &[&head[..], &["--device", "cpu", "-t", "1", "--ctx", "1024"], more].concat(),
            "x\n/system a\u{1b}b\n/system\n",
        ))
        .stdout
    };
    let (raw, shown) = (chat(&["--raw"]), chat(&[]));
    assert!(raw.contains(acts) && !shown.contains(acts) && shown.contains("\\u{"), "{shown:?}");
    assert!(shown.contains("a\\u{1b}b"), "{shown:?}");
}

#[cfg(unix)]
#[test]
fn names_out_of_files_cannot_control_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let bad = "a\u{1b}]0;b\u{7}\u{9b}2J\u{202e}\rc";
    let path = dir.path().join(format!("{bad}.gguf"));
    rewritten(Path::new(model()), &path, &[], |writer| {
        let bytes = |text: &str| Value::String(text.as_bytes().to_vec());
        writer.set("general.name", bytes(bad)).set(bad, bytes(bad));
        writer.set("tokenizer.chat_template", bytes(&format!("{{{{ raise_exception('{bad}') }}}}")));
    });
    let (path, text) = (path.to_str().unwrap(), dir.path().join("words.txt"));
    std::fs::write(&text, "the rope walks on ".repeat(60)).unwrap();
    let missing = format!("{path}.none");
    for (args, code) in [
        (vec!["inspect", path], 0),
        (vec!["inspect", path, "--json", "--all"], 0),
        (vec!["run", "-m", path, "-p", "x", "-n", "1"], 0),
        (vec!["run", "-m", path, "-p", "x", "-n", "1", "--chat"], 1),
        (vec!["rope", "-m", path, "--ctx", "4096"], 0),
        (vec!["perplexity", "-m", path, "-f", text.to_str().unwrap(), "--ctx", "64"], 0),
        (vec!["run", "-m", &missing, "-p", "x"], 1),
        (vec!["run", "-m", path, "-f", &missing], 1),
        (vec!["run", &missing], 2),
    ] {
        let output = run(&args);
        assert_eq!(output.code, code, "{args:?}: {output:?}");
        assert!(!output.stdout.contains(acts) && !output.stderr.contains(acts), "{args:?}: {output:?}");
    }
}
