#!/usr/bin/env bash
# Speed on a machine that also does other work: decode, prefill of 512 tokens and a training step, when idle (with all threads,
# and with one), with a busy loop of another session on every core, and with a second ropewalk. libllama runs in the same
# turns. Then eight runs at once against the same eight one after another. Prints a Markdown table.
#
#   benches/busy.sh > busy.md            ten turns (about 25 minutes on two cores)
#   TURNS=3 TRAIN= benches/busy.sh       fewer, without training
#
# MODEL is the file, PROGRAM the program, THREADS the threads of each (default: one for each core).
set -euo pipefail
cd "$(dirname "$0")/.."
MODEL=${MODEL:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
PROGRAM=${PROGRAM:-target/release/ropewalk}
TURNS=${TURNS:-10}
THREADS=${THREADS:-0}
TRAIN=${TRAIN-yes}
export FOLDER=${FOLDER:-target/busy}
mkdir -p "$FOLDER" && rm -f "$FOLDER"/*.json "$FOLDER"/*.train "$FOLDER"/eight
cores=$(nproc)
threads=$THREADS
[ "$threads" != 0 ] || threads=$cores
others=()

# Each in its own session: the scheduler gives sessions equal shares, so that niceness would say little.
start() { setsid "$@" >/dev/null 2>&1 </dev/null & others+=($!); }
stop() {
    for pid in ${others[@]+"${others[@]}"}; do kill -- "-$pid" 2>/dev/null || kill "$pid" 2>/dev/null || true; done
    wait ${others[@]+"${others[@]}"} 2>/dev/null || true
    others=()
}
trap stop EXIT

disturb() {
    case $1 in
        idle | one) ;;
        loops) for _ in $(seq "$cores"); do start sh -c 'while :; do :; done'; done ;;
        second) start "$PROGRAM" bench -m "$MODEL" -p 0 -n 1024 -r 1000 -t "$threads" --device cpu ;;
    esac
}

[ -z "$TRAIN" ] || cargo bench -q --no-run --bench train 2>/dev/null
for turn in $(seq "$TURNS"); do
    for state in idle one loops second; do
        n=$threads
        [ "$state" != one ] || n=1
        printf 'busy: turn %s of %s, %s\n' "$turn" "$TURNS" "$state" >&2
        disturb "$state"
        "$PROGRAM" bench -m "$MODEL" -p 512 -n 32 -r 1 -t "$n" --device cpu --against libllama --json -q \
            > "$FOLDER/$state-$turn.json"
        [ -z "$TRAIN" ] || cargo bench -q --bench train -- --ctx 512 --threads "$n" --keep products --steps 1 \
            > "$FOLDER/$state-$turn.train" 2>/dev/null
        stop
    done
done

run() { "$PROGRAM" run -m "$MODEL" -p "Rope" -n 64 --ignore-eos --temp 0 -q -t "$threads" --device cpu >/dev/null; }
for turn in $(seq "$TURNS"); do
    printf 'busy: turn %s of %s, eight runs\n' "$turn" "$TURNS" >&2
    began=$(date +%s%N)
    for _ in 1 2 3 4 5 6 7 8; do run; done
    between=$(date +%s%N)
    for _ in 1 2 3 4 5 6 7 8; do run & done
    wait
    echo "$((between - began)) $(($(date +%s%N) - between))" >> "$FOLDER/eight"
done

python3 - <<'PY'
import json, os, pathlib, statistics

folder = pathlib.Path(os.environ["FOLDER"])
states = {"idle": "idle", "one": "idle, one thread", "loops": "with a busy loop on every core", "second": "with a second ropewalk"}
speeds = {}  # by turn
for file in folder.glob("*.json"):
    state, turn = file.stem.split("-")
    for row in json.loads(file.read_text())["results"]:
        if row["avg_ts"]:
            speeds.setdefault((row["test"], row["engine"], state), {})[turn] = row["avg_ts"]
for file in folder.glob("*.train"):
    state, turn = file.stem.split("-")
    head, *rows = [line.split() for line in file.read_text().splitlines() if line.strip()]
    for row in rows:
        value = float(row[head.index("tokens/s")])
        speeds.setdefault(("training step of 512", "ropewalk", state), {})[turn] = value
print("| tokens/s, medians | " + " | ".join(states.values()) + " |")
print("|---|" + "---|" * len(states))
for test, engine in sorted({key[:2] for key in speeds}):
    cells = [speeds.get((test, engine, state)) for state in states]
    cells = [f"{statistics.median(cell.values()):.4g}" if cell else "-" for cell in cells]
    print(f"| {test}, {engine} | " + " | ".join(cells) + " |")
for test in sorted({test for test, engine, _ in speeds if engine == "ropewalk"}):
    loops, one = (speeds.get((test, "ropewalk", state), {}) for state in ("loops", "one"))
    if ratios := [loops[turn] / one[turn] for turn in loops.keys() & one.keys()]:
        print(f"\n{test} with busy loops: {statistics.median(ratios):.2f} of the speed of one idle thread in the same turn.")
ratios = [int(b) / int(a) for a, b in (line.split() for line in (folder / "eight").read_text().splitlines())]
print(f"\nEight runs at once took {statistics.median(ratios):.2f} of the time of one after another.")
PY
