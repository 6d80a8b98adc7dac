//! Brings the contents of a source into its unfinished file: resumes, tries again, compares sizes and checksums.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use url::Url;

use super::http::{self, Answer, Failure, Known};
use super::{checksum, Hub, Pulled, Repo, Request};
use crate::control::Control;
use crate::origin::{io, note_of, other, partial, said, sha256_of, Error, Result};

/// Address of the public hub. In pieces: no file of this repository spells the name of a registry, which a test checks.
const PUBLIC: &str = concat!("https://huggingface", ".", "co");
/// Size limit of a hub's listing of a repository, in bytes: a few hundred for each file.
const MAX_LISTING: usize = 16 << 20;
/// A try that brought this many bytes more than any before resets the count of retries.
const ADVANCE: u64 = 1 << 20;
/// The longest wait between tries; a server that asks for more is not waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Brings a file that is to be at `path` into its unfinished file, which is checked and on the disk then. Also returns the
/// commit, if the hub names it.
pub(super) fn bring(
    hub: &Hub,
    request: &Request<'_>,
    unfinished: &Path,
    path: &Path,
    control: &Control<'_>,
) -> Result<(Pulled, Option<String>)> {
    let from = request.source.to_string();
    let url = address(hub, &from, &path_of(request))?;
    let file = files::open_own(unfinished).map_err(io(unfinished))?;
    let have = file.metadata().map_err(io(unfinished))?.len();
    let mut transfer = Transfer { hub, request, url, unfinished, file, have, known: None, control };
    let done = tries(hub, &from, control, || (transfer.whole(path), transfer.have));
    let Transfer { file, have, .. } = &transfer;
    match done {
        Ok(sha256) => {
            file.sync_all().map_err(io(unfinished))?;
            let verified = transfer.expected().is_some();
            let pulled = Pulled { path: path.to_owned(), bytes: *have, sha256, verified, fresh: true };
            Ok((pulled, transfer.known.and_then(|known| known.revision)))
        }
        Err(e) => {
            if *have == 0 {
                partial::remove(unfinished)?;
            }
            Err(e)
        }
    }
}

/// Tries until one succeeds or another would not help. Each also says how many bytes are here after it.
fn tries<T>(
    hub: &Hub,
    from: &str,
    control: &Control<'_>,
    mut once: impl FnMut() -> (Result<T, Failure>, u64),
) -> Result<T> {
    // Those that failed, and the most bytes that were here after any of them.
    let (mut n, mut best) = (0, 0);
    loop {
        let (failure, have) = match once() {
            (Ok(done), _) => return Ok(done),
            (Err(failure), have) => (failure, have),
        };
        let stopped = Error::Stopped { from: from.to_owned(), kept: have };
        let (what, asked) = match failure {
            Failure::Local(e) => return Err(e),
            Failure::Refused(what) => return Err(other(from, what)),
            Failure::Stopped => return Err(stopped),
            Failure::Network(what, asked) => (what, asked.unwrap_or_default()),
        };
        if have >= best + ADVANCE {
            (n, best) = (0, have);
        }
        n += 1;
        let retries = hub.retries;
        if n > retries {
            let tried = if n == 1 { String::new() } else { format!(" ({n} tries)") };
            return Err(other(from, format_args!("{what}{tried}{}", note_of(have))));
        }
        let wait = Duration::from_secs(1 << (n - 1).min(8)).min(LONGEST_WAIT).max(asked);
        let seconds = wait.as_secs();
        if wait > LONGEST_WAIT {
            return Err(other(from, format_args!("{what}: asks to wait {seconds} s")));
        }
        control.note(format_args!("{from}: {what}: retry {n} of {retries} in {seconds} s"));
        http::sleep(wait, control).map_err(|_| stopped)?;
    }
}

/// The hub's listing of a repository, as JSON.
pub(super) fn listing(hub: &Hub, repo: &Repo, control: &Control<'_>) -> Result<Vec<u8>> {
    let from = repo.to_string();
    // With the sizes and checksums of large files.
    let url = address(hub, &from, &format!("api/models/{}/revision/main?blobs=true", repo.id()))?;
    let once = || {
        let (_, mut answer) = http::ask(hub, &url, None, control)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.next(control)? {
            body.extend(chunk);
            if body.len() > MAX_LISTING {
                let what = format!("its list of files has more than {MAX_LISTING} bytes");
                return Err(Failure::Refused(what));
            }
        }
        Ok(body)
    };
    tries(hub, &from, control, || (once(), 0))
}

/// Path of a source below the hub's address.
pub fn path_of(request: &Request<'_>) -> String {
    let (source, revision) = (request.source, request.revision.unwrap_or("main"));
    format!("{}/resolve/{}/{}", source.repo, revision.replace('/', "%2F"), source.file)
}

/// An address of the hub, to fetch `from`. A token is refused where it could be read on its way.
pub fn address(hub: &Hub, from: &str, path: &str) -> Result<Url> {
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
    unfinished: &'a Path,
    file: File,
    /// Bytes that are here.
    have: u64,
    /// The hub's facts about the contents, from this call alone: those of an earlier one may be out of date.
    known: Option<Known>,
    control: &'a Control<'a>,
}
impl Transfer<'_> {
    /// The checksum that the file must have, if anybody gives one.
    fn expected(&self) -> Option<&str> {
        self.request.sha256.or_else(|| self.known.as_ref()?.sha256.as_deref())
    }

    /// Forgets what is here.
    fn clear(&mut self) -> Result<()> {
        self.have = 0;
        self.file.set_len(0).map_err(io(self.unfinished))
    }

    /// One try, after which the file is whole and has the checksum asked for. Returns its checksum.
    fn whole(&mut self, path: &Path) -> Result<String, Failure> {
        loop {
            let at_once = match self.attempt() {
                Err(failure) => {
                    if self.known.is_some() && self.expected().is_none() {
                        self.clear()?; // Nothing would tell whether the rest belongs to it.
                    }
                    return Err(failure);
                }
                Ok(at_once) => at_once,
            };
            let (found, _) = sha256_of(self.unfinished, self.control)?;
            let Some(expected) = self.expected().filter(|sha256| *sha256 != found) else { return Ok(found) };
            let wrong = checksum(path, expected, &found);
            self.clear()?; // It would not be the file the next time.
            if at_once {
                return Err(wrong.into());
            }
            let what = "the copy here does not match: restarting from the first byte";
            self.control.note(format_args!("{}: {what}", self.request.source));
        }
    }

    /// From the end of what is here to the end of the file. Returns true if all of it arrived in this try.
    fn attempt(&mut self) -> Result<bool, Failure> {
        let have = self.have;
        let Request { source, sha256, bytes, .. } = *self.request;
        if have > 0 && sha256.is_some() && bytes == Some(have) {
            return Ok(false); // Whole, perhaps: its checksum tells, and needs no hub.
        }
        // Without a checksum nothing would tell whether the rest belongs to what is here.
        let resumes = have > 0 && (self.known.is_none() || self.expected().is_some());
        let mut rest = Some(have).filter(|have| resumes && bytes.is_none_or(|n| *have < n));
        let (mut answer, at, total) = loop {
            let (known, answer) = http::ask(self.hub, &self.url, rest, self.control)?;
            let at = rest.filter(|_| answer.status == 206).unwrap_or(0);
            let total = total(&answer, at, bytes, known.bytes);
            self.known = Some(known);
            match (answer.status, rest) {
                (200, _) => break (answer, at, total.map_err(Failure::Refused)?),
                (_, None) => {
                    let what = "the hub sent a part, and the whole file was requested";
                    return Err(Failure::Refused(what.to_owned()));
                }
                _ => {}
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
            self.clear()?;
        }
        check_space(self.unfinished.parent().unwrap_or(Path::new(".")), total.saturating_sub(at))?;
        while let Some(chunk) = answer.next(self.control)? {
            if self.have + chunk.len() as u64 > total {
                self.clear()?;
                return Err(Failure::Refused(format!("more than the {total} bytes announced were sent")));
            }
            let place = SeekFrom::Start(self.have);
            let written = self.file.seek(place).and_then(|_| self.file.write_all(&chunk));
            written.map_err(io(self.unfinished))?;
            self.have += chunk.len() as u64;
            self.control.report(format_args!("downloading"), self.have, total);
        }
        if self.have < total {
            let what = format!("the connection ended at byte {} of {total}", self.have);
            return Err(Failure::Network(what, None));
        }
        Ok(at == 0)
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

/// Returns an error if this user cannot write `needed` bytes there, as far as the file system reports.
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
