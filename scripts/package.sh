#!/usr/bin/env bash
# Packages the program.
#   scripts/package.sh deb       builds a Debian package into target/debian (cargo-deb; Cargo.toml lists its contents)
#   scripts/package.sh docker    builds the image `ropewalk` from the commit that is checked out (packaging/Dockerfile)
#
# On x86-64 both are for x86-64-v3. Elsewhere the Debian package is for this machine's processor; the image never is.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR

deb() {
    scripts/setup.sh deb
    command -v cargo-deb >/dev/null || (unset RUSTFLAGS CARGO_TARGET_DIR; "$CARGO" install --locked cargo-deb)
    "$CARGO" build --release --locked -p ropewalk --bin ropewalk
    # Where Cargo.toml names them: cargo-deb looks for the program alone in another target directory.
    rm -rf target/share
    "$CARGO_TARGET_DIR/release/ropewalk" completions --install target/share
    python3 scripts/licenses.py target/share/doc/THIRD-PARTY.txt Cargo.toml
    mkdir -p "$CARGO_TARGET_DIR/debian"
    rm -f "$CARGO_TARGET_DIR"/debian/*.deb
    "$CARGO" deb --no-build --package ropewalk --output "$CARGO_TARGET_DIR/debian/"
}

docker_image() {
    if ! command -v docker >/dev/null; then
        echo "package: expected docker, found none" >&2
        exit 1
    fi
    git archive --format=tar HEAD |
        docker build --file packaging/Dockerfile --build-arg ROPEWALK_BUILD="$(git rev-parse --short=9 HEAD)" --tag ropewalk -
}

case "${1:-}" in
deb) deb ;;
docker) docker_image ;;
*)
    echo "usage: scripts/package.sh deb | docker" >&2
    exit 2
    ;;
esac
