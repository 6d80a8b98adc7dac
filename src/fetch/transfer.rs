//! Brings the contents of a source into its unfinished file: resumes, tries again, compares sizes.

use std::path::Path;
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder};
use hf_hub::{Cache, RepoType};
use url::Url;

use super::http::{self, Answer, Failure, Linked};
use super::partial::{Known, Partial};
use super::{is_sha256, FetchError, Hub, Limits, Repo, Request};
use crate::control::Control;

/// A try that brought so many bytes more than any before makes the count of tries begin anew.
const ADVANCE: u64 = 1 << 20;
/// Beginnings from the first byte because what was here did not fit.
const RESTARTS: u32 = 2;
/// The longest wait between tries; a server that asks for more is not waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Completes the unfinished file.
pub(super) fn complete(
    hub: &Hub,
    request: &Request<'_>,
    partial: &mut Partial,
    control: &Control<'_>,
) -> Result<(), FetchError> {
    let from = request.source.to_string();
    let remote = |what: String| FetchError::Remote { from: from.clone(), what };
    let folder = partial.path.parent().unwrap_or(Path::new("."));
    let url = address(hub, request, folder).map_err(remote)?;
    let transfer = Transfer { hub, request, url, control };
    let mut tries = Tries { limits: &hub.limits, from: &from, n: 0, control };
    let (mut restarts, mut best) = (0, partial.len()?);
    loop {
        match transfer.attempt(partial) {
            Ok(()) => return Ok(()),
            Err(Failure::Restart(why)) if restarts < RESTARTS => {
                restarts += 1;
                control.note(format_args!("{from}: {why}: restarting from the first byte"));
                partial.clear()?;
            }
            Err(failure) => {
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
        let remote = |what: String| FetchError::Remote { from: self.from.to_owned(), what };
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
            return Err(remote(format!("{what}{tried}{}", kept(have))));
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

/// The hub's listing of a repository, as JSON of at most `limit` bytes. `folder` need not be there.
pub(super) fn listing(
    hub: &Hub,
    repo: &Repo,
    folder: &Path,
    limit: usize,
    control: &Control<'_>,
) -> Result<Vec<u8>, FetchError> {
    let from = repo.to_string();
    let url = checked(hub, folder, |api| {
        let url = api.model(repo.id()).info_request().url().to_owned();
        // With the sizes and checksums of large files.
        url + "?blobs=true"
    });
    let url = url.map_err(|what| FetchError::Remote { from: from.clone(), what })?;
    let mut tries = Tries { limits: &hub.limits, from: &from, n: 0, control };
    loop {
        match asked(hub, &url, limit, control) {
            Ok(body) => return Ok(body),
            Err(failure) => tries.again(failure, 0)?,
        }
    }
}

fn asked(hub: &Hub, url: &Url, limit: usize, control: &Control<'_>) -> Result<Vec<u8>, Failure> {
    let send = |to: &Url, token: Option<&str>| {
        let token = token.map(|token| ("Authorization", format!("Bearer {token}")));
        let headers: Vec<_> = token.into_iter().collect();
        let answer = http::get(to, &headers, hub.proxy.as_deref(), &hub.limits, control)?;
        match answer.status {
            200 | 301 | 302 | 303 | 307 | 308 => Ok(answer),
            _ => Err(refusal(&answer, to, to.origin() == url.origin())),
        }
    };
    let (_, mut answer, _) = http::follow(url, hub.token.as_deref(), send)?;
    let announced = answer.number("content-length");
    let mut body = Vec::new();
    while let Some(chunk) = answer.body.next(control)? {
        body.extend(chunk);
        if body.len() > limit {
            return Err(Failure::Refused(format!("its list of files has more than {limit} bytes")));
        }
    }
    match announced {
        Some(n) if n != body.len() as u64 => {
            Err(Failure::network(format!("the connection ended at byte {} of {n}", body.len())))
        }
        _ => Ok(body),
    }
}

/// Note of a pull that ends early on the bytes it has.
pub(super) fn kept(len: u64) -> String {
    match len {
        0 => String::new(),
        n => format!("; {n} bytes are kept, and the same pull resumes from there"),
    }
}

/// The address of a source.
pub(super) fn address(hub: &Hub, request: &Request<'_>, folder: &Path) -> Result<Url, String> {
    let (source, revision) = (request.source, request.revision.unwrap_or("main"));
    checked(hub, folder, |api| {
        let repo = hf_hub::Repo::with_revision(source.repo.clone(), RepoType::Model, revision.to_owned());
        api.repo(repo).url(&source.file)
    })
}

/// An address of the hub. A token is refused where it could be read on its way.
fn checked(hub: &Hub, folder: &Path, of: impl FnOnce(&Api) -> String) -> Result<Url, String> {
    // Crate hf-hub knows where the public hub is, and is asked nothing else: it sends no request, and what it
    // would read in its folder, a token, is not there.
    let mut builder = ApiBuilder::from_cache(Cache::new(folder.join("none"))).with_token(None);
    if let Some(endpoint) = &hub.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    let api = builder.build().map_err(|e| e.to_string())?;
    let text = of(&api);
    let endpoint = hub.endpoint.as_deref().unwrap_or("the public one");
    let url = Url::parse(&text)
        .ok()
        .filter(|_| hub.endpoint.as_ref().is_none_or(|e| Url::parse(e).is_ok_and(|url| url.has_host())))
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or_else(|| format!("hub '{endpoint}': expected https://HOST"))?;
    let asks = |text: &str| text.contains('?');
    if !url.username().is_empty() || url.password().is_some() || hub.endpoint.as_deref().is_some_and(asks) {
        return Err(
            "the hub's address: expected https://HOST, found one with a name, password or query".into()
        );
    }
    if let Some(token) = &hub.token {
        if url.scheme() != "https" {
            return Err(format!("a token is set, and is never sent over plain http: {endpoint}"));
        }
        if !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("the token: expected letters, digits and signs, found another character".into());
        }
    }
    Ok(url)
}

struct Transfer<'a> {
    hub: &'a Hub,
    request: &'a Request<'a>,
    url: Url,
    control: &'a Control<'a>,
}
impl Transfer<'_> {
    /// One try: from the end of what is here to the end of the file.
    fn attempt(&self, partial: &mut Partial) -> Result<(), Failure> {
        let have = partial.len().map_err(Failure::Local)?;
        let known = partial.known().cloned();
        if known.as_ref().is_some_and(|k| self.request.bytes.is_some_and(|n| n != k.bytes)) {
            return Err(Failure::Restart("the unfinished file belongs to another version".to_owned()));
        }
        // Without a tag or a checksum, what is here may be the beginning of another version.
        let tied = |k: &&Known| k.tag.is_some() || self.request.sha256.is_some();
        let known = known.filter(|k| have > 0 && tied(&k));
        if known.as_ref().is_some_and(|k| have > k.bytes) {
            return Err(Failure::Restart("the unfinished file is longer than the complete file".to_owned()));
        }
        if known.as_ref().is_some_and(|k| have == k.bytes) {
            return Ok(());
        }
        let (linked, mut answer, own) = self.ask(known.as_ref().map(|k| (have, k)))?;
        let total = total(&answer, &linked, known.as_ref().map(|_| have))?;
        if let Some(bytes) = self.request.bytes.filter(|n| *n != total) {
            return Err(Failure::Refused(format!("expected {bytes} bytes, the hub has {total}")));
        }
        let now = identify(&linked, &answer, own, total);
        let mut at = match known {
            Some(known) if answer.status == 206 => {
                if (&known.tag, known.bytes) != (&now.tag, now.bytes) {
                    return Err(Failure::Restart("the hub now has another version".to_owned()));
                }
                have
            }
            _ => {
                if have > 0 {
                    let from = self.request.source;
                    self.control.note(format_args!("{from}: the hub sends it from the first byte again"));
                }
                partial.begin(now).map_err(Failure::Local)?;
                0
            }
        };
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
        Ok(())
    }

    /// Asks for the file, or for the rest of it.
    fn ask(&self, rest: Option<(u64, &Known)>) -> Result<(Linked, Answer, bool), Failure> {
        let Hub { token, proxy, limits, .. } = self.hub;
        let send = |url: &Url, token: Option<&str>| {
            let mut headers = Vec::new();
            if let Some((from, known)) = rest {
                headers.push(("Range", format!("bytes={from}-")));
                // A weak tag promises no equal bytes, and other servers than the tag's cannot compare it.
                let strong = known.tag.as_ref().filter(|t| known.own && t.starts_with('"'));
                headers.extend(strong.map(|tag| ("If-Range", tag.clone())));
            }
            headers.extend(token.map(|token| ("Authorization", format!("Bearer {token}"))));
            let answer = http::get(url, &headers, proxy.as_deref(), limits, self.control)?;
            match answer.status {
                200 | 206 | 301 | 302 | 303 | 307 | 308 => Ok(answer),
                416 if rest.is_some() => {
                    Err(Failure::Restart("the hub cannot send the rest of it".to_owned()))
                }
                _ => Err(refusal(&answer, url, url.origin() == self.url.origin())),
            }
        };
        http::follow(&self.url, token.as_deref(), send)
    }
}

/// The size of the whole file, as this answer to a request for its bytes from `from` has it.
fn total(answer: &Answer, linked: &Linked, from: Option<u64>) -> Result<u64, Failure> {
    if let Some(coding) = answer.header("content-encoding").filter(|c| !c.eq_ignore_ascii_case("identity")) {
        return Err(Failure::Refused(format!("is sent encoded ({coding}), which was not requested")));
    }
    let length = answer.number("content-length");
    let total = if answer.status == 200 {
        let total = length.or(linked.bytes);
        total.ok_or_else(|| Failure::Refused("the hub does not report the size of the file".to_owned()))?
    } else {
        let whole = || Failure::Refused("the hub sent a part, and the whole file was requested".to_owned());
        let from = from.ok_or_else(whole)?;
        let range = answer.header("content-range").unwrap_or_default();
        let rest = |&(first, last, total): &(u64, u64, u64)| {
            let sound = first == from && last >= first && last.checked_add(1) == Some(total);
            sound && length.is_none_or(|n| n == total - first)
        };
        let wrong = || {
            let length = length.map_or("unknown".to_owned(), |n| n.to_string());
            Failure::Restart(format!(
                "requested the bytes from {from}, received '{range}' of length {length}"
            ))
        };
        parse_range(range).filter(rest).ok_or_else(wrong)?.2
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
fn identify(linked: &Linked, answer: &Answer, own: bool, bytes: u64) -> Known {
    let etag = answer.header("etag").map(str::to_owned);
    // For large files the hub's tag is the sha256. Tags of other servers can look like one, too.
    let said = linked.tag.as_ref().or(etag.as_ref().filter(|_| own));
    let sha256 = said.map(|t| t.trim_matches('"').to_owned()).filter(|t| is_sha256(t));
    Known {
        bytes,
        own: linked.tag.is_none(),
        tag: linked.tag.clone().or(etag),
        sha256,
        revision: linked.revision.clone(),
    }
}

/// The failure that an answer without a file is.
fn refusal(answer: &Answer, url: &Url, own: bool) -> Failure {
    let said: String = answer.header("x-error-message").unwrap_or_default().chars().take(200).collect();
    let said = if said.is_empty() { said } else { format!(" ({said})") };
    let status = answer.status;
    match status {
        404 => Failure::Refused(format!("not found{said}")),
        401 | 403 if own => {
            Failure::Refused(format!("not public: set HF_TOKEN to a token that may read it{said}"))
        }
        408 | 429 | 500 | 502 | 503 | 504 => {
            let wait = answer.number("retry-after").map(Duration::from_secs);
            Failure::Network(format!("{}: status {status}{said}", http::host(url)), wait)
        }
        _ => Failure::Refused(format!("{}: status {status}{said}", http::host(url))),
    }
}

pub(super) fn check_space(folder: &Path, needed: u64) -> Result<(), FetchError> {
    match free_space(folder) {
        Some(free) if free < needed => Err(FetchError::Space { path: folder.to_owned(), needed, free }),
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
