#!/usr/bin/env bash
# Fuzzes all readers of untrusted bytes, one target after another, under AddressSanitizer.
#   scripts/fuzz.sh [SECONDS] [NAME..]    60 seconds each; all targets
# Uses a nightly toolchain if there is one, or enables nightly features in the stable one. Corpora grow in
# fuzz/corpus/NAME. A finding is written to fuzz/artifacts/NAME: fix the reader, then move the file to
# fuzz/regressions/NAME, which `make test` replays.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift $(($# > 0 ? 1 : 0))
names=("$@")

command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
if rustup toolchain list 2>/dev/null | grep -q '^nightly'; then
    cargo=(cargo +nightly)
else
    export RUSTC_BOOTSTRAP=1
    cargo=(cargo)
fi
# Line numbers in findings.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
triple=$(rustc -vV | sed -n 's/^host: //p')
# A separate directory, because the flags differ.
export CARGO_TARGET_DIR=target/fuzz
flags=(--target "$triple" --features libfuzzer)

"${cargo[@]}" fuzz build "${flags[@]}"
programs=$CARGO_TARGET_DIR/$triple/release
all=($("$programs/seeds" fuzz/corpus))
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")
status=0
for name in "${names[@]}"; do
    mkdir -p "fuzz/corpus/$name" "fuzz/artifacts/$name"
    log=$CARGO_TARGET_DIR/$name.log
    FUZZ_TARGET=$name "$programs/libfuzzer" "fuzz/corpus/$name" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 \
        -artifact_prefix="fuzz/artifacts/$name/" -print_final_stats=1 >"$log" 2>&1 || status=1
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    printf '%-12s %9s inputs in %s s' "$name" "${runs:-?}" "$seconds"
    grep -q 'SUMMARY:' "$log" && printf ': FOUND %s' "$(sed -n 's/^SUMMARY: //p' "$log" | head -1)"
    printf '\n'
done
exit $status
