//! Tells the crate whether ggml was compiled with its own choice of instructions.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rustc-check-cfg=cfg(ggml_needs_avx2)");
    // ggml's CMakeLists.txt: AVX2 and the like are on unless it is built for the host alone (which crate
    // llama-cpp-sys-2 asks for when Rust is), for another system, or reproducibly.
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let native = var("CARGO_ENCODED_RUSTFLAGS").contains("target-cpu=native");
    let off = var("HOST") != var("TARGET") || std::env::var_os("SOURCE_DATE_EPOCH").is_some();
    let modules = std::env::var_os("CARGO_FEATURE_MODULES").is_some();
    if std::env::var_os("CARGO_FEATURE_GGML").is_some() && !native && !off && !modules {
        println!("cargo:rustc-cfg=ggml_needs_avx2");
    }
}
