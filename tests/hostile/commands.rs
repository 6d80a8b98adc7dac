//! Bad input through the program: exit codes, one line on stderr, no death by a signal.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::program::Output;
use crate::limited::{limited, LITTLE};
use crate::{common, rewritten, small_model, text, with_key};
use gguf::Value;

/// Runs the program; it must end by itself, in time.
#[track_caller]
pub(crate) fn ropewalk(args: &[&str], stdin: &[u8]) -> Output {
    ended(&common::program::command(args), stdin)
}

/// A call that computes for long has used up its processor time before this; one that waits has not.
const HUNG: Duration = Duration::from_secs(300);

/// Runs a call of the program with little memory and processor time; it must end by itself.
#[track_caller]
pub(crate) fn ended(call: &Command, stdin: &[u8]) -> Output {
    let mut command = limited(call, LITTLE);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), stdin).ok();
    let reader = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            from.read_to_end(&mut all).unwrap();
            String::from_utf8(all).expect("output is UTF-8")
        })
    };
    let stdout = reader(Box::new(child.stdout.take().unwrap()));
    let stderr = reader(Box::new(child.stderr.take().unwrap()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > HUNG {
            child.kill().unwrap();
            panic!("{call:?}: still running after {HUNG:?}");
        }
        std::thread::sleep(Duration::from_millis(3));
    };
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    let Some(code) = status.code() else { panic!("{call:?}: died of {status}: {stderr}") };
    Output { code, stdout, stderr }
}

/// Fails with this code and a message on stderr that holds each of `holds`: one line, or clap's own with the usage below it.
#[track_caller]
pub(crate) fn fails(args: &[&str], code: i32, holds: &[&str]) {
    let ended = ropewalk(args, b"");
    assert_eq!(ended.code, code, "{args:?}: {ended:?}");
    let is_claps = code == 2 && ended.stderr.contains("'--help'");
    assert!(ended.stderr.lines().count() == 1 || is_claps, "{args:?}: {ended:?}");
    assert!(ended.stderr.starts_with("error: ") && !ended.stderr.contains("panicked"), "{args:?}: {ended:?}");
    for part in holds {
        assert!(
            !part.ends_with(".gguf") || ended.stderr.matches(part).count() == 1,
            "{part} twice: {ended:?}"
        );
        assert!(ended.stderr.contains(part), "{args:?}: {part:?} is not in {ended:?}");
    }
}

pub(crate) fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A file of these bytes.
fn written(name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = common::scratch(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn models_that_are_none() {
    let good = std::fs::read(small_model()).unwrap();
    let words = written("commands-words.txt", b"the rope is long and the walk is longer than any other");
    for (name, bytes) in [
        ("commands-none.gguf", &b""[..]),
        ("commands-magic.gguf", b"GGUF"),
        ("commands-head.gguf", &good[..100]),
        ("commands-keys.gguf", &good[..3000]),
        ("commands-half.gguf", &good[..good.len() / 2]),
        ("commands-short.gguf", &good[..good.len() - 100]),
        ("commands-noise.gguf", &[0xa5; 5000]),
        ("commands-text.gguf", b"hello, this is not a model at all, but long enough"),
        (
            "commands-huge.gguf",
            b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x7f",
        ),
    ] {
        let path = written(name, bytes);
        let m = str(&path);
        fails(&["inspect", m], 1, &[name]);
        fails(&["run", "-q", "-m", m, "-p", "hi"], 1, &[name]);
        fails(&["perplexity", "-q", "-m", m, "-f", str(&words), "--ctx", "32"], 1, &[name]);
        fails(&["rope", "yarn", "-m", m, "--ctx", "4096"], 1, &[name]);
        fails(&["eval", "passkey", "-q", "-m", m, "--lengths", "256"], 1, &[name]);
        fails(&["bench", "-q", "-m", m, "-p", "8", "-n", "1"], 1, &[name]);
        let chat = ropewalk(&["chat", "-q", "-m", m], b"hello\n");
        assert!(chat.code == 1 && chat.stderr.lines().count() == 1, "{chat:?}");
    }
}

/// A file's declaration of a rope that cannot be is an error where it would be used, and only there.
#[test]
fn a_declared_rope_that_cannot_be() {
    let path = with_key("commands-spec", "ropewalk.rope.spec", text("yarm:factor=2"));
    let (m, name) = (str(&path), "hostile-commands-spec.gguf");
    let words = written("commands-spec.txt", "rope ".repeat(40).as_bytes());
    fails(&["run", "-q", "-m", m, "-p", "hi"], 1, &[name, "ropewalk.rope.spec", "yarm", "yarn"]);
    fails(&["perplexity", "-q", "-m", m, "-f", str(&words), "--ctx", "64"], 1, &[name, "yarm"]);
    fails(&["rope", "-m", m], 1, &[name, "yarm"]);
    let asked = ropewalk(&["rope", "pi:factor=2", "-m", m], b"");
    assert!(asked.code == 0 && asked.stdout.contains("yarm"), "{asked:?}");
    let run = ["run", "-q", "-m", m, "-p", "hi", "-n", "1", "--ignore-eos", "--rope", "pi:factor=2"];
    let run = ropewalk(&run, b"");
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn parts_that_name_each_other_or_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let path = |i: usize| dir.path().join(format!("m-0000{i}-of-00003.gguf"));
    let split = |no: u16| {
        move |w: &mut gguf::Writer<'_>| {
            w.set("split.no", Value::U16(no))
                .set("split.count", Value::U16(3))
                .set("split.tensors.count", Value::I32(36));
        }
    };
    let first = rewritten("commands-split", split(0), |_| None);
    for i in 1..=3 {
        std::fs::copy(&first, path(i)).unwrap();
    }
    fails(&["run", "-q", "-m", str(&path(1)), "-p", "hi"], 1, &["m-00002-of-00003.gguf", "split.no"]);
    #[cfg(unix)]
    for i in 2..=3 {
        std::fs::remove_file(path(i)).unwrap();
        std::os::unix::fs::symlink(path(1), path(i)).unwrap();
    }
    fails(&["inspect", str(&path(1))], 1, &["split.no"]);
    std::fs::remove_file(path(2)).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(path(2), path(2)).unwrap();
    fails(&["inspect", str(&path(1))], 1, &["m-00002-of-00003.gguf"]);
    fails(&["inspect", str(&path(2))], 1, &["m-00002-of-00003.gguf"]);
    fails(&["run", "-m", str(dir.path()), "-p", "hi"], 1, &[str(dir.path())]);
}

#[test]
fn texts_that_cannot_be_used() {
    let m = str(small_model());
    let latin1 = written("commands-latin1.txt", b"caf\xe9 au lait");
    let empty = written("commands-empty.txt", b"");
    let long = written("commands-long.txt", "walk ".repeat(400).as_bytes());
    fails(&["run", "-q", "-m", m, "-f", str(&latin1)], 1, &["commands-latin1.txt", "UTF-8", "3"]);
    fails(
        &["perplexity", "-q", "-m", m, "-f", str(&latin1), "--ctx", "32"],
        1,
        &["commands-latin1.txt", "UTF-8", "3"],
    );
    fails(&["perplexity", "-q", "-m", m, "-f", str(&empty), "--ctx", "32"], 1, &["commands-empty.txt"]);
    fails(&["run", "-q", "-m", m, "-p", ""], 1, &["prompt is empty"]);
    fails(&["run", "-q", "-m", m, "-f", str(&empty)], 1, &["prompt is empty"]);
    fails(&["run", "-q", "-m", m, "-f", str(&long), "--ctx", "100"], 1, &["2000 tokens", "--ctx 2001"]);
    fails(&["run", "-q", "-m", m, "-f", "no-such-file"], 1, &["no-such-file"]);
    fails(&["run", "-q", "-m", m, "-f", str(common::scratch("x").parent().unwrap())], 1, &["irectory"]);
    let not_text = ropewalk(&["run", "-q", "-m", m, "-f", "-"], b"\xff\xfe");
    assert!(not_text.code == 1 && not_text.stderr.contains("stdin"), "{not_text:?}");
    let chat = ropewalk(&["chat", "-q", "-m", m, "--ctx", "64"], b"\xff\xfe\n");
    assert!(chat.code <= 1 && !chat.stderr.contains("panicked"), "{chat:?}");
    // NUL bytes and every control character are text like any other.
    let odd = written("commands-odd.txt", &(0..0x20).chain([0x7f]).collect::<Vec<u8>>());
    let run =
        ropewalk(&["run", "-q", "-m", m, "-f", str(&odd), "-n", "2", "--ctx", "64", "--ignore-eos"], b"");
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn arguments_that_cannot_be() {
    let m = str(small_model());
    let run = |more: &[&'static str]| [&["run", "-q", "-m", m, "-p", "hi", "-n", "2"][..], more].concat();
    let eval = ["eval", "passkey", "-q", "-m", m, "-l", "256", "-n", "1", "-o", "x.svg", "--plot", "x.svg"];
    fails(&eval, 2, &["apart from the other output"]);
    fails(&run(&["--ctx", "0"]), 2, &["--ctx", "at least 1"]);
    fails(&run(&["--ctx", "2147483647"]), 1, &["ctx 2147483647 needs", "TiB", "--ctx"]);
    fails(&run(&["--ctx", "1024m"]), 2, &["--ctx"]);
    fails(&run(&["--ctx", "1"]), 1, &["--ctx"]);
    fails(&run(&["--threads", "100000"]), 2, &["threads", "512", "100000"]);
    fails(&run(&["--threads", "-1"]), 2, &["-1"]);
    fails(&run(&["--device", "tpu:3"]), 1, &["tpu:3", "cpu"]);
    fails(&run(&["--device", "cpu:7"]), 1, &["cpu:7"]);
    fails(&run(&["--device", ""]), 1, &["auto, cpu"]);
    fails(&run(&["--kv", "q4_k"]), 2, &["--kv", "q8_0"]);
    fails(&run(&["--batch", "0"]), 2, &["--batch"]);
    fails(&run(&["--rope", "harpe:bases=1e4/2e4/3e4"]), 1, &["harpe", "KV head"]);
    fails(&run(&["--stop", ""]), 2, &["stop"]);
    fails(&["eval", "passkey", "-q", "-m", m, "--lengths", "2"], 1, &["passkey at 2 tokens"]);
    fails(&["eval", "passkey", "-q", "-m", m, "--lengths", "2147483647"], 1, &["67108864 characters"]);
    let longlora = ["--lengths", "2147483647", "--set", "sizing=longlora"];
    fails(&[&["eval", "passkey", "-q", "-m", m], &longlora[..]].concat(), 1, &["67108864 characters"]);
    fails(&["rope", "harpe:hi=2147483647,lo=1", "-m", m, "--ctx", "4096"], 1, &["harpe"]);
}
