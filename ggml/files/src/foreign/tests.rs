//! A folder with links, pipes, and files of others.

use std::os::unix::fs::symlink;

use super::*;

/// A folder with a file, and everything that is none.
fn world() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("private"), "key").unwrap();
    fs::create_dir_all(at("shard/samples/deep")).unwrap();
    fs::write(at("shard/plain"), "plain").unwrap();
    fs::write(at("shard/samples/a.jsonl"), "{}\n").unwrap();
    symlink(at("private"), at("shard/link")).unwrap();
    symlink(dir.path(), at("shard/folder-link")).unwrap();
    symlink(at("nowhere"), at("shard/dangling")).unwrap();
    symlink("/dev/zero", at("shard/zero")).unwrap();
    let pipe = at("shard/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_bits_truncate(0o600),
        0,
    )
    .unwrap();
    std::os::unix::net::UnixListener::bind(at("shard/socket")).unwrap();
    dir
}

#[test]
fn regular_files_are_read_up_to_the_limit() {
    let dir = world();
    let folder = Folder::open(&dir.path().join("shard")).unwrap();
    assert_eq!(folder.read(Path::new("plain"), 5).unwrap().unwrap(), b"plain");
    assert_eq!(folder.read(Path::new("./samples/a.jsonl"), 99).unwrap().unwrap(), b"{}\n");
    assert!(folder.read(Path::new("none"), 5).unwrap().is_none());
    assert!(folder.read(Path::new("no/folder"), 5).unwrap().is_none());
    let said = folder.read(Path::new("plain"), 4).unwrap_err().to_string();
    assert!(said.contains("more than 4 bytes"), "{said}");
}

#[test]
fn whatever_else_has_a_name_is_refused_at_once() {
    let dir = world();
    let folder = Folder::open(&dir.path().join("shard")).unwrap();
    for (name, why) in [
        ("link", "symbolic link"),
        ("dangling", "symbolic link"),
        ("zero", "symbolic link"),
        ("folder-link/private", "symbolic link"),
        ("pipe", "not a regular file"),
        ("socket", "not a regular file"),
        ("samples", "not a regular file"),
        ("plain/under", "not a folder"),
        ("../private", "leads out"),
        ("/etc/hostname", "leads out"),
    ] {
        let said = folder.read(Path::new(name), 99).expect_err(name).to_string();
        assert!(said.contains(why), "{name}: {said}");
        assert!(said.contains(name.rsplit('/').next().unwrap()), "{name}: {said}");
    }
}

#[test]
fn names_are_listed_without_links_on_the_way() {
    let dir = world();
    let folder = Folder::open(&dir.path().join("shard")).unwrap();
    assert_eq!(folder.names(Path::new("samples"), 9).unwrap(), ["a.jsonl", "deep"]);
    assert_eq!(folder.names(Path::new("."), 9).unwrap().len(), 8);
    assert!(folder.names(Path::new("none"), 9).unwrap().is_empty());
    assert!(folder.names(Path::new("."), 7).unwrap_err().to_string().contains("more than 7"));
    assert!(folder.names(Path::new("folder-link"), 9).unwrap_err().to_string().contains("symbolic"));
    assert!(Folder::open(&dir.path().join("private")).is_err());
}

#[test]
fn what_is_removed_is_no_more_than_a_name() {
    let dir = world();
    let folder = Folder::open(&dir.path().join("shard")).unwrap();
    for name in ["link", "plain", "none"] {
        folder.remove(Path::new(name)).unwrap();
        assert!(folder.file(Path::new(name)).unwrap().is_none(), "{name}");
    }
    assert_eq!(fs::read(dir.path().join("private")).unwrap(), b"key");
    assert!(folder.remove(Path::new("samples")).is_err() && folder.remove(Path::new("../private")).is_err());
    folder.remove(Path::new("samples/a.jsonl")).unwrap();
    assert!(dir.path().join("private").exists() && dir.path().join("shard/samples/deep").exists());
}

#[test]
fn files_that_the_user_named_may_be_links_but_no_pipes() {
    let dir = world();
    let at = |name: &str| dir.path().join("shard").join(name);
    assert_eq!(read_file(&at("link"), 3).unwrap(), b"key");
    assert!(read_file(&at("link"), 2).unwrap_err().to_string().contains("more than 2"));
    for name in ["pipe", "zero", "samples", "socket"] {
        for said in [read_file(&at(name), 9).unwrap_err(), open_input(&at(name)).unwrap_err()] {
            assert!(said.to_string().contains("not a regular file"), "{name}: {said}");
        }
    }
    let dangling = read_file(&at("dangling"), 9).unwrap_err();
    assert_eq!(dangling.source.kind(), ErrorKind::NotFound);
    let huge = at("huge");
    File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    assert!(read_text(&huge, 9).unwrap_err().to_string().contains("more than 9"));
    fs::write(at("plain"), b"\xff").unwrap();
    assert!(read_text(&at("plain"), 9).unwrap_err().to_string().contains("not UTF-8"));
}
