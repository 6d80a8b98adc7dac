//! Writing: all or nothing, exact lengths, refused names; nothing is left behind.

use std::io;
use std::path::Path;

use gguf::{Array, DType, Error, File, Value, Writer};

/// A writer whose one tensor has 8 floats, given by `data`.
fn writer<'a>(data: impl FnMut(&mut dyn io::Write) -> io::Result<()> + 'a) -> Writer<'a> {
    let mut w = Writer::new();
    w.set("general.architecture", "llama");
    w.tensor("t", DType::F32, &[8], Box::new(data)).unwrap();
    w
}

/// Names in a folder.
fn listed(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A file of this program.
fn marked() -> Writer<'static> {
    let mut w = Writer::new();
    w.set("ropewalk.version", "1");
    w
}

/// Asserts that writing `w` fails with an error of one line that names the path and contains `needle`, and
/// that the file written over is unchanged.
fn assert_fails(w: Writer<'_>, needle: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    // A file that could be replaced.
    marked().write(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let e = w.write(&path).unwrap_err().to_string();
    assert!(e.contains(needle) && e.contains("out.gguf") && !e.contains('\n'), "{e}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(listed(folder.path()), ["out.gguf"]);
}

#[test]
fn set_keeps_the_place_of_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let mut w = Writer::new();
    w.set("a", 1u32).set("b", "two").set("c", vec![1.0f32, 2.0]).set("a", Value::U8(9)).remove("b");
    assert_eq!(w.write(&path).unwrap(), std::fs::metadata(&path).unwrap().len());
    let file = File::open(&path).unwrap();
    assert_eq!((file.version(), file.alignment(), file.tensors().len()), (3, 32, 0));
    assert_eq!(file.get::<Vec<f64>>("c").unwrap(), [1.0, 2.0]);
    assert_eq!(file.metadata()[0], ("a".to_owned(), Value::U8(9)));
    assert_eq!(file.metadata().len(), 2);
}

#[test]
fn the_whole_file_is_padded_and_aligned() {
    let folder = tempfile::tempdir().unwrap();
    for alignment in [1u32, 2, 32, 4096] {
        let path = folder.path().join(format!("{alignment}.gguf"));
        let mut w = Writer::new();
        w.set("general.alignment", alignment);
        for (i, n) in [3u64, 1, 16, 5].into_iter().enumerate() {
            w.tensor_bytes(&format!("t{i}"), DType::I8, &[n], vec![i as u8; n as usize]).unwrap();
        }
        let n = w.write(&path).unwrap();
        assert_eq!(n % u64::from(alignment), 0);
        let file = File::open(&path).unwrap();
        for (i, t) in file.tensors().iter().enumerate() {
            assert_eq!(t.offset % alignment as usize, 0);
            assert_eq!(file.data(t).to_vec().unwrap(), vec![i as u8; t.n_bytes]);
        }
    }
}

#[test]
fn data_of_another_length_is_refused() {
    let data = |n: usize| writer(move |out| (0..n).try_for_each(|_| out.write_all(&[1])));
    let expected = |n: usize| format!("tensor t: {n} bytes of data were produced, expected 32");
    for n in [0, 31, 33] {
        assert_fails(data(n), &expected(n));
    }
    assert_fails(writer(|out| out.write_all(&[0; 1000])), &expected(1000));
    // Not even when the function hides that it was told so.
    assert_fails(
        writer(|out| {
            out.write_all(&[0; 32])?;
            let _ = out.write_all(&[0; 2]);
            Ok(())
        }),
        &expected(34),
    );
}

#[test]
fn a_failing_source_leaves_everything_as_it_was() {
    assert_fails(
        writer(|out| {
            out.write_all(&[0; 16])?;
            Err(io::Error::other("the source broke"))
        }),
        "tensor t: the source broke",
    );
    assert_fails(writer(|_| Err(io::Error::from(io::ErrorKind::StorageFull))), "tensor t: no storage space");
}

/// A file system that takes no more bytes, as a full disk would: the limit on a file's size is set so that
/// the write fails in the middle. It holds for a whole process, so this test starts itself again under it.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_everything_as_it_was() {
    let big = || {
        let mut w = Writer::new();
        w.tensor(
            "t",
            DType::I8,
            &[16 << 20],
            Box::new(|out| io::copy(&mut io::Read::take(io::repeat(7), 16 << 20), out).map(drop)),
        )
        .unwrap();
        w
    };
    if std::env::var_os("GGUF_TEST_FULL_DISK").is_some() {
        assert_fails(big(), "File too large");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(big().write(folder.path().join("out.gguf")).unwrap() > 16 << 20);
    let me = std::env::current_exe().unwrap();
    // 2048 blocks are one or two MiB; the signal that comes with the error is ignored, as for a daemon.
    let status = std::process::Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 2048; \
             exec \"$0\" --exact write::a_full_disk_leaves_everything_as_it_was",
        ])
        .arg(me)
        .env("GGUF_TEST_FULL_DISK", "1")
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn tensors_that_no_file_can_hold_are_refused() {
    let mut w = Writer::new();
    w.tensor_bytes("t", DType::F32, &[1], [0; 4]).unwrap();
    let mut refused = |name: &str, dtype, shape: &[u64], needle: &str| {
        let e = w.tensor_bytes(name, dtype, shape, []).map(drop).unwrap_err();
        assert!(matches!(&e, Error::Argument(_)) && e.to_string().contains(needle), "{e}");
    };
    refused("t", DType::F32, &[1], "tensor t: found twice");
    refused("", DType::F32, &[1], "an empty name");
    refused("a\0", DType::F32, &[1], "NUL");
    refused(&"x".repeat(64), DType::F32, &[1], "found 64, expected at most 63");
    refused("u", DType::F32, &[], "0 dimensions");
    refused("u", DType::F32, &[1; 5], "5 dimensions");
    refused("u", DType::F32, &[3, 0], "[3, 0]");
    refused("u", DType::Q4_K, &[128], "whole q4_k blocks of 256");
    refused("u", DType::F32, &[1 << 40, 1 << 40], "overflows");
    // A refused tensor leaves the writer usable.
    let folder = tempfile::tempdir().unwrap();
    w.write(folder.path().join("out.gguf")).unwrap();
}

#[test]
fn metadata_the_reader_would_refuse_is_not_written() {
    let set = |key: &str, value: Value| {
        let mut w = Writer::new();
        w.set(key, value);
        w
    };
    assert_fails(set("", Value::U8(0)), "an empty name");
    assert_fails(set("a\0", Value::U8(0)), "NUL");
    assert_fails(set(&"k".repeat(65536), Value::U8(0)), "found 65536, expected at most 65535");
    assert_fails(set("general.alignment", Value::U32(24)), "key general.alignment: found u32 24");
    assert_fails(set("general.alignment", Value::U64(32)), "key general.alignment: found u64 32");
    let deep = (0..8).fold(Array::U8(vec![]), |inner, _| Array::Array(vec![inner]));
    assert_fails(set("deep", Value::Array(deep)), "nested more than 8 deep");
    let huge = (0..3).fold(Writer::new(), |mut w, i| {
        w.tensor_bytes(&format!("t{i}"), DType::I8, &[1 << 62], []).unwrap();
        w
    });
    assert_fails(huge, "overflows");
}

#[test]
fn only_files_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let e = Writer::new().write(folder.path()).unwrap_err().to_string();
    assert!(e.contains("is not a regular file"), "{e}");
    let e = Writer::new().write(folder.path().join("no/such/out.gguf")).unwrap_err();
    assert!(matches!(e, Error::Io(_)) && e.to_string().contains("no/such/out.gguf"), "{e}");
    assert!(Writer::new().write(Path::new("/")).is_err());
    assert!(Writer::new().write(Path::new("")).is_err());
    assert!(listed(folder.path()).is_empty());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let socket = folder.path().join("socket");
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(Writer::new().write(&socket).unwrap_err().to_string().contains("is not a regular file"));
        std::fs::remove_file(&socket).unwrap();

        // A link is replaced, what it leads to stays; permissions of a replaced file are kept.
        let (target, link) = (folder.path().join("target"), folder.path().join("link.gguf"));
        marked().write(&target).unwrap();
        let before = std::fs::read(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(files::same_file(&target, &link).unwrap());
        marked().write(&link).unwrap();
        assert!(!files::same_file(&target, &link).unwrap());
        assert_eq!(std::fs::read(&target).unwrap(), before);
        std::fs::set_permissions(&link, std::fs::Permissions::from_mode(0o640)).unwrap();
        marked().write(&link).unwrap();
        assert_eq!(std::fs::metadata(&link).unwrap().permissions().mode() & 0o777, 0o640);
    }
}

#[test]
fn a_file_can_be_replaced_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = crate::bytes::valid().save(folder.path(), "m.gguf");
    let file = File::open(&path).unwrap();
    let mut w = Writer::with_metadata_of(&file);
    w.set("added", true);
    for t in file.tensors() {
        w.copy_tensor(&file, t).unwrap();
    }
    assert!(w.copy_tensor(&file, &file.tensors()[0].clone()).is_err(), "twice");
    let mut foreign = file.tensors()[0].clone();
    foreign.offset += 1;
    assert!(w.copy_tensor(&file, &foreign).unwrap_err().to_string().contains("is not a tensor of this file"));
    w.write(gguf::Output::new(&path, true)).unwrap();
    assert_eq!(File::open(&path).unwrap().metadata().len(), 6);
    assert_eq!(file.metadata().len(), 5);
}

#[test]
fn only_a_file_with_a_mark_and_of_the_same_kind_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let kinds = ["", "adapter", "imatrix"];
    for (i, old) in kinds.iter().enumerate() {
        for (j, new) in kinds.iter().enumerate() {
            for is_marked in [false, true] {
                let path = dir.path().join(format!("{i}{j}{is_marked}"));
                let write = |of: &str| {
                    let mut w = Writer::new();
                    // Whatever stands before the mark and the type.
                    w.set("tokenizer.text", "x".repeat(100_000).as_str());
                    if is_marked {
                        w.set("ropewalk.version", "1");
                    }
                    if !of.is_empty() {
                        w.set("general.type", of);
                    }
                    w.write(&path)
                };
                write(old).unwrap();
                let before = std::fs::read(&path).unwrap();
                let done = write(new);
                assert_eq!(done.is_ok(), is_marked && i == j, "{old} {new} {is_marked}: {done:?}");
                assert_eq!(std::fs::read(&path).unwrap(), before);
            }
        }
    }
}
