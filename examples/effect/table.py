#!/usr/bin/env python3
"""Tables of several studies as Markdown: for each method the mean over seeds, and the lowest and highest of them.

    table.py STUDY...      folders of `ropewalk study`, one for each seed, and one for what is not trained
"""
import json
import math
import pathlib
import sys
import tomllib

PARTS = [(0, 512), (512, 1024), (1024, 2048), (2048, 4096)]
found, methods, lengths = {}, {}, set()
for folder in sys.argv[1:]:
    plan = tomllib.loads(pathlib.Path(folder, "plan.toml").read_text())
    methods.update((method["name"], None) for method in plan["methods"])
    for file in pathlib.Path(folder, "cells").glob("*.json"):
        cell = json.loads(file.read_text())
        key, result = cell["cell"], cell["state"].get("done")
        if result is None:
            print(f"{key}: {cell['state']}", file=sys.stderr)
            continue
        lengths.add(key["length"])
        found.setdefault((key["task"], key["length"], key["method"]), []).append(result["value"])
        if key["task"] == "perplexity" and key["length"] == PARTS[-1][1]:
            for start, end in PARTS:
                own = [b for b in result["buckets"] if start <= b["start"] and b["end"] <= end]
                nll = sum(b["nll"] * b["tokens"] for b in own) / max(1, sum(b["tokens"] for b in own))
                found.setdefault(("by position", (start, end), key["method"]), []).append(math.exp(nll))


def show(values, digits):
    if not values:
        return ""
    text = f"{sum(values) / len(values):.{digits}f}"
    if len(values) > 1 and max(values) > min(values):
        text += f" ({min(values):.{digits}f}-{max(values):.{digits}f})"
    return text


def table(title, task, columns, names, digits):
    print(f"\n{title}\n\n| method | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
    for method in methods:
        print(f"| {method} | " + " | ".join(show(found.get((task, c, method)), digits) for c in columns) + " |")


def row(name, cells):
    print(f"| {name} | " + " | ".join(cells) + " |")


def table(names, cells):
    row("method", names)
    row("---", ["---"] * len(names))
    for method in methods:
        row(method, cells(method))


lengths = sorted(lengths)
tasks = sorted({task for task, _, _ in found} - {"perplexity", "by position"})
print("Perplexity by position in windows of 4,096 tokens\n")
table([f"{a:,}-{b:,}" for a, b in PARTS], lambda m: [show(found.get(("by position", p, m), []), 1) for p in PARTS])
print(f"\nPer cent right at {', '.join(f'{n:,}' for n in lengths)} tokens, in brackets the seeds at the last of these\n")
table(
    tasks,
    lambda m: [
        " ".join(show(found.get((task, n, m), []), 0).split(" ")[0] for n in lengths[:-1])
        + " "
        + show(found.get((task, lengths[-1], m), []), 0)
        for task in tasks
    ],
)
