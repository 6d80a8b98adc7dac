//! Brings the contents of a source into its unfinished file: resumes, tries again, compares sizes and checksums.

use std::path::Path;
use std::time::Duration;

use ropewalk_core::text::bytes;
use url::Url;

use super::error::{other, remains, said};
use super::http::{self, Answer, Failure, Linked};
use super::partial::Partial;
use super::{checksum, is_sha256, FetchError, Hub, Limits, Repo, Request};
use crate::control::Control;

/// Address of the public hub. In pieces: no file of this repository spells the name of a registry, which a test checks.
const PUBLIC: &str = concat!("https://huggingface", ".", "co");
/// A try that brought so many bytes more than any before makes the count of tries begin anew.
const ADVANCE: u64 = 1 << 20;
/// Beginnings from the first byte because what was here did not fit.
const RESTARTS: u32 = 2;
/// The longest wait between tries; a server that asks for more is not waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The contents of a source, as an answer of the hub has them.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Size in bytes.
    bytes: u64,
    /// SHA-256: once they are here their own, before that the hub's, if it gives one.
    pub(super) sha256: Option<String>,
    /// The commit.
    pub(super) revision: Option<String>,
}

/// Completes the unfinished file of a source that is to be at `path`, and compares its checksum. Returns what is known of
/// the file, and whether there was a checksum to compare it with.
pub(super) fn complete(
    hub: &Hub,
    request: &Request<'_>,
    partial: &mut Partial,
    path: &Path,
    control: &Control<'_>,
) -> Result<(Known, bool), FetchError> {
    let from = request.source.to_string();
    let url = address(hub, request).map_err(|what| other(&from, what))?;
    let mut transfer = Transfer { hub, request, url, known: None, control };
    let mut tries = Tries { limits: &hub.limits, from: &from, n: 0, control };
    let (mut restarts, mut best) = (0, partial.len()?);
    loop {
        let failure = match transfer.attempt(partial) {
            Err(failure) => failure,
            Ok(at_once) => {
                let found = partial.sha256(control)?;
                let expected = transfer.expected();
                if expected.is_none_or(|sha256| sha256 == found) {
                    let verified = expected.is_some();
                    let known = transfer.known.unwrap_or_default();
                    return Ok((Known { sha256: Some(found), ..known }, verified));
                }
                if at_once || restarts == RESTARTS {
                    partial.clear()?; // It would not be the file the next time.
                    return Err(checksum(path, expected.unwrap_or_default(), &found));
                }
                Failure::Restart("the copy here does not match".to_owned())
            }
        };
        match failure {
            Failure::Restart(why) if restarts < RESTARTS => {
                restarts += 1;
                control.note(format_args!("{from}: {why}: restarting from the first byte"));
                partial.clear()?;
            }
            failure => {
                if transfer.known.is_some() && transfer.expected().is_none() {
                    partial.clear()?; // Nothing would tell whether the rest belongs to it.
                }
                let len = partial.len()?;
                if len >= best + ADVANCE {
                    (tries.n, best) = (0, len);
                }
                tries.again(failure, len)?;
            }
        }
    }
}

/// Tries of one transfer that failed.
struct Tries<'a> {
    limits: &'a Limits,
    from: &'a str,
    n: u32,
    control: &'a Control<'a>,
}
impl Tries<'_> {
    /// Waits where another try may help, and is an error where none would. So many bytes are here.
    fn again(&mut self, failure: Failure, have: u64) -> Result<(), FetchError> {
        let remote = |what: String| other(self.from, what);
        let stopped = FetchError::Stopped { from: self.from.to_owned(), kept: have };
        let (what, asked) = match failure {
            Failure::Local(e) => return Err(e),
            Failure::Refused(what) | Failure::Restart(what) => return Err(remote(what)),
            Failure::Stopped => return Err(stopped),
            Failure::Network(what, asked) => (what, asked),
        };
        self.n += 1;
        let Limits { retries, wait, .. } = *self.limits;
        if self.n > retries {
            let tried = if self.n == 1 { String::new() } else { format!(" ({} tries)", self.n) };
            return Err(remote(format!("{what}{tried}{}", remains(have))));
        }
        let wait = wait.saturating_mul(1 << (self.n - 1).min(8)).min(LONGEST_WAIT);
        let wait = wait.max(asked.unwrap_or_default());
        if wait > LONGEST_WAIT {
            return Err(remote(format!("{what}: asks to wait {} s", wait.as_secs())));
        }
        let seconds = wait.as_secs_f32();
        self.control
            .note(format_args!("{}: {what}: retry {} of {retries} in {seconds} s", self.from, self.n));
        http::sleep(wait, self.control).map_err(|_| stopped)
    }
}

/// The hub's listing of a repository, as JSON of at most `limit` bytes.
pub(super) fn listing(
    hub: &Hub,
    repo: &Repo,
    limit: usize,
    control: &Control<'_>,
) -> Result<Vec<u8>, FetchError> {
    let from = repo.to_string();
    // With the sizes and checksums of large files.
    let url = checked(hub, &format!("api/models/{}/revision/main?blobs=true", repo.id()));
    let url = url.map_err(|what| other(&from, what))?;
    let mut tries = Tries { limits: &hub.limits, from: &from, n: 0, control };
    loop {
        match asked(hub, &url, limit, control) {
            Ok(body) => return Ok(body),
            Err(failure) => tries.again(failure, 0)?,
        }
    }
}

fn asked(hub: &Hub, url: &Url, limit: usize, control: &Control<'_>) -> Result<Vec<u8>, Failure> {
    let (_, mut answer, _) = send(hub, url, None, control)?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.body.next(control)? {
        body.extend(chunk);
        if body.len() > limit {
            return Err(Failure::Refused(format!("its list of files has more than {limit} bytes")));
        }
    }
    Ok(body)
}

/// Asks for what is at an address, or for the rest of it, and follows redirects.
fn send(
    hub: &Hub,
    url: &Url,
    rest: Option<u64>,
    control: &Control<'_>,
) -> Result<(Linked, Answer, bool), Failure> {
    let get = |to: &Url, token: Option<&str>| {
        let token = token.map(|token| ("Authorization", format!("Bearer {token}")));
        let range = rest.map(|from| ("Range", format!("bytes={from}-")));
        let answer = http::get(to, range.into_iter().chain(token).collect(), hub, control)?;
        match answer.status {
            200 | 301 | 302 | 303 | 307 | 308 => Ok(answer),
            206 | 416 if rest.is_some() => Ok(answer),
            206 => Err(Failure::Refused("the hub sent a part, and the whole file was requested".to_owned())),
            _ => Err(refusal(&answer, to, to.origin() == url.origin())),
        }
    };
    http::follow(url, hub.token.as_deref(), get)
}

/// The failure that an answer without a file is.
fn refusal(answer: &Answer, url: &Url, own: bool) -> Failure {
    let why = answer.header("x-error-message").map(|text| format!(" ({})", said(text))).unwrap_or_default();
    let status = answer.status;
    match status {
        404 => Failure::Refused(format!("not found{why}")),
        401 | 403 if own => {
            Failure::Refused(format!("not public: set HF_TOKEN to a token that may read it{why}"))
        }
        408 | 429 | 500..=599 => {
            let wait = answer.number("retry-after").map(Duration::from_secs);
            Failure::Network(format!("{}: status {status}{why}", http::host(url)), wait)
        }
        _ => Failure::Refused(format!("{}: status {status}{why}", http::host(url))),
    }
}

/// The address of a source.
pub(super) fn address(hub: &Hub, request: &Request<'_>) -> Result<Url, String> {
    let (source, revision) = (request.source, request.revision.unwrap_or("main"));
    checked(hub, &format!("{}/resolve/{}/{}", source.repo, revision.replace('/', "%2F"), source.file))
}

/// An address of the hub. A token is refused where it could be read on its way.
fn checked(hub: &Hub, path: &str) -> Result<Url, String> {
    let endpoint = hub.endpoint.as_deref().unwrap_or(PUBLIC);
    let wrong = || format!("hub '{endpoint}': expected https://HOST");
    let base = Url::parse(endpoint).map_err(|_| wrong())?;
    if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
        return Err(wrong());
    }
    let extra = [base.password(), base.query(), base.fragment()];
    if !base.username().is_empty() || extra.iter().any(Option::is_some) {
        return Err(
            "the hub's address: expected https://HOST, found one with a name, password or query".into()
        );
    }
    if let Some(token) = &hub.token {
        if base.scheme() != "https" {
            return Err(format!("a token is set, and is never sent over plain http: {endpoint}"));
        }
        if !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("the token: expected letters, digits and signs, found another character".into());
        }
    }
    Url::parse(&format!("{}/{path}", endpoint.trim_end_matches('/'))).map_err(|_| wrong())
}

struct Transfer<'a> {
    hub: &'a Hub,
    request: &'a Request<'a>,
    url: Url,
    /// What the hub said of the contents in this call. Nothing of an earlier one is believed.
    known: Option<Known>,
    control: &'a Control<'a>,
}
impl Transfer<'_> {
    /// The checksum that the file must have, if anybody gives one.
    fn expected(&self) -> Option<&str> {
        self.request.sha256.or_else(|| self.known.as_ref()?.sha256.as_deref())
    }

    /// One try: from the end of what is here to the end of the file. Returns true if all of it arrived in this try.
    fn attempt(&mut self, partial: &mut Partial) -> Result<bool, Failure> {
        let have = partial.len().map_err(Failure::Local)?;
        let Request { source, sha256, bytes, .. } = *self.request;
        if have > 0 && sha256.is_some() && bytes == Some(have) {
            return Ok(false); // Whole, perhaps: its checksum tells, and needs no hub.
        }
        // Without a checksum nothing would tell whether the rest belongs to what is here.
        let resumes = have > 0 && (self.known.is_none() || self.expected().is_some());
        let mut rest = Some(have).filter(|have| resumes && bytes.is_none_or(|n| *have < n));
        let (mut linked, mut answer, mut own) = send(self.hub, &self.url, rest, self.control)?;
        if answer.status == 416 {
            // There is no rest: what is here is whole, or not of this file.
            rest = None;
            (linked, answer, own) = send(self.hub, &self.url, None, self.control)?;
        }
        let total = total(&answer, &linked, rest)?;
        if let Some(bytes) = bytes.filter(|n| *n != total) {
            return Err(Failure::Refused(format!("expected {bytes} bytes, the hub has {total}")));
        }
        let now = identify(linked, &answer, own, total);
        let same = |k: &Known| (k.bytes, &k.sha256) == (now.bytes, &now.sha256);
        let same = self.known.as_ref().is_none_or(same);
        self.known = Some(now);
        let mut at = 0;
        if answer.status == 206 {
            if !same {
                return Err(Failure::Restart("the hub now has another version".to_owned()));
            }
            if self.expected().is_none() {
                return Err(Failure::Restart("the hub gives no checksum".to_owned()));
            }
            at = have;
        } else if have > 0 {
            if have == total && self.expected().is_some() {
                return Ok(false);
            }
            self.control.note(format_args!("{source}: the hub sends it from the first byte again"));
            partial.clear().map_err(Failure::Local)?;
        }
        let at_once = at == 0;
        let folder = partial.path.parent().unwrap_or(Path::new("."));
        check_space(folder, total - at).map_err(Failure::Local)?;
        while let Some(chunk) = answer.body.next(self.control)? {
            at += chunk.len() as u64;
            if at > total {
                partial.clear().map_err(Failure::Local)?;
                return Err(Failure::Refused(format!("more than the {total} bytes announced were sent")));
            }
            partial.append(&chunk).map_err(Failure::Local)?;
            self.control.report(format_args!("downloading"), at, total);
        }
        if at < total {
            return Err(Failure::network(format!("the connection ended at byte {at} of {total}")));
        }
        Ok(at_once)
    }
}

/// The size of the whole file, as this answer to a request for its bytes from `from` has it.
fn total(answer: &Answer, linked: &Linked, from: Option<u64>) -> Result<u64, Failure> {
    if let Some(coding) = answer.header("content-encoding").filter(|c| !c.eq_ignore_ascii_case("identity")) {
        let coding = said(coding);
        return Err(Failure::Refused(format!("is sent encoded ({coding}), which was not requested")));
    }
    let length = answer.number("content-length");
    let total = match from.filter(|_| answer.status == 206) {
        None => {
            let unknown = || Failure::Refused("the hub does not report the size of the file".to_owned());
            length.or(linked.bytes).ok_or_else(unknown)?
        }
        Some(from) => {
            let range = answer.header("content-range").unwrap_or_default();
            let rest = |&(first, last, total): &(u64, u64, u64)| {
                let sound = first == from && last >= first && last.checked_add(1) == Some(total);
                sound && length.is_none_or(|n| n == total - first)
            };
            let wrong = || {
                let (range, length) = (said(range), length.map_or("unknown".to_owned(), |n| n.to_string()));
                Failure::Restart(format!(
                    "requested the bytes from {from}, received '{range}' of length {length}"
                ))
            };
            parse_range(range).filter(rest).ok_or_else(wrong)?.2
        }
    };
    match linked.bytes {
        Some(n) if n != total => {
            Err(Failure::Refused(format!("the hub reports {n} bytes, but announces {total}")))
        }
        _ => Ok(total),
    }
}

/// First byte, last byte and size of the whole in `bytes 2-5/6`.
fn parse_range(text: &str) -> Option<(u64, u64, u64)> {
    let (part, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = part.split_once('-')?;
    let number = |text: &str| text.parse::<u64>().ok();
    Some((number(first)?, number(last)?, number(total)?))
}

/// Collects the metadata of the contents from an answer.
fn identify(linked: Linked, answer: &Answer, own: bool, bytes: u64) -> Known {
    // For large files the hub's tag is the sha256. Tags of other servers can look like one, too.
    let tag = linked.tag.as_deref().or(answer.header("etag").filter(|_| own));
    let sha256 = tag.map(|t| t.trim_matches('"').to_owned()).filter(|t| is_sha256(t));
    Known { bytes, sha256, revision: linked.revision }
}

pub(super) fn check_space(folder: &Path, needed: u64) -> Result<(), FetchError> {
    match free_space(folder) {
        Some(free) if free < needed => {
            let what = format!("{} is needed, and {} is free", bytes(needed), bytes(free));
            Err(other(folder.display(), what))
        }
        _ => Ok(()),
    }
}

/// Bytes that this user may still write, if the file system says so.
#[cfg(unix)]
fn free_space(folder: &Path) -> Option<u64> {
    let s = rustix::fs::statvfs(folder).ok()?;
    (s.f_blocks > 0).then(|| s.f_bavail.saturating_mul(s.f_frsize))
}

#[cfg(not(unix))]
fn free_space(_: &Path) -> Option<u64> {
    None
}
