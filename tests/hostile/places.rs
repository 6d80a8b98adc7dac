//! What is no regular file in the place of one, or is far longer than it looks: refused in one line that names it, without
//! waiting for anybody.

use std::fs;
use std::path::Path;

use crate::commands::ropewalk;
use crate::small_model;

/// Puts something at a path.
type Put = fn(&Path);

const ALL: [(&str, Put); 4] = [
    ("a pipe", |at| assert!(std::process::Command::new("mkfifo").arg(at).status().unwrap().success())),
    ("a folder", |at| fs::create_dir(at).unwrap()),
    ("a link to nothing", |at| std::os::unix::fs::symlink("nowhere", at).unwrap()),
    // Takes no room on the disk.
    ("a huge file", |at| fs::File::create(at).unwrap().set_len(256 << 30).unwrap()),
];

/// Runs the program on a folder of its own with each of these in the place of `name`. `more` fills the rest of the folder.
fn refused(name: &str, more: impl Fn(&Path), args: impl Fn(&str) -> Vec<String>) {
    for (what, put) in ALL {
        let dir = tempfile::tempdir().unwrap();
        more(dir.path());
        let at = dir.path().join(name);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        put(&at);
        let args = args(dir.path().to_str().unwrap());
        let ended = ropewalk(&args.iter().map(String::as_str).collect::<Vec<_>>(), b"");
        assert!(ended.code == 1 && ended.stderr.lines().count() == 1, "{name}: {what}: {ended:?}");
        assert!(
            ended.stderr.contains(name) && !ended.stderr.contains("panicked"),
            "{name}: {what}: {ended:?}"
        );
        assert!(!dir.path().join("out.gguf").exists(), "{name}: {what}");
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn words(line: &str, dir: &str) -> Vec<String> {
    let model = small_model().to_str().unwrap();
    line.split(' ').map(|word| word.replace("MODEL", model).replace("DIR", dir)).collect()
}

#[test]
fn importance_matrices() {
    let line = "convert MODEL --type q4_k_m --imatrix DIR/im.dat -o DIR/out.gguf -q";
    refused("im.dat", |_| {}, |dir| words(line, dir));
}

#[test]
fn templates_of_a_folder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/import/tests/checkpoints");
    let fill = |dir: &Path| {
        copy(&root.join("llama"), dir);
        copy(&root.join("tokenizers/bpe-template"), dir);
    };
    let line = "convert DIR --pre gpt-2 -o DIR/out.gguf -q";
    refused("additional_chat_templates/x.jinja", fill, |dir| words(line, dir));
}

#[test]
fn settings_of_an_adapter() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("convert/tests/fixtures/peft/llama");
    let base = fixture.join("base.gguf");
    let fill = |dir: &Path| {
        fs::copy(fixture.join("adapter_model.safetensors"), dir.join("adapter_model.safetensors")).unwrap();
    };
    let line = format!("convert DIR -m {} -o DIR/out.gguf -q", base.display());
    refused("adapter_config.json", fill, |dir| words(&line, dir));
}

#[test]
fn texts_to_train_on() {
    for name in ["texts.jsonl", "texts.txt"] {
        let line = format!(
            "finetune -m MODEL -d DIR/{name} -o DIR/out.gguf --ctx 32 --steps 1 --device cpu -t 1 -q"
        );
        refused(name, |_| {}, |dir| words(&line, dir));
    }
}
