//! A folder with a random model, and what is made of it.

use std::path::{Path, PathBuf};

use convert::random::{write, Shape};
use gguf::{DType, File};
use ropewalk_core::adapter::{AdapterFile, AdapterMeta, NewPair};

/// Whether `make soak` runs the tests.
pub(crate) fn soaks() -> bool {
    std::env::var_os("ROPEWALK_SOAK").is_some()
}

pub(crate) struct Lab(pub(crate) tempfile::TempDir);

impl Lab {
    /// With `in.gguf`, a model of this shape.
    pub(crate) fn new(shape: &str, dtype: DType, seed: u64) -> Lab {
        let lab = Lab(tempfile::tempdir().unwrap());
        write(&Shape::named(shape).unwrap(), dtype, seed, lab.path("in")).unwrap();
        lab
    }
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(format!("{name}.gguf"))
    }
    pub(crate) fn open(&self, name: &str) -> File {
        File::open(&self.path(name)).unwrap()
    }
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
    pub(crate) fn files(&self) -> Vec<String> {
        names(self.0.path())
    }
}

/// Names of the entries of a folder, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// An adapter of pairs alone, whose alpha is its rank.
pub(crate) fn of_pairs(rank: usize, pairs: Vec<NewPair<'_>>, meta: AdapterMeta) -> AdapterFile<'_> {
    let (alpha, modules_to_save) = (rank as f32, Vec::new());
    AdapterFile { arch: "llama", rank, alpha, pairs, modules_to_save, meta, dtype: DType::F32 }
}
