//! A model that is cut short while it is in use: one line that names it, not a silent death.

use std::io::{Read, Write};
use std::process::{Output, Stdio};

use crate::common::program::command;
use crate::models::model;

/// The program ended with one line about the model at this path.
fn named(output: &Output, path: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{:?}: {stderr}", output.status);
    let errors: Vec<&str> = stderr.lines().filter(|l| l.starts_with("error: ")).collect();
    let expected = format!("error: {path}: cannot be read any more: the file was cut short");
    assert!(errors.len() == 1 && errors[0].starts_with(&expected), "{stderr}");
}

#[test]
fn a_model_cut_short_under_a_chat_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::copy(model(), &path).unwrap();
    for threads in ["1", "4"] {
        std::fs::copy(model(), &path).unwrap();
        let path = path.to_str().unwrap();
        let head = ["chat", "-m", path, "--temp", "0", "--device", "cpu", "-t", threads, "-n", "4"];
        let mut child = command(&head)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        stdin.write_all(b"hello\n/stats\n").unwrap();
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !String::from_utf8_lossy(&said).contains("2 messages") {
            assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(4096).unwrap();
        stdin.write_all(b"go on\n/quit\n").unwrap();
        drop(stdin);
        named(&child.wait_with_output().unwrap(), path);
    }
}
