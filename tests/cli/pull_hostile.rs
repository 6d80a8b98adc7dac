//! `ropewalk pull` against hubs that lie, stall, or point elsewhere, and file systems that refuse.

use std::time::Duration;

use super::hub::{at_once, content, names, sum, Hub, Reply, FILE, SOURCE};
#[cfg(unix)]
use crate::common::program::finish;

#[test]
fn what_the_server_says_is_never_a_path() {
    let all =
        ["../../../../victim", "/ropewalk-test-victim", "..", ".", "a/b", "%2e%2e", "\"../../../victim\""];
    at_once(all, |evil| {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("a/b/models");
        std::fs::create_dir_all(&dir).unwrap();
        for name in ["victim", "a/victim", "a/b/victim", "a/b/models/victim"] {
            std::fs::write(outer.path().join(name), "mine").unwrap();
        }
        let hub = Hub::twisted(move |asked, reply| {
            for name in ["ETag", "x-linked-etag", "x-repo-commit"] {
                reply.set(name, evil);
            }
            reply.set("Content-Disposition", format!("attachment; filename=\"{evil}\""));
            reply.cut = if asked.n == 0 { 400_000 } else { usize::MAX };
        });
        let output = hub.pull(&dir, &[SOURCE]);
        assert_eq!(output.code, 0, "{output:?}");
        assert!(std::fs::read(dir.join("file.gguf")).unwrap() == content());
        assert_eq!(names(&dir), ["file.gguf", "file.gguf.source.json", "victim"]);
        assert_eq!(names(&outer.path().join("a/b")), ["models", "victim"]);
        assert_eq!(names(&outer.path().join("a")), ["b", "victim"]);
        assert_eq!(names(outer.path()), ["a", "victim"]);
        for name in ["victim", "a/victim", "a/b/victim", "a/b/models/victim"] {
            assert_eq!(std::fs::read_to_string(outer.path().join(name)).unwrap(), "mine");
        }
        assert!(!std::path::Path::new("/ropewalk-test-victim").exists());
    });
}

#[test]
fn a_file_behind_a_link_is_fetched_from_there() {
    let cdn = Hub::twisted(|asked, reply| {
        // Its own tag is no checksum, though it looks like one, and changes from answer to answer.
        reply.set("ETag", format!("\"{:064x}\"", asked.n));
        reply.cut = if asked.n == 0 { 1_000_000 } else { usize::MAX };
    });
    let to = format!("{}/cdn/file.gguf?signature=1", cdn.address);
    for relative in [false, true] {
        let (to, dir) = (to.clone(), tempfile::tempdir().unwrap());
        let hub = Hub::twisted(move |asked, reply| {
            if relative && asked.path == FILE {
                return reply.redirect("../../../new/resolve/main/file.gguf");
            }
            reply.set("x-linked-size", content().len().to_string());
            reply.set("x-linked-etag", format!("\"{}\"", sum(&content())));
            reply.redirect(to.clone());
        });
        let output = hub.pull_whole(dir.path(), &[SOURCE]);
        assert!(output.stderr.contains("as expected"), "{output:?}");
        let record = std::fs::read_to_string(dir.path().join("file.gguf.source.json")).unwrap();
        assert!(record.contains("abc123") && record.contains(&sum(&content())), "{record}");
    }
    assert_eq!(cdn.asked()[1].from, Some(1_000_000), "the tries begin at the hub and go on where they were");
}

#[test]
fn redirects_that_lead_nowhere_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    for (to, words) in [
        (FILE, "redirects"),
        ("", "a redirect without a target"),
        ("file:///etc/passwd", "a redirect to file"),
        ("http://", "a redirect to an invalid address"),
        ("gopher://127.0.0.1/", "a redirect to gopher"),
    ] {
        let hub = Hub::twisted(move |_, reply| reply.redirect(to));
        let output = hub.pull_fails(dir.path(), &[SOURCE], &[words]);
        assert_eq!(output.stderr.lines().count(), 1, "not tried again: {output:?}");
        assert!(hub.asked().len() <= 11 && names(dir.path()).is_empty());
    }
}

#[test]
fn a_stalled_hub_is_left_after_a_while() {
    // Longer than any test runs: who waits for the hub does not come back.
    let long = Duration::from_secs(24 * 3600);
    type Twist = fn(&mut Reply, Duration);
    let stalls: [Twist; 3] = [
        |reply, long| reply.wait = long,
        |reply, long| reply.pause = Some((100_000, long)),
        // A byte now and then is no progress.
        |reply, _| reply.pause = Some((1, Duration::from_millis(200))),
    ];
    at_once(stalls.into_iter().enumerate(), |(i, stall)| {
        let dir = tempfile::tempdir().unwrap();
        let hub = Hub::twisted(move |_, reply| stall(reply, long)).for_impatient("1");
        let output = hub.pull_fails(dir.path(), &[SOURCE, "--retries", "1"], &["(2 tries)"]);
        assert!(output.stderr.contains("retry 1 of 1 in 1 s"), "{i}: {output:?}");
        assert_eq!(hub.asked().len(), 2);
    });
}

#[test]
fn a_busy_hub_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let busy = |after: &'static str| {
        Hub::twisted(move |asked, reply| {
            if asked.n < 1 {
                reply.refuse(503);
                reply.set("Retry-After", after);
                reply.set("x-error-message", "come back later");
            }
        })
    };
    let output = busy("2").pull_whole(dir.path(), &[SOURCE]);
    assert!(output.stderr.contains("come back later") && output.stderr.contains("in 2 s"), "{output:?}");
    busy("100000").pull_fails(&dir.path().join("never"), &[SOURCE], &["asks to wait 100000 s"]);
}

#[test]
fn sizes_and_ranges_that_lie_are_never_a_file() {
    // What the twist does to the answer to a request for the rest, and whether the file can be had all the same.
    type Twist = fn(&mut Reply);
    fn sized(reply: &mut Reply, bytes: std::ops::Range<usize>) {
        reply.body = content()[bytes].to_vec();
        reply.set("Content-Length", reply.body.len().to_string());
    }
    let rest: [(Twist, bool); 7] = [
        // The rest of another place, less of it, more of it, all of the file, and one without a length.
        (|r| sized(r, 0..200_000), false),
        (|r| sized(r, 1_000_000..1_100_000), false),
        (|r| sized(r, 900_000..1_200_000), false),
        (|r| sized(r, 0..1_200_000), false),
        (|r| r.set("Content-Length", ""), false),
        (|r| r.refuse(416), false),
        (
            |r| {
                // The whole, where the rest was asked for.
                (r.status, r.body) = (200, content());
                r.set("Content-Range", "");
                r.set("Content-Length", r.body.len().to_string());
            },
            true,
        ),
    ];
    at_once(rest.into_iter().enumerate(), |(i, (twist, is_whole))| {
        let dir = tempfile::tempdir().unwrap();
        let hub = Hub::twisted(move |asked, reply| {
            if asked.n == 0 {
                reply.cut = 1_000_000;
            } else if asked.from.is_some() {
                twist(reply);
            }
        });
        // From the first byte instead, with a note; the file is complete.
        let output = hub.pull_whole(dir.path(), &[SOURCE]);
        assert!(output.stderr.contains("first byte"), "{i}: {output:?}");
        assert_eq!(hub.asked().len(), if is_whole { 2 } else { 3 }, "{i}");
    });
}

#[test]
fn answers_that_cannot_be_the_file_are_errors() {
    type Twist = fn(&mut Reply);
    let tries: [(Twist, &str); 8] = [
        (|r| r.set("Content-Encoding", "br"), "encoded (br)"),
        (|r| r.set("Content-Encoding", "gzip"), "encoded (gzip)"),
        (|r| r.set("Content-Length", ""), "does not report the size"),
        (|r| r.set("x-linked-size", "7"), "the hub reports 7 bytes"),
        (|r| r.status = 206, "the hub sent a part"),
        (|r| r.status = 304, "status 304"),
        (
            |r| {
                r.set("Content-Length", "4611686018427387904");
                r.set("ETag", "");
            },
            "4.00 EiB is needed",
        ),
        (
            // Chunks have no length of their own: more comes than was announced.
            |r| {
                r.set("Content-Length", "");
                r.set("x-linked-size", "1000");
                r.set("Transfer-Encoding", "chunked");
                r.body = [b"493e0\r\n", &content()[..300_000], b"\r\n0\r\n\r\n"].concat();
            },
            "more than the 1000 bytes",
        ),
    ];
    for (i, (twist, words)) in tries.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let hub = Hub::twisted(move |_, reply| twist(reply));
        let output = hub.pull_fails(dir.path(), &[SOURCE], &[words]);
        assert_eq!(output.stderr.lines().count(), 1, "{i}, not tried again: {output:?}");
        assert!(names(dir.path()).is_empty(), "{i}");
    }
}

#[test]
fn less_than_announced_is_a_lost_connection() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::twisted(|_, reply| reply.set("Content-Length", "1300000"));
    hub.pull_fails(dir.path(), &[SOURCE, "--retries", "1"], &["2 tries", "1200000 bytes are kept"]);
}

#[test]
fn a_hub_that_starts_from_the_first_byte_for_ever_is_left() {
    // Every try brings more than a MiB, and none brings more than the first.
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::twisted(|asked, reply| {
        reply.refuse(200);
        reply.body = content();
        reply.set("Content-Length", reply.body.len().to_string());
        reply.set("ETag", format!("\"{}\"", asked.n));
        reply.cut = 1_100_000;
    });
    hub.pull_fails(dir.path(), &[SOURCE, "--retries", "1"], &["2 tries"]);
    assert!(hub.asked().len() <= 3, "{}", hub.asked().len());
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_grow_so_large_is_one_error() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    // In units of 512 or 1024 bytes, which shells differ in: half of the file.
    let small = ["sh", "-c", "ulimit -f 1000; exec \"$0\" \"$@\""];
    let output = finish(crate::limited::through(&small, &hub.call(dir.path(), &[SOURCE])));
    assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{output:?}");
    let folder = dir.path().join(".partial");
    assert!(output.stderr.contains(folder.to_str().unwrap()), "the path is named: {output:?}");
    assert!(output.stderr.contains("File too large"), "{output:?}");
    assert_eq!(hub.asked().len(), 1, "not tried again");
    hub.pull_whole(dir.path(), &[SOURCE]);
}

#[test]
fn names_and_folders_that_cannot_be_are_errors_before_anything_is_asked() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    // The second is too long for the name of its record only.
    for length in [300, 245] {
        let name = "n".repeat(length);
        let source = format!("hf:org/repo/{name}");
        let output = hub.pull_fails(dir.path(), &[&source], &[&name, "too long"]);
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
    }
    std::fs::write(dir.path().join("file"), "").unwrap();
    let output = hub.pull(&dir.path().join("file/folder"), &[SOURCE]);
    assert!(output.code == 1 && output.stderr.contains("file/folder"), "{output:?}");
    std::fs::create_dir(dir.path().join("file.gguf")).unwrap();
    let output = hub.pull(dir.path(), &[SOURCE]);
    assert!(output.code == 1 && output.stderr.contains("not a regular file"), "{output:?}");
    assert!(hub.asked().is_empty());
}

#[test]
fn names_given_by_hand_stay_in_the_folder() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    for name in
        ["", ".", "..", "../x", "a/b", "/etc/x", ".x", "a\\b", "x.source.json", "X.SOURCE.JSON", "a\n"]
    {
        let output = hub.pull(dir.path(), &[SOURCE, "--as", name]);
        assert_eq!((output.code, output.stderr.lines().count()), (2, 1), "{name}: {output:?}");
    }
    assert!(hub.asked().is_empty() && names(dir.path()).is_empty());
}

/// Pulls from this hub with little memory, which must fail with one short line that has these words in it.
#[cfg(unix)]
#[track_caller]
fn is_one_short_line(hub: &Hub, source: &str, words: &str) {
    use crate::limited::{limited, LITTLE};
    let dir = tempfile::tempdir().unwrap();
    let output = finish(limited(&hub.call(dir.path(), &[source, "--retries", "0"]), LITTLE));
    let shown: String = output.stderr.chars().take(2000).collect();
    assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{words}: {shown}");
    assert!(shown.starts_with("error: ") && shown.contains(words), "{words}: {shown}");
    assert!(output.stderr.len() < 1000 && output.stderr.lines().count() == 1, "{words}: {shown}");
    assert!(!shown.trim_end().contains(char::is_control), "{words}: {shown:?}");
    assert!(names(dir.path()).is_empty(), "{words}: {:?}", names(dir.path()));
}

#[cfg(unix)]
#[test]
fn answers_without_an_end_are_errors() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nx-linked-size: 1000\r\n\r\n";
    const TRAILERS: &str =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nx-linked-size: 1000\r\n\r\n0\r\n";
    // How an answer begins, what is repeated after that, and whether a few MB of it suffice to refuse it.
    let cases: [(&'static str, &'static [u8], &str, bool); 7] = [
        (CHUNKED, b"0", "stalled", true),
        (CHUNKED, b";a", "stalled", true),
        (TRAILERS, b"a: b\r\n", "stalled", false),
        ("HTTP/1.1 200 OK\r\nETag: ", b"a", "header is too big", true),
        ("HTTP/1.1 200 OK\r\n", b"a: b\r\n", "too many headers", true),
        ("", b"HTTP/1.1 102 Processing\r\n\r\n", "127.0.0.1", false),
        ("", b"\x1b[2J\x07", "127.0.0.1", true),
    ];
    for (start, repeated, words, few) in cases {
        // Heads that are too large are not waited for.
        let patience = if words.contains("header") { "60" } else { "2" };
        at_once([SOURCE, "hf:org/repo"], |source| {
            let hub = Hub::twisted(move |_, reply| reply.endless = Some((start, repeated)));
            let hub = hub.for_impatient(patience);
            is_one_short_line(&hub, source, words);
            assert_eq!(hub.asked().len(), 1);
            assert!(!few || hub.sent() < 64 << 20, "{words}: {} bytes sent", hub.sent());
        });
    }
}

#[cfg(unix)]
#[test]
fn what_a_server_says_is_cut() {
    type Twist = fn(&mut Reply, usize);
    let twists: [(Twist, &str); 6] = [
        // Each to another place, for ever.
        (|r, n| r.redirect(format!("/{n}")), "more than 10 redirects"),
        (|r, _| r.redirect(format!("http://{}/", "a".repeat(7000))), "aaa"),
        (|r, _| r.redirect(format!("{}://x", "a".repeat(7000))), "a redirect to aaa"),
        (|r, _| r.set("Content-Encoding", "a".repeat(7000)), "is sent encoded (aaa"),
        (
            |r, _| {
                r.refuse(418);
                r.body = b"\x1b]0;title\x07\r\n".repeat(100_000);
                r.set("Content-Length", r.body.len().to_string());
                r.set("x-error-message", "a".repeat(7000));
            },
            "status 418 (aaa",
        ),
        (
            |r, _| {
                use std::io::Write;
                let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
                bomb.write_all(&vec![0; 64 << 20]).unwrap();
                r.body = bomb.finish().unwrap();
                r.set("Content-Length", r.body.len().to_string());
                r.set("Content-Encoding", "gzip");
            },
            "is sent encoded (gzip)",
        ),
    ];
    for (twist, words) in twists {
        let hub = Hub::twisted(move |asked, reply| twist(reply, asked.n));
        is_one_short_line(&hub, SOURCE, words);
        assert!(hub.asked().len() <= 11, "{words}");
    }
}

#[cfg(unix)]
#[test]
fn long_lists_of_files_are_one_short_line() {
    let files = |n: usize, end: &str| {
        let files: Vec<_> = (0..n).map(|i| format!("{{\"rfilename\":\"{i:0120}{end}\"}}")).collect();
        format!("[{}]", files.join(","))
    };
    for (siblings, words) in [
        (files(100_000, ".gguf"), "it has GGUF files"),
        (format!("\"{}\"", "\\u001b".repeat(1 << 20)), "expected a list of files"),
        (format!("[{{\"rfilename\":{}1}}]", "[".repeat(1 << 20)), "expected a list of files"),
    ] {
        let body = format!("{{\"sha\":\"{}\",\"siblings\":{siblings}}}", "a".repeat(40)).into_bytes();
        assert!(body.len() < 16 << 20, "{}", body.len());
        let hub = Hub::twisted(move |_, reply| {
            *reply = Reply::new(200);
            reply.body = body.clone();
            reply.set("Content-Length", body.len().to_string());
        });
        is_one_short_line(&hub, "hf:org/repo", words);
    }
}
