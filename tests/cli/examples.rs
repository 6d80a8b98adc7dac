//! Every example of every command's help and every line of the README's tour, typed in a folder with files of the names that
//! they use.
//!
//! A tiny model of random weights stands in for `smollm2`, and lengths are smaller: [`SMALLER`] says in which words. All else
//! is typed as the help has it.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::common::fetched;
use crate::common::program::{command, run};
use crate::models::model;

/// Commands whose examples reach for the network, or wait for requests: `serve.rs` types those.
const ONLINE: [&str; 2] = ["pull", "serve"];

/// Words of the examples, and what is typed in their place so that all of them take seconds.
const SMALLER: [(&str, &str); 18] = [
    ("-l 16k", "-l 1k"),
    ("-l 8k", "-l 512 --max-windows 2"),
    ("--lengths 4096,12288", "--lengths 512,640 --samples 2"),
    ("-l 4k,16k", "-l 4k --samples 2"),
    ("advise -m smollm2 --ctx 16384", "advise -m smollm2 --ctx 640"),
    ("--ctx 640 -f book.txt", "--ctx 640 -f book.txt --minutes 0.01"),
    ("--minutes 20", "--minutes 0.01"),
    ("--search=samples=2", "--search=samples=2,max-evaluations=3"),
    ("-p 512,2048 -n 128 -d 0,4096", "-p 16,32 -n 8 -d 0,64"),
    ("--map layer=18,head=8 -f essays.txt --ctx 4096", "--map layer=1,head=3 -f essays.txt --ctx 512"),
    ("-d 16384", "-d 256"),
    ("--ctx 1024 --steps 200", "--ctx 256 --steps 2"),
    ("--steps 200", "--steps 2"),
    ("--set batch=8", "--set batch=8 --steps 2"),
    ("--lengths 16384", "--lengths 1024"),
    ("--lengths 8192,16384 --samples 50", "--lengths 4k --samples 1"),
    ("-p 512 -n 128 -d 0,8192", "-p 16 -n 8 -d 0,64"),
    ("--rope sba:factor=2 --ctx 16384 --steps", "--rope sba:factor=2 --ctx 256 --steps"),
];

/// A small plan under the name of the one in the examples.
pub(crate) const PLAN: &str = r#"
title = "Two methods"
lengths = [512]
samples = 2
texts = ["../essays.txt"]
[[models]]
name = "tiny"
path = "../smollm2"
[[methods]]
name = "plain"
spec = "plain"
[[methods]]
name = "yarn"
spec = "yarn:factor=2"
[[tasks]]
name = "perplexity"
protocol = "window"
[[tasks]]
name = "passkey"
"#;

/// The files that examples read.
fn fixtures(dir: &Path) {
    for name in ["smollm2", "model.gguf"] {
        std::fs::copy(model(), dir.join(name)).unwrap();
    }
    let essays = std::fs::read_to_string(fetched("texts/essays.txt")).unwrap();
    let text: String = essays.chars().filter(char::is_ascii).take(12_000).collect();
    std::fs::create_dir(dir.join("novels")).unwrap();
    std::fs::create_dir(dir.join("texts")).unwrap();
    for name in ["essays.txt", "books.txt", "novels/emma.txt", "book.txt", "texts/emma.txt"] {
        std::fs::write(dir.join(name), &text).unwrap();
    }
    std::fs::write(dir.join("report.txt"), &text[..1000]).unwrap();
    let chat = |n: u32| {
        let turn = |role: &str, content: String| serde_json::json!({ "role": role, "content": content });
        let asked = turn("user", format!("What is {n} and one?"));
        format!(
            "{}\n",
            serde_json::json!({ "messages": [asked, turn("assistant", format!("It is {}.", n + 1))] })
        )
    };
    std::fs::write(dir.join("chats.jsonl"), (0..24).map(chat).collect::<String>()).unwrap();
    std::fs::create_dir(dir.join("examples")).unwrap();
    std::fs::write(dir.join("examples/study-small.toml"), PLAN).unwrap();
    // A checkpoint with its tokenizer, as a model's page has it.
    let checkpoints = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/import/tests/checkpoints");
    std::fs::create_dir(dir.join("Qwen3-0.6B")).unwrap();
    for folder in ["llama", "tokenizers/sentencepiece"] {
        for entry in std::fs::read_dir(checkpoints.join(folder)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), dir.join("Qwen3-0.6B").join(entry.file_name())).unwrap();
        }
    }
    // Published data, where `eval` looks for it.
    let to = dir.join("models/benchmarks/ruler");
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(fetched("benchmarks/ruler")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Names of commands, those that others need the output of first.
pub(crate) fn commands() -> Vec<String> {
    let help = run(&["--help"]).stdout;
    let (_, rest) = help.split_once("Commands:\n").expect("a list of commands");
    // Descriptions that take more than a line go on further right.
    let is_name = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let names = rest.lines().take_while(|line| !line.is_empty()).filter(is_name);
    let mut names: Vec<String> =
        names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    names.push("completions".to_owned());
    names.sort_by_key(|name| name != "finetune");
    names
}

/// The examples of a command, without the program's name.
pub(crate) fn examples(name: &str) -> Vec<String> {
    let help = run(&[name, "--help"]).stdout;
    let (_, rest) = help.split_once("Example:\n").unwrap_or_else(|| panic!("{name}: no example"));
    let lines =
        rest.lines().map(|line| line.trim().strip_prefix("ropewalk ").expect("a command line").to_owned());
    lines.collect()
}

/// The command lines of the README's tour, without the program's name.
fn tour() -> Vec<String> {
    let readme = include_str!("../../README.md");
    let tour = readme.split("\n## Tour\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    tour.lines().filter_map(|line| line.strip_prefix("$ ropewalk ")).map(str::to_owned).collect()
}

/// The words of a line with simple double quotes.
fn words(line: &str) -> Vec<&str> {
    let parts = line.split('"').enumerate();
    parts
        .flat_map(|(i, part)| if i % 2 == 1 { vec![part] } else { part.split_whitespace().collect() })
        .collect()
}

#[test]
fn every_example_runs() {
    let dir = tempfile::tempdir().unwrap();
    fixtures(dir.path());
    let mut used = [false; SMALLER.len()];
    let mut typed = Vec::new();
    let examples = commands().into_iter().flat_map(|name| examples(&name)).chain(tour());
    for example in examples {
        let name = example.split(' ').next().unwrap().to_owned();
        if ONLINE.contains(&name.as_str()) {
            continue;
        }
        let mut line = example.clone();
        for ((from, to), used) in SMALLER.iter().zip(&mut used) {
            *used |= line.contains(from);
            line = line.replace(from, to);
        }
        let mut all = words(&line);
        // Other work on the machine holds up threads that wait for each other.
        let computes = !["rope", "inspect", "convert", "completions"].contains(&&*name);
        if computes || line.contains("--map") {
            all.extend(["-t", "1"]);
        }
        let mut call = command(&all);
        call.current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = call.spawn().unwrap();
        // What chat is told; others do not listen.
        let _ = child.stdin.take().unwrap().write_all(b"What is 1 and one?\n/stats\n/quit\n");
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ropewalk {line}: {}\n{said}", output.status);
        // What only writes files says on stderr which.
        assert!(
            !output.stdout.is_empty() || ["finetune", "convert"].contains(&&*name),
            "ropewalk {line} prints nothing: {said}"
        );
        for pair in words(&line).windows(2).filter(|pair| ["-o", "--plot"].contains(&pair[0])) {
            let planned = line.ends_with("--plan");
            assert_eq!(dir.path().join(pair[1]).exists(), !planned, "ropewalk {line}: {}", pair[1]);
        }
        typed.push(example);
    }
    for ((from, _), used) in SMALLER.iter().zip(used) {
        assert!(used, "no example has {from:?}");
    }
    assert!(typed.len() >= 34, "{typed:?}");
}
