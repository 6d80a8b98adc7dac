#!/usr/bin/env bash
# Runs the tests of the crates with unsafe code, and of the C code they wrap, under sanitizers.
#   scripts/sanitize.sh address     AddressSanitizer and LeakSanitizer in Rust and C, UndefinedBehaviorSanitizer in C
#   scripts/sanitize.sh thread      ThreadSanitizer in Rust and C
# Uses a nightly toolchain if there is one, or enables nightly features in the stable one.
# After a change of flags, empty target/address.
set -euo pipefail
cd "$(dirname "$0")/.."

if rustup toolchain list 2>/dev/null | grep -q '^nightly'; then
    cargo=(cargo +nightly)
else
    export RUSTC_BOOTSTRAP=1
    cargo=(cargo)
fi
# Line numbers in findings.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
triple=$(rustc -vV | sed -n 's/^host: //p')
var=${triple//-/_}
suppressions=$PWD/scripts/sanitize

# Tests with $1 in Rust and $2 in C. The other arguments are packages and arguments of cargo test.
tested() {
    local rust=$1 c=$2 link=$3
    shift 3
    # The flags of .cargo/config.toml stay: GCC 12 needs them on processors with AMX.
    env "CFLAGS_$var=-fno-tree-dse -fno-dse -g1 -fno-omit-frame-pointer $c" \
        "CXXFLAGS_$var=-fno-tree-dse -fno-dse -g1 -fno-omit-frame-pointer $c" \
        RUSTFLAGS="-C target-cpu=native -C force-frame-pointers=yes $rust $link" \
        "${cargo[@]}" test --release --target "$triple" "$@"
}

case "${1:-}" in
address)
    export CARGO_TARGET_DIR=target/address
    # Tests request more memory than can exist, and expect an error.
    export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_init_order=1:allocator_may_return_null=1
    export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:suppressions=$suppressions/undefined.txt
    # libllama's regular expressions recurse with the text. The sanitizer makes the frames many times larger, and they no
    # longer fit the stack that the wrapper gives them.
    tested -Zsanitizer=address "-fsanitize=address,undefined -fsanitize-recover=undefined" "-C link-arg=-lubsan" \
        -p ropewalk-files -p ropewalk-gguf -p ropewalk-kernels -p ropewalk-ggml -p ropewalk-llama --tests --no-fail-fast \
        -- --skip vocab_real:: --skip the_longest_run
    ;;
thread)
    export CARGO_TARGET_DIR=target/thread
    export TSAN_OPTIONS=allocator_may_return_null=1:second_deadlock_stack=1:suppressions=$suppressions/thread.txt
    # Otherwise most reports come from the threads of the test harness, which is not built with the sanitizer.
    export RUST_TEST_THREADS=1
    # The standard library is not built with the sanitizer, hence the second flag.
    tested "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" -fsanitize=thread "" \
        -p ropewalk-kernels -p ropewalk-ggml --tests --no-fail-fast
    ;;
*)
    echo "usage: scripts/sanitize.sh address|thread" >&2
    exit 2
    ;;
esac
