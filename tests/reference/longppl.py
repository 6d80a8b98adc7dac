#!/usr/bin/env python3
"""What the package longppl 0.3.0 finds for models whose log-probabilities are given.

    python3 -m venv target/reference
    target/reference/bin/pip install numpy
    target/reference/bin/pip download --no-deps -d target/reference/wheels longppl==0.3.0
    target/reference/bin/python tests/reference/longppl.py target/reference/wheels/longppl-0.3.0-py3-none-any.whl

Writes longppl.json beside itself. The package's own functions run, unchanged: `compute_longppl`, and in it
`find_key_token`, `merge_intervals`, `cal_overlap`. What they take of PyTorch is so little that NumPy stands in
for it here, in float64; cross-entropy of rows that are log-probabilities already is the negative of one entry.
`transformers` is imported by the package and not used.
"""

import json
import pathlib
import random
import sys
import types

import numpy as np


class Tensor(np.ndarray):
    """An array with the methods that the package calls."""

    device = "cpu"

    def size(self, axis):
        return self.shape[axis]

    def to(self, _):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


def tensor(values):
    return np.asarray(values).view(Tensor)


class NoGrad:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class CrossEntropyLoss:
    def __init__(self, reduction):
        assert reduction == "none"

    def __call__(self, log_probs, targets):
        return tensor(-np.asarray(log_probs)[np.arange(len(targets)), np.asarray(targets)])


def package(wheel):
    torch = types.ModuleType("torch")
    torch.tensor, torch.float, torch.no_grad = tensor, float, NoGrad
    torch.cat = lambda parts: tensor(np.concatenate(parts))
    torch.stack = lambda parts, dim: tensor(np.stack(parts, axis=dim))
    torch.logical_and = lambda a, b: tensor(np.logical_and(a, b))
    torch.nn = types.SimpleNamespace(CrossEntropyLoss=CrossEntropyLoss)
    sys.modules["torch"], sys.modules["transformers"] = torch, types.ModuleType("transformers")
    sys.path.insert(0, wheel)
    from longppl import longppl

    return longppl


BOS = -1


def nll(tokens, i):
    """Nats, in eighths. Low where the pair of this byte and the one before has come before, so that far pairs make key
    tokens; tests/eval/longppl.rs has the same."""
    pair = (tokens[i - 1], tokens[i])
    seen = next((j for j in range(i - 1, 0, -1) if (tokens[j - 1], tokens[j]) == pair), None)
    if seen is None:
        return 2.5 + (tokens[i] * 5 + tokens[i - 1]) % 40 / 8
    return (tokens[i] * 7 + tokens[i - 1] * 3 + (i - seen) % 5) % 28 / 8


class Model:
    device = "cpu"

    def __call__(self, input_ids):
        tokens = [int(t) for t in input_ids[0]]
        rows = np.full((len(tokens), 256), -1e9)
        for i in range(1, len(tokens)):
            rows[i - 1, tokens[i]] = -nll(tokens, i)
        return types.SimpleNamespace(logits=rows[None])


class Tokenizer:
    """Bytes. As byte-level tokenizers do, it gives every byte the place of the character it belongs to."""

    def __init__(self, add_bos):
        self.add_bos = add_bos

    def __call__(self, text, return_tensors, return_offsets_mapping, add_special_tokens=True):
        assert return_tensors == "pt" and return_offsets_mapping
        ids, offsets = [], []
        if self.add_bos and add_special_tokens:
            ids, offsets = [BOS], [(0, 0)]
        for i, char in enumerate(text):
            for byte in char.encode():
                ids.append(byte)
                offsets.append((i, i + 1))
        return {"input_ids": tensor([ids]), "offset_mapping": tensor([offsets])}


def text(seed, n, alphabet):
    """Words that come again at all distances."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(alphabet, k=rng.randint(2, 6))) for _ in range(60)]
    out = ""
    while len(out) < n:
        out += rng.choice(words[: 4 + len(out) * 56 // n]) + " "
    return out[:n]


# seed, characters, alphabet, trunc_len, sliding_window, alpha, beta, BOS
CASES = [
    (1, 900, "abcdefghijklm", 100, 40, 2, -2, False),
    (1, 899, "abcdefghijklm", 100, 40, 2, -2, True),
    (2, 700, "abcdeéüñ日本語😀", 90, 32, 2, -2, False),
    (2, 700, "abcdeéüñ日本語😀", 90, 32, 2, -2, True),
    (3, 600, "ropewalk é", 50, 17, 1.5, -1.25, True),
    (4, 500, "xyzäöü", 64, 64, 0.5, -3, False),
    (5, 400, "abc", 398, 10, 2, -2, False),
    (5, 400, "abcdefgh", 290, 99, 2, -2, True),
    (6, 120, "abcdefgh", 200, 10, 2, -2, False),
]


def main():
    longppl = package(sys.argv[1])
    model, cases = Model(), []
    for seed, n, alphabet, trunc_len, sliding_window, alpha, beta, bos in CASES:
        what, tokenizer = text(seed, n, alphabet), Tokenizer(bos)
        found = longppl.compute_longppl(
            what, model, model, tokenizer, tokenizer,
            trunc_len=trunc_len, sliding_window=sliding_window, alpha=alpha, beta=beta,
        )  # fmt: skip
        cases.append({
            "text": what, "trunc_len": trunc_len, "sliding_window": sliding_window, "alpha": alpha, "beta": beta,
            "bos": bos, **{k: v if v is None else v.item() if hasattr(v, "item") else v for k, v in found.items()},
        })  # fmt: skip
        print({k: v for k, v in cases[-1].items() if k != "text"})
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"package": "longppl 0.3.0", "cases": cases}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
