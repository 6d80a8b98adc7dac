//! Runs of `ropewalk finetune` that end early or cannot write a file: what they keep, report, and resume from.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::process::wait_until;
#[cfg(unix)]
use crate::common::process::{hang_up_as_usual, signal};
use crate::common::program::{command, run};
use crate::finetune::{fails, figures, Folder};
use crate::hub::names;
#[cfg(unix)]
use crate::pull::end;
use serde_json::Value;

impl Folder {
    /// A text that takes a while to tokenize.
    pub(crate) fn write_long_text(&self) {
        let text = std::fs::read_to_string(self.file("texts/0.txt")).unwrap();
        std::fs::write(self.file("texts/long.txt"), text.repeat(4000)).unwrap();
    }

    pub(crate) fn start(&self, output: &str, more: &[&str]) -> Child {
        let args = self.args(output, more);
        let mut command = command(&args.iter().map(String::as_str).collect::<Vec<_>>());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts a run, and waits until its log has a few lines.
    fn at_work(&self, output: &str, more: &[&str]) -> Child {
        let mut child = self.start(output, more);
        let log = self.file(output).with_extension("log.jsonl");
        // The header, the first validation, and three steps: a checkpoint after each second one is there.
        wait_until("the log has five lines", || {
            let ended = child.try_wait().unwrap();
            let lines = std::fs::read_to_string(&log).unwrap_or_default().lines().count();
            assert!(ended.is_none() || lines >= 5, "{ended:?} after {lines} lines");
            lines >= 5
        });
        child
    }

    /// The adapter is that of a run that nothing happened to.
    #[track_caller]
    fn assert_whole(&self) {
        assert!(
            std::fs::read(self.file("a.gguf")).unwrap() == std::fs::read(self.file("whole.gguf")).unwrap()
        );
    }

    fn names(&self, folder: &str) -> Vec<String> {
        names(&self.file(folder))
    }
}

#[cfg(unix)]
#[test]
fn a_signal_saves_and_stops() {
    hang_up_as_usual();
    let folder = Folder::new();
    for (name, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let output = format!("{}.gguf", &name[1..]);
        let child = folder.at_work(&output, &["--steps", "100000", "--set", "save-every=0"]);
        signal(child.id(), name);
        // `timeout` sends its signal twice; a hang-up comes from the shell and from the system.
        signal(child.id(), name);
        let (ended, said) = end(child);
        assert!(ended == Some(code) && said.contains("saved; --resume continues"), "{name}: {said}");
        let saved = folder.names(&output.replace("gguf", "checkpoints"));
        assert!(saved.len() == 1 && saved[0].starts_with("step-"), "{name}: {saved:?}");
    }
    assert!(folder.names(".").iter().all(|name| !name.starts_with('.')), "{:?}", folder.names("."));
}

/// Whether a process handles SIGTERM (15).
#[cfg(target_os = "linux")]
fn handles_term(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() >> 14 & 1 == 1
}

/// Whether a process waits: its first thread sleeps, whenever one looks within a fifth of a second.
#[cfg(target_os = "linux")]
fn sleeps(child: &Child) -> bool {
    (0..100).all(|_| {
        std::thread::sleep(Duration::from_millis(2));
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    })
}

/// The second signal is for those who do not want to wait; half a second later it is a second one.
#[cfg(target_os = "linux")]
#[test]
fn a_second_signal_ends_at_once() {
    let folder = Folder::new();
    // It waits for a message; a program that waits is ended by the first.
    let model = folder.path("tiny.gguf");
    let mut waiting = command(&["chat", "-m", &model, "--device", "cpu", "-t", "1", "--json"]);
    let mut child =
        waiting.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take();
    wait_until("it waits for a message", || handles_term(&child) && sleeps(&child));
    signal(child.id(), "-TERM");
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(143));
    drop(stdin);
    // Nobody reads what it says on stderr: it hangs there, and cannot act on the first.
    for i in 0..600 {
        std::fs::write(folder.file(&format!("texts/{i}-{}.txt", "long".repeat(40))), b"a rope \xff").unwrap();
    }
    let mut child = folder.start("a.gguf", &["--steps", "1", "--set", "replace-invalid=true"]);
    let n_tokens = || folder.names(".").iter().filter(|n| n.ends_with(".tokens")).count();
    wait_until("it hangs", || n_tokens() == 1 && sleeps(&child));
    signal(child.id(), "-TERM");
    std::thread::sleep(Duration::from_millis(700));
    assert!(child.try_wait().unwrap().is_none(), "it does not hang");
    // Half a second counts from when it saw the first, which may be late.
    wait_until("it has ended", || {
        signal(child.id(), "-TERM");
        std::thread::sleep(Duration::from_millis(50));
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[cfg(unix)]
#[test]
fn two_runs_do_not_share_an_output() {
    let folder = Folder::new();
    let long = ["--steps", "100000", "--set", "save-every=1", "--set", "keep-last=1"];
    let first = folder.at_work("a.gguf", &long);
    let holder = format!("in use by process {} on ", first.id());
    let checkpoints = format!("checkpoints={}", folder.path("a.checkpoints"));
    let log = format!("log={}", folder.path("a.log.jsonl"));
    let cases: [(&str, &[&str], &str); 4] = [
        ("a.gguf", &[], "a.gguf: "),
        ("a.gguf", &["--resume"], "a.gguf: "),
        ("b.gguf", &["--resume", "--set", &checkpoints], "a.checkpoints: "),
        ("c.gguf", &["--set", &log], "a.log.jsonl: "),
    ];
    for (output, more, names) in cases {
        let out = folder.finetune(output, &[&["--steps", "100000"], more].concat());
        let said = fails(&out, 1);
        assert!(said.contains(&format!("{names}{holder}")), "{output} {more:?}: {said}");
    }
    signal(first.id(), "-TERM");
    let (code, said) = end(first);
    assert!(code == Some(143) && said.contains("saved; --resume"), "{said}");
    // Nothing of the ones refused is left, and the first goes on.
    let names = folder.names(".");
    let allowed = ["a.checkpoints", "a.log.jsonl", "texts", "tiny.gguf"];
    assert!(names.iter().all(|n| allowed.contains(&&**n) || n.ends_with(".tokens")), "{names:?}");
    let left = folder.names("a.checkpoints");
    let step = left[0]["step-".len()..][..8].parse::<u64>().unwrap();
    assert_eq!(left.len(), 1);
    folder.finetune("a.gguf", &["--steps", &(step + 1).to_string(), "--resume"]).json();
}

/// Waits until a run is tokenizing.
pub(crate) fn wait_for_tokens(folder: &Folder) {
    wait_until("tokens are written", || folder.names(".").iter().any(|name| name.contains("writing-")));
}

/// Both need the same tokens, and one of them makes them.
#[cfg(unix)]
#[test]
fn two_runs_tokenise_once() {
    let folder = Folder::new();
    folder.write_long_text();
    let first = folder.start("a.gguf", &["--steps", "1"]);
    wait_for_tokens(&folder);
    signal(first.id(), "-STOP");
    let mut second = folder.start("b.gguf", &["--steps", "1"]);
    let mut said = BufReader::new(second.stderr.take().unwrap()).lines();
    let waits = said.find(|line| line.as_ref().unwrap().contains(": waiting for the tokens"));
    assert!(waits.unwrap().unwrap().contains(&format!("in use by process {} on ", first.id())));
    signal(first.id(), "-CONT");
    assert!(said.all(|line| line.is_ok()));
    assert!(second.wait().unwrap().success() && first.wait_with_output().unwrap().status.success());
    assert_eq!(folder.names(".").iter().filter(|n| n.contains("tokens")).count(), 1);
}

#[cfg(unix)]
#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let folder = Folder::new();
    let more = ["--steps", "75", "--set", "save-every=50"];
    folder.finetune("whole.gguf", &more).json();
    let child = folder.at_work("a.gguf", &more);
    signal(child.id(), "-STOP");
    std::fs::remove_file(folder.file("a.log.jsonl")).unwrap();
    std::fs::create_dir(folder.file("a.log.jsonl")).unwrap();
    signal(child.id(), "-CONT");
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("the log cannot be written, training continues: ").count(), 1, "{said}");
    let last = said.lines().last().unwrap();
    assert!(
        last.starts_with("error: ") && last.contains("a.gguf is whole, but the log lacks its last"),
        "{said}"
    );
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((report["steps"].as_u64(), report["problems"].as_array().unwrap().len()), (Some(75), 1));
    folder.assert_whole();
    assert_eq!(folder.names("a.checkpoints").len(), 2);
}

#[cfg(unix)]
#[test]
fn an_adapter_that_cannot_be_written_is_written_by_resume() {
    let folder = Folder::new();
    let more = ["--steps", "60", "--set", "save-every=0"];
    folder.finetune("whole.gguf", &more).json();
    let child = folder.at_work("a.gguf", &more);
    std::fs::create_dir(folder.file("a.gguf")).unwrap();
    let (code, said) = end(child);
    assert_eq!(code, Some(1), "{said}");
    let says = "the adapter was not written, --resume continues from ";
    assert!(said.contains(says) && said.contains("step-00000060.safetensors: "), "{said}");
    std::fs::remove_dir(folder.file("a.gguf")).unwrap();
    folder.finetune("a.gguf", &[&more[..], &["--resume"]].concat()).json();
    folder.assert_whole();
}

#[test]
fn a_damaged_checkpoint_is_set_aside_for_the_one_before() {
    let folder = Folder::new();
    let all = ["--steps", "12", "--set", "save-every=4", "--set", "keep-last=3"];
    folder.finetune("a.gguf", &all).json();
    let whole = std::fs::read(folder.file("a.gguf")).unwrap();
    let log = folder.log("a.log.jsonl");
    let damage = |step: &str, how: &dyn Fn(&mut Vec<u8>)| {
        let path = folder.file(&format!("a.checkpoints/step-000000{step}.safetensors"));
        let mut bytes = std::fs::read(&path).unwrap();
        how(&mut bytes);
        std::fs::write(path, &bytes).unwrap();
        bytes
    };
    let bytes = damage("12", &|bytes| *bytes.last_mut().unwrap() ^= 1);
    damage("08", &|bytes| bytes.truncate(1000));
    let out = folder.finetune("a.gguf", &[&all[..], &["--resume"]].concat());
    out.json();
    for (step, why) in [("12", "sha256: the file is damaged"), ("08", "not a checkpoint: ")] {
        let says = format!("step-000000{step}.safetensors: {why}");
        assert!(out.stderr.contains(&says) && out.stderr.contains("resuming from step 4"), "{}", out.stderr);
    }
    assert!(std::fs::read(folder.file("a.gguf")).unwrap() == whole);
    assert_eq!(figures(&folder.log("a.log.jsonl")), figures(&log));
    let aside = folder.file("a.checkpoints/step-00000012.safetensors.damaged");
    assert!(std::fs::read(&aside).unwrap() == bytes, "the damaged file is kept as it was");
    let names = ["04", "08", "08.damaged", "12", "12.damaged"].map(|n| {
        let (step, rest) = n.split_at(2);
        format!("step-000000{step}.safetensors{rest}")
    });
    assert_eq!(folder.names("a.checkpoints"), names);

    // None is whole: nothing is moved.
    for step in ["04", "08", "12"] {
        damage(step, &|bytes| bytes.truncate(100));
    }
    let before = folder.names("a.checkpoints");
    let out = folder.finetune("a.gguf", &[&all[..], &["--resume"]].concat());
    let said = fails(&out, 1);
    assert!(
        said.contains("step-00000012.safetensors: not a checkpoint")
            && said.contains("no earlier checkpoint is intact"),
        "{said}"
    );
    assert_eq!(folder.names("a.checkpoints"), before);
    // Nor is one of another run taken for a damaged one.
    folder.finetune("b.gguf", &all).json();
    let other = folder.finetune("b.gguf", &["--steps", "12", "--set", "batch=3", "--resume"]);
    assert!(fails(&other, 1).contains("batch: the run was started with 1, this is 3"));
    assert!(Path::new(&folder.path("b.checkpoints/step-00000012.safetensors")).exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_hangup_that_is_ignored_stays_ignored() {
    let folder = Folder::new();
    let args = folder.args("a.gguf", &["--steps", "100000", "--set", "save-every=0"]);
    let mut line = Command::new("sh");
    line.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_ropewalk")]).args(args);
    let mut child = line.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let log = folder.file("a.log.jsonl");
    wait_until("the log has four lines", || {
        std::fs::read_to_string(&log).unwrap_or_default().lines().count() >= 4
    });
    signal(child.id(), "-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it ended");
    signal(child.id(), "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(run(&["inspect", &folder.path("tiny.gguf")]).code == 0);
}

/// A rate that is too high fails at one of the first steps, and as surely again: the steps before it are not lost.
#[test]
fn what_a_run_reached_before_it_failed_can_be_written() {
    let folder = Folder::new();
    let run_of = |steps: u64, more: &[&str]| {
        let (warmup, steps) = (format!("schedule=cosine,warmup={}", steps.min(5)), steps.to_string());
        let how = ["--steps", &steps, "--set", &warmup];
        let mut args = folder.args("a.gguf", &[&how[..], more].concat());
        let at = args.iter().position(|a| a == "--lr").unwrap();
        args[at + 1] = "1e20".into();
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let out = run_of(20, &["--set", "save-every=1"]);
    assert!(fails(&out, 1).contains("not finite"), "{out:?}");
    // The first step has no rate yet.
    let saved = folder.names("a.checkpoints");
    assert!(saved.len() > 1 && saved[0].starts_with("step-00000001."), "{saved:?}");
    let out = run_of(saved.len() as u64 + 1, &["--resume"]);
    assert!(fails(&out, 1).contains("steps: the run was started with 20, this is"), "{out:?}");
    let done = run_of(1, &["--resume"]).json();
    assert_eq!(done["steps"], 1, "{done}");
    assert!(folder.file("a.gguf").exists());
    // The step before the one that fails is saved, whatever is saved else.
    let other = format!("checkpoints={}", folder.path("b"));
    let out = run_of(20, &["--force", "--set", &other]);
    let said = fails(&out, 1);
    assert!(said.contains(" is saved; a run that resumes with "), "{said}");
    assert_eq!(folder.names("b").len(), 1);
}

/// Where activations are rounded, results depend on which are saved, and that on how much memory is free.
#[test]
fn a_run_resumes_with_the_activations_that_it_saved() {
    let folder = Folder::new();
    let rounded = ["--set", "saved-type=f16", "--steps"];
    let first = [&rounded[..], &["1", "--set", "checkpointing=inputs"]].concat();
    folder.finetune("a.gguf", &first).json();
    std::fs::remove_file(folder.file("a.gguf")).unwrap();
    let done = folder.finetune("a.gguf", &[&rounded[..], &["2", "--resume"]].concat()).json();
    assert_eq!(done["steps"], 2, "{done}");
    // Settings have the names by which they are given, and the context comes before what follows from it.
    for (more, says) in [
        (
            &["--set", "checkpointing=products"][..],
            "checkpointing: the run was started with inputs, this is products",
        ),
        (&["--set", "beta1=0.5"], "beta1: the run was started with 0.9, this is 0.5"),
        (&["--ctx", "24"], "ctx: the run was started with 48, this is 24"),
    ] {
        let mut args = folder.args("a.gguf", &[&rounded[..], &["3", "--resume"], more].concat());
        if more[0] == "--ctx" {
            let at = args.iter().position(|a| a == "--ctx").unwrap();
            args.drain(at..at + 2);
        }
        let out = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(fails(&out, 1).contains(says), "{more:?}: {out:?}");
    }
}
