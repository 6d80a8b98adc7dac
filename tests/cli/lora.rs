//! Adapters on the command line: `--lora`, `inspect` of one, `ropewalk convert --lora`.

use std::path::Path;

use crate::common::program::{run, Output};
use ropewalk::adapter::{self, AdapterFile, AdapterMeta, NewPair};
use ropewalk::control::Control;
use ropewalk::gguf::File;
use ropewalk::DType;

/// A tiny model and an adapter for it, trained under `rope`.
pub(crate) struct Folder {
    pub(crate) dir: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new(rope: &str) -> Folder {
        let folder = Folder { dir: tempfile::tempdir().unwrap() };
        let model = folder.dir.path().join("tiny.gguf");
        std::fs::copy(crate::models::model(), &model).unwrap();
        let base = Some(adapter::fingerprint(&File::open(&model).unwrap()));
        // Signs that follow no row and no column: the pair must not be a constant.
        let values = |n: usize, k: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * i + k) % 7) as f32 / 7.0 - 0.4).collect()
        };
        let (a, b) = (values(256 * 2, 1), values(2 * 256, 2));
        let pair = |il: usize| NewPair {
            weight: format!("blk.{il}.attn_output.weight"),
            n_in: 256,
            n_out: 256,
            a: &a,
            b: &b,
        };
        let meta = AdapterMeta {
            rope: Some(rope.parse().unwrap()),
            n_ctx: Some(4096),
            base,
            ..AdapterMeta::default()
        };
        let file = AdapterFile {
            arch: "llama",
            rank: 2,
            alpha: 4.0,
            pairs: vec![pair(0), pair(1)],
            modules_to_save: Vec::new(),
            meta,
            dtype: DType::F32,
        };
        adapter::write(folder.dir.path().join("a.gguf"), &file).unwrap();
        folder
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn run(&self, more: &[&str]) -> Output {
        let model = self.path("tiny.gguf");
        let head = ["run", "-m", &model, "-p", "hello", "-n", "8", "--ignore-eos", "--temp", "0"];
        run(&[&head[..], &["--device", "cpu", "-t", "1", "--json"], more].concat())
    }
}

#[test]
fn an_adapter_changes_what_is_written() {
    let folder = Folder::new("plain");
    let a = folder.path("a.gguf");
    let text = |more: &[&str]| folder.run(more).json()["tokens"].clone();
    let base = text(&[]);
    assert_ne!(text(&["--lora", &a]), base);
    assert_eq!(text(&["--lora", &format!("{a}:0")]), base);
    // Taken away again.
    assert_eq!(text(&["--lora", &format!("{a}:3"), "--lora", &format!("{a}:-3")]), base);
    let with = folder.run(&["--lora", &format!("{a}:2")]).json();
    assert_eq!(with["model"], "tiny.gguf + a.gguf:2");

    let odd = folder.path("a:5");
    std::fs::copy(&a, &odd).unwrap();
    assert_eq!(text(&["--lora", &odd]), text(&["--lora", &a]));
    assert_eq!(text(&["--lora", &format!("{odd}:2")]), with["tokens"]);
}

#[test]
fn another_rope_than_the_trained_one_is_an_error_unless_forced() {
    let folder = Folder::new("pi:factor=2");
    let a = folder.path("a.gguf");
    let own = folder.run(&["--lora", &a]);
    assert!(own.json()["rope"].as_str().unwrap().starts_with("pi:factor=2"));
    assert!(own.stderr.contains("(from the adapter)"), "{}", own.stderr);
    let wrong = folder.run(&["--lora", &a, "--rope", "plain"]);
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(wrong.stderr.contains("a.gguf") && wrong.stderr.contains("pi:factor=2"), "{}", wrong.stderr);
    let forced = folder.run(&["--lora", &format!("{a}:1:force"), "--rope", "plain"]);
    assert_eq!(forced.json()["rope"], "plain");
}

#[test]
fn what_makes_no_sense_is_said() {
    let folder = Folder::new("plain");
    let missing = folder.run(&["--lora", &folder.path("none.gguf")]);
    assert!(missing.code == 1 && missing.stderr.contains("none.gguf"), "{missing:?}");
    assert_eq!(folder.run(&["--lora", "a.gguf:nan"]).code, 2);
    let model = folder.run(&["--lora", &folder.path("tiny.gguf")]);
    assert!(model.code == 1 && model.stderr.contains("general.type"), "{model:?}");
    let adapter = crate::common::program::run(&["run", "-m", &folder.path("a.gguf"), "-p", "x"]);
    assert!(
        adapter.code == 1 && adapter.stderr.contains("its model with this adapter (--lora)"),
        "{adapter:?}"
    );
}

#[test]
fn measurements_name_their_adapters() {
    let folder = Folder::new("plain");
    let (model, a) = (folder.path("tiny.gguf"), folder.path("a.gguf"));
    let text = folder.path("text.txt");
    std::fs::write(&text, "the rope walks on. ".repeat(60)).unwrap();
    let perplexity = |more: &[&str]| {
        let head = ["perplexity", "-m", &model, "-f", &text, "--ctx", "256", "--device", "cpu", "-t", "1"];
        run(&[&head[..], &["-q", "--json"], more].concat()).json()
    };
    let (base, with) = (perplexity(&[]), perplexity(&["--lora", &a]));
    assert_eq!(with["model"], "tiny.gguf + a.gguf:1");
    assert_ne!(base["results"], with["results"]);

    let bench = ["bench", "-m", &model, "-p", "16", "-n", "0", "-r", "1", "--device", "cpu", "-t", "1"];
    let bench = run(&[&bench[..], &["-q", "--json", "--against", "libllama", "--lora", &a]].concat()).json();
    assert_eq!(bench["model"], "tiny.gguf + a.gguf:1");
}

#[test]
fn inspect_shows_an_adapter() {
    let folder = Folder::new("pi:factor=2");
    let a = folder.path("a.gguf");
    let shown = run(&["inspect", &a]).stdout;
    for part in ["LoRA for llama", "rank 2", "alpha 4", "trained under: pi:factor=2", "4,096"] {
        assert!(shown.contains(part), "no {part:?} in: {shown}");
    }
    let json = run(&["inspect", &a, "--json"]).json();
    assert_eq!((&json["adapter"]["ranks"][0], &json["adapter"]["pairs"]), (&2.into(), &2.into()));
    assert_eq!(json["adapter"]["keeps_output"], false);
    assert!(run(&["inspect", &folder.path("tiny.gguf"), "--json"]).json()["adapter"].is_null());

    // PEFT's, of which one replaces the input's embedding alone.
    let peft = Path::new(env!("CARGO_MANIFEST_DIR")).join("convert/tests/fixtures/peft");
    for (case, keeps) in [("tied-embed", true), ("tied-ensured", false)] {
        let to = folder.path(case);
        let (from, base) = (peft.join("cases").join(case), peft.join("tied/base.gguf"));
        convert::peft::from_peft(from, base, &to, &Control::default()).unwrap();
        assert_eq!(run(&["inspect", &to, "--json"]).json()["adapter"]["keeps_output"], keeps, "{case}");
        assert_eq!(run(&["inspect", &to]).stdout.contains("(keeps_output)"), keeps, "{case}");
    }
}

#[test]
fn convert_merges() {
    let folder = Folder::new("pi:factor=2");
    let (model, a, out) = (folder.path("tiny.gguf"), folder.path("a.gguf"), folder.path("merged.gguf"));
    assert_eq!(run(&["convert", "--lora", &a, &model, "-o", &out, "-q"]).code, 0);
    assert!(Path::new(&out).exists());
    let inspect = run(&["inspect", &out]).stdout;
    assert!(inspect.contains("declared rope: pi:factor=2"), "{inspect}");
}

/// An adapter goes to PEFT and back, and names its base as it was told.
#[test]
fn convert_exports_for_peft() {
    let folder = Folder::new("pi:factor=2");
    let (model, a, peft) = (folder.path("tiny.gguf"), folder.path("a.gguf"), folder.path("peft"));
    let args = ["convert", "--to-peft", &peft, "-m", &model, &a, "--json"];
    let unnamed = run(&args);
    assert!(unnamed.code == 0 && unnamed.stderr.contains("--base ORG/REPO"), "{unnamed:?}");
    let out = run(&[&args[..], &["--base", "org/tiny-1.5"]].concat());
    assert!(out.code == 0 && !out.stderr.contains("--base"), "{out:?}");
    assert_eq!((&out.json()["n_pairs"], &out.json()["output"]), (&2.into(), &peft.as_str().into()));
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(Path::new(&peft).join(name)).unwrap()).unwrap()
    };
    let config = read("adapter_config.json");
    assert_eq!(config["base_model_name_or_path"], "org/tiny-1.5");
    assert_eq!((&config["r"], &config["lora_alpha"]), (&2.into(), &4.into()));
    assert_eq!(config["target_modules"], serde_json::json!(["o_proj"]));
    assert_eq!(read("rope_scaling.json")["factor"], 2.0);
    let again = folder.path("b.gguf");
    assert_eq!(run(&["convert", &peft, "-m", &model, "-o", &again]).code, 0);
    let tokens = |a: &str| folder.run(&["--lora", a]).json()["tokens"].clone();
    assert_eq!(tokens(&again), tokens(&a));
    let wrong = run(&[&args[..], &["--base", "tiny"]].concat());
    assert!(wrong.code == 2 && wrong.stderr.contains("expected ORG/REPO"), "{wrong:?}");
}
