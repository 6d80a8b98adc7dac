#!/usr/bin/env python3
"""Measures one device from end to end, unattended, and prints one table.

    scripts/device-table.py --device cuda:0 --model models/SmolLM2-135M-Instruct.Q4_1.gguf     about an hour, GPU of 80 GB
    scripts/device-table.py --device vulkan:0 --dry     every step with tiny models, in minutes: it shows that they work

Four parts: the device's numerical tests, speed beside libllama, training, and one model extended under several methods. A
step that fails or takes too long is a row that says so, and the next one goes on. Each step's output is kept in --out.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time

METHODS = ["pi", "ntk", "dynamic-ntk", "yarn", "abf", "sba", "harpe", "self-extend", "lm-infinite", "dca", "streaming"]
# Those whose factor follows from the context as it is; reach methods are not trained for.
TRAINED = ["pi", "ntk", "yarn", "sba", "harpe"]
TASKS = "niah_single_1,niah_multikey_1,vt,cwe"


class Run:
    """The programs, where output goes, and the table so far."""

    def __init__(self, args):
        self.args, self.rows = args, []
        os.makedirs(args.out, exist_ok=True)
        self.program = os.path.join(args.bin, "ropewalk")

    def path(self, name):
        return os.path.join(self.args.out, name)

    def row(self, part, what, figure):
        self.rows.append((part, what, figure))
        print(f"{time.strftime('%H:%M:%S')}  {part}  {what}: {figure}", file=sys.stderr, flush=True)

    def step(self, part, what, command, env=None):
        """The command's standard output, or None, and then a row has the last line of what it said."""
        name = self.path(f"{part}-{what}".replace(" ", "-").replace("/", "-"))
        try:
            with open(name + ".out", "w") as out, open(name + ".log", "w") as log:
                log.write("$ " + " ".join(command) + "\n")
                log.flush()
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                    timeout=self.args.limit, env={**os.environ, **(env or {})},
                )
        except subprocess.TimeoutExpired:
            self.row(part, what, f"not done in {self.args.limit} s")
            return None
        except OSError as e:
            self.row(part, what, f"failed: {e}")
            return None
        text = open(name + ".out").read()
        if done.returncode == 0:
            return text
        said = [line for line in (open(name + ".log").read() + text).splitlines() if line.strip()]
        self.row(part, what, f"failed ({done.returncode}): {said[-1].strip()}")
        return None

    def json(self, part, what, *arguments):
        """One command of ropewalk on the device, as its JSON object."""
        command = [self.program, *arguments, "--device", self.args.device, "--json"]
        text = self.step(part, what, command)
        return None if text is None else json.loads(text)


def devices_memory():
    """MiB in use on the first NVIDIA card, if there is one."""
    if not shutil.which("nvidia-smi"):
        return None
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    said = subprocess.run(asked, capture_output=True, text=True).stdout.split()
    return int(said[0]) if said and said[0].isdigit() else None


class Peak(threading.Thread):
    """The most memory that the card has in use while this runs, looked at ten times a second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.over = devices_memory(), threading.Event()

    def run(self):
        while self.most is not None and not self.over.wait(0.1):
            self.most = max(self.most, devices_memory() or 0)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def random_model(run, shape, dtype):
    path = run.path(f"{shape}-{dtype}.gguf")
    if not os.path.exists(path):
        command = [run.program, "convert", "--random", shape, "--type", dtype, "-o", path]
        if run.step("0", f"{shape} {dtype}", command) is None:
            return None
    return path


def tests(run, tiny):
    found = run.json("1", "device", "bench", "-m", tiny, "-p", "32", "-n", "8", "-r", "1")
    if found is None:
        return False
    run.row("1", "device", f"{found['device']}; every operation runs there, or it is an error")
    if run.args.tests is None:
        run.row("1", "numerical tests", "not run: --tests names no program")
        return True
    env = {"ROPEWALK_TEST_DEVICE": run.args.device}
    text = run.step("1", "numerical tests", [run.args.tests, "--test-threads", "1", *run.args.only.split()], env)
    if text is not None:
        run.row("1", "numerical tests", [l for l in text.splitlines() if l.startswith("test result")][-1])
    return True


def speed(run, model, prompts, depths, n):
    label = os.path.basename(model)
    beside = ["--against", "libllama"] if run.args.libllama else []
    tests = [["-p", str(p), "-n", "0"] for p in prompts] + [["-p", "0", "-n", str(n), "-d", str(d)] for d in depths]
    for test in tests:
        what = f"{label} {' '.join(test)}"
        found = run.json("2", what, "bench", "-m", model, *test, "-r", "3", *beside)
        for r in found["results"] if found else []:
            ratio = "" if r["ratio"] is None else f", {r['ratio']:.2f} of libllama's"
            run.row("2", f"{label} {r['test']} {r['engine']}", f"{r['median_ts']:.1f} tokens/s{ratio}")


def methods(run, model, prompt, n):
    """Every method as a ratio to plain, one after another: a method that is refused costs the others nothing."""
    for method in METHODS:
        arguments = ["-p", str(prompt), "-n", str(n), "-r", "3", "--rope", "plain", "--rope", method]
        found = run.json("2", f"{method} beside plain", "bench", "-m", model, *arguments)
        for r in found["results"][1:] if found else []:
            if r["ratio"] is not None:
                run.row("2", f"{r['rope']} {r['test']}", f"{r['ratio']:.3f} of plain's")


def training(run, model, lengths, block, text):
    common = ["--rope", "yarn", "--ubatch", str(block)]
    plan = run.json("3", "plan", "finetune", "-m", model, *common, "--ctx", str(lengths[0]), "--plan-memory")
    if plan and plan["longest_ctx"]:
        run.row("3", "longest context that fits, planned", str(plan["longest_ctx"]))
        if run.args.longest:
            lengths = [*lengths, plan["longest_ctx"]]
    for ctx in lengths:
        plan = run.json("3", f"plan {ctx}", "finetune", "-m", model, *common, "--ctx", str(ctx), "--plan-memory")
        out = run.path(f"train-{ctx}.gguf")
        for old in [f for f in os.listdir(run.args.out) if f.startswith(f"train-{ctx}.")]:
            path = run.path(old)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        before = devices_memory() or 0
        with Peak() as peak:
            done = run.json(
                "3", f"train {ctx}", "finetune", "-m", model, "-d", text, "-o", out, *common,
                "--ctx", str(ctx), "--steps", "2",
            )
        if done is None:
            continue
        planned = f"{plan['device'] / 2**20:.1f} MiB planned" if plan else "no plan"
        used = "not seen" if peak.most is None else f"{peak.most - before} MiB"
        run.row("3", f"train {ctx}", f"{done['tokens_per_s']:.1f} tokens/s; device memory {used}, {planned}; loss {done['loss']:.3f}")


def extension(run, model, text, heldout, ctx, longer, steps, tasks, samples):
    """One model under every method: as it is, and trained under one recipe where that is made for training."""
    for method in ["plain", *METHODS]:
        name, adapter = method, []
        if method in TRAINED:
            out = run.path(f"extended-{method}.gguf")
            for old in [f for f in os.listdir(run.args.out) if f.startswith(f"extended-{method}.")]:
                path = run.path(old)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            more = ["--rope", method, "--ctx", str(ctx), "--steps", str(steps)]
            if run.json("4", f"{method} trained", "finetune", "-m", model, "-d", text, "-o", out, *more):
                name, adapter = f"{method}, {steps} steps", ["--lora", out]
        for n in [ctx, longer]:
            rope = [] if adapter else ["--rope", method]
            arguments = ["-m", model, *adapter, *rope]
            found = run.json("4", f"{method} perplexity {n}", "perplexity", *arguments, "-f", heldout, "--ctx", str(n), "--stride", str(max(n // 8, 16)))
            if found:
                run.row("4", f"{name}, perplexity at {n}", f"{found['results'][0]['ppl']:.3f}")
            found = run.json("4", f"{method} passkey {n}", "eval", "passkey", *arguments, "--lengths", str(max(n, 300)), "--samples", str(samples))
            if found:
                run.row("4", f"{name}, passkey at {max(n, 300)}", f"{found['results'][0]['accuracy']:.2f}")
            found = tasks and run.json("4", f"{method} RULER {n}", "eval", tasks, *arguments, "--lengths", str(n), "-n", str(samples))
            for row in found["results"] if found else []:
                run.row("4", f"{name}, {row['task']} at {n}", f"{row['score']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="as --device of ropewalk: cuda:0, vulkan:0")
    parser.add_argument("--dry", action="store_true", help="tiny models and short texts")
    parser.add_argument("--bin", default="target/release", help="folder with ropewalk")
    parser.add_argument("--tests", help="the test program: target/release/deps/device-*")
    parser.add_argument("--only", default="", help="names of tests to run, instead of all")
    parser.add_argument("--model", help="the model of parts 2 and 4")
    parser.add_argument("--text", default="models/texts/train", help="texts to train on")
    parser.add_argument("--heldout", default="models/texts/essays.txt", help="a text to measure on")
    parser.add_argument("--out", default="out/device-table", help="folder for models, output and the table")
    parser.add_argument("--limit", type=int, default=900, help="seconds for a step")
    parser.add_argument("--libllama", action="store_true", help="measure libllama beside, which gives every layer to the first GPU")
    parser.add_argument("--longest", action="store_true", help="train at the longest context that fits, too")
    args = parser.parse_args()
    run = Run(args)
    tiny = random_model(run, "llama-tiny", "q8_0")
    if tiny is not None and tests(run, tiny):
        if args.dry:
            folder = run.path("texts")
            os.makedirs(folder, exist_ok=True)
            for i in range(5):
                words = " ".join(["sea", "rope", "walk", "hemp", "tar"][(n * (i + 2) + n // 7) % 5] for n in range(300))
                open(os.path.join(folder, f"{i}.txt"), "w").write(f"{i}. {words}\n")
            # Two hundred tokens or so: perplexity reads a window for every sixteen of them.
            text = run.path("heldout.txt")
            open(text, "w").write(" ".join(["sea", "rope", "walk", "hemp", "tar"][(n * 3 + n // 7) % 5] for n in range(45)))
            speed(run, tiny, [32, 64], [0, 32], 8)
            methods(run, tiny, 64, 4)
            training(run, tiny, [48, 96], 48, folder)
            extension(run, tiny, folder, text, 64, 96, 2, "", 1)
        else:
            large = random_model(run, "llama-8b", "q4_k")
            for model in [m for m in [args.model, large] if m]:
                speed(run, model, [512, 4096, 32768, 131072], [0, 8192, 32768, 131072], 128)
            if args.model:
                methods(run, args.model, 4096, 64)
            if large:
                training(run, large, [131072, 342733], 4096, args.text)
            if args.model:
                extension(run, args.model, args.text, args.heldout, 32768, 40960, 200, TASKS, 20)
    width = max((len(what) for _, what, _ in run.rows), default=0)
    table = "".join(f"{part}  {what:{width}}  {figure}\n" for part, what, figure in run.rows)
    with open(run.path("table.txt"), "w") as out:
        out.write(table)
    sys.stdout.write(table)
    failed = [what for _, what, figure in run.rows if figure.startswith(("failed", "not done"))]
    sys.exit(1 if failed or not run.rows else 0)


if __name__ == "__main__":
    main()
