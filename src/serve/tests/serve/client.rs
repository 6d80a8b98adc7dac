//! A client of HTTP/1.1 that can also misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ropewalk_serve::{Options, Server};
use serde_json::Value;

use crate::fake::Fake;

/// A wait that no test needs.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// A server that runs until it is dropped.
pub(crate) struct Site {
    pub(crate) fake: Arc<Fake>,
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Site {
    pub(crate) fn new() -> Site {
        Site::with(Options::default(), Duration::ZERO)
    }

    pub(crate) fn with(options: Options, grace: Duration) -> Site {
        Site::of(Fake::new(), options, grace)
    }

    /// A model with this chat template, which says this.
    pub(crate) fn saying(template: &str, script: &str) -> Site {
        Site::of(Fake::saying(template, script), Options::default(), Duration::ZERO)
    }

    pub(crate) fn of(fake: Fake, options: Options, grace: Duration) -> Site {
        let fake = Arc::new(fake);
        let backend: Arc<Fake> = Arc::clone(&fake);
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), options, backend).unwrap();
        let (address, stop) = (server.local_addr(), Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || server.run(|| flag.load(Ordering::SeqCst), grace));
        Site { fake, address, stop, thread: Some(thread) }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Waits for the end of the server.
    pub(crate) fn join(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// A GET of a path.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.client().ask("GET", path, &[], b"")
    }

    /// A POST of an object.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.client().ask("POST", path, &[JSON], body.to_string().as_bytes())
    }

    /// A POST whose answer has this status.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        answer.json()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.fake.set(|state| state.allowed = None);
        self.stop();
    }
}

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// One connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    /// Data of events that was read.
    events: Vec<u8>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Client { stream: BufReader::new(stream), events: Vec::new() }
    }

    /// The port that it asks from.
    #[cfg(target_os = "linux")]
    pub(crate) fn port(&self) -> u16 {
        self.stream.get_ref().local_addr().unwrap().port()
    }

    /// Writes bytes as they are. A server that has answered may have closed already.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "host") {
            head += "host: localhost\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        self.write(&[head.as_bytes(), body].concat());
    }

    /// Sends a request and reads all of the answer.
    pub(crate) fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send(method, path, headers, body);
        self.answer().unwrap_or_else(|| panic!("{method} {path}: no answer"))
    }

    /// The next answer with its body; none if the connection is closed.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        let mut answer = self.head()?;
        match answer.header("content-length").map(|n| n.parse::<usize>().unwrap()) {
            Some(n) => {
                answer.body.resize(n, 0);
                self.stream.read_exact(&mut answer.body).unwrap();
            }
            None if answer.header("transfer-encoding") == Some("chunked") => {
                while let Some(chunk) = self.chunk() {
                    answer.body.extend(chunk);
                }
            }
            None => {}
        }
        Some(answer)
    }

    /// An answer's status and headers.
    pub(crate) fn head(&mut self) -> Option<Answer> {
        let line = self.line()?;
        let status =
            line.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
        let mut headers = Vec::new();
        while let Some((name, value)) = self.line()?.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(Answer { status, headers, body: Vec::new() })
    }

    /// A line without its end; none if the connection is closed.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// A chunk; none at the end of the body or of the connection.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.line()?, 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).ok()?;
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    /// The lines of the next event, without the empty one at its end; none at the end of the stream.
    pub(crate) fn event(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.events.windows(2).position(|w| w == b"\n\n") {
                let rest = self.events.split_off(at + 2);
                let event = std::mem::replace(&mut self.events, rest);
                return Some(String::from_utf8(event).unwrap().trim_end().to_owned());
            }
            let chunk = self.chunk()?;
            self.events.extend(chunk);
        }
    }

    /// The data of the next event that is no sign of life.
    pub(crate) fn data(&mut self) -> Option<String> {
        loop {
            let event = self.event()?;
            match event.strip_prefix("data: ") {
                Some(data) => return Some(data.to_owned()),
                None => assert_eq!(event, ":"),
            }
        }
    }
}
