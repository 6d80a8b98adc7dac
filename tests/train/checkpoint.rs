//! Checkpoints: no damaged or foreign file changes anything. That runs go on from them bit by bit, `resumed` tests.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use ropewalk::model::Model;
use ropewalk::train::checkpoint::{list, load, path, prune, save, State};
use ropewalk::train::optim::{AdamW, Decay, OptimParams, Optimizer, Schedule};
use ropewalk::train::{LoraParams, ParamSet, Trainable};
use safetensors::SafeTensors;

use crate::common::process::{alone, run_alone, test_program};
use crate::gradients::{settings, targets};

fn optim(ema: f64) -> OptimParams {
    OptimParams::new(Schedule::constant(1e-2, 16).warmup(3).decay(Decay::Cosine))
        .adamw(AdamW::default().weight_decay(0.01))
        .ema(ema)
}

fn names(rank: usize) -> BTreeMap<String, String> {
    BTreeMap::from([("rank".into(), rank.to_string()), ("rope".into(), "plain".into())])
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The smallest thing to keep.
pub(crate) fn small(model: &Model, rank: usize, on: &[&str], ema: f64) -> (ParamSet, Optimizer) {
    let lora = LoraParams::default().targets(targets(on)).rank(rank);
    let params = ParamSet::new(model, &Trainable::Lora(lora)).unwrap();
    let optimizer = Optimizer::new(optim(ema), &params).unwrap();
    (params, optimizer)
}

/// One with numbers everywhere, saved.
pub(crate) fn saved(model: &Model, file: &Path) -> (ParamSet, Optimizer, State) {
    let (mut params, mut optimizer) = small(model, 1, &["q"], 0.9);
    let mut x = 0.0f32;
    let mut next = || {
        x += 0.125;
        x
    };
    for (i, t) in params.list_mut().iter_mut().enumerate() {
        let average = &mut optimizer.average.as_mut().unwrap()[i];
        let state = &mut optimizer.moments[i];
        for v in [&mut t.value, average, &mut state.m, &mut state.v] {
            v.iter_mut().for_each(|v| *v = next());
        }
    }
    optimizer.step = 9;
    let state = State { step: 9, n_seen: 18, settings: names(1) };
    save(file, &state, &params, &optimizer).unwrap();
    (params, optimizer, state)
}

/// Loads into a fresh state; an error must have changed nothing.
pub(crate) fn try_load(model: &Model, file: &Path) -> Result<(ParamSet, Optimizer, State), String> {
    let (mut params, mut optimizer) = small(model, 1, &["q"], 0.9);
    let (before, optimizer_before) = (params.list().to_vec(), optimizer.clone());
    match load(file, &names(1), &mut params, &mut optimizer) {
        Ok(state) => Ok((params, optimizer, state)),
        Err(e) => {
            assert!(
                params.list() == before && optimizer == optimizer_before,
                "a failed load changed something"
            );
            Err(e.to_string())
        }
    }
}

pub(crate) fn small_model() -> &'static Model {
    static MODEL: std::sync::OnceLock<Model> = std::sync::OnceLock::new();
    MODEL.get_or_init(|| crate::gradients::named_model("checkpoint"))
}

fn good() -> &'static (Vec<u8>, Vec<f32>, Optimizer, State) {
    static GOOD: std::sync::OnceLock<(Vec<u8>, Vec<f32>, Optimizer, State)> = std::sync::OnceLock::new();
    GOOD.get_or_init(|| {
        let folder = folder();
        let file = folder.path().join("a");
        let (params, optimizer, state) = saved(small_model(), &file);
        (std::fs::read(&file).unwrap(), all_values(&params), optimizer, state)
    })
}

fn all_values(params: &ParamSet) -> Vec<f32> {
    params.list().iter().flat_map(|t| t.value.clone()).collect()
}

/// Bytes before the numbers: the length of the header, and the header.
fn n_header(bytes: &[u8]) -> usize {
    8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
}

fn check_flipped(at: usize, bits: u8) {
    let (bytes, values, optimizer, state) = good();
    let mut damaged = bytes.clone();
    damaged[at] ^= bits;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &damaged).unwrap();
    match try_load(small_model(), file.path()) {
        Err(e) => assert!(e.contains(&*file.path().to_string_lossy()), "{e}: which file?"),
        // Blanks after the header's text, and which program wrote it, are all that nothing depends on.
        Ok((params, o, s)) => {
            assert!(at < n_header(bytes), "byte {at} of a tensor changed unseen");
            assert!(all_values(&params) == *values && o == *optimizer && s == *state, "byte {at}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_byte_is_found(at in any::<prop::sample::Index>(), bits in 1u8..) {
        check_flipped(at.index(good().0.len()), bits);
    }

    /// Most of a file is numbers; this one stays in the header.
    #[test]
    fn a_flipped_byte_of_the_header_is_found(at in any::<prop::sample::Index>(), bits in 1u8..) {
        check_flipped(at.index(n_header(&good().0)), bits);
    }
}

#[test]
fn a_cut_file_is_an_error() {
    let (bytes, ..) = good();
    let file = tempfile::NamedTempFile::new().unwrap();
    let header = n_header(bytes);
    let lengths = (0..bytes.len()).step_by(97).chain([1, 7, 8, 9, header - 1, header, bytes.len() - 1]);
    for n in lengths {
        std::fs::write(file.path(), &bytes[..n]).unwrap();
        try_load(small_model(), file.path()).map(|_| ()).expect_err(&format!("{n} bytes"));
    }
    let mut longer = bytes.clone();
    longer.push(0);
    std::fs::write(file.path(), &longer).unwrap();
    try_load(small_model(), file.path()).map(|_| ()).expect_err("a byte more");
}

/// The same tensors with other words in the header.
fn rewritten(change: impl Fn(&mut HashMap<String, String>)) -> tempfile::NamedTempFile {
    let (bytes, ..) = good();
    let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
    let mut meta = header.metadata().clone().unwrap();
    change(&mut meta);
    let all = SafeTensors::deserialize(bytes).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), safetensors::serialize(all.tensors(), Some(meta)).unwrap()).unwrap();
    file
}

#[test]
fn words_of_the_header_count() {
    let same = rewritten(|_| ());
    assert!(try_load(small_model(), same.path()).is_ok());
    let error = |change: &dyn Fn(&mut HashMap<String, String>)| {
        try_load(small_model(), rewritten(change).path()).map(|_| ()).expect_err("changed")
    };
    let set = |key: &'static str, value: &'static str| {
        move |m: &mut HashMap<String, String>| {
            m.insert(key.into(), value.into());
        }
    };
    let e = error(&set("format", "2"));
    assert!(e.contains("format: expected 1, found 2"), "{e}");
    let e = error(&|m| {
        m.remove("format");
    });
    assert!(e.contains("format: expected 1, found none"), "{e}");
    assert!(error(&set("sha256", "00")).contains("damaged"));
    assert!(error(&set("state", "{}")).contains("damaged"));
    let e = error(&|m| {
        m.remove("state");
    });
    assert!(e.contains("state"), "{e}");
}

#[test]
fn a_checkpoint_of_another_run_is_an_error() {
    let (folder, model) = (folder(), small_model());
    let file = path(folder.path(), 9);
    saved(model, &file);
    let error = |settings: BTreeMap<String, String>, rank: usize, on: &[&str], ema: f64| {
        let (mut params, mut optimizer) = small(model, rank, on, ema);
        let (before, optimizer_before) = (params.list().to_vec(), optimizer.clone());
        let e = load(&file, &settings, &mut params, &mut optimizer).expect_err("another run").to_string();
        assert!(params.list() == before && optimizer == optimizer_before, "changed: {e}");
        e
    };
    let e = error(names(2), 1, &["q"], 0.9);
    assert!(e.ends_with("rank: the run was started with 1, this is 2"), "{e}");
    let mut more = names(1);
    more.insert("lr".into(), "1".into());
    let e = error(more, 1, &["q"], 0.9);
    assert!(e.ends_with("lr: the run was started with nothing, this is 1"), "{e}");
    // What the settings do not say, the tensors do.
    let e = error(names(1), 2, &["q"], 0.9);
    assert!(e.contains("value.blk.0.attn_q.weight.lora_a: expected"), "{e}");
    let e = error(names(1), 1, &["q", "k"], 0.9);
    assert!(e.contains("attn_k") && e.contains("found none"), "{e}");
    let e = error(names(1), 1, &["k"], 0.9);
    assert!(e.contains("attn_k"), "{e}");
    let e = error(names(1), 1, &["q"], 0.0);
    assert!(e.contains("tensors"), "an average that is not kept: {e}");
    let (params, optimizer) = small(model, 1, &["q", "k"], 0.9);
    save(&file, &State { step: 1, n_seen: 1, settings: names(1) }, &params, &optimizer).unwrap();
    let e = error(names(1), 1, &["q"], 0.9);
    assert!(e.contains("tensors"), "tensors that are not trained: {e}");
}

#[test]
fn files_that_are_not_there_or_cannot_be_are_errors() {
    let (folder, model) = (folder(), small_model());
    let (params, optimizer) = small(model, 1, &["q"], 0.9);
    let state = State { step: 1, n_seen: 1, settings: names(1) };
    for file in [folder.path().join("none"), folder.path().to_path_buf()] {
        let e = try_load(model, &file).map(|_| ()).expect_err("no file");
        assert!(e.starts_with(&*file.to_string_lossy()), "{e}");
    }
    // Its folder is a file.
    let text = folder.path().join("text");
    std::fs::write(&text, "x").unwrap();
    let e = save(&path(&text, 1), &state, &params, &optimizer).expect_err("no folder").to_string();
    assert!(e.starts_with(&*text.to_string_lossy()), "{e}");
    assert_eq!(std::fs::read(&text).unwrap(), b"x");
    // A folder takes its place: the file written next to it is gone.
    let taken = folder.path().join("taken");
    std::fs::create_dir_all(taken.join("inside")).unwrap();
    save(&taken, &state, &params, &optimizer).expect_err("a folder");
    let mut left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["taken", "text"]);
    // Folders are made.
    let deep = path(&folder.path().join("a/b"), 1);
    save(&deep, &state, &params, &optimizer).unwrap();
    assert!(try_load(model, &deep).is_ok());
}

/// As on a full disk, writing stops half way: in a process whose files may not grow beyond a limit.
#[cfg(unix)]
#[test]
fn writing_that_fails_leaves_the_old_checkpoint() {
    if let Some(file) = alone() {
        let how = settings(8, 8, "plain").lora(LoraParams::default().rank(16));
        // The other process has written it.
        let model = crate::common::load(&crate::common::scratch("train-checkpoint.gguf"));
        let params = ParamSet::new(&model, &how.trainable).unwrap();
        let optimizer = Optimizer::new(optim(0.9), &params).unwrap();
        let state = State { step: 2, n_seen: 2, settings: names(1) };
        let e = save(&PathBuf::from(file), &state, &params, &optimizer).expect_err("a full disk");
        println!("said: {e}");
        return;
    }
    let folder = folder();
    let file = path(folder.path(), 9);
    let (params, ..) = saved(small_model(), &file);
    let before = std::fs::read(&file).unwrap();
    assert!(before.len() < 40_000);
    // A signal that is ignored leaves write() with an error. 80 blocks of 512 or 1024 bytes.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 80; exec \"$0\" \"$@\""]).arg(test_program());
    let test = "writing_that_fails_leaves_the_old_checkpoint";
    let said = run_alone(limited, module_path!(), test, file.to_str().unwrap());
    assert!(said.contains("said: ") && said.contains("step-00000009"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "something was left behind");
    let (found, ..) = try_load(small_model(), &file).unwrap();
    assert!(found.list() == params.list());
}

#[test]
fn the_newest_whole_ones_are_kept() {
    let folder = folder();
    let whole = &good().0;
    let touch = |name: &str| std::fs::write(folder.path().join(name), "x").unwrap();
    for step in [5, 20, 100, 99_999_999, 100_000_000] {
        std::fs::write(path(folder.path(), step), whole).unwrap();
    }
    let others = ["step-.safetensors", "step-x1.safetensors", "step-00000001.txt", "adapter.gguf"];
    others.iter().for_each(|name| touch(name));
    let steps = |n: &[u64]| n.iter().map(|&s| path(folder.path(), s)).collect::<Vec<_>>();
    assert_eq!(list(folder.path()), steps(&[5, 20, 100, 99_999_999, 100_000_000]));
    prune(folder.path(), 9);
    assert_eq!(list(folder.path()).len(), 5);
    prune(folder.path(), 3);
    assert_eq!(list(folder.path()), steps(&[100, 99_999_999, 100_000_000]));
    // One that is cut off does not count, and stays.
    std::fs::write(path(folder.path(), 100_000_000), &whole[..whole.len() - 1]).unwrap();
    prune(folder.path(), 1);
    assert_eq!(list(folder.path()), steps(&[99_999_999, 100_000_000]));
    // The last one always stays.
    prune(folder.path(), 0);
    assert_eq!(list(folder.path()), steps(&[99_999_999, 100_000_000]));
    assert!(others.iter().all(|name| folder.path().join(name).exists()));
    assert!(list(&folder.path().join("none")).is_empty());
    prune(&folder.path().join("none"), 1);
}
