#!/usr/bin/env bash
# The speed of every type of weights beside libllama, and of training beside PyTorch with PEFT, as one Markdown table for this
# machine. Engines alternate within each repetition.
#
#   benches/table.sh > table.md                               everything, on a quiet machine
#   TYPES="q4_0 q8_0" PROMPTS=512 DEPTHS=0 benches/table.sh   a part of it
#   THREADS=1 CLOCK=cpu benches/table.sh                      on a busy machine: one thread, the processor's time
#   PYTHON=target/peft/venv/bin/python benches/table.sh       training, too (benches/peft/README.md says what Python needs)
#
# libllama has no instructions beyond those it was compiled for: build PROGRAM with RUSTFLAGS="-C target-cpu=native".
# MODEL is the file that the types are made of (default: the default model), PROGRAM the program (default: that of
# target/release). Files are kept in target/table; figures of each type are there as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."
MODEL=${MODEL:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
PROGRAM=${PROGRAM:-target/release/ropewalk}
TYPES=${TYPES:-q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl f16 bf16}
PROMPTS=${PROMPTS:-32,128,512,2048,8192}
DEPTHS=${DEPTHS:-0,8192}
WRITE=${WRITE:-32}
REPETITIONS=${REPETITIONS:-3}
THREADS=${THREADS:-0}
CLOCK=${CLOCK:-wall}
MATH=${MATH:-int8}
PYTHON=${PYTHON:-}
FOLDER=target/table
mkdir -p "$FOLDER"
say() { printf 'table: %s\n' "$*" >&2; }

for type in $TYPES; do
    file=$FOLDER/$type.gguf
    [ -e "$file" ] || "$PROGRAM" convert --type "$type" "$MODEL" -o "$file"
    common=(-m "$file" -r "$REPETITIONS" -t "$THREADS" --clock "$CLOCK" --math "$MATH" --against libllama --json -q)
    say "$type: prompts of $PROMPTS"
    "$PROGRAM" bench "${common[@]}" -p "$PROMPTS" -n 0 > "$FOLDER/$type-prompts.json"
    say "$type: writing at $DEPTHS"
    "$PROGRAM" bench "${common[@]}" -p 0 -n "$WRITE" -d "$DEPTHS" > "$FOLDER/$type-writing.json"
done

if [ -n "$PYTHON" ]; then
    threads=$THREADS
    [ "$threads" != 0 ] || threads=$(nproc)
    for ctx in 512 2048; do
        say "training at $ctx"
        # Only some processors have products of bfloat16 for training: without them that line fails by itself.
        cargo bench --bench train -- --ctx "$ctx" --threads "$threads" --keep products --keep-type f32,bf16 \
            --math auto,bf16 \
            > "$FOLDER/train-$ctx.txt"
        for dtype in float32 bfloat16; do
            "$PYTHON" benches/peft/bench.py case --ctx "$ctx" --dtype "$dtype" --threads "$threads" --warmup 1 \
                > "$FOLDER/peft-$ctx-$dtype.json"
        done
    done
fi

python3 - "$FOLDER" "$CLOCK" "$THREADS" "$TYPES" <<'PY'
import json, pathlib, subprocess, sys

folder, clock, threads, types = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].split()
info = pathlib.Path("/proc/cpuinfo").read_text().splitlines() if pathlib.Path("/proc/cpuinfo").exists() else []
fields = dict(line.split(":", 1) for line in reversed(info) if ":" in line)
fields = {k.strip(): v.strip() for k, v in fields.items()}
wanted = ["avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"]
have = [flag for flag in wanted if flag in fields.get("flags", "").split()]
commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
reports = {t: [json.loads((folder / f"{t}-{kind}.json").read_text()) for kind in ("prompts", "writing")] for t in types}
bandwidth = max(r["memory_bandwidth"] or 0 for pair in reports.values() for r in pair)
print(f"Processor: {fields.get('model name', 'unknown')} ({', '.join(have)}), family {fields.get('cpu family')}, model "
      f"{fields.get('model')}; {reports[types[0]][0]['threads']} threads, {clock} time; memory reads at "
      f"{bandwidth / 1e9:.1f} GB/s; commit {commit}.\n")
names = list(dict.fromkeys(r["test"] for pair in reports.values() for rep in pair for r in rep["results"]))
print("Tokens/s, ropewalk / libllama = ratio of medians; of tests that write (tg), the part of the memory's bandwidth.\n")
print("| type | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
below = []
for t in types:
    cells = []
    for name in names:
        rows = [r for rep in reports[t] for r in rep["results"] if r["test"] == name]
        ours = next((r for r in rows if r["engine"] == "ropewalk"), None)
        theirs = next((r for r in rows if r["engine"] == "libllama"), None)
        if not ours or not theirs or not ours["median_ts"] or not theirs["median_ts"]:
            cells.append("-")
            continue
        ratio = ours["median_ts"] / theirs["median_ts"]
        part = ours.get("of_memory_bandwidth")
        cells.append(f"{ours['median_ts']:.1f} / {theirs['median_ts']:.1f} = **{ratio:.2f}**"
                     + (f", {100 * part:.0f} %" if part else f", {ours['gflops']:.0f} GFLOP/s"))
        goal = 1.5 if ours["n_prompt"] >= 512 else 1.0
        if ratio < goal:
            below.append(f"{t} {name} {ratio:.2f}")
    print(f"| {t} | " + " | ".join(cells) + " |")
print("\nBelow the goal (1.0; 1.5 in prompts of 512 and more): " + (", ".join(below) or "none") + ".")
for ctx in (512, 2048):
    ours = folder / f"train-{ctx}.txt"
    if ours.exists():
        print(f"\nTraining at {ctx}:\n\n```\n{ours.read_text().strip()}")
        for dtype in ("float32", "bfloat16"):
            peft = folder / f"peft-{ctx}-{dtype}.json"
            if peft.exists():
                print(f"PEFT {dtype}: {peft.read_text().strip()}")
        print("```")
PY
