#!/usr/bin/env bash
# Downloads training and evaluation texts inside Debian packages, by name (apt-get, dpkg; nothing is installed).
#   models/texts/train/hol-light   formal proofs (*.ml, *.hl)
#   models/texts/train/anarchism   English prose (*.md)
#   models/texts/train/pari-doc    LaTeX mathematics (*.tex)
#   models/texts/train/tdavid      19th-century prose, one psalm per file
#   models/texts/train/mhcc        the same, one book per file
#   models/texts/eval/novels       six novels, for evaluation only, never for training
# Correct directories that already exist are kept. A directory gets its final name only if the checksum of all its files
# matches the one in this script. Other Debian releases have other versions of some packages, and so other texts. `--any`
# accepts them and prints a note; results on them differ from the records in docs/results.
set -euo pipefail
cd "$(dirname "$0")/.."

any=no
case "$*" in
"") ;;
--any) any=yes ;;
*)
    printf 'usage: scripts/texts.sh [--any]\n' >&2
    exit 2
    ;;
esac

say() { printf 'texts: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

# The checksum of a directory: that of the sorted list of its files' checksums and names.
sum_of() {
    (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | sha256sum | cut -d ' ' -f 1
}

# Names each file after its path in the package, with / as -, so that names are unique in one directory.
gather() { # FROM TO PATTERN...
    local from=$1 to=$2 file name
    shift 2
    for pattern in "$@"; do
        while IFS= read -r -d '' file; do
            name=${file#"$from"/}
            name=${name//\//-}
            case "$file" in
            *.gz) gzip -dc "$file" >"$to/${name%.gz}" ;;
            *) cp "$file" "$to/$name" ;;
            esac
            # A few files from 1990 are Latin-1.
            iconv -f utf-8 -t utf-8 "$to/${name%.gz}" >/dev/null 2>&1 || {
                iconv -f latin1 -t utf-8 "$to/${name%.gz}" >"$to/.utf-8"
                mv "$to/.utf-8" "$to/${name%.gz}"
            }
        done < <(find "$from" -type f -name "$pattern" -print0)
    done
}

hol_light() { gather "$1/usr/share/hol-light" "$2" '*.ml' '*.hl'; }
anarchism() { gather "$1/usr/share/doc/anarchism/markdown" "$2" '*.md' '*.md.gz'; }
pari_doc() { gather "$1/usr/share/pari/doc" "$2" '*.tex'; }
tdavid() { python3 scripts/texts.py sword "$1/usr/share/sword/modules/comments/zcom/tdavid" "$2"; }
mhcc() { python3 scripts/texts.py sword "$1/usr/share/sword/modules/comments/zcom/mhcc" "$2"; }
novels() { python3 scripts/texts.py austen "$1/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb" "$2"; }

get() { # FOLDER PACKAGE FUNCTION SHA256
    local target=models/texts/$1 package=$2 take=$3 expected=$4 stamp found work
    stamp=models/cache/texts-${1//\//-}.checked
    if [ -d "$target" ]; then
        # Verified once, then recognized by the number and total size of its files.
        found=$(find "$target" -type f -printf '%s\n' | awk '{ n++; s += $1 } END { print n, s }')
        [ "$(cat "$stamp" 2>/dev/null)" = "$expected $found" ] && return 0
        [ "$(sum_of "$target")" = "$expected" ] || [ "$any" = yes ] ||
            fail "$target: not the texts expected: move that folder away and try again"
    else
        for tool in apt-get dpkg python3 sha256sum iconv; do
            command -v $tool >/dev/null 2>&1 || fail "$tool is needed to fetch $package"
        done
        mkdir -p models/cache "$(dirname "$target")"
        work=$(mktemp -d "$PWD/models/cache/texts.XXXXXX")
        # shellcheck disable=SC2064
        trap "rm -rf '$work'" EXIT
        say "downloading the package $package"
        (cd "$work" && apt-get download -q "$package" >"$work/log" 2>&1) || {
            cat "$work/log" >&2
            fail "the package $package could not be downloaded (is 'apt-get update' needed?)"
        }
        dpkg -x "$work"/*.deb "$work/package"
        mkdir "$work/texts"
        $take "$work/package" "$work/texts"
        found=$(sum_of "$work/texts")
        if [ "$found" != "$expected" ]; then
            [ "$any" = yes ] || fail "$package: expected texts of sha256 $expected, found $found; --any takes them as they are"
            say "$package: other texts than those expected: sha256 $found"
        fi
        chmod 755 "$work/texts"
        mv "$work/texts" "$target"
        rm -rf "$work"
        say "$target is there"
    fi
    [ "$any" = yes ] && return 0
    find "$target" -type f -printf '%s\n' | awk -v e="$expected" '{ n++; s += $1 } END { print e, n, s }' >"$stamp"
}

get train/hol-light hol-light hol_light 0340117c9ad8445038239301c3a5c70808590f2c7bc37c9f7da4427fe32dd821
get train/anarchism anarchism anarchism 6452d6d6b79834349f75a02c8063307f81749a94d2fc742247535cd3441c0b01
get train/pari-doc pari-doc pari_doc 4311e53f8ffe5ad2aa4359617ea4402c85e23246dbe6d4bdc7f08ec3a8c2b83b
get train/tdavid sword-comm-tdavid tdavid c75a89d7eb3372d51e05fd253c1c37e0335fbd7945543272eab2562aae870feb
get train/mhcc sword-comm-mhcc mhcc bf19669940b5486e5304a68b47d1dbb5ed2a1c1c297fcce5948bc9f3ac64a053
get eval/novels r-cran-janeaustenr novels 1108810bbf3e6cd32a53f6fd72242f285fa9b3d3b9cca5e909f9b1ff6a43dd04
