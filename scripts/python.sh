#!/usr/bin/env bash
# Builds and tests the Python package: pyproject.toml, python/ropewalk, and the program.
#   scripts/python.sh wheel               builds the wheel into target/wheels
#   scripts/python.sh sdist               builds the source distribution there: what git tracks
#   scripts/python.sh test [ARGUMENTS]    builds both, installs the wheel into a new virtual environment, runs its tests with
#                                         pytest (ARGUMENTS are pytest's), and the notebooks, and checks its types
#   scripts/python.sh ecosystem [ARGUMENTS]   runs the tests with PyTorch and other packages on the wheel that was built
#   scripts/python.sh docs                builds and installs the wheel, and writes the pages of its API into target/python/docs
#
# On x86-64 the wheel is for x86-64-v3, elsewhere for this machine's processor.
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
ecosystem=$CARGO_TARGET_DIR/python/ecosystem
data=$CARGO_TARGET_DIR/python/data

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

# Installs the wheel and named packages into a new virtual environment.
environment() {
    rm -rf "$fresh"
    python3 -m venv "$fresh"
    "$fresh/bin/pip" install --quiet "$wheels"/ropewalk-*.whl "$@"
}

# Docstrings are those of the compiled part. pdoc looks for types of what the package exports next to its __init__.py.
docs() {
    local package out=$CARGO_TARGET_DIR/python/docs
    package=$("$fresh/bin/python" -c 'import os, ropewalk; print(os.path.dirname(ropewalk.__file__))')
    { echo 'from __future__ import annotations' && cat "$package/_ropewalk.pyi"; } >"$package/__init__.pyi"
    # Optional packages, such as peft, are missing here; their types are shown as written.
    "$fresh/bin/python" -W error -W 'ignore:Failed to run TYPE_CHECKING code' \
        -W 'ignore:Error parsing type annotation _Path | PeftModel' -m pdoc --docformat markdown --no-show-source -o "$out" ropewalk
    rm "$package/__init__.pyi"
    echo "$out/index.html"
}

tests() {
    environment 'pytest<10' 'mypy<3' 'pdoc<17' 'pandas<4' 'tqdm<5' 'nbclient<1' 'ipykernel<8'
    # Nothing of the sources or of Rust is in reach: Python finds the package that was installed.
    cd "$CARGO_TARGET_DIR/python"
    export PATH="$fresh/bin:/usr/bin:/bin" PYTHONDONTWRITEBYTECODE=1
    unset PYTHONPATH
    python -m pytest -q -p no:cacheprovider --rootdir "$root/python/ropewalk" "$root/python/ropewalk/tests" \
        --ignore "$root/python/ropewalk/tests/ecosystem" "$@"
    # The configuration knows the packages that are not installed here.
    python -m mypy --config-file "$root/pyproject.toml" -p ropewalk
    python -m mypy --config-file "$root/pyproject.toml" "$root"/python/ropewalk/tests
    # Of a class that cannot be constructed, the compiled part has a constructor that says so; PyO3 makes __all__.
    printf '%s\n' 'ropewalk\._ropewalk\.(Answer|Chat|Figure|Pieces|Plan|Score|Session)\.__new__' 'ropewalk\._ropewalk\.__all__' >allowed
    python -m mypy.stubtest --allowlist allowed --ignore-unused-allowlist ropewalk._ropewalk
    docs
    # `uvx ropewalk`, from an index of the wheel and what it needs.
    rm -rf index
    python -m pip download --quiet --dest index "$wheels"/ropewalk-*.whl
    "$tools/bin/uvx" --no-cache --no-index --find-links index --python "$fresh/bin/python" ropewalk --help >/dev/null
}

# The environment is kept, as PyTorch takes 6 GB and minutes to install.
ecosystem() {
    [ -x "$ecosystem/bin/pip" ] || python3 -m venv "$ecosystem"
    "$ecosystem/bin/pip" install --quiet 'torch>=2.15,<3' 'transformers>=5.24,<6' 'peft>=0.21,<1' 'lm-eval[api]>=0.4.13,<0.5' \
        'openai>=3.51,<4' 'langchain-openai>=1.7.4,<2' 'inspect_ai>=0.3.285,<0.4' \
        'schemathesis>=4.32.5,<5' 'pytest>=8,<10'
    "$ecosystem/bin/pip" install --quiet --force-reinstall --no-deps "$wheels"/ropewalk-*.whl
    python3 scripts/packages.py "$data" short <models/packages.json
    cd "$CARGO_TARGET_DIR/python"
    export PATH="$ecosystem/bin:/usr/bin:/bin" PYTHONDONTWRITEBYTECODE=1
    export ROPEWALK_DATA=$data HF_HOME=$data/hf HF_HUB_OFFLINE=1
    unset PYTHONPATH
    # Warnings of the packages are not errors.
    python -m pytest -q -p no:cacheprovider -W default --rootdir "$root/python/ropewalk" \
        "$root/python/ropewalk/tests/ecosystem" "$@"
}

case "${1:-}" in
wheel | sdist) "$1" ;;
test)
    wheel
    sdist
    tests "${@:2}"
    ;;
ecosystem) ecosystem "${@:2}" ;;
docs)
    wheel
    environment 'pdoc<17' 'typing_extensions<5'
    docs
    ;;
*)
    echo "usage: scripts/python.sh wheel | sdist | test [ARGUMENTS OF pytest] | ecosystem [ARGUMENTS OF pytest] | docs" >&2
    exit 2
    ;;
esac
