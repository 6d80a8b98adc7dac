//! The program as a user meets it: usage errors, exit codes, one-line messages, help, completions, inspect, rope.

use crate::common::program::{command, finish, run, run_in, Output};
use crate::eval::refused as fails;
use crate::units::options_of;

#[test]
fn wrong_usage_is_exit_2() {
    for (args, holds) in [
        (&["nonesuch"][..], &["nonesuch"][..]),
        (&["run", "--nonesuch"], &["--nonesuch", "Usage: ropewalk run"]),
        (&["run", "-p", "x"], &["--model", "Usage: ropewalk run"]),
        (&["run", "-m", "x"], &["--prompt"]),
        (&["run", "-m", "x", "-p", "a", "-f", "b"], &["cannot be used with"]),
        (&["run", "-m", "x", "-p", "a", "-n", "-5"], &["-n -5"]),
        (&["run", "-m", "x", "-p", "a", "--ctx", "99999999999999999999"], &["--ctx"]),
        (&["run", "-m", "x", "-p", "a", "--temp", "warm"], &["--temp"]),
        (&["run", "-m", "x", "-p", "a", "--top-p", "1.5"], &["top_p", "1.5"]),
        (&["chat", "-m", "x", "--sampler", "repeat-penalty=0"], &["penalty_repeat", "found 0"]),
        (&["perplexity", "-m", "x"], &["--file"]),
        (&["eval", "passkey", "-m", "x", "--lengths", "1k,zero"], &["--lengths"]),
        (&["passkey", "-m", "x", "--lengths", "1k"], &["ropewalk eval passkey"]),
        (&["bench", "-m", "x", "-p", "0", "-n", "0"], &["nothing to measure"]),
        (&["bench", "-m", "x", "--against", "nobody"], &["libllama"]),
        (&["completions", "csh"], &["bash"]),
        (&["pull", "nonesuch"], &["nonesuch", "smollm2"]),
        (&["pull", "hf:just-one"], &["hf:ORG/REPO or hf:ORG/REPO/FILE"]),
        (&["pull", "smollm2", "--sha256", "12"], &["--sha256", "64"]),
        (&["rope", "yarn"], &["--model"]),
        (&["serve", "-m", "x", "--parallel", "0"], &["--parallel"]),
        (&["serve", "-m", "x", "--host", "nowhere"], &["an IP address or localhost"]),
        (&["serve", "-m", "x", "--host", "0.0.0.0"], &["--api-key-file"]),
        (&["serve", "-m", "x", "--rope", "plain", "--rope", "plain"], &["--rope plain", "once"]),
        (&["serve", "-m", "x", "--alias", ""], &["--alias"]),
        (&["serve", "-m", "x", "--origin", "*"], &["--origin", "https://"]),
        (&["serve", "-m", "x", "--origin", "null"], &["--origin"]),
        (&["serve", "-m", "x", "--origin", "https://a.example/chat"], &["--origin"]),
        (&["serve", "-m", "x", "--origin", "ftp://a.example"], &["--origin"]),
        (&["serve", "-m", "x", "--api-key", "y"], &["--api-key-file"]),
    ] {
        fails(&run(args), 2, holds);
    }
}

#[test]
fn convert_is_a_command_like_others() {
    let folder = tempfile::tempdir().unwrap();
    let (file, long) = (folder.path().join("tiny.gguf"), folder.path().join("long.gguf"));
    let (file, long) = (file.to_str().unwrap(), long.to_str().unwrap());
    let made = run(&["convert", "--random", "llama-tiny", "--type", "q8_0", "-o", file, "--json"]);
    assert!(made.json()["bytes"].as_u64().is_some_and(|n| n > 100_000), "{made:?}");
    let done = run(&["convert", file, "--rope", "yarn:factor=4", "-o", long, "-q"]);
    assert!(done.code == 0 && done.stderr.is_empty(), "{done:?}");
    assert_eq!(run(&["inspect", long, "--json"]).code, 0);
    let help = run(&["convert", "--help"]);
    assert!(help.code == 0 && help.stdout.contains("--llama-cpp"), "{help:?}");
    for (args, code, said) in [
        (["convert", file, "--nonesuch"], 2, "--nonesuch"),
        (["convert", "nonesuch.gguf", "--rope=plain"], 2, "--output"),
        (["convert", "nonesuch.gguf", "-ox.gguf"], 1, "nonesuch.gguf"),
        (["convert", "nonesuch", "-ox.gguf"], 1, "no model of that name"),
    ] {
        let failed = run(&args);
        assert!(failed.code == code && failed.stderr.contains(said), "{failed:?}");
        assert!(failed.stderr.starts_with("error: "), "{failed:?}");
    }
    let script = run(&["completions", "bash"]).stdout;
    assert!(script.contains("--imatrix-from"), "the flags of convert are in the completions");
}

#[test]
fn an_unknown_rope_method_is_exit_2_and_lists_the_known_ones() {
    for args in [
        &["run", "-m", "x", "-p", "a", "--rope", "yarm:factor=2"][..],
        &["chat", "-m", "x", "--rope", "yarm"],
        &["perplexity", "-m", "x", "-f", "y", "--rope", "yarm"],
        &["eval", "passkey", "-m", "x", "--lengths", "64", "--rope", "yarm"],
        &["bench", "-m", "x", "--rope", "yarm"],
        &["serve", "-m", "x", "--rope", "yarm"],
        &["rope", "yarm", "-m", "x"],
    ] {
        fails(&run(args), 2, &["yarm", "plain", "harpe", "dynamic-ntk"]);
    }
    fails(&run(&["run", "-m", "x", "-p", "a", "--rope", "yarn:nonesuch=2"]), 2, &["nonesuch", "factor"]);
}

#[test]
fn without_a_command_help_is_shown_and_it_is_exit_2() {
    let output = run(&[]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("perplexity") && output.stderr.contains("Exit codes"), "{output:?}");
}

#[test]
fn every_command_has_help_with_an_example() {
    for name in crate::examples::commands() {
        let [help, all] = ["--help", "--help-all"].map(|option| run(&[&name, option]));
        for output in [&help, &all] {
            assert_eq!(output.code, 0, "{output:?}");
            assert!(output.stdout.contains("Example:\n  ropewalk"), "{output:?}");
        }
        assert_eq!(run(&[&name, "-h"]).stdout, help.stdout);
        // One for a command that takes one word. Behind the program's name, in the hundred columns that help takes: a line that
        // is broken cannot be copied.
        let examples = crate::examples::examples(&name);
        assert!(examples.len() == 2 || name == "completions", "{examples:?}");
        assert!(examples.iter().all(|line| line.starts_with(&name) && line.len() <= 89), "{examples:?}");
        // Two screens, and the details.
        let lines = |output: &Output| output.stdout.lines().count();
        assert!(lines(&help) <= 80 && lines(&all) > lines(&help), "{}", help.stdout);
    }
    let version = run(&["--version"]);
    assert!(version.code == 0 && version.stdout.starts_with("ropewalk "), "{version:?}");
}

/// Options that mean the same in every command that has them: the model, the machine, the output.
const SHARED: &str =
    "model rope ctx lora kv device threads batch ubatch attention math output plot force json quiet seed \
    help help-all template";

#[test]
fn the_command_line_stays_small() {
    let mut commands = crate::examples::commands();
    commands.retain(|name| name != "completions");
    assert!(commands.len() <= 13, "{commands:?}");
    let mut all = std::collections::BTreeSet::new();
    for command in commands {
        let names = options_of(&command);
        let own: Vec<_> = names.iter().filter(|name| !SHARED.split(' ').any(|s| s == **name)).collect();
        assert!(own.len() <= 15, "{command}: {own:?}");
        all.extend(names);
    }
    assert!((40..=104).contains(&all.len()), "{} names of options: {all:?}", all.len());
}

#[test]
fn settings_are_in_the_long_help() {
    let mut command = command(&["finetune", "--help-all"]);
    command.env("COLUMNS", "100");
    let all = finish(command).stdout;
    assert!(all.contains("  weight-decay: AdamW weight decay, except for norms and biases [0]"), "{all}");
    assert!(all.contains("pose: ") && all.contains("target: "), "{all}");
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.code, 0, "{output:?}");
        for name in ["perplexity", "eval", "inspect", "protocol"] {
            assert!(output.stdout.contains(name), "{shell}: {name}");
        }
    }
}

#[test]
fn man_pages_and_completions_are_installed() {
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    let output = run(&["completions", "--install", share.to_str().unwrap()]);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output:?}");
    let read = |path: &str| std::fs::read_to_string(share.join(path)).unwrap();
    for script in [
        "bash-completion/completions/ropewalk",
        "zsh/site-functions/_ropewalk",
        "fish/vendor_completions.d/ropewalk.fish",
    ] {
        assert!(read(script).contains("longppl"), "{script}");
    }
    let pages = std::fs::read_dir(share.join("man/man1")).unwrap().count();
    assert_eq!(pages, 14, "the program and its 13 commands");
    assert!(read("man/man1/ropewalk.1").contains("ropewalk\\-eval(1)"));
    let page = read("man/man1/ropewalk-perplexity.1");
    assert!(page.contains(".TH ropewalk-perplexity 1") && page.contains("\\-\\-protocol"), "{page}");
    // A file where a folder is wanted.
    std::fs::write(dir.path().join("file"), "").unwrap();
    let file = dir.path().join("file");
    fails(&run(&["completions", "--install", file.to_str().unwrap()]), 1, &["file/bash-completion"]);
}

#[test]
fn a_model_that_is_not_there_is_exit_1() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    fails(&run_in(path, &["run", "-m", "no/such.gguf", "-p", "a"]), 1, &["no/such.gguf", "no such file"]);
    fails(&run_in(path, &["inspect", "nonesuch"]), 1, &["nonesuch", "known: smollm2"]);
    let folder = path.to_str().unwrap();
    fails(&run(&["inspect", folder]), 1, &[folder, "a directory"]);
    std::fs::write(path.join("config.json"), "{}").unwrap();
    std::fs::write(path.join("a.safetensors"), "").unwrap();
    for model in [folder, "a.safetensors"] {
        let said = [model, "`ropewalk convert DIR -o FILE.gguf`"];
        fails(&run_in(path, &["run", "-m", model, "-p", "a"]), 1, &said);
    }
    fails(&run_in(path, &["run", "-m", "smollm2", "-p", "a"]), 1, &["ropewalk pull smollm2"]);
    // A directory does not hide the model of its name.
    std::fs::create_dir(path.join("smollm2")).unwrap();
    fails(&run_in(path, &["run", "-m", "smollm2", "-p", "a"]), 1, &["ropewalk pull smollm2"]);
    fails(&run_in(path, &["run", "-m", "hf:o/r/f.gguf", "-p", "a"]), 1, &["ropewalk pull hf:o/r/f.gguf"]);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
