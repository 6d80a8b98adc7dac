#!/bin/sh
# CMake starts this in place of the C++ compiler (CMAKE_CXX_COMPILER_LAUNCHER). It compiles the code of libllama that runs
# once for each model or graph (architectures, loader, templates, grammars) with -O1, which takes 40 % less time than -O3.
# ggml, and the code of libllama that runs for each token, keep -O3.
case "$*" in
*llama.dir/Unity/* | *llama.dir/llama-model* | *llama.dir/llama-arch* | *llama.dir/llama-chat* | *llama.dir/llama-grammar* | *llama.dir/llama-hparams*)
    exec "$@" -O1 ;;
esac
exec "$@"
