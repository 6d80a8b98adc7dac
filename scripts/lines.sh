#!/usr/bin/env bash
# Counts lines of Rust by folder, outside tests and in tests, and fails if there are more than the ceilings below. A
# commit may lower a ceiling. One that raises it says why in its message.
set -euo pipefail
cd "$(dirname "$0")/.."
production=113984 tests=65103

git ls-files -z '*.rs' | xargs -0 wc -l | awk -v most="$production" -v most_tests="$tests" '
    $2 == "total" { next }
    {
        n = split($2, part, "/")
        crate = part[1]
        if (n > 2 && (crate == "src" || crate == "ggml")) crate = crate "/" part[2]
        is_test = $2 ~ /(^|\/)(tests|benches)\// || $2 ~ /tests\.rs$/ || crate == "fuzz"
        if (is_test) { in_tests[crate] += $1; all_tests += $1 } else { outside[crate] += $1; all += $1 }
        seen[crate] = 1
    }
    END {
        row = "%-16s %8s %8s\n"
        printf row, "", "outside", "tests"
        by_name = "sort"
        for (crate in seen) printf row, crate, outside[crate] + 0, in_tests[crate] + 0 | by_name
        close(by_name)
        printf row, "all", all, all_tests
        printf row, "at most", most, most_tests
        exit all > most || all_tests > most_tests
    }'
