#!/usr/bin/env bash
# Fails if a program calls instructions of AVX2 or AVX-512 as functions, one by one: a kernel that the compiler did not inline into
# code for these instructions is right, and slow. A loop in place of a closure, or `#[inline(always)]`, mends it.
#   scripts/inlined.sh PROGRAM
set -euo pipefail
symbols=$(nm --demangle "$1")
fault() { printf 'inlined: %s: expected %s\n' "$1" "$2" >&2; exit 1; }
[[ $symbols == *kernels::attention::* ]] || fault "$1" "functions of attention, found none"
calls=$(grep -oE 'core_arch::.*::_mm(256|512)_.*' <<<"$symbols" || true)
[ -z "$calls" ] || fault "$1" $'no instructions that are functions, found\n'"$calls"
