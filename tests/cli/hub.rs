//! A small server on this machine that speaks as a model hub does, and, where a test wants it, as none should.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::process::wait_until;
use crate::common::program::{command, finish, Output};
use sha2::{Digest, Sha256};

/// The path of the file, and of its source.
pub(crate) const FILE: &str = "/org/repo/resolve/main/file.gguf";
pub(crate) const SOURCE: &str = "hf:org/repo/file.gguf";

/// A client's request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// First byte asked for, of those to the end.
    pub(crate) from: Option<usize>,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// Which request to this server it is, from 0.
    pub(crate) n: usize,
}
impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// The server's answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Sends so many bytes of the body only.
    pub(crate) cut: usize,
    /// Waits so long before the head, and then after each so many bytes of the body.
    pub(crate) wait: Duration,
    pub(crate) pause: Option<(usize, Duration)>,
    /// Waits after the first of those parts until this is set.
    pub(crate) held: Option<Arc<AtomicBool>>,
    /// Bytes to send in place of all this, and bytes to repeat after them until the client is gone.
    pub(crate) endless: Option<(&'static str, &'static [u8])>,
}
impl Reply {
    pub(crate) fn new(status: u16) -> Reply {
        Reply {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            cut: usize::MAX,
            wait: Duration::ZERO,
            pause: None,
            held: None,
            endless: None,
        }
    }
    /// Sets a header; an empty value removes it.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        let value = value.into();
        self.headers.retain(|(n, _)| *n != name);
        if !value.is_empty() {
            self.headers.push((name, value));
        }
    }
    /// Only this status, and no body.
    pub(crate) fn refuse(&mut self, status: u16) {
        *self = Reply::new(status);
        self.set("Content-Length", "0");
    }
    pub(crate) fn redirect(&mut self, to: impl Into<String>) {
        let linked = self.headers.iter().filter(|(n, _)| n.starts_with("x-")).cloned().collect();
        *self = Reply { headers: linked, ..Reply::new(302) };
        self.set("Content-Length", "0");
        self.set("Location", to);
    }
}

/// State of a server: contents, and the requests it got.
#[derive(Debug)]
struct Shelf {
    content: Mutex<Vec<u8>>,
    asked: Mutex<Vec<Asked>>,
    sent: Mutex<usize>,
}

/// A hub with one file.
pub(crate) struct Hub {
    pub(crate) address: String,
    /// Seconds after which clients give up. On a busy machine a hub that behaves may take a while.
    patience: &'static str,
    shelf: Arc<Shelf>,
}

/// The bytes of the file.
pub(crate) fn content() -> Vec<u8> {
    (0..300_000u32).flat_map(|i| (i.wrapping_mul(2_654_435_761)).to_le_bytes()).collect()
}

pub(crate) fn sum(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect()
}

impl Hub {
    /// One that behaves.
    pub(crate) fn new() -> Hub {
        Hub::twisted(|_, _| {})
    }

    /// One whose first answer breaks off after a million bytes.
    pub(crate) fn cut_once() -> Hub {
        Hub::twisted(|asked, reply| reply.cut = if asked.n == 0 { 1_000_000 } else { usize::MAX })
    }

    /// One whose answers go through this function before they are sent.
    pub(crate) fn twisted(twist: impl Fn(&Asked, &mut Reply) + Send + Sync + 'static) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shelf = Shelf { content: Mutex::new(content()), asked: Mutex::default(), sent: Mutex::default() };
        let hub = Hub { address, patience: "60", shelf: Arc::new(shelf) };
        let (shelf, twist) = (Arc::clone(&hub.shelf), Arc::new(twist));
        // Ends with the process; every connection is answered once.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shelf, twist) = (Arc::clone(&shelf), Arc::clone(&twist));
                std::thread::spawn(move || {
                    let _ = answer(stream, &shelf, &*twist);
                });
            }
        });
        hub
    }

    /// The same hub for clients that wait so many seconds.
    pub(crate) fn for_impatient(self, patience: &'static str) -> Hub {
        Hub { patience, ..self }
    }

    /// A call of `pull` into this folder that is not run yet.
    pub(crate) fn call(&self, dir: &Path, args: &[&str]) -> Command {
        let mut command = command(&["pull", "--dir", dir.to_str().unwrap()]);
        command.args(args).env("HF_ENDPOINT", &self.address).env("HF_HUB_DOWNLOAD_TIMEOUT", self.patience);
        command
    }

    pub(crate) fn pull(&self, dir: &Path, args: &[&str]) -> Output {
        finish(self.call(dir, args))
    }

    /// Pulls the file, which must succeed and leave the file, its record, and nothing else.
    #[track_caller]
    pub(crate) fn pull_whole(&self, dir: &Path, args: &[&str]) -> Output {
        let output = self.pull(dir, args);
        assert_eq!(output.code, 0, "{output:?}");
        assert!(std::fs::read(dir.join("file.gguf")).unwrap() == self.content(), "other bytes");
        assert_eq!(names(dir), ["file.gguf", "file.gguf.source.json"]);
        output
    }

    /// Pulls the file, which must fail with one line that has these words in it, and put nothing in place.
    #[track_caller]
    pub(crate) fn pull_fails(&self, dir: &Path, args: &[&str], words: &[&str]) -> Output {
        let output = self.pull(dir, args);
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{output:?}");
        let line = output.stderr.lines().last().unwrap();
        assert!(line.starts_with("error: ") && !output.stderr.contains("panicked"), "{output:?}");
        for word in words {
            assert!(line.contains(word), "expected '{word}': {output:?}");
        }
        assert!(names(dir).iter().all(|n| n == ".partial"), "{:?}", names(dir));
        output
    }

    /// The requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shelf.asked.lock().unwrap().clone()
    }
    /// Bytes of bodies sent so far.
    pub(crate) fn sent(&self) -> usize {
        *self.shelf.sent.lock().unwrap()
    }
    pub(crate) fn content(&self) -> Vec<u8> {
        self.shelf.content.lock().unwrap().clone()
    }
    pub(crate) fn set_content(&self, content: Vec<u8>) {
        *self.shelf.content.lock().unwrap() = content;
    }

    /// A manifest, outside the folder of the pull, in which the file has this checksum and size.
    pub(crate) fn manifest(&self, dir: &Path, sum: &str, bytes: usize) -> String {
        let path = dir.join("manifest.toml");
        let text = format!(
            "[[model]]\nname = \"tiny\"\nsource = \"{SOURCE}\"\nsha256 = \"{sum}\"\nbytes = {bytes}\nlicence = \"MIT\"\n"
        );
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// Names of the entries of a folder, sorted; none where there is no folder.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let names: BTreeSet<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.into_iter().collect()
}

/// Does this with each at once, for pulls wait a second or more before they try again.
pub(crate) fn at_once<T: Send>(all: impl IntoIterator<Item = T>, each: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for one in all {
            scope.spawn(|| each(one));
        }
    });
}

fn answer(
    mut stream: TcpStream,
    shelf: &Shelf,
    twist: &(impl Fn(&Asked, &mut Reply) + ?Sized),
) -> std::io::Result<()> {
    let mut asked = Asked { path: String::new(), from: None, headers: Vec::new(), n: 0 };
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(rest) = line.strip_prefix("GET ") {
            asked.path = rest.split(' ').next().unwrap_or_default().to_owned();
        } else if let Some((name, value)) = line.split_once(':') {
            asked.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    asked.from =
        asked.header("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    {
        let mut all = shelf.asked.lock().unwrap();
        asked.n = all.len();
        all.push(asked.clone());
    }
    let mut reply = serve(&asked, &shelf.content.lock().unwrap());
    twist(&asked, &mut reply);
    std::thread::sleep(reply.wait);
    if let Some((start, repeated)) = reply.endless {
        stream.write_all(start.as_bytes())?;
        let block = repeated.repeat((64 << 10) / repeated.len());
        loop {
            *shelf.sent.lock().unwrap() += block.len();
            stream.write_all(&block)?;
            // A client whose disk makes it wait at its end keeps reading, and has few seconds of processor time.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    write!(stream, "HTTP/1.1 {} Some\r\n", reply.status)?;
    for (name, value) in &reply.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "Connection: close\r\n\r\n")?;
    let body = &reply.body[..reply.cut.min(reply.body.len())];
    *shelf.sent.lock().unwrap() += body.len();
    let (step, pause) = reply.pause.unwrap_or((body.len().max(1), Duration::ZERO));
    for part in body.chunks(step) {
        stream.write_all(part)?;
        std::thread::sleep(pause);
        if let Some(let_go) = &reply.held {
            wait_until("the hub is let go", || let_go.load(Ordering::Relaxed));
        }
    }
    Ok(())
}

/// The answer of a hub that sends its files itself.
fn serve(asked: &Asked, content: &[u8]) -> Reply {
    if !asked.path.split('?').next().is_some_and(|path| path.ends_with("/file.gguf")) {
        let mut reply = Reply::new(404);
        reply.refuse(404);
        return reply;
    }
    file(asked, content)
}

/// The answer to a request for a file with these bytes, or for a part of it.
pub(crate) fn file(asked: &Asked, content: &[u8]) -> Reply {
    let tag = format!("\"{}\"", sum(content));
    let total = content.len();
    let mut reply = Reply::new(200);
    reply.body = match asked.from {
        Some(from) if from >= total => {
            reply.refuse(416);
            return reply;
        }
        Some(from) => {
            reply.status = 206;
            reply.set("Content-Range", format!("bytes {from}-{}/{total}", total - 1));
            content[from..].to_vec()
        }
        None => content.to_vec(),
    };
    reply.set("Content-Length", reply.body.len().to_string());
    reply.set("ETag", tag);
    reply.set("x-repo-commit", "abc123");
    reply
}
