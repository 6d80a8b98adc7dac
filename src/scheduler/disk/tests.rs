//! A disk that fails.

use files::faults::{failing_at, Step};

use super::*;
use crate::model::{Model, ModelParams};
use crate::session::SessionParams;

/// Texts in a directory, but for what hides and is removed by the next start.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != ".ropewalk-lock").collect()
}

/// A full disk at any step of a write leaves no part of a file, and a warning.
#[test]
fn any_step_that_fails_leaves_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let shape = convert::random::Shape::named("llama-tiny").unwrap();
    convert::random::write(&shape, crate::DType::Q8_0, 1, &path).unwrap();
    let model = Model::load(&path, &ModelParams::cpu()).unwrap();
    let mut session = Session::new(&model, &SessionParams::new(64).n_threads(1)).unwrap();
    session.append(&[1, 2, 3, 4, 5]).unwrap();
    let params = DiskParams::new(dir.path().join("texts"), 1 << 20).n_tokens(1);
    let (disk, stores) = Disk::open(&params, &[&session]).unwrap();
    let mut steps = Vec::new();
    loop {
        stores[0].save(&session, 0, b"", false);
        let write = disk.lock().writes.pop_front().expect("a text that is not on disk yet");
        let ((), step) = failing_at(steps.len(), || disk.write(write));
        let (found, warnings) = (names(&params.dir), disk.warnings());
        let Some(step) = step else {
            assert_eq!((found.len(), warnings.len()), (1, 0), "{found:?}, {warnings:?}");
            break;
        };
        // The last step comes when the file is in place.
        assert_eq!(found.len(), usize::from(step == Step::SyncFolder), "{step:?}: {found:?}");
        assert!(warnings.len() == 1 && warnings[0].contains("fails in a test"), "{warnings:?}");
        steps.push(step);
    }
    use Step::{Create, Rename, Sync, SyncFolder, Write};
    assert!([Create, Write, Sync, Rename, SyncFolder].iter().all(|step| steps.contains(step)), "{steps:?}");
    // Now it is known, and found.
    stores[0].save(&session, 0, b"", false);
    assert!(disk.lock().writes.is_empty());
    let found = stores[0].find(&session, b"", &[1, 2, 3, 9], 3, 0).unwrap();
    assert_eq!(
        (found.n, disk.lock().n_bytes),
        (3, std::fs::metadata(params.dir.join(found.name)).unwrap().len())
    );
}
