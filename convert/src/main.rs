//! The `convert` program: everything is in the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    processor::require();
    run()
}

/// Inlined, its instructions could run before [`processor::require`].
#[inline(never)]
fn run() -> std::process::ExitCode {
    if let Some(code) = convert::serve_tokenizer(std::env::args_os().skip(1)) {
        return code;
    }
    files::explain_vanished_files();
    ropewalk_core::signals::fail_large_writes();
    convert::cli::run(std::env::args_os())
}
