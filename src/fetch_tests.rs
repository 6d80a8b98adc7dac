//! Tests of `fetch` that need no server; `tests/cli/pull.rs` runs the whole against one on this machine.

use super::*;

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn nobody() -> Hub {
    // Port 1 of the loopback address: refused at once, no packet leaves the machine.
    Hub { endpoint: Some("http://127.0.0.1:1".to_owned()), token: None }
}

#[test]
fn the_builtin_manifest_is_sound() {
    let m = Manifest::builtin().unwrap();
    let entry = m.get("smollm2").unwrap();
    assert_eq!(entry.file_name(), "SmolLM2-135M-Instruct.Q4_1.gguf");
    assert_eq!(m.get("smollm2-135m-instruct-q4_1").unwrap().sha256, entry.sha256);
    assert!(m.get("nonesuch").is_none());
}

#[test]
fn manifests_are_checked() {
    let good =
        format!("[[model]]\nname='a'\nsource='hf:o/r/f.gguf'\nsha256='{EMPTY}'\nbytes=0\nlicence='MIT'\n");
    assert!(Manifest::parse(&good, "x").is_ok());
    for (from, to, hint) in [
        ("hf:o/r/f.gguf", "hf:o/r", "hf:ORG/REPO/FILE"),
        ("e3b0", "E3B0", "64 lower-case"),
        ("bytes=0", "bytes='zero'", "line 5"),
        ("licence", "license", "unknown field"),
        ("name='a'", "", "missing field"),
        ("[[model]]", "[[model", "line 1"),
    ] {
        let e = Manifest::parse(&good.replace(from, to), "my.toml").unwrap_err().to_string();
        assert!(e.contains("my.toml") && e.contains(hint) && !e.contains('\n'), "{e}");
    }
    let twice = format!("{good}{good}");
    assert!(Manifest::parse(&twice, "x").unwrap_err().to_string().contains("twice"));
}

#[test]
fn sources() {
    let s: Source = "hf:org/repo/dir/file-Q4_K.gguf".parse().unwrap();
    assert_eq!(
        (s.repo.as_str(), s.file.as_str(), s.file_name()),
        ("org/repo", "dir/file-Q4_K.gguf", "file-Q4_K.gguf")
    );
    assert_eq!(s.to_string(), "hf:org/repo/dir/file-Q4_K.gguf");
    for bad in [
        "",
        "hf:",
        "hf:a/b",
        "hf:a/b/",
        "hf:a//c",
        "hf:a/b/../c",
        "hf:a/b/c?d",
        "hf:a/b/c d",
        "a/b/c",
        "hf:a/b/.x",
    ] {
        assert!(bad.parse::<Source>().is_err(), "{bad}");
    }
}

#[test]
fn split_models_have_all_their_parts() {
    let s: Source = "hf:o/r/m-00001-of-00003.gguf".parse().unwrap();
    let names: Vec<_> = s.parts().iter().map(|p| p.file.clone()).collect();
    assert_eq!(names, ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]);
    for whole in ["hf:o/r/m.gguf", "hf:o/r/m-00002-of-00003.gguf", "hf:o/r/m-00001-of-3.gguf"] {
        assert_eq!(whole.parse::<Source>().unwrap().parts().len(), 1, "{whole}");
    }
}

#[test]
fn a_file_that_is_here_is_checked_not_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let source: Source = "hf:o/r/f.gguf".parse().unwrap();
    std::fs::write(dir.path().join("f.gguf"), b"").unwrap();
    let got = pull(&nobody(), &source, dir.path(), Some(EMPTY), &Control::default()).unwrap();
    assert!(!got.fresh && got.verified && got.bytes == 0 && got.sha256 == EMPTY);

    std::fs::write(dir.path().join("f.gguf"), b"other").unwrap();
    let e = pull(&nobody(), &source, dir.path(), Some(EMPTY), &Control::default()).unwrap_err();
    assert!(matches!(&e, FetchError::Checksum { expected, .. } if expected == EMPTY), "{e}");
    assert_eq!(std::fs::read(dir.path().join("f.gguf")).unwrap(), b"other", "left alone");

    let got = pull(&nobody(), &source, dir.path(), None, &Control::default()).unwrap();
    assert!(!got.verified, "nothing to compare with");
    std::fs::write(dir.path().join("f.gguf.sha256"), format!("{EMPTY}  f.gguf\n")).unwrap();
    assert!(pull(&nobody(), &source, dir.path(), None, &Control::default()).is_err(), "the record counts");
}

#[test]
fn a_hub_that_cannot_be_reached_is_one_line_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source: Source = "hf:o/r/f.gguf".parse().unwrap();
    let e = pull(&nobody(), &source, dir.path(), None, &Control::default()).unwrap_err().to_string();
    assert!(e.starts_with("hf:o/r/f.gguf: ") && !e.contains('\n'), "{e}");
    assert!(!dir.path().join("f.gguf").exists());
}

#[test]
fn sums_of_known_contents() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("abc");
    std::fs::write(&path, b"abc").unwrap();
    let last = std::sync::Mutex::new((0, 0));
    let show = |p: &crate::control::Progress<'_>| *last.lock().unwrap() = (p.done, p.total);
    let (sum, n) = sha256_of(&path, &Control::default().with_progress(&show)).unwrap();
    assert_eq!(sum, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!((n, *last.lock().unwrap()), (3, (3, 3)));
}
