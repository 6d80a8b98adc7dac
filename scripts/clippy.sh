#!/usr/bin/env bash
# What cargo runs in place of rustc for the crates of the workspace (RUSTC_WORKSPACE_WRAPPER): clippy, where a warning is an error.
# The kernels are checked once more for a processor without AVX-512 and AMX: other code, which can have its own bugs.
set -euo pipefail

if [ "${CARGO_PKG_NAME:-}" = ropewalk-kernels ] && [ "$(uname -m)" = x86_64 ]; then
    room=$(mktemp -d)
    args=("$@")
    for i in "${!args[@]}"; do
        [ "${args[i]}" != --out-dir ] || args[i + 1]=$room
    done
    if ! clippy-driver "${args[@]}" -D warnings -C target-cpu=x86-64-v3 2>"$room/said"; then
        cat "$room/said" >&2
        rm -r "$room"
        exit 1
    fi
    rm -r "$room"
fi
exec clippy-driver "$@" -D warnings
