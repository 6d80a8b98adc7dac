//! The `ropewalk` program. All it does is in `cli`; here the process starts and its exit code is set.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    processor::require();
    cli::main()
}
