//! Recipes of studies: which options they take, which settings these come to, and that a study that was begun is known.

use ropewalk::train::KEYS;
use ropewalk_core::adapter::{fingerprint, metadata_fingerprint};
use ropewalk_study::{CellResult, Known, Names, Plan, Record, State};
use sha2::{Digest, Sha256};

use crate::finetune::Folder;
use crate::study::{plan, study, with_plan};
use crate::units::options_of;

/// Options that decide where the same result is computed.
const MACHINE: &[&str] = &["device", "threads", "ubatch"];
/// Each option with a value other than its default, and each setting.
const OPTIONS: &str = "--alpha=3 --answers-only --attention=s2 --chat --ctx=64 --lr=1e-4 --math=f32 --rank=4 \
    --recipe=longlora --seed=7 --set=rslora=true --steps=7 --targets=q --transform=cip --device=cpu --threads=3 \
    --ubatch=64";
const SET: &str = "steps=7 batch=2 lr=1e-4 lr-min=1e-5 warmup=3 warmup-shape=log schedule=linear beta1=0.8 beta2=0.9 \
    weight-decay=0.1 clip=0.5 ema=0.5 dropout=0.1 rslora=true held-out=2 packing=truncate separator=eos doc-mask=true \
    eod-mask-loss=true loss=longce upsample=fu data-tokens=7 synthetic=0.3 order=text data-offset=7 text-field=body \
    token-type=u32 replace-invalid=true checkpointing=inputs saved-type=f16 eval-every=3 save-every=3";
/// Settings that name files, or are about them.
const REFUSED: &str = "output-type=f32 keep-last=3 checkpoints=thesis log=thesis.tex cache=thesis.tex";

/// Returns true if two recipes come to the same settings: a folder is of one plan alone.
fn same(folder: &Folder, a: &[&str], b: &[&str]) -> bool {
    std::fs::create_dir_all(folder.file("out")).unwrap();
    std::fs::write(folder.file("out/plan.toml"), plan(a)).unwrap();
    std::fs::write(folder.file("plan.toml"), plan(b)).unwrap();
    let out = study(folder, &["plan.toml", "-o", "out", "--plan"]);
    let differ = out.stderr.contains("(another methods)");
    assert!(differ || !out.stderr.contains("plan.toml: line"), "{a:?} {b:?}: {out:?}");
    !differ
}

/// The explanations of the words of a recipe.
fn refused(words: &[&str]) -> String {
    let out = study(&with_plan(words), &["plan.toml", "-o", "out", "--plan"]);
    assert!(out.code == 1 && out.stderr.lines().count() == 1, "{out:?}");
    out.stderr
}

/// The options that recipes have, as the program lists them.
fn taken() -> Vec<String> {
    let said = refused(&["--nonesuch"]);
    let (_, list) = said.trim().split_once("a recipe has only ").expect("a list");
    list.split(", ").map(str::to_owned).collect()
}

#[test]
fn every_option_that_is_taken_is_in_the_settings_or_of_the_machine() {
    let folder = with_plan(&[]);
    let mut names = Vec::new();
    for word in OPTIONS.split_whitespace() {
        let name = word.trim_start_matches('-').split('=').next().unwrap();
        assert_eq!(same(&folder, &[], &[word]), MACHINE.contains(&name), "{word}");
        names.push(name);
    }
    names.sort_unstable();
    assert_eq!(names, taken());
    let plain = ["--rank", "8", "--alpha=16", "--set", "order=shuffled,clip=1", "--steps=100"];
    assert!(same(&folder, &[], &plain));
    for word in SET.split_whitespace() {
        // Its schedule falls.
        let falls: &[&str] = if word.starts_with("lr-min") { &["--set", "schedule=cosine"] } else { &[] };
        let looks = ["checkpointing", "eval-every", "save-every"].iter().any(|key| word.starts_with(key));
        assert_eq!(same(&folder, falls, &[&["--set", word], falls].concat()), looks, "{word}");
    }
    for word in REFUSED.split_whitespace() {
        let name = word.split('=').next().unwrap();
        let said = refused(&["--set", word]);
        assert!(said.contains(&format!("--set {name}: not a setting of a recipe")), "{said}");
    }
    let n = [SET, REFUSED].iter().map(|all| all.split_whitespace().count()).sum::<usize>();
    assert_eq!(n, KEYS.len());
}

/// Reads every recipe as these settings.
struct Settings(&'static str);

impl Names for Settings {
    fn tasks(&self, name: &str) -> Result<Vec<Known>, String> {
        Err(format!("{name}: no benchmark"))
    }
    fn training(&self, _: &[String], _: Option<&str>) -> Result<String, String> {
        Ok(self.0.to_owned())
    }
}

/// Texts of the first version: with another text, a study that has been begun would train and measure all of it again. The
/// program shows them only in the name of a result, which it finds.
#[test]
fn studies_that_were_begun_are_known() {
    const PLAIN: &str = "Some(\"pi:factor=2\"), TrainParams { n_ctx: 0, n_positions: None, rope: None, attention: Full, lora: \
        LoraParams { targets: [\"q\", \"k\", \"v\", \"o\"], rank: 8, alpha: 16.0, rslora: false, dropout: 0.0, \
        norms: false, embeddings: false, all: false, seed: 42 }, n_block: 512, n_threads: 0, checkpointing: \
        None, saved_type: F32, dequantize_bytes: 134217728, math: Auto, portable: false }, 1, OptimParams { \
        adamw: AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 }, schedule: Schedule { lr: \
        0.0002, lr_min: 0.0, warmup: 0, warmup_shape: Linear, steps: 100000, decay: Constant }, clip: 1.0, \
        ema: 0.0 }, Settings { steps: Some(100000), batch: Some(1), lr: Some(0.0002), lr_min: Some(0.0), \
        warmup: Some(0), warmup_shape: Some(Linear), schedule: Some(Constant), beta1: Some(0.9), beta2: \
        Some(0.95), weight_decay: Some(0.0), clip: Some(1.0), ema: Some(0.0), dropout: Some(0.0), rslora: \
        Some(false), output_type: Some(F32), held_out: None, packing: Some(Pack), separator: Some(Auto), \
        doc_mask: Some(false), eod_mask_loss: Some(false), loss: Some(None), upsample: Some(None), \
        data_tokens: None, synthetic: None, order: Some(Shuffled), data_offset: None, text_field: \
        Some(\"text\"), token_type: Some(U16), replace_invalid: Some(false), checkpointing: None, saved_type: \
        Some(F32), eval_every: None, save_every: None, keep_last: Some(2), checkpoints: None, log: None, \
        cache: None }, None, false, false";
    const OTHER: &str = "Some(\"pi:factor=2\"), TrainParams { n_ctx: 64, n_positions: None, rope: None, attention: Shifted { \
        group: None }, lora: LoraParams { targets: [\"q\"], rank: 4, alpha: 3.0, rslora: true, dropout: 0.1, \
        norms: true, embeddings: false, all: false, seed: 7 }, n_block: 512, n_threads: 0, checkpointing: \
        None, saved_type: F16, dequantize_bytes: 134217728, math: F32, portable: false }, 64, OptimParams { \
        adamw: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }, schedule: Schedule { lr: \
        2e-5, lr_min: 0.0, warmup: 20, warmup_shape: Linear, steps: 100000, decay: Constant }, clip: 1.0, ema: \
        0.0 }, Settings { steps: Some(100000), batch: Some(64), lr: Some(2e-5), lr_min: Some(0.0), warmup: \
        Some(20), warmup_shape: Some(Linear), schedule: Some(Constant), beta1: Some(0.9), beta2: Some(0.999), \
        weight_decay: Some(0.0), clip: Some(1.0), ema: Some(0.0), dropout: Some(0.1), rslora: Some(true), \
        output_type: Some(F32), held_out: None, packing: Some(Pack), separator: Some(Eos), doc_mask: \
        Some(false), eod_mask_loss: Some(false), loss: Some(None), upsample: Some(None), data_tokens: None, \
        synthetic: None, order: Some(Shuffled), data_offset: None, text_field: Some(\"text\"), token_type: \
        Some(U16), replace_invalid: Some(false), checkpointing: None, saved_type: Some(F16), eval_every: None, \
        save_every: None, keep_last: Some(2), checkpoints: None, log: None, cache: None }, Some(\"cip\"), \
        true, true";
    let other = "--recipe=longlora --alpha=3 --answers-only --chat --ctx=64 --math=f32 --rank=4 --seed=7 --steps=100000 \
        --targets=q,norms --transform=cip --set=rslora=true,dropout=0.1,saved-type=f16";
    for (words, settings) in [("--steps=100000", PLAIN), (other, OTHER)] {
        let words: Vec<&str> = words.split_whitespace().collect();
        let text = format!(
            r#"title = "Begun"
lengths = [48]
texts = ["texts/1.txt"]
models = [{{ name = "tiny", path = "tiny.gguf" }}]
tasks = [{{ name = "perplexity", protocol = "window" }}]
[[methods]]
name = "tuned"
spec = "pi:factor=2"
train = {{ args = {words:?}, data = ["texts/2.txt"] }}
"#
        );
        let folder = Folder::new();
        std::fs::create_dir_all(folder.file("out/cells")).unwrap();
        for file in ["plan.toml", "out/plan.toml"] {
            std::fs::write(folder.file(file), &text).unwrap();
        }
        let sha256 = |name: &str| format!("{:x}", Sha256::digest(std::fs::read(folder.file(name)).unwrap()));
        let file = gguf::File::open(&folder.file("tiny.gguf")).unwrap();
        let model = format!("{} {}", fingerprint(&file), metadata_fingerprint(&file));
        let files = serde_json::to_string(&(format!("{model} f16 {}", sha256("texts/2.txt")), "")).unwrap();
        let plan = Plan::read(&folder.file("plan.toml"), &Settings(settings)).unwrap();
        let cell = plan.cells().next().unwrap();
        let hash = cell.hash(&files, &[sha256("texts/1.txt")]);
        let result = CellResult { value: 9.0, ..CellResult::default() };
        let record = Record { hash, cell: cell.key(), state: State::Done(Box::new(result)) };
        let path = folder.file(&format!("out/cells/{}.json", record.hash));
        std::fs::write(path, serde_json::to_string(&record).unwrap()).unwrap();
        let listed = study(&folder, &["plan.toml", "-o", "out", "--plan"]).json();
        assert_eq!((&listed["cells"], &listed["done"]), (&1.into(), &1.into()), "{settings}: {listed}");
    }
}

#[test]
fn ways_to_write_the_same_are_the_same() {
    let folder = with_plan(&[]);
    for (a, b) in [
        (&["--lr", "1e-4"][..], &["--lr=0.0001"][..]),
        (&["--lr", "1e-4"], &["--set", "lr=1e-4"]),
        (&["--ctx", "4k", "-r", "4"], &["-r4", "-c", "4096"]),
        (&["--targets", "q,norms", "--targets", "embeddings"], &["--targets=q,norms,embeddings"]),
    ] {
        assert!(same(&folder, a, b), "{a:?} {b:?}");
    }
}

/// Every option of `finetune` that is not taken.
#[test]
fn files_and_other_models_are_refused_by_name() {
    let taken = taken();
    let mut others = options_of("finetune");
    others.retain(|name| !taken.contains(name));
    assert!(others.len() > 10, "{others:?}");
    for name in others {
        let said = refused(&[&format!("--{name}")]);
        assert!(said.contains(&format!("unexpected argument '--{name}' found")), "{said}");
    }
    for (words, why) in [
        (&["thesis.tex"][..], "unexpected argument 'thesis.tex'"),
        (&["--steps", "2", "thesis.tex"], "unexpected argument 'thesis.tex'"),
        (&["--", "thesis.tex"], "unexpected argument 'thesis.tex'"),
        (&["--out", "x"], "unexpected argument '--out'"),
        (&["--steps"], "a value is required for '--steps <N>'"),
        (&["--steps", "none"], "invalid value 'none' for '--steps <N>'"),
        (&["--lr", "1", "--lr", "2"], "cannot be used multiple times"),
        (&["--targets", "full"], "a study measures adapters"),
        (&["--set", "batch=0"], "--set: batch: expected at least 1"),
        (&["--set", "bach=2"], "did you mean `batch`?"),
        (&["-qr", "4"], "unexpected argument '-q'"),
    ] {
        let said = refused(words);
        assert!(said.contains(why), "{words:?}: {said}");
    }
}
