//! Inputs that once were findings, the seeds, and some thousand changes of them, without a fuzzer.

use std::path::Path;
use std::sync::Mutex;
use std::thread;

use fuzz::{Target, TARGETS};

/// Changed inputs for each seed of a target. A fuzzer finds more; these keep every reader from falling to
/// the first one who tries.
fn n_changes(target: &str) -> usize {
    match target {
        // Milliseconds each.
        "model" | "session" | "prefix" | "checkpoint" | "tasks" | "quantize" | "imatrix" => 60,
        // Thirty seeds.
        "import" => 100,
        // Microseconds each.
        "gguf" => 10_000,
        _ => 600,
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }
}

/// Changes, removes or repeats a few bytes. Most changes fall near the beginning, where the structure is.
fn change(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let near = if random.below(4) > 0 { bytes.len().min(2048) } else { bytes.len() };
        let at = random.below(near);
        let n = random.below(9).min(bytes.len() - at);
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + n)),
            2 => bytes.extend_from_within(at..at + n),
            3 => bytes[at..at + n].fill(0xff),
            _ if n > 0 => {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'{', random.below(256) as u8][random.below(8)]
            }
            _ => {}
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[test]
fn nothing_falls_to_what_it_reads() {
    let targets = Mutex::new(TARGETS.iter());
    let next = || targets.lock().unwrap().next();
    let one_by_one = || std::iter::from_fn(next).for_each(falls_to_nothing);
    thread::scope(|threads| drop([threads.spawn(one_by_one), threads.spawn(one_by_one)]));
}

/// Panics if a reader does.
fn falls_to_nothing(target: &Target) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    // Not every target has had a finding.
    for entry in std::fs::read_dir(&folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        (target.run)(&std::fs::read(path).unwrap());
    }
    (target.run)(&[]);
    for (i, seed) in (target.seeds)().into_iter().enumerate() {
        println!("{}: seed {i}, {} bytes", target.name, seed.len());
        assert!((target.run)(&seed), "{}: seed {i} is refused", target.name);
        let mut random = Random(0x9e37_79b9_7f4a_7c15 + i as u64);
        for _ in 0..n_changes(target.name) {
            (target.run)(&change(&seed, &mut random));
        }
    }
}
