//! The machine's memory, its cores, and this process's largest memory: figures of the operating system.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

pub use kernels::level::level as instruction_level;

pub use crate::limits::{memory_left, processors_allowed};

/// Bytes that this process can still take: without making the machine swap, and as far as control groups (of a
/// container, say) and resource limits let it. `None` where the system does not say.
pub fn memory_available() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_ram());
    let machine = Some(system.available_memory()).filter(|&n| n > 0);
    machine.into_iter().chain(memory_left(Path::new("/"))).min()
}

/// Threads to compute with where nobody says how many: one for each core that this process may run on (hyper-threads of a core
/// share its multipliers), and no more than control groups give it time for. At least 1.
pub fn default_threads() -> usize {
    threads_in(Path::new("/"))
}

/// The same by the files of a file tree.
pub fn threads_in(root: &Path) -> usize {
    let cores = cores(root).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let quota = processors_allowed(root).map_or(usize::MAX, |n| n as usize);
    cores.min(quota).clamp(1, crate::backend::MAX_N_THREADS)
}

/// Cores of the processors that this process may run on.
fn cores(root: &Path) -> Option<usize> {
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let siblings = |cpu: usize| {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(root.join(path)).unwrap_or_else(|_| cpu.to_string())
    };
    let cores: HashSet<String> = numbers(allowed.trim())?.map(siblings).collect();
    Some(cores.len()).filter(|&n| n > 0)
}

/// The numbers of a list such as `0-3,8`, at most as many as Linux has processors.
fn numbers(list: &str) -> Option<impl Iterator<Item = usize>> {
    const MOST: usize = 1 << 13;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    let ranges = list.split(',').map(range).collect::<Option<Vec<_>>>()?;
    Some(ranges.into_iter().flatten().take(MOST))
}

/// The most memory this process has held, bytes; `None` where the system does not say (it is read from
/// Linux's `/proc/self/status`, for crate `sysinfo` tells only what is held now).
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// The time that processors have spent on this process, all its threads together; `None` where the system does not say.
pub fn processor_time() -> Option<Duration> {
    #[cfg(unix)]
    return clock(libc::CLOCK_PROCESS_CPUTIME_ID);
    #[cfg(not(unix))]
    None
}

/// The time that processors have spent on this thread; `None` where the system does not say.
pub fn thread_time() -> Option<Duration> {
    #[cfg(unix)]
    return clock(libc::CLOCK_THREAD_CPUTIME_ID);
    #[cfg(not(unix))]
    None
}

#[cfg(unix)]
fn clock(id: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure may be written, and is the one this function fills.
    let status = unsafe { libc::clock_gettime(id, &mut time) };
    let seconds = u64::try_from(time.tv_sec).ok().filter(|_| status == 0)?;
    Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
}
