//! The commands that run a model, on a tiny one of random weights: what they print, how they end, how they
//! are stopped.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

#[cfg(target_os = "linux")]
use crate::common::process::children;
#[cfg(unix)]
use crate::common::process::{signal, works_for};
use crate::common::program::{command, run, run_with, split, Output};
use convert::random::{write, Shape};
use ropewalk::DType;

/// The model, written once for all tests. Byte tokens, ChatML template, trained (it says) to
/// 512 tokens.
pub(crate) fn model() -> &'static str {
    static MODEL: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MODEL.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        write(&Shape::named("llama-tiny").unwrap(), DType::Q8_0, 7, &path).unwrap();
        (dir, path)
    });
    path.to_str().unwrap()
}

/// A text of so many words.
pub(crate) fn words(n: usize) -> String {
    (0..n).map(|i| ["the ", "rope ", "walks ", "on.\n"][i * i % 7 % 4]).collect()
}

/// The path of a file with a text of so many words.
pub(crate) fn text_file(dir: &Path, name: &str, n: usize) -> String {
    let path = dir.join(name);
    std::fs::write(&path, words(n)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[track_caller]
pub(crate) fn ok(output: Output) -> Output {
    assert_eq!(output.code, 0, "{output:?}");
    output
}

const FIXED: &[&str] = &["--temp", "0", "-q", "--device", "cpu", "-t", "1"];

fn args<'a>(head: &[&'a str], tail: &[&'a str]) -> Vec<&'a str> {
    [head, &["-m", model()], FIXED, tail].concat()
}

#[test]
fn run_streams_text_and_repeats_itself() {
    let head = args(&["run", "-p", "hello world"], &["-n", "12", "--ignore-eos"]);
    // As it is, because random bytes may be control characters.
    let text = ok(run(&[&head[..], &["--raw"]].concat()));
    assert_eq!(text.stderr, "");
    let json = run(&[&head[..], &["--json"]].concat()).json();
    assert_eq!(format!("{}\n", json["text"].as_str().unwrap()), text.stdout);
    assert_eq!(json["tokens"].as_array().unwrap().len(), 12);
    assert_eq!((json["n_prompt"].as_u64(), json["stop"].as_str()), (Some(11), Some("length")));
    assert!(json["timings"]["decode_tokens_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(json["rope"], "plain");

    let from_stdin =
        run_with(&args(&["run", "-f", "-"], &["-n", "12", "--ignore-eos", "--raw"]), "hello world");
    assert_eq!(ok(from_stdin).stdout, text.stdout);
    let mut warm =
        args(&["run", "-p", "hello world"], &["-n", "12", "--ignore-eos", "--json", "--temp", "1", "--seed"]);
    // The last --temp counts: clap refuses a flag given twice, so the fixed one is left out.
    let at = warm.iter().position(|a| *a == "--temp").unwrap();
    warm.drain(at..at + 2);
    let seeded = |seed| run(&[&warm[..], &[seed]].concat()).json()["tokens"].clone();
    assert_eq!(seeded("1"), seeded("1"));
    assert_ne!(seeded("1"), seeded("2"));
}

#[test]
fn run_stops_where_it_is_told_to() {
    let all = run(&args(&["run", "-p", "hello world"], &["-n", "40", "--ignore-eos", "--json"])).json();
    let all = all["text"].as_str().unwrap();
    // Random bytes are seldom UTF-8, and a stop text is: one that is a letter.
    let stop = all.chars().skip(4).find(char::is_ascii_alphanumeric).unwrap().to_string();
    let cut =
        run(&args(&["run", "-p", "hello world"], &["-n", "40", "--ignore-eos", "--json", "--stop", &stop]))
            .json();
    assert_eq!(cut["text"].as_str().unwrap(), &all[..all.find(&stop).unwrap()]);
    assert_eq!(cut["stop"], "stop");

    let full =
        run(&args(&["run", "-p", "hello world"], &["-n", "-1", "--ignore-eos", "--json", "--ctx", "32"]))
            .json();
    assert_eq!(full["stop"], "context");
    let none = run(&args(&["run", "-p", "hello world"], &["-n", "0", "--json"])).json();
    assert_eq!((none["text"].as_str(), none["stop"].as_str()), (Some(""), Some("length")));
}

#[test]
fn run_says_what_does_not_fit() {
    let output = run(&args(&["run", "-p", "hello world"], &["--ctx", "8"]));
    assert_eq!(output.code, 1);
    assert_eq!(
        output.stderr,
        "error: the prompt has 11 tokens and the context holds 8: pass --ctx 12 or more\n"
    );
    let output = run(&args(&["run", "-p", "x"], &["--ctx", "1000000000"]));
    assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{output:?}");
    assert!(output.stderr.contains("--ctx"), "{output:?}");
    let output = run(&args(&["run", "-p", ""], &[]));
    assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{output:?}");
    let output = run(&["run", "-m", model(), "-p", "x", "--device", "cuda:0", "-q"]);
    assert!(
        output.code == 0 || output.stderr.starts_with("error: ") && output.stderr.lines().count() == 1,
        "{output:?}"
    );
}

#[test]
fn a_prompt_longer_than_the_default_context_makes_room_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = text_file(dir.path(), "text.txt", 2000);
    let json = run(&args(&["run", "-f", &path], &["-n", "3", "--ignore-eos", "--json"])).json();
    assert!(json["n_ctx"].as_u64().unwrap() > json["n_prompt"].as_u64().unwrap());
    assert!(json["n_prompt"].as_u64().unwrap() > 4096, "{}", json["n_prompt"]);
}

#[test]
fn chat_keeps_the_conversation_through_its_commands() {
    let dir = tempfile::tempdir().unwrap();
    let (session, text) = (dir.path().join("s.session"), text_file(dir.path(), "text.txt", 10));
    let session = session.to_str().unwrap();
    let script = format!(
        "/system Be brief.\n\"\"\"\nline one\nline two\n\"\"\"\nhow are \\\nyou\n/stats\n/rope yarn:factor=2\n/ctx 1024\n\
         /save {session}\n/undo\n/load {session}\n/load {text}\nand now\n//slash\n/regen\n/quit\nnever read\n"
    );
    let head = args(&["chat"], &["-n", "6", "--ctx", "512", "--json"]);
    let output = run_with(&head, &script);
    let json = output.json();
    let messages: Vec<(&str, &str)> = json["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
        .collect();
    assert_eq!(messages.len(), 9, "{messages:?}");
    assert_eq!(messages[0], ("system", "Be brief."));
    assert_eq!(messages[1], ("user", "line one\nline two"));
    assert_eq!(messages[3], ("user", "how are \nyou"));
    assert!(messages[5].1.starts_with(&text) && messages[5].1.ends_with("and now"), "{messages:?}");
    assert_eq!(messages[7], ("user", "/slash"));
    assert_eq!(json["n_ctx"], 1024);
    assert!(json["rope"].as_str().unwrap().starts_with("yarn:factor=2"));
    let turns = json["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 5);
    assert_eq!(turns[0]["reused"], 0);
    for turn in &turns[1..] {
        assert!(turn["reused"].as_u64().unwrap() > 10, "the beginning is not read twice: {turns:?}");
    }

    // As text, the answers and what the commands say are on stdout.
    let plain: Vec<&str> = head.iter().copied().filter(|a| *a != "--json").collect();
    let output = ok(run_with(&plain, "hi\n/ctx\n/help\n"));
    assert!(
        output.stdout.contains("context 512 tokens") && output.stdout.contains("/restore FILE"),
        "{output:?}"
    );
}

#[test]
fn a_saved_conversation_goes_on_as_if_never_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let path = path.to_str().unwrap();
    let head = args(&["chat"], &["-n", "8", "--ctx", "512", "--json"]);
    let whole = run_with(&head, format!("one\n/save {path}\ntwo\n")).json();
    let resumed = run_with(&head, format!("/restore {path}\ntwo\n")).json();
    assert_eq!(whole["messages"], resumed["messages"]);
    // Everything saved but the new message was there.
    assert_eq!(whole["turns"][1]["reused"], resumed["turns"][0]["reused"]);
    let other = run_with(&head, "/restore no/such\n/load no/such\n/restore \n");
    assert_eq!(other.code, 1);
    assert_eq!(other.stderr.lines().count(), 4, "{other:?}");
}

#[test]
fn a_full_context_loses_nothing() {
    let head = args(&["chat"], &["-n", "4", "--ctx", "64", "--json"]);
    let long = "word ".repeat(60);
    let output = run_with(&head, format!("hi\n{long}\n/ctx 512\n{long}\n"));
    assert_eq!(output.code, 1, "a line failed");
    let json: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(json["messages"].as_array().unwrap().len(), 4);
    let line = output.stderr.lines().next().unwrap();
    assert!(
        line.contains("/ctx") && line.contains("/rope") && line.contains("context holds 64"),
        "{output:?}"
    );

    // Neither does a change that cannot be made.
    let output = run_with(&head, "hi\n/ctx 8\n/rope yarm\n/rope longrope\n/nonesuch\nmore\n");
    let json: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((json["n_ctx"].as_u64(), json["rope"].as_str()), (Some(64), Some("plain")));
    assert_eq!(json["messages"].as_array().unwrap().len(), 4, "{output:?}");
}

#[test]
fn perplexity_reports_what_the_contract_says() {
    let dir = tempfile::tempdir().unwrap();
    let (path, plot) = (text_file(dir.path(), "text.txt", 300), dir.path().join("p.svg"));
    let base = ["perplexity", "-m", model(), "-f", &path, "--device", "cpu", "-t", "1", "-q"];
    let json =
        run(&[&base[..], &["--ctx", "128,256", "--json", "--plot", plot.to_str().unwrap()]].concat()).json();
    assert_eq!((json["rope"].as_str(), json["protocol"].as_str()), (Some("plain"), Some("window")));
    let rows = json["results"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["ctx"].as_u64().unwrap()).collect::<Vec<_>>(), [128, 256]);
    for row in rows {
        let (ppl, nll) = (row["ppl"].as_f64().unwrap(), row["nll"].as_f64().unwrap());
        assert!((ppl.ln() - nll).abs() < 1e-6 && ppl > 1.0, "{row}");
        for key in ["tokens", "windows", "tokens_per_s"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {row}");
        }
    }
    assert!(std::fs::read_to_string(&plot).unwrap().starts_with("<svg"));

    let many = run(&[
        &base[..],
        &["--ctx", "64", "--stride", "32", "--json", "--rope", "plain", "--rope", "pi:factor=2"],
    ]
    .concat())
    .json();
    let rows = many["results"].as_array().unwrap();
    assert_eq!(
        (many["protocol"].as_str(), many["stride"].as_u64(), rows.len()),
        (Some("stride"), Some(32), 2)
    );
    assert_ne!(rows[0]["ppl"], rows[1]["ppl"]);
    let text = ok(run(&[&base[..], &["--ctx", "400", "--protocol", "yarn", "--max-windows", "3"]].concat()));
    assert!(text.stdout.contains("yarn") && text.stderr.is_empty(), "{text:?}");
    let bad = run(&[&base[..], &["--plot", "x.jpg"]].concat());
    assert!(bad.code == 2 && bad.stderr.contains(".svg"), "{bad:?}");
}

#[test]
fn passkey_reports_what_the_contract_says() {
    let line =
        split("eval passkey --lengths 700 --samples 2 --device cpu -t 1 -q --json --set depth=start/0.5 -m");
    let line = [line, vec![model()]].concat();
    let json = run(&line).json();
    assert_eq!(json["rope"], "plain");
    let row = &json["results"][0];
    assert_eq!((row["length"].as_u64(), row["samples"].as_u64()), (Some(700), Some(4)));
    assert!(
        (0.0..=1.0).contains(&row["accuracy"].as_f64().unwrap()) && row["tokens"].as_u64().unwrap() <= 700
    );
    assert_eq!(row["by"][1]["value"], "0.5");
    for key in ["score", "ci_low", "ci_high"] {
        assert!(row[key].is_number(), "{key}: {row}");
    }
    let mut again = run(&line).json()["results"][0].clone();
    // Times are all that may differ.
    for key in ["seconds", "tokens_per_s"] {
        again[key] = row[key].clone();
    }
    assert_eq!(again, *row);
}

#[test]
fn rope_and_inspect_read_the_file_alone() {
    let json = run(&["rope", "harpe:bases=10000/20000", "-m", model(), "--ctx", "4096", "--json"]).json();
    assert_eq!((json["n_head_kv"].as_u64(), json["n_rot"].as_u64()), (Some(2), Some(64)));
    assert_eq!(json["bases"], serde_json::json!([10000.0, 20000.0]));
    let second = &json["freqs"][1];
    assert_eq!(second.as_array().unwrap().len(), 32);
    let theta = second[5].as_f64().unwrap();
    assert!((theta - 20000f64.powf(-10.0 / 64.0)).abs() < 1e-12, "{theta}");
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("r.png");
    let text =
        ok(run(&["rope", "yarn:factor=4", "-m", model(), "--ctx", "4096", "--plot", plot.to_str().unwrap()]));
    assert!(text.stdout.contains("interpolated") && text.stdout.contains("wavelength"), "{text:?}");
    assert!(std::fs::read(&plot).unwrap().starts_with(b"\x89PNG"));

    let json = run(&["inspect", model(), "--json"]).json();
    assert_eq!(json["metadata"]["general.architecture"], "llama");
    assert_eq!(json["rope"], "plain");
    let bytes: u64 = json["tensors"].as_array().unwrap().iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    let totals: u64 =
        json["totals"].as_object().unwrap().values().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert!(bytes > 0 && bytes == totals);
    assert!(json["metadata"]["tokenizer.ggml.tokens"]["length"].as_u64().unwrap() > 256);
    let all = run(&["inspect", model(), "--json", "--all"]).json();
    assert!(all["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap().len() > 256);
    let text = ok(run(&["inspect", model()]));
    assert!(text.stdout.contains("token_embd.weight") && text.stdout.contains("totals"), "{text:?}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_makes_perplexity_print_what_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = text_file(dir.path(), "text.txt", 4000);
    // Thousands of windows: nobody waits for the end of this.
    let line = split("perplexity --ctx 256 --stride 2 --json --device cpu -t 1");
    let mut command = command(&[&line[..], &["-m", model(), "-f", &path]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut first).unwrap();
    works_for(child.id(), 500);
    signal(child.id(), "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["interrupted"], true);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(rest.lines().last().unwrap().starts_with("error: interrupted"), "{rest}");
}

/// Limits of the process count as those of the machine do.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_what_ulimit_leaves() {
    let line = format!(
        "ulimit -v 1000000; exec {} run -m {} -p hello -n 2 -q --device cpu -t 1 --ctx 4000k",
        env!("CARGO_BIN_EXE_ropewalk"),
        model()
    );
    let done = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    let free =
        stderr.split_once(" MiB is free").and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
    assert!(free.is_some_and(|n: f64| n < 977.0), "{stderr}");
    assert_eq!((done.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_an_answer_and_keeps_the_conversation() {
    let head = args(&["chat"], &["-n", "-1", "--ignore-eos", "--ctx", "65536"]);
    let mut child =
        command(&head).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    stdin.write_all(b"hello\n/stats\n").unwrap();
    let mut some = [0; 16];
    stdout.read_exact(&mut some).unwrap();
    signal(child.id(), "-INT");
    stdin.write_all(b"/clear\n/quit\n").unwrap();
    drop(stdin);
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let text = String::from_utf8_lossy(&rest);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{text}");
    assert!(
        text.contains("2 messages") && text.contains("last answer") && text.contains("cleared"),
        "{text}"
    );
}

/// The editor's side of it: `script` gives the program a terminal, in which Ctrl-C is a key or a signal as
/// its mode says.
#[cfg(target_os = "linux")]
#[test]
fn at_a_terminal_ctrl_c_stops_an_answer_and_commands_complete() {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};
    // `exec`, so that no shell stays between: some shells end with 130 after an interrupt their child has
    // survived.
    let line = format!(
        "exec {} chat -m {} --temp 0 --ignore-eos --ctx 65536 -t 1",
        env!("CARGO_BIN_EXE_ropewalk"),
        model()
    );
    let mut command = std::process::Command::new("script");
    let data = tempfile::tempdir().unwrap();
    command.args(["-qefc", &line, "/dev/null"]).env("XDG_DATA_HOME", data.path()).env("TERM", "xterm");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("the program `script` gives this test a terminal; `make setup` installs it");
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut block = [0; 4096];
        while let Ok(n @ 1..) = stdout.read(&mut block) {
            if send.send(block[..n].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut seen = String::new();
    // Waits for a text on the screen, from where the last wait ended.
    let mut wait = |what: &str| {
        let until = Instant::now() + Duration::from_secs(300);
        loop {
            if let Some(at) = seen.find(what) {
                seen.drain(..at + what.len());
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            match receive.recv_timeout(left) {
                Ok(bytes) => seen += &String::from_utf8_lossy(&bytes),
                Err(e) => panic!("{what:?} did not appear ({e}): {seen:?}"),
            }
        }
    };
    wait("> ");
    stdin.write_all(b"\x03").unwrap();
    wait("/quit exits");
    wait("> ");
    stdin.write_all(b"one \\\rtwo\r").unwrap();
    wait("two");
    let [chat] = children(child.id())[..] else { panic!("one process at the terminal") };
    works_for(chat, 500);
    stdin.write_all(b"\x03").unwrap();
    wait("(stopped)");
    wait("> ");
    stdin.write_all(b"/sta\t\r").unwrap();
    wait("2 messages");
    wait("> ");
    stdin.write_all(b"\x04").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let history = std::fs::read_to_string(data.path().join("ropewalk/chat_history")).unwrap();
    assert!(history.contains("/stats") && history.contains("two"), "{history}");
}
