//! An evening's work as one types it: a model breaks past its trained length, is extended, measured, trained, shipped and
//! talked to. Every option stands in the help of its command.
//!
//! The model of the first part has two layers and was trained to 128 tokens of one kind of text, in a second: what it shows
//! is what a user sees, in a second as well. The default model does the talking.

use std::path::Path;
use std::process::Stdio;

use convert::random::{write, Shape};
use ropewalk::DType;

use crate::common::program::{command, run_with, Output};
use crate::common::{default_model, fetched};
use crate::models::ok;

/// The tokens that the model was trained to.
const TRAINED: usize = 128;

/// Text that is predicted well by who knows the order of its words.
fn text(first: &str) -> String {
    let words = ["sea", "rope", "walk", "hemp", "tar"];
    let words: Vec<&str> = (0..1600).map(|n| words[(3 * n + n / 7) % words.len()]).collect();
    format!("{first}{}\n", words.join(" "))
}

/// One evening in a folder.
struct Evening {
    dir: tempfile::TempDir,
}

impl Evening {
    /// A folder with a model, a text to train on and another to measure.
    fn new() -> Evening {
        let evening = Evening { dir: tempfile::tempdir().unwrap() };
        let shape = Shape { n_ctx_train: TRAINED, ..Shape::named("llama-tiny").unwrap() };
        write(&shape, DType::Q8_0, 7, evening.dir.path().join("random.gguf")).unwrap();
        std::fs::create_dir(evening.dir.path().join("books")).unwrap();
        std::fs::write(evening.dir.path().join("books/1.txt"), text("")).unwrap();
        std::fs::write(evening.dir.path().join("essay.txt"), text("Another day.\n")).unwrap();
        let train =
            "finetune -m random.gguf -d books --rope plain --ctx 128 --steps 40 --lr 0.01 --set eval-every=0 -o words.gguf -t 1";
        ok(evening.types(train));
        ok(evening.types("convert random.gguf --lora words.gguf -o small.gguf"));
        evening
    }

    /// Types a line, whose options its command's help must have.
    #[track_caller]
    fn types(&self, line: &str) -> Output {
        let words: Vec<&str> = line.split_whitespace().collect();
        let help = ok(run_with(&[words[0], "--help-all"], "")).stdout;
        let known: Vec<&str> = help.split(|c: char| c.is_whitespace() || ",[]<>=.".contains(c)).collect();
        for word in words.iter().filter(|word| word.starts_with('-')) {
            let option = word.split('=').next().unwrap();
            assert!(known.contains(&option), "{line}: {option} is not in the help of {}", words[0]);
        }
        let mut command = command(&words);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        crate::common::program::finish(command)
    }

    fn has(&self, name: &str) -> bool {
        Path::new(&self.dir.path().join(name)).exists()
    }
}

/// The perplexities by position that a report's last table has.
fn by_position(report: &str) -> Vec<f64> {
    let rows = report.lines().skip_while(|line| !line.contains("position")).skip(2);
    rows.map_while(|line| line.split('|').nth(3)?.trim().parse().ok()).collect()
}

/// The perplexity of the only length.
#[track_caller]
fn perplexity(report: &Output) -> f64 {
    let row = report.stdout.lines().skip_while(|line| !line.contains("by token")).nth(2).expect("a row");
    row.split('|').nth(2).and_then(|cell| cell.trim().parse().ok()).unwrap_or_else(|| panic!("{row}"))
}

#[test]
fn a_model_breaks_is_extended_measured_trained_and_shipped() {
    let evening = Evening::new();

    // It breaks: far past its trained length it predicts worse and worse, and the program says where that began.
    let broken = ok(evening.types("perplexity -m small.gguf -f essay.txt -l 6k --bucket 512 -t 1"));
    let warned = "the context of 6144 tokens is longer than the original context of 128";
    assert!(broken.stderr.contains(warned), "{broken:?}");
    let by = by_position(&broken.stdout);
    assert_eq!(by.len(), 12, "{}", broken.stdout);
    assert!(by[11] > 4.0 * by[1], "{by:?}");

    // What a method does, before it is tried: a table of the angles, and what they come to.
    let shown = ok(evening.types("rope yarn:factor=48 -m small.gguf -c 6k"));
    assert!(shown.stdout.starts_with("small.gguf: rope yarn:factor=48,"), "{}", shown.stdout);
    for says in ["original context 128, target context 6,144", "interpolated", "extrapolated"] {
        assert!(shown.stdout.contains(says), "{says}: {}", shown.stdout);
    }

    // Which method: there is time for all, and since none finds a passkey the advice is to train.
    let advised = ok(evening.types("advise -m small.gguf -c 1k -f essay.txt --minutes 30 -t 1"));
    for method in ["plain", "yarn:factor=8", "streaming:", "passkeys (95 % interval)"] {
        assert!(advised.stdout.contains(method), "{method}: {}", advised.stdout);
    }
    assert!(advised.stdout.contains("without training this model does not work there"), "{}", advised.stdout);
    let next = advised.stdout.lines().map(str::trim).find(|line| line.starts_with("ropewalk finetune"));
    assert!(
        next.is_some_and(|line| line.contains("-m small.gguf") && line.contains("--ctx 1024")),
        "{next:?}"
    );

    // Measured with two methods: a table for each, and the difference.
    let passkeys =
        ok(evening.types("eval passkey -m small.gguf -l 1k -n 2 --rope plain --rope yarn:factor=8 -t 1"));
    let n_tables = passkeys.stdout.matches("| length | score | 95 % interval |").count();
    assert_eq!(n_tables, 2, "{}", passkeys.stdout);
    assert!(passkeys.stdout.contains("minus plain: +0.00"), "{}", passkeys.stdout);
    let data = fetched("benchmarks/ruler/nounlist.txt");
    let data = data.ancestors().nth(2).unwrap().display();
    let needles = "eval niah_single_1 -m small.gguf -l 2k -n 2 --set depth=0/100";
    let needles = ok(evening.types(&format!("{needles} --data {data} --plot map.svg -t 1")));
    assert!(needles.stdout.contains("depth | 2048\n    0 |"), "{}", needles.stdout);
    assert!(evening.has("map.svg"), "{needles:?}");

    // Trained under the method, it predicts as well far out as it did near by.
    let trained = "finetune -m small.gguf -d books --rope yarn:factor=8 --ctx 512 --steps 12 --lr 0.005 --set eval-every=0 -o long.gguf -t 1";
    let trained = ok(evening.types(trained));
    assert!(
        trained.stderr.contains("step 0: loss") && trained.stderr.contains("--lora long.gguf"),
        "{trained:?}"
    );
    assert!(evening.has("long.loss.svg") && evening.has("long.log.jsonl"));
    let frozen = ok(evening.types("perplexity -m small.gguf -f essay.txt -l 1k --rope yarn:factor=8 -t 1"));
    let tuned = ok(evening.types("perplexity -m small.gguf -f essay.txt -l 1k --lora long.gguf -t 1"));
    assert!(tuned.stdout.contains("rope      yarn:factor=8,"), "the adapter's: {}", tuned.stdout);
    assert!(perplexity(&tuned) < 0.7 * perplexity(&frozen), "{frozen:?} {tuned:?}");

    // Shipped: one file, which says what it is, and is what was measured.
    let shipped = "convert small.gguf --lora long.gguf --rope yarn:factor=8 -o shipped.gguf";
    let shipped = ok(evening.types(shipped));
    assert!(shipped.stderr.contains("llama-server -m shipped.gguf -c 1024"), "{shipped:?}");
    let inspected = ok(evening.types("inspect shipped.gguf"));
    assert!(inspected.stdout.contains("declared rope: yarn:factor=8,"), "{}", inspected.stdout);
    let alone = ok(evening.types("perplexity -m shipped.gguf -f essay.txt -l 1k -t 1"));
    let ratio = perplexity(&alone) / perplexity(&tuned);
    assert!((ratio - 1.0).abs() < 0.02, "{ratio}: {alone:?} {tuned:?}");
}

#[test]
fn the_shipped_model_is_talked_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.gguf");
    let (model, path) = (default_model(), path.to_str().unwrap());
    let made = ["convert", model.to_str().unwrap(), "--rope", "ntk:factor=2", "-o", path];
    assert!(ok(run_with(&made, "")).stderr.contains("llama-server -m "));
    let chat = ["chat", "-m", path, "--ctx", "16k", "--temp", "0", "-n", "24"];
    let help = ok(run_with(&["chat", "--help-all"], "")).stdout;
    for option in chat.iter().filter(|word| word.starts_with('-')) {
        assert!(help.contains(option), "{option}");
    }
    let lines = "What is the capital of France?\n/stats\n/rope plain\n/stats\n/quit\n";
    let talked = ok(run_with(&chat, lines));
    assert!(talked.stdout.starts_with("The capital of France is Paris."), "{talked:?}");
    let all = talked.stdout.clone() + &talked.stderr;
    for said in ["context 16,384 (declared 16,384, original 8,192)", "rope ntk:factor=2", "rope plain"] {
        assert!(all.contains(said), "{said}: {talked:?}");
    }
}
