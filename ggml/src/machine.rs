//! The machine's memory, its cores, and this process's largest memory: figures of the operating system.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

pub use crate::limits::memory_left;

/// Bytes that this process can still take: without making the machine swap, and as far as control groups (of a
/// container, say) and resource limits let it. `None` where the system does not say.
pub fn memory_available() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_ram());
    let machine = Some(system.available_memory()).filter(|&n| n > 0);
    machine.into_iter().chain(memory_left(Path::new("/"))).min()
}

/// Threads that have a core of their own: hyper-threads of one core share its multipliers. Only those count
/// that this process may run on.
pub fn physical_cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut cores = HashSet::new();
    for cpu in 0..logical {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        match std::fs::read_to_string(path) {
            Ok(siblings) => cores.insert(siblings),
            Err(_) => return logical,
        };
    }
    cores.len().clamp(1, logical)
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
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure may be written, and is the one this function fills.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        let seconds = u64::try_from(time.tv_sec).ok().filter(|_| status == 0)?;
        Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
    }
    #[cfg(not(unix))]
    None
}
