//! Tests of `fetch` that need no server; `pull` runs the whole against one on this machine.

use ropewalk::control::{Control, Progress};
use ropewalk::fetch::{pull, Hub, Request, Source};
use ropewalk::internals::fetch::{address, follow, path_of, Answer, Failure};
use ropewalk::internals::origin::said;
use ropewalk::origin::{make_file, sha256_of, Error, Origin};
use ureq::http::{HeaderMap, HeaderValue};
use url::Url;

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn nobody() -> Hub {
    // Port 1 of the loopback address: refused at once, no packet leaves the machine.
    Hub::default().endpoint(Some("http://127.0.0.1:1".to_owned())).retries(1)
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
        "hf:a/b/f.gguf.source.json",
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

/// `tests/cli/pull.rs` has the rest: files of other sources, of other sizes, and without a record.
#[test]
fn a_file_that_is_here_is_checked_not_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let source: Source = "hf:o/r/f.gguf".parse().unwrap();
    let unknown = Request::new(&source);
    let sum = unknown.clone().sha256(Some(EMPTY));
    let pull = |request: &Request<'_>| pull(&nobody(), request, dir, &Control::default());
    std::fs::write(dir.join("f.gguf"), "x").unwrap();
    let e = pull(&sum).unwrap_err().to_string();
    assert!(e.contains(&format!("expected sha256 {EMPTY}")), "{e}");
    std::fs::write(dir.join("f.gguf.source.json"), "{}").unwrap();
    let e = pull(&unknown).unwrap_err().to_string();
    assert!(e.contains("f.gguf.source.json: expected the record of a pull"), "{e}");
    assert_eq!(std::fs::read_to_string(dir.join("f.gguf")).unwrap(), "x", "left alone");
    assert!(!dir.join(".partial").exists());
}

#[test]
fn a_hub_that_cannot_be_reached_is_one_line_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source: Source = "hf:o/r/f.gguf".parse().unwrap();
    let said = std::sync::Mutex::new(Vec::new());
    let note = |text: std::fmt::Arguments<'_>| said.lock().unwrap().push(text.to_string());
    let control = Control::default().with_notes(&note);
    // Neither a refused connection nor a name that no server knows is tried again.
    // Its first part is too long for any: no server is asked.
    let unknown = nobody().endpoint(Some(format!("http://{}.invalid", "a".repeat(64))));
    for hub in [nobody(), unknown] {
        let e = pull(&hub, &Request::new(&source), dir.path(), &control).unwrap_err().to_string();
        assert!(e.starts_with("hf:o/r/f.gguf: ") && !e.contains("tries") && !e.contains('\n'), "{e}");
    }
    assert!(said.lock().unwrap().is_empty(), "{said:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_token_stays_with_the_hub_and_off_plain_http() {
    let start: Url = "https://hub.example/o/r/resolve/main/f".parse().unwrap();
    let answer = |status, headers: &[(&'static str, &str)]| {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        Answer::head(status, all)
    };
    let tag = format!("\"{EMPTY}\"");
    // The hub's own redirects keep the token; another server's never get it, nor the hub after them.
    for (hops, tokens) in [
        (vec!["/o/new/resolve/main/f", ""], vec![true, true]),
        (vec!["https://cdn.example/f", ""], vec![true, false]),
        (vec!["https://hub.example:8443/f", ""], vec![true, false]),
        (vec!["https://cdn.example/f", "https://hub.example/g", ""], vec![true, false, false]),
    ] {
        let (mut seen, mut at) = (Vec::new(), hops.iter());
        let get = |_: &Url, token: Option<&str>| {
            seen.push(token.is_some());
            Ok(match *at.next().unwrap() {
                "" => answer(200, &[("x-repo-commit", "../..")]),
                location => answer(302, &[("location", location), ("x-linked-etag", &tag)]),
            })
        };
        let (known, last) = follow(&start, Some("secret"), get).unwrap();
        assert_eq!((seen, last.status), (tokens, 200), "{hops:?}");
        assert_eq!(known.sha256.as_deref(), Some(EMPTY));
    }
    for (location, hint) in [
        ("http://hub.example/f", "plain http"),
        ("http://cdn.example/f", "plain http"),
        ("file:///etc/passwd", "file"),
        ("https://hub.example/f", "redirects"),
        ("https://", "an invalid address"),
    ] {
        let get = |_: &Url, _: Option<&str>| Ok(answer(302, &[("location", location)]));
        let failure = follow(&start, Some("secret"), get).unwrap_err();
        assert!(matches!(&failure, Failure::Refused(what) if what.contains(hint)), "{failure:?}");
    }
}

#[test]
fn the_address_of_a_source() {
    let source: Source = "hf:o/r/dir/f.gguf".parse().unwrap();
    let path = path_of(&Request::new(&source));
    let address = |hub: &Hub| self::address(hub, "x", &path).map_err(|e| e.to_string());
    let public = address(&Hub::default()).unwrap();
    assert_eq!((public.scheme(), public.path()), ("https", "/o/r/resolve/main/dir/f.gguf"));
    let hub = |endpoint: &str| Hub::default().endpoint(Some(endpoint.to_owned()));
    assert_eq!(
        address(&hub("http://h:8/hf/")).unwrap().as_str(),
        "http://h:8/hf/o/r/resolve/main/dir/f.gguf"
    );
    for bad in ["", "h", "ftp://h", "https://", "https://name:secret@h", "https://h?q"] {
        let e = address(&hub(bad)).unwrap_err();
        assert!(e.contains("expected https://HOST") && !e.contains("secret"), "{bad}: {e}");
    }
    for token in ["a b", "a\r\nX: y", "ä"] {
        let hub = Hub::default().token(Some(token.to_owned()));
        assert!(!address(&hub).unwrap_err().contains(token));
    }
}

#[test]
fn texts_of_others_are_short_and_in_one_line() {
    assert_eq!(said("not\there\u{1b}[2J"), "not\\there\\u{1b}[2J");
    for text in ["a".repeat(201), "\u{1b}".repeat(1 << 20), "\u{e9}".repeat(201)] {
        let said = said(&text);
        assert!(said.chars().count() == 200 && said.ends_with("...") && !said.contains('\u{1b}'), "{said}");
    }
    assert_eq!(said(&"a".repeat(200)).len(), 200);
}

#[test]
fn sums_of_known_contents() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("abc");
    std::fs::write(&path, b"abc").unwrap();
    let last = std::sync::Mutex::new((0, 0));
    let show = |p: &Progress<'_>| *last.lock().unwrap() = (p.done, p.total);
    let (sum, n) = sha256_of(&path, &Control::default().with_progress(&show)).unwrap();
    assert_eq!(sum, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!((n, *last.lock().unwrap()), (3, (3, 3)));
}

#[test]
fn what_another_program_puts_in_place_meanwhile_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let origin = Origin { source: "hf:o/r/f".into(), revision: None, bytes: 3, sha256: EMPTY.into() };
    let make = |name: &str, meanwhile: &dyn Fn()| {
        make_file(&at(name), |unfinished| {
            std::fs::write(unfinished, "new").unwrap();
            meanwhile();
            Ok::<_, Error>(((), origin.clone()))
        })
    };
    for name in ["thesis", "folder"] {
        let other = || match name {
            "thesis" => std::fs::write(at("thesis"), "My thesis").unwrap(),
            _ => std::fs::create_dir(at("folder")).unwrap(),
        };
        let said = make(name, &other).unwrap_err().to_string();
        assert!(said.contains("was created by another program"), "{said}");
        assert!(Origin::read(&at(name)).unwrap().is_none(), "{name} has a record");
        assert!(!at(".partial").exists(), "{name}: something unfinished is left");
    }
    assert_eq!(std::fs::read(at("thesis")).unwrap(), b"My thesis");
    assert!(make("new", &|| {}).unwrap().is_some());
    assert_eq!(std::fs::read(at("new")).unwrap(), b"new");
    assert_eq!(Origin::read(&at("new")).unwrap(), Some(origin.clone()));
    assert!(make("new", &|| panic!("it is there")).unwrap().is_none());
}
