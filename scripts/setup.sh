#!/usr/bin/env bash
# Installs the build requirements that this machine lacks, by package name, with apt-get. Existing tools are unchanged.
#   scripts/setup.sh build        a C++ compiler, cmake, libclang (the C bindings are generated at build time), pip
#   scripts/setup.sh lint         rustfmt and clippy
#   scripts/setup.sh python       virtual environments and strip, for scripts/python.sh
#   scripts/setup.sh deb          strip, and dpkg-shlibdeps for the dependencies of the Debian package
#   scripts/setup.sh cluster      Slurm, GNU parallel, and virtual environments, for scripts/test-cluster.sh
#   scripts/setup.sh device       a software Vulkan device (Mesa's lavapipe) and xz, for scripts/test-device.sh
set -euo pipefail

say() { printf 'setup: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# libclang with its headers, as bindgen looks for it.
have_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    local f
    for f in /usr/lib/llvm-*/lib/libclang.so /usr/lib/*/libclang.so /usr/lib64/libclang.so /usr/lib64/llvm*/lib*/libclang.so \
        /usr/lib/libclang.so /usr/local/lib/libclang.so /usr/local/opt/llvm/lib/libclang.dylib \
        /opt/homebrew/opt/llvm/lib/libclang.dylib /Library/Developer/CommandLineTools/usr/lib/libclang.dylib \
        /Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib/libclang.dylib; do
        [ -e "$f" ] && return 0
    done
    return 1
}

build() {
    if ! have cargo; then
        say "cargo is not on the PATH: install Rust (rustup) first"
        exit 1
    fi
    local missing=()
    have c++ || have g++ || have clang++ || missing+=(g++)
    have cmake || missing+=(cmake)
    have_libclang || missing+=(libclang-dev)
    # Models and data come inside Python packages.
    have python3 || missing+=(python3)
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    # A terminal for a test.
    have script || missing+=(bsdutils)
    install ${missing[@]+"${missing[@]}"}
}

python() {
    local missing=()
    have python3 || missing+=(python3)
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    have strip || missing+=(binutils)
    install ${missing[@]+"${missing[@]}"}
}

cluster() {
    local missing=()
    # Daemons may not be on the PATH of a user.
    PATH=$PATH:/usr/sbin
    have slurmctld || missing+=(slurmctld)
    have slurmd || missing+=(slurmd)
    have sbatch || missing+=(slurm-client)
    compgen -G '/usr/lib/*/slurm*/select_cons_tres.so' >/dev/null || missing+=(slurm-wlm-basic-plugins)
    parallel --version 2>/dev/null | grep -c GNU >/dev/null || missing+=(parallel)
    have python3 || missing+=(python3)
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    install ${missing[@]+"${missing[@]}"}
}

deb() {
    local missing=()
    have strip || missing+=(binutils)
    have dpkg-shlibdeps || missing+=(dpkg-dev)
    install ${missing[@]+"${missing[@]}"}
}

device() {
    local missing=()
    ldconfig -p 2>/dev/null | grep -c 'libvulkan\.so\.1' >/dev/null || missing+=(libvulkan1)
    compgen -G '/usr/share/vulkan/icd.d/*' >/dev/null || missing+=(mesa-vulkan-drivers)
    have xz || missing+=(xz-utils)
    install ${missing[@]+"${missing[@]}"}
}

# Installs packages by their names in Debian.
install() {
    [ $# -eq 0 ] && return 0
    if ! have apt-get; then
        say "missing: $* (names as Debian has them), and there is no apt-get here: install them by hand," \
            "or point LIBCLANG_PATH at a folder with libclang"
        exit 1
    fi
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! have sudo; then
            say "missing: $*; run as root: apt-get update && apt-get install -y $*"
            exit 1
        fi
        as_root=(sudo)
    fi
    say "installing $*"
    # An index that cannot be refreshed may still be good enough to install from.
    ${as_root[@]+"${as_root[@]}"} apt-get update -qq >&2 || say "apt-get update failed; trying with the index at hand"
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >&2
}

lint() {
    local missing=()
    cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt)
    cargo clippy --version >/dev/null 2>&1 || missing+=(clippy)
    [ ${#missing[@]} -eq 0 ] && return 0
    if ! have rustup; then
        say "missing: ${missing[*]}; they come with the Rust toolchain"
        exit 1
    fi
    say "adding ${missing[*]} to the toolchain"
    rustup component add "${missing[@]}" >&2
}

case "${1:-}" in
build | lint | python | cluster | deb | device) "$1" ;;
*)
    say "usage: scripts/setup.sh build|lint|python|cluster|deb|device"
    exit 2
    ;;
esac
