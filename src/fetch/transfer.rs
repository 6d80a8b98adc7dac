//! Brings the contents of a source into its unfinished file: resumes, tries again, compares sizes and checksums.

use std::path::Path;
use std::time::Duration;

use url::Url;

use super::error::{note_of, other, said, Result};
use super::http::{self, Answer, Failure, Known};
use super::partial::Partial;
use super::{checksum, FetchError, Hub, Repo, Request};
use crate::control::Control;

/// Address of the public hub. In pieces: no file of this repository spells the name of a registry, which a test checks.
const PUBLIC: &str = concat!("https://huggingface", ".", "co");
/// A try that brought so many bytes more than any before makes the count of tries begin anew.
const ADVANCE: u64 = 1 << 20;
/// The longest wait between tries; a server that asks for more is not waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Completes the unfinished file of a source that is to be at `path`, and compares its checksum. Returns the checksum,
/// whether there was one to compare it with, and the commit, if the hub names it.
pub(super) fn complete(
    hub: &Hub,
    request: &Request<'_>,
    partial: &mut Partial,
    path: &Path,
    control: &Control<'_>,
) -> Result<(String, bool, Option<String>)> {
    let from = request.source.to_string();
    let url = address(hub, &from, &path_of(request))?;
    let mut transfer = Transfer { hub, request, url, known: None, control };
    let mut tries = Tries { hub, from: &from, control, n: 0, best: 0 };
    let mut restarted = false;
    loop {
        match transfer.attempt(partial) {
            Err(failure) => {
                if transfer.known.is_some() && transfer.expected().is_none() {
                    partial.clear()?; // Nothing would tell whether the rest belongs to it.
                }
                tries.again(failure, partial.len()?)?;
            }
            Ok(at_once) => {
                let found = partial.sha256(control)?;
                let expected = transfer.expected();
                if expected.is_none_or(|sha256| sha256 == found) {
                    let verified = expected.is_some();
                    return Ok((found, verified, transfer.known.and_then(|known| known.revision)));
                }
                partial.clear()?; // It would not be the file the next time.
                if at_once || restarted {
                    return Err(checksum(path, expected.unwrap_or_default(), &found));
                }
                control.note(format_args!(
                    "{from}: the copy here does not match: restarting from the first byte"
                ));
                restarted = true;
            }
        }
    }
}

/// Tries that failed, of one transfer.
struct Tries<'a> {
    hub: &'a Hub,
    from: &'a str,
    control: &'a Control<'a>,
    n: u32,
    /// The most bytes that were here after any of them.
    best: u64,
}
impl Tries<'_> {
    /// Waits where another try may help, and is an error where none would. So many bytes are here.
    fn again(&mut self, failure: Failure, have: u64) -> Result<()> {
        let stopped = FetchError::Stopped { from: self.from.to_owned(), kept: have };
        let (what, asked) = match failure {
            Failure::Local(e) => return Err(e),
            Failure::Refused(what) => return Err(other(self.from, what)),
            Failure::Stopped => return Err(stopped),
            Failure::Network(what, asked) => (what, asked),
        };
        if have >= self.best + ADVANCE {
            (self.n, self.best) = (0, have);
        }
        self.n += 1;
        let (retries, wait) = (self.hub.limits.retries, self.hub.limits.wait);
        if self.n > retries {
            let tried = if self.n == 1 { String::new() } else { format!(" ({} tries)", self.n) };
            return Err(other(self.from, format_args!("{what}{tried}{}", note_of(have))));
        }
        let wait = wait.saturating_mul(1 << (self.n - 1).min(8)).min(LONGEST_WAIT);
        let wait = wait.max(asked.unwrap_or_default());
        if wait > LONGEST_WAIT {
            return Err(other(self.from, format_args!("{what}: asks to wait {} s", wait.as_secs())));
        }
        let (n, seconds) = (self.n, wait.as_secs_f32());
        self.control.note(format_args!("{}: {what}: retry {n} of {retries} in {seconds} s", self.from));
        http::sleep(wait, self.control).map_err(|_| stopped)
    }
}

/// The hub's listing of a repository, as JSON of at most `limit` bytes.
pub(super) fn listing(hub: &Hub, repo: &Repo, limit: usize, control: &Control<'_>) -> Result<Vec<u8>> {
    let from = repo.to_string();
    // With the sizes and checksums of large files.
    let url = address(hub, &from, &format!("api/models/{}/revision/main?blobs=true", repo.id()))?;
    let mut tries = Tries { hub, from: &from, control, n: 0, best: 0 };
    let ask = || {
        let (_, mut answer) = http::ask(hub, &url, None, control)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.body.next(control)? {
            body.extend(chunk);
            if body.len() > limit {
                return Err(Failure::Refused(format!("its list of files has more than {limit} bytes")));
            }
        }
        Ok(body)
    };
    loop {
        match ask() {
            Ok(body) => return Ok(body),
            Err(failure) => tries.again(failure, 0)?,
        }
    }
}

/// Path of a source below the hub's address.
pub(super) fn path_of(request: &Request<'_>) -> String {
    let (source, revision) = (request.source, request.revision.unwrap_or("main"));
    format!("{}/resolve/{}/{}", source.repo, revision.replace('/', "%2F"), source.file)
}

/// An address of the hub, to fetch `from`. A token is refused where it could be read on its way.
pub(super) fn address(hub: &Hub, from: &str, path: &str) -> Result<Url> {
    let endpoint = hub.endpoint.as_deref().unwrap_or(PUBLIC).trim_end_matches('/');
    // It is not shown: it may hold a password.
    let wrong = "the hub's address: expected https://HOST without a name, password, or query";
    let base = Url::parse(&format!("{endpoint}/")).map_err(|_| other(from, wrong))?;
    let extra = [base.password(), base.query(), base.fragment()].iter().any(Option::is_some);
    if !matches!(base.scheme(), "http" | "https") || !base.username().is_empty() || extra {
        return Err(other(from, wrong));
    }
    if let Some(token) = &hub.token {
        if base.scheme() != "https" {
            return Err(other(from, "a token is set, and is never sent over plain http"));
        }
        if !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(other(
                from,
                "the token: expected letters, digits and signs, found another character",
            ));
        }
    }
    base.join(path).map_err(|_| other(from, wrong))
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
        let have = partial.len()?;
        let Request { source, sha256, bytes, .. } = *self.request;
        if have > 0 && sha256.is_some() && bytes == Some(have) {
            return Ok(false); // Whole, perhaps: its checksum tells, and needs no hub.
        }
        // Without a checksum nothing would tell whether the rest belongs to what is here.
        let resumes = have > 0 && (self.known.is_none() || self.expected().is_some());
        let mut rest = Some(have).filter(|have| resumes && bytes.is_none_or(|n| *have < n));
        let (mut answer, mut at, total) = loop {
            let (known, answer) = http::ask(self.hub, &self.url, rest, self.control)?;
            let at = rest.filter(|_| answer.status == 206).unwrap_or(0);
            let total = total(&answer, at, bytes, known.bytes);
            self.known = Some(known);
            if answer.status == 200 {
                break (answer, at, total.map_err(Failure::Refused)?);
            }
            if rest.is_none() {
                let what = "the hub sent a part, and the whole file was requested";
                return Err(Failure::Refused(what.to_owned()));
            }
            // Whose rest it is, its checksum tells. Status 416: what is here is whole, or not of this file.
            match total {
                Ok(total) if answer.status == 206 && self.expected().is_some() => break (answer, at, total),
                _ => rest = None,
            }
        };
        if at == 0 && have > 0 {
            if have == total && self.expected().is_some() {
                return Ok(false);
            }
            self.control.note(format_args!("{source}: the hub sends it from the first byte again"));
            partial.clear()?;
        }
        let at_once = at == 0;
        check_space(partial.path.parent().unwrap_or(Path::new(".")), total.saturating_sub(at))?;
        while let Some(chunk) = answer.body.next(self.control)? {
            at += chunk.len() as u64;
            if at > total {
                partial.clear()?;
                return Err(Failure::Refused(format!("more than the {total} bytes announced were sent")));
            }
            partial.append(&chunk)?;
            self.control.report(format_args!("downloading"), at, total);
        }
        if at < total {
            return Err(Failure::Network(format!("the connection ended at byte {at} of {total}"), None));
        }
        Ok(at_once)
    }
}

/// The size of the whole file, of which this answer has the bytes from `at` on: as it, the request, and the hub have it.
fn total(answer: &Answer, at: u64, expected: Option<u64>, linked: Option<u64>) -> Result<u64, String> {
    if let Some(coding) = answer.header("content-encoding").filter(|c| !c.eq_ignore_ascii_case("identity")) {
        return Err(format!("is sent encoded ({}), which was not requested", said(coding)));
    }
    let length = answer.number("content-length").map(|n| n.saturating_add(at));
    let total = length.or(linked).ok_or("the hub does not report the size of the file")?;
    for (who, n) in [("expected", expected), ("the hub reports", linked)] {
        if let Some(n) = n.filter(|n| *n != total) {
            return Err(format!("{who} {n} bytes, the hub has {total}"));
        }
    }
    Ok(total)
}

/// Returns an error if this user may not write so many bytes there, as far as the file system says.
pub(super) fn check_space(folder: &Path, needed: u64) -> Result<()> {
    #[cfg(unix)]
    {
        use ropewalk_core::text::bytes;
        let space = rustix::fs::statvfs(folder).ok().filter(|s| s.f_blocks > 0);
        let free = space.map_or(u64::MAX, |s| s.f_bavail.saturating_mul(s.f_frsize));
        if free < needed {
            let what = format!("{} is needed, and {} is free", bytes(needed), bytes(free));
            return Err(other(folder.display(), what));
        }
    }
    let _ = (folder, needed);
    Ok(())
}
