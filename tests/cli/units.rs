//! Parts of the program that stand alone: this test program compiles their files for itself.

#[path = "../../src/cli/chat/complete.rs"]
mod complete;
#[path = "../../src/cli/errors.rs"]
#[allow(dead_code)]
mod errors;
#[path = "../../src/cli/habits.rs"]
mod habits;
#[path = "../../src/cli/output/lines.rs"]
#[allow(dead_code)]
mod lines;
#[path = "../../src/cli/finetune/words.rs"]
mod words;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, Command};
use ropewalk::train::KEYS;
use ropewalk::Error;
use ropewalk_core::terminal::inline;

use crate::common::program::run;
use crate::examples::commands;
use complete::candidates;
use errors::{chain, is_usage, one_line, usage};
use habits::Means::{File, Flag, Of, Option as Ours, Setting};
use habits::{has, translate, COMMANDS, OPTIONS, SET};
use lines::{progress_line, Colour};
use words::options;

/// The names of a command's options, as its help has them.
pub(crate) fn options_of(command: &str) -> Vec<String> {
    let help = run(&[command, "--help-all"]).stdout;
    // Their descriptions are further right.
    let is_option = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
    let name = |line: &str| {
        let word = line.split([' ', ',', '=', '[', '<']).find_map(|word| word.strip_prefix("--"));
        word.unwrap_or_else(|| panic!("{command}: {line}")).to_owned()
    };
    help.lines().filter(is_option).map(name).collect()
}

/// The commands of the program and their options.
fn app() -> Command {
    let mut app = Command::new("ropewalk");
    for name in commands() {
        let mut command = Command::new(&*name.clone().leak());
        for option in options_of(&name) {
            let option: &'static str = option.leak();
            command = command.arg(Arg::new(option).long(option));
        }
        app = app.subcommand(command);
    }
    app
}

fn translated(app: &Command, line: &str) -> Result<String, String> {
    let words = line.split(' ').map(OsString::from).collect();
    let words = translate(app, words).map_err(|e| e.to_string())?;
    Ok(words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" "))
}

#[test]
fn options_of_other_tools_become_ours_or_name_them() {
    let app = app();
    for (typed, ours) in [
        ("r run -m x --ctx-size 8k -p -c", "r run -m x --ctx 8k -p -c"),
        ("r run -m x -ngl 99 -fa -ctk q8_0 -ctv q8_0", "r run -m x --device auto --kv q8_0"),
        ("r run -ngl 0 -fa off --n_predict=3", "r run --device cpu --attention explicit --predict 3"),
        ("r chat --dry-multiplier 0.8 -sys x", "r chat --sampler dry-multiplier=0.8 --system x"),
        ("r chat -sysf x.txt --repeat-penalty 1.1", "r chat --system @x.txt --sampler repeat-penalty=1.1"),
        ("r eval --tasks niah -m x --limit 5", "r eval niah -m x --samples 5"),
        ("r eval niah --batch_size 8", "r eval niah --parallel 8"),
        ("r run --batch-size 8", "r run --batch 8"),
        ("r finetune --lora_r 8 --max-steps 3 --train-file f", "r finetune --rank 8 --steps 3 --data f"),
        ("r finetune --max_grad_norm 1 --warmup-steps=3", "r finetune --set clip=1 --set warmup=3"),
        ("r finetune --weight_decay=0.1 --batch 8", "r finetune --set weight-decay=0.1 --set batch=8"),
        ("r finetune --doc-mask -d x", "r finetune --set doc-mask=true -d x"),
        ("r run m.gguf hi -no-cnv --log-disable -n 8", "r run --model m.gguf --prompt hi --quiet -n 8"),
        ("r chat m.gguf hi", "r chat --model m.gguf hi"),
        ("r chat --jinja -m x", "r chat -m x"),
        ("r serve -cb -m x", "r serve -m x"),
        ("r run --max_new_tokens 5", "r run --predict 5"),
        ("r finetune --target-modules q_proj,v_proj", "r finetune --targets q,v"),
        ("r help", "r --help"),
        ("r help convert", "r convert --help"),
        ("r perplexity --chunks 2 -- --chunks", "r perplexity --max-windows 2 -- --chunks"),
        ("r bench --limit 3", "r bench --limit 3"),
        ("r bench --n-prompt 512 --n-gen 0", "r bench --lengths 512 --predict 0"),
        ("r convert x --outtype q8_0", "r convert x --type q8_0"),
        ("r convert --leave-output-tensor x", "r convert --tensor-type output=keep x"),
        ("r convert x --token_embedding_type q8_0", "r convert x --tensor-type token_embd=q8_0"),
    ] {
        assert_eq!(translated(&app, typed).as_deref(), Ok(ours));
    }
    for (typed, error) in [
        ("r run -ctk q8_0 -ctv f16", "-ctv: keys and values have one type here, --kv TYPE"),
        ("r run --rope-scaling yarn", "--rope-scaling: use --rope, as in"),
        ("r run -gan 4", "-gan: use --rope self-extend"),
        ("r run -hff q4", "-hff: fetch the model first"),
        ("r run -mg 0", "-mg: the whole model runs on one device"),
        ("r run -ngl 12", "-ngl 12: the whole model runs on one device"),
        ("r finetune --batch", "--batch: a value is required"),
        ("r convert --peft x -m y", "--peft: name the adapter's directory as the input"),
        ("r run --ctx-size", "--ctx-size: a value is required"),
        ("r chat -no-cnv", "-no-cnv: use `ropewalk run`"),
        ("r run --color on", "--color: leave it out"),
        ("r bench --mlock", "--mlock: leave it out"),
        ("r run --no-mmap", "--no-mmap: leave it out: weights are mapped under --device cpu"),
        ("r quantize a b", "quantize: no such command; use ropewalk convert"),
    ] {
        let e = translated(&app, typed).unwrap_err();
        assert!(e.starts_with(error), "{e}");
    }
}

/// The tables name options and commands that exist.
#[test]
fn what_is_named_exists() {
    let app = app();
    for (typed, means) in OPTIONS {
        if let Setting(SET, key) = means {
            assert!(KEYS.iter().any(|k| k.name == *key), "{typed:?} means {key}");
        }
        let (Ours(option) | Of(_, option) | File(option) | Setting(option, _) | Flag(option, _)) = means
        else {
            continue;
        };
        assert!(app.get_subcommands().any(|c| has(c, option)), "{typed:?} means {option}");
    }
    for (typed, ours) in COMMANDS {
        assert!(app.find_subcommand(typed).is_none(), "{typed}");
        let name = ours.strip_prefix("ropewalk ").and_then(|ours| ours.split([' ', ',']).next());
        assert!(name.is_some_and(|name| app.find_subcommand(name).is_some()), "{ours}");
    }
}

/// Codes are put around a text whose own are escaped.
#[test]
fn colours_end_where_their_text_does() {
    let faint = Colour::FAINT.around(&inline("a\u{1b}[31m\nb"));
    assert_eq!(faint, "\u{1b}[2ma\\u{1b}[31m\\nb\u{1b}[0m");
    assert_eq!(Colour::document(7).around("x"), "\u{1b}[32mx\u{1b}[0m");
}

#[test]
fn a_line_of_progress_says_what_is_left() {
    let line = |done, total| progress_line("measuring", done, total, Duration::from_secs(120));
    assert_eq!(line(1, 4), "measuring: 25 % after 2 min, 6 min left");
    assert_eq!(line(4, 4), "measuring: 100 % after 2 min, 0 s left");
    assert_eq!(
        (line(0, 4), line(0, 0)),
        ("measuring: 0 % after 2 min".into(), "measuring: 0 % after 2 min".into())
    );
    let early = progress_line("measuring", 1, 30, Duration::from_secs(5));
    assert_eq!(early, "measuring: 3 % after 5 s, 2 min left");
    let seconds = progress_line("reading", 3, 4, Duration::from_secs(75));
    assert_eq!(seconds, "reading: 75 % after 75 s, 25 s left");
}

#[test]
fn completion_knows_commands_files_and_methods() {
    let known = [("rope", "[SPEC]"), ("load", "FILE"), ("restore", "FILE"), ("regen", "")];
    let of = |line: &str| candidates(line, known.into_iter());
    assert_eq!(of("/re"), (0, vec!["/restore ".into(), "/regen".into()]));
    assert_eq!(of("/rope ya"), (6, vec!["yarn".into()]));
    assert_eq!(of("hello"), (5, Vec::new()));
    // As the commands take them.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("my (1) notes.txt"), "").unwrap();
    std::fs::create_dir(dir.path().join("my texts")).unwrap();
    let typed = format!("/load {}/my ", dir.path().display());
    let names = ["my texts/"].map(|name| format!("{}/{name}", dir.path().display()));
    assert_eq!(of(&typed.replace("my ", "my t")), (6, names.to_vec()));
    assert_eq!(of(&typed).1.len(), 2);
}

#[test]
fn settings_in_texts_of_the_library_become_options() {
    for (text, said) in [
        ("`init`: `targets` full trains", "--lora: --targets full trains"),
        ("`text-field`: `messages` under `chat`", "--set text-field: `messages` under --chat"),
        ("`steps` 7 replaces its 9", "--steps 7 replaces its 9"),
        ("`batch`=7 replaces its 9", "--set batch=7 replaces its 9"),
    ] {
        assert_eq!(options(text), said);
    }
}

#[test]
fn causes_that_repeat_are_said_once() {
    let path = anyhow::anyhow!("x.gguf: is short").context("x.gguf");
    assert_eq!(chain(&path), "x.gguf: is short");
    let io = std::io::Error::other("is not a regular file");
    let ggml = ggml::Error::io("x.gguf", io);
    assert_eq!(chain(&anyhow::Error::from(ggml).context("x.gguf")), "x.gguf: is not a regular file");
    assert_eq!(chain(&anyhow::anyhow!("no space").context("out")), "out: no space");
}

#[test]
fn a_setting_that_is_refused_is_usage_and_a_place_in_the_work_is_not() {
    let refused = || Error::argument("rank", "at least 1", 0);
    assert!(is_usage(&usage("--rank")) && is_usage(&anyhow::Error::from(refused()).context("a.gguf")));
    let during = Error::During { place: "step 3".into(), source: Box::new(refused()) };
    assert!(!is_usage(&during.into()) && !is_usage(&Error::Invalid("rank".into()).into()));
}

#[test]
fn errors_are_one_line() {
    assert_eq!(one_line("a\n  b:\n\nc\n"), "a; b: c");
    assert_eq!(one_line("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
}
