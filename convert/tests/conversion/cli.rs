//! The program itself: what it prints, its exit codes, and what it leaves behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::limited::{limited, LITTLE};

pub(crate) fn convert(args: &[&str]) -> Output {
    let mut call = Command::new(env!("CARGO_BIN_EXE_convert"));
    call.args(args);
    limited(&call, LITTLE).output().unwrap()
}

pub(crate) fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The one JSON object on stdout.
pub(crate) fn json(out: &Output) -> Value {
    assert!(out.status.success(), "{}", stderr(out));
    let text = std::str::from_utf8(&out.stdout).unwrap();
    assert_eq!(text.lines().count(), 1);
    serde_json::from_str(text).unwrap()
}

/// Fails with this code and a message on stderr that holds `parts`; nothing on stdout. The message is one line, or clap's own
/// with the usage below it.
pub(crate) fn fails(args: &[&str], code: i32, parts: &[&str]) {
    let out = convert(args);
    let text = stderr(&out);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
    assert!(out.stdout.is_empty() && !text.contains("panicked"), "{args:?}: {text}");
    let is_claps = code == 2 && text.starts_with("error: ") && text.contains("'--help'");
    assert!(text.lines().count() == 1 || is_claps, "{args:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{args:?}: {text} lacks {part}");
    }
}

pub(crate) fn tiny(dir: &Path) -> PathBuf {
    let path = dir.join("tiny.gguf");
    let made = convert(&["--random", "llama-tiny", "--type", "q8_0", "-q", "-o", path.to_str().unwrap()]);
    assert!(made.status.success() && made.stdout.is_empty() && made.stderr.is_empty(), "{}", stderr(&made));
    path
}

/// A file with our mark, which may be replaced.
pub(crate) fn marked() -> gguf::Writer<'static> {
    let mut writer = gguf::Writer::new();
    writer.set("ropewalk.version", "1");
    writer
}

#[test]
fn json_tells_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let (tiny, out) = (tiny(dir.path()), dir.path().join("out.gguf"));
    let (tiny, out) = (tiny.to_str().unwrap(), out.to_str().unwrap());
    let done = json(&convert(&["--rope", "harpe", tiny, "-o", out, "--json"]));
    assert_eq!((done["input"].as_str(), done["output"].as_str()), (Some(tiny), Some(out)));
    assert_eq!(done["bytes"].as_u64().unwrap(), std::fs::metadata(out).unwrap().len());
    assert!(done["rope"].as_str().unwrap().starts_with("harpe:"));
    assert_eq!((done["n_ctx"].as_u64(), done["n_ctx_orig"].as_u64()), (Some(2048), Some(512)));
    assert_eq!(done["bases"].as_array().unwrap().len(), 2);
    let done = json(&convert(&["--type", "Q4_K", tiny, "-o", out, "--json", "-q"]));
    assert_eq!((done["type"].as_str(), done["n_tensors"].as_u64()), (Some("q4_k"), Some(21)));
    let errors = done["converted"].as_array().unwrap();
    assert_eq!(errors.len(), 16);
    assert!(errors.iter().all(|e| e["rel_rmse"].as_f64().unwrap() > 0.0 && e["name"].is_string()));
    let done = json(&convert(&["--random", "qwen2-tiny", "--seed", "5", "-o", out, "--json"]));
    assert_eq!((done["random"].as_str(), done["seed"].as_u64()), (Some("qwen2-tiny"), Some(5)));
    // Without --json the story is on stderr.
    let plain = convert(&["--type", "q4_0", tiny, "-o", out, "--errors"]);
    assert!(plain.stdout.is_empty());
    assert!(stderr(&plain).contains("blk.1.ffn_down.weight") && stderr(&plain).contains("rmse"));
}

#[test]
fn wrong_usage_is_2_and_failure_1() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (tiny(dir.path()), dir.path().join("out.gguf"));
    let (tiny, o) = (path.to_str().unwrap(), out.to_str().unwrap());
    fails(&[], 2, &["--output", "<IN>", "Usage: ropewalk convert"]);
    fails(&[tiny], 2, &["--output"]);
    fails(&["--rope", "yran", tiny, "-o", o], 2, &["unknown rope method", "yarn", "harpe"]);
    fails(&["--rope", "yarn:faktor=2", tiny, "-o", o], 2, &["faktor", "factor"]);
    fails(&["--type", "q4_k_x", tiny, "-o", o], 2, &["q4_k_x", "q6_k", "q4_k_m"]);
    fails(&["--random", "llama-huge", "-o", o], 2, &["llama-huge", "llama-tiny-gqa"]);
    fails(&["--random", "llama-tiny", tiny, "-o", o], 2, &["cannot be used with"]);
    fails(&["--ctx", "4096", tiny, "-o", o], 2, &["--rope"]);
    fails(&["--ctx", "4096", "--type", "q4_k_m", tiny, "-o", o], 2, &["--rope"]);
    for bad in ["0", "k", "4.5", "2097152k", "99999999999"] {
        fails(&["--ctx", bad, "--rope", "pi", tiny, "-o", o], 2, &["--ctx", bad, "tokens"]);
    }
    fails(&["--ctx", "9999999999", "--rope", "pi", tiny, "-o", o], 2, &["--ctx"]);
    fails(&[tiny, "-o", tiny], 2, &["is the input"]);
    fails(&["--rope", "longrope", tiny, "-o", o], 1, &["rope_factors_"]);
    fails(&["--rope", "harpe", "--llama-cpp", tiny, "-o", o], 1, &["head to head"]);
    fails(&["no-such-file.gguf", "-o", o], 1, &["no-such-file.gguf"]);
    fails(&[tiny, "-o", dir.path().to_str().unwrap()], 1, &["not a regular file"]);
    fails(&[tiny, "-o", dir.path().join("no/such/out.gguf").to_str().unwrap()], 1, &["no/such"]);
    let cut = dir.path().join("cut.gguf");
    std::fs::write(&cut, &std::fs::read(&path).unwrap()[..70_000]).unwrap();
    fails(&["--rope", "pi", cut.to_str().unwrap(), "-o", o], 1, &["cut.gguf"]);
    std::fs::write(&cut, b"GGUF").unwrap();
    fails(&[cut.to_str().unwrap(), "-o", o], 1, &["cut.gguf"]);
    assert!(!out.exists());
}

#[test]
fn help_knows_the_registries() {
    let help = convert(&["--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    for word in ["dynamic-ntk", "q5_1", "smollm2-135m", "Exit codes"] {
        assert!(text.contains(word), "{word}");
    }
    assert!(text.lines().all(|line| !line.trim_start().starts_with("convert")), "{text}");
}

#[test]
fn a_method_takes_three_lines() {
    let dir = tempfile::tempdir().unwrap();
    let (tiny, out) = (tiny(dir.path()), dir.path().join("out.gguf"));
    let (tiny, out) = (tiny.to_str().unwrap(), out.to_str().unwrap());
    let said = |args: &[&str]| {
        let done = convert(&[args, &[tiny, "-o", out]].concat());
        assert!(done.status.success(), "{}", stderr(&done));
        stderr(&done).replace(out, "OUT").lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = said(&["--rope", "harpe"]);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("OUT: harpe, 21 tensors, "), "{lines:?}");
    assert_eq!(lines[1], "for 2048 tokens: 4 times the original context of 512 tokens; --ctx sets it");
    let why =
        "runs in ropewalk; llama.cpp would use the model's own frequencies: the frequencies differ from head";
    assert!(lines[2].starts_with(why), "{lines:?}");
    let lines = said(&["--rope", "yarn:factor=2", "-c", "1k"]);
    assert_eq!(
        lines[1..],
        ["for 1024 tokens", "runs in ropewalk and llama.cpp: llama-server -m OUT -c 1024"]
    );
    // Notes about the file, not the method, are also printed.
    let lines = said(&["--rope", "pi:factor=1"]);
    assert!(lines.len() == 4 && lines[0].contains("changes nothing within the context"), "{lines:?}");
    fails(&[tiny, "-o", out, "q4_k_m"], 2, &["the output is -o OUT, the type --type TYPE"]);
    fails(&[tiny, out, "q4_k_m"], 2, &["the output is -o OUT, the type --type TYPE"]);
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_one_line_and_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let (tiny, out) = (tiny(dir.path()), dir.path().join("out.gguf"));
    marked().write(&out).unwrap();
    let before = std::fs::read(&out).unwrap();
    // A limit on file size stands in for the disk: writes fail as they do on a full one.
    let script = format!(
        "ulimit -f 256; exec {} --type f32 {} -o {} -q",
        env!("CARGO_BIN_EXE_convert"),
        tiny.display(),
        out.display()
    );
    let done = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!((done.status.code(), stderr(&done).lines().count()), (Some(1), 1), "{}", stderr(&done));
    assert!(stderr(&done).contains("out.gguf"), "{}", stderr(&done));
    assert_eq!(std::fs::read(&out).unwrap(), before);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// A model that is cut short while it is read, a byte copy and a change of types: one line that names it.
#[cfg(target_os = "linux")]
#[test]
fn an_input_cut_short_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (input, out) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    let signal = |id: u32, name: &str| {
        let id = id.to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    };
    for to in ["f32", "q8_0"] {
        // A tensor of 2 GiB of zeros, of which no byte is on the disk.
        let mut writer = gguf::Writer::new();
        writer.set("general.architecture", "llama");
        writer.tensor_bytes("blk.0.ffn_up.weight", gguf::DType::F32, &[32], vec![0; 128]).unwrap();
        writer.write(&input).unwrap();
        let mut header = std::fs::read(&input).unwrap();
        let at = header.windows(8).rposition(|w| w == 32u64.to_le_bytes()).unwrap();
        header[at..at + 8].copy_from_slice(&(1u64 << 29).to_le_bytes());
        std::fs::write(&input, &header).unwrap();
        let file = std::fs::File::options().write(true).open(&input).unwrap();
        file.set_len((header.len() - 128 + (4 << 29)) as u64).unwrap();

        let args = ["-q", "--type", to, input.to_str().unwrap(), "-o", out.to_str().unwrap()];
        let mut command = Command::new(env!("CARGO_BIN_EXE_convert"));
        let mut child = command.args(args).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let begun = || std::fs::read_dir(dir.path()).unwrap().count() > 1;
        while !begun() {
            assert_eq!(child.try_wait().unwrap(), None, "it ended before it wrote anything");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        signal(child.id(), "-STOP");
        file.set_len(4096).unwrap();
        signal(child.id(), "-CONT");
        let done = child.wait_with_output().unwrap();
        let expected = format!("error: {}: cannot be read any more", input.display());
        assert!(stderr(&done).starts_with(&expected), "{to}: {}: {}", done.status, stderr(&done));
        assert_eq!((done.status.code(), stderr(&done).lines().count()), (Some(1), 1), "{to}");
        assert!(!out.exists(), "nothing was put in place");
        for left in std::fs::read_dir(dir.path()).unwrap().flatten() {
            std::fs::remove_file(left.path()).unwrap();
        }
    }
}

#[test]
fn names_do_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("\u{1b}]0;title\u{7}\u{9b}2J.gguf");
    std::fs::write(&path, "no model").unwrap();
    let (path, out) = (path.to_str().unwrap(), dir.path().join("out.gguf"));
    let run = convert(&["--rope", "yarn", path, "-o", out.to_str().unwrap()]);
    let said = stderr(&run);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("\\u{1b}]0;title") && !said.trim_end().contains(char::is_control), "{said:?}");
}
