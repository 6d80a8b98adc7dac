#!/bin/sh
# CMake starts this in place of the C++ compiler (CMAKE_CXX_COMPILER_LAUNCHER). libllama's descriptions of architectures, its
# loader, and its templates run once for each model or graph: with -O1 they compile in half the time. ggml and what libllama
# does for each token keep their optimizations.
case "$*" in
*llama.dir/Unity/* | *llama.dir/llama-model* | *llama.dir/llama-arch* | *llama.dir/llama-chat* | *llama.dir/llama-grammar* | *llama.dir/llama-hparams*)
    exec "$@" -O1 ;;
esac
exec "$@"
