//! Every option that takes a path, with each thing there that is no such file: one line that names it, in time, without
//! waiting for a writer, reading without an end, or removing what is there.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::commands::ended;
use crate::common::program::Output;
use crate::{common, small_model};

/// A thing, and how it is put at a path.
type Thing = (&'static str, fn(&Path));

const DIRECTORY: &str = "a directory";
const HUGE: &str = "a huge file";
const THINGS: [Thing; 6] = [
    ("a pipe", |at| assert!(std::process::Command::new("mkfifo").arg(at).status().unwrap().success())),
    ("a device", |at| symlink("/dev/zero", at).unwrap()),
    (DIRECTORY, |at| fs::create_dir(at).unwrap()),
    ("a socket", |at| drop(std::os::unix::net::UnixListener::bind(at).unwrap())),
    ("a link to nothing", |at| symlink("nowhere", at).unwrap()),
    // Takes no room on the disk.
    (HUGE, |at| fs::File::create(at).unwrap().set_len(16 << 30).unwrap()),
];

/// An option, and a call with it.
struct Row {
    /// Command and option as in the reference, or the name of its argument; after a colon, one of several meanings.
    option: &'static str,
    /// Where the thing is put in the folder that the call is made in.
    at: &'static str,
    /// `AT` is that place; `MODEL`, `LORA`, `BASE`, and `PEFT` are sound files elsewhere, and `WORDS` and `TRAIN` more options.
    line: &'static str,
    /// Things that are valid there.
    valid: &'static [&'static str],
}

const fn row(option: &'static str, at: &'static str, line: &'static str) -> Row {
    Row { option, at, line, valid: &[] }
}

/// An output, or a text. A huge file is like any other foreign file, which `tests/cli/outputs.rs` has, or a long text.
const fn out(option: &'static str, at: &'static str, line: &'static str) -> Row {
    Row { option, at, line, valid: &[HUGE] }
}

/// An output that is a directory.
const fn dir(option: &'static str, at: &'static str, line: &'static str) -> Row {
    Row { option, at, line, valid: &[DIRECTORY] }
}

const ROWS: &[Row] = &[
    row("run --model", "odd.gguf", "run -q -m AT -p hi -n 1"),
    row("run --file", "odd.txt", "run -q -m MODEL -f AT -n 1"),
    row("run --system", "odd.txt", "run -q -m MODEL -p hi -n 1 --chat --system @AT"),
    row("run --template", "odd.jinja", "run -q -m MODEL -p hi -n 1 --chat --template AT"),
    row("run --lora", "odd.gguf", "run -q -m MODEL -p hi -n 1 --lora AT"),
    row("chat --model", "odd.gguf", "chat -q -m AT"),
    row("chat --system", "odd.txt", "chat -q -m MODEL --ctx 64 --system @AT"),
    row("chat --template", "odd.jinja", "chat -q -m MODEL --ctx 64 --template AT"),
    row("chat --lora", "odd.gguf", "chat -q -m MODEL --ctx 64 --lora AT"),
    row("perplexity --model", "odd.gguf", "perplexity -q -m AT WORDS"),
    row("perplexity --file", "odd.txt", "perplexity -q -m MODEL -f AT --ctx 32"),
    row("perplexity --lora", "odd.gguf", "perplexity -q -m MODEL WORDS --lora AT"),
    row("perplexity --against", "odd.gguf", "perplexity -q -m MODEL WORDS --against AT"),
    row("perplexity --against: an adapter", "odd.gguf", "perplexity -q -m MODEL WORDS --against lora=AT"),
    out("perplexity --plot", "odd.svg", "perplexity -q -m MODEL WORDS --plot AT"),
    row("eval --model", "odd.gguf", "eval passkey -q -m AT -l 256 -n 1"),
    row("eval --template", "odd.jinja", "eval passkey -q -m MODEL -l 256 -n 1 --template AT"),
    row("eval --lora", "odd.gguf", "eval passkey -q -m MODEL -l 256 -n 1 --lora AT"),
    row("eval --data", "odd", "eval longbench_qasper -q -m MODEL -l 2048 -n 1 --data AT"),
    row(
        "eval --data: a file in it",
        "longbench/qasper.jsonl",
        "eval longbench_qasper -q -m MODEL -l 2048 -n 1 --data .",
    ),
    // No more of a long text is read than is used.
    out("eval --set: haystack", "odd.txt", "eval needle_kamradt -q -m MODEL -l 2048 -n 1 --set haystack=AT"),
    row("eval --output", "odd.jsonl", "eval passkey -q -m MODEL -l 256 -n 1 -o AT"),
    out("eval --plot", "odd.svg", "eval passkey -q -m MODEL -l 256 -n 1 --plot AT"),
    row("advise --model", "odd.gguf", "advise -q -m AT -f words.txt --ctx 64"),
    row("advise --file", "odd.txt", "advise -q -m MODEL -f AT --ctx 64"),
    row("advise --lora", "odd.gguf", "advise -q -m MODEL -f words.txt --ctx 64 --lora AT"),
    out("advise --output", "odd.json", "advise -q -m MODEL -f words.txt --ctx 64 --search -o AT"),
    row("study PLAN | merge DIR", "odd.toml", "study AT -o out -q"),
    row("study PLAN | merge DIR: a part", "odd", "study merge AT -o out -q"),
    dir("study PLAN | merge DIR: in parts", "parts/odd", "study merge parts -o out -q"),
    dir("study --output", "odd", "study plan.toml -o AT -q --device cpu -t 1"),
    row("serve --model", "odd.gguf", "serve -q -m AT --port 0"),
    row("serve --template", "odd.jinja", "serve -q -m MODEL --port 0 --template AT"),
    row("serve --lora", "odd.gguf", "serve -q -m MODEL --port 0 --lora AT"),
    row("serve --adapter", "odd.gguf", "serve -q -m MODEL --port 0 --adapter odd=AT"),
    row("serve --api-key-file", "odd.txt", "serve -q -m MODEL --port 0 --api-key-file AT"),
    dir("serve --prefix-dir", "odd", "serve -q -m MODEL --port 0 --prefix-dir AT"),
    row("bench --model", "odd.gguf", "bench -q -m AT -p 8 -n 1"),
    row("bench --lora", "odd.gguf", "bench -q -m MODEL -p 8 -n 1 --lora AT"),
    row("finetune --model", "odd.gguf", "finetune -m AT -d words.txt TRAIN"),
    row("finetune --lora", "odd.gguf", "finetune -m MODEL -d words.txt --lora AT TRAIN"),
    row("finetune --data", "odd", "finetune -m MODEL -d AT TRAIN"),
    row(
        "finetune --template",
        "odd.jinja",
        "finetune -q -m MODEL -d words.txt --chat --template AT --device cpu -t 1 -o out.gguf",
    ),
    row(
        "finetune --stages",
        "odd.toml",
        "finetune -q -m MODEL -d words.txt --stages AT --device cpu -t 1 -o out.gguf",
    ),
    out("finetune --output", "odd.gguf", "finetune -q -m MODEL -d words.txt --ctx 32 --steps 1 -o AT"),
    out("finetune --plot", "odd.svg", "finetune -m MODEL -d words.txt --plot AT TRAIN"),
    out("finetune --set log", "odd.jsonl", "finetune -m MODEL -d words.txt --set log=AT TRAIN"),
    out("finetune --set cache", "odd.tokens", "finetune -m MODEL -d words.txt --set cache=AT TRAIN"),
    dir("finetune --set checkpoints", "odd", "finetune -m MODEL -d words.txt --set checkpoints=AT TRAIN"),
    row("rope --model", "odd.gguf", "rope yarn -m AT --ctx 4096 -q"),
    out("rope --plot", "odd.svg", "rope pi:factor=2 -m MODEL --plot AT -q"),
    out("rope --map", "odd.svg", "rope self-extend:group=4 -m MODEL --map AT -q"),
    row("inspect FILE", "odd.gguf", "inspect AT -q"),
    row("inspect --file", "odd.txt", "inspect MODEL -q --ctx 32 -f AT --map"),
    row("inspect --against", "odd.gguf", "inspect MODEL -q WORDS --against AT --map distance=8"),
    row(
        "inspect --against: an adapter",
        "odd.gguf",
        "inspect MODEL -q WORDS --against lora=AT --map distance=8",
    ),
    out("inspect --plot", "odd.svg", "inspect MODEL -q WORDS --plot AT --map"),
    row("inspect --lora", "odd.gguf", "inspect MODEL -q WORDS --lora AT --map"),
    row("convert IN", "odd", "convert AT -o out.gguf -q"),
    row(
        "convert IN: a template in it",
        "checkpoint/additional_chat_templates/x.jinja",
        "convert checkpoint --pre gpt-2 -o out.gguf -q",
    ),
    row(
        "convert IN: settings of an adapter",
        "adapter/adapter_config.json",
        "convert adapter -m BASE -o out.gguf -q",
    ),
    out("convert --output", "odd.gguf", "convert MODEL -o AT -q"),
    row("convert --lora", "odd.gguf", "convert MODEL --lora AT -o out.gguf -q"),
    row("convert --imatrix", "odd.dat", "convert MODEL --type q4_k_m --imatrix AT -o out.gguf -q"),
    row("convert --imatrix-from", "odd.txt", "convert MODEL --imatrix-from AT --ctx 32 -o out.gguf -q"),
    row("convert --model", "odd.gguf", "convert PEFT -m AT -o out.gguf -q"),
    dir("convert --to-peft", "odd", "convert LORA -m BASE --to-peft AT -q"),
    // Whether a directory can be filled is known after the download.
    dir("pull --dir", "odd", "pull hf:rope/walk/model.gguf --dir AT -q"),
    row("pull --manifest", "odd.json", "pull --list --manifest AT -q"),
];

/// What `WORDS` and `TRAIN` stand for.
const WORDS: &str = "-f words.txt --ctx 32";
const TRAIN: &str = "--ctx 32 --steps 1 --set held-out=0 --device cpu -t 1 -q -o out.gguf";

/// Names of values in the reference that are no paths.
#[rustfmt::skip]
const NO_PATHS: &[&str] = &[
    "N", "N,...", "TYPE", "DEVICE", "ADDRESS", "ORIGIN", "KIND", "SPEC", "T", "K", "P", "S", "NAME", "NAME,...", "WHETHER", "KEY=VALUE,...",
    "ID", "ENGINE", "X", "A", "R", "SIZE", "HEX", "ORG/REPO", "SHAPE", "PATTERN=TYPE", "TASK,",
    "SBATCH-OPTION",
    "NAME|hf:ORG/REPO[/FILE",
];
/// Options whose values are texts themselves, or names below a directory, which `tests/cli/pull_planted.rs` is about.
const NO_PATH_OPTIONS: &[&str] = &["run --prompt", "run --stop", "pull --as"];

/// The options of the reference that take paths, and the settings of `finetune` that do.
fn documented() -> HashSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/reference.md");
    let page = fs::read_to_string(page).unwrap();
    let (mut command, mut out, mut files) = ("", HashSet::new(), false);
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## ropewalk ") {
            command = name;
        }
        let text = line.trim_start();
        files = text == "Files:" || files && !text.is_empty();
        if let (true, Some((key, about))) = (files, text.split_once(": ")) {
            if about.contains("file") || about.contains("directory") {
                out.insert(format!("{command} --set {key}"));
            }
        }
        let (name, value) = if text.starts_with('-') && text.contains('<') {
            let name: String = text[text.find("--").unwrap()..]
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
                .collect();
            (name, &text[text.find('<').unwrap() + 1..text.rfind('>').unwrap()])
        } else if line.starts_with("  <") || line.starts_with("  [") {
            let value = text.trim_matches(|c: char| "<>[].".contains(c));
            (value.to_owned(), value)
        } else {
            continue;
        };
        let option = format!("{command} {name}");
        if !NO_PATHS.contains(&value) && !NO_PATH_OPTIONS.contains(&option.as_str()) {
            out.insert(option);
        }
    }
    out
}

#[test]
fn every_option_of_the_reference_that_takes_a_path_has_a_row() {
    let rows: HashSet<String> =
        ROWS.iter().map(|row| row.option.split(": ").next().unwrap().to_owned()).collect();
    let documented = documented();
    let missing: Vec<_> = documented.difference(&rows).collect();
    assert!(
        missing.is_empty(),
        "add rows for these, or say in NO_PATHS that they take no paths: {missing:?}"
    );
    // Options that take a path only as a part of their value are no paths in the reference.
    let gone: Vec<_> = rows.difference(&documented).filter(|row| *row != "eval --set").collect();
    assert!(gone.is_empty(), "the reference has none of these: {gone:?}");
    assert!(documented.len() > 40, "{documented:?}");
}

fn peft() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("convert/tests/fixtures/peft/llama")
}

/// An adapter of the fixture's base.
fn lora() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = common::scratch("paths-lora.gguf");
        convert::peft::from_peft(
            peft(),
            peft().join("base.gguf"),
            &path,
            &ropewalk::control::Control::default(),
        )
        .unwrap();
        path
    })
}

/// A folder with a text, a plan, a checkpoint, and an adapter without its settings.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/import/tests/checkpoints");
    let [checkpoint, adapter] = ["checkpoint", "adapter"].map(|name| dir.path().join(name));
    for folder in [&checkpoint, &adapter] {
        fs::create_dir(folder).unwrap();
    }
    for from in ["llama", "tokenizers/bpe-template"] {
        for entry in fs::read_dir(root.join(from)).unwrap().map(Result::unwrap) {
            fs::copy(entry.path(), checkpoint.join(entry.file_name())).unwrap();
        }
    }
    let weights = "adapter_model.safetensors";
    fs::copy(peft().join(weights), adapter.join(weights)).unwrap();
    let words = "the rope is long and the walk is longer than any other ".repeat(40);
    fs::write(dir.path().join("words.txt"), words).unwrap();
    plan(dir.path(), small_model().to_str().unwrap(), "words.txt");
    dir
}

/// Writes a plan of one cell.
fn plan(dir: &Path, model: &str, text: &str) {
    let plan = format!(
        r#"title = "One cell"
lengths = [48]
texts = ["{text}"]
models = [{{ name = "tiny", path = "{model}" }}]
tasks = [{{ name = "perplexity", protocol = "window", max_windows = 1 }}]
[[methods]]
name = "pi"
spec = "pi:factor=2"
"#
    );
    fs::write(dir.join("plan.toml"), plan).unwrap();
}

/// Makes the call in a folder.
fn call(dir: &Path, line: &str, at: &str) -> Output {
    let (base, peft) = (peft().join("base.gguf"), peft());
    let words: Vec<String> = line
        .replace("TRAIN", TRAIN)
        .replace("WORDS", WORDS)
        .split(' ')
        .map(|word| match word {
            "MODEL" => small_model().display().to_string(),
            "LORA" => lora().display().to_string(),
            "BASE" => base.display().to_string(),
            "PEFT" => peft.display().to_string(),
            word => word.replace("AT", at),
        })
        .collect();
    let mut command = common::program::command(&words.iter().map(String::as_str).collect::<Vec<_>>());
    // Nothing is downloaded.
    command.env("HF_ENDPOINT", "http://127.0.0.1:9").current_dir(dir);
    ended(&command, b"")
}

/// What is wrong with the end of a call about a thing at this path.
fn fault(ended: &Output, at: &str) -> Option<String> {
    let (errors, others): (Vec<_>, Vec<_>) =
        ended.stderr.lines().filter(|l| !l.starts_with("note: ")).partition(|l| l.starts_with("error: "));
    let refused = matches!(ended.code, 1 | 2) && errors.len() == 1 && others.is_empty();
    let sound = refused && errors[0].contains(at) && !ended.stderr.contains("panicked");
    (!sound).then(|| format!("{ended:?}"))
}

/// Puts a thing at a place, makes the call, and says what is wrong.
fn checked(row: &Row, (what, put): Thing) -> Option<String> {
    let dir = folder();
    let at = dir.path().join(row.at);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    put(&at);
    let kind = || fs::symlink_metadata(&at).map(|found| found.file_type()).ok();
    let before = kind();
    let ended = call(dir.path(), row.line, row.at);
    let gone = (kind() != before).then(|| "what was there is gone".to_owned());
    let begun = row.option.starts_with("convert IN") && dir.path().join("out.gguf").exists();
    let begun = begun.then(|| "an output is there".to_owned());
    fault(&ended, row.at).or(gone).or(begun).map(|fault| format!("{}: {what}: {fault}", row.option))
}

#[test]
fn what_is_no_such_file_is_refused_by_every_option() {
    let cases: Vec<(&Row, Thing)> = ROWS
        .iter()
        .flat_map(|row| {
            THINGS.iter().filter(move |thing| !row.valid.contains(&thing.0)).map(move |t| (row, *t))
        })
        .collect();
    assert!(cases.len() < 400, "{} calls take too long", cases.len());
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((row, thing)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = checked(row, *thing);
                    faults.lock().unwrap().extend(found);
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), cases.len(), faults.join("\n"));
}

/// Files that a plan names: a cell that fails is a row of the report.
#[test]
fn files_that_a_plan_names() {
    let model = small_model().to_str().unwrap();
    for (what, put) in THINGS {
        for (model, text) in [("odd", "words.txt"), (model, "odd")] {
            let dir = folder();
            plan(dir.path(), model, text);
            put(&dir.path().join("odd"));
            let ended = call(dir.path(), "study plan.toml -o out -q --json --device cpu -t 1", "");
            assert_eq!(ended.code, 0, "{what}: {ended:?}");
            let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
            let why = report["results"][0]["failed"].as_str().unwrap_or_default();
            assert!(report["failed"] == 1 && why.contains("odd"), "{what}: {report}");
        }
    }
}

/// What is appended to and cut has one name, in this folder.
#[test]
fn samples_are_not_written_through_links() {
    let line = "eval json_kv -q -m MODEL -l 2048 -n 1 --set depths=0/100 --device cpu -t 1 -o AT";
    let dir = folder();
    let at = dir.path().join("samples.jsonl");
    let whole = call(dir.path(), line, "samples.jsonl");
    assert_eq!(whole.code, 0, "{whole:?}");
    // Its last line is cut off, as by a killed process: it would be removed.
    let mut cut = fs::read(&at).unwrap();
    cut.extend_from_within(..20);
    let elsewhere = tempfile::tempdir_in(dir.path()).unwrap();
    let victim = elsewhere.path().join("victim.jsonl");
    type Link = fn(&Path, &Path) -> std::io::Result<()>;
    let links: [(&str, Link); 2] =
        [("hard link", |to, at| fs::hard_link(to, at)), ("symbolic link", |to, at| symlink(to, at))];
    for (why, link) in links {
        fs::write(&victim, &cut).unwrap();
        fs::remove_file(&at).unwrap();
        link(&victim, &at).unwrap();
        let ended = call(dir.path(), line, "samples.jsonl");
        assert!(fault(&ended, "samples.jsonl").is_none() && ended.stderr.contains(why), "{ended:?}");
        assert!(fs::read(&victim).unwrap() == cut, "{why}: the file elsewhere has changed");
    }
}

#[test]
fn tokens_are_not_read_through_a_link_that_nobody_named() {
    let (dir, elsewhere) = (folder(), tempfile::tempdir().unwrap());
    let line = "finetune -m MODEL -d words.txt TRAIN";
    let first = call(dir.path(), line, "");
    assert_eq!(first.code, 0, "{first:?}");
    let is_cache = |path: &PathBuf| path.extension().is_some_and(|e| e == "tokens");
    let tokens = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).find(is_cache).unwrap();
    let moved = elsewhere.path().join("moved");
    fs::rename(&tokens, &moved).unwrap();
    symlink(&moved, &tokens).unwrap();
    let again = line.replace("TRAIN", &TRAIN.replace("out.gguf", "two.gguf"));
    let ended = call(dir.path(), &again, "");
    let name = tokens.file_name().unwrap().to_str().unwrap();
    assert!(fault(&ended, name).is_none() && ended.stderr.contains("symbolic link"), "{ended:?}");
}
