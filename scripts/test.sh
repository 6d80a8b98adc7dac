#!/usr/bin/env bash
# Runs tests with cargo and the checks of scripts/rustc.sh. If any fail, the last lines name up to eight of them, each with
# the command that runs it alone.
#   scripts/test.sh [ARGUMENTS OF `cargo test --release`..]
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
scripts/setup.sh lint || exit
export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh
"${CARGO:-cargo}" test --release --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" = 0 ] && exit 0

# cargo names the program after its tests: "error: test failed, to rerun pass `-p convert --test conversion`".
awk '
    /^test .* \.\.\. FAILED$/ { sub(/^test /, ""); sub(/ - should panic/, ""); sub(/ \.\.\. FAILED$/, ""); waiting[++n] = $0 }
    /^error: (test|doctest) failed, to rerun pass `/ {
        split($0, part, "`")
        if (!n) line[++total] = "scripts/test.sh " part[2] "   (the program ended early)"
        for (i = 1; i <= n; i++) {
            doc = part[2] ~ /--doc/
            line[++total] = "scripts/test.sh " part[2] " -- " (doc ? "" : "--exact ") (doc ? "\"" waiting[i] "\"" : waiting[i])
        }
        n = 0
    }
    END {
        if (!total) exit
        printf "\n%d failed. To run one alone:\n", total
        for (i = 1; i <= total && i <= 8; i++) print "  " line[i]
        if (total > 8) printf "  and %d more\n", total - 8
    }' "$log" >&2
exit "$status"
