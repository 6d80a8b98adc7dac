#!/usr/bin/env python3
"""Perplexity of the default model under attention-side methods, in float64, from each pair's distance.

Writes attention.json beside itself: token ids, one entry for each case with ropewalk's spec, and other
readings of the same papers. See README.md.
"""

import argparse
import hashlib
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import numpy as np

from bpe import Bpe
from decoding import WALKS
from gguf_weights import Gguf
from methods import CASES, L, VARIANTS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "models/texts/essays.txt"
N_TOKENS = 700
# More than enough for N_TOKENS; the cut is far behind the last of them.
N_BYTES = 4000


class Llama:
    """The llama architecture. Matrices are [out, in]; rotated are adjacent dimensions, as GGUF stores them."""

    def __init__(self, path):
        self.file = Gguf(path)
        meta = self.file.meta
        assert meta["general.architecture"] == "llama" and "output.weight" not in self.file.infos
        assert "rope_freqs.weight" not in self.file.infos and not [k for k in meta if ".rope.scaling" in k]
        self.n_layer = meta["llama.block_count"]
        self.n_head = meta["llama.attention.head_count"]
        self.n_head_kv = meta["llama.attention.head_count_kv"]
        self.eps = meta["llama.attention.layer_norm_rms_epsilon"]
        self.d = meta["llama.embedding_length"] // self.n_head
        assert meta["llama.rope.dimension_count"] == self.d
        self.theta = float(meta["llama.rope.freq_base"]) ** (-2.0 * np.arange(self.d // 2) / self.d)
        self.embd = self.file.tensor("token_embd.weight")
        self.norm = self.file.tensor("output_norm.weight")
        names = "attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down".split()
        self.layers = [
            {name: self.file.tensor(f"blk.{n}.{name}.weight") for name in names} for n in range(self.n_layer)
        ]

    def rms(self, x, weight):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * weight

    def attend(self, q, k, v, turn, distance, visible, scale):
        """softmax over the visible keys of scale_i q_i . R(distance_ij) k_j / sqrt(d), times v.

        q [n, n_head_kv, group, d/2] and k [n, n_head_kv, d/2] complex, a pair of dimensions each, not
        rotated; v [n, n_head_kv, d]. turn[r] is exp(sqrt(-1) r theta).
        """
        n = len(q)
        out = np.empty((n, self.n_head_kv, q.shape[2], self.d))
        # Re(q conj(k) turn), pair by pair: what q rotated to p and k rotated to p - r give, for any p.
        k = np.conj(k)
        q = np.conj(q).view(np.float64)
        for i in range(n):
            keys = np.flatnonzero(visible[i])
            turned = (k[keys] * turn[distance[i, keys], None, :]).view(np.float64)
            score = q[i] @ turned.transpose(1, 2, 0) * (scale[i] / math.sqrt(self.d))
            p = np.exp(score - score.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            out[i] = p @ v[keys].transpose(1, 0, 2)
        return out.reshape(n, -1)

    def nll(self, tokens, case):
        """-ln p of each token but the first, given those before it."""
        n = len(tokens)
        at = np.arange(n)
        distance, visible = case.pairs(at[:, None], at[None, :])
        assert visible.shape == (n, n) and visible.diagonal().all() and not np.triu(visible, 1).any()
        distance = np.where(visible, distance, 0)
        assert distance.min() >= 0 and (distance.diagonal() == 0).all()
        turn = np.exp(1j * np.outer(np.arange(distance.max() + 1), self.theta * case.angle))
        scale = np.broadcast_to(case.score(at) if callable(case.score) else case.score, n)
        x = self.embd[tokens]
        for w in self.layers:
            h = self.rms(x, w["attn_norm"])
            pairs = lambda y: np.ascontiguousarray(y).view(np.complex128)
            q = pairs(h @ w["attn_q"].T).reshape(n, self.n_head_kv, -1, self.d // 2)
            k = pairs(h @ w["attn_k"].T).reshape(n, self.n_head_kv, self.d // 2)
            v = (h @ w["attn_v"].T).reshape(n, self.n_head_kv, self.d)
            x = x + self.attend(q, k, v, turn, distance, visible, scale) @ w["attn_output"].T
            h = self.rms(x, w["ffn_norm"])
            gate = h @ w["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        logits = self.rms(x[:-1], self.norm) @ self.embd.T
        top = logits.max(axis=-1)
        log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))
        return log_sum - logits[at[:-1], tokens[1:]]


def figures(nll):
    """Mean, perplexity, and means by the hundred of the predicted token's position: where two runs part."""
    hundreds = [nll[max(0, a - 1) : a + 99].mean() for a in range(0, len(nll), 100)]
    return {
        "nll": round(float(nll.mean()), 10),
        "ppl": round(float(np.exp(nll.mean())), 8),
        "nll_by_100": [round(float(x), 8) for x in hundreds],
    }


def measure(model, tokens, case):
    start = time.monotonic()
    result = figures(model.nll(tokens, case))
    seconds = time.monotonic() - start
    line = f"{case.name:22} nll {result['nll']:.10f}  ppl {result['ppl']:.6f}  ({seconds:.0f} s)"
    print(line, file=sys.stderr)
    return result


def check_pairs(n):
    """Every matrix of distances that decoding.py can also find."""
    at = np.arange(n)
    cases = {c.name: c for c in CASES + VARIANTS}
    for name, walk in WALKS.items():
        distance, visible = cases[name].pairs(at[:, None], at[None, :])
        for i, sees in enumerate(walk(n)):
            keys = np.flatnonzero(visible[i])
            assert dict(zip(keys.tolist(), distance[i, keys].tolist())) == sees, f"{name}: query {i}"
        print(f"{name}: the same {int(visible.sum())} pairs, decoded token by token")


def check(model, tokens):
    """Pairs are as decoded, ids spell the text, and ropewalk finds the same in the model written out in F32."""
    check_pairs(len(tokens))
    text = (ROOT / TEXT).read_bytes()[:N_BYTES]
    prefix = Bpe(model.file.meta).decode(tokens)
    assert text.startswith(prefix), "the ids do not spell the text"
    known = [c for c in CASES if c.name in ("plain", "pi")]
    specs = [w for c in known for w in ("--rope", c.spec)]
    with tempfile.TemporaryDirectory() as folder:
        f32, cut = f"{folder}/f32.gguf", f"{folder}/text.txt"
        pathlib.Path(cut).write_bytes(text)
        release = ROOT / "target/release"
        subprocess.run([release / "convert", "-q", "--type", "f32", ROOT / MODEL, "-o", f32], check=True)
        line = [release / "ropewalk", "perplexity", "-m", f32, "-f", cut, "--ctx", str(N_TOKENS), *specs]
        line += "--protocol window --device cpu -t 1 --kv f32 --json -q".split()
        reply = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    n_text = len(Bpe(model.file.meta).encode(text.decode("utf-8")))
    assert reply["document_tokens"] == n_text, "the text has another number of tokens there"
    ok = True
    for case, r in zip(known, reply["results"], strict=True):
        assert r["rope"].startswith(case.spec), f"asked for {case.spec}, got {r['rope']}"
        ours = measure(model, tokens, case)["ppl"]
        off = r["ppl"] / ours - 1
        ok &= abs(off) < 1e-3 and r["tokens"] == N_TOKENS - 1
        print(f"{case.spec}: {ours:.6f} here, {r['ppl']:.6f} by ropewalk: {off:+.1e}")
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = "compare pairs with decoding.py, plain and pi with target/release/ropewalk; write nothing"
    parser.add_argument("--check", action="store_true", help=what)
    parser.add_argument("--only", metavar="NAME", help="print this case or variant; write nothing")
    args = parser.parse_args()
    model = Llama(ROOT / MODEL)
    text = (ROOT / TEXT).read_bytes()[:N_BYTES].decode("utf-8")
    tokens = np.array(Bpe(model.file.meta).encode(text)[:N_TOKENS])
    assert len(tokens) == N_TOKENS
    if args.check:
        sys.exit(0 if check(model, tokens) else "not the same: see above")
    if args.only:
        chosen = [c for c in CASES + VARIANTS if c.name == args.only]
        if not chosen:
            parser.error(f"no case {args.only!r}; there are {', '.join(c.name for c in CASES + VARIANTS)}")
        print(json.dumps(measure(model, tokens, chosen[0])))
        return
    report = {
        "model": pathlib.Path(MODEL).name,
        "model_sha256": hashlib.sha256((ROOT / MODEL).read_bytes()).hexdigest(),
        "text": pathlib.Path(TEXT).name,
        "numpy": np.__version__,
        "original": L,
        "tokens": tokens.tolist(),
        "cases": [{"name": c.name, "spec": c.spec, **measure(model, tokens, c)} for c in CASES],
        "variants": [
            {"name": c.name, "of": c.of, "reading": c.reading, **measure(model, tokens, c)} for c in VARIANTS
        ],
    }
    # One line for each entry: small, and a changed figure is one changed line.
    lines = []
    for key, value in report.items():
        if key in ("cases", "variants"):
            rows = ",\n".join("  " + json.dumps(row) for row in value)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    (HERE / "attention.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
