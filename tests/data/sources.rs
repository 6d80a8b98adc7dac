//! Which files are read, and what of them.

use std::io::Write;
use std::path::PathBuf;

use flate2::write::GzEncoder;
use flate2::Compression;
use ropewalk::data::{Records, Separator, Sources, TextOptions};

use crate::world::{everything, expected, refused, vocab, World};

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// Paths below the texts.
fn found(world: &World, paths: &[PathBuf]) -> Vec<String> {
    let sources = Sources::find(paths, &TextOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let below = |p: &PathBuf| p.strip_prefix(world.texts()).unwrap().to_string_lossy().into_owned();
    sources.files().iter().map(|f| below(&f.path)).collect()
}

#[test]
fn folders_are_read_down_in_order_without_what_is_hidden_or_binary() {
    let world = World::of(&[
        ("b.txt", "b"),
        ("a/z.ml", "z"),
        ("a/b/c.tex", "c"),
        ("a.md", "a"),
        ("B.html", "B"),
        (".hidden", "x"),
        (".git/config", "x"),
        ("a/.x/y", "x"),
        ("no-extension", "n"),
    ]);
    world.put("picture", b"\x89PNG\0\0");
    world.put("packed.gz", &gz(b"zero \0 byte"));
    assert_eq!(
        found(&world, &[world.texts()]),
        ["B.html", "a/b/c.tex", "a/z.ml", "a.md", "b.txt", "no-extension"]
    );
    let notes = world.sources().unwrap().notes().join("\n");
    assert!(notes.contains("picture: skipped: binary (a zero byte at offset 4)"), "{notes}");
    assert!(notes.contains("packed.gz: skipped: binary (a zero byte at offset 5)"), "{notes}");
    // In the order named, and nothing twice.
    let both = [world.path("b.txt"), world.texts(), world.path("a.md")];
    let files = found(&world, &both);
    assert_eq!(files, ["b.txt", "B.html", "a/b/c.tex", "a/z.ml", "a.md", "no-extension"]);
    // A hidden file that is named is wanted.
    assert_eq!(found(&world, &[world.path(".hidden")]), [".hidden"]);
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_loops_end() {
    let world = World::of(&[("a/one.txt", "1"), ("two.txt", "2")]);
    std::os::unix::fs::symlink(world.texts(), world.path("a/up")).unwrap();
    std::os::unix::fs::symlink(world.path("two.txt"), world.path("a/again")).unwrap();
    assert_eq!(found(&world, &[world.texts()]), ["a/again", "a/one.txt"]);
    std::os::unix::fs::symlink(world.path("nowhere"), world.path("broken")).unwrap();
    let e = refused(world.sources());
    assert!(e.contains("broken"), "{e}");
}

#[test]
fn a_file_is_one_document_and_a_line_of_jsonl_too() {
    let world = World::of(&[
        ("a.txt", "first\n\nstill first"),
        (
            "b.jsonl",
            "{\"text\":\"one\",\"id\":1}\n\n{\"id\":2,\"text\":\"two\\nlines\"}\n{\"text\":\"  \"}\n",
        ),
        ("c.JSONL", "{\"text\":\"three\"}"),
        ("blank.txt", " \n\t"),
        ("empty", ""),
    ]);
    world.put("d.txt.gz", &gz("packed ä".as_bytes()));
    world.put("e.ndjson.gz", &[gz(b"{\"text\":\"x\"}\n{\"te"), gz(b"xt\":\"y\"}\n")].concat());
    world.put("f.txt", "\u{feff}marked".as_bytes());
    let corpus = world.corpus();
    let want = [
        ("a.txt", "first\n\nstill first"),
        ("b.jsonl:1", "one"),
        ("b.jsonl:3", "two\nlines"),
        ("c.JSONL:1", "three"),
        ("d.txt.gz", "packed ä"),
        ("e.ndjson.gz:1", "x"),
        ("e.ndjson.gz:2", "y"),
        ("f.txt", "marked"),
    ];
    let mut want: Vec<_> = want.map(|(name, text)| (name.to_owned(), expected(text))).into();
    want.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(everything(&world, &corpus), want);
    assert_eq!(corpus.n_tokens(), want.iter().map(|(_, t)| t.len() as u64).sum::<u64>());
}

#[test]
fn the_field_of_the_text_can_be_named() {
    let world = World::of(&[("a.jsonl", "{\"content\":\"here\",\"text\":\"not here\"}")]);
    let options = TextOptions::default().records(Records::Text("content".into()));
    let corpus = world.open_with(vocab(), &Separator::Auto, &options).unwrap();
    assert_eq!(everything(&world, &corpus), [("a.jsonl:1".to_owned(), expected("here"))]);
}

#[test]
fn marks_and_line_ends_are_those_of_every_command() {
    let world = World::new();
    world.put("a.txt", b"\xef\xbb\xbfone\r\ntwo\rthree\n");
    world.put("b.jsonl", b"\xef\xbb\xbf{\"text\":\"one\\r\\ntwo\"}\r\n");
    let corpus = world.open().unwrap();
    let texts = ["one\ntwo\nthree\n", "one\ntwo"];
    assert_eq!(
        everything(&world, &corpus).into_iter().map(|(_, t)| t).collect::<Vec<_>>(),
        texts.map(expected)
    );
    for (name, text) in ["a.txt", "b.jsonl"].into_iter().zip(texts) {
        let bytes = std::fs::read(world.path(name)).unwrap();
        let read = ropewalk::eval::documents(name, bytes).unwrap();
        assert_eq!(read[0].content, ropewalk::eval::Content::Text(text.to_owned()));
    }
    world.put("c.txt", b"\xff\xfeo\0n\0e\0");
    let named = world.path("c.txt");
    assert!(refused(Sources::find(&[named], &TextOptions::default()))
        .contains("c.txt: UTF-16 by its byte-order mark"));
    assert!(world.sources().unwrap().notes()[0].contains("c.txt: skipped: UTF-16"));
}

#[test]
fn bytes_that_are_not_utf8_are_named_or_replaced() {
    let world = World::new();
    world.put("a.txt", b"good\nbad \xff here");
    let e = refused(world.open());
    assert!(e.ends_with("a.txt: not UTF-8: bad byte at offset 9"), "{e}");
    let options = TextOptions::default().replace_invalid(true);
    let corpus = world.open_with(vocab(), &Separator::Auto, &options).unwrap();
    assert_eq!(everything(&world, &corpus), [("a.txt".to_owned(), expected("good\nbad \u{fffd} here"))]);
    assert!(
        corpus.notes()[0].contains("a.txt: 1 texts had bytes that are not UTF-8"),
        "{:?}",
        corpus.notes()
    );

    world.put("a.txt", b"\xef\xbb\xbfok\xff");
    assert!(refused(world.open()).ends_with("bad byte at offset 5"), "the mark counts");
    std::fs::remove_file(world.path("a.txt")).unwrap();
    world.put("b.jsonl", b"{\"text\":\"\"}\n{\"text\":\"\xfe\"}\n");
    let e = refused(world.open());
    assert!(e.ends_with("b.jsonl:2: not UTF-8: bad byte at offset 21"), "{e}");
}

#[test]
fn lines_that_are_no_texts_are_errors_with_their_place() {
    for (line, what) in [
        ("{\"txt\":\"a\"}", "a.jsonl:2: no \"text\" field"),
        ("plain", "a.jsonl:2: not JSON"),
        (&"[".repeat(100_000), "a.jsonl:2: not JSON"),
    ] {
        let world = World::of(&[("a.jsonl", &format!("{{\"text\":\"fine\"}}\n{line}\n"))]);
        let e = refused(world.open());
        assert!(e.contains(what), "{e}");
        assert!(world.beside().is_empty(), "nothing is left of a cache that was not finished");
    }
}

#[test]
fn no_text_at_all_is_an_error() {
    let world = World::new();
    let e = refused(world.sources());
    assert!(e.contains("texts"), "a path that is not there is named: {e}");
    std::fs::create_dir(world.texts()).unwrap();
    assert!(refused(world.sources()).contains("no text to train on"));
    assert!(refused(Sources::find(&[], &TextOptions::default())).contains("no text to train on"));
    world.put("a.dat", b"\0");
    let e = refused(world.sources());
    assert!(e.contains("no text to train on") && e.contains("1 files skipped"), "{e}");
    let e = refused(Sources::find(&[world.path("a.dat")], &TextOptions::default()));
    assert!(e.ends_with("a.dat: binary (a zero byte at offset 0): expected text"), "{e}");
    world.put("blank.txt", b"\n \n");
    let e = refused(world.open());
    assert!(e.contains("all of 1 files are blank"), "{e}");
    assert!(world.beside().is_empty());
}

#[test]
fn a_damaged_gzip_file_is_an_error() {
    let world = World::new();
    let packed = gz(crate::world::prose(20, 3).as_bytes());
    world.put("a.txt.gz", &packed[..packed.len() - 9]);
    assert!(refused(world.open()).contains("a.txt.gz"));
    world.put("a.txt.gz", b"not packed");
    assert!(refused(world.open()).contains("a.txt.gz"));
}
