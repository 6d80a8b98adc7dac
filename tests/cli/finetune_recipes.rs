//! `ropewalk finetune --recipe`: the data of the papers, the options that replace it, and errors.

use crate::common::program::{run, run_in, Output};
use crate::common::size;
use crate::finetune::{fails, Folder};
use ropewalk::data::Packing;
use ropewalk::train::recipe::RECIPES;
use ropewalk::train::Settings;

const KNOTS: [&str; 2] = ["--transform", "utk-80:knots=#1/#2/#3/#4,marks=#5/#6/#7/#11/#12"];

/// A run in the folder with options that make it small, unless others are given.
fn finetune(folder: &Folder, output: &str, more: &[&str]) -> Output {
    let defaults = [("--ctx", "48"), ("--ubatch", "20"), ("--set", "held-out=2"), ("--lr", "0.01")];
    let (model, texts, output) = (folder.path("tiny.gguf"), folder.path("texts"), folder.path(output));
    let mut args =
        vec!["finetune", "-m", &model, "-d", &texts, "-o", &output, "--device", "cpu", "-t", "1", "--json"];
    let held_out = more.iter().any(|word| word.starts_with("held-out="));
    for (option, value) in defaults {
        if if option == "--set" { !held_out } else { !more.contains(&option) } {
            args.extend([option, value]);
        }
    }
    args.extend(more);
    run(&args)
}

/// Options after a recipe's name that make it short.
fn small<'a>(recipe: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--recipe", recipe, "--steps", "2", "--set", "batch=1"], more].concat()
}

fn kinds(folder: &Folder, more: &[&str]) -> (Vec<String>, Vec<u64>, Output) {
    let out = finetune(folder, "shown.gguf", &[more, &["--inspect-data"]].concat());
    let found = out.json();
    let pieces = found["sample"].as_array().unwrap();
    let kinds = pieces.iter().map(|p| p["kind"].as_str().unwrap().to_owned()).collect();
    let documents = pieces.iter().map(|p| p["document"].as_u64().unwrap()).collect();
    (kinds, documents, out)
}

/// Every recipe trains by its name, on texts whose documents are long enough for its context.
#[test]
fn each_recipe_trains_on_its_data() {
    let folder = Folder::new();
    for recipe in RECIPES {
        let knots: &[&str] = if recipe.name == "utk" { &KNOTS } else { &[] };
        let output = format!("{}.gguf", recipe.name);
        let out = finetune(&folder, &output, &small(recipe.name, knots));
        let report = out.json();
        assert_eq!(report["steps"].as_u64(), Some(2), "{}: {out:?}", recipe.name);
        let packing = recipe.settings(recipe.n_ctx, &Settings::default()).packing.unwrap();
        let told = report["recipe"][0].as_str().unwrap();
        let packs = told.contains("packing=");
        assert!(!packs && packing == Packing::Pack || told.contains(&format!("packing={packing}")), "{told}");
        assert!(told.contains(&format!("transform {}", recipe.method.unwrap_or("none"))), "{told}");
        assert!(!out.stderr.contains("steps the moving average is"), "{}: {}", recipe.name, out.stderr);
        let left_out = out
            .stderr
            .contains("skipped the recipe's upsample=fu:length=4096,keep=0.1: no document has 4096");
        assert_eq!(left_out, told.contains("upsample=fu:length=4096,keep=0.1"), "{}", out.stderr);
        // It goes on under the same words, and not under other data.
        let again = finetune(&folder, &output, &[&small(recipe.name, knots)[..], &["--resume"]].concat());
        assert!(again.json()["steps"] == 2 && again.stderr.contains("resuming after step 2"), "{again:?}");
        let other = if recipe.method == Some("utk-80") { "none" } else { "cip" };
        let packing = if recipe.name == "pose" { &["--set", "packing=truncate"][..] } else { &[] };
        let other = [&small(recipe.name, &[])[..], &["--resume", "--transform", other], packing].concat();
        let refused = finetune(&folder, &output, &other);
        let said = fails(&refused, 1);
        assert!(said.contains("the run was started with"), "{}: {said}", recipe.name);
    }
}

#[test]
fn options_replace_the_data_of_a_recipe() {
    let folder = Folder::new();
    let utk = small("utk", &KNOTS);
    // Four sequences of five are tangled: some of those shown first.
    let found: Vec<String> = ["1", "2", "3", "4"]
        .iter()
        .flat_map(|s| kinds(&folder, &[&utk[..], &["--seed", s]].concat()).0)
        .collect();
    assert!(found.iter().any(|k| k == "knot"), "{found:?}");
    let (found, _, out) =
        kinds(&folder, &small("utk", &["--transform", "none", "--set", "eod-mask-loss=false"]));
    assert!(found.iter().all(|k| k == "text"), "{found:?}");
    for says in ["--transform none replaces its utk-80.", "--set eod-mask-loss=false replaces its true."] {
        assert!(out.stderr.contains(says), "{says}: {}", out.stderr);
    }
    // A document each; joined where that is asked for.
    for i in 0..40 {
        std::fs::write(folder.file(&format!("texts/short-{i}.txt")), format!("{i}: a rope, a yarn")).unwrap();
    }
    let (_, documents, _) = kinds(&folder, &small("sba", &["--ctx", "200"]));
    assert_eq!(documents, [0]);
    let (_, documents, out) = kinds(&folder, &small("sba", &["--ctx", "1900", "--set", "packing=pack"]));
    assert!(documents.len() > 1, "{documents:?}");
    assert!(out.stderr.contains("--set packing=pack replaces its truncate."), "{}", out.stderr);
    let more = ["--set", "upsample=fu:length=300,keep=0", "--set", "loss=longce"];
    let out = finetune(&folder, "lceg.gguf", &small("lceg", &more));
    assert!(out.json()["recipe"].to_string().contains("upsample=fu:length=4096,keep=0.1"));
    for says in [
        "--set upsample=fu:length=300,keep=0 replaces its fu:length=4096,keep=0.1.",
        "--set loss=longce:gamma=5 replaces its ce.",
        "loss longce:short=6,stride=1,gamma=5 at context 48",
    ] {
        assert!(out.stderr.contains(says), "{says}: {}", out.stderr);
    }
    let out = finetune(&folder, "ce.gguf", &small("longce", &["--set", "loss=ce", "--transform", "none"]));
    assert!(
        out.json()["steps"] == 2 && out.stderr.contains("--set loss=ce replaces its longce:gamma=5."),
        "{out:?}"
    );
    assert!(!out.stderr.contains("--transform none replaces"), "{}", out.stderr);
}

/// Both chunks of PoSE are of one document; what is too short for it is left out, and said.
#[test]
fn pose_takes_both_chunks_from_one_document() {
    let folder = Folder::new();
    let pose = ["--transform", "pose:factor=4", "--rope", "yarn:factor=4"];
    for i in 0..20 {
        std::fs::write(folder.file(&format!("texts/short-{i}.txt")), format!("{i}: a rope, a yarn")).unwrap();
    }
    for seed in ["1", "2", "3", "4"] {
        let (_, documents, out) = kinds(&folder, &[&pose[..], &["--seed", seed]].concat());
        assert!(documents.iter().all(|d| *d == 0), "{documents:?}");
        assert!(out.stderr.contains("training documents: they have fewer than the 49 tokens"), "{out:?}");
    }
    let (_, documents, out) = kinds(&folder, &[&pose[..], &["--set", "packing=long"]].concat());
    assert!(documents.iter().all(|d| *d == 0), "{out:?}");
    assert!(out.stderr.contains("they have fewer than the 241 tokens of a window"), "{out:?}");
    for i in 0..6 {
        std::fs::remove_file(folder.file(&format!("texts/{i}.txt"))).unwrap();
    }
    let out = finetune(&folder, "none.gguf", &[&pose[..], &["--set", "held-out=0"]].concat());
    let said = fails(&out, 1);
    assert!(
        said.contains("takes 49 tokens of one document: none of the 20 to train on has as many"),
        "{said}"
    );
    let out = finetune(&folder, "none.gguf", &small("pose", &["--set", "held-out=0"]));
    assert!(fails(&out, 1).contains("recipe pose sets it: --transform none turns it off"), "{out:?}");
    // Joined texts are enough.
    let joined = ["--transform", "pose:factor=4,join=true,text=2", "--rope", "yarn:factor=4", "--steps", "1"];
    assert_eq!(finetune(&folder, "joined.gguf", &joined).json()["steps"], 1);
}

/// Stages also take a recipe's data, and go on with it.
#[test]
fn stages_have_the_data_of_a_recipe() {
    let folder = Folder::new();
    let text = "[[stage]]\nctx = 24\nsteps = 2\n[[stage]]\nctx = 48\nsteps = 2\n";
    std::fs::write(folder.file("stages.toml"), text).unwrap();
    let stages = folder.path("stages.toml");
    let texts = folder.path("texts");
    let (model, output) = (folder.path("tiny.gguf"), folder.path("stages.gguf"));
    let run = |transform: &str, more: &[&str]| {
        let head =
            ["finetune", "-m", &model, "-d", &texts, "-o", &output, "--recipe", "utk", "--stages", &stages];
        let tail = [
            "--set", "batch=1", "--set", "warmup=1", "--ubatch", "20", "--device", "cpu", "-t", "1", "--json",
        ];
        run_in(folder.dir.path(), &[&head[..], &tail, &["--transform", transform], more].concat())
    };
    let out = run(KNOTS[1], &[]);
    assert_eq!(out.json()["stages"].as_array().map(Vec::len), Some(2), "{out:?}");
    let again = run(KNOTS[1], &["--resume"]);
    assert_eq!(again.stderr.matches("resuming after step 2").count(), 2, "{again:?}");
    let other = run(&KNOTS[1].replace("80", "30"), &["--resume"]);
    assert!(fails(&other, 1).contains("data-method: the run was started with utk [(0.8"), "{other:?}");
}

#[test]
fn what_makes_no_sense_beside_a_recipe_is_said() {
    let folder = Folder::new();
    let model = folder.path("tiny.gguf");
    for recipe in RECIPES {
        let head = ["finetune", "-m", &model, "--device", "cpu", "--plan-memory", "--json"];
        // The search for HARPE's bases takes half a minute.
        let bases: &[&str] = if recipe.name == "harpe" { &["--rope", "harpe:bases=uniform"] } else { &[] };
        let bases = size(bases, &[]);
        let plan = run(&[&head[..], &["--recipe", recipe.name, "--ctx", "512"], bases].concat()).json();
        assert_eq!(plan["ctx"], 512, "{}", recipe.name);
    }
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--recipe", "sba", "--transform", "utk:knots=#1"], 1, "knot token: expected 4, found 1"),
        (&["--recipe", "utk", "--set", "doc-mask=true"], 2, "--set doc-mask: --transform utk-80"),
        (
            &["--recipe", "utk", "--set", "eod-mask-loss=false"],
            2,
            "--set eod-mask-loss=false: --transform utk-80",
        ),
        (
            &["--recipe", "pose", "--set", "packing=pack"],
            2,
            "--set packing=pack: --transform pose:factor=64 takes each",
        ),
        (
            &["--recipe", "longce", "--set", "loss=longce:short=4096"],
            2,
            "the context, 48 tokens, found 4096 and 1024",
        ),
    ];
    for (more, code, says) in cases {
        let knots: &[&str] = if more.contains(&"utk") { &KNOTS } else { &[] };
        let out =
            finetune(&folder, "x.gguf", &[more, knots, &["--steps", "20", "--set", "batch=1"]].concat());
        let said = fails(&out, code);
        assert!(said.contains(says), "{more:?}: {said}");
    }
    assert!(!folder.file("x.gguf").exists());
}
