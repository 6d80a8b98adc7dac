#!/usr/bin/env python3
"""What the loop over `generate` costs in Python: tokens per second against those of the program `ropewalk run`.

    make wheel && pip install target/wheels/ropewalk-*.whl
    python benches/python.py models/SmolLM2-135M-Instruct.Q4_1.gguf

Both generate the same tokens after the same prompt, with the same settings, in turns: first one, then the other, and the other
way around in the next turn. A turn gives one ratio. The result is the median ratio, and the interval of the order statistics that
contains the true median with 95% probability.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import ropewalk
from ropewalk._program import find

PROMPT = "The rope walk was a long shed in which hemp was spun into rope. Once upon a time"


def of_program(args: argparse.Namespace) -> tuple[float, list[int]]:
    """Seconds of the loop in the program, and its tokens."""
    command = [str(find()), "run", "-m", args.model, "-p", PROMPT, "-n", str(args.n), "--ctx", str(args.ctx)]
    command += ["--rope", "plain", "--temp", "0", "--math", args.math, "-t", str(args.threads)]
    command += ["--device", "cpu", "--ignore-eos", "--json", "-q"]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return said["timings"]["decode_s"], said["tokens"]


def of_python(args: argparse.Namespace, model: ropewalk.Model) -> tuple[float, list[int]]:
    """Seconds of the loop in Python, and its tokens."""
    session = model.session(args.ctx, rope="plain", math=args.math, n_threads=args.threads)
    # The program does not count reading the prompt, either.
    prompt = model.tokenize(PROMPT)
    session.nll(prompt)
    started = time.perf_counter()
    text = ""
    pieces = session.generate(prompt, args.n, ignore_eos=True)
    for piece in pieces:
        text += piece
    return time.perf_counter() - started, pieces.tokens


def interval(n: int) -> int:
    """How many of `n` sorted values are outside of a 95% interval of the median, on each side."""
    below, outside, ways = 0.0, 0, 1
    for k in range(n // 2):
        below += ways / 2**n
        if below > 0.025:
            break
        outside = k + 1
        ways = ways * (n - k) // (k + 1)
    return outside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("-n", type=int, default=256, help="tokens to generate in a turn")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--math", default="int8", help="rounding, as `ropewalk run --math`")
    parser.add_argument("--turns", type=int, default=21)
    args = parser.parse_args()
    model = ropewalk.Model(args.model, device="cpu")
    of_python(args, model)
    ratios, rates = [], []
    for turn in range(args.turns):
        if turn % 2 == 0:
            (theirs, expected), (ours, tokens) = of_program(args), of_python(args, model)
        else:
            (ours, tokens), (theirs, expected) = of_python(args, model), of_program(args)
        if tokens != expected:
            sys.exit(f"turn {turn + 1}: expected the program's tokens, found others")
        ratios.append(ours / theirs)
        rates.append((args.n / theirs, args.n / ours))
        print(f"turn {turn + 1}: program {rates[-1][0]:.1f} tokens/s, Python {rates[-1][1]:.1f}", flush=True)
    ratios.sort()
    outside = interval(len(ratios))
    percent = [100 * (r - 1) for r in (ratios[len(ratios) // 2], ratios[outside], ratios[-1 - outside])]
    best = [max(rate[i] for rate in rates) for i in (0, 1)]
    print(f"best: program {best[0]:.1f} tokens/s, Python {best[1]:.1f}")
    print("overhead of the loop in Python: {:+.2f} %, 95% interval {:+.2f} to {:+.2f} %".format(*percent))


if __name__ == "__main__":
    main()
