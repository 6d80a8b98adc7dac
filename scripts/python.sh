#!/usr/bin/env bash
# Builds and tests the Python package of python/ropewalk.
#   scripts/python.sh wheel               builds the wheel into target/wheels
#   scripts/python.sh test [ARGUMENTS]    builds it, installs it into a new virtual environment, runs its tests with pytest
#                                         (ARGUMENTS are pytest's) and checks its types
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

wheel() {
    scripts/setup.sh python
    if [ ! -x "$tools/bin/maturin" ]; then
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet 'maturin>=1.9.4,<2'
    fi
    "$CARGO" build --release --locked -p ropewalk --bin ropewalk
    mkdir -p python/ropewalk/data/scripts
    strip -o python/ropewalk/data/scripts/ropewalk "$CARGO_TARGET_DIR/release/ropewalk"
    rm -rf "$wheels"
    "$tools/bin/maturin" build --release --locked --manifest-path python/ropewalk/Cargo.toml --out "$wheels"
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
}

case "${1:-}" in
wheel) wheel ;;
test)
    "$CARGO" fmt --manifest-path python/ropewalk/Cargo.toml --check
    wheel
    tests "${@:2}"
    ;;
*)
    echo "usage: scripts/python.sh wheel | test [ARGUMENTS OF pytest]" >&2
    exit 2
    ;;
esac
