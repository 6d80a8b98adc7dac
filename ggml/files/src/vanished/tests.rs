//! Maps whose files are cut short.

use super::*;
use crate::Map;

/// Set for the process that loses a file.
const ALONE: &str = "ROPEWALK_FILES_TEST_ALONE";

/// More maps than any table of a fixed size would have been made for: a split model has up to 65,535 files.
#[test]
fn the_last_of_many_maps_is_named() {
    const N: usize = 5000;
    let test = "vanished::tests::the_last_of_many_maps_is_named";
    if let Ok(folder) = std::env::var(ALONE) {
        explain_vanished_files();
        let [part, last] = ["part", "last"].map(|name| Path::new(&folder).join(name));
        let map = |path: &Path| Map::open(path).unwrap();
        // Some are given back, and taken again.
        drop((0..100).map(|_| map(&part)).collect::<Vec<_>>());
        let parts: Vec<Map> = (0..N).map(|_| map(&part)).collect();
        let cut = map(&last);
        std::fs::File::options().write(true).open(&last).unwrap().set_len(0).unwrap();
        let [byte] = std::hint::black_box(cut.bytes()).array(cut.len() - 1).unwrap();
        unreachable!("read {byte}, with {} maps", parts.len());
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["part", "last"] {
        std::fs::write(folder.path().join(name), vec![1; 1 << 16]).unwrap();
    }
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, folder.path());
    let output = alone.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = format!("error: {}: cannot be read any more", folder.path().join("last").display());
    assert!(output.status.code() == Some(1) && said.starts_with(&expected), "{:?}: {said}", output.status);
}

/// libllama maps files itself.
#[cfg(target_os = "linux")]
#[test]
fn a_map_of_other_code_is_named() {
    let test = "vanished::tests::a_map_of_other_code_is_named";
    if let Ok(folder) = std::env::var(ALONE) {
        explain_vanished_files();
        let path = Path::new(&folder).join("a\u{1b}b");
        let file = std::fs::File::open(&path).unwrap();
        let map = memmap2::MmapOptions::new().map_raw_read_only(&file).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        // SAFETY: within the map.
        let byte = unsafe { map.as_ptr().add(map.len() - 1).read_volatile() };
        unreachable!("read {byte}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a\u{1b}b"), vec![1; 1 << 16]).unwrap();
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, folder.path());
    let output = alone.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = format!("error: {}: cannot be read any more", folder.path().join("a?b").display());
    assert!(output.status.code() == Some(1) && said.starts_with(&expected), "{:?}: {said}", output.status);
}

/// Entries are read while others write them: no address is ever in a range made of the ends of two.
#[test]
fn entries_are_read_whole() {
    // Addresses that no map of this process has.
    let (low, high) = (16..32, 64..96);
    let path = |name: &str| CString::new(name).unwrap();
    let stays = Registered::new(128..256, path("stays"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    drop(Registered::new(low.clone(), path("low")));
                    drop(Registered::new(high.clone(), path("high")));
                }
            });
        }
        let at = |address: usize| Entry::all().find_map(|entry| entry.path_at(address));
        for _ in 0..200_000 {
            assert!(at(48).is_none(), "between two ranges");
            let found = at(200).expect("a map that stays");
            // SAFETY: the path of an entry that stays.
            assert_eq!(unsafe { std::ffi::CStr::from_ptr(found) }, c"stays");
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(stays);
    assert!(Entry::all().all(|entry| entry.path_at(200).is_none()));
}
