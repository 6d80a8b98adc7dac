#!/usr/bin/env python3
"""Loss, LoRA gradients and a loss curve of the default model, by automatic differentiation in float64.

Writes training.json and training.bin beside itself. See README.md.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from bpe import Bpe
from llama_jax import NORMS, Frozen, make_loss
from seeded import BOUND, TARGETS, signs

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "models/texts/essays.txt"
RANK, ALPHA = 8, 16.0
N_TOKENS = 256
ATTENTION = TARGETS[:4]
# Ten to fifty times the model's own base.
HARPE = (1e6, 2.5e6, 5e6)
HARPE_SPEC = "harpe:bases=1000000/2500000/5000000"
# name, ropewalk's spec, bases, targets
CASES = [
    ("plain-attention", "plain", None, ATTENTION),
    ("plain-all", "plain", None, TARGETS),
    ("harpe-attention", HARPE_SPEC, HARPE, ATTENTION),
    ("harpe-all", HARPE_SPEC, HARPE, TARGETS),
]
# Layers whose gradients are stored whole.
WHOLE = (0, 14, 29)
N_SIGNS, N_SAMPLES = 8, 8

N_STEPS, STEP_TOKENS = 50, 128
LR, BETA1, BETA2, EPS, CLIP = 1e-3, 0.9, 0.95, 1e-8, 1.0


class Blob:
    """training.bin: arrays as f16, each divided by its largest magnitude, one behind the other."""

    def __init__(self):
        self.parts, self.at = [], 0

    def add(self, x):
        scale = float(np.abs(x).max())
        raw = (x / scale).astype("<f2").tobytes()
        entry = {"at": self.at, "scale": short(scale)}
        self.parts.append(raw)
        self.at += len(raw)
        return entry


def short(x):
    return float(f"{float(x):.9g}")


def sample_indices(n):
    return (2 * np.arange(N_SAMPLES) + 1) * n // (2 * N_SAMPLES)


class Sketch:
    """What is recorded of a gradient, from its elements in the order of the file."""

    def __init__(self, n_max):
        self.signs = np.stack([signs(k, n_max) for k in range(N_SIGNS)])

    def of(self, name, grad):
        flat = np.asarray(grad).reshape(-1)
        return {
            "name": name,
            "shape": list(grad.shape[::-1]),
            "norm": short(np.linalg.norm(flat)),
            "signs": [short(x) for x in self.signs[:, : flat.size] @ flat],
            "samples": [short(x) for x in flat[sample_indices(flat.size)]],
        }


def embedding_rows(tokens):
    """The first and the last token, the commonest, and two that the text does not have."""
    commonest = np.bincount(tokens).argmax()
    absent = [t for t in (1000, 40000) if t not in tokens]
    return sorted({int(t) for t in (tokens[0], tokens[-1], commonest, *absent)})


def gradients(model, grads, targets, tokens, sketch, blob):
    """An entry for each trained tensor of the file, with its name there or in an adapter file."""
    out = []

    def add(name, grad, whole):
        entry = sketch.of(name, grad)
        if whole:
            entry["whole"] = blob.add(grad)
        out.append(entry)
        return entry

    for n in range(model.n_layer):
        for t in targets:
            for i, side in enumerate("ab"):
                add(f"blk.{n}.{t}.weight.lora_{side}", np.asarray(grads["lora"][t][i][n]), n in WHOLE)
        for t in NORMS:
            add(f"blk.{n}.{t}.weight", np.asarray(grads[t][n]), n in WHOLE)
    add("output_norm.weight", np.asarray(grads["output_norm"]), True)
    parts = [np.asarray(grads["embd_in"]), np.asarray(grads["embd_out"])]
    total = parts[0] + parts[1]
    entry = add("token_embd.weight", total, False)
    entry["norm_input"], entry["norm_output"] = (short(np.linalg.norm(p)) for p in parts)
    entry["rows"] = [
        {"row": r, "norm": short(np.linalg.norm(total[r])), **blob.add(total[r])}
        for r in embedding_rows(tokens)
    ]
    return out


def run_cases(model, tokens, only, blob):
    sketch = Sketch(model.embd.size)
    graded = jax.jit(jax.value_and_grad(make_loss(model, ALPHA / RANK)))
    plain = jax.jit(make_loss(model, 0.0))
    for name, spec, bases, targets in CASES:
        if only and only != name:
            continue
        start, theta = time.monotonic(), model.theta(bases)
        trained = model.trained(model.adapter(targets, RANK))
        loss, grads = graded(trained, model.linear, theta, tokens)
        entries = gradients(model, grads, targets, tokens, sketch, blob)
        base = float(plain(trained, model.linear, theta, tokens))
        line = f"{name:16} loss {float(loss):.12f}, without adapter {base:.12f}  ({time.monotonic() - start:.0f} s)"
        print(line, file=sys.stderr, flush=True)
        yield {
            "name": name, "spec": spec, "targets": list(targets), "loss": round(float(loss), 12),
            "base_loss": round(base, 12), "gradients": entries,
        }  # fmt: skip


def run_curve(model, ids):
    """AdamW as torch.optim.AdamW has it, after torch.nn.utils.clip_grad_norm_; decay 0."""
    loss = make_loss(model, ALPHA / RANK)

    @jax.jit
    def graded(lora, rest, linear, theta, tokens):
        return jax.value_and_grad(lambda a: loss({**rest, "lora": a}, linear, theta, tokens))(lora)

    lora = model.adapter(ATTENTION, RANK, b_zero=True)
    rest = {k: v for k, v in model.trained(None).items() if k != "lora"}
    frozen = jax.jit(make_loss(model, 0.0))
    leaves, tree = jax.tree.flatten(lora)
    m, v = [np.zeros_like(p) for p in leaves], [np.zeros_like(p) for p in leaves]
    losses, base_losses, norms = [], [], []
    for step in range(N_STEPS):
        tokens = ids[STEP_TOKENS * step : STEP_TOKENS * (step + 1) + 1]
        base_losses.append(
            round(float(frozen(model.trained(lora), model.linear, model.theta(None), tokens)), 10)
        )
        value, grads = graded(jax.tree.unflatten(tree, leaves), rest, model.linear, model.theta(None), tokens)
        grads = [np.asarray(g) for g in jax.tree.leaves(grads)]
        norm = np.sqrt(sum(float((g * g).sum()) for g in grads))
        factor = min(1.0, CLIP / (norm + 1e-6))
        for i, g in enumerate(g * factor for g in grads):
            m[i] = BETA1 * m[i] + (1 - BETA1) * g
            v[i] = BETA2 * v[i] + (1 - BETA2) * g * g
            root = np.sqrt(v[i] / (1 - BETA2 ** (step + 1))) + EPS
            leaves[i] = leaves[i] - LR * m[i] / (1 - BETA1 ** (step + 1)) / root
        losses.append(round(float(value), 10))
        norms.append(short(norm))
        line = (
            f"step {step + 1:2}: loss {losses[-1]:.8f}, untrained {base_losses[-1]:.8f}, gradient {norm:.5f}"
        )
        print(line, file=sys.stderr, flush=True)
    ends = jax.tree.unflatten(tree, leaves)
    total = {
        side: short(np.sqrt(sum((p[i] ** 2).sum() for p in ends.values()))) for i, side in enumerate("ab")
    }
    return {"losses": losses, "base_losses": base_losses, "gradient_norms": norms, "final_norms": total}


def check(model, ids):
    """The forward pass against the numpy model of attention.py and against ropewalk; gradients against differences."""
    from attention import Llama
    from methods import CASES as METHODS

    ok = True

    def same(what, here, there, bound):
        nonlocal ok
        off = abs(here / there - 1)
        ok &= off < bound
        print(f"{what}: {here:.12g} here, {there:.12g} there: {off:.1e}", flush=True)

    tokens = ids[:N_TOKENS]
    loss = jax.jit(make_loss(model, ALPHA / RANK))
    trained = model.trained(model.adapter(TARGETS, RANK))

    other, plain = Llama(ROOT / MODEL), next(c for c in METHODS if c.name == "plain")
    for n, w in enumerate(other.layers):
        for t in TARGETS:
            a, b = trained["lora"][t]
            w[t] = w[t] + ALPHA / RANK * b[n] @ a[n]
    here = float(loss(trained, model.linear, model.theta(None), tokens))
    same("loss, adapter merged, numpy", here, float(other.nll(tokens, plain).mean()), 1e-12)
    del other

    graded = jax.jit(jax.value_and_grad(make_loss(model, ALPHA / RANK)))
    _, grads = graded(trained, model.linear, model.theta(HARPE), tokens)
    leaves, tree = jax.tree.flatten(trained)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(trained)]
    for i, g in enumerate(jax.tree.leaves(grads)):
        direction = np.asarray(g) / np.linalg.norm(g) + signs(0, g.size).reshape(g.shape) / np.sqrt(g.size)
        slope = float((np.asarray(g) * direction).sum())
        ends = []
        for step in (1e-5, -1e-5):
            moved = jax.tree.unflatten(tree, leaves[:i] + [leaves[i] + step * direction] + leaves[i + 1 :])
            ends.append(float(loss(moved, model.linear, model.theta(HARPE), tokens)))
        same(f"slope along {paths[i]}", slope, (ends[0] - ends[1]) / 2e-5, 1e-5)

    with tempfile.TemporaryDirectory() as folder:
        f32, cut = f"{folder}/f32.gguf", pathlib.Path(f"{folder}/text.txt")
        cut.write_bytes(Bpe(model.file.meta).decode(tokens))
        release = ROOT / "target/release"
        subprocess.run([release / "convert", "-q", "--type", "f32", ROOT / MODEL, "-o", f32], check=True)
        line = [release / "ropewalk", "perplexity", "-m", f32, "-f", cut, "--ctx", str(N_TOKENS)]
        line += ["--rope", "plain", "--rope", HARPE_SPEC]
        line += "--protocol window --device cpu -t 1 --kv f32 --json -q".split()
        results = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)["results"]
    base = jax.jit(make_loss(model, 0.0))
    for r, bases in zip(results, (None, HARPE), strict=True):
        assert r["tokens"] == N_TOKENS - 1
        here = float(base(trained, model.linear, model.theta(bases), tokens))
        same(f"base loss, ropewalk {r['rope']}", here, float(np.log(r["ppl"])), 1e-5)
    return ok


def write(report):
    """One line for each entry: small, and a changed figure is one changed line."""
    lines = []
    for key, value in report.items():
        if key == "cases":
            blocks = []
            for case in value:
                head = {k: v for k, v in case.items() if k != "gradients"}
                rows = ",\n".join("  " + json.dumps(e, separators=(",", ":")) for e in case["gradients"])
                blocks.append(f' {json.dumps(head)[:-1]}, "gradients": [\n{rows}\n ]}}')
            lines.append('"cases": [\n' + ",\n".join(blocks) + "\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    (HERE / "training.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = "compare with attention.py, with differences and with target/release/ropewalk; write nothing"
    parser.add_argument("--check", action="store_true", help=what)
    parser.add_argument(
        "--only", metavar="NAME", help="print one case without its gradients, or `curve`; write nothing"
    )
    args = parser.parse_args()
    names = [c[0] for c in CASES] + ["curve"]
    if args.only and args.only not in names:
        parser.error(f"no case {args.only!r}; there are {', '.join(names)}")
    model = Frozen(ROOT / MODEL)
    n_ids = N_STEPS * STEP_TOKENS + 1
    # Eight bytes a token are more than English takes; the cut is far behind the last of them.
    text = (ROOT / TEXT).read_bytes()[: 8 * n_ids].decode("utf-8", errors="ignore")
    ids = np.array(Bpe(model.file.meta).encode(text)[:n_ids])
    assert len(ids) == n_ids
    if args.check:
        sys.exit(0 if check(model, ids) else "not the same: see above")
    if args.only == "curve":
        print(json.dumps(run_curve(model, ids)))
        return
    blob = Blob()
    cases = list(run_cases(model, ids[:N_TOKENS], args.only, blob))
    if args.only:
        print(json.dumps({k: v for k, v in cases[0].items() if k != "gradients"}))
        return
    settings = {
        "lr": LR, "beta1": BETA1, "beta2": BETA2, "eps": EPS, "weight_decay": 0.0, "clip": CLIP,
        "steps": N_STEPS, "tokens_per_step": STEP_TOKENS, "targets": ATTENTION,
    }  # fmt: skip
    write({
        "model": pathlib.Path(MODEL).name,
        "model_sha256": hashlib.sha256((ROOT / MODEL).read_bytes()).hexdigest(),
        "text": pathlib.Path(TEXT).name,
        "jax": jax.__version__,
        "rank": RANK,
        "alpha": ALPHA,
        "bound": BOUND,
        "n_tokens": N_TOKENS,
        "tokens": ids.tolist(),
        "cases": cases,
        "curve": {**settings, **run_curve(model, ids)},
    })  # fmt: skip
    (HERE / "training.bin").write_bytes(b"".join(blob.parts))


if __name__ == "__main__":
    main()
