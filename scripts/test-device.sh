#!/usr/bin/env bash
# Runs tests/device: inference and training on a device other than the CPU, compared with the CPU.
#
#   FEATURES=cuda DEVICE=cuda:0 scripts/test-device.sh      a GPU; install what the feature needs to build
#   scripts/test-device.sh                                  Mesa's software Vulkan device, which needs no GPU, with a Vulkan
#                                                           backend built elsewhere: libggml-vulkan*.so, or compressed as
#                                                           .so.xz, in MODULES (default: ../shared/vulkan), from the same
#                                                           version of ggml as this build
#
#   scripts/test-device.sh NAME...                          only the tests with these in their names
#
# Without FEATURES and without a module, no test runs, and the script prints that. Tests run one at a time: two at once on one
# software device have ended in a segmentation fault.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
say() { printf 'test-device: %s\n' "$*" >&2; }

if [ -n "${FEATURES:-}" ]; then
    export ROPEWALK_TEST_DEVICE=${DEVICE:-${FEATURES%%,*}:0}
    exec "$CARGO" test --release --features "$FEATURES" --test device -- --test-threads 1 "$@"
fi

modules=${MODULES:-../shared/vulkan}
packed=$(find "$modules" -maxdepth 1 -name 'libggml-vulkan*.so.xz' 2>/dev/null | head -n 1 || true)
plain=$(find "$modules" -maxdepth 1 -name 'libggml-vulkan*.so' 2>/dev/null | head -n 1 || true)
if [ -z "$packed$plain" ]; then
    say "NO TEST OF A DEVICE WAS RUN: no libggml-vulkan*.so in $modules; see scripts/test-device.sh for other devices"
    exit 0
fi
scripts/setup.sh device

# A separate target directory: ggml is compiled as shared libraries here, its CPU backend for one kind of processor (the
# feature dynamic-backends would compile it for a dozen). ggml rejects `native` for a backend that is a module.
export GGML_BACKEND_DL=ON
[ "$(uname -m)" = x86_64 ] || export RUSTFLAGS="-C target-cpu=generic"
device_test() { "$CARGO" test --release --features dynamic-link --target-dir target/device --test device "$@"; }
device_test --no-run

# ggml looks for modules next to the program that loads them; tests are one directory deeper.
cpu=$(ls -t target/device/release/build/llama-cpp-sys-2-*/out/bin/libggml-cpu*.so | head -n 1)
for folder in target/device/release target/device/release/deps; do
    cp "$cpu" "$folder/"
    if [ -n "$plain" ]; then cp "$plain" "$folder/libggml-vulkan.so"; else xz -dc "$packed" >"$folder/libggml-vulkan.so"; fi
done

# ggml skips a Vulkan device of type CPU unless it is selected by number.
export GGML_VK_VISIBLE_DEVICES=${GGML_VK_VISIBLE_DEVICES:-0} ROPEWALK_TEST_DEVICE=${DEVICE:-vulkan:0}
# Compiled shaders are kept: the software device takes minutes to compile the matmul shaders.
export MESA_SHADER_CACHE_DIR=${MESA_SHADER_CACHE_DIR:-$PWD/target/device/shaders}
mkdir -p "$MESA_SHADER_CACHE_DIR"
device_test -- --test-threads 1 "$@"
