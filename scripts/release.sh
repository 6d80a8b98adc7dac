#!/usr/bin/env bash
# Makes a release: checks that the commit is one, builds its files into dist/, and tags it. Uploads nothing.
#   scripts/release.sh VERSION [--dry-run]    --dry-run only checks, and prints what would follow
#
# dist/ has the wheel, the source distribution, the Debian package, and SHA256SUMS. Run `make test` and `make test-python` first.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:-}
if ! [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || [ $# -gt 2 ] || [ "${2:---dry-run}" != --dry-run ]; then
    echo "usage: scripts/release.sh MAJOR.MINOR.PATCH [--dry-run]" >&2
    exit 2
fi
dry=${2:-}
tag=v$version
commit=$(git rev-parse HEAD)

faults=0
fault() {
    printf 'release: %s\n' "$*" >&2
    faults=$((faults + 1))
}
expect() { # WHERE EXPECTED FOUND
    [ "$2" = "$3" ] || fault "$1: expected $2, found ${3:-nothing}"
}
in_section() { sed -n "/^\[$2\]\$/,/^\[/s/^version = \"\(.*\)\"\$/\1/p" "$1"; }
locked() { sed -n "/^name = \"$2\"\$/{n;s/^version = \"\(.*\)\"\$/\1/p}" "$1"; }

changed=$(git status --porcelain | head -n 1)
[ -z "$changed" ] || fault "the tree: expected no changes, found ${changed:3}"
expect "Cargo.toml: workspace.package.version" "$version" "$(in_section Cargo.toml workspace.package)"
expect "python/ropewalk/Cargo.toml: package.version" "$version" "$(in_section python/ropewalk/Cargo.toml package)"
expect "python/ropewalk-ray/pyproject.toml: project.version" "$version" "$(in_section python/ropewalk-ray/pyproject.toml project)"
expect "pyproject.toml: dynamic" 'dynamic = ["version"]' "$(grep '^dynamic = ' pyproject.toml || true)"
expect "Cargo.lock: ropewalk" "$version" "$(locked Cargo.lock ropewalk)"
for package in ropewalk ropewalk-python; do
    expect "python/ropewalk/Cargo.lock: $package" "$version" "$(locked python/ropewalk/Cargo.lock "$package")"
done
heading=$(grep -m 1 '^## ' CHANGELOG.md || true)
[[ $heading =~ ^"## $version ("[0-9]{4}-[0-9]{2}-[0-9]{2}")"$ ]] ||
    fault "CHANGELOG.md: expected ## $version ($(date +%F)) as the first heading, found ${heading:-nothing}"
while IFS=: read -r file line text; do
    fault "$file:$line: expected the text of a release, found \"$text\""
done < <(grep -nE -o 'not released|no release yet|not been released' README.md docs/guide/*.md)
tagged=$(git rev-parse --quiet --verify "refs/tags/$tag^{commit}" || true)
[ -z "$tagged" ] || expect "tag $tag" "$commit" "$tagged"
[ "$faults" = 0 ] || exit 1

if [ -n "$dry" ]; then
    cat <<END
release: $version can be released; this would follow:
  scripts/python.sh wheel
  scripts/python.sh sdist
  scripts/package.sh deb
  their files and SHA256SUMS into dist/
  git tag $tag
END
    exit 0
fi

CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR
rm -rf dist
mkdir dist
scripts/python.sh wheel
scripts/python.sh sdist
scripts/package.sh deb
cp "$CARGO_TARGET_DIR"/wheels/ropewalk-"$version"* "$CARGO_TARGET_DIR"/debian/ropewalk_"$version"-*.deb dist/
found=$("$CARGO_TARGET_DIR/release/ropewalk" --version)
expect "ropewalk --version" "ropewalk $version (${commit:0:9})" "$found"
[ "$faults" = 0 ] || exit 1
scripts/inlined.sh "$CARGO_TARGET_DIR/release/ropewalk"
(cd dist && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
[ -n "$tagged" ] || git tag --annotate --message "ropewalk $version" "$tag"
echo "release: dist/ has the files of $tag; nothing was uploaded"
