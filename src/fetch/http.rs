//! One request over HTTP: redirects followed by hand, and nothing waited for without a limit.
//!
//! Crate `ureq` bounds the head of an answer, the lines between chunks, and each wait for the network. It decodes
//! nothing, so a body is the bytes that arrive. Redirects are followed here because the hub describes a file in the
//! answer that leads elsewhere, and because a token must not follow. Header values are only ever compared, recorded, or
//! shown.

use std::io::{ErrorKind, Read};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use ureq::http::HeaderMap;
use ureq::{Agent, Proxy};
use url::Url;

use super::error::said;
use super::{FetchError, Hub, Limits};
use crate::control::Control;

/// Redirects followed in one request.
const REDIRECTS: usize = 10;
/// Size limit of the head of an answer, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// Longer values of headers are as good as none, in bytes.
const MAX_VALUE: usize = 8 << 10;
/// Read from the connection at once, in bytes.
const CHUNK: usize = 64 << 10;
/// A body that brings less than this in one second, over the time of [`Limits::read`], has stalled; in bytes.
const SLOWEST: u64 = 256;
/// How often a wait looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Why a try failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The network, or a server that is busy: another try may help, this much later if the server said so.
    Network(String, Option<Duration>),
    /// A mismatch between what is here and what the hub has: only a fetch from the first byte may help.
    Restart(String),
    /// The hub refused, or cannot be reached at all; another try would not help.
    Refused(String),
    /// The caller asked to stop.
    Stopped,
    /// An error on this machine, which no other try mends.
    Local(FetchError),
}
impl Failure {
    pub(super) fn network(what: impl Into<String>) -> Failure {
        Failure::Network(what.into(), None)
    }
}

/// The head of an answer, and its body still to come.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
}
impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?.to_str().ok()?;
        (value.len() <= MAX_VALUE && !value.contains(char::is_control)).then_some(value)
    }
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }
}

/// Metadata of a file from the hub's own servers, from whichever of their answers had it first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Linked {
    /// The tag of the content, where the hub links to another server for it.
    pub(super) tag: Option<String>,
    /// Size in bytes.
    pub(super) bytes: Option<u64>,
    /// The commit.
    pub(super) revision: Option<String>,
}

/// Sends a request and follows redirects. `get` sends one request, with the token if there is one. The token
/// goes to the hub only, and not even there after another server was asked.
///
/// Returns what the hub said of the file, the last answer, and whether that is the hub's own.
pub(super) fn follow(
    start: &Url,
    token: Option<&str>,
    mut get: impl FnMut(&Url, Option<&str>) -> Result<Answer, Failure>,
) -> Result<(Linked, Answer, bool), Failure> {
    let (mut url, mut token, mut linked) = (start.clone(), token, Linked::default());
    for _ in 0..=REDIRECTS {
        let own = url.origin() == start.origin();
        let answer = get(&url, token)?;
        if own {
            let text = |name| answer.header(name).map(str::to_owned);
            linked.tag = linked.tag.or_else(|| text("x-linked-etag"));
            linked.bytes = linked.bytes.or_else(|| answer.number("x-linked-size"));
            linked.revision = linked.revision.or_else(|| text("x-repo-commit"));
        }
        if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
            return Ok((linked, answer, own));
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

/// Name and port of a server, for messages: addresses of files can be long, and signed.
pub(super) fn host(url: &Url) -> String {
    let name = said(url.host_str().unwrap_or_default());
    url.port().map_or(name.clone(), |port| format!("{name}:{port}"))
}

/// Sends one GET, on a thread of its own, and waits for the head of its answer. A body that nobody wants any
/// more ends its thread with the next bytes that arrive, or after [`Limits::read`].
pub(super) fn get(
    url: &Url,
    headers: Vec<(&'static str, String)>,
    hub: &Hub,
    control: &Control<'_>,
) -> Result<Answer, Failure> {
    let limits = &hub.limits;
    let here = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    };
    // The error would show the address, which may hold a password.
    let bad = |_| Failure::Refused("the proxy's address: expected http://HOST:PORT".to_owned());
    let proxy = hub.proxy.as_deref().filter(|_| !here).map(Proxy::new).transpose().map_err(bad)?;
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_response_header_size(MAX_HEAD)
        .timeout_connect(Some(limits.connect))
        .timeout_send_request(Some(limits.read))
        .timeout_recv_response(Some(limits.read))
        .timeout_per_read(Some(limits.read))
        .proxy(proxy)
        // Encoded contents could be neither resumed nor counted.
        .accept_encoding("identity")
        .user_agent(concat!("ropewalk/", env!("CARGO_PKG_VERSION")))
        .build();
    let mut request = Agent::new_with_config(config).get(url.as_str());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let (head, heads) = sync_channel(1);
    let (send, chunks) = sync_channel(8);
    let name = host(url);
    std::thread::Builder::new()
        .name("ropewalk-get".to_owned())
        .spawn(move || match request.call() {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                if head.send(Ok((parts.status.as_u16(), parts.headers))).is_ok() {
                    pass(body.into_reader(), &name, &send);
                }
            }
            // A failed `send` means that nobody listens any more.
            Err(e) => drop(head.send(Err(explain(&name, e)))),
        })
        .map_err(|e| Failure::Refused(format!("cannot start a thread: {e}")))?;
    let body = Body { chunks, limits: limits.clone(), host: host(url), waited: Duration::ZERO, bytes: 0 };
    match body.wait(&heads, limits.connect + limits.read, control)? {
        Some((status, headers)) => Ok(Answer { status, headers, body }),
        None => Err(body.stalled()),
    }
}

/// Hands over a body as it comes; an empty chunk is its end.
fn pass(mut body: impl Read, host: &str, send: &SyncSender<Result<Vec<u8>, Failure>>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let message = match body.read(&mut buffer) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            read => read.map(|n| buffer[..n].to_vec()).map_err(|e| explain(host, e.into())),
        };
        let more = message.as_ref().is_ok_and(|chunk| !chunk.is_empty());
        if send.send(message).is_err() || !more {
            return;
        }
    }
}

/// The failure of a request, without the address that was asked. Another try may help after a time-out or a lost
/// connection; a name that is not found, a refused connection, and a server that does not speak HTTP stay so.
fn explain(host: &str, e: ureq::Error) -> Failure {
    let (what, again) = match e {
        ureq::Error::Timeout(during) => (format!("timed out ({during})"), true),
        ureq::Error::Io(e) => {
            use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
            let lost = [BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof];
            (format!("the connection failed: {e}"), lost.contains(&e.kind()))
        }
        ureq::Error::BadUri(_) => ("not an address for HTTP".to_owned(), false),
        e => (e.to_string(), false),
    };
    let what = format!("{host}: {}", said(&what));
    if again {
        Failure::network(what)
    } else {
        Failure::Refused(what)
    }
}

/// A body that arrives.
#[derive(Debug)]
pub(super) struct Body {
    chunks: Receiver<Result<Vec<u8>, Failure>>,
    limits: Limits,
    host: String,
    /// Time waited, and bytes that came meanwhile, since their rate was last compared with the slowest.
    waited: Duration,
    bytes: u64,
}
impl Body {
    #[cfg(test)]
    pub(super) fn empty() -> Body {
        let (_, chunks) = sync_channel(0);
        Body { chunks, limits: Limits::default(), host: String::new(), waited: Duration::ZERO, bytes: 0 }
    }

    /// The next bytes; `None` at the end.
    pub(super) fn next(&mut self, control: &Control<'_>) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            let left = self.limits.read.saturating_sub(self.waited);
            // Only time spent waiting counts: a slow disk is not a slow server.
            let since = Instant::now();
            let chunk = self.wait(&self.chunks, left, control)?;
            self.waited += since.elapsed();
            self.bytes += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
            if self.waited >= self.limits.read {
                if self.bytes < SLOWEST * self.limits.read.as_secs().max(1) {
                    return Err(self.stalled());
                }
                (self.waited, self.bytes) = (Duration::ZERO, 0);
            }
            if let Some(chunk) = chunk {
                return Ok(Some(chunk).filter(|chunk| !chunk.is_empty()));
            }
        }
    }

    fn stalled(&self) -> Failure {
        let seconds = self.limits.read.as_secs();
        Failure::network(format!("{}: stalled: too little data arrived in {seconds} s", self.host))
    }

    /// The next message; `None` when the time is over.
    fn wait<T>(
        &self,
        from: &Receiver<Result<T, Failure>>,
        time: Duration,
        control: &Control<'_>,
    ) -> Result<Option<T>, Failure> {
        let since = Instant::now();
        loop {
            if control.stopped() {
                return Err(Failure::Stopped);
            }
            let left = time.saturating_sub(since.elapsed());
            match from.recv_timeout(left.min(LOOK)) {
                Ok(message) => return message.map(Some),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::network(format!("{}: the connection was lost", self.host)));
                }
            }
        }
    }
}

/// Waits, unless it is asked to stop.
pub(super) fn sleep(time: Duration, control: &Control<'_>) -> Result<(), Failure> {
    let since = Instant::now();
    while since.elapsed() < time {
        if control.stopped() {
            return Err(Failure::Stopped);
        }
        std::thread::sleep(LOOK.min(time.saturating_sub(since.elapsed())));
    }
    Ok(())
}
