#!/usr/bin/env python3
"""Speed and memory of LoRA steps with PyTorch and PEFT, on the default model's weights. See README.md."""

import argparse
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
RECORDING = HERE.parent.parent / "tests/reference/training.json"


def rss():
    """MiB resident now, and the most since the last reset_peak."""
    fields = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return [int(fields[k].split()[0]) / 1024 for k in ("VmRSS", "VmHWM")]


def reset_peak():
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def case(args):
    """Steps of one kind in this process; one JSON object."""
    import torch

    import peft
    import transformers
    from peft_model import load

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    imported = rss()[0]
    model = load(getattr(torch, args.dtype), args.checkpointing)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)
    ids = torch.tensor(json.loads(RECORDING.read_text())["tokens"])
    loaded = rss()[0]
    peak_loading = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    reset_peak()

    def step(n):
        # A different stretch each step; they overlap where the text is too short for all.
        at = n * args.ctx % (len(ids) - args.ctx)
        tokens = ids[None, at : at + args.ctx]
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    seconds, losses, begin = [], [], time.monotonic()
    n_warm = 0
    for n in range(args.warmup + args.steps):
        start = time.monotonic()
        losses.append(step(n))
        late = time.monotonic() - begin > args.seconds
        # A step of warm-up counts where there is no time for another.
        if n >= args.warmup or late:
            seconds.append(time.monotonic() - start)
            n_warm = min(n, args.warmup)
        if late:
            break
    median = statistics.median(seconds)
    steps_peak = rss()[1]
    print(json.dumps({
        "ctx": args.ctx, "dtype": args.dtype, "checkpointing": args.checkpointing, "threads": args.threads,
        "tokens_per_s": round(args.ctx / median, 2), "step_s": round(median, 3),
        "warmup": n_warm, "step_s_all": [round(s, 3) for s in seconds], "losses": [round(x, 4) for x in losses],
        "trained": sum(p.numel() for p in trained),
        "rss_imported_mib": round(imported), "rss_loaded_mib": round(loaded),
        "peak_loading_mib": round(peak_loading), "peak_steps_mib": round(steps_peak),
        "peak_mib": round(max(peak_loading, steps_peak)),
        "peak_less_imports_mib": round(max(peak_loading, steps_peak) - imported),
        "torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__,
    }))  # fmt: skip


def run_all(args):
    """A process for each case; a table, and JSON lines where asked."""
    rows = []
    for dtype in args.dtypes.split(","):
        for ctx in map(int, args.contexts.split(",")):
            for checkpointing in (False, True):
                line = [sys.executable, __file__, "case", "--ctx", str(ctx), "--dtype", dtype]
                line += [f"--{k}={getattr(args, k)}" for k in ("threads", "steps", "warmup", "seconds")]
                line += ["--checkpointing"] * checkpointing
                quiet = {"PYTHONWARNINGS": "ignore", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
                env = os.environ | quiet | {"OMP_NUM_THREADS": str(args.threads)}
                done = subprocess.run(line, stdout=subprocess.PIPE, text=True, env=env)
                if done.returncode:
                    print(f"{dtype} {ctx} {checkpointing}: failed with {done.returncode}", flush=True)
                    continue
                rows.append(json.loads(done.stdout))
                if args.json:
                    with open(args.json, "a") as f:
                        f.write(done.stdout)
                r = rows[-1]
                if len(rows) == 1:
                    print(f"torch {r['torch']}, transformers {r['transformers']}, peft {r['peft']}, "
                          f"{args.threads} threads, {platform.machine()}")  # fmt: skip
                    print(
                        "| type | context | checkpointing | tokens/s | s a step | peak MiB | less imports |"
                    )
                    print("|---|---|---|---|---|---|---|")
                kind = f"| {dtype} | {ctx} | {'yes' if checkpointing else 'no'} "
                speed = f"| {r['tokens_per_s']} | {r['step_s']} "
                print(kind + speed + f"| {r['peak_mib']} | {r['peak_less_imports_mib']} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="write the dequantized weights to target/peft/model")
    check = commands.add_parser("check", help="compare loss, gradients and loss curve with tests/reference")
    check.add_argument("--threads", type=int, default=1)
    one, every = commands.add_parser("case", help="one case"), commands.add_parser("run", help="all cases")
    for p in (one, every):
        p.add_argument("--threads", type=int, default=2)
        p.add_argument("--steps", type=int, default=7)
        p.add_argument("--warmup", type=int, default=2)
        p.add_argument("--seconds", type=float, default=120, help="no further step after this")
    one.add_argument("--ctx", type=int, required=True)
    one.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    one.add_argument("--checkpointing", action="store_true")
    every.add_argument("--contexts", default="512,2048")
    every.add_argument("--dtypes", default="float32,bfloat16")
    every.add_argument("--json", metavar="FILE", help="append a line for each case")
    args = parser.parse_args()
    if args.command == "prepare":
        from peft_model import prepare

        prepare()
    elif args.command == "check":
        from check import check as compare

        sys.exit(0 if compare(RECORDING, args.threads) else "not the same: see above")
    else:
        (case if args.command == "case" else run_all)(args)


if __name__ == "__main__":
    main()
