//! Every output of the program: a file of somebody else under its name is left as it is, an earlier output is replaced.

use std::fs;
use std::path::Path;

use convert::random::{write, Shape};
use ropewalk::DType;

use super::finetune::Folder;
use crate::common::program::{run, run_in, run_with, Output};

const THESIS: &str = "My thesis.\n\nChapter 1. Everything that I have written in four years.\n";

/// A call that writes to `out`.
struct Case {
    name: &'static str,
    /// The option's value in the folder, and the arguments in which `OUT` stands for it.
    out: &'static str,
    args: &'static [&'static str],
    /// Whether the call can be made a second time over what it has written.
    again: bool,
}

const fn case(name: &'static str, out: &'static str, args: &'static [&'static str], again: bool) -> Case {
    Case { name, out, args, again }
}

const MODEL: [&str; 5] = ["--device", "cpu", "-t", "1", "-q"];
const TRAIN: [&str; 12] =
    ["-d", "texts", "--ctx", "48", "--ubatch", "20", "--steps", "1", "--device", "cpu", "-t", "1"];

fn cases() -> Vec<Case> {
    vec![
        case("rope --plot", "a.svg", &["rope", "pi:factor=2", "-m", "tiny.gguf", "--plot", "OUT"], true),
        case("rope --plot", "a.png", &["rope", "pi:factor=2", "-m", "tiny.gguf", "--plot", "OUT"], true),
        case(
            "rope --map",
            "a.svg",
            &["rope", "self-extend:group=4", "-m", "tiny.gguf", "--map", "OUT"],
            true,
        ),
        case(
            "inspect --map",
            "a.png",
            &[
                "inspect",
                "tiny.gguf",
                "--map",
                "distance=50",
                "-f",
                "texts/0.txt",
                "--ctx",
                "100",
                "--plot",
                "OUT",
                "MODEL",
            ],
            true,
        ),
        case(
            "perplexity --plot",
            "a.svg",
            &["perplexity", "-m", "tiny.gguf", "-f", "texts/0.txt", "--ctx", "100", "--plot", "OUT", "MODEL"],
            true,
        ),
        case(
            "convert --imatrix-from",
            "i.gguf",
            &["convert", "tiny.gguf", "--imatrix-from", "texts/0.txt", "--ctx", "100", "-o", "OUT", "MODEL"],
            true,
        ),
        case(
            "eval --plot",
            "a.svg",
            &[
                "eval",
                "json_kv",
                "-l",
                "2048",
                "-n",
                "2",
                "--set",
                "depths=0/100",
                "-m",
                "tiny.gguf",
                "--plot",
                "OUT",
                "MODEL",
            ],
            true,
        ),
        case(
            "eval --output",
            "a.jsonl",
            &[
                "eval",
                "json_kv",
                "-l",
                "2048",
                "-n",
                "1",
                "--set",
                "depths=0/100",
                "-m",
                "tiny.gguf",
                "--output",
                "OUT",
                "MODEL",
            ],
            true,
        ),
        case(
            "advise --search",
            "a.json",
            &[
                "advise",
                "--search",
                "-m",
                "tiny.gguf",
                "-f",
                "texts/0.txt",
                "--ctx",
                "1024",
                "-o",
                "OUT",
                "MODEL",
            ],
            false,
        ),
        case(
            "advise --search --resume",
            "a.json",
            &[
                "advise",
                "--search",
                "-m",
                "tiny.gguf",
                "-f",
                "texts/0.txt",
                "--ctx",
                "1024",
                "-o",
                "OUT",
                "--resume",
                "MODEL",
            ],
            false,
        ),
        case("convert", "c.gguf", &["convert", "tiny.gguf", "-o", "OUT"], true),
        case("convert --type", "c.gguf", &["convert", "--type", "f16", "tiny.gguf", "-o", "OUT"], true),
        case(
            "convert, a mixture",
            "c.gguf",
            &["convert", "--type", "q4_k_s", "tiny.gguf", "-o", "OUT"],
            true,
        ),
        case("finetune -o", "l.gguf", &["finetune", "TRAIN", "-o", "OUT"], true),
        case(
            "finetune --targets full",
            "m.gguf",
            &["finetune", "FLOATS", "--targets", "full", "-o", "OUT"],
            true,
        ),
        case(
            "finetune, log",
            "thesis.tex",
            &["finetune", "TRAIN", "-o", "l.gguf", "--set", "log=thesis.tex"],
            true,
        ),
        case("finetune --plot", "p.png", &["finetune", "TRAIN", "-o", "l.gguf", "--plot", "OUT"], true),
        case(
            "finetune, cache",
            "t.tokens",
            &["finetune", "TRAIN", "-o", "l.gguf", "--set", "cache=t.tokens"],
            true,
        ),
        case("finetune, its log", "l.log.jsonl", &["finetune", "TRAIN", "-o", "l.gguf"], true),
        case("finetune, its plot", "l.loss.svg", &["finetune", "TRAIN", "-o", "l.gguf"], true),
        case(
            "finetune, checkpoints",
            "steps",
            &["finetune", "TRAIN", "-o", "l.gguf", "--set", "checkpoints=steps"],
            false,
        ),
        case(
            "finetune --inspect-data",
            "p.lengths.svg",
            &["finetune", "TRAIN", "--inspect-data", "--plot", "p.svg"],
            true,
        ),
    ]
}

/// With a model that can be trained whole as well.
fn folder() -> Folder {
    let folder = Folder::new();
    write(&Shape::named("llama-tiny").unwrap(), DType::F32, 7, folder.file("floats.gguf")).unwrap();
    folder
}

fn call(folder: &Folder, args: &[&str], out: &str) -> Output {
    let mut all = Vec::new();
    for arg in args {
        match *arg {
            "OUT" => all.push(out),
            "MODEL" => all.extend(MODEL),
            "TRAIN" => all.extend([&TRAIN[..], &["-m", "tiny.gguf"]].concat()),
            "FLOATS" => all.extend([&TRAIN[..], &["-m", "floats.gguf"]].concat()),
            other => all.push(other),
        }
    }
    run_in(folder.dir.path(), &all)
}

/// Runs, which must fail with a line that names the file, and leave it and its folder as they are.
#[track_caller]
fn left_alone(folder: &Folder, case: &Case, what: &[u8]) {
    let at = folder.file(case.out);
    fs::write(&at, what).unwrap();
    let before = names(folder.dir.path());
    let output = call(folder, case.args, case.out);
    assert!(matches!(output.code, 1 | 2), "{}: {output:?}", case.name);
    let last = output.stderr.lines().last().unwrap_or_default();
    assert!(last.contains(case.out) && !output.stderr.contains("panicked"), "{}: {output:?}", case.name);
    assert!(fs::read(&at).unwrap() == what, "{}: replaced", case.name);
    let mut after = names(folder.dir.path());
    // Tokens that were counted meanwhile may stay.
    after.retain(|n| before.contains(n) || !n.ends_with(".tokens"));
    assert_eq!(after, before, "{}", case.name);
    fs::remove_file(&at).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let mut all: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn a_file_of_somebody_else_is_never_replaced() {
    let folder = folder();
    let foreign: [(&str, &[u8]); 4] = [
        ("svg", b"<svg width=\"9\" height=\"9\" xmlns=\"http://www.w3.org/2000/svg\">\n<rect/>\n</svg>\n"),
        ("png", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR a photograph"),
        ("jsonl", b"{\"name\":\"somebody's own lines\"}\n"),
        ("json", b"{\"name\":\"somebody's own file\"}\n"),
    ];
    for case in cases() {
        left_alone(&folder, &case, THESIS.as_bytes());
        // And others in the same format, where it has one.
        for (_, what) in foreign.iter().filter(|(end, _)| case.out.ends_with(end)) {
            left_alone(&folder, &case, what);
        }
    }
    // Models are no adapters and no importance matrices.
    let model = fs::read(folder.file("tiny.gguf")).unwrap();
    for case in cases().iter().filter(|c| ["convert --imatrix-from", "finetune -o"].contains(&c.name)) {
        left_alone(&folder, case, &model);
    }
}

#[test]
fn an_earlier_output_is_replaced() {
    for case in cases().iter().filter(|c| c.again) {
        let folder = folder();
        for n in 0..2 {
            let output = call(&folder, case.args, case.out);
            assert_eq!(output.code, 0, "{}, call {n}: {output:?}", case.name);
            assert!(folder.file(case.out).metadata().unwrap().len() > 0, "{}", case.name);
            // A run with checkpoints is gone on with, or they are removed.
            let _ = fs::remove_dir_all(folder.file("l.checkpoints"));
            let _ = fs::remove_dir_all(folder.file("m.checkpoints"));
        }
    }
}

/// What would be in the way at the end is an error at the start, before any training.
#[test]
fn finetune_looks_before_it_trains() {
    let folder = Folder::new();
    for (option, name) in [("--set", "a.tex"), ("--plot", "a.svg"), ("-o", "a.gguf")] {
        fs::write(folder.file(name), THESIS).unwrap();
        let path = folder.path(name);
        let log = format!("log={path}");
        let args = folder.args(if option == "-o" { "a.gguf" } else { "b.gguf" }, &["--steps", "100000"]);
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        if option != "-o" {
            args.extend([option, if option == "--set" { &log } else { &path }]);
        }
        let output = run(&args);
        assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{option}: {output:?}");
        assert!(
            output.stderr.contains(&format!("{path}: is there already and is not ")),
            "{option}: {output:?}"
        );
        assert!(output.stderr.contains("choose another name or remove it"), "{option}: {output:?}");
        assert_eq!(fs::read_to_string(folder.file(name)).unwrap(), THESIS);
        assert!(!folder.file("b.checkpoints").exists() && !folder.file("a.checkpoints").exists());
    }
}

#[test]
fn chat_saves_over_sessions_alone() {
    let folder = Folder::new();
    fs::write(folder.file("thesis"), THESIS).unwrap();
    let model = folder.path("tiny.gguf");
    let (thesis, session) = (folder.path("thesis"), folder.path("session"));
    let lines = format!("/save {thesis}\n/save {session}\n/save {session}\n");
    let output = run_with(&["chat", "-q", "-m", &model, "--ctx", "64", "--device", "cpu"], &lines);
    assert_eq!(output.stderr.matches("is there already and is not a saved session").count(), 1, "{output:?}");
    assert_eq!(fs::read_to_string(folder.file("thesis")).unwrap(), THESIS);
    assert!(fs::read(folder.file("session")).unwrap().starts_with(b"ropewlk"));
}

#[test]
fn a_study_replaces_its_own_report() {
    let folder = Folder::new();
    let plan = "title = \"a\"\nlengths = [256]\nsamples = 1\ntexts = [\"texts/0.txt\"]\n\
                [[models]]\nname = \"tiny\"\npath = \"tiny.gguf\"\n\
                [[methods]]\nname = \"plain\"\nspec = \"plain\"\n\
                [[tasks]]\nname = \"perplexity\"\nprotocol = \"window\"\nmax_windows = 1\n";
    fs::write(folder.file("plan.toml"), plan).unwrap();
    let study = || {
        run_in(folder.dir.path(), &["study", "plan.toml", "-o", "out", "--device", "cpu", "-t", "1", "-q"])
    };
    fs::create_dir(folder.file("out")).unwrap();
    for name in ["report.md", "report.html", "plan.toml"] {
        let at = folder.file("out").join(name);
        fs::write(&at, THESIS).unwrap();
        let output = study();
        assert!(output.code == 1 && output.stderr.contains(name), "{output:?}");
        assert_eq!(fs::read_to_string(&at).unwrap(), THESIS);
        assert!(!folder.file("out/cells").exists(), "nothing was measured");
        fs::remove_file(&at).unwrap();
    }
    for _ in 0..2 {
        let output = study();
        assert_eq!(output.code, 0, "{output:?}");
    }
}
