#!/usr/bin/env bash
# The demo: a quantized model fails past its trained context of 8,192 tokens, and a RoPE method repairs it.
# Prints every command before running it; results are in out/. To change the length: DEMO_CTX=16384 make demo
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/release:$PATH"

model=models/SmolLM2-135M-Instruct.Q4_1.gguf
essays=models/texts/essays.txt
ctx=${DEMO_CTX:-12288}
mkdir -p out

title() { printf '\n== %s\n' "$*"; }

# Prints a command as a user would type it, then runs it.
show() {
    local word line='$'
    for word in "$@"; do
        case $word in
        *[[:space:]]*) line+=" \"$word\"" ;;
        *) line+=" $word" ;;
        esac
    done
    printf '%s\n' "$line"
    "$@"
}

title "1. Perplexity by position over one window of $ctx tokens: as shipped, and with YaRN"
show ropewalk perplexity -m "$model" -f "$essays" --lengths "$ctx" --rope plain --rope yarn:factor=2 --plot out/demo.png |
    tee out/perplexity.txt

title "2. The method written into a file that opens under it by itself"
show ropewalk convert --rope yarn:factor=2 --ctx 16384 "$model" -o out/SmolLM2-16k.gguf

title "3. A number hidden in a long text, asked for at its end: the model as shipped, and the file just written"
show ropewalk eval passkey -m "$model" --lengths 1024,12288 --samples 2 | tee out/passkey.txt
show ropewalk eval passkey -m out/SmolLM2-16k.gguf --lengths 1024,12288 --samples 2 | tee -a out/passkey.txt

title "Done: out/demo.png is the picture, out/perplexity.txt and out/passkey.txt the figures, out/SmolLM2-16k.gguf the model"
