//! A disk that fails.

use std::path::Path;

use files::faults::{failing_at, Step};
use ropewalk::internals::scheduler::keep;
use ropewalk::scheduler::{DiskParams, SchedulerParams};
use ropewalk::DType;

use super::super::model;
use super::{alone, request, run_one, session, start};
use crate::common::{open, some_tokens};

/// Texts in a directory, without what is hidden and removed by the next start.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != ".ropewalk-lock").collect()
}

/// A full disk at any step of a write leaves no part of a file, and a warning.
#[test]
fn any_step_that_fails_leaves_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(64, 1, "plain"));
    let text = some_tokens(9, m.hparams().n_vocab);
    let mut session = open(m, &plan);
    session.append(&text).unwrap();
    let params = DiskParams::new(dir.path().join("texts"), 1 << 20).n_tokens(1);
    let mut steps = Vec::new();
    loop {
        let (kept, step) = failing_at(steps.len(), || keep(&params, &session));
        let (found, warnings) = (names(&params.dir), kept.unwrap_or_else(|e| vec![e.to_string()]));
        let Some(step) = step else {
            assert_eq!((found.len(), warnings.len()), (1, 0), "{found:?}, {warnings:?}");
            break;
        };
        // The last step comes when the file is in place.
        assert_eq!(found.len(), usize::from(step == Step::SyncFolder), "{step:?}: {found:?}");
        assert!(warnings.len() == 1 && warnings[0].contains("fails in a test"), "{warnings:?}");
        found.iter().for_each(|name| std::fs::remove_file(params.dir.join(name)).unwrap());
        steps.push(step);
    }
    use Step::{Create, Rename, Sync, SyncFolder, Write};
    assert!([Create, Write, Sync, Rename, SyncFolder].iter().all(|step| steps.contains(step)), "{steps:?}");
    // Now it is known, and found.
    let files = names(&params.dir);
    assert!(keep(&params, &session).unwrap().is_empty() && names(&params.dir) == files);
    let scheduler = start(m, SchedulerParams::new(vec![plan.clone()]).disk(Some(params)));
    let told = run_one(&scheduler, request(&text, 2));
    assert_eq!((told.done().n_restored, told.tokens), (8, alone(m, &plan, &text, 2).0));
}
