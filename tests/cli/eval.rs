//! `eval`, `perplexity --against`, `advise` and `study` from the outside: what they print, keep and refuse.

use ropewalk::DType;

use crate::common::program::{run, run_in, Output};
use crate::common::rewritten;
use crate::hub;
use crate::models::{model, ok, text_file};

fn on_model<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &["-m", model(), "--device", "cpu", "-t", "1", "-q"]].concat()
}

/// Fails with this code and nothing on stdout. Its message is one line, or clap's own with the usage below it, and contains
/// these.
#[track_caller]
pub(crate) fn refused(output: &Output, code: i32, holds: &[&str]) {
    assert!(output.code == code && output.stdout.is_empty(), "{output:?}");
    let is_claps = code == 2 && output.stderr.contains("'--help'");
    assert!(output.stderr.lines().count() == 1 || is_claps, "{output:?}");
    assert!(output.stderr.starts_with("error: "), "{output:?}");
    for text in holds {
        assert!(output.stderr.contains(text), "{text:?} is not in {output:?}");
    }
}

#[test]
fn tasks_are_listed_and_described() {
    let all = ok(run(&["eval", "--list"]));
    assert!(all.stdout.contains("  ruler ") && all.stdout.contains("  json_kv "), "{}", all.stdout);
    let one = ok(run(&["eval", "--list", "vt"])).stdout;
    assert!(one.contains("--set ruler=") && one.contains("samples   500"), "{one}");
    let json = run(&["eval", "--list", "ruler,vt", "--json"]).json();
    assert_eq!(json["results"].as_array().unwrap().len(), 13);
    refused(
        &run(&["eval", "--list", "rulr"]),
        2,
        &["unknown task `rulr` (did you mean `ruler`?)", "`ropewalk eval --list` shows them"],
    );
}

#[test]
fn samples_are_kept_and_not_asked_twice() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("samples.jsonl");
    let args = ["eval", "json_kv", "-l", "2048", "-n", "2", "--set", "depths=0/100", "--json", "--output"];
    let args = on_model(&[&args[..], &[kept.to_str().unwrap()]].concat());
    let first = run(&args).json();
    let row = &first["results"][0];
    assert_eq!(
        (&first["task"], &row["length"], &row["samples"]),
        (&"json_kv".into(), &2048.into(), &2.into())
    );
    for key in ["score", "ci_low", "ci_high", "tokens_per_s"] {
        assert!(row[key].is_number(), "{key}: {first}");
    }
    assert!(row["tokens_per_s"].as_f64().unwrap() > 0.0);
    let lines = std::fs::read_to_string(&kept).unwrap();
    assert_eq!(lines.lines().count(), 3, "a header and two samples");
    let again = run(&args).json();
    assert_eq!(again["results"][0]["tokens_per_s"], 0.0, "nothing was asked");
    assert_eq!(again["results"][0]["metrics"], row["metrics"]);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), lines);
    // Under another method they are asked as well, and compared with the first ones sample by sample.
    let both = run(&[&args[..], &["--rope", "plain", "--rope", "pi:factor=2"]].concat()).json();
    let ropes: Vec<&str> =
        both["results"].as_array().unwrap().iter().map(|r| r["rope"].as_str().unwrap()).collect();
    assert!(ropes[0] == "plain" && ropes[1].starts_with("pi:factor=2") && ropes.len() == 2, "{both}");
    assert_eq!((&both["task"], &both["results"][1]["task"]), (&"json_kv".into(), &"json_kv".into()));
    assert_eq!(both["differences"].as_array().unwrap().len(), 1, "{both}");
    assert_eq!(both["differences"][0]["samples"], 2);
    assert_eq!(std::fs::read_to_string(&kept).unwrap().lines().count(), 5);
}

#[test]
fn scores_are_drawn_by_length_and_depth() {
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map.svg");
    let args = ["eval", "json_kv", "-l", "1536,2048", "-n", "2", "--set", "depths=0/100", "--plot"];
    let out = ok(run(&on_model(&[&args[..], &[map.to_str().unwrap()]].concat())));
    assert!(out.stdout.contains("depth | 1536 2048"), "{}", out.stdout);
    let svg = std::fs::read_to_string(&map).unwrap();
    assert!(svg.contains("json_kv") && svg.contains("length, tokens"), "{svg}");
    // Under several methods a line for each, named as it was given, and a map of each in the report.
    let lines = dir.path().join("lines.svg");
    let two = [&args[..], &[lines.to_str().unwrap(), "--rope", "plain", "--rope", "pi:factor=2"]].concat();
    let out = ok(run(&on_model(&two)));
    assert_eq!(out.stdout.matches("depth | 1536 2048").count(), 2, "{}", out.stdout);
    assert!(out.stdout.contains("json_kv at 2048: pi:factor=2 minus plain: "), "{}", out.stdout);
    let svg = std::fs::read_to_string(&lines).unwrap();
    for text in ["json_kv,", "score, percent", "plain", "pi:factor=2"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    // Before anything is measured: no data are looked for.
    let short = ["eval", "hellaswag", "--data", "nowhere", "--plot", map.to_str().unwrap()];
    refused(&run(&on_model(&short)), 2, &["--plot", "--lengths"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().to_str().unwrap();
    let run = |args: &[&str]| run(&on_model(args));
    refused(&run(&["eval", "nosuch", "-l", "64"]), 2, &["unknown task `nosuch`; there are"]);
    refused(&run(&["eval", "niah", "-l", "64"]), 2, &["(did you mean ruler_niah, "]);
    refused(&run(&["eval", "vt"]), 2, &["vt: expected --lengths"]);
    refused(
        &run(&["eval", "vt", "-l", "2048", "--set", "shots=3"]),
        2,
        &["--set: unknown parameter `shots`", "ruler"],
    );
    refused(
        &run(&["eval", "vt", "-l", "2048", "--set", "shots"]),
        2,
        &["--set: expected key=value, found `shots`"],
    );
    refused(&run(&["eval", "json_kv", "-l", "2048", "--set", "depths=200"]), 1, &["json_kv", "depths"]);
    refused(&run(&["eval", "json_kv", "-l", "20"]), 1, &["json_kv at 20 tokens"]);
    let cwe = ["eval", "cwe", "-l", "2048", "--data", empty];
    refused(
        &run(&cwe),
        1,
        &[
            "cwe at 2048 tokens",
            "is missing: it is in the Python package wonderwords 3.0.1; `ropewalk pull ruler` fetches it",
        ],
    );
    std::fs::create_dir(dir.path().join("ruler")).unwrap();
    std::fs::write(dir.path().join("ruler/nounlist.txt"), "hemp\n").unwrap();
    refused(&run(&cwe), 1, &["nounlist.txt", "sha256"]);
    let notes = dir.path().join("notes.txt");
    std::fs::write(&notes, "my notes\n").unwrap();
    let out = ["eval", "json_kv", "-l", "2048", "--output", notes.to_str().unwrap()];
    refused(&run(&out), 1, &["notes.txt: exists and is not the record of an evaluation; use another name, or replace it with --force"]);
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "my notes\n");
}

#[test]
fn settings_are_compared_token_by_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = text_file(dir.path(), "a.txt", 300);
    let compare = |more: &[&str]| {
        let base =
            ["perplexity", "-m", model(), "-f", &file, "--ctx", "128", "--device", "cpu", "-t", "1", "-q"];
        run(&[&base[..], more].concat())
    };
    let row = |more: &[&str]| {
        let json = compare(&[more, &["--json"]].concat()).json();
        assert!(json["model"].is_string() && json["results"][0]["finished"] == true, "{json}");
        json["results"][0].clone()
    };
    let report = row(&["--kv", "f32", "--against", "kv=q4_0"]);
    let (kl, top) = (report["kl"]["mean"].as_f64().unwrap(), report["same_top"].as_f64().unwrap());
    assert!(kl > 0.0 && top > 0.0 && top <= 100.0, "{report}");
    assert!(report["kl"]["median"].as_f64() <= report["kl"]["max"].as_f64());
    let tokens: u64 =
        report["buckets"].as_array().unwrap().iter().map(|b| b["tokens"].as_u64().unwrap()).sum();
    assert_eq!(report["tokens"].as_u64(), Some(tokens));
    let f16 = row(&["--kv", "f32", "--against", "kv=f16"]);
    assert!(f16["kl"]["mean"].as_f64().unwrap() < kl, "a finer cache is nearer: {f16} {report}");
    let pi = ok(compare(&["--against", "rope=pi:factor=2"])).stdout;
    assert!(pi.contains("perplexity of b over a") && pi.contains("pi:factor=2"), "{pi}");
    let both = row(&["--against", "rope=pi:factor=2", "--against", "kv=q8_0"]);
    assert!(both["b"]["kv"] == "q8_0" && both["rope"].as_str().unwrap().starts_with("pi:factor=2"), "{both}");
    let against = |what: &str| compare(&["--against", what]);
    refused(&against("kv=f16"), 2, &["found the same as without it"]);
    refused(&against("kv=q9"), 2, &["expected kv=f32|f16", "found kv=q9"]);
    refused(&against("rope=yarm"), 2, &["yarm", "yarn"]);
    refused(&against("no-such-model"), 1, &["no-such-model"]);
    refused(&compare(&["--against", "kv=f32", "--rope", "pi", "--rope", "yarn"]), 2, &["one --rope"]);
    refused(&compare(&["--against", "kv=f32", "--stride", "8"]), 2, &["--against", "--stride"]);

    // A model with weights that are not numbers has no divergence.
    let nan = dir.path().join("nan.gguf");
    let file = gguf::File::open(model().as_ref()).unwrap();
    let name = "output_norm.weight";
    let tensor = file.tensor(name).unwrap();
    let bytes = f32::NAN.to_le_bytes().repeat(tensor.shape[0] as usize);
    rewritten(model().as_ref(), &nan, &[name], |out| {
        out.tensor_bytes(name, DType::F32, &tensor.shape, bytes).unwrap();
    });
    refused(&against(nan.to_str().unwrap()), 1, &["expected finite logits of both models, found NaN"]);
}

/// A haystack is read file by file, so an output in its folder would be read the next time.
#[test]
fn outputs_are_not_written_among_the_texts_of_a_haystack() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("books")).unwrap();
    text_file(&dir.path().join("books"), "a.txt", 300);
    for (haystack, code, said) in [
        ("haystack=books", 2, "expected a path apart from the files to read, found books"),
        ("haystack=", 1, "ropewalk pull"),
    ] {
        let args = ["eval", "needle_kamradt", "-l", "256", "-n", "1", "--data", "none", "--set", haystack];
        let args = on_model(&[&args[..], &["-o", "books/samples.jsonl"]].concat());
        refused(&run_in(dir.path(), &args), code, &[said]);
        assert_eq!(hub::names(&dir.path().join("books")), ["a.txt"]);
    }
}

#[test]
fn advice_ends_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = text_file(dir.path(), "a.txt", 3000);
    // A time that is over before the passkeys on any machine.
    let advise = |more: &[&str]| {
        let ropes = ["--rope", "plain", "--rope", "pi", "--minutes", "0.00001", "-f", &file];
        run(&on_model(&[&["advise"], &ropes[..], more].concat()))
    };
    let report = advise(&["--ctx", "1024", "--json"]).json();
    assert_eq!(report["results"].as_array().unwrap().len(), 2, "{report}");
    assert!(report["results"][0]["ppl_beyond"].as_f64() <= report["results"][1]["ppl_beyond"].as_f64());
    for row in report["results"].as_array().unwrap() {
        assert!(row["finished"] == true && row["task"] == "advise" && row["ctx"] == 1024, "{row}");
        assert!(row["accuracy"].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)), "{row}");
    }
    assert_eq!(report["samples"], 4, "what time allows, and four at least: {report}");
    let said = ok(advise(&["--ctx", "1024"])).stdout;
    assert!(
        said.contains("convert --rope") || said.contains("ropewalk finetune") || said.contains("as it is"),
        "{said}"
    );
    let hurried = [
        &["advise", "-m", model(), "--device", "cpu", "-t", "1", "--ctx", "1024", "-f", &file][..],
        &["--rope", "plain", "--rope", "pi", "--minutes", "0.00001"],
    ];
    let said = ok(run(&hurried.concat())).stderr;
    assert!(said.contains("2 methods at 1024 tokens need about"), "{said}");
    refused(&advise(&["--ctx", "64"]), 1, &["ctx 64", "no method is needed"]);
    refused(&advise(&["--ctx", "1024", "--minutes", "0"]), 2, &["--minutes"]);
}

#[test]
fn a_search_keeps_what_it_scored_and_ends_with_a_spec_to_use() {
    let dir = tempfile::tempdir().unwrap();
    let file = text_file(dir.path(), "a.txt", 3000);
    let out = dir.path().join("factors.json").display().to_string();
    let searched = |sizes: &str, more: &[&str]| {
        let search = format!("--search=population=4,parents=2,iterations=1,mutations=1,crossovers=1{sizes}");
        let args = ["advise", "-f", &file, "--ctx", "1024", "-o", &out, &search];
        run(&on_model(&[&args[..], more].concat()))
    };
    let search = |more: &[&str]| searched("", more);
    refused(&search(&["--minutes", "0"]), 2, &["--minutes"]);
    refused(
        &searched(",goal=words", &[]),
        2,
        &["--search: goal: expected perplexity or needle, found `words`"],
    );
    let part = searched(",max-evaluations=2", &["--json"]).json();
    assert_eq!((&part["evaluations"], &part["evaluations_total"]), (&2.into(), &6.into()), "{part}");
    refused(&search(&[]), 2, &["factors.json already exists", "--resume"]);
    let found = search(&["--resume", "--json"]).json();
    assert_eq!(found["evaluations"], 6, "{found}");
    let spec = found["rope"].as_str().unwrap();
    let said = ok(search(&["--resume"])).stdout;
    assert!(said.contains(spec) && said.contains("convert --llama-cpp --rope"), "{said}");
    let args = ["perplexity", "-f", &file, "--ctx", "1024", "--max-windows", "1", "--rope", spec, "--json"];
    let ppl = run(&on_model(&args)).json()["results"][0]["ppl"].as_f64().unwrap();
    let rows = found["results"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["finished"] == true && row["ctx"] == 1024), "{found}");
    assert!(rows[0]["rope"] == spec && rows[1]["rope"] != rows[2]["rope"], "{found}");
    let scored = found["results"][0]["ppl"].as_f64().unwrap();
    assert!((ppl / scored - 1.0).abs() < 1e-3, "{ppl} beside {scored}: the spec is what was scored");
}

const PLAN: &str = r#"
title = "Two methods"
lengths = [1024, 1536]
samples = 2
texts = ["texts"]
[[models]]
name = "tiny"
path = "MODEL"
[[methods]]
name = "plain"
spec = "plain"
[[methods]]
name = "wrong"
spec = "harpe:bases=10000/20000/30000/40000/50000"
[[tasks]]
name = "perplexity"
protocol = "window"
max_windows = 1
[[tasks]]
name = "json_kv"
options = { depths = "0/100" }
"#;

#[test]
fn a_study_is_measured_cut_up_and_put_together() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("texts")).unwrap();
    text_file(&dir.path().join("texts"), "a.txt", 3000);
    std::fs::write(dir.path().join("plan.toml"), PLAN.replace("MODEL", model())).unwrap();
    let study = |args: &[&str]| {
        run_in(dir.path(), &[&["study"], args, &["--device", "cpu", "-t", "1", "-q"]].concat())
    };
    let listed = study(&["plan.toml", "-o", "whole", "--plan", "--json"]);
    let problem = "plan.toml: 4 of 8 cells cannot be measured";
    assert!(listed.code == 1 && listed.stderr.contains(problem), "{listed:?}");
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!((&listed["cells"], &listed["done"]), (&8.into(), &0.into()), "{listed}");
    assert!(!dir.path().join("whole").exists(), "a listing leaves nothing");
    let whole = study(&["plan.toml", "-o", "whole", "--json"]).json();
    assert_eq!((&whole["done"], &whole["failed"], &whole["missing"]), (&4.into(), &4.into(), &0.into()));
    assert_eq!(whole["model"], "tiny");
    let rows = whole["results"].as_array().unwrap();
    assert_eq!(rows.len(), 8, "{whole}");
    for row in rows {
        let measured = row["method"] == "plain";
        let value = if row["task"] == "perplexity" { "ppl" } else { "score" };
        assert!([1024, 1536].iter().any(|n| row["length"] == *n) && row["rope"].is_string(), "{row}");
        assert_eq!(row["finished"], measured, "{row}");
        assert_eq!((row[value].is_number(), row["failed"].is_string()), (measured, !measured), "{row}");
    }
    let report = |name: &str| std::fs::read_to_string(dir.path().join(name).join("report.html")).unwrap();
    assert!(
        report("whole").contains("expected 5") || report("whole").contains("found 5"),
        "why a cell failed is said"
    );
    let again = study(&["plan.toml", "-o", "whole", "--json"]).json();
    assert_eq!(
        (&again["summary"]["known"], &again["summary"]["measured"]),
        (&4.into(), &0.into()),
        "{again}"
    );
    let units = study(&["plan.toml", "-o", "cut", "--units", "--json"]).json();
    assert!(!dir.path().join("cut").exists(), "a listing leaves nothing");
    let rows = units["units"].as_array().unwrap();
    // Two methods at two lengths. What cannot be measured costs nothing, and is a row of the report all the same.
    let costs: Vec<f64> = rows.iter().map(|row| row["cost"].as_f64().unwrap()).collect();
    assert!(costs.len() == 4 && costs[0] > 1.2 * costs[1] && costs[1] > 0.0, "{costs:?}");
    assert!(costs[2..] == [0.0, 0.0] && rows[3]["problems"].as_array().unwrap().len() == 2, "{units}");
    assert!(rows[0]["length"] == 1536 && rows[0]["bytes"].as_u64().unwrap() > 100_000, "{units}");
    for row in rows {
        let id = row["id"].as_str().unwrap();
        let done = study(&["plan.toml", "-o", "cut", "--unit", id, "--json"]).json();
        let part = format!("cut/parts/{id}");
        assert_eq!((&done["unit"], &done["part"]), (&row["id"], &part.as_str().into()), "{done}");
        assert_eq!(done["summary"]["cells"], row["cells"], "{done}");
        assert_eq!(hub::names(&dir.path().join(part).join("cells")).len(), 2);
    }
    ok(study(&["merge", "cut/parts", "-o", "cut"]));
    assert_eq!(report("cut"), report("whole"));
    let left = ok(study(&["plan.toml", "-o", "cut", "--units"])).stdout;
    assert_eq!(left.lines().collect::<Vec<_>>(), [&rows[2]["id"], &rows[3]["id"]]);
    refused(&study(&["plan.toml", "-o", "whole", "--unit", "0123"]), 2, &["--unit", "12 hexadecimal digits"]);
    refused(
        &study(&["plan.toml", "-o", "whole", "--unit", "0123456789ab", "--plan"]),
        2,
        &["cannot be used with"],
    );
    refused(
        &study(&["plan.toml", "-o", "whole", "--unit", "0123456789ab"]),
        1,
        &["plan.toml", "0123456789ab"],
    );
    std::fs::write(dir.path().join("other.toml"), PLAN.replace("Two", "Three").replace("MODEL", model()))
        .unwrap();
    let other = study(&["other.toml", "-o", "whole"]);
    assert!(other.code == 1 && other.stderr.lines().count() == 1, "{other:?}");
    refused(&study(&["no-plan.toml", "-o", "new"]), 1, &["no-plan.toml"]);
}
