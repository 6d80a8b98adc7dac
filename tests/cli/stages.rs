//! `ropewalk finetune` from an adapter, in stages, under shifted sparse attention, and of all parameters, from the
//! outside.

use std::process::{Command, Stdio};

use convert::random::{write, Shape};
use ropewalk::DType;

use super::finetune::{fails, figures, Folder};
use crate::common::process::wait_until;
use crate::common::program::{command, finish, run, split, Output};

const STAGES: &str = r#"
[[stage]]
rope = "abf:base=20000"
ctx = 32
steps = 4

[[stage]]
rope = "abf:base=40000"
ctx = 48
tokens = 200 # of 48 each: 5 steps
lr = 0.005
warmup = 2

[[stage]]
rope = "abf:base=80000"
ctx = 96
steps = 3
attention = "s2"
"#;

/// The options of a run, without `--ctx`, which stages name; held out is a part that is the same at every context.
fn args(folder: &Folder, output: &str, more: &[&str]) -> Vec<String> {
    let mut all = folder.args(output, &[]);
    for value in ["48", "held-out=2"] {
        let at = all.iter().position(|a| a == value).unwrap();
        all.drain(at - 1..=at);
    }
    all.extend(["--set", "held-out=0.03"].iter().chain(more).map(|a| a.to_string()));
    all
}

fn start(args: &[String]) -> Command {
    command(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn finetune(folder: &Folder, output: &str, more: &[&str]) -> Output {
    finish(start(&args(folder, output, more)))
}

#[test]
fn stages_are_runs_from_one_adapter_to_the_next() {
    let folder = Folder::new();
    // The only text of less than 3 % of all tokens, so it is held out.
    std::fs::write(folder.file("texts/short.txt"), "the sea walks on a rope of hemp and tar. ".repeat(5))
        .unwrap();
    let path = folder.path("abf.toml");
    std::fs::write(&path, STAGES).unwrap();
    let report = finetune(&folder, "whole.gguf", &["--stages", &path, "--set", "save-every=2"]).json();
    let stages = report["stages"].as_array().unwrap();
    let figure = |key: &str| stages.iter().map(|s| s[key].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((figure("ctx"), figure("steps")), (vec![32, 48, 96], vec![4, 5, 3]));
    // No token is in two stages.
    assert_eq!(figure("data_end"), [4 * 32, 4 * 32 + 5 * 48, 4 * 32 + 5 * 48 + 3 * 96]);
    let shown = run(&["inspect", &folder.path("whole.gguf")]).stdout;
    for says in ["attention s2, 3 steps", "before that: abf:base=40000", "context 32, 4 steps, 128 tokens"] {
        assert!(shown.contains(says), "{says}: {shown}");
    }
    let json = run(&["inspect", &folder.path("whole.gguf"), "--json"]).json();
    assert_eq!(json["adapter"]["lineage"].as_array().unwrap().len(), 2);

    // By hand, each from the adapter of the one before, it is the same.
    let first = split("--rope abf:base=20000 --ctx 32 --steps 4 --set order=text --set save-every=2");
    finetune(&folder, "one.gguf", &first).json();
    let (one, two) = (folder.path("one.gguf"), folder.path("two.gguf"));
    let second =
        ["--lora", &one, "--rope", "abf:base=40000", "--ctx", "48", "--steps", "5", "--set", "warmup=2"];
    let at = args(&folder, "two.gguf", &second).iter().position(|a| a == "--lr").unwrap();
    let mut second = args(&folder, "two.gguf", &[&second[..], &["--set", "order=text"]].concat());
    second[at + 1] = "0.005".into();
    finish(start(&second)).json();
    let bytes = |path: &str| std::fs::read(path).unwrap();
    assert!(bytes(&one) == bytes(&folder.path("whole.stage-1.gguf")));
    assert!(bytes(&two) == bytes(&folder.path("whole.stage-2.gguf")));

    // What the last stage cannot write over is known before the first.
    finetune(&folder, "left.gguf", &first).json();
    for end in ["gguf", "log.jsonl", "loss.svg"] {
        std::fs::remove_file(folder.path(&format!("left.{end}"))).unwrap();
    }
    let out = finetune(&folder, "left.gguf", &["--stages", &path]);
    assert!(crate::finetune::fails(&out, 1).contains("an earlier run got to"), "{out:?}");
    assert!(!folder.file("left.stage-1.gguf").exists());

    // So are its settings.
    let out = finetune(&folder, "late.gguf", &["--stages", &path, "--set", "warmup=4"]);
    assert!(crate::finetune::fails(&out, 2).contains("warmup"), "{out:?}");
    assert!(!folder.file("late.stage-1.gguf").exists());

    // Killed in its second stage, without any chance to do something about it.
    let all = args(&folder, "cut.gguf", &["--stages", &path, "--set", "save-every=2"]);
    let mut child = start(&all).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let saved = || !ropewalk::train::checkpoint::list(&folder.file("cut.stage-2.checkpoints")).is_empty();
    wait_until("a checkpoint", || saved() || child.try_wait().unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let again = ["--stages", &path, "--set", "save-every=2", "--resume"];
    finetune(&folder, "cut.gguf", &again).json();
    for stage in ["stage-1.", "stage-2.", ""] {
        let name = |run: &str, end: &str| format!("{run}.{stage}{end}");
        let adapter = |run: &str| bytes(&folder.path(&name(run, "gguf")));
        assert!(adapter("cut") == adapter("whole"), "{stage}");
        let lines = |run: &str| figures(&folder.log(&name(run, "log.jsonl")));
        assert_eq!(lines("cut"), lines("whole"), "{stage}");
    }
}

#[test]
fn stages_that_cannot_be_are_said_in_one_line() {
    let folder = Folder::new();
    let path = folder.path("stages.toml");
    let stage = |more: &str| format!("[[stage]]\nctx = 48\nsteps = 1\n{more}\n");
    let cases: [(String, &str); 15] = [
        (String::new(), "missing field `stage`"),
        ("stage = []".into(), "expected at least one [[stage]], found none"),
        ("stage = 3".into(), "line 1: "),
        (
            stage("") + "[[stage]]\nctx = 32\nsteps = 1",
            "stage 2: ctx: expected at least 48, the context before it",
        ),
        ("[[stage]]\nctx = 0\nsteps = 1".into(), "stage 1: ctx: expected at least 1, found 0"),
        ("[[stage]]\nctx = 48".into(), "stage 1: expected steps or tokens, one of the two"),
        (stage("tokens = 9"), "expected steps or tokens, one of the two"),
        ("[[stage]]\nctx = 48\nsteps = 0".into(), "expected at least one step, found none"),
        ("[[stage]]\nctx = -1\nsteps = 1".into(), "line 2: invalid value"),
        (stage("rope = \"nope\""), "stage 1: rope 'nope'"),
        (
            stage("attention = \"s3\""),
            "attention: expected full, s2, s2:group=N or landmark:block=N, found \"s3\"",
        ),
        (
            stage("schedule = \"step\""),
            "schedule: expected constant or linear or cosine or cosine-part, found `step`",
        ),
        (stage("warmup-shape = \"x\""), "warmup-shape: expected linear or log"),
        (stage("rank = 4"), "stage 1: setting: unknown parameter `rank`"),
        (stage("lr = \"fast\""), "stage 1: setting: lr: expected a number, found `fast`"),
    ];
    for (text, says) in cases {
        std::fs::write(&path, &text).unwrap();
        let out = finetune(&folder, "x.gguf", &["--stages", &path]);
        let said = fails(&out, 2);
        assert!(said.contains(says) && said.contains("stages.toml"), "{text}: {said}");
    }
    std::fs::write(&path, stage("")).unwrap();
    for (more, code, says) in [
        (&["--set", "order=shuffled"][..], 2, "--set order: stages take samples in the order of the texts"),
        (&["--steps", "3"], 2, "--steps"),
        (&["--set", "log=x"], 2, "--set log: each stage has its own"),
        (&["--resume"], 1, "no checkpoint found"),
        (&["--set", "packing=long"], 1, "expected packing pack, found long"),
    ] {
        let out = finetune(&folder, "x.gguf", &[&["--stages", &path], more].concat());
        let said = fails(&out, code);
        assert!(said.contains(says), "{more:?}: {said}");
    }
    let missing = folder.path("none.toml");
    let out = finetune(&folder, "x.gguf", &["--stages", &missing]);
    assert!(fails(&out, 2).contains("none.toml"), "{out:?}");
    assert!(!folder.file("x.gguf").exists());
}

#[test]
fn what_cannot_be_gone_on_from_or_attended_to_is_said_in_one_line() {
    let folder = Folder::new();
    folder.finetune("a.gguf", &["--steps", "1"]).json();
    let (a, model) = (folder.path("a.gguf"), folder.path("tiny.gguf"));
    let missing = folder.path("none.gguf");
    let cases: [(&[&str], i32, &str); 15] = [
        (&["--attention", "s3"], 2, "expected full, s2, s2:group=N"),
        (&["--attention", "landmark:block=1"], 2, "block: expected 2 to 256 positions, found 1"),
        (&["--attention", "landmark:size=8"], 2, "landmark: unknown parameter `size`; known: block, in-loss"),
        (&["--attention", "s2:group=0"], 2, "attention s2: group: expected a number from 1"),
        (&["--lora", &missing], 1, "none.gguf"),
        (&["--lora", &model], 1, "general.type"),
        (
            &["--lora", &a, "--rank", "4"],
            1,
            "expected rank 4 on q, k, v, o (8 pairs) as in this run, found rank 8",
        ),
        (&["--lora", &a, "--targets", "q"], 1, "expected rank 8 on q (2 pairs)"),
        (&["--lora", &a, "--alpha", "3"], 1, "expected alpha 3 as in this run, found alpha 16"),
        (&["--lora", &a, "--ctx", "96"], 1, "the order of texts in both runs keeps the place"),
        (&["--lora", &a, "--set", "data-offset=5"], 2, "data offset: expected a multiple of the context"),
        (
            &["--targets", "full"],
            1,
            "targets full: blk.0.attn_q.weight: expected f32, f16 or bf16, found q8_0",
        ),
        (&["--targets", "full", "--rank", "4"], 2, "--rank: --targets full trains the model itself"),
        (&["--targets", "norms", "--alpha", "3"], 2, "--alpha: --targets norms has no LoRA pairs"),
        (&["--set", "output-type=file"], 2, "--set output-type: an adapter is always f32"),
    ];
    for (more, code, says) in cases {
        let ctx = if more.contains(&"--ctx") { &[][..] } else { &["--ctx", "48"] };
        let mut all = args(&folder, "x.gguf", &[more, ctx].concat());
        if more.contains(&"full") {
            let at = all.iter().position(|a| a == "dropout=0.1").unwrap();
            all.drain(at - 1..=at);
        }
        let out = finish(start(&all));
        let said = fails(&out, code);
        assert!(said.contains(says), "{more:?}: {said}");
    }
    // The adapter of another model.
    write(&Shape::named("llama-tiny").unwrap(), DType::Q8_0, 8, folder.file("tiny.gguf")).unwrap();
    let out = finetune(&folder, "x.gguf", &["--lora", &a, "--ctx", "48", "--steps", "1"]);
    let said = fails(&out, 1);
    assert!(
        said.contains("a.gguf: ropewalk.lora.base: expected") && said.contains("another model"),
        "{said}"
    );
    assert!(!folder.file("x.gguf").exists());
}

/// A model of all parameters, in two stages, that opens under the rope of its training and has learned.
#[test]
fn all_parameters_are_trained_and_a_model_is_written() {
    let folder = Folder::new();
    let (model, stages) = (folder.path("neox.gguf"), folder.path("stages.toml"));
    write(&Shape::named("gptneox-tiny").unwrap(), DType::F16, 7, folder.file("neox.gguf")).unwrap();
    std::fs::write(
        &stages,
        "[[stage]]\nctx = 32\nsteps = 6\nrope = \"pi:factor=2\"\n[[stage]]\nctx = 64\nsteps = 6\nrope = \"pi:factor=4\"\n",
    )
    .unwrap();
    let (texts, out) = (folder.path("texts"), folder.path("out.gguf"));
    let head = ["finetune", "-m", &model, "-d", &texts, "--device", "cpu", "-t", "1", "--targets", "full"];
    let tail = split("--lr 0.003 --ubatch 20 --set output-type=file --set eval-every=0 --json");
    let tail = [&tail[..], &["--stages", &stages, "-o", &out]].concat();
    let plan = run(&[&head[..], &["--ctx", "64", "--plan-memory", "--json"]].concat()).json();
    assert!(plan["parts"]
        .as_array()
        .unwrap()
        .iter()
        .any(|p| p["part"] == "optimizer" && p["host"].as_u64() > Some(0)));
    let done = run(&[&head[..], &tail].concat()).json();
    // A session opens at the length that the method reaches.
    let said = run(&["run", "-m", &out, "-p", "a", "-n", "1", "--device", "cpu"]).stderr;
    assert!(said.contains("context 2,048"), "{said}");
    let loss = |stage: usize, key: &str| done["stages"][stage][key].as_f64().unwrap();
    assert!(loss(1, "val_after") < loss(0, "val_before") - 0.3, "{done}");
    let json = run(&["inspect", &out, "--json"]).json();
    assert_eq!(json["trained"]["lineage"].as_array().unwrap().len(), 1, "{json}");
    assert!(json["rope"].as_str().unwrap().starts_with("pi:factor=4"), "{json}");
    assert!(run(&["inspect", &out]).stdout.contains("before that: pi:factor=2"));
    // Matrices as the file had them, those between stages unrounded.
    let types = |path: &str| run(&["inspect", path, "--json"]).json()["totals"].as_object().unwrap().len();
    assert_eq!((types(&out), types(&folder.path("out.stage-1.gguf"))), (2, 1));
    let ppl = |model: &str, more: &[&str]| folder.ppl(model, &[&["--ctx", "64"], more].concat());
    assert!(ppl("out.gguf", &[]) < 0.8 * ppl("neox.gguf", &["--rope", "pi:factor=4"]));
}
