//! `ropewalk finetune`: data methods, sources with shares, conversations and token ids from the outside.

use crate::common::program::{run_in, split};
use crate::finetune::{fails, Folder};

fn utk<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["--transform", "utk:share=1,knots=#1/#2/#3/#4,marks=#5/#6/#7/#11/#12"];
    args.extend(more);
    args
}

#[test]
fn documents_are_drawn_and_positions_are_those_of_the_adapter() {
    let folder = Folder::new();
    let masked = split("--set doc-mask=true --set upsample=fu:length=300 --set data-tokens=20000 --steps 2");
    let pose = split("--transform pose:target=192,text=2 --rope abf --steps 2");
    for (name, more) in [("masked.gguf", masked), ("pose.gguf", pose)] {
        assert_eq!(folder.finetune(name, &more).json()["steps"], 2, "{name}");
    }
    let inspect = crate::common::program::run(&["inspect", &folder.path("pose.gguf"), "--json"]).json();
    assert_eq!(inspect["adapter"]["n_ctx"], 192, "{inspect}");
}

#[test]
fn what_is_inspected_is_what_is_trained_on() {
    let folder = Folder::new();
    let more = utk(&["--inspect-data", "--plot"]);
    let plot = folder.path("data.svg");
    let found = folder.finetune("a.gguf", &[&more[..], &[&plot]].concat()).json();
    let pieces = found["sample"].as_array().unwrap();
    let kinds: Vec<&str> = pieces.iter().map(|p| p["kind"].as_str().unwrap()).collect();
    assert!(["text", "knot", "mark", "label"].iter().all(|k| kinds.contains(k)), "{kinds:?}");
    let n: u64 = pieces.iter().map(|p| p["tokens"].as_u64().unwrap()).sum();
    assert_eq!(n, 49);
    assert!(found["distances_before"].is_array() && found.get("drawn").is_none());
    for name in ["data.lengths.svg", "data.distances.svg"] {
        assert!(std::fs::read_to_string(folder.file(name)).unwrap().contains("<svg"), "{name}");
    }
    // As text, no code for a terminal in it.
    let args = ["finetune", "-m", "tiny.gguf", "-d", "texts", "--inspect-data", "--ctx", "48"];
    let out = run_in(folder.dir.path(), &[&args[..], &utk(&["--set", "upsample=utk:length=500"])].concat());
    assert_eq!(out.code, 0, "{out:?}");
    for says in ["before the data method", "repeats counted", "sequence 1 of", "   knot", "   mark"] {
        assert!(out.stdout.contains(says), "{says}: {}", out.stdout);
    }
    assert!(!out.stdout.contains('\u{1b}'));
}

#[test]
fn conversations_and_token_ids_are_read() {
    let folder = Folder::new();
    let line = |i: usize| {
        let words = "a rope is long and a yarn is not ".repeat(3);
        format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"{i}? {words}\"}},\
             {{\"role\":\"assistant\",\"content\":\"{i}: {words}\"}}]}}\n"
        )
    };
    std::fs::write(folder.file("chat.jsonl"), (0..20).map(line).collect::<String>()).unwrap();
    let ids: Vec<u8> = (0..3000u32).flat_map(|i| ((i * i + i / 7) % 250).to_le_bytes()).collect();
    std::fs::write(folder.file("ids.bin"), ids).unwrap();
    let args = |data: &'static str, more: &[&'static str]| {
        let head = ["finetune", "-m", "tiny.gguf", "-d", data, "-o", "a.gguf", "--device", "cpu"];
        [&head[..], &["-t", "1", "--json", "--inspect-data"], more].concat()
    };
    let run = |args: &[&str]| run_in(folder.dir.path(), args);
    let untrained = |more: &[&'static str]| -> u64 {
        let found = run(&args(
            "chat.jsonl",
            &[&["--chat", "--set", "packing=truncate", "--ctx", "2048"], more].concat(),
        ))
        .json();
        found["sample"].as_array().unwrap().iter().map(|p| p["untrained"].as_u64().unwrap()).sum()
    };
    assert!(untrained(&["--answers-only"]) > 90, "the question");
    assert_eq!(untrained(&[]), 0);
    let found =
        run(&args("ids.bin", &["--ctx", "48", "--set", "held-out=0", "--set", "token-type=u32"])).json();
    assert_eq!(found["tokens"].as_u64(), Some(3000));
    let out = run(&args("ids.bin", &["--ctx", "48", "--set", "held-out=0"]));
    assert_eq!(out.json()["tokens"].as_u64(), Some(6000), "{out:?}");
    let out = run(&args("chat.jsonl", &["--ctx", "48"]));
    let why = fails(&out, 1);
    assert!(why.contains("chat.jsonl:1: no \"text\" field; it has \"messages\""), "{out:?}");
    assert!(why.contains("(`ropewalk finetune --chat`)"), "{out:?}");
    // A record is a sequence: one that is longer is named, and whole ones alone are joined.
    // A text has no answers.
    let out = run(&args("texts/1.txt", &["--chat", "--ctx", "48"]));
    assert!(fails(&out, 1).contains("texts/1.txt: expected JSON Lines (.jsonl)"), "{out:?}");
    let out = run(&args("chat.jsonl", &["--chat", "--ctx", "48", "--set", "held-out=0"]));
    assert!(
        out.code == 0
            && out.stderr.contains("chat.jsonl:1: ")
            && out.stderr.contains("20 records are longer"),
        "{out:?}"
    );
    let out =
        run(&args("chat.jsonl", &["--chat", "--ctx", "48", "--set", "held-out=0", "--set", "packing=pack"]));
    assert!(fails(&out, 1).contains("only whole records are joined"), "{out:?}");
    let out = run(&args("chat.jsonl", &["--chat", "--ctx", "48", "--set", "packing=long"]));
    assert!(fails(&out, 2).contains("--set packing=long: it cuts records"), "{out:?}");
    let seen = line(0).replace("]}", "],\"images\":[\"a.png\"]}");
    std::fs::write(folder.file("seen.jsonl"), seen).unwrap();
    let out = run(&args("seen.jsonl", &["--chat", "--ctx", "48"]));
    assert!(fails(&out, 1).contains("seen.jsonl:1: \"images\": "), "{out:?}");
}

#[test]
fn what_makes_no_sense_is_said_in_one_line() {
    let folder = Folder::new();
    std::fs::write(folder.file("odd.bin"), [1, 0, 2]).unwrap();
    let run = |data: &[&str], more: &[&str]| {
        let head = split("finetune -m tiny.gguf -o a.gguf --ctx 48 --device cpu --set held-out=0");
        run_in(folder.dir.path(), &[&head[..], &["-d"], data, more].concat())
    };
    let texts: &[&str] = &["texts"];
    for (data, more, code, says) in [
        (&["x=texts:NaN"][..], &[][..], 2, "expected a share above 0 and up to 1, found NaN"),
        (
            texts,
            &["--transform", "cip", "--set", "doc-mask=true"],
            2,
            "--set doc-mask: --transform cip mixes documents",
        ),
        (texts, &["--lora", "b.gguf:force"], 2, "training continues only on the adapter's own model"),
        (texts, &["--transform", "knots"], 1, "data method: expected one of utk-80"),
        (texts, &["--transform", "pose"], 1, "data method pose: expected target=N"),
        (texts, &["--transform", "pose:target=48"], 1, "target: expected a whole number from 49"),
        (
            texts,
            &["--transform", "utk:chunks=0/0/0/1,size=9000,backtrace=false,knots=#1/#2/#3/#4"],
            1,
            "a document needs 9001 tokens to be cut",
        ),
        (texts, &["--set", "upsample=fu:keep=NaN"], 2, "upsampling fu: keep: expected"),
        (texts, &["--set", "upsample=fu:length=9999,keep=0"], 1, "keeps no document"),
        (texts, &["--set", "data-tokens=99999999999"], 1, "1000 times the texts"),
        (texts, &["--set", "synthetic=1.5"], 1, "expected a share above 0 and below 1"),
        (texts, &["--set", "loss=longce:gamma=NaN"], 2, "loss longce: gamma: expected a number from 1"),
        (texts, &["--set", "packing=best"], 2, "expected pack, long, truncate, records or whole"),
        (&["odd.bin"], &[], 1, "odd.bin: expected token ids of 2 bytes, found 1 at offset 2"),
    ] {
        let out = run(data, more);
        assert_eq!(out.code, code, "{more:?}: {out:?}");
        let said = fails(&out, code);
        assert!(said.contains(says), "{more:?}: {said}");
        let error = said.lines().filter(|l| l.contains("error:")).count();
        assert_eq!(error, 1, "{said}");
    }
}

/// A single text is cut by position, and one that is too short for that trains without validation.
#[test]
fn the_end_of_a_single_text_is_held_out() {
    let folder = Folder::new();
    let text: String = (0..400).map(|i| format!("Line {i} says {}. ", i * 7919 % 1000)).collect();
    std::fs::write(folder.file("one.txt"), &text).unwrap();
    std::fs::write(folder.file("short.txt"), &text[..600]).unwrap();
    let head = ["finetune", "-m", "tiny.gguf", "--device", "cpu", "-t", "1", "--steps", "1", "--json", "-o"];
    let run = |more: &[&str]| run_in(folder.dir.path(), &[&head[..], more].concat());
    let out = run(&["a.gguf", "-d", "one.txt", "--ctx", "48"]);
    assert!(out.stderr.contains("one.txt is one text: its last 193 tokens are held out"), "{out:?}");
    assert!(out.json()["val_after"].as_f64().is_some_and(|loss| loss > 0.0), "{out:?}");
    let out = run(&["b.gguf", "-d", "short.txt", "--ctx", "400"]);
    assert!(out.stderr.contains("no validation: the texts are too short for a validation set"), "{out:?}");
    assert_eq!((out.code, &out.json()["val_after"]), (0, &serde_json::Value::Null), "{out:?}");
    let out = run(&["c.gguf", "-d", "short.txt", "--ctx", "400", "--set", "held-out=1"]);
    assert!(fails(&out, 1).contains("held-out part"), "{out:?}");
}

/// A question that is longer than the sequence leaves nothing to learn, and nothing is divided by it.
#[test]
fn sequences_without_answers_do_not_weaken_a_step() {
    let folder = Folder::new();
    let line = |question: &str| {
        let turn = |role: &str, text: &str| serde_json::json!({ "role": role, "content": text });
        let messages = [turn("user", question), turn("assistant", "hemp")];
        serde_json::json!({ "messages": messages }).to_string() + "\n"
    };
    let grad_norm = |name: &str, text: String, batch: &str| {
        std::fs::write(folder.file(&format!("{name}.jsonl")), text).unwrap();
        let (data, out) = (format!("{name}.jsonl"), format!("{name}.gguf"));
        let head = ["finetune", "-m", "tiny.gguf", "-d", &data, "-o", &out, "--device", "cpu", "-t", "1"];
        let more = split(
            "--chat --answers-only --ctx 96 --steps 1 --math f32 --set packing=truncate --set held-out=0 --json",
        );
        run_in(folder.dir.path(), &[&head[..], &more, &["--set", batch]].concat()).json();
        let log = folder.log(&format!("{name}.log.jsonl"));
        log.iter().find_map(|row| row["grad_norm"].as_f64()).unwrap()
    };
    let alone = grad_norm("one", line("a rope?"), "batch=1");
    let beside = grad_norm("two", line("a rope?") + &line(&"sea ".repeat(500)), "batch=2");
    assert!((alone - beside).abs() < 1e-6 * alone, "{alone} {beside}");
    // So is one whose end is a separator of its own.
    let pair = serde_json::json!({ "prompt": "sea ".repeat(500), "completion": "hemp" }).to_string();
    let beside = grad_norm("three", line("a rope?") + &pair + "\n", "batch=2");
    assert!((alone - beside).abs() < 1e-6 * alone, "{alone} {beside}");
    // Alone in its step, it is skipped, and the run goes on.
    std::fs::write(folder.file("both.jsonl"), line("a rope?") + &line(&"sea ".repeat(500))).unwrap();
    let args =
        "finetune -m tiny.gguf -d both.jsonl -o both.gguf --device cpu -t 1 --chat --answers-only --ctx 96 \
                --steps 4 --set batch=1,held-out=0 --json";
    let out = run_in(folder.dir.path(), &split(args));
    assert!(out.json()["steps"] == 4 && out.stderr.contains("skipped 1 sequences without tokens"), "{out:?}");
    // A run goes on with the loss it began with.
    std::fs::remove_file(folder.file("one.gguf")).unwrap();
    let args = "finetune -m tiny.gguf -d one.jsonl -o one.gguf --device cpu -t 1 --chat --ctx 96 --steps 2 --math f32 \
                --set packing=truncate --set held-out=0 --set batch=1 --resume";
    let out = run_in(folder.dir.path(), &split(args));
    assert!(fails(&out, 1).contains("answers-only"), "{out:?}");
}
