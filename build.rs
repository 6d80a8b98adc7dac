//! Build stamp, and the run path of a program that finds ggml's libraries beside itself.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Every commit and checkout appends here. (A path that does not exist would rerun this on every build.)
    if std::path::Path::new(".git/logs/HEAD").exists() {
        println!("cargo:rerun-if-changed=.git/logs/HEAD");
    }
    println!("cargo:rerun-if-env-changed=ROPEWALK_BUILD");
    let stamp = std::env::var("ROPEWALK_BUILD").ok().or_else(commit).unwrap_or_else(|| "release".to_owned());
    println!("cargo:rustc-env=ROPEWALK_BUILD={stamp}");

    // With ggml in shared libraries, the program looks for them in its own folder first: a folder that is
    // copied to another machine works there.
    let dynamic = std::env::var_os("CARGO_FEATURE_DYNAMIC_LINK").is_some();
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux" | "freebsd") if dynamic => println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN"),
        Ok("macos") if dynamic => println!("cargo:rustc-link-arg-bins=-Wl,-rpath,@loader_path"),
        _ => {}
    }
}

/// The commit built from, when there is one to ask.
fn commit() -> Option<String> {
    let out = Command::new("git").args(["rev-parse", "--short=9", "HEAD"]).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?.trim().to_owned();
    (out.status.success() && text.chars().all(|c| c.is_ascii_hexdigit()) && !text.is_empty()).then_some(text)
}
