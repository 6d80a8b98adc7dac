//! Programs that have little memory and time: what a file makes them ask for beyond that is refused by the system.

use std::process::Command;

/// KiB of addresses. Sound files of the tests are read and run in a thirtieth of it.
pub(crate) const LITTLE: u64 = 2 << 20;

/// The same call under limits: so many KiB of addresses (on Linux), and 20 seconds of processor time, whatever else runs. A
/// request for memory that may not fail ends in 134 then, one that is handled in a line and 1.
pub(crate) fn limited(call: &Command, kib: u64) -> Command {
    let limits = if cfg!(target_os = "linux") { format!("ulimit -v {kib}; ") } else { String::new() };
    let mut out = through(&["sh", "-c", &format!("{limits}ulimit -t 20; exec \"$0\" \"$@\"")], call);
    // Each thread's own heap takes addresses, however little it holds; and machines differ in threads.
    out.env("MALLOC_ARENA_MAX", "2");
    out
}

/// The same call, started by this program with these arguments before it.
pub(crate) fn through(program: &[&str], call: &Command) -> Command {
    let mut out = Command::new(program[0]);
    out.args(&program[1..]).arg(call.get_program()).args(call.get_args());
    for (name, value) in call.get_envs() {
        match value {
            Some(value) => out.env(name, value),
            None => out.env_remove(name),
        };
    }
    if let Some(folder) = call.get_current_dir() {
        out.current_dir(folder);
    }
    out
}
