//! Imports compared with what llama.cpp's converter makes of the same checkpoints, recorded by
//! `tests/reference/checkpoints.py`; and folders that are damaged or hostile.

use std::path::PathBuf;

use ropewalk_import::{Checkpoint, Tokenizing};

#[path = "../../../../tests/common/checkpoints.rs"]
mod checkpoints;
mod folders;
mod hostile;
mod keys;
mod recorded;
mod tokenizers;

use checkpoints::Recorded;

/// A checkpoint with its tokenizer, in a separate folder.
struct Folder {
    _root: tempfile::TempDir,
    path: PathBuf,
    recorded: Recorded,
}

impl Folder {
    fn of(name: &str) -> Folder {
        let root = tempfile::tempdir().unwrap();
        let (path, recorded) = (root.path().join("tiny-model"), Recorded::of(name));
        recorded.copy(&path);
        Folder { _root: root, path, recorded }
    }
    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
    /// Changes a JSON file.
    fn edit(&self, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let path = self.file(name);
        let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        std::fs::write(path, value.to_string()).unwrap();
    }
    fn open(&self) -> Result<Checkpoint, String> {
        self.open_as(self.recorded.pre())
    }
    /// With a kind to force. The tokenizers are ours.
    fn open_as(&self, pre: Option<&str>) -> Result<Checkpoint, String> {
        Checkpoint::open(&self.path, pre, Some(&Tokenizing::Trusted)).map_err(|e| e.to_string())
    }
}
