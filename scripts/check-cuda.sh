#!/usr/bin/env bash
# Type-checks every crate with the `cuda` feature, on a machine that need not have the CUDA toolkit.
#
# With nvcc here, this is a plain `cargo check --features cuda`: the C side is compiled too. Without, the sys crate's build
# script cannot run (it would compile ggml's CUDA backend), so its result is given instead, as cargo allows for a package
# with `links`: the C declarations of the ordinary build, which are the same, since CUDA is reached through ggml's backend
# registry and adds none. What this proves is that our Rust compiles under the feature; what it cannot prove is that the CUDA
# code compiles, links and runs: that takes a toolkit and a GPU.
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
# A target folder of its own: these artefacts cannot be linked and must not be taken for ones that can.
"$CARGO" check --workspace --all-targets --features cuda --target-dir "$target/check-cuda" \
    --config "target.$host.llama.rustc-env.OUT_DIR=\"$out\""
echo "check-cuda: ok. Not checked here: that the CUDA code itself compiles and runs."
