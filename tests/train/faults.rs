//! Every file that the library writes, with each step of writing it made to fail in turn: create, write, permissions, sync,
//! rename, sync of the folder. The old file or the new one is there, and the error says so.

use std::path::Path;

use files::faults::{failing_at, walk, Step};
use ropewalk::control::Control;
use ropewalk::data::{Corpus, Separator, Sources, TextOptions};
use ropewalk::plot::{Axis, Chart, Scale, Series};
use ropewalk::session::{Session, SessionParams};
use ropewalk::train::Run;

use crate::checkpoint::{saved, small_model, try_load};
use crate::run::{adapter, World, STEPS};

/// Walks the steps of writing the file at `path`, which holds `before`, or the beginning of such a file; what is written
/// is the same each time.
fn walked(path: &Path, before: Option<&[u8]>, write: impl Fn() -> Result<(), String>) {
    write().unwrap();
    let new = std::fs::read(path).unwrap();
    let before = before.unwrap_or(&new[..new.len() / 2]);
    assert!(new != before);
    check(&walk(path, before, |found| found == new, write));
}

fn check(steps: &[Step]) {
    use Step::{Create, Permissions, Rename, Sync, SyncFolder, Write};
    let (first, last) = (&steps[..2], &steps[steps.len() - 4..]);
    assert_eq!(
        (first, last),
        (&[Create, Write][..], &[Permissions, Sync, Rename, SyncFolder][..]),
        "{steps:?}"
    );
}

fn text<T, E: ToString>(done: Result<T, E>) -> Result<(), String> {
    done.map(|_| ()).map_err(|e| e.to_string())
}

#[test]
fn pictures_adapters_and_sessions() {
    let world = World::new("faults");
    let chart = Chart {
        title: "a".into(),
        x: Axis::new("x", Scale::Linear),
        y: Axis::new("y", Scale::Linear),
        series: vec![Series::new("s", vec![(0.0, 1.0), (1.0, 2.0)])],
    };
    for name in ["a.svg", "a.png"] {
        walked(&world.path(name), None, || text(chart.write(world.path(name))));
    }
    let (trainer, optimizer, data) = world.parts();
    let run = Run::new(trainer, optimizer, data, Default::default()).unwrap();
    // A file that was cut off is no adapter any more: before it there is another one.
    let path = world.path("a.gguf");
    text(run.write_adapter(&path)).unwrap();
    let longer = [std::fs::read(&path).unwrap(), vec![0; 32]].concat();
    walked(&path, Some(&longer), || text(run.write_adapter(&path)));
    let mut session = Session::new(&world.model, &SessionParams::new(64).n_threads(1)).unwrap();
    let path = world.path("a.session");
    session.append(&[1, 2, 3]).unwrap();
    session.save(&path, &[]).unwrap();
    let before = std::fs::read(&path).unwrap();
    session.append(&[4]).unwrap();
    walked(&path, Some(&before), || text(session.save(&path, &[])));
}

#[test]
fn checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step-00000009.safetensors");
    let (params, optimizer, state) = saved(small_model(), &path);
    // Its head has its entries in any order.
    let whole = std::fs::read(&path).unwrap();
    let before = &whole[..whole.len() / 2];
    let is_new = |found: &[u8]| found != before && try_load(small_model(), &path).is_ok();
    check(&walk(&path, before, is_new, || {
        text(ropewalk::train::checkpoint::save(&path, &state, &params, &optimizer))
    }));
}

#[test]
fn tokens() {
    let world = World::new("faults-tokens");
    let sources = Sources::find(&[world.path("texts")], &TextOptions::default()).unwrap();
    let path = world.path("a.tokens");
    let open = || {
        let (vocab, separator) = (world.model.vocab(), Separator::Auto);
        Corpus::open(&path, vocab, &sources, &separator, &Control::default())
    };
    open().unwrap();
    let new = std::fs::read(&path).unwrap();
    // A file that is no cache is never replaced; one that is cut off is.
    let before = &new[..20];
    let steps = walk(&path, before, |found| found == new, || text(open()));
    check(&steps);
}

/// Whichever write of a run fails once, log and checkpoints included, the run ends as if none had.
#[test]
fn a_run_outlives_every_write_that_fails() {
    let world = World::small("faults-run");
    let run = |name: &str, fails: usize| {
        std::fs::create_dir(world.path(name)).unwrap();
        let mut run = world.new_run(world.params(name)).unwrap();
        let notes = std::sync::Mutex::new(String::new());
        let note = |text: std::fmt::Arguments<'_>| *notes.lock().unwrap() += &format!("{text}\n");
        let (done, step) = failing_at(fails, || run.train(&Control::default().with_notes(&note)));
        done.unwrap_or_else(|e| panic!("{step:?}: {e}"));
        let log = std::fs::read_to_string(world.path(name).join("log.jsonl")).unwrap();
        let (n_lines, problems) = (log.lines().count(), run.report().problems);
        let bytes = adapter(&run, &world.path(&format!("{name}.gguf")));
        drop(run);
        let left = std::fs::read_dir(world.path(name).join("checkpoints")).unwrap().count();
        (bytes, n_lines, problems, left, notes.into_inner().unwrap(), step)
    };
    let (whole, all_lines, ..) = run("whole", usize::MAX);
    assert_eq!(all_lines as u64, STEPS + 4, "a header, steps, and validations");
    let (mut n, mut n_problems) = (0, 0);
    loop {
        let (bytes, n_lines, problems, left, notes, step) = run(&format!("run{n}"), n);
        assert!(bytes == whole, "{step:?}: another adapter");
        let Some(step) = step else { break };
        assert!(notes.contains("fails in a test"), "{step:?}: {notes}");
        // Only the last write of each kind has no later one that makes up for it.
        n_problems += problems.len();
        let unsaved = format!("no checkpoint of step {STEPS}: ");
        let known = |p: &String| p.starts_with("the log lacks its last ") || p.starts_with(&unsaved);
        assert!(problems.iter().all(known), "{problems:?}");
        assert_eq!(n_lines < all_lines, problems.iter().any(|p| p.starts_with("the log lacks")), "{step:?}");
        assert!(left >= 1, "{step:?}");
        n += 1;
    }
    assert!(n > 2 * (STEPS as usize + 3) + 2 * 6, "{n} steps");
    assert!((2..20).contains(&n_problems), "{n_problems}");
}

/// A file in place of the folder stands for a disk that stays full.
#[cfg(unix)]
#[test]
fn checkpoints_that_never_can_be_written_are_named_once_and_at_the_end() {
    let world = World::new("faults-full");
    let folder = world.path("run/checkpoints");
    std::fs::create_dir(world.path("run")).unwrap();
    let mut run = world.new_run(world.params("run")).unwrap();
    std::fs::rename(&folder, world.path("moved")).unwrap();
    std::fs::write(&folder, "").unwrap();
    let notes = std::sync::Mutex::new(String::new());
    let note = |text: std::fmt::Arguments<'_>| *notes.lock().unwrap() += &format!("{text}\n");
    run.train(&Control::default().with_notes(&note)).unwrap();
    let (said, problems) = (notes.into_inner().unwrap(), run.report().problems);
    assert_eq!(said.matches("; training continues").count(), 1, "{said}");
    let last = format!("no checkpoint of step {STEPS}: ");
    assert!(problems.len() == 1 && problems[0].starts_with(&last), "{problems:?}");
}
