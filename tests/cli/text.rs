//! Texts that go in and come out: files and pipes without an end, and characters that a terminal obeys.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flate2::{write::GzEncoder, Compression};

use crate::common::program::{command, run_with, Output};
use crate::models::{model, ok};

const FIXED: &[&str] = &["--device", "cpu", "-t", "1", "--ctx", "256"];

/// Runs it with at most this much address space, MiB. It must end within a minute.
#[cfg(unix)]
fn limited(mib: u64, args: &[&str], stdin: Stdio) -> Output {
    let plain = command(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {} && exec \"$@\"", mib << 10), "sh"]);
    shell.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut child = shell.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{args:?}: still running after a minute");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[track_caller]
fn refused(output: &Output, what: &[&str]) {
    assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{output:?}");
    assert!(output.stderr.starts_with("error: "), "{output:?}");
    for what in what {
        assert!(output.stderr.contains(what), "{what} is not in {output:?}");
    }
}

/// A line of JSON with a short text beside an array of millions of empty arrays.
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
    let more = ["--device", "cpu", "-t", "1", "--ctx", "48", "--steps", "1", "--held-out", "1", "-q", "-o"];
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

/// Nobody may ever write into a pipe: it is not waited for.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_where_a_file_is_expected() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    let (run, chat) = (["run", "-q", "-m", model()], ["chat", "-q", "-m", model()]);
    for file in [pipe, "/dev/zero"] {
        let base = ["perplexity", "-q", "-m", model(), "-f", file];
        for args in [
            [&run[..], &["-f", file]].concat(),
            [&chat[..], &["--system-file", file]].concat(),
            base.to_vec(),
        ] {
            let output = limited(1000, &[&args[..], FIXED].concat(), Stdio::null());
            refused(&output, &[file, "regular file"]);
        }
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
