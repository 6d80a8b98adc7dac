//! `study` with recipes: what is trained, kept and refused.

use std::path::Path;

#[cfg(unix)]
use crate::common::program::{command, finish};
use crate::common::program::{run_in, Output};
use crate::finetune::Folder;
use crate::hub;

/// A plan of perplexity under one rope, frozen and trained by a recipe of these words.
pub(crate) fn plan(words: &[&str]) -> String {
    format!(
        r#"title = "With a recipe"
lengths = [48, 64]
texts = ["texts/1.txt"]
models = [{{ name = "tiny", path = "tiny.gguf" }}]
tasks = [{{ name = "perplexity", protocol = "window", max_windows = 2 }}]
[[methods]]
name = "frozen"
spec = "pi:factor=2"
[[methods]]
name = "tuned"
spec = "pi:factor=2"
train = {{ args = {words:?}, data = ["texts"] }}
"#
    )
}

pub(crate) const WORDS: &[&str] =
    &["--steps", "2", "--ctx", "48", "--ubatch", "20", "--set", "held-out=2", "--lr", "0.01"];

pub(crate) fn study(folder: &Folder, args: &[&str]) -> Output {
    run_in(folder.dir.path(), &[&["study"], args, &["--device", "cpu", "-t", "1", "-q", "--json"]].concat())
}

pub(crate) fn with_plan(words: &[&str]) -> Folder {
    let folder = Folder::new();
    std::fs::write(folder.file("plan.toml"), plan(words)).unwrap();
    folder
}

fn names(folder: &Path, ending: &str) -> Vec<String> {
    hub::names(folder).into_iter().filter(|n| n.ends_with(ending)).collect()
}

#[test]
fn a_recipe_is_trained_and_its_adapter_measured() {
    let folder = with_plan(WORDS);
    let report = study(&folder, &["plan.toml", "-o", "whole"]).json();
    assert_eq!((&report["done"], &report["failed"]), (&4.into(), &0.into()), "{report}");
    let read = |name: &str| std::fs::read_to_string(folder.file(name)).unwrap();
    let markdown = read("whole/report.md");
    assert!(read("whole/report.html").contains("<svg"), "charts");
    let rows: Vec<Vec<&str>> = markdown
        .split("Every cell:")
        .nth(1)
        .unwrap()
        .lines()
        .filter(|l| l.starts_with("| tiny |"))
        .map(|l| l.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 4, "{markdown}");
    for row in &rows {
        assert!(row[6].parse::<f64>().is_ok(), "{row:?}");
        // The adapter in force is named, and changes the figure.
        assert_eq!(row[13] == "none", row[1] == "frozen", "{row:?}");
    }
    assert_ne!(rows[0][6], rows[2][6], "{rows:?}");
    assert!(markdown.contains("2 x 48") || markdown.contains("| 96 |"), "tokens seen: {markdown}");
    // One adapter for both lengths, of the steps that were asked for.
    let adapters = folder.file("whole/adapters");
    assert_eq!(names(&adapters, ".gguf").len(), 1);
    let log = names(&adapters, ".log.jsonl").pop().unwrap();
    let steps = std::fs::read_to_string(adapters.join(log)).unwrap();
    assert_eq!(steps.lines().filter(|l| l.contains("\"lr\"")).count(), 2, "{steps}");

    // Settings that measure do not train.
    let measured = study(&folder, &["plan.toml", "-o", "whole", "--kv", "q8_0", "--math", "f32"]).json();
    assert_eq!(measured["summary"]["measured"], 4, "{measured}");
    assert_eq!(names(&adapters, ".gguf").len(), 1);

    // The same rate in other words is the same study, and nothing is done again; another is another study.
    let same = ["--lr=1e-2", "--set", "held-out=2", "--ubatch=20", "-c", "48", "--steps=2"];
    std::fs::write(folder.file("plan.toml"), plan(&same)).unwrap();
    let again = study(&folder, &["plan.toml", "-o", "whole", "--kv", "q8_0", "--math", "f32"]).json();
    assert_eq!(
        (&again["summary"]["known"], &again["summary"]["measured"]),
        (&4.into(), &0.into()),
        "{again}"
    );
    std::fs::write(folder.file("plan.toml"), plan(&["--lr=2e-2", "--steps=2"])).unwrap();
    let other = study(&folder, &["plan.toml", "-o", "whole"]);
    assert!(other.code == 1 && other.stderr.contains("another methods"), "{other:?}");
}

#[test]
fn a_trained_method_is_one_unit() {
    let folder = with_plan(WORDS);
    let units = study(&folder, &["plan.toml", "-o", "out", "--units"]).json();
    let rows = units["units"].as_array().unwrap();
    // The training costs most: two steps of 48 tokens, forward and backward.
    let trained = &rows[0];
    assert!(rows.len() == 3 && trained["trains"] == true && trained["cells"] == 2, "{units}");
    assert_eq!((&trained["tokens"], &trained["length"]), (&(2 * 48 + 48 + 64).into(), &().into()), "{units}");
    let [first, second] = [0, 1].map(|i| rows[i]["bytes"].as_u64().unwrap());
    assert!(first >= second && second > 0, "{units}");
    for row in rows {
        let done = study(&folder, &["plan.toml", "-o", "out", "--unit", row["id"].as_str().unwrap()]).json();
        assert_eq!(done["summary"]["measured"], row["cells"], "{done}");
        let adapters = Path::new(done["part"].as_str().unwrap()).join("adapters");
        assert_eq!(
            names(&folder.dir.path().join(adapters), ".gguf").len(),
            usize::from(row["trains"] == true)
        );
    }
    let merged = study(&folder, &["merge", "out/parts", "-o", "out"]).json();
    assert_eq!((&merged["done"], &merged["missing"]), (&4.into(), &0.into()), "{merged}");
    study(&folder, &["plan.toml", "-o", "whole"]).json();
    for name in ["report.html", "report.md"] {
        let read = |out: &str| std::fs::read_to_string(folder.file(out).join(name)).unwrap();
        assert_eq!(read("out"), read("whole"));
    }
    // Nothing is left, in either folder.
    let units = study(&folder, &["plan.toml", "-o", "whole", "--units"]).json();
    assert!(units["done"] == 4 && units["cost"] == 0.0, "{units}");
}

/// What a scheduler sends when the time is up, or to make room: the training saves a checkpoint, and resumes from it.
#[cfg(unix)]
#[test]
fn a_unit_that_is_asked_to_stop_resumes() {
    use crate::common::process::{hang_up_as_usual, signal, wait_until};
    hang_up_as_usual();
    let words = [&WORDS[2..], &["--steps", "100000", "--set", "save-every=0"]].concat();
    let folder = with_plan(&words);
    let units = study(&folder, &["plan.toml", "-o", "out", "--units"]).json();
    let id = units["units"][0]["id"].as_str().unwrap();
    let adapters = folder.file(&format!("out/parts/{id}/adapters"));
    let steps = || {
        let log = names(&adapters, ".log.jsonl").pop();
        let log = log.and_then(|log| std::fs::read_to_string(adapters.join(log)).ok()).unwrap_or_default();
        log.lines().filter(|line| line.contains("\"lr\"")).count()
    };
    for (name, code) in [("-HUP", 129), ("-TERM", 143)] {
        let before = steps();
        let mut unit = command(&["study", "plan.toml", "-o", "out", "--unit", id]);
        unit.args(["--device", "cpu", "-t", "1", "-q"]).current_dir(folder.dir.path());
        let mut child = unit.spawn().unwrap();
        wait_until("it trains", || steps() > before);
        signal(child.id(), name);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        // The last checkpoint is of where it stopped.
        let saved = names(&adapters, ".checkpoints").pop().unwrap();
        let saved = hub::names(&adapters.join(saved)).pop().unwrap();
        assert_eq!(saved, format!("step-{:08}.safetensors", steps()));
    }
    assert!(hub::names(&folder.file(&format!("out/parts/{id}/cells"))).is_empty());
}

/// A large study has more parts than files may be open.
#[cfg(unix)]
#[test]
fn parts_are_opened_one_after_another() {
    let folder = with_plan(WORDS);
    let units = study(&folder, &["plan.toml", "-o", "out", "--units"]).json();
    let id = units["units"][2]["id"].as_str().unwrap();
    study(&folder, &["plan.toml", "-o", "out", "--unit", id]).json();
    let parts = folder.file("out/parts");
    for n in 0..100 {
        let part = parts.join(n.to_string());
        std::fs::create_dir_all(part.join("cells")).unwrap();
        let cell = Path::new("cells").join(hub::names(&parts.join(id).join("cells")).pop().unwrap());
        for file in [Path::new("plan.toml"), &cell] {
            std::fs::copy(parts.join(id).join(file), part.join(file)).unwrap();
        }
    }
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", "ulimit -n 40 && exec \"$0\" study merge out/parts -o out --json"]);
    shell.arg(env!("CARGO_BIN_EXE_ropewalk")).current_dir(folder.dir.path());
    let merged = finish(shell).json();
    assert_eq!((&merged["done"], &merged["missing"]), (&1.into(), &3.into()), "{merged}");
}

/// The second run finds the checkpoints of a first one that got half as far, as if it had been killed.
#[test]
fn training_goes_on_from_its_checkpoint() {
    let words = [WORDS, &["--set", "save-every=1"]].concat();
    let folder = with_plan(&words);
    study(&folder, &["plan.toml", "-o", "whole"]).json();
    let adapters = folder.file("whole/adapters");
    let adapter = adapters.join(names(&adapters, ".gguf").pop().unwrap());
    let bytes = std::fs::read(&adapter).unwrap();
    // As after the first of two steps.
    let checkpoints = adapter.with_extension("checkpoints");
    let last = names(&checkpoints, ".safetensors").pop().unwrap();
    assert_eq!(last, "step-00000002.safetensors");
    std::fs::remove_file(checkpoints.join(last)).unwrap();
    std::fs::remove_file(&adapter).unwrap();
    std::fs::remove_dir_all(folder.file("whole/cells")).unwrap();
    let again = study(&folder, &["plan.toml", "-o", "whole"]).json();
    assert_eq!((&again["done"], &again["failed"]), (&4.into(), &0.into()), "{again}");
    assert_eq!(std::fs::read(&adapter).unwrap(), bytes);
}

#[test]
fn a_listing_writes_nothing() {
    let folder = with_plan(WORDS);
    let out = folder.file("out");
    let done = || study(&folder, &["plan.toml", "-o", "out", "--plan"]).json()["done"].as_u64().unwrap();
    assert!(done() == 0 && !out.exists());
    std::fs::create_dir(&out).unwrap();
    assert_eq!((done(), hub::names(&out)), (0, Vec::new()));
    study(&folder, &["plan.toml", "-o", "out"]).json();
    std::fs::remove_dir_all(out.join("adapters")).unwrap();
    let names = hub::names(&out);
    assert_eq!((done(), hub::names(&out)), (4, names));
}

/// For launchers that send a plan to a machine without it.
#[test]
fn a_plan_from_stdin_is_that_of_the_working_directory() {
    let folder = with_plan(WORDS);
    let units = study(&folder, &["plan.toml", "-o", "out", "--units"]).json();
    let frozen = units["units"].as_array().unwrap().iter().find(|unit| unit["trains"] == false).unwrap();
    let id = frozen["id"].as_str().unwrap();
    let elsewhere = folder.file("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let from_stdin = |text: &[u8]| {
        std::fs::write(elsewhere.join("text"), text).unwrap();
        let args = ["study", "-", "-o", "out", "--unit", id, "--device", "cpu", "-t", "1", "-q", "--json"];
        let mut command = command(&args);
        let stdin = std::fs::File::open(elsewhere.join("text")).unwrap();
        command.current_dir(folder.dir.path()).stdin(stdin);
        finish(command)
    };
    let text = std::fs::read(folder.file("plan.toml")).unwrap();
    assert_eq!(from_stdin(&text).json()["summary"]["measured"], 1);
    // It is the same study, and the same cell.
    let again = study(&folder, &["plan.toml", "-o", "out", "--unit", id]).json();
    assert_eq!(
        (&again["summary"]["known"], &again["summary"]["measured"]),
        (&1.into(), &0.into()),
        "{again}"
    );
    let long = vec![b' '; 2 << 20];
    for (text, what) in [(&b"title = 3"[..], "stdin: line 1: "), (&long[..], "stdin: expected")] {
        let out = from_stdin(text);
        assert!(out.code == 1 && out.stderr.contains(what), "{out:?}");
    }
}

/// An earlier version began neither samples nor logs with a header.
#[test]
fn force_replaces_records_of_an_earlier_version() {
    let folder = with_plan(WORDS);
    let texts = r#"{ name = "perplexity", protocol = "window", max_windows = 2 }"#;
    let samples = r#"{ name = "json_kv", samples = 1, options = { depths = "0/100" } }"#;
    let text = plan(WORDS).replace("[48, 64]", "[2048]").replace(texts, samples);
    std::fs::write(folder.file("plan.toml"), text).unwrap();
    // Only a path names a folder: depths do not.
    std::fs::create_dir_all(folder.file("0/100")).unwrap();
    let counts = |more: &[&str]| {
        let report = study(&folder, &[&["plan.toml", "-o", "out"], more].concat()).json();
        (report["done"].as_u64().unwrap(), report["failed"].as_u64().unwrap())
    };
    assert_eq!(counts(&[]), (2, 0));
    let adapters = folder.file("out/adapters");
    let adapter = adapters.join(names(&adapters, ".gguf").pop().unwrap());
    let log = adapter.with_extension("log.jsonl");
    let all = hub::names(&folder.file("out/samples"));
    let mut records: Vec<_> = all.iter().map(|name| folder.file("out/samples").join(name)).collect();
    assert_eq!(records.len(), 2);
    records.push(log.clone());
    for path in &records {
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::write(path, text.split_once('\n').unwrap().1).unwrap();
    }
    std::fs::remove_dir_all(folder.file("out/cells")).unwrap();
    std::fs::remove_dir_all(adapter.with_extension("checkpoints")).unwrap();
    std::fs::remove_file(&adapter).unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let before: Vec<String> = records.iter().map(|path| read(path)).collect();
    assert_eq!(counts(&[]), (0, 2));
    assert!(records.iter().zip(&before).all(|(path, text)| read(path) == *text));
    let report = read(&folder.file("out/report.html"));
    for why in [
        "is not the record of an evaluation; delete it, or replace it with --force",
        "is not the log of a training run; delete it, or replace it with --force",
    ] {
        assert!(report.contains(why), "{report}");
    }
    assert_eq!(counts(&["--force"]), (2, 0));
    assert!(records.iter().all(|path| read(path).starts_with("{\"ropewalk\":")));
    // Samples of this version are gone on with, also by force: one of another name stays.
    std::fs::remove_dir_all(folder.file("out/cells")).unwrap();
    let known = read(&records[0]);
    let other = known.lines().nth(1).unwrap().replacen("\"id\":\"", "\"id\":\"other-", 1) + "\n";
    assert!(!known.contains(&other));
    std::fs::write(&records[0], known.clone() + &other).unwrap();
    assert_eq!(counts(&["--force"]), (2, 0));
    assert_eq!(read(&records[0]), known + &other);
}

/// Before the methods are trained, which can take hours.
#[test]
fn what_a_task_rejects_is_a_problem_of_the_plan() {
    let task = r#"name = "perplexity", protocol = "window", max_windows = 2"#;
    for (tasks, problem) in [
        (r#"name = "perplexity", protocol = "windows""#, "unknown protocol "),
        (r#"name = "passkey", lengths = [700], options = { depth = "0/50" }"#, "from 0 to 1, found"),
        (r#"name = "needle_lceg", lengths = [700], options = { haystack = "none" }"#, "none"),
    ] {
        let folder = Folder::new();
        std::fs::write(folder.file("plan.toml"), plan(WORDS).replace(task, tasks)).unwrap();
        let out = study(&folder, &["plan.toml", "-o", "out", "--plan"]);
        assert!(out.code == 1 && out.stdout.contains(problem), "{out:?}");
        assert!(!folder.file("out").exists());
    }
}

/// As the depths of other tasks are, which share its maps.
#[test]
fn depths_of_passkeys_are_in_percent() {
    let folder = Folder::new();
    let tasks = r#"name = "passkey", lengths = [700], samples = 1, options = { depth = "start/0.07/1" }"#;
    let window = r#"name = "perplexity", protocol = "window", max_windows = 2"#;
    let frozen = plan(WORDS).split("[[methods]]\nname = \"tuned\"").next().unwrap().replace(window, tasks);
    std::fs::write(folder.file("plan.toml"), frozen).unwrap();
    let report = study(&folder, &["plan.toml", "-o", "out"]).json();
    assert_eq!((&report["done"], &report["failed"]), (&1.into(), &0.into()), "{report}");
    let cells = folder.file("out/cells");
    let cell = names(&cells, ".json").pop().unwrap();
    let cell: serde_json::Value = serde_json::from_slice(&std::fs::read(cells.join(cell)).unwrap()).unwrap();
    let text = cell.to_string();
    for value in ["0", "7", "100"] {
        assert!(text.contains(&format!("\"value\":\"{value}\"")), "{text}");
    }
}

#[test]
fn a_plan_names_no_files_to_write() {
    // recipes.rs tries all options and settings.
    for words in [&["--set", "log=thesis.tex"], &["--output", "thesis.tex"], &["--rope", "yarn:factor=2"]] {
        let folder = with_plan(words);
        std::fs::write(folder.file("thesis.tex"), "years of work").unwrap();
        for mode in [&[][..], &["--plan"]] {
            let out = study(&folder, &[&["plan.toml", "-o", "out"], mode].concat());
            assert!(out.code == 1 && out.stderr.lines().count() == 1, "{out:?}");
            assert!(out.stderr.contains("plan.toml: line 12: args: "), "{out:?}");
            assert!(!folder.file("out").exists(), "{words:?}");
        }
        assert_eq!(std::fs::read_to_string(folder.file("thesis.tex")).unwrap(), "years of work");
    }
    // What only the model can tell is a cell that failed, with its cause.
    let folder = with_plan(&["--steps", "2", "--ctx", "48", "--set", "held-out=2", "--targets", "nose"]);
    let report = study(&folder, &["plan.toml", "-o", "out"]).json();
    assert_eq!((&report["done"], &report["failed"]), (&2.into(), &2.into()), "{report}");
    let html = std::fs::read_to_string(folder.file("out/report.html")).unwrap();
    assert!(
        html.contains("training: ") && html.contains("nose") && !html.contains("try &#39;--help&#39;"),
        "{html}"
    );
}

#[cfg(unix)]
#[test]
fn links_in_a_folder_are_not_trained_into() {
    let folder = with_plan(WORDS);
    study(&folder, &["plan.toml", "-o", "out"]).json();
    let adapters = folder.file("out/adapters");
    let adapter = adapters.join(names(&adapters, ".gguf").pop().unwrap());
    let private = folder.file("private.gguf");
    std::fs::write(&private, "PRIVATE").unwrap();
    let again = |put: &dyn Fn()| {
        std::fs::remove_dir_all(&adapters).unwrap();
        std::fs::remove_dir_all(folder.file("out/cells")).unwrap();
        std::fs::create_dir(&adapters).unwrap();
        put();
        let report = study(&folder, &["plan.toml", "-o", "out"]).json();
        assert_eq!((&report["done"], &report["failed"]), (&2.into(), &2.into()), "{report}");
        assert!(std::fs::read_to_string(folder.file("out/report.html")).unwrap().contains("symbolic link"));
        assert_eq!(std::fs::read(&private).unwrap(), b"PRIVATE");
    };
    for ending in ["gguf", "checkpoints", "log.jsonl", "loss.svg"] {
        again(&|| std::os::unix::fs::symlink(&private, adapter.with_extension(ending)).unwrap());
    }
}

/// Texts that an option of a task names are part of a result.
#[test]
fn another_background_is_measured_again() {
    let folder = Folder::new();
    let task = r#"{ name = "babilong_qa1", samples = 1, options = { background = "book.txt" } }"#;
    let whole = plan(WORDS).replace("[48, 64]", "[4000]");
    let text = whole.rsplit_once("[[methods]]").unwrap().0;
    let text = text.replace(r#"{ name = "perplexity", protocol = "window", max_windows = 2 }"#, task);
    std::fs::write(folder.file("plan.toml"), text).unwrap();
    let measured = || study(&folder, &["plan.toml", "-o", "out"]).json()["summary"]["measured"].clone();
    for sentence in ["The rope walks on. ", "The moon is up. "] {
        std::fs::write(folder.file("book.txt"), sentence.repeat(600)).unwrap();
        assert_eq!([measured(), measured()], [1, 0], "{sentence}");
    }
}

/// A result counts only under the same rounding, and methods are planned for the context of a task.
#[test]
fn rounding_and_a_context_change_results() {
    let folder = Folder::new();
    let whole = plan(WORDS).replace("pi:factor=2", "pi");
    let frozen = whole.rsplit_once("[[methods]]").unwrap().0;
    let measured = |ctx: &str, out: &str, more: &[&str]| {
        std::fs::write(folder.file("plan.toml"), frozen.replace("windows = 2", &format!("windows = 2{ctx}")))
            .unwrap();
        let report = study(&folder, &[&["plan.toml", "-o", out], more].concat()).json();
        let markdown = std::fs::read_to_string(folder.file(out).join("report.md")).unwrap();
        let row = markdown.lines().rfind(|l| l.starts_with("| tiny | frozen |")).unwrap();
        let perplexity: f64 = row.split(" | ").nth(6).unwrap().trim().parse().unwrap();
        (report["summary"]["measured"].as_u64().unwrap(), perplexity)
    };
    let (n, short) = measured("", "out", &[]);
    assert_eq!(n, 2);
    assert_eq!(measured("", "out", &[]).0, 0);
    assert_eq!(measured("", "out", &["--math", "f32"]).0, 2);
    assert_eq!(measured("", "out", &["--math", "f32"]).0, 0);
    let (n, long) = measured(", ctx = 65536", "long", &[]);
    assert!(n == 2 && long != short, "{n} {long} {short}");
}
