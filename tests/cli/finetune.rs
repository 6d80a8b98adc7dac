//! `ropewalk finetune` from the outside: what it writes, how it goes on, what it refuses.

use std::path::PathBuf;

use convert::random::{write, Shape};
use ropewalk::DType;

use crate::common::program::{run, run_in, split, Output};
use crate::models::model;
use serde_json::Value;

/// A tiny model and a few texts.
pub(crate) struct Folder {
    pub(crate) dir: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        let folder = Folder { dir: tempfile::tempdir().unwrap() };
        std::fs::copy(model(), folder.file("tiny.gguf")).unwrap();
        std::fs::create_dir(folder.file("texts")).unwrap();
        for i in 0..6 {
            let words = (0..400).map(|n| ["sea", "rope", "walk", "hemp", "tar"][(n * (i + 2) + n / 7) % 5]);
            let text = words.collect::<Vec<_>>().join(" ");
            std::fs::write(folder.file(&format!("texts/{i}.txt")), format!("{i}. {text}\n")).unwrap();
        }
        folder
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn args(&self, output: &str, more: &[&str]) -> Vec<String> {
        let texts = self.path("texts");
        let (model, output) = (self.path("tiny.gguf"), self.path(output));
        let head = ["finetune", "-m", &model, "-d", &texts, "-o", &output, "--ctx", "48", "--ubatch", "20"];
        let tail = split("--device cpu -t 1 --lr 0.01 --set dropout=0.1 --set held-out=2 --json");
        [&head[..], &tail, more].concat().into_iter().map(String::from).collect()
    }

    pub(crate) fn finetune(&self, output: &str, more: &[&str]) -> Output {
        let args = self.args(output, more);
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The perplexity of a model on one of the texts.
    pub(crate) fn ppl(&self, model: &str, more: &[&str]) -> f64 {
        let (model, text) = (self.path(model), self.path("texts/1.txt"));
        let head = ["perplexity", "-m", &model, "-f", &text, "--device", "cpu", "-t", "1", "--json"];
        run(&[&head[..], more].concat()).json()["results"][0]["ppl"].as_f64().unwrap()
    }

    pub(crate) fn log(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.file(name)).unwrap();
        // The first is the header.
        text.lines().skip(1).map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

/// Returns what was said on the way out with this code.
#[track_caller]
pub(crate) fn fails(out: &Output, code: i32) -> &str {
    assert_eq!((out.code, out.stderr.matches("error:").count()), (code, 1), "{out:?}");
    &out.stderr
}

/// Figures that decide the next step, of a log's lines: losses and validations, without speed.
pub(crate) fn figures(log: &[Value]) -> Vec<(u64, Option<f64>, Option<f64>)> {
    log.iter().map(|l| (l["step"].as_u64().unwrap(), l["loss"].as_f64(), l["val_loss"].as_f64())).collect()
}

#[test]
fn a_run_writes_an_adapter_that_helps() {
    let folder = Folder::new();
    let report =
        folder.finetune("a.gguf", &["--steps", "30", "--rope", "pi:factor=2", "--set", "ema=0.5"]).json();
    let (before, after) = (report["val_before"].as_f64().unwrap(), report["val_after"].as_f64().unwrap());
    assert!(after < before - 0.5, "{before} to {after}");
    assert_eq!((report["steps"].as_u64(), report["tokens"].as_u64()), (Some(30), Some(30 * 48)));
    assert!(report["tokens_per_s"].as_f64().unwrap() > 0.0);
    let log = folder.log("a.log.jsonl");
    assert_eq!(log.iter().filter(|l| l["loss"].is_number()).count(), 30);
    assert!(std::fs::read_to_string(folder.file("a.loss.svg")).unwrap().contains("<svg"));

    // It says what it was trained under, and the text it learned is likelier with it.
    let a = folder.path("a.gguf");
    let inspect = run(&["inspect", &a, "--json"]).stdout;
    assert!(inspect.contains("pi:factor=2"), "{inspect}");
    let ppl = |more: &[&str]| folder.ppl("tiny.gguf", &[&["--ctx", "48"], more].concat());
    let (plain, trained) = (ppl(&["--rope", "pi:factor=2"]), ppl(&["--lora", &a]));
    assert!(trained < plain * 0.6, "{plain} to {trained}");
    // A run that continues from it keeps its method.
    let next = folder.finetune("b.gguf", &["--steps", "1", "--lora", &a]).json();
    assert!(next["rope"].as_str().unwrap().starts_with("pi:factor=2"), "{next}");
}

/// 16 bits hold no id of a large vocabulary.
#[test]
fn ids_of_a_large_vocabulary_need_their_type() {
    let folder = Folder::new();
    let shape = Shape { n_vocab: 66_000, ..Shape::named("llama-tiny").unwrap() };
    write(&shape, DType::Q8_0, 7, folder.file("tiny.gguf")).unwrap();
    let ids: Vec<u8> = (0..4000u32).flat_map(|i| (i * i % 66_000).to_le_bytes()).collect();
    std::fs::write(folder.file("ids.bin"), ids).unwrap();
    let inspected = |more: &[&str]| {
        let args =
            ["finetune", "-m", "tiny.gguf", "-d", "ids.bin", "--inspect-data", "--ctx", "48", "--json"];
        run_in(folder.dir.path(), &[&args[..], more].concat())
    };
    let out = inspected(&[]);
    assert!(fails(&out, 2).contains("--set token-type=u32"), "{out:?}");
    let shown = inspected(&["--set", "token-type=u32"]).json();
    assert_eq!(shown["tokens"], 4000, "{shown}");
}

#[test]
fn memory_is_planned_and_nothing_is_done() {
    let folder = Folder::new();
    let model = folder.path("tiny.gguf");
    let plan = |more: &[&str]| {
        let head = ["finetune", "-m", &model, "--device", "cpu", "--json"];
        run(&[&head[..], more].concat()).json()
    };
    let here = plan(&["--ctx", "2048", "--plan-memory"]);
    let sum: u64 = here["parts"].as_array().unwrap().iter().map(|p| p["device"].as_u64().unwrap()).sum();
    assert_eq!(here["device"].as_u64(), Some(sum));
    let small = plan(&["--ctx", "2048", "--plan-memory=64MiB"]);
    let longest = small["longest_ctx"].as_u64().unwrap();
    assert!(
        plan(&["--ctx", &longest.to_string(), "--plan-memory=64MiB"])["device"].as_u64().unwrap() <= 64 << 20
    );
    assert_eq!(std::fs::read_dir(folder.dir.path()).unwrap().count(), 2);
}

#[test]
fn texts_are_inspected_and_nothing_is_trained() {
    let folder = Folder::new();
    let found = folder.finetune("a.gguf", &["--inspect-data"]).json();
    let sum = |list: &str, key: &str| -> u64 {
        found[list].as_array().unwrap().iter().map(|b| b[key].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("lengths", "documents"), found["documents"].as_u64()), (6, Some(6)), "{found}");
    assert_eq!(Some(sum("lengths", "tokens")), found["tokens"].as_u64());
    let (inspected, all) = (found["inspected"].as_u64().unwrap(), 48 * 47 / 2);
    assert_eq!((found["ctx"].as_u64(), found["samples"].as_u64()), (Some(48), Some(inspected)));
    // Documents of 2,000 tokens are cut in few samples of 48.
    let same = sum("distances", "pairs") as f64 / (inspected * all) as f64;
    assert!(same > 0.95 && same < 1.0 && (same - found["same_document"].as_f64().unwrap()).abs() < 1e-12);
    let mut left: Vec<_> = std::fs::read_dir(folder.dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    left.retain(|p| p.extension().is_none_or(|e| e != "tokens"));
    assert_eq!(left.len(), 2, "an adapter, a log or checkpoints: {left:?}");

    // Without an adapter's name nothing is left.
    let names = crate::hub::names(folder.dir.path());
    let args = ["finetune", "-m", "tiny.gguf", "-d", "texts", "--inspect-data", "--ctx", "48"];
    let out = run_in(folder.dir.path(), &args);
    assert!(out.code == 0 && out.stdout.contains("tokens in 6 documents"), "{out:?}");
    assert_eq!(crate::hub::names(folder.dir.path()), names);

    // As text, with the tokens where they are asked for.
    let args =
        ["finetune", "-m", "tiny.gguf", "-d", "texts", "--inspect-data", "--ctx", "48", "--set", "cache=c"];
    let out = run_in(folder.dir.path(), &args);
    assert!(out.code == 0 && folder.file("c").is_file(), "{out:?}");
    for says in ["tokens in 6 documents", "samples of 48 tokens", "1024..2047", "distance", "###"] {
        assert!(out.stdout.contains(says), "{says}: {}", out.stdout);
    }
    // Among the texts, with no output named.
    let texts = folder.file("texts");
    let names = crate::hub::names(&texts);
    let out = run_in(&texts, &["finetune", "-m", "../tiny.gguf", "-d", ".", "--inspect-data", "--ctx", "48"]);
    assert!(out.code == 0 && crate::hub::names(&texts) == names, "{out:?}");
    let long = run_in(
        folder.dir.path(),
        &["finetune", "-m", "tiny.gguf", "-d", "texts", "--inspect-data", "--ctx", "900000"],
    );
    assert!(fails(&long, 1).contains("too little text"), "{long:?}");
}

/// A recipe brings rope, context and separator; it says how its paper trained, and which of its settings are replaced.
#[test]
fn a_recipe_says_what_it_is_and_what_replaces_it() {
    let folder = Folder::new();
    let more = ["--recipe", "lceg-code", "--steps", "2", "--set", "batch=1", "--set", "weight-decay=0"];
    let out = folder.finetune("recipe.gguf", &more);
    let report = out.json();
    let rope = "dynamic-ntk:factor=32,trained=32768,original=512";
    assert_eq!((&report["rope"], &report["ctx"]), (&rope.into(), &48.into()));
    for says in [
        "recipe lceg-code, source: finetune.sh",
        "the paper trained all parameters of the model",
        "--ctx 48 replaces its 32768",
        "--lr 0.01 replaces its 0.00002",
        "--set batch=1 replaces its 256",
        "--steps 2 replaces its",
    ] {
        assert!(out.stderr.contains(says), "{says}: {}", out.stderr);
        assert!(report["recipe"].to_string().contains(says), "{says}: {report}");
    }
    assert!(!out.stderr.contains("--set weight-decay"), "{}", out.stderr);
    // Memory is planned for the recipe's context.
    let model = folder.path("tiny.gguf");
    let plan = |more: &[&str]| {
        let head = ["finetune", "-m", &model, "--device", "cpu", "--plan-memory=1GiB", "--json"];
        run(&[&head[..], more].concat()).json()
    };
    assert_eq!(plan(&["--recipe", "sba"])["ctx"], 4096);
    assert_eq!(plan(&["--recipe", "sba", "--ctx", "512"])["ctx"], 512);
    let other = folder.finetune("other.gguf", &["--recipe", "lceg", "--rope", "pi:factor=2", "--steps", "1"]);
    assert!(other.stderr.contains("--rope pi:factor=2 replaces its dynamic-ntk:trained=32768"));
    assert!(other.json()["rope"].as_str().unwrap().starts_with("pi:factor=2"));
}

#[test]
fn what_cannot_be_is_said_in_one_line() {
    let folder = Folder::new();
    std::fs::write(folder.file("short.txt"), "too short").unwrap();
    std::fs::write(folder.file("empty.txt"), "").unwrap();
    std::fs::write(folder.file("bad.jsonl"), "{\"text\": \"one\"}\n{\"body\": \"two\"}\n").unwrap();
    let short = folder.path("short.txt");
    let (empty, bad) = (folder.path("empty.txt"), folder.path("bad.jsonl"));
    let (texts, model) = (folder.path("texts/x.log"), folder.path("tiny.gguf"));
    let (log, cache) = (format!("log={texts}"), format!("cache={model}"));
    let cases: [(&[&str], i32, &str); 15] = [
        (&["--set", &log], 2, "--set log"),
        (&["--set", &cache], 2, "--set cache"),
        (&["--set", "bach=2"], 2, "--set: unknown parameter `bach` (did you mean `batch`?)"),
        (&["--lora", "a.gguf:0.5"], 2, "--lora a.gguf: expected scale 1 to continue from, found 0.5"),
        (&["--set", "lr-min=0.001"], 2, "only under schedule=linear or cosine"),
        (&["--set", "warmup=200"], 2, "warmup: expected at most the 100 steps"),
        (&["--rank", "0"], 2, "rank: expected at least 1"),
        (&["--rank", "100000"], 2, "rank: expected at most"),
        (&["--targets", "all,z"], 2, "targets: expected some of q, k, v"),
        (&["--rope", "nope"], 2, "rope 'nope'"),
        (&["--set", "lr-min=nan", "--set", "schedule=cosine"], 2, "lr-min: expected a number"),
        (&["--resume"], 1, "no checkpoint found"),
        (&["--plot", "x.jpg"], 2, "expected a name ending in .svg, .png, or .pdf"),
        (&["--set", "batch=0"], 2, "--set: batch: expected at least 1"),
        (&["--recipe", "none"], 2, "--recipe"),
    ];
    for (more, code, says) in cases {
        let out = folder.finetune("x.gguf", more);
        let said = fails(&out, code);
        assert!(said.contains(says), "{more:?}: {said}");
    }
    for (text, says) in [(&short, "tokens"), (&empty, "blank"), (&bad, "bad.jsonl:2")] {
        let model = folder.path("tiny.gguf");
        let out = folder.path("x.gguf");
        let out = run(&["finetune", "-m", &model, "-d", text, "-o", &out, "--ctx", "48"]);
        let said = fails(&out, 1);
        assert!(said.contains(says), "{text}: {said}");
    }
    assert!(!folder.file("x.gguf").exists());
}

/// Keys and values are 128 wide: a pair of a higher rank is a sum of more terms than it needs, and sound.
#[test]
fn a_rank_above_the_width_of_a_map_is_trained() {
    let folder = Folder::new();
    let more = ["--steps", "2", "--rank", "160", "--targets", "k,v"];
    let report = folder.finetune("a.gguf", &more).json();
    assert_eq!(report["steps"].as_u64(), Some(2));
    let (model, a) = (folder.path("tiny.gguf"), folder.path("a.gguf"));
    let adapter = run(&["inspect", &a, "--json"]).json()["adapter"].clone();
    assert_eq!((&adapter["ranks"], &adapter["pairs"]), (&serde_json::json!([160]), &4.into()));
    let tokens = |more: &[&str]| {
        let head =
            ["run", "-m", &model, "-p", "the rope", "-n", "8", "--ignore-eos", "--temp", "0", "--json"];
        run(&[&head[..], &["--device", "cpu", "-t", "1"], more].concat()).json()["tokens"].clone()
    };
    let ten_times = format!("{a}:10");
    assert!(tokens(&["--lora", &a]).is_array());
    assert_ne!(tokens(&["--lora", &ten_times]), tokens(&[]));
}

/// The line of the guide with rare settings, on a tiny model and its texts, at a shorter context.
#[test]
fn the_guides_settings_are_taken() {
    let folder = Folder::new();
    let guide = include_str!("../../docs/guide/fine-tuning.md");
    let line = guide.lines().find(|l| l.starts_with("$ ropewalk finetune") && l.contains(" --set ")).unwrap();
    let here = |word: &str| match word {
        "$M" => "tiny.gguf".to_owned(),
        "512" => "64".to_owned(),
        word if word.starts_with("models/texts") => "texts".to_owned(),
        word => word.replace("out/", ""),
    };
    let words: Vec<String> = line.split(' ').skip(2).map(here).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let report =
        run_in(folder.dir.path(), &[&words[..], &["--device", "cpu", "-t", "1", "--json"]].concat()).json();
    assert_eq!((&report["steps"], &report["tokens"]), (&40.into(), &(40 * 2 * 64).into()), "{report}");
    let log = folder.log("cosine.log.jsonl");
    let rate = |step: u64| log.iter().find(|l| l["step"] == step).unwrap()["lr"].as_f64().unwrap();
    assert!(rate(1) < rate(5) && rate(40) < rate(5), "warm-up, then a cosine: {log:?}");
}
