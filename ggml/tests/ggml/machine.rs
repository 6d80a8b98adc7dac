//! The memory that limits leave and the processors there are, from recorded file trees.

use std::path::Path;

use ggml::machine::{default_threads, memory_available, memory_left, processors_allowed, threads_in};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A file tree.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}

/// Memory left under these files.
fn left(files: &[(&str, &str)]) -> Option<u64> {
    memory_left(tree(files).path())
}

const V2_MOUNT: &str = "24 1 0:22 / /proc rw - proc proc rw\n\
    30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn version_2_with_the_limit_above_the_group() {
    let slice = "sys/fs/cgroup/jobs.slice";
    let mut files = vec![
        ("proc/self/cgroup", "0::/jobs.slice/run.scope\n".to_owned()),
        ("proc/self/mountinfo", V2_MOUNT.to_owned()),
        ("sys/fs/cgroup/memory.stat", "anon 1\n".to_owned()),
    ];
    let put = |dir: &str, max: &str, high: &str, used: u64, inactive: u64| {
        let stat = format!("anon 5\nfile 7\ninactive_file {inactive}\nactive_file 0\n");
        [
            ("memory.max", max.into()),
            ("memory.high", high.into()),
            ("memory.current", used.to_string()),
            ("memory.stat", stat),
        ]
        .map(|(name, text)| (format!("{dir}/{name}"), text))
    };
    let run = |extra: &[[(String, String); 4]], files: &[(&str, String)]| {
        let all = files.iter().map(|(p, t)| (*p, t.as_str()));
        let all: Vec<_> = all.chain(extra.iter().flatten().map(|(p, t)| (p.as_str(), t.as_str()))).collect();
        left(&all)
    };
    let scope = format!("{slice}/run.scope");
    // Only the slice is limited; pages of files that nobody uses count as free.
    let (parent, own) =
        (put(slice, "536870912\n", "max\n", 300 * MIB, 100 * MIB), put(&scope, "max\n", "max\n", 9, 0));
    assert_eq!(run(&[parent.clone(), own], &files), Some(312 * MIB));
    // The nearer one is smaller; `high` counts; nothing below zero.
    let own = put(&scope, "104857600\n", "max\n", 60 * MIB, 0);
    assert_eq!(run(&[parent.clone(), own], &files), Some(40 * MIB));
    let own = put(&scope, "max\n", "73400320\n", 60 * MIB, 0);
    assert_eq!(run(&[parent.clone(), own], &files), Some(10 * MIB));
    let own = put(&scope, "1048576\n", "max\n", 60 * MIB, 0);
    assert_eq!(run(&[parent.clone(), own], &files), Some(0));
    // A namespace of its own, as in a container: the group is the root that is mounted.
    files[0].1 = "0::/\n".into();
    let top = put("sys/fs/cgroup", "209715200\n", "max\n", 50 * MIB, 10 * MIB);
    assert_eq!(run(std::slice::from_ref(&top), &files), Some(160 * MIB));
    // A path out of the namespace is not followed.
    files[0].1 = "0::/../other\n".into();
    assert_eq!(run(&[top], &files), Some(160 * MIB));
}

#[test]
fn version_1_beside_an_empty_version_2() {
    let cgroup = "12:pids:/docker/abc\n5:cpu,memory:/docker/abc\n0::/system.slice\n";
    // The container's own group is mounted where the root would be.
    let mounts = "40 1 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
        41 1 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let stat = "inactive_file 1\ntotal_inactive_file 20971520\n";
    let dir = "sys/fs/cgroup/memory";
    let of = |limit: &str| {
        left(&[
            ("proc/self/cgroup", cgroup),
            ("proc/self/mountinfo", mounts),
            (&format!("{dir}/memory.limit_in_bytes"), limit),
            (&format!("{dir}/memory.usage_in_bytes"), "104857600\n"),
            (&format!("{dir}/memory.stat"), stat),
        ])
    };
    assert_eq!(of("209715200\n"), Some(120 * MIB));
    assert_eq!(of("9223372036854771712\n"), None, "no limit");
}

#[test]
fn resource_limits() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
        Max data size             unlimited            unlimited            bytes\n\
        Max address space         1073741824           unlimited            bytes\n";
    let status = "Name:\tx\nVmSize:\t  524288 kB\nVmData:\t  1024 kB\n";
    let files = [("proc/self/limits", limits), ("proc/self/status", status)];
    assert_eq!(left(&files), Some(512 * MIB));
    let data = limits.replace("Max data size             unlimited", "Max data size             104857600");
    assert_eq!(left(&[("proc/self/limits", &data), files[1]]), Some(99 * MIB));
}

#[test]
fn without_limits_the_machine_counts() {
    assert_eq!(left(&[]), None);
    assert_eq!(
        left(&[("proc/self/cgroup", "garbage\n0::/x"), ("proc/self/mountinfo", "\n - cgroup2\n")]),
        None
    );
    let within = || {
        let here = memory_available().unwrap();
        here > 0 && memory_left(Path::new("/")).is_none_or(|limit| here <= limit + MIB * 64)
    };
    // Others take memory between the two looks.
    assert!((0..100).any(|_| within()));
}

const V1_MOUNTS: &str = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
    32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";

#[test]
fn quotas_of_processor_time() {
    let own = ("proc/self/cgroup", "0::/jobs.slice/run.scope\n");
    let mount = ("proc/self/mountinfo", V2_MOUNT);
    let [above, here] = ["sys/fs/cgroup/jobs.slice/cpu.max", "sys/fs/cgroup/jobs.slice/run.scope/cpu.max"];
    let quota = |slice: &str, scope: &str| {
        let root = tree(&[own, mount, (above, slice), (here, scope)]);
        processors_allowed(root.path())
    };
    assert_eq!(quota("max 100000\n", "max 100000\n"), None);
    assert_eq!(quota("150000 100000\n", "max 100000\n"), Some(1.5));
    assert_eq!(quota("400000 100000\n", "50000 20000\n"), Some(2.5));
    for strange in ["", "100000", "0 100000", "-1 100000", "100000 0", "nan 100000", "x y"] {
        assert_eq!(quota("max 100000\n", strange), None, "{strange:?}");
    }
    let own = ("proc/self/cgroup", "5:cpu,cpuacct:/box\n7:memory:/box\n");
    let [quota, period] =
        ["sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/box/cpu.cfs_period_us"];
    for (us, expected) in [("-1\n", None), ("300000\n", Some(3.0))] {
        let root = tree(&[own, ("proc/self/mountinfo", V1_MOUNTS), (quota, us), (period, "100000\n")]);
        assert_eq!(processors_allowed(root.path()), expected);
    }
}

#[test]
fn as_many_threads_as_cores_and_quotas_allow() {
    let threads = |allowed: &str, quota: &str| {
        let sibling = |cpu: usize| format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        // Four cores of two hyper-threads each.
        let paths: Vec<String> = (0..8).map(sibling).collect();
        let lists: Vec<String> = (0..8).map(|cpu| format!("{},{}\n", cpu % 4, cpu % 4 + 4)).collect();
        let status = format!("Name:\tropewalk\nCpus_allowed_list:\t{allowed}\n");
        let mut files = vec![
            ("proc/self/status", status.as_str()),
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/cpu.max", quota),
        ];
        files.extend(paths.iter().zip(&lists).map(|(p, l)| (p.as_str(), l.as_str())));
        threads_in(tree(&files).path())
    };
    assert_eq!(threads("0-7", "max 100000"), 4, "a thread for each core");
    assert_eq!(threads("1,5", "max 100000"), 1, "both of one core");
    assert_eq!(threads("2-3,6", "max 100000"), 2);
    assert_eq!(threads("0-7", "100000 100000"), 1, "a container with a quota of one processor");
    assert_eq!(threads("0-7", "250000 100000"), 2);
    assert_eq!(threads("0-7", "50000 100000"), 1);
    assert_eq!(threads("0-7", "1600000 100000"), 4);
    // What cannot be read limits nothing, and there is always one.
    for strange in ["", "x", "3-", "9-8", "0-99999999999999"] {
        assert!(threads(strange, "max 100000") >= 1, "{strange:?}");
    }
    let here = std::thread::available_parallelism().map_or(1, |n| n.get());
    assert!((1..=here).contains(&default_threads()));
}

/// ggml reads the variable when its first CUDA kernel starts. Builds without CUDA leave the environment alone.
#[cfg(target_os = "linux")]
#[test]
fn cuda_kernels_do_not_start_early() {
    ggml::backend::ensure_backends();
    let started_with = std::fs::read("/proc/self/environ").unwrap();
    let was_set = started_with.split(|b| *b == 0).any(|entry| entry.starts_with(b"GGML_CUDA_PDL="));
    let can_have_cuda = cfg!(any(feature = "cuda", feature = "dynamic-backends"));
    // With `dynamic-link`, backends may be modules or not.
    let is_set = std::env::var_os("GGML_CUDA_PDL").is_some();
    assert!(cfg!(feature = "dynamic-link") || is_set == (was_set || can_have_cuda));
}
