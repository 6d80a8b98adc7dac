#!/usr/bin/env bash
# What cargo runs in place of rustc for the crates of the workspace (RUSTC_WORKSPACE_WRAPPER): rustc, then clippy and, for a
# library, rustdoc with the same arguments. A warning is an error. One build then checks everything, and dependencies are
# compiled once: `cargo clippy` and `cargo doc` want metadata of their own. With `cargo check`, only clippy runs.
set -euo pipefail

args=("$@")
emit= out= source= kind= is_test=
for i in "${!args[@]}"; do
    case ${args[i]} in
        --emit=*) emit=${args[i]#--emit=} ;;
        --out-dir) out=${args[i + 1]} ;;
        --crate-type) kind=${args[i + 1]} ;;
        --test) is_test=1 ;;
        *.rs) source=${args[i]} ;;
    esac
done
# A question of cargo about the compiler, or a build script.
if [ -z "$emit" ] || [[ ${CARGO_CRATE_NAME:-} == build_script_* ]]; then exec "$@"; fi

# check TOOL [ARGUMENTS]: runs clippy or rustdoc on the crate. Cargo learns of messages, not of the files that are written.
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
check() {
    local tool=$1 i
    shift
    local list=("${args[@]:1}")
    for i in "${!list[@]}"; do
        case ${list[i]} in
            --emit=*) list[i]=$([ "$tool" = rustdoc ] || echo --emit=metadata) ;;
            --json=*) list[i]=--json=diagnostic-rendered-ansi ;;
            --out-dir) list[i + 1]=$([ "$tool" = rustdoc ] && echo "$(dirname "$(dirname "$out")")/doc" || echo "$room") ;;
        esac
        [ -n "${list[i]}" ] || unset "list[i]"
    done
    [ "$tool" = rustdoc ] || list=(rustc "${list[@]}")
    "$tool" "${list[@]}" -D warnings "$@"
}

if [[ $emit != *link* ]]; then
    clippy-driver "$@" -D warnings
    exit
fi
# Code that only tests run is compiled faster: in several units, with few optimizations where a test computes a reference,
# and with none where it runs a program and reads files. Crate `naive` computes most and is compiled as libraries are. The
# command line of a program computes little; `cargo build` optimizes it fully.
quick=()
if [ -n "$is_test" ] || [[ /$source == */examples/* || /$source == */benches/* ]]; then
    case ${CARGO_CRATE_NAME:-} in
        eval | ggml | kernels | rope | ropewalk_core | runtime | tasks | train) quick=(-C opt-level=1 -C overflow-checks=on -C codegen-units=16) ;;
        *) quick=(-C opt-level=0 -C codegen-units=16) ;;
    esac
elif [ "$kind" = bin ]; then
    quick=(-C opt-level=1 -C codegen-units=16)
fi
"$@" --cap-lints allow "${quick[@]}"
check clippy-driver
if [[ $kind == lib && -z $is_test ]]; then check rustdoc; fi
