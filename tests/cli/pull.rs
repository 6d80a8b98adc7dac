//! `ropewalk pull` against a small server on this machine that speaks as a model hub does.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::program::{command, finish, Output};
use sha2::{Digest, Sha256};

/// How the server behaves.
#[derive(Debug, Default)]
struct Mood {
    /// Hangs up after so many bytes of the body, this many times.
    hang_ups: usize,
    after: usize,
    /// Answers everything with this status.
    status: Option<u16>,
}

/// A hub with one file. Counts the bytes of it that were sent.
struct Hub {
    address: String,
    sent: Arc<Mutex<usize>>,
    mood: Arc<Mutex<Mood>>,
    sum: String,
    content: Vec<u8>,
}

impl Hub {
    fn new() -> Hub {
        let content: Vec<u8> =
            (0..300_000u32).flat_map(|i| (i.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
        let sum: String = Sha256::digest(&content).iter().map(|b| format!("{b:02x}")).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hub = Hub {
            address: format!("http://{}", listener.local_addr().unwrap()),
            sent: Arc::default(),
            mood: Arc::default(),
            sum: sum.clone(),
            content: content.clone(),
        };
        let (sent, mood) = (Arc::clone(&hub.sent), Arc::clone(&hub.mood));
        // Ends with the process; every connection is answered once.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &content, &sum, &sent, &mood);
            }
        });
        hub
    }

    fn pull(&self, dir: &Path, args: &[&str]) -> Output {
        let mut command = command(&[&["pull", "--dir", dir.to_str().unwrap()][..], args].concat());
        command.env("HF_ENDPOINT", &self.address);
        finish(command)
    }

    fn manifest(&self, dir: &Path, sum: &str) -> String {
        let path = dir.join("manifest.toml");
        let text = format!(
            "[[model]]\nname = \"tiny\"\nsource = \"hf:org/repo/file.gguf\"\nsha256 = \"{sum}\"\nbytes = {}\nlicence = \"MIT\"\n",
            self.content.len()
        );
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn answer(
    mut stream: TcpStream,
    content: &[u8],
    sum: &str,
    sent: &Mutex<usize>,
    mood: &Mutex<Mood>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut path, mut range) = (String::new(), String::new(), (0, content.len() - 1));
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(rest) = line.strip_prefix("GET ") {
            path = rest.split(' ').next().unwrap_or_default().to_owned();
        }
        if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            let (from, to) = bytes.trim().split_once('-').unwrap();
            range = (from.parse().unwrap(), to.parse().unwrap_or(content.len() - 1));
        }
    }
    let status = mood.lock().unwrap().status.or((path != "/org/repo/resolve/main/file.gguf").then_some(404));
    if let Some(status) = status {
        return write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    if range.0 > range.1 {
        return write!(stream, "HTTP/1.1 416 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    let part = &content[range.0..=range.1];
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {}-{}/{}\r\nETag: \"{sum}\"\r\nx-repo-commit: abc123\r\nConnection: close\r\n\r\n",
        part.len(), range.0, range.1, content.len(),
    )?;
    let mut cut = part.len();
    if part.len() > 1 {
        let mut mood = mood.lock().unwrap();
        if mood.hang_ups > 0 {
            mood.hang_ups -= 1;
            cut = cut.min(mood.after);
        }
        *sent.lock().unwrap() += cut;
    }
    stream.write_all(&part[..cut])
}

#[test]
fn a_file_arrives_whole_and_a_second_pull_sends_nothing() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    let manifest = hub.manifest(dir.path(), &hub.sum);
    let output = hub.pull(dir.path(), &["tiny", "--manifest", &manifest]);
    assert_eq!(output.code, 0, "{output:?}");
    let path = dir.path().join("file.gguf");
    assert_eq!(output.stdout.trim(), path.to_str().unwrap());
    assert!(output.stderr.contains("fetched") && output.stderr.contains("as expected"), "{output:?}");
    assert_eq!(std::fs::read(&path).unwrap(), hub.content);
    assert_eq!(*hub.sent.lock().unwrap(), hub.content.len());
    assert!(!dir.path().join(".partial").exists(), "nothing unfinished is left");

    let output = hub.pull(dir.path(), &["tiny", "--manifest", &manifest, "--json"]);
    let json = output.json();
    assert_eq!(json["files"][0]["fetched"], false);
    assert_eq!(json["files"][0]["verified"], true);
    assert_eq!(json["files"][0]["sha256"], hub.sum.as_str());
    assert_eq!(*hub.sent.lock().unwrap(), hub.content.len(), "nothing was sent again");
}

#[test]
fn a_broken_connection_is_resumed_in_the_same_call() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    *hub.mood.lock().unwrap() = Mood { hang_ups: 2, after: 300_000, status: None };
    let output = hub.pull(dir.path(), &["hf:org/repo/file.gguf", "-q"]);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output:?}");
    assert_eq!(std::fs::read(dir.path().join("file.gguf")).unwrap(), hub.content);
    assert_eq!(*hub.sent.lock().unwrap(), hub.content.len(), "every byte travelled once");
}

#[test]
fn what_an_earlier_call_left_is_not_fetched_again() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    let blobs = dir.path().join(".partial/models--org--repo/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(format!("{}.part", hub.sum)), &hub.content[..1_000_000]).unwrap();
    let output = hub.pull(dir.path(), &["hf:org/repo/file.gguf"]);
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stderr.contains("as expected"), "the hub's own sum is compared: {output:?}");
    assert_eq!(std::fs::read(dir.path().join("file.gguf")).unwrap(), hub.content);
    assert_eq!(*hub.sent.lock().unwrap(), hub.content.len() - 1_000_000);
}

#[test]
fn leftovers_that_are_whole_or_too_long_are_dealt_with() {
    for extra in [0, 10] {
        let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
        let blobs = dir.path().join(".partial/models--org--repo/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        let left = [&hub.content[..], &vec![0; extra]].concat();
        std::fs::write(blobs.join(format!("{}.part", hub.sum)), left).unwrap();
        let output = hub.pull(dir.path(), &["hf:org/repo/file.gguf"]);
        assert_eq!(output.code, 0, "{output:?}");
        assert_eq!(std::fs::read(dir.path().join("file.gguf")).unwrap(), hub.content);
    }
}

#[test]
fn a_wrong_checksum_keeps_nothing() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    let wrong = "0".repeat(64);
    let manifest = hub.manifest(dir.path(), &wrong);
    let output = hub.pull(dir.path(), &["tiny", "--manifest", &manifest]);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{output:?}");
    let line = output.stderr.lines().last().unwrap();
    assert!(line.starts_with("error: ") && line.contains(&wrong) && line.contains(&hub.sum), "{output:?}");
    assert!(!dir.path().join("file.gguf").exists());
    // Neither is it used by the next pull.
    let output = hub.pull(dir.path(), &["hf:org/repo/file.gguf", "--sha256", &hub.sum]);
    assert_eq!(output.code, 0, "{output:?}");
}

#[test]
fn refusals_are_one_clear_line() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    let output = hub.pull(dir.path(), &["hf:org/repo/other.gguf"]);
    assert_eq!(output.code, 1);
    assert_eq!(output.stderr, "error: hf:org/repo/other.gguf: not found\n");
    hub.mood.lock().unwrap().status = Some(401);
    let output = hub.pull(dir.path(), &["hf:org/repo/file.gguf"]);
    assert_eq!(output.code, 1);
    assert!(output.stderr.lines().count() == 1 && output.stderr.contains("HF_TOKEN"), "{output:?}");
}
