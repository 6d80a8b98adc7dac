//! Tokenizers composed of any components: some thousand, each refused in one line or accepted.

use fuzz::tokenizer::{draw, run};

/// Memory that nothing of a few kilobytes may need, whatever it composes.
#[cfg(target_os = "linux")]
const MAX_RESIDENT: u64 = 1 << 30;

/// `ROPEWALK_TOKENIZERS` is another number of compositions, `ROPEWALK_SEED` another beginning.
#[test]
fn compositions_of_any_components_are_refused_or_accepted() {
    let setting = |key: &str, default: u64| std::env::var(key).map_or(default, |n| n.parse().unwrap());
    let mut random = setting("ROPEWALK_SEED", 0x2545_f491_4f6c_dd1d);
    let mut n_accepted = 0;
    let n = setting("ROPEWALK_TOKENIZERS", 4000);
    for i in 0..n {
        let bytes = draw(&mut random);
        println!("{i}: {bytes:?}");
        n_accepted += u64::from(run(&bytes));
    }
    // A generator of which everything is refused tests the first check alone.
    assert!(n_accepted > n / 100, "{n_accepted} of {n} accepted");
    #[cfg(target_os = "linux")]
    {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
        let most: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
        assert!(most * 1024 < MAX_RESIDENT, "{most} kB resident at most");
    }
    println!("{n_accepted} of {n} accepted");
}
