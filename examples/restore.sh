#!/usr/bin/env bash
# Shows what fine-tuning does. The script changes the RoPE method of a model, which raises its perplexity, and then trains it.
# It prints the perplexity on held-out novels before and after, for several methods with the same texts, steps, and seed.
#
#   examples/restore.sh OUT [STEPS] [THREADS]        after `make build models train-texts`
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: examples/restore.sh OUT [STEPS] [THREADS]}
steps=${2:-60}
threads=${3:-0}
ropewalk=${ROPEWALK:-target/release/ropewalk}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
train=(models/texts/train/{anarchism,tdavid,mhcc})
novels=(models/texts/eval/novels/*.txt)
# HARPE's bases are 10, 25, and 50 times the model's own base, one for each KV head.
# Plain is the control. It shows the effect of the texts alone.
methods=(plain harpe:bases=1000000/2500000/5000000 pi:factor=4 sba:factor=4)
mkdir -p "$out"

ppl() { # ARGS...: prints the perplexity on one window of 1,024 tokens of each novel
  "$ropewalk" perplexity -m "$model" -f "${novels[@]}" --ctx 1024 --max-windows 6 --device cpu -t "$threads" --json -q "$@" |
    python3 -c 'import json, sys; print("%.2f" % json.load(sys.stdin)["results"][0]["ppl"])'
}

table="$out/table.md"
printf '| rope | before | after %s steps |\n|---|---|---|\n' "$steps" | tee "$table"
for rope in "${methods[@]}"; do
  adapter="$out/${rope%%:*}.gguf"
  before=$(ppl --rope "$rope")
  rm -rf "${adapter%.gguf}.checkpoints"
  "$ropewalk" finetune -m "$model" -d "${train[@]}" --rope "$rope" --ctx 1024 -o "$adapter" --rank 16 --lr 1e-3 \
    --steps "$steps" --set "warmup=5,schedule=cosine,held-out=2,eval-every=20,cache=$out/prose.tokens" --seed 1 \
    --device cpu -t "$threads"
  printf '| %s | %s | %s |\n' "$rope" "$before" "$(ppl --lora "$adapter")" | tee -a "$table"
done
