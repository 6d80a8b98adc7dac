#!/usr/bin/env bash
# Builds and tests the Python package: pyproject.toml, python/ropewalk, and the program.
#   scripts/python.sh wheel               builds the wheel into target/wheels
#   scripts/python.sh sdist               builds the source distribution there: what git tracks
#   scripts/python.sh test [ARGUMENTS]    builds both, installs the wheel into a new virtual environment, runs its tests with
#                                         pytest (ARGUMENTS are pytest's), and checks its types
#
# The wheel is for this machine's processor, like `make install`; RUSTFLAGS="-C target-cpu=x86-64-v3" makes one for others.
# The extension and the program are compiled in one target directory, so ggml is compiled once.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
CARGO=${CARGO:-cargo}
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR
wheels=$CARGO_TARGET_DIR/wheels
tools=$CARGO_TARGET_DIR/python/tools
fresh=$CARGO_TARGET_DIR/python/fresh

tools() {
    scripts/setup.sh python
    [ -x "$tools/bin/maturin" ] || python3 -m venv "$tools"
    [ -x "$tools/bin/uvx" ] || "$tools/bin/pip" install --quiet 'maturin>=1.9.4,<2' uv
}

wheel() {
    tools
    "$tools/bin/python" python/backend/backend.py
    rm -rf "$wheels"
    "$tools/bin/maturin" build --release --out "$wheels"
    ls -l "$wheels"
    [ "$(wc -c <"$(echo "$wheels"/*.whl)")" -lt 40000000 ] || { echo "python: the wheel has more than 40 MB" >&2; exit 1; }
}

sdist() {
    tools
    rm -f "$wheels"/*.tar.gz
    mkdir -p python/ropewalk/data
    "$tools/bin/maturin" sdist --out "$wheels"
    # Cargo finds all members of the workspace, and their files, in it.
    rm -rf "$CARGO_TARGET_DIR/python/sdist"
    mkdir -p "$CARGO_TARGET_DIR/python/sdist"
    tar -xzf "$wheels"/ropewalk-*.tar.gz --strip-components 1 -C "$CARGO_TARGET_DIR/python/sdist"
    for manifest in Cargo.toml python/ropewalk/Cargo.toml; do
        (cd "$CARGO_TARGET_DIR/python/sdist" && "$CARGO" metadata --no-deps --format-version 1 --manifest-path "$manifest" >/dev/null)
    done
    ls -l "$wheels"
}

tests() {
    rm -rf "$fresh"
    python3 -m venv "$fresh"
    "$fresh/bin/pip" install --quiet "$wheels"/ropewalk-*.whl pytest mypy
    # Nothing of the sources or of Rust is in reach: Python finds the package that was installed.
    cd "$CARGO_TARGET_DIR/python"
    export PATH="$fresh/bin:/usr/bin:/bin" PYTHONDONTWRITEBYTECODE=1
    unset PYTHONPATH
    python -m pytest -q -p no:cacheprovider --rootdir "$root/python/ropewalk" "$root/python/ropewalk/tests" "$@"
    python -m mypy --strict -p ropewalk
    python -m mypy --strict "$root"/python/ropewalk/tests
    # Of a class that cannot be constructed, the compiled part has a constructor that says so; PyO3 makes __all__.
    printf '%s\n' 'ropewalk\._ropewalk\.(Pieces|Plan|Score|Session)\.__new__' 'ropewalk\._ropewalk\.__all__' >allowed
    python -m mypy.stubtest --allowlist allowed --ignore-unused-allowlist ropewalk._ropewalk
    # `uvx ropewalk`, from an index of the wheel and what it needs.
    rm -rf index
    python -m pip download --quiet --dest index "$wheels"/ropewalk-*.whl
    "$tools/bin/uvx" --no-cache --no-index --find-links index --python "$fresh/bin/python" ropewalk --help >/dev/null
}

case "${1:-}" in
wheel | sdist) "$1" ;;
test)
    wheel
    sdist
    tests "${@:2}"
    ;;
*)
    echo "usage: scripts/python.sh wheel | sdist | test [ARGUMENTS OF pytest]" >&2
    exit 2
    ;;
esac
