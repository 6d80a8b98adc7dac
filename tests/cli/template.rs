//! Chat templates that ask for more than there is: each ends in one line, and the program that ran it goes on.

use std::path::{Path, PathBuf};

use gguf::Value;

use crate::common::program::{run, run_with, Output};
use crate::common::rewritten;
use crate::models::{model, ok};
use crate::serve::forms::with_tokens;

/// The tiny model with this chat template.
fn with_template(dir: &Path, template: &str) -> PathBuf {
    let path = dir.join("model.gguf");
    rewritten(Path::new(model()), &path, &[], |writer| {
        writer.set("tokenizer.chat_template", Value::String(template.as_bytes().to_vec()));
    });
    path
}

const FIXED: &[&str] = &["-q", "--device", "cpu", "-t", "1", "-n", "1", "--ctx", "256", "--temp", "0"];

fn ask(model: &Path) -> Output {
    let head = ["run", "--chat", "-p", "hi", "--ignore-eos", "-m", model.to_str().unwrap()];
    run(&[&head[..], FIXED].concat())
}

/// One line that says what was exceeded, and exit code 1: no signal, no panic.
#[track_caller]
fn refused(output: &Output, what: &str, template: &str) {
    let start: String = template.chars().take(60).collect();
    assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{start}: {output:?}");
    assert!(output.stderr.starts_with("error: chat template"), "{start}: {output:?}");
    assert!(output.stderr.contains(what), "{start}: {what} is not in {output:?}");
}

#[test]
fn templates_without_bounds_end_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, nested) = ("needs more than 512 MiB", "nested too deeply");
    let wide = "1099511627776: at most 1048576";
    let many = "expected 1 to 1048576, found 1099511627776";
    let long = "its text: expected at most";
    let doubled = |from: &str, by: &str| {
        format!(
            "{{% set ns = namespace(s={from}) %}}{{% for i in range(60) %}}{{% set ns.s = ns.s {by} ns.s %}}\
             {{% endfor %}}{{{{ ns.s }}}}"
        )
    };
    let in_a_row = |part: &str| format!("{{{{ {}1 }}}}", part.repeat(1_000_000));
    for (what, template) in [
        (many, "{{ [1]|batch(1099511627776, 1)|list }}".to_owned()),
        (many, "{{ [1]|slice(1099511627776)|list }}".to_owned()),
        ("up to 1048576", "{{ 'a\nb'|indent(1099511627776) }}".to_owned()),
        (wide, "{{ '%1099511627776d'|format(1) }}".to_owned()),
        (wide, "{{ '{:>1099511627776}'.format(1) }}".to_owned()),
        (memory, doubled("'x'", "~")),
        (memory, doubled("[1]", "+")),
        (nested, in_a_row("-")),
        (nested, in_a_row("not ")),
        ("recursion", format!("{{{{ {} }}}}", "[".repeat(100_000))),
        ("gets too large", "{{ 'x' * 33554432 }}".to_owned()),
        ("xxx", "{{ raise_exception('x' * 10000000) }}".to_owned()),
        (long, "{{ 'x' * 3000000 }}".to_owned()),
        (long, "{% for i in range(60000) %}{{ 'y z ' * 20 }}{% endfor %}".to_owned()),
        (
            long,
            "{% for a in range(1500) %}{% for b in range(1000) %}{{ messages[0].content }}{% endfor %}{% endfor %}"
                .to_owned(),
        ),
        ("fuel", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned()),
    ] {
        let output = ask(&with_template(dir.path(), &template));
        refused(&output, what, &template);
        assert!(output.stderr.len() < 1000, "{} bytes", output.stderr.len());
    }
}

/// Steps that are few and long.
#[cfg(unix)]
#[test]
fn a_template_that_computes_for_long_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let template = "{% for a in range(99999) %}{% set x = ('a' * 10000000)|upper %}{% endfor %}";
    refused(&ask(&with_template(dir.path(), template)), "of computing", template);
}

/// The conversation goes on, for what is wrong may be one message.
#[test]
fn a_conversation_outlives_its_template() {
    let dir = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}{{ m.content }}{% if m.content == 'boom' %}\
                    {{ '%1099511627776d'|format(1) }}{% endif %}{% endfor %}";
    let path = with_template(dir.path(), template);
    let head = ["chat", "--json", "--ignore-eos", "-m", path.to_str().unwrap()];
    let output = run_with(&[&head[..], FIXED].concat(), "one\nboom\ntwo\n");
    assert_eq!(output.code, 1);
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("1099511627776: at most 1048576"), "{output:?}");
    let json: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(json["messages"].as_array().unwrap().len(), 4, "{json}");
    // A template may render nothing.
    let path = with_template(dir.path(), "{# nothing #}");
    let out = run_with(&[&["chat", "-m", path.to_str().unwrap()], FIXED].concat(), "one\n");
    assert_eq!(
        (out.code, &*out.stderr),
        (1, "error: prompt: expected at least one token, found none\nerror: failed lines: 1\n")
    );
    // One that cannot be read at all is an error before the first message.
    let path = with_template(dir.path(), "{% if %}");
    let head = ["chat", "-m", path.to_str().unwrap()];
    refused(&run_with(&[&head[..], FIXED].concat(), "one\n"), "line 1", "{% if %}");
}

const IN_BRACKETS: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}\
                           {% if add_generation_prompt %}>{% endif %}";

#[test]
fn templates_are_rendered_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let path = with_template(dir.path(), IN_BRACKETS);
    let head = ["run", "--chat", "--system", "s", "-p", "hi", "--json", "--ignore-eos", "-m"];
    let json = ok(run(&[&head[..], &[path.to_str().unwrap()], FIXED].concat())).json();
    let plain = ["run", "-p", "[system]s[user]hi>", "--json", "--ignore-eos", "-m", model()];
    let same = ok(run(&[&plain[..], FIXED].concat())).json();
    assert_eq!((&json["n_prompt"], &json["tokens"]), (&same["n_prompt"], &same["tokens"]));
}

/// Qwen3's marks are text; other models have control tokens.
#[test]
fn thinking_is_told_from_the_answer_in_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat.jinja");
    std::fs::write(&file, format!("{IN_BRACKETS}{{# <think> #}}")).unwrap();
    let run_of = |model: &str, more: &[&str]| {
        let line = ["run", "-m", model, "-p", "hi", "--ignore-eos", "-n", "12", "--temp", "0", "-q"];
        ok(run(&[&line[..], more, &["--device", "cpu", "-t", "1"]].concat()))
    };
    let chat = ["--chat", "--template", file.to_str().unwrap()];
    let tokens = |out: &Output| -> Vec<usize> {
        out.json()["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as usize).collect()
    };
    let written = tokens(&run_of(model(), &[&chat[..], &["--json"]].concat()));
    // Not the first token.
    let is_new = |i: &usize| !written[..*i].contains(&written[*i]);
    let mark = written[(1..written.len()).find(is_new).unwrap()];
    let marked = with_tokens(dir.path(), &[(mark, "</think>")], 3);
    let found = run_of(&marked, &[&chat[..], &["--json"]].concat());
    assert_eq!(tokens(&found), written);
    let n = written.iter().filter(|token| **token == mark).count();
    let count = |text: &str| text.matches("</think>").count();
    assert_eq!(count(found.json()["text"].as_str().unwrap()), n, "{found:?}");
    for more in [&[][..], &["--special"]] {
        assert_eq!(count(&run_of(&marked, &[&chat[..], more].concat()).stdout), n, "{more:?}");
    }
}

/// `--template FILE` does what the same template does in the model's file, in each command that renders one.
#[test]
fn a_template_in_a_file_of_its_own_replaces_the_models() {
    let dir = tempfile::tempdir().unwrap();
    let inside = with_template(dir.path(), IN_BRACKETS);
    let file = dir.path().join("chat.jinja");
    std::fs::write(&file, IN_BRACKETS).unwrap();
    let (inside, file) = (inside.to_str().unwrap(), file.to_str().unwrap());
    let own = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let chats = own("chats.jsonl");
    let turns = r#"{"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c"}]}"#;
    std::fs::write(&chats, format!("{turns}\n").repeat(40)).unwrap();
    let fixed = ["--device", "cpu", "-t", "1", "-q", "--json"];
    let print = |line: &[&str], model: &[&str]| ok(run_with(&[line, model, &fixed].concat(), "hi\n")).json();
    let answer = ["-n", "1", "--ctx", "256", "--ignore-eos"];
    for (line, value) in [
        ([&["run", "--chat", "-p", "hi"][..], &answer].concat(), "/n_prompt"),
        ([&["chat"][..], &answer].concat(), "/turns/0/n_prompt"),
        (vec!["finetune", "--chat", "-d", &chats, "--ctx", "64", "--inspect-data"], "/tokens"),
    ] {
        let of = |model: &[&str]| print(&line, model).pointer(value).unwrap().as_u64().unwrap();
        let replaced = of(&["-m", model(), "--template", file]);
        assert_eq!(replaced, of(&["-m", inside]), "{line:?}");
        assert_ne!(replaced, of(&["-m", model()]), "{line:?}");
    }
    // An answer under one template is none under another.
    let kept = own("kept.jsonl");
    let eval = ["eval", "json_kv", "-l", "2048", "-n", "1", "-o", &kept, "-m", model(), "--template"];
    for (template, lines) in [(file, 2), ("chat", 3), (file, 3)] {
        print(&eval, &[template]);
        assert_eq!(std::fs::read_to_string(&kept).unwrap().lines().count(), lines, "{template}");
    }

    std::fs::write(file, "{% if %}").unwrap();
    let output = run(&["run", "--chat", "-p", "hi", "-m", model(), "--template", file]);
    assert!(
        output.code == 1 && output.stderr.contains("chat.jinja: ") && output.stderr.contains("line 1"),
        "{output:?}"
    );
    assert_eq!(run(&["run", "-p", "hi", "-m", model(), "--template", file]).code, 2);
}

/// The limits that a process sets once it knows them, as the system has them.
#[cfg(target_os = "linux")]
#[test]
fn processes_for_templates_and_tokenizers_open_no_files() {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use crate::common::process::wait_until;
    for argument in ["--render-chat-template", "--run-tokenizer"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
            .arg(argument)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // 512 MiB and 5 seconds; the request does not come.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&[512u64 << 20, 5].map(u64::to_le_bytes).concat()).unwrap();
        let path = format!("/proc/{}/limits", child.id());
        wait_until(&format!("{argument} lowers its limits"), || {
            let limits = std::fs::read_to_string(&path).unwrap();
            let is = |name: &str, most: [&str; 2]| {
                let line = limits.lines().find_map(|l| l.strip_prefix(name));
                line.is_some_and(|l| l.split_whitespace().take(2).eq(most))
            };
            is("Max open files", ["3", "3"])
                && is("Max cpu time", ["5", "6"])
                && is("Max core file size", ["0", "0"])
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
