//! One HTTP request. It follows redirects itself, and limits every wait.
//!
//! Crate `ureq` bounds the head of an answer, the lines between chunks, and each wait for the network. It decodes
//! nothing, so a body is the bytes that arrive. Redirects are followed here because the hub describes a file in the
//! redirect response, and because a token must not be sent on. Header values are only ever compared, recorded, or
//! shown.

use std::io::{ErrorKind, Read};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ureq::http::HeaderMap;
use ureq::{Agent, Proxy};
use url::Url;

use super::{is_sha256, Hub};
use crate::control::Control;
use crate::origin::{said, Error};

/// Redirects followed in one request.
const REDIRECTS: usize = 10;
/// Time for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Size limit of the head of an answer, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// Read from the connection at once, in bytes.
const CHUNK: usize = 64 << 10;
/// A connection that brings less than this in one second, over the time of [`Hub::read`], has stalled; in bytes.
const SLOWEST: usize = 256;
/// How often a wait looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Why a try failed.
#[derive(Debug)]
pub enum Failure {
    /// The network, or a server that is busy: another try may help, this much later if the server said so.
    Network(String, Option<Duration>),
    /// The hub refused, or cannot be reached at all; another try would not help.
    Refused(String),
    /// The caller asked to stop.
    Stopped,
    /// An error on this machine, which no other try mends.
    Local(Error),
}
impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Local(e)
    }
}

/// The head of an answer, and its body still to come.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    parts: Receiver<Result<Part, Failure>>,
    host: String,
    /// The time in which enough bytes must arrive, when it began, and bytes that have come since.
    time: Duration,
    since: Instant,
    bytes: usize,
}

/// A message from a request's thread: first the head, then bytes, an empty part at the end.
#[derive(Debug)]
enum Part {
    Head(u16, HeaderMap),
    Bytes(Vec<u8>),
}

impl Answer {
    /// One with no head yet, for whose connection there is a while.
    fn new(host: String, time: Duration, parts: Receiver<Result<Part, Failure>>) -> Answer {
        let (headers, since) = (HeaderMap::new(), Instant::now() + CONNECT);
        Answer { status: 0, headers, parts, host, time, since, bytes: 0 }
    }

    /// One of a head alone.
    pub fn head(status: u16, headers: HeaderMap) -> Answer {
        Answer { status, headers, ..Answer::new(String::new(), Duration::ZERO, sync_channel(0).1) }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }

    /// Waits for the next bytes of the body; `None` at their end, and for the head.
    pub(super) fn next(&mut self, control: &Control<'_>) -> Result<Option<Vec<u8>>, Failure> {
        let failed = |host: &str, what: &str| Err(Failure::Network(format!("{host}: {what}"), None));
        while !control.stopped() {
            let part = match self.parts.recv_timeout(LOOK) {
                Ok(part) => Some(part?),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return failed(&self.host, "the connection was lost"),
            };
            if let Some(Part::Head(status, headers)) = part {
                (self.status, self.headers) = (status, headers);
                (self.since, self.bytes) = (Instant::now(), 0);
                return Ok(None);
            }
            if let Some(Part::Bytes(bytes)) = &part {
                self.bytes += bytes.len();
            }
            if self.since.elapsed() >= self.time {
                // What came while a slow disk kept this from looking counts: it waits here.
                let seconds = self.time.as_secs();
                if self.bytes < SLOWEST * seconds.max(1) as usize {
                    let what = format!("stalled: too little data arrived in {seconds} s");
                    return failed(&self.host, &what);
                }
                (self.since, self.bytes) = (Instant::now(), 0);
            }
            if let Some(Part::Bytes(bytes)) = part {
                return Ok(Some(bytes).filter(|bytes| !bytes.is_empty()));
            }
        }
        Err(Failure::Stopped)
    }
}

/// Facts about a file from the hub's servers, each from the first answer that had it.
#[derive(Debug, Default)]
pub struct Known {
    /// The checksum.
    pub sha256: Option<String>,
    /// Size in bytes.
    pub bytes: Option<u64>,
    /// The commit.
    pub revision: Option<String>,
}

/// Asks for what is at an address of the hub, or for its bytes from `rest` on.
pub(super) fn ask(
    hub: &Hub,
    url: &Url,
    rest: Option<u64>,
    control: &Control<'_>,
) -> Result<(Known, Answer), Failure> {
    follow(url, hub.token.as_deref(), |to, token| get(hub, to, token, rest, control))
}

/// Sends a request and follows redirects. `get` sends one request, with the token if there is one. The token
/// goes to the hub only, and not even there after another server was asked.
pub fn follow(
    start: &Url,
    token: Option<&str>,
    mut get: impl FnMut(&Url, Option<&str>) -> Result<Answer, Failure>,
) -> Result<(Known, Answer), Failure> {
    let (mut url, mut token, mut known) = (start.clone(), token, Known::default());
    for _ in 0..=REDIRECTS {
        let own = url.origin() == start.origin();
        let answer = get(&url, token)?;
        let leads_on = matches!(answer.status, 301 | 302 | 303 | 307 | 308);
        if own {
            // For large files the hub's tag is the sha256. Tags of other servers can also look like one.
            let tag = answer.header("x-linked-etag").or(answer.header("etag").filter(|_| !leads_on));
            let sha256 = tag.map(|t| t.trim_matches('"')).filter(|t| is_sha256(t));
            known.sha256 = known.sha256.or(sha256.map(str::to_owned));
            known.bytes = known.bytes.or(answer.number("x-linked-size"));
            known.revision = known.revision.or(answer.header("x-repo-commit").map(str::to_owned));
        }
        match answer.status {
            200 | 206 | 416 => return Ok((known, answer)),
            _ if !leads_on => return Err(refusal(&answer, &url, own)),
            _ => {}
        }
        let refuse = |what: &str| Failure::Refused(format!("{}: {what}", host(&url)));
        let location = answer.header("location").ok_or_else(|| refuse("a redirect without a target"))?;
        let next =
            url.join(location).map_err(|e| refuse(&format!("a redirect to an invalid address: {e}")))?;
        if !matches!(next.scheme(), "http" | "https") || !next.has_host() {
            return Err(refuse(&format!("a redirect to {}: expected https", said(next.scheme()))));
        }
        if url.scheme() == "https" && next.scheme() != "https" {
            return Err(refuse("a redirect from https to plain http"));
        }
        if next.origin() != start.origin() {
            token = None;
        }
        url = next;
    }
    Err(Failure::Refused(format!("{}: more than {REDIRECTS} redirects", host(start))))
}

/// The failure that an answer without a file is.
fn refusal(answer: &Answer, url: &Url, own: bool) -> Failure {
    let why = answer.header("x-error-message").map(|text| format!(" ({})", said(text))).unwrap_or_default();
    let what = format!("{}: status {}{why}", host(url), answer.status);
    match answer.status {
        404 => Failure::Refused(format!("not found{why}")),
        401 | 403 if own => {
            Failure::Refused(format!("not public: set HF_TOKEN to a token that may read it{why}"))
        }
        408 | 429 | 500..=599 => {
            Failure::Network(what, answer.number("retry-after").map(Duration::from_secs))
        }
        _ => Failure::Refused(what),
    }
}

/// Name and port of a server, for messages: addresses of files can be long, and signed.
fn host(url: &Url) -> String {
    let name = said(url.host_str().unwrap_or_default());
    url.port().map_or(name.clone(), |port| format!("{name}:{port}"))
}

/// Sends one GET on another thread, and waits for the head of its answer. A body that nobody wants any more ends its
/// thread with the next bytes that arrive, or after [`Hub::read`].
fn get(
    hub: &Hub,
    url: &Url,
    token: Option<&str>,
    rest: Option<u64>,
    control: &Control<'_>,
) -> Result<Answer, Failure> {
    let here = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    // The error would show the address, which may hold a password.
    let bad = |_| Failure::Refused("the proxy's address: expected http://HOST:PORT".to_owned());
    let proxy = hub.proxy.as_deref().filter(|_| !here).map(Proxy::new).transpose().map_err(bad)?;
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_response_header_size(MAX_HEAD)
        .timeout_connect(Some(CONNECT))
        .timeout_send_request(Some(hub.read))
        .timeout_recv_response(Some(hub.read))
        .timeout_per_read(Some(hub.read))
        .proxy(proxy)
        // Encoded contents could be neither resumed nor counted.
        .accept_encoding("identity")
        .user_agent(concat!("ropewalk/", env!("CARGO_PKG_VERSION")))
        .build();
    let mut request = Agent::new_with_config(config).get(url.as_str());
    if let Some(from) = rest {
        request = request.header("Range", format!("bytes={from}-"));
    }
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let (send, parts) = sync_channel(8);
    let name = host(url);
    // A failed `send` means that nobody listens any more.
    let pass = move || {
        let (head, body) = match request.call() {
            Ok(response) => response.into_parts(),
            Err(e) => return drop(send.send(Err(explain(&name, e)))),
        };
        let mut sent = send.send(Ok(Part::Head(head.status.as_u16(), head.headers))).is_ok();
        let (mut body, mut buffer) = (body.into_reader(), vec![0; CHUNK]);
        while sent {
            let read = body.read(&mut buffer).map_err(|e| explain(&name, e.into()));
            let goes_on = read.as_ref().is_ok_and(|n| *n > 0);
            sent = send.send(read.map(|n| Part::Bytes(buffer[..n].to_vec()))).is_ok() && goes_on;
        }
    };
    let started = std::thread::Builder::new().spawn(pass);
    started.map_err(|e| Failure::Refused(format!("cannot start a thread: {e}")))?;
    let mut answer = Answer::new(host(url), hub.read, parts);
    answer.next(control)?;
    Ok(answer)
}

/// The failure of a request, without the address that was asked. Another try may help after a time-out or a lost
/// connection; a name that is not found, a refused connection, and a server that does not speak HTTP stay so.
fn explain(host: &str, e: ureq::Error) -> Failure {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, TimedOut, UnexpectedEof};
    let lost = [BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, TimedOut, UnexpectedEof];
    let (what, again) = match e {
        ureq::Error::Timeout(_) => (e.to_string(), true),
        ureq::Error::Io(e) => (format!("the connection failed: {e}"), lost.contains(&e.kind())),
        ureq::Error::BadUri(_) => ("not an address for HTTP".to_owned(), false),
        e => (e.to_string(), false),
    };
    let what = format!("{host}: {}", said(&what));
    if again {
        Failure::Network(what, None)
    } else {
        Failure::Refused(what)
    }
}

/// Waits, unless it is asked to stop.
pub(super) fn sleep(time: Duration, control: &Control<'_>) -> Result<(), Failure> {
    let since = Instant::now();
    while !control.stopped() {
        match time.saturating_sub(since.elapsed()) {
            Duration::ZERO => return Ok(()),
            left => std::thread::sleep(left.min(LOOK)),
        }
    }
    Err(Failure::Stopped)
}
