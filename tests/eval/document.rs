//! Bytes to documents.

use ropewalk::eval::{documents, read_documents, Content, Document};

fn error(name: &str, bytes: &[u8]) -> String {
    documents(name, bytes.to_vec()).unwrap_err().to_string()
}

#[test]
fn one_per_file_or_line() {
    let doc = |name: &str, text: &str| Document::text(name, text);
    assert_eq!(documents("a.txt", b"one\ntwo".to_vec()).unwrap(), [doc("a.txt", "one\ntwo")]);
    let lines = b"{\"text\":\"x\\ny\",\"id\":3}\r\n\n{\"text\":\"\xc3\xa9\"}\n";
    assert_eq!(
        documents("a.JSONL", lines.to_vec()).unwrap(),
        [doc("a.JSONL:1", "x\ny"), doc("a.JSONL:3", "é")]
    );
}

#[test]
fn bad_bytes_are_one_line_naming_the_place() {
    assert_eq!(error("a.txt", b"abc\xffdef"), "a.txt: not UTF-8: bad byte at offset 3");
    assert_eq!(error("a.txt", b"ab\xc3"), "a.txt: not UTF-8: bad byte at offset 2");
    assert_eq!(error("a.txt", b""), "a.txt: the text is empty");
    assert!(error("a.jsonl", b"\n\n").starts_with("a.jsonl: no documents"));
    assert!(error("a.jsonl", b"{\"text\":\"x\"}\n{\"text\"").starts_with("a.jsonl:2: not JSON: "));
    assert_eq!(error("a.jsonl", b"[1]"), "a.jsonl:1: expected a JSON object, found an array");
    assert_eq!(error("a.jsonl", b"{\"text\":7}"), "a.jsonl:1: \"text\": expected a string, found a number");
    assert_eq!(error("a.jsonl", b"{\"txt\":\"\"}"), "a.jsonl:1: no \"text\" field");
    assert_eq!(error("a.jsonl", b"{\"text\":\"\"}"), "a.jsonl:1: the text is empty");
}

#[test]
fn bin_files_are_token_ids_of_two_bytes() {
    let found = documents("d/a.BIN", vec![1, 0, 0x34, 0x12, 0xff, 0xff]).unwrap();
    assert_eq!(found, [Document { name: "d/a.BIN".into(), content: Content::Ids(vec![1, 0x1234, 0xffff]) }]);
    let e = error("a.bin", &[1, 0, 2, 0, 3]);
    assert_eq!(e, "a.bin: offset 4: expected two bytes for a token id, found one (the file has 5 bytes)");
    assert_eq!(error("a.bin", b""), "a.bin: no token ids: the file is empty");
    // Whatever else a name says, other files are text.
    assert_eq!(documents("bin", b"ab".to_vec()).unwrap(), [Document::text("bin", "ab")]);
}

#[cfg(unix)]
#[test]
fn a_directory_stands_for_the_texts_below_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("books/deep")).unwrap();
    std::fs::create_dir(at("empty")).unwrap();
    for name in ["books/b.md", "books/deep/c.py", "books/d", "books/.e.txt", "f"] {
        std::fs::write(at(name), name).unwrap();
    }
    for (name, what) in [("pdf", &b"%PDF\0"[..]), ("gz", b"\x1f\x8b\x08"), ("empty", b"")] {
        std::fs::write(at("books").join(name), what).unwrap();
    }
    std::fs::write(at("books/a.jsonl"), "{\"text\":\"books/a.jsonl\"}").unwrap();
    std::os::unix::fs::symlink(at("f"), at("books/g.txt")).unwrap();
    std::os::unix::fs::symlink(at("books"), at("books/again")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("books/pipe.txt")).status().unwrap().success());
    let read = |name: &str| read_documents(&[at(name)]).unwrap().into_iter().map(|d| d.content);
    let texts = |names: &[&str]| names.iter().map(|&text| Content::Text(text.into())).collect::<Vec<_>>();
    assert!(read("books").eq(texts(&["books/a.jsonl", "books/b.md", "books/d", "books/deep/c.py", "f"])));
    assert!(read("f").eq(texts(&["f"])));
    let said = read_documents(&[at("empty")]).unwrap_err().to_string();
    assert!(said.ends_with("empty: expected text files, found none"), "{said}");
}
