//! Every output of the program: another program's file under its name stays as it is without `--force`, an
//! earlier output is replaced.

use std::fs;

use convert::random::{write, Shape};
use ropewalk::DType;

use super::finetune::Folder;
use super::hub::names;
use crate::common::program::{run_in, split, Output};
use crate::common::rewritten;

const THESIS: &str = "My thesis.\n\nChapter 1. Everything that I have written in four years.\n";

/// A call that writes to `out`.
#[derive(Debug)]
struct Case {
    /// The option's value in the folder, and the arguments in which `OUT` stands for it.
    out: &'static str,
    line: &'static str,
    /// Whether the call can be made a second time over what it has written.
    again: bool,
}

const fn case(out: &'static str, line: &'static str, again: bool) -> Case {
    Case { out, line, again }
}

const MODEL: [&str; 5] = ["--device", "cpu", "-t", "1", "-q"];
const TRAIN: [&str; 12] =
    ["-d", "texts", "--ctx", "48", "--ubatch", "20", "--steps", "1", "--device", "cpu", "-t", "1"];

const CASES: &[Case] = &[
    case("a.svg", "rope pi:factor=2 -m tiny.gguf --plot OUT", true),
    case("a.png", "rope pi:factor=2 -m tiny.gguf --plot OUT", true),
    case("a.svg", "rope self-extend:group=4 -m tiny.gguf --map OUT", true),
    case("a.png", "inspect tiny.gguf --map distance=50 -f texts/0.txt --ctx 100 --plot OUT MODEL", true),
    case("a.svg", "perplexity -m tiny.gguf -f texts/0.txt --ctx 100 --plot OUT MODEL", true),
    case("i.gguf", "convert tiny.gguf --imatrix-from texts/0.txt --ctx 100 -o OUT MODEL", true),
    case("a.svg", "eval json_kv -l 2048 -n 2 --set depths=0/100 -m tiny.gguf --plot OUT MODEL", true),
    case("a.jsonl", "eval json_kv -l 2048 -n 1 --set depths=0/100 -m tiny.gguf --output OUT MODEL", true),
    case("a.json", "advise --search -m tiny.gguf -f texts/0.txt --ctx 1024 -o OUT MODEL", false),
    case("a.json", "advise --search -m tiny.gguf -f texts/0.txt --ctx 1024 -o OUT --resume MODEL", false),
    case("c.gguf", "convert tiny.gguf -o OUT", true),
    case("c.gguf", "convert --type f16 tiny.gguf -o OUT", true),
    case("c.gguf", "convert --type q4_k_s tiny.gguf -o OUT", true),
    case("l.gguf", "finetune TRAIN -o OUT", true),
    case("m.gguf", "finetune FLOATS --targets full -o OUT", true),
    case("thesis.tex", "finetune TRAIN -o l.gguf --set log=thesis.tex", true),
    case("p.png", "finetune TRAIN -o l.gguf --plot OUT", true),
    case("t.tokens", "finetune TRAIN -o l.gguf --set cache=t.tokens", true),
    case("l.log.jsonl", "finetune TRAIN -o l.gguf", true),
    case("l.loss.svg", "finetune TRAIN -o l.gguf", true),
    case("steps", "finetune TRAIN -o l.gguf --set checkpoints=steps", false),
    case("p.lengths.svg", "finetune TRAIN --inspect-data --plot p.svg", true),
];

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
    let output = call(folder, &split(case.line), case.out);
    assert!(matches!(output.code, 1 | 2), "{case:?}: {output:?}");
    let last = output.stderr.lines().last().unwrap_or_default();
    assert!(last.contains(case.out) && !output.stderr.contains("panicked"), "{case:?}: {output:?}");
    assert!(fs::read(&at).unwrap() == what, "{case:?}: replaced");
    let mut after = names(folder.dir.path());
    // Tokens that were counted meanwhile may stay.
    after.retain(|n| before.contains(n) || !n.ends_with(".tokens"));
    assert_eq!(after, before, "{case:?}");
    fs::remove_file(&at).unwrap();
}

#[test]
fn a_file_of_somebody_else_is_never_replaced() {
    let folder = folder();
    let foreign: [(&str, &[u8]); 10] = [
        ("svg", b"<svg width=\"9\" height=\"9\" xmlns=\"http://www.w3.org/2000/svg\">\n<rect/>\n</svg>\n"),
        ("png", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR a photograph"),
        ("jsonl", b"{\"name\":\"somebody's own lines\"}\n"),
        ("json", b"{\"name\":\"somebody's own file\"}\n"),
        // As ours begin, or began.
        ("jsonl", b"{\"task\":\"water the plants\",\"id\":\"1\"}\n{\"task\":"),
        ("jsonl", b"{\"step\":1,\"loss\":2.5,\"tokens_per_s\":9.0}\n"),
        ("jsonl", b"{"),
        ("json", b"{\"of\":\"mine\",\"scored\":[]}"),
        ("json", b"{\"ropewalk\":\"the record"),
        ("tokens", b"ropedat"),
    ];
    for case in CASES {
        left_alone(&folder, case, THESIS.as_bytes());
        // And others in the same format, where it has one.
        for (_, what) in foreign.iter().filter(|(end, _)| case.out.ends_with(end)) {
            left_alone(&folder, case, what);
        }
    }
    // Models are no adapters and no importance matrices.
    let model = fs::read(folder.file("tiny.gguf")).unwrap();
    for case in CASES.iter().filter(|c| ["i.gguf", "l.gguf"].contains(&c.out)) {
        left_alone(&folder, case, &model);
    }
}

/// By force a file of somebody else, without it an earlier output, and never a folder.
#[test]
fn a_file_is_replaced_where_it_may_be() {
    for case in CASES.iter().filter(|c| c.again) {
        let folder = folder();
        let at = folder.file(case.out);
        let args = split(case.line);
        let forced = [&args[..], &["--force"]].concat();
        let called = |args: &[&str]| {
            // A run with checkpoints is gone on with, or they are removed.
            for name in ["l.checkpoints", "m.checkpoints"] {
                let _ = fs::remove_dir_all(folder.file(name));
            }
            call(&folder, args, case.out)
        };
        fs::write(&at, THESIS).unwrap();
        for args in [&forced, &args] {
            let output = called(args);
            assert_eq!(output.code, 0, "{case:?}: {output:?}");
            let found = fs::read(&at).unwrap();
            assert!(!found.is_empty() && found != THESIS.as_bytes(), "{case:?}");
        }
        fs::remove_file(&at).unwrap();
        fs::create_dir(&at).unwrap();
        let output = called(&forced);
        assert!(matches!(output.code, 1 | 2) && at.is_dir(), "{case:?}: {output:?}");
    }
}

/// Models without a key of ours, adapters whose type stands late, projectors; and a model that is only requantized.
#[test]
fn a_gguf_file_without_our_keys_is_left_alone() {
    let folder = folder();
    let file = gguf::File::open(&folder.file("tiny.gguf")).unwrap();
    for of in ["imatrix", "adapter", "mmproj", "model"] {
        let theirs = folder.file("theirs.gguf");
        rewritten(&folder.file("tiny.gguf"), &theirs, &[], |writer| {
            for (key, _) in file.metadata().iter().filter(|(key, _)| key.starts_with("ropewalk.")) {
                writer.remove(key);
            }
            writer.remove("general.type").set("general.type", of);
        });
        let bytes = fs::read(&theirs).unwrap();
        for case in CASES.iter().filter(|c| c.out.ends_with(".gguf")) {
            left_alone(&folder, case, &bytes);
        }
    }
    let convert = |more: &[&str]| {
        let args = ["convert", "--type", "q4_0", "theirs.gguf", "-o", "OUT"];
        call(&folder, &[&args[..], more].concat(), "c.gguf")
    };
    assert_eq!(convert(&[]).code, 0);
    let (before, output) = (fs::read(folder.file("c.gguf")).unwrap(), convert(&[]));
    let said = "c.gguf: exists and is not a model with keys of ropewalk; use another name, or replace it with --force";
    assert!(output.code == 1 && output.stderr.trim_end().ends_with(said), "{output:?}");
    assert!(fs::read(folder.file("c.gguf")).unwrap() == before);
    assert_eq!(convert(&["--force"]).code, 0);
}

#[test]
fn a_record_starts_anew_only_if_it_is_forced() {
    let folder = Folder::new();
    fs::write(folder.file("long.txt"), "the rope walks on and on ".repeat(800)).unwrap();
    let search = |more: &[&str]| {
        let settings = "--search=samples=1,max-evaluations=3";
        let args =
            ["advise", settings, "-m", "tiny.gguf", "-f", "long.txt", "--ctx", "1024", "-o", "OUT", "MODEL"];
        call(&folder, &[&args[..], more].concat(), "a.json")
    };
    let read = |name: &str| fs::read_to_string(folder.file(name)).unwrap();
    fs::write(folder.file("a.json"), THESIS).unwrap();
    for more in [&[][..], &["--resume"]] {
        let output = search(more);
        assert!(output.code == 1 && output.stderr.contains("is not the record of a search"), "{output:?}");
        assert_eq!(read("a.json"), THESIS);
    }
    assert_eq!(search(&["--force"]).code, 0);
    let record = read("a.json");
    assert!(record.starts_with("{\"ropewalk\":\"the record of a search\",\"version\":1}\n"), "{record}");
    assert!(search(&[]).stderr.contains("--resume continues from it"));
    assert_eq!((search(&["--resume"]).code, read("a.json")), (0, record.clone()));
    assert_eq!((search(&["--force"]).code, read("a.json")), (0, record.clone()));
    for more in [&[][..], &["--resume"]] {
        fs::write(folder.file("a.json"), "").unwrap();
        assert_eq!((search(more).code, read("a.json")), (0, record.clone()));
    }

    let case = CASES.iter().find(|c| c.out == "a.jsonl").unwrap();
    let eval = |more: &[&str]| call(&folder, &[&split(case.line)[..], more].concat(), case.out);
    assert_eq!(eval(&[]).code, 0);
    // What a run of an earlier version began is none of ours without the header.
    let (header, rest) = read("a.jsonl").split_once('\n').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert_eq!(header, "{\"ropewalk\":\"the record of an evaluation\",\"version\":1}");
    fs::write(folder.file("a.jsonl"), &rest).unwrap();
    let output = eval(&[]);
    assert!(output.code == 1 && output.stderr.contains("replace it with --force"), "{output:?}");
    assert_eq!(read("a.jsonl"), rest);
    assert_eq!(eval(&["--force"]).code, 0);
    assert_eq!(read("a.jsonl"), format!("{header}\n{rest}"));
    let model = fs::read(folder.file("tiny.gguf")).unwrap();
    let output = call(&folder, &[&split(case.line)[..], &["--force"]].concat(), "tiny.gguf");
    assert!(
        output.code == 2 && output.stderr.contains("tiny.gguf: expected a path apart from the files to read"),
        "{output:?}"
    );
    assert!(fs::read(folder.file("tiny.gguf")).unwrap() == model);
    // Behind the header an unfinished line is cut.
    fs::write(folder.file("a.jsonl"), format!("{header}\n{rest}{{\"ta")).unwrap();
    assert_eq!((eval(&[]).code, read("a.jsonl")), (0, format!("{header}\n{rest}")));
}

/// Writes `tiny.gguf` in two parts.
fn split_model(folder: &Folder) {
    let file = gguf::File::open(&folder.file("tiny.gguf")).unwrap();
    let half = file.tensors().len() / 2;
    for (no, tensors) in [(0u16, &file.tensors()[..half]), (1, &file.tensors()[half..])] {
        let mut writer = if no == 0 { gguf::Writer::with_metadata_of(&file) } else { gguf::Writer::new() };
        writer.set("split.no", gguf::Value::U16(no)).set("split.count", gguf::Value::U16(2));
        writer.set("split.tensors.count", gguf::Value::I32(file.tensors().len() as i32));
        for t in tensors {
            writer.copy_tensor(&file, t).unwrap();
        }
        writer.write(folder.file(&format!("part-0000{}-of-00002.gguf", no + 1))).unwrap();
    }
}

/// Not even by force: all parts of a model, stages, adapters, chat templates, data of benchmarks.
#[test]
fn a_file_that_is_read_is_never_replaced() {
    let folder = Folder::new();
    split_model(&folder);
    let stage = "[[stage]]\nctx = 48\nsteps = 1\n";
    fs::write(folder.file("stages.toml"), stage.repeat(2)).unwrap();
    for name in ["lora.gguf", "lora.svg", "drawing.svg", "p.lengths.svg"] {
        fs::write(folder.file(name), THESIS).unwrap();
    }
    fs::create_dir_all(folder.file("data/short")).unwrap();
    fs::write(folder.file("data/short/gsm8k_test.jsonl.gz"), THESIS).unwrap();
    let (first, second) = ("part-00001-of-00002.gguf", "part-00002-of-00002.gguf");
    let (train, train_split) = ("finetune -d texts -m tiny.gguf -t 1", format!("finetune TRAIN -m {first}"));
    let stages = format!("{train} --stages stages.toml");
    for (line, out) in [
        (format!("{train_split} -o OUT"), second),
        (format!("{train_split} -o l.gguf --set log={second}"), second),
        (format!("{stages} -o OUT"), "stages.toml"),
        (format!("{stages} --lora lora.gguf -o OUT"), "lora.gguf"),
        (format!("advise --search -m {first} -f texts/0.txt --ctx 1024 -o OUT MODEL"), second),
        (format!("advise --search -m {first} -f texts --ctx 1024 -o OUT MODEL"), "texts/0.txt"),
        (format!("convert {first} --imatrix-from texts/0.txt --ctx 100 -o OUT MODEL"), second),
        (format!("convert {first} -o OUT"), second),
        (format!("eval json_kv -l 2048 -n 1 -m {first} --output OUT MODEL"), second),
        ("eval json_kv -l 2048 -n 1 -m tiny.gguf --lora lora.svg --plot OUT MODEL".into(), "lora.svg"),
        (
            "eval json_kv -l 2048 -n 1 -m tiny.gguf --template drawing.svg --plot OUT MODEL".into(),
            "drawing.svg",
        ),
        (format!("{train} --chat --ctx 48 --template lora.svg -o OUT"), "lora.svg"),
        ("perplexity -m tiny.gguf -f drawing.svg --ctx 100 --plot OUT MODEL".into(), "drawing.svg"),
        (
            "inspect tiny.gguf --map distance=50 -f drawing.svg --ctx 100 --plot OUT MODEL".into(),
            "drawing.svg",
        ),
        (
            "finetune -m tiny.gguf -d p.lengths.svg --ctx 48 --inspect-data --plot p.svg".into(),
            "p.lengths.svg",
        ),
        (
            "eval gsm8k -n 1 -m tiny.gguf --data data --output OUT MODEL".into(),
            "data/short/gsm8k_test.jsonl.gz",
        ),
    ] {
        let line = line.replace("TRAIN", "-d texts --ctx 48 --steps 1 -t 1");
        let before = (fs::read(folder.file(out)).unwrap(), names(folder.dir.path()));
        let output = call(&folder, &split(&format!("{line} --force")), out);
        assert!(output.code == 2 && output.stderr.contains(out), "{line}: {output:?}");
        assert!(output.stderr.contains("input") || output.stderr.contains("to read"), "{line}: {output:?}");
        assert!((fs::read(folder.file(out)).unwrap(), names(folder.dir.path())) == before, "{line}");
    }
}

#[test]
fn outputs_are_apart_from_each_other() {
    let folder = Folder::new();
    for line in [
        "rope dca -m tiny.gguf --plot a.svg --map ./a.svg",
        "eval json_kv -l 2048 -n 1 -m tiny.gguf --output a.svg --plot texts/../a.svg MODEL",
    ] {
        let output = call(&folder, &split(line), "");
        let said = "a.svg: expected a path apart from the other output, found a.svg";
        assert!(output.code == 2 && output.stderr.contains(said), "{line}: {output:?}");
        assert!(!folder.file("a.svg").exists());
    }
}

#[test]
fn a_study_replaces_its_own_report() {
    let folder = Folder::new();
    let plan = "title = \"a\"\nlengths = [256]\nsamples = 1\ntexts = [\"texts/0.txt\"]\n\
                [[models]]\nname = \"tiny\"\npath = \"tiny.gguf\"\n\
                [[methods]]\nname = \"plain\"\nspec = \"plain\"\n\
                [[tasks]]\nname = \"perplexity\"\nprotocol = \"window\"\nmax_windows = 1\n";
    fs::write(folder.file("plan.toml"), plan).unwrap();
    let study = |more: &[&str]| {
        let args = ["study", "plan.toml", "-o", "out", "--device", "cpu", "-t", "1", "-q"];
        run_in(folder.dir.path(), &[&args[..], more].concat())
    };
    fs::create_dir(folder.file("out")).unwrap();
    for name in ["report.md", "report.html", "plan.toml"] {
        let at = folder.file("out").join(name);
        fs::write(&at, THESIS).unwrap();
        let output = study(&[]);
        assert!(output.code == 1 && output.stderr.contains(name), "{output:?}");
        assert_eq!(output.stderr.contains("--force"), name != "plan.toml", "{output:?}");
        assert_eq!(fs::read_to_string(&at).unwrap(), THESIS);
        assert!(!folder.file("out/cells").exists(), "nothing was measured");
        fs::remove_file(&at).unwrap();
    }
    for _ in 0..2 {
        let output = study(&[]);
        assert_eq!(output.code, 0, "{output:?}");
    }
    let report = fs::read(folder.file("out/report.md")).unwrap();
    fs::write(folder.file("out/report.md"), THESIS).unwrap();
    assert_eq!(study(&["--force"]).code, 0);
    assert!(fs::read(folder.file("out/report.md")).unwrap() == report);
}
