//! Failures on demand: with feature `faults`, which only tests switch on, any one step of a write can be made
//! to fail. Without it every step passes.

use std::io;

/// Steps of a write to the file system, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "faults"), allow(unreachable_pub))]
pub enum Step {
    /// Makes the temporary file, or opens the file that is appended to.
    Create,
    /// Writes some bytes. A failure leaves half of them written.
    Write,
    /// Gives the temporary file the permissions of the one it replaces.
    Permissions,
    /// Syncs the temporary file.
    Sync,
    /// Renames it.
    Rename,
    /// Syncs the folder. The new file is in place then.
    SyncFolder,
}

#[cfg(not(any(test, feature = "faults")))]
pub(crate) fn step(_: Step) -> io::Result<()> {
    Ok(())
}

#[cfg(any(test, feature = "faults"))]
pub(crate) use on::step;
#[cfg(any(test, feature = "faults"))]
#[cfg_attr(not(feature = "faults"), allow(unreachable_pub))]
pub use on::{failing_at, walk};

#[cfg(any(test, feature = "faults"))]
mod on {
    use super::{io, Step};
    use std::cell::Cell;
    use std::path::Path;

    thread_local! {
        /// Steps until the one that fails.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
        static FAILED: Cell<Option<Step>> = const { Cell::new(None) };
    }

    pub(crate) fn step(step: Step) -> io::Result<()> {
        match LEFT.get() {
            Some(0) => {
                LEFT.set(None);
                FAILED.set(Some(step));
                Err(io::Error::new(io::ErrorKind::StorageFull, format!("{step:?} fails in a test")))
            }
            left => {
                LEFT.set(left.map(|n| n - 1));
                Ok(())
            }
        }
    }

    /// Runs `work` with step number `n` of this thread failing, counted from 0. Gives what `work` returned
    /// and the step that failed; `None` when there were no more than `n` steps.
    #[cfg_attr(not(feature = "faults"), allow(unreachable_pub))]
    pub fn failing_at<T>(n: usize, work: impl FnOnce() -> T) -> (T, Option<Step>) {
        LEFT.set(Some(n));
        FAILED.set(None);
        let done = work();
        LEFT.set(None);
        (done, FAILED.take())
    }

    /// Has `write` write the file at `path`, which holds `before`, once for each step it takes, with that
    /// step failing, and once without. Returns the steps.
    ///
    /// # Panics
    /// When a failure is not reported with the path, or leaves anything but the old file or, after the last
    /// step, the new one (`is_new` knows it), or leaves another file in the folder.
    #[cfg_attr(not(feature = "faults"), allow(unreachable_pub))]
    pub fn walk(
        path: &Path,
        before: &[u8],
        is_new: impl Fn(&[u8]) -> bool,
        mut write: impl FnMut() -> Result<(), String>,
    ) -> Vec<Step> {
        let names = || {
            let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
            let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let mut steps = Vec::new();
        loop {
            std::fs::write(path, before).unwrap();
            let others = names();
            let (done, step) = failing_at(steps.len(), &mut write);
            let found = std::fs::read(path).unwrap();
            if matches!(step, None | Some(Step::SyncFolder)) {
                assert!(is_new(&found), "{step:?}: not the new file");
            } else {
                assert!(found == before, "{step:?}: not the old file");
            }
            assert_eq!(names(), others, "{step:?}");
            let Some(step) = step else {
                assert_eq!(done, Ok(()));
                return steps;
            };
            let said = done.expect_err("a step has failed");
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(said.contains(name) && said.contains("fails in a test"), "{step:?}: {said}");
            steps.push(step);
        }
    }
}
