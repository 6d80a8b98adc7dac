//! Commands killed with SIGKILL at many moments: what they had written is whole, they go on, and nothing of theirs is left.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::program::{command, run_with, split};
use crate::common::size;
use crate::finetune::{fails, figures, Folder};
use crate::finetune_ended::wait_for_tokens;

fn n_kills() -> u32 {
    size(4, 100)
}

/// The files in a folder that begin with a dot: ours, as nothing else here does.
fn hidden(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter(|e| e.as_ref().unwrap().file_name().as_encoded_bytes()[0] == b'.').count()
}

fn killed_after(mut command: Command, wait: Duration) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(wait);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn finetune_goes_on_from_its_last_checkpoint() {
    let folder = Folder::new();
    let all = split("--steps 20 --set save-every=1 --set eval-every=5 --set schedule=cosine --set warmup=3");
    let started = Instant::now();
    folder.finetune("whole.gguf", &all).json();
    let time = started.elapsed();
    let whole = std::fs::read(folder.file("whole.gguf")).unwrap();
    let (mut n_resumed, mut n_littered) = (0, 0);
    let n = n_kills();
    for i in 0..n {
        let output = format!("k{i}.gguf");
        let checkpoints = folder.file(&format!("k{i}.checkpoints"));
        let args = |more: &[&str]| folder.args(&output, &[&all[..], more].concat());
        let start = |more: &[&str]| command(&args(more).iter().map(String::as_str).collect::<Vec<_>>());
        killed_after(start(&[]), time * i / n);
        n_littered += u32::from(hidden(folder.dir.path()) + hidden(&checkpoints) > 0);
        let saved = ropewalk::train::checkpoint::list(&checkpoints);
        let resume: &[&str] = if saved.is_empty() { &[] } else { &["--resume"] };
        n_resumed += u32::from(!saved.is_empty());
        let out = folder.finetune(&output, &[&all[..], resume].concat());
        out.json();
        assert!(!out.stderr.contains("damaged"), "kill {i}: {}", out.stderr);
        if let Some(last) = saved.last() {
            let says = format!("resuming after step {}", step(last));
            assert!(out.stderr.contains(&says), "kill {i}: {}", out.stderr);
        }
        assert!(std::fs::read(folder.file(&output)).unwrap() == whole, "kill {i}: another adapter");
        assert_eq!(figures(&folder.log(&format!("k{i}.log.jsonl"))), figures(&folder.log("whole.log.jsonl")));
        assert_eq!(hidden(folder.dir.path()) + hidden(&checkpoints), 0, "kill {i}: something is left");
        assert_eq!(std::fs::read_dir(&checkpoints).unwrap().count(), 2, "kill {i}");
    }
    // Nor is a run started again over what is there.
    let again = folder.finetune("k0.gguf", &all);
    assert!(fails(&again, 1).contains("an earlier run got to step-00000020.safetensors"), "{again:?}");
    println!(
        "finetune: {n} kills, {n_littered} left files of ours, {n_resumed} were resumed from a checkpoint"
    );
}

#[test]
fn tokens_that_are_half_made_are_cleared_away() {
    let folder = Folder::new();
    folder.write_long_text();
    let mut child = folder.start("a.gguf", &["--steps", "1"]);
    wait_for_tokens(&folder);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(hidden(folder.dir.path()) > 0);
    folder.finetune("a.gguf", &["--steps", "1"]).json();
    assert_eq!(hidden(folder.dir.path()), 0, "something is left");
}

fn step(checkpoint: &Path) -> u64 {
    checkpoint.file_stem().unwrap().to_str().unwrap()["step-".len()..].parse().unwrap()
}

#[test]
fn a_saved_session_is_the_old_one_or_the_new_one() {
    let folder = Folder::new();
    let (model, path) = (folder.path("tiny.gguf"), folder.path("chat.session"));
    let args = ["chat", "-m", &model, "--device", "cpu", "-t", "1", "--ctx", "512", "-n", "2", "--json"];
    // Two states to tell apart: one message, or two.
    let save = format!("/save {path}\n");
    let script = format!("one\n{0}two\n{0}", save.repeat(10));
    let started = Instant::now();
    run_with(&args, format!("one\n{save}")).json();
    let first = started.elapsed();
    let started = Instant::now();
    run_with(&args, &script).json();
    let time = started.elapsed();
    std::fs::write(folder.file("script"), &script).unwrap();
    let (mut counts, mut n_littered) = ([0, 0], 0);
    let n = n_kills();
    for i in 0..n {
        run_with(&args, format!("one\n{save}")).json();
        let mut saving = command(&args);
        saving.stdin(std::fs::File::open(folder.file("script")).unwrap());
        killed_after(saving, first + time.saturating_sub(first) * i / n);
        n_littered += u32::from(hidden(folder.dir.path()) > 0);
        let report = run_with(&args, format!("/load {path}\n")).json();
        let messages = report["messages"].as_array().unwrap().len();
        assert!(messages == 2 || messages == 4, "kill {i}: {report}");
        counts[messages / 2 - 1] += 1;
    }
    run_with(&args, format!("one\n{save}")).json();
    assert_eq!(hidden(folder.dir.path()), 0, "something is left");
    println!(
        "/save: {n} kills, {n_littered} left files of ours, {counts:?} were the old session and the new one"
    );
}
