//! Limits of the system on what this process may take beyond what it has: control groups, such as those of
//! containers, and resource limits. Linux; elsewhere none of the files exist, and nothing limits.
//!
//! (Crate `sysinfo` looks at the topmost control group alone, which has no limit unless the process is in a
//! private namespace, and not at those below it, or between it and the process.)

use std::fs::read_to_string;
use std::path::{Component, Path, PathBuf};

/// Bytes this process can still take by the files `proc` and those of control groups in a file tree, `/` as a
/// rule: the least that any limit leaves. `None` when there is none.
pub fn memory_left(root: &Path) -> Option<u64> {
    let groups = groups(root, "memory").into_iter().filter_map(|group| left_in(&group.dir, group.version));
    groups.chain(left_of_resources(root)).min()
}

/// Processors that control groups give this process time for, by the files of a file tree: the least of all quotas. `None`
/// when there is none.
pub fn processors_allowed(root: &Path) -> Option<f64> {
    groups(root, "cpu").iter().filter_map(quota_of).min_by(f64::total_cmp)
}

/// A quota of a group, in microseconds of all its processors in a period.
fn quota_of(group: &Group) -> Option<f64> {
    let read = |name: &str| read_to_string(group.dir.join(name)).ok();
    let (quota, period) = match group.version {
        Version::V2 => {
            let both = read("cpu.max")?;
            let (quota, period) = both.trim().split_once(' ')?;
            (quota.to_owned(), period.to_owned())
        }
        Version::V1 => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
    };
    // Without a limit the quota is "max", or -1 in version 1.
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
    Some(number(&quota)? / number(&period)?)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The names that a version gives to files that limit memory.
struct Names {
    limits: &'static [&'static str],
    used: &'static str,
    /// The entry of `memory.stat` that counts pages of files which nobody has used lately: given back when
    /// memory is wanted.
    reclaimable: &'static str,
}

const V2: Names = Names {
    // Beyond `high` a process is not refused memory, but stopped until others have given some back.
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    reclaimable: "inactive_file",
};
const V1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

/// Bytes a group has left; `None` when it has no limit.
fn left_in(dir: &Path, version: Version) -> Option<u64> {
    let names = match version {
        Version::V1 => V1,
        Version::V2 => V2,
    };
    let number = |name: &&str| read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    // Without a limit a file holds "max", or is not there; in version 1 it holds the largest there is.
    let limit = names.limits.iter().filter_map(number).filter(|&n| n < 1 << 62).min()?;
    let stat = read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let reclaimable =
        stat.lines().find_map(|l| l.strip_prefix(names.reclaimable)?.trim().parse::<u64>().ok());
    let used = number(&names.used)?.saturating_sub(reclaimable.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

/// A group that this process is in.
struct Group {
    dir: PathBuf,
    version: Version,
}

/// The groups that this process is in and that may limit it through a controller: its own of each hierarchy, and those
/// above as far as they can be seen.
fn groups(root: &Path, controller: &str) -> Vec<Group> {
    let read = |name: &str| read_to_string(root.join("proc/self").join(name)).unwrap_or_default();
    let (own, mounts) = (read("cgroup"), read("mountinfo"));
    // ID:CONTROLLERS:PATH; version 2 has ID 0 and names no controllers.
    let own = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        match controllers {
            "" if id == "0" => Some((Version::V2, path)),
            list if list.split(',').any(|c| c == controller) => Some((Version::V1, path)),
            _ => None,
        }
    });
    let found = own.filter_map(|(version, path)| {
        let (mounted, at) = mounts.lines().find_map(|line| hierarchy(line, version, controller))?;
        let top = root.join(at.strip_prefix("/").unwrap_or(&at));
        // A path that does not lie below what is mounted is of another namespace; what is mounted is a group
        // that this process is in.
        let below = Path::new(path).strip_prefix(mounted).unwrap_or(Path::new(""));
        let inside = below.components().all(|c| matches!(c, Component::Normal(_)));
        let group = if inside { top.join(below) } else { top.clone() };
        let levels = group.ancestors().take_while(|dir| dir.starts_with(&top));
        Some(levels.map(|dir| Group { dir: dir.to_owned(), version }).collect::<Vec<_>>())
    });
    found.flatten().collect()
}

/// Parses a line of `mountinfo` that mounts this version's groups of a controller: the group mounted, and the mount
/// point.
fn hierarchy(line: &str, version: Version, controller: &str) -> Option<(PathBuf, PathBuf)> {
    // ID PARENT DEVICE ROOT MOUNT_POINT OPTIONS [MORE..] - TYPE SOURCE SUPER_OPTIONS
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1).unwrap_or_default());
    let wanted = match version {
        Version::V2 => kind == "cgroup2",
        Version::V1 => kind == "cgroup" && options.split(',').any(|o| o == controller),
    };
    let mut left = left.split(' ').skip(3);
    let path = |text: &str| PathBuf::from(text.replace("\\040", " ").replace("\\134", "\\"));
    Some((path(left.next()?), path(left.next()?))).filter(|_| wanted)
}

/// Bytes left of the address space and of data, where these are limited (`ulimit -v`, `ulimit -d`).
fn left_of_resources(root: &Path) -> Option<u64> {
    let read = |name: &str| read_to_string(root.join("proc/self").join(name)).unwrap_or_default();
    let (limits, status) = (read("limits"), read("status"));
    let left = |limit: &str, used: &str| {
        let limit = limits.lines().find_map(|l| l.strip_prefix(limit))?;
        let limit: u64 = limit.split_whitespace().next()?.parse().ok()?;
        let used = status.lines().find_map(|l| l.strip_prefix(used))?;
        let used: u64 = used.split_whitespace().next()?.parse().ok()?;
        Some(limit.saturating_sub(used.saturating_mul(1024)))
    };
    [left("Max address space", "VmSize:"), left("Max data size", "VmData:")].into_iter().flatten().min()
}
