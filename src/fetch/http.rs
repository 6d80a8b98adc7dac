//! One request over HTTP: redirects followed by hand, and nothing waited for without a limit.
//!
//! Header values from a server are bounded, hold no control characters, and are only ever compared, recorded or shown.

use std::io::Read;
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use url::Url;

use super::{FetchError, Limits};
use crate::control::Control;

/// Redirects followed in one request.
const REDIRECTS: usize = 10;
/// Longer values of headers are as good as none, in bytes.
const MAX_VALUE: usize = 8 << 10;
/// Read from the connection at once, in bytes.
const CHUNK: usize = 64 << 10;
/// A body that brings less than this in one second, over the time of [`Limits::read`], has stalled; in bytes.
const SLOWEST: u64 = 256;
/// How often a wait looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// The headers that are read.
const HEADERS: [&str; 10] = [
    "content-encoding",
    "content-length",
    "content-range",
    "etag",
    "location",
    "retry-after",
    "x-error-message",
    "x-linked-etag",
    "x-linked-size",
    "x-repo-commit",
];

/// Why a try failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The network, or a server that is busy: another try may help, this much later if the server said so.
    Network(String, Option<Duration>),
    /// A mismatch between what is here and what the hub has: only a fetch from the first byte may help.
    Restart(String),
    /// The hub refused; it would again.
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
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Body,
}
impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str())
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
            return Err(refuse(&format!("a redirect to {}: expected https", next.scheme())));
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
    let name = url.host_str().unwrap_or_default();
    url.port().map_or(name.to_owned(), |port| format!("{name}:{port}"))
}

/// Sends one GET, on a thread of its own, and waits for the head of its answer. A body that nobody wants any
/// more ends its thread with the next bytes that arrive, or after [`Limits::read`].
pub(super) fn get(
    url: &Url,
    headers: &[(&str, String)],
    proxy: Option<&str>,
    limits: &Limits,
    control: &Control<'_>,
) -> Result<Answer, Failure> {
    let mut agent = ureq::AgentBuilder::new()
        .redirects(0)
        .max_idle_connections(0)
        .timeout_connect(limits.connect)
        .timeout_read(limits.read)
        .timeout_write(limits.read)
        .user_agent(concat!("ropewalk/", env!("CARGO_PKG_VERSION")));
    let here = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    };
    if let Some(proxy) = proxy.filter(|_| !here) {
        // The error would show the address, which may hold a password.
        let bad = |_| Failure::Refused("the proxy's address: expected http://HOST:PORT".to_owned());
        agent = agent.proxy(ureq::Proxy::new(proxy).map_err(bad)?);
    }
    // Encoded contents could be neither resumed nor counted.
    let mut request = agent.build().request_url("GET", url).set("Accept-Encoding", "identity");
    for (name, value) in headers {
        request = request.set(name, value);
    }
    let (send, receive) = sync_channel(8);
    let name = host(url);
    std::thread::Builder::new()
        .name("ropewalk-get".to_owned())
        .spawn(move || run(request, &name, &send))
        .map_err(|e| Failure::Refused(format!("cannot start a thread: {e}")))?;
    let body = Body { receive, limits: limits.clone(), host: host(url), waited: Duration::ZERO, bytes: 0 };
    match body.wait(limits.connect + limits.read, control)? {
        Some(Message::Head(status, headers)) => Ok(Answer { status, headers, body }),
        Some(Message::Failed(failure)) => Err(failure),
        None => Err(body.stalled()),
        Some(_) => Err(Failure::network(format!("{}: the connection was lost", body.host))),
    }
}

enum Message {
    Head(u16, Vec<(&'static str, String)>),
    Chunk(Vec<u8>),
    End,
    Failed(Failure),
}

/// Sends the request and hands over what comes. A failed `send` means that nobody listens any more.
fn run(request: ureq::Request, host: &str, send: &SyncSender<Message>) {
    let response = match request.call() {
        Ok(response) | Err(ureq::Error::Status(_, response)) => response,
        Err(ureq::Error::Transport(e)) => {
            let _ = send.send(Message::Failed(explain(host, &e)));
            return;
        }
    };
    let known = |name: &&'static str| {
        let value = response.header(name)?;
        (value.len() <= MAX_VALUE && !value.contains(char::is_control)).then(|| (*name, value.to_owned()))
    };
    let headers = HEADERS.iter().filter_map(known).collect();
    if send.send(Message::Head(response.status(), headers)).is_err() {
        return;
    }
    let mut reader = response.into_reader();
    let mut buffer = vec![0; CHUNK];
    loop {
        let message = match reader.read(&mut buffer) {
            Ok(0) => Message::End,
            Ok(n) => Message::Chunk(buffer[..n].to_vec()),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => Message::Failed(Failure::network(format!("{host}: {e}"))),
        };
        let more = matches!(message, Message::Chunk(_));
        if send.send(message).is_err() || !more {
            return;
        }
    }
}

/// The error of a request that got no answer, without the address that was asked.
fn explain(host: &str, e: &ureq::Transport) -> Failure {
    use std::error::Error;
    use ureq::ErrorKind as Kind;
    let mut text = format!("{host}: {}", e.kind());
    if let Some(message) = e.message() {
        text = format!("{text}: {message}");
    }
    let (mut source, mut tls) = (e.source(), false);
    while let Some(cause) = source {
        if !text.ends_with(&cause.to_string()) {
            text = format!("{text}: {cause}");
        }
        // Such as a certificate that nobody trusts.
        let io = cause.downcast_ref::<std::io::Error>();
        tls |= io.is_some_and(|e| e.kind() == std::io::ErrorKind::InvalidData);
        source = cause.source();
    }
    match e.kind() {
        Kind::Dns | Kind::ConnectionFailed | Kind::Io | Kind::ProxyConnect if !tls => Failure::network(text),
        _ => Failure::Refused(text),
    }
}

/// A body that arrives.
#[derive(Debug)]
pub(super) struct Body {
    receive: Receiver<Message>,
    limits: Limits,
    host: String,
    /// Time waited, and bytes that came meanwhile, since their rate was last compared with the slowest.
    waited: Duration,
    bytes: u64,
}
impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Message")
    }
}
impl Body {
    #[cfg(test)]
    pub(super) fn empty() -> Body {
        let (_, receive) = sync_channel(0);
        Body { receive, limits: Limits::default(), host: String::new(), waited: Duration::ZERO, bytes: 0 }
    }

    /// The next bytes; `None` at the end.
    pub(super) fn next(&mut self, control: &Control<'_>) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            let left = self.limits.read.saturating_sub(self.waited);
            // Only time spent waiting counts: a slow disk is not a slow server.
            let since = Instant::now();
            let message = self.wait(left, control)?;
            self.waited += since.elapsed();
            if let Some(Message::Chunk(chunk)) = &message {
                self.bytes += chunk.len() as u64;
            }
            if self.waited >= self.limits.read {
                if self.bytes < SLOWEST * self.limits.read.as_secs().max(1) {
                    return Err(self.stalled());
                }
                (self.waited, self.bytes) = (Duration::ZERO, 0);
            }
            match message {
                Some(Message::Chunk(chunk)) => return Ok(Some(chunk)),
                Some(Message::End) => return Ok(None),
                Some(Message::Failed(failure)) => return Err(failure),
                Some(Message::Head(..)) | None => {}
            }
        }
    }

    fn stalled(&self) -> Failure {
        let seconds = self.limits.read.as_secs();
        Failure::network(format!("{}: stalled: too little data arrived in {seconds} s", self.host))
    }

    /// The next message; `None` when the time is over.
    fn wait(&self, time: Duration, control: &Control<'_>) -> Result<Option<Message>, Failure> {
        let since = Instant::now();
        loop {
            if control.stopped() {
                return Err(Failure::Stopped);
            }
            let left = time.saturating_sub(since.elapsed());
            match self.receive.recv_timeout(left.min(LOOK)) {
                Ok(message) => return Ok(Some(message)),
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
