//! The `convert` program: everything is in the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    processor::require();
    files::explain_vanished_files();
    convert::cli::run(std::env::args_os())
}
