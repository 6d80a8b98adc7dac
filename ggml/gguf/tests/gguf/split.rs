//! Models split over several files: found, checked against each other, refused when a part is wrong.

use std::path::{Path, PathBuf};

use crate::bytes::*;
use gguf::{Defect, Error, File, Writer};

/// A part with one tensor of 8 floats named `t{no}`, all equal to `no`.
fn part(no: u16, count: u16, total: u32) -> Bytes {
    let b = Bytes::header(3, 1, 4)
        .key("split.no", U16)
        .raw(&no.to_le_bytes())
        .key("split.tensors.count", I32)
        .u32(total)
        .key("split.count", U16)
        .raw(&count.to_le_bytes())
        .key("general.name", STRING)
        .string(format!("part {no}"));
    b.tensor(&format!("t{no}"), &[8], 0, 0).pad(32).raw(&f32::from(no).to_le_bytes().repeat(8))
}

fn name(no: u16, count: u16) -> String {
    format!("m-{:05}-of-{count:05}.gguf", no + 1)
}

/// A folder with the parts of a model of three, as changed by `change(no, part)`.
fn model(change: impl Fn(u16, Bytes) -> Option<Bytes>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for no in 0..3 {
        if let Some(bytes) = change(no, part(no, 3, 3)) {
            bytes.save(folder.path(), &name(no, 3));
        }
    }
    let first = folder.path().join(name(0, 3));
    (folder, first)
}

fn defect(path: &Path) -> (PathBuf, Defect) {
    match File::open(path) {
        Err(Error::Gguf(e)) => (e.path, e.defect),
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_parts_are_one_file() {
    let (folder, first) = model(|_, b| Some(b));
    let file = File::open(&first).unwrap();
    assert_eq!(file.path(), first);
    assert_eq!(file.shards().len(), 3);
    assert_eq!(file.paths()[2], folder.path().join(name(2, 3)));
    assert_eq!(file.get::<String>("general.name").unwrap(), "part 0");
    let names: Vec<_> = file.tensors().iter().map(|t| (t.name.as_str(), t.shard)).collect();
    assert_eq!(names, [("t0", 0), ("t1", 1), ("t2", 2)]);
    for t in file.tensors() {
        assert_eq!(file.floats(t).unwrap(), [t.shard as f32; 8]);
    }

    let whole = folder.path().join("whole.gguf");
    let mut writer = Writer::with_metadata_of(&file);
    for t in file.tensors() {
        writer.copy_tensor(&file, t).unwrap();
    }
    writer.write(&whole).unwrap();
    let whole = File::open(&whole).unwrap();
    assert_eq!(whole.metadata(), &[("general.name".to_owned(), "part 0".into())]);
    assert_eq!(whole.floats(whole.tensor("t2").unwrap()).unwrap(), [2.0; 8]);
}

#[test]
fn a_relative_path_finds_its_neighbours() {
    let (folder, _) = model(|_, b| Some(b));
    let from = std::env::current_dir().unwrap();
    let up: PathBuf = from.components().skip(1).map(|_| "..").collect();
    let relative = up.join(folder.path().strip_prefix("/").unwrap()).join(name(0, 3));
    assert_eq!(File::open(&relative).unwrap().tensors().len(), 3);
}

#[test]
fn a_count_of_one_is_a_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    for count in [0, 1] {
        let path = part(0, count, 1).save(folder.path(), "any name.gguf");
        assert_eq!(File::open(&path).unwrap().tensors().len(), 1);
    }
}

#[test]
fn another_part_names_the_first() {
    let (folder, first) = model(|_, b| Some(b));
    let second = folder.path().join(name(1, 3));
    let e = File::open(&second).unwrap_err().to_string();
    assert!(
        e.ends_with(&format!("is part 2 of 3, expected the first part: open {} instead", first.display())),
        "{e}"
    );
    let renamed = folder.path().join("other.gguf");
    std::fs::rename(&second, &renamed).unwrap();
    let e = File::open(&renamed).unwrap_err().to_string();
    assert!(e.ends_with("key split.no: found 1, expected 0: open the first of the 3 parts"), "{e}");
}

#[test]
fn wrong_parts_are_refused() {
    // Missing.
    let (folder, first) = model(|no, b| (no != 2).then_some(b));
    let e = File::open(&first).unwrap_err();
    assert!(matches!(&e, Error::Io(e) if e.path == folder.path().join(name(2, 3))), "{e}");

    // The first again: a cycle.
    let (folder, first) = model(|no, b| Some(if no == 2 { part(0, 3, 3) } else { b }));
    let (path, d) = defect(&first);
    assert_eq!(path, folder.path().join(name(2, 3)));
    assert_eq!(d.to_string(), "key split.no: found 0, expected 2");

    // Of another model.
    let (_folder, first) = model(|no, b| Some(if no == 1 { part(1, 4, 3) } else { b }));
    assert_eq!(defect(&first).1.to_string(), "key split.count: found 4, expected 3");

    // No part at all, or none that says so.
    let (_folder, first) = model(|no, b| Some(if no == 1 { valid() } else { b }));
    assert_eq!(defect(&first).1.to_string(), "key split.no: found none, expected 1");
    let (_folder, first) = model(|no, b| Some(if no == 1 { Bytes(b"MZ..".to_vec()) } else { b }));
    assert!(matches!(defect(&first).1, Defect::Magic { .. }));

    // A tensor that another part has.
    let again =
        Bytes::header(3, 1, 1).key("split.no", U16).raw(&[2, 0]).tensor("t0", &[1], 0, 0).pad(32).zeros(4);
    let (_folder, first) = model(|no, b| Some(if no == 2 { again.clone() } else { b }));
    assert_eq!(defect(&first).1, Defect::DuplicateTensor { tensor: "t0".to_owned() });

    // A number of tensors that is not the sum.
    let (_folder, first) = model(|no, b| Some(if no == 0 { part(0, 3, 4) } else { b }));
    assert_eq!(
        defect(&first).1.to_string(),
        "found 3 tensors in all parts, expected 4 (split.tensors.count)"
    );
}

#[test]
fn wrong_names_and_keys_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |bytes: Bytes, name: &str, needle: &str| {
        let e = File::open(&bytes.save(folder.path(), name)).unwrap_err().to_string();
        assert!(e.contains(needle) && !e.contains('\n'), "{e}");
    };
    refused(part(0, 3, 3), "m.gguf", "its name does not end in -00001-of-00003.gguf");
    refused(part(0, 3, 3), "m-00001-of-00002.gguf", "its name does not end in -00001-of-00003.gguf");
    refused(part(0, 3, 3), "-00001-of-00003.gguf", "its name does not end in");
    refused(part(3, 3, 3), "m-00004-of-00003.gguf", "key split.no: found 3, expected an integer below 3");
    refused(part(9, 3, 3), "m.gguf", "key split.no: found 9, expected an integer below 3");
    refused(part(0, u16::MAX, 3), "m-00001-of-65535.gguf", "m-00002-of-65535.gguf: ");
    let key = |key: &str, t, v: &[u8]| Bytes::header(3, 0, 1).key(key, t).raw(v);
    refused(key("split.count", F32, &[0; 4]), "m.gguf", "key split.count: found f32 0, expected an integer");
    refused(
        key("split.count", I32, &[255; 4]),
        "m.gguf",
        "key split.count: found i32 -1, expected an integer",
    );
    refused(
        key("split.count", U32, &[0, 0, 1, 0]),
        "m.gguf",
        "key split.count: found 65536, expected at most 65535",
    );
    refused(key("split.count", U32, &[2, 0, 0, 0]), "m.gguf", "key split.no: found none");
    let b = Bytes::header(3, 0, 2).key("split.count", U32).u32(2).key("split.no", U8).u8(0);
    refused(b, "m-00001-of-00002.gguf", "key split.tensors.count: found none, expected an integer");
}

#[test]
fn parts_are_known_by_the_name_of_one() {
    let named = |name: &str| {
        let found = gguf::parts(&Path::new("models").join(name));
        found
            .iter()
            .map(|p| p.strip_prefix("models").unwrap().to_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let all = ["a-b-00001-of-00003.gguf", "a-b-00002-of-00003.gguf", "a-b-00003-of-00003.gguf"];
    for name in all {
        assert_eq!(named(name), all);
    }
    assert_eq!(named("a-00001-of-65535.gguf").len(), 65535);
    for whole in [
        "a.gguf",
        "a-00001-of-00003.bin",
        "a-00000-of-00003.gguf",
        "a-00004-of-00003.gguf",
        "a-1-of-3.gguf",
        "a-00001-of-99999.gguf",
        "a-00001-of-000003.gguf",
        "00001-of-00003.gguf",
    ] {
        assert_eq!(named(whole), [whole]);
    }
}
