#!/usr/bin/env bash
# Does a method do what its paper says? A small model, trained here from scratch at a window of 512, is extended to 4,096
# tokens by each method under one recipe, data, number of tokens and order, and measured: perplexity by position, passkey,
# four needle tasks of RULER.
#
# 1,400 steps (half an hour of one core) teach the model to read, and not yet to find numbers in a text: for passkey and needles
# to say something BASE_STEPS must be larger, until the model passes them within its own window.
#
#   examples/effect/run.sh OUT [SEEDS] [THREADS]     after `make build train-texts benchmarks`, with a Python that has
#                                                    tokenizers, numpy and safetensors (PYTHON=..)
#
# It may be stopped and started again: everything goes on where it was. STEPS (of 4,096 tokens, 32) is what each method is
# trained for, TASKS what is measured, SAMPLES how often (10).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: examples/effect/run.sh OUT [SEEDS] [THREADS]}
seeds=${2:-1 2 3}
threads=${3:-0}
python=${PYTHON:-python3}
bin=${BIN:-target/release}
steps=${STEPS:-32}
base_steps=${BASE_STEPS:-1400}
tasks=${TASKS-passkey niah_single_1 niah_single_2 niah_multikey_1 niah_multivalue}
here=examples/effect
train=models/texts/train
prose=("$train"/anarchism/* "$train"/tdavid/* "$train"/mhcc/*)
mkdir -p "$out"
out=$(cd "$out" && pwd)
root=$PWD

if [ ! -f "$out/init.gguf" ]; then
    "$python" $here/model.py "$out/init" "${prose[@]}"
    "$python" $here/recall.py "$out/recall.jsonl" 40000 "${prose[@]}"
    "$bin/convert" "$out/init" --pre smollm --type f32 -o "$out/init.gguf"
fi
if [ ! -f "$out/base.gguf" ]; then
    again=
    [ ! -d "$out/base.checkpoints" ] || again=--resume
    "$bin/ropewalk" finetune -m "$out/init.gguf" -d "prose=$train/anarchism:0.5" -d "recall=$out/recall.jsonl:0.5" $again \
        --train all --ctx 512 --batch 8 --lr 3e-3 --lr-min 3e-4 --schedule cosine --warmup 50 --weight-decay 0.1 \
        --beta2 0.95 --steps "$base_steps" --held-out 16 --eval-every 100 --save-every 100 --seed 1 --device cpu -t "$threads" \
        --cache "$out/base.tokens" -o "$out/base.gguf"
fi

# One recipe: the mixture the model was trained on, as many tokens of it for all, in steps of 4,096.
recipe=(-m "$out/base.gguf" -d "prose=$train/anarchism:0.7" -d "recall=$out/recall.jsonl:0.3" --targets all --rank 16
    --schedule cosine --warmup 4 --held-out 2 --device cpu -t "$threads")
third=$((steps / 3 * 4096))
cat >"$out/abf-stages.toml" <<TOML
# A third of the tokens at each context, with bases for 2, 4 and 8 times the window.
[[stage]]
ctx = 1024
rope = "abf:factor=2"
tokens = $third
[[stage]]
ctx = 2048
rope = "abf:factor=4"
tokens = $third
[[stage]]
ctx = 4096
rope = "abf:factor=8"
tokens = $((steps * 4096 - 2 * third))
TOML
plan=$out/plan.toml
cat >"$plan" <<TOML
title = "A small model of 512 tokens extended to 4,096, under one recipe"
lengths = [512, 1024, 2048, 4096]
samples = ${SAMPLES:-10}
texts = ["$root/models/texts/eval/novels/emma.txt", "$root/models/texts/eval/novels/persuasion.txt"]
data = "$root/models/benchmarks"

[[models]]
name = "llama of 2.2 M parameters, trained on 512 tokens"
path = "base.gguf"

[[tasks]]
name = "perplexity"
protocol = "window"
max_windows = 4
TOML
for task in $tasks; do printf '[[tasks]]\nname = "%s"\n' "$task" >>"$plan"; done
frozen() { # NAME SPEC
    printf '\n[[methods]]\nname = "%s, frozen"\nspec = "%s"\n' "$1" "$2" >>"$plan"
}
trained() { # NAME FINETUNE-ARGS..., for each seed
    local name=$1 seed adapter again
    shift
    for seed in $seeds; do
        adapter=$out/adapters/${name// /-}-$seed.gguf
        if [ ! -f "$adapter" ]; then
            again=
            [ ! -d "${adapter%.gguf}.checkpoints" ] || again=--resume
            "$bin/ropewalk" finetune "${recipe[@]}" --cache "$out/long.tokens" --seed "$seed" $again "$@" -o "$adapter" >&2
        fi
        printf '\n[[methods]]\nname = "%s, seed %s"\nadapters = ["%s"]\n' "$name" "$seed" "$adapter" >>"$plan"
    done
}
mkdir -p "$out/adapters"

frozen plain plain
for method in pi ntk yarn abf sba harpe; do frozen $method "$method:factor=8"; done
frozen self-extend self-extend
frozen lm-infinite lm-infinite
frozen dca dca
for goal in perplexity needle; do
    found=$out/longrope-$goal.json
    if [ ! -f "$out/longrope-$goal.spec" ]; then
        "$bin/ropewalk" search -m "$out/base.gguf" -f "$train"/mhcc/* --ctx 4096 --goal $goal --samples 2 --population 24 \
            --iterations 8 --mutations 8 --crossovers 8 --parents 12 --device cpu -t "$threads" --resume -o "$found" --json |
            "$python" -c 'import json, sys; print(json.load(sys.stdin)["rope"])' >"$out/longrope-$goal.spec.part"
        mv "$out/longrope-$goal.spec.part" "$out/longrope-$goal.spec"
    fi
    frozen "longrope searched by $goal" "$(cat "$out/longrope-$goal.spec")"
done

long=(--ctx 4096 --steps "$steps" --lr 2e-3)
for method in plain pi:factor=8 ntk:factor=8 yarn:factor=8 abf:factor=8 sba:factor=8 harpe:factor=8; do
    trained "${method%%:*}" "${long[@]}" --rope "$method"
done
trained "abf in three stages" --stages "$out/abf-stages.toml" --lr 2e-3
# The equation's velocity wants a lower rate than pairs.
trained clex --ctx 4096 --steps "$steps" --lr 2e-4 --rope clex:max-factor=8
trained longlora "${long[@]}" --rope pi:factor=8 --attention s2 --train norms,embeddings
trained drope --ctx 512 --batch 8 --steps "$steps" --lr 2e-3 --rope plain:drop=1
# The same frequencies, other data.
abf=(--rope abf:factor=8)
trained "abf utk" "${long[@]}" "${abf[@]}" --data-method utk-80 \
    --knot-tokens '<|reserved_0|>,<|reserved_1|>,<|reserved_2|>,<|reserved_3|>' \
    --mark-tokens '<|reserved_4|>,<|reserved_5|>,<|reserved_6|>,<|reserved_7|>,<|reserved_8|>'
trained "abf cip" "${long[@]}" "${abf[@]}" --data-method cip
trained "abf upsampled" "${long[@]}" "${abf[@]}" --upsample fu
trained "abf pose" --ctx 512 --batch 8 --steps "$steps" --lr 2e-3 "${abf[@]}" --data-method pose:target=4096

"$bin/ropewalk" study "$plan" -o "$out/study-${seeds// /-}" --device cpu -t "$threads"
