//! Every command line that the guide shows, typed in a shell, and what it prints compared with the guide's transcript.
//!
//! Pages with transcripts use the default model, the others a tiny one of random weights. Long commands are shortened, see
//! [`SMALLER`]; `ROPEWALK_SOAK=1` types those of the default model as they are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use convert::random::{write, Shape};
use ropewalk::DType;

use crate::common::program::{command, finish, write_script};
use crate::common::{fetched, soaks};
use crate::examples::PLAN;

/// Pages whose commands run the default model: the transcripts are of this model.
const REAL: [&str; 6] =
    ["attention-methods.md", "conversion.md", "evaluation.md", "extending.md", "running.md", "tutorial.md"];

/// The default model as the guide writes it.
const MODEL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Parts of the command lines, and what is typed in their place so that all of them take seconds.
const SMALLER: &[(&str, &str)] = &[
    ("--lengths 12288 --rope", "--lengths 64 --rope"),
    ("--lengths 32k --longppl", "--lengths 256 --longppl=trunc-len=64,sliding-window=64"),
    ("--map -f models/texts/essays.txt --ctx 4096", "--map distance=50 -f models/texts/essays.txt --ctx 128"),
    ("--ctx 4096 --rope plain", "--ctx 128 --rope plain"),
    ("ruler_niah,vt", "niah_single_1,niah_multikey_1"),
    ("--lengths 4096,8192 --samples 20", "--lengths 4k --samples 1"),
    ("--lengths 8192 --max-windows 2 --against", "--lengths 512 --max-windows 2 --against"),
    ("--ctx 16384 -f models", "--ctx 640 -f models"),
    ("--minutes 20", "--minutes 0.01"),
    ("--ctx 16384 --search=samples=2 --minutes 120", "--ctx 1024 --search=samples=2,max-evaluations=3"),
    ("bases=1000000/2500000/5000000 --ctx 1024 --steps 60", "bases=1000000/2500000 --ctx 256 --steps 60"),
    ("--ctx 1024 --steps 40", "--ctx 32 --steps 2 --set held-out=2"),
    ("novels/*.txt --lengths 1024", "novels/*.txt --lengths 64"),
    ("--lengths 4096,12288 --samples 4", "--lengths 150,200 --samples 1"),
    ("advise -m smollm2 --ctx 12288 --minutes 1", "advise -m model.gguf --ctx 640 --minutes 0.01"),
    ("--steps 60", "--steps 2"),
    ("--ctx 512 --steps 40", "--ctx 128 --steps 4"),
    ("--ctx 8192 --inspect-data", "--ctx 512 --inspect-data"),
    ("--ctx 8192 --rope abf", "--ctx 256 --steps 2 --rope abf"),
    ("<repo_name>/<reponame>/<file_sep>/<filename>", "#1/#2/#3/#4"),
    ("<gh_stars>/<issue_start>/<issue_comment>/<issue_closed>/<empty_output>", "#5/#6/#7/#8/#9"),
    ("--stages examples/stages-abf.toml", "--stages examples/stages.toml"),
    ("--type f32 -o out/pythia", "--type f32 --pre gpt-2 -o out/pythia"),
    ("--lengths 4096 --lora", "--lengths 512 --lora"),
    ("--recipe sba", "--recipe sba --ctx 256 --steps 2"),
    ("--max-windows 3 --against smol-20k", "--max-windows 1 --against smol-20k"),
    ("--imatrix-from essays.txt", "--imatrix-from essays.txt --max-windows 2"),
    ("examples/study-small.toml", "examples/study.toml"),
    ("--ctx 16384 -f book.txt", "--ctx 640 -f book.txt --minutes 0.01"),
];

/// Engines that run studies, as far as the lines of the guide need them. The real ones are not installed for this test.
const ENGINES: &[(&str, &str)] = &[
    ("sbatch", "#!/bin/sh\necho 7\n"),
    (
        "parallel",
        "#!/bin/bash\nwhile [ \"$1\" != ropewalk ]; do shift; done\n\
         while read -r line; do \"${@//\\{\\}/$line}\" < /dev/null || exit; done\n",
    ),
];

/// Two stages.
const STAGES: &str = r#"
[[stage]]
ctx = 128
rope = "abf:base=200000"
steps = 2
[[stage]]
ctx = 256
rope = "abf:base=500000"
steps = 2
"#;

/// A command line of a page and the lines that follow it.
struct Line {
    typed: String,
    printed: Vec<String>,
}

/// The command lines in a page's console blocks.
fn lines(page: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(page).unwrap().replace("\\\n", " ");
    let mut out: Vec<Line> = Vec::new();
    for block in text.split("```console\n").skip(1) {
        let block = block.split("\n```").next().unwrap();
        assert!(
            block.starts_with("$ "),
            "{}: a console block begins with a command: {block}",
            page.display()
        );
        for line in block.lines() {
            match line.strip_prefix("$ ") {
                Some(typed) => out.push(Line { typed: typed.to_owned(), printed: Vec::new() }),
                None => out.last_mut().unwrap().printed.push(line.to_owned()),
            }
        }
    }
    out
}

/// A line as words that any run prints, with `#` for each number, and its numbers. Times and speeds are no numbers here.
fn shape(line: &str) -> (String, Vec<f64>) {
    let (mut words, mut numbers) = (Vec::new(), Vec::new());
    for word in line.split_whitespace() {
        if ["KiB", "MiB", "GiB"].contains(&word) {
            words.push("bytes".to_owned());
            continue;
        }
        if word.trim_matches(['-', ':']).is_empty() {
            words.push("-".to_owned());
            continue;
        }
        let (mut out, mut rest) = (String::new(), word);
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let end = rest[at..].find(|c: char| !c.is_ascii_digit() && !",.".contains(c));
            let end = end.map_or(rest.len(), |end| at + end);
            let number = rest[at..end].trim_end_matches([',', '.']);
            let end = at + number.len();
            out.push_str(&rest[..at]);
            out.push('#');
            numbers.extend(number.replace(',', "").parse::<f64>());
            rest = &rest[end..];
        }
        words.push(out + rest);
    }
    (words.join(" "), numbers)
}

/// Whether a run printed a line of a transcript: to 2% if the command was typed as it stands. `header` is that of the
/// table that the line is in.
fn same(expected: &str, header: &str, found: &str, exact: bool) -> bool {
    let ((expected_words, expected), (words, numbers)) = (shape(expected), shape(found));
    let timed = ["/s", " s,", " s)", " min"].iter().any(|unit| words.contains(unit));
    let near = |a: &f64, b: &f64| (a - b).abs() <= 0.02 * a.abs();
    let compared = expected.len().saturating_sub(usize::from(header.ends_with("/s |")));
    words == expected_words
        && (!exact || timed || expected.iter().zip(&numbers).take(compared).all(|(a, b)| near(a, b)))
}

/// The files that the pages' commands read.
fn fixtures(dir: &Path, real: bool, lines: &[Line]) {
    let checkpoints = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/import/tests/checkpoints");
    let essays = std::fs::read_to_string(fetched("texts/essays.txt")).unwrap();
    let short: String = essays.chars().filter(char::is_ascii).take(20_000).collect();
    let folders =
        "models/texts/train/tdavid models/texts/eval/novels models/pythia-160m models/benchmarks/ruler \
                   texts books examples out";
    for folder in folders.split_whitespace() {
        std::fs::create_dir_all(dir.join(folder)).unwrap();
    }
    let files =
        "texts/a.txt books/a.txt books/b.txt models/texts/train/tdavid/a.txt models/texts/eval/novels/a.txt \
                 book.txt essays.txt";
    for name in files.split_whitespace() {
        std::fs::write(dir.join(name), &short).unwrap();
    }
    std::fs::write(dir.join("models/texts/essays.txt"), if real { &essays } else { &short }).unwrap();
    let shape = Shape { n_ctx_train: 512, ..Shape::named("llama-tiny").unwrap() };
    for (name, dtype) in
        [("model-f16.gguf", DType::F16), ("model.gguf", DType::Q8_0), ("llama-8b.gguf", DType::Q8_0)]
    {
        write(&shape, dtype, 7, dir.join(name)).unwrap();
    }
    if real {
        std::os::unix::fs::symlink(fetched("SmolLM2-135M-Instruct.Q4_1.gguf"), dir.join(MODEL)).unwrap();
    } else {
        for name in [MODEL, "smollm2"] {
            std::fs::copy(crate::models::model(), dir.join(name)).unwrap();
        }
    }
    let copies = [
        (checkpoints.join("gptneox"), "models/pythia-160m"),
        (checkpoints.join("tokenizers/bpe"), "models/pythia-160m"),
        (fetched("benchmarks/ruler"), "models/benchmarks/ruler"),
    ];
    for (from, to) in copies {
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), dir.join(to).join(entry.file_name())).unwrap();
        }
    }
    let study = PLAN.replace("essays.txt", "book.txt").replace("[512]", "[256]");
    let study = study.replace("samples = 2", "samples = 1").replace("[[tasks]]\nname = \"passkey\"\n", "");
    std::fs::write(dir.join("examples/study.toml"), study).unwrap();
    std::fs::write(dir.join("examples/stages.toml"), STAGES).unwrap();
    std::fs::create_dir(dir.join("bin")).unwrap();
    for (name, text) in ENGINES {
        write_script(&dir.join("bin").join(name), text);
    }
    if real && soaks() {
        for folder in ["models/texts/train/tdavid", "models/texts/eval/novels"] {
            std::fs::remove_dir_all(dir.join(folder)).unwrap();
            let texts = fetched(folder.strip_prefix("models/").unwrap());
            std::os::unix::fs::symlink(texts, dir.join(folder)).unwrap();
        }
    }
    // Adapters that somebody trained.
    let train = |model: &str, to: &str| {
        let line =
            format!("finetune -m {model} -d texts --ctx 16 --steps 1 -r 2 --targets q --set held-out=0 -o {to} -t 1 -q");
        type_in(dir, &format!("ropewalk {line}"), true);
    };
    let names = |file: &str| lines.iter().any(|line| line.typed.contains(file));
    if names("novels.gguf") {
        train("model.gguf", "novels.gguf");
        std::fs::copy(dir.join("novels.gguf"), dir.join("style.gguf")).unwrap();
    }
    if names("my-peft-adapter") {
        train(MODEL, "given.gguf");
        type_in(dir, &format!("ropewalk convert given.gguf -m {MODEL} --to-peft my-peft-adapter -q"), true);
    }
}

/// Types a line in a shell. Returns what it prints.
#[track_caller]
fn type_in(dir: &Path, line: &str, succeeds: bool) -> String {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_ropewalk"));
    let engines = dir.join("bin");
    let folders = [engines.as_path(), program.parent().unwrap()].map(|folder| folder.display().to_string());
    let path = format!("{}:{}", folders.join(":"), std::env::var("PATH").unwrap());
    let like = command(&[]);
    let mut shell = Command::new("bash");
    for (name, value) in like.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(["-c", &format!("exec 2>&1; {line}")]).env("PATH", path).env("M", MODEL).current_dir(dir);
    shell.stdin(Stdio::null());
    let output = finish(shell);
    assert_eq!(output.code == 0, succeeds, "{line}: {}\n{}", output.code, output.stdout);
    output.stdout
}

/// What is typed for a line of a page.
fn shortened(line: &str, used: &mut [bool]) -> String {
    let mut typed = line.to_owned();
    for ((from, to), used) in SMALLER.iter().zip(used) {
        *used |= typed.contains(from);
        typed = typed.replace(from, to);
    }
    typed
}

/// Threads that wait for each other are held up by other work on the machine.
fn on_one_thread(line: &str) -> String {
    let computes = "advise bench chat eval finetune perplexity run study";
    let mut line = line.to_owned();
    for name in computes.split(' ') {
        line = line.replace(&format!("ropewalk {name} "), &format!("ropewalk {name} -t 1 "));
    }
    line
}

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide")
}

/// The command lines of a page that are typed.
fn typed(page: &str) -> Vec<Line> {
    let mut lines = lines(&guide().join(page));
    lines.retain(|line| line.typed.contains("ropewalk "));
    lines
}

/// Types the lines of a page, and compares what they print.
#[track_caller]
fn prints_its_transcripts(page: &str) {
    let (real, lines) = (REAL.contains(&page), typed(page));
    let dir = tempfile::tempdir().unwrap();
    fixtures(dir.path(), real, &lines);
    // Until a command is shortened, which may change what later ones find.
    let (mut exact, mut faults) = (real, Vec::new());
    for line in &lines {
        let short = shortened(&line.typed, &mut [false; SMALLER.len()]);
        let full = real && soaks();
        exact &= full || short == line.typed;
        let fails = line.printed.iter().any(|l| l.starts_with("error:"));
        let found = type_in(dir.path(), &on_one_thread(if full { &line.typed } else { &short }), !fails);
        let (mut rest, mut header) = (found.lines(), "");
        // A tiny model ranks methods differently, and finds no passkey.
        let ranked = !full && line.typed.contains("ropewalk advise ");
        for expected in line.printed.iter().filter(|line| !line.is_empty()) {
            if ranked && !header.is_empty() {
                break;
            }
            if expected.starts_with('|') && expected.contains(char::is_alphabetic) {
                header = expected;
            }
            if !rest.by_ref().any(|found| same(expected, header, found, exact)) {
                faults.push(format!("$ {}\nhas the line\n{expected}\nbut prints\n{found}", line.typed));
                break;
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{page}: {} transcripts are not what the program prints:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// A test for each page, so that they run at once and each takes seconds.
macro_rules! pages {
    ($($test:ident $page:literal)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                prints_its_transcripts($page);
            }
        )*
    };
}

pages! {
    attention_methods "attention-methods.md"
    benchmarks "benchmarks.md"
    cluster "cluster.md"
    conversion "conversion.md"
    evaluation "evaluation.md"
    extending "extending.md"
    fine_tuning "fine-tuning.md"
    running "running.md"
    studies "studies.md"
    tutorial "tutorial.md"
    which_method "which-method.md"
}

#[test]
fn every_page_with_command_lines_has_a_test() {
    let pages = std::fs::read_dir(guide()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<String> = pages.filter(|page| !typed(page).is_empty()).collect();
    pages.sort();
    assert_eq!(pages, PAGES);
    let mut used = [false; SMALLER.len()];
    let lines: Vec<Line> = pages.iter().flat_map(|page| typed(page)).collect();
    lines.iter().for_each(|line| drop(shortened(&line.typed, &mut used)));
    for ((from, _), used) in SMALLER.iter().zip(used) {
        assert!(used, "no line of the guide has {from:?}");
    }
    let compared: usize = lines.iter().map(|line| line.printed.len()).sum();
    assert!(lines.len() > 40 && compared > 60, "{} lines, {compared} printed", lines.len());
}
