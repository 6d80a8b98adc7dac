#!/usr/bin/env bash
# Type-checks every crate with the `cuda` feature. The machine does not need the CUDA toolkit.
#
# If nvcc is installed, this is a plain `cargo check --features cuda`, which also compiles the C side. Otherwise the sys
# crate's build script cannot run, because it would compile ggml's CUDA backend. Its result is supplied instead, as cargo
# allows for a package with `links`: the C declarations of the ordinary build. They are the same, because CUDA is reached
# through ggml's backend registry and adds none. This proves that our Rust compiles with the feature. It does not prove that
# the CUDA code compiles, links, or runs; that takes a toolkit and a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}

if command -v nvcc >/dev/null 2>&1; then
    echo "check-cuda: nvcc is here: compiling the CUDA backend (minutes)"
    exec "$CARGO" check --release --workspace --all-targets --features cuda
fi

host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}
"$CARGO" check --release --quiet -p ropewalk-ggml
declarations=$(ls -t "$target"/release/build/llama-cpp-sys-2-*/out/bindings.rs | head -n 1)
out=$(cd "$(dirname "$declarations")" && pwd)
echo "check-cuda: no nvcc here: checking our Rust with the feature on, against the C declarations of the ordinary build"
# A separate target directory: these artifacts cannot be linked and must not be mistaken for ones that can.
"$CARGO" check --workspace --all-targets --features cuda --target-dir "$target/check-cuda" \
    --config "target.$host.llama.rustc-env.OUT_DIR=\"$out\""
echo "check-cuda: ok. Not checked here: that the CUDA code itself compiles and runs."
