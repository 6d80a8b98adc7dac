"""Samples of Untie the Knots as the released class makes them, with the draws they were made by.

    python utk.py gpt_dataset_utk.py > ../fixtures/utk.json

The file is that of github.com/rgtjf/Untie-the-Knots (21736a5). It needs NumPy; Megatron and PyTorch, of which the
class uses little, are stood in for. Its last document with several chunks is left out where labels are on: the
list of that document's labels is the one thing that is done otherwise here (see src/data/transform/utk.rs).
"""

import importlib.util
import json
import sys
import types

import numpy as np

EOS, KNOTS, MARKS = 266, [256, 257, 258, 259], [260, 261, 262, 263, 264]


class Array(np.ndarray):
    def long(self):
        return self

    def contiguous(self):
        return self


def stand_in():
    torch = types.ModuleType("torch")
    torch.from_numpy = lambda a: np.array(a).view(Array)
    torch.any, torch.Tensor = np.any, np.ndarray
    gpt = types.ModuleType("megatron.core.datasets.gpt_dataset")
    gpt.GPTDataset = type("GPTDataset", (), {})
    gpt.GPTDatasetConfig = type("GPTDatasetConfig", (), {})

    def masks(tokens, eod, reset_position_ids, reset_attention_mask, eod_mask_loss, create_attention_mask):
        loss_mask = np.ones(tokens.shape[0])
        loss_mask[tokens == eod] = 0.0
        return None, loss_mask, None

    gpt._get_ltor_masks_and_position_ids = masks
    for name in ["megatron", "megatron.core", "megatron.core.datasets"]:
        sys.modules[name] = types.ModuleType(name)
    sys.modules.update({"torch": torch, gpt.__name__: gpt})


class Recorder:
    """A generator that keeps what was drawn."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.chunks, self.cuts, self.order, self.labels = [], [], None, []

    def choice(self, of, size=None, p=None, replace=True):
        drawn = self.rng.choice(of, size, p=p, replace=replace)
        if isinstance(of, range):
            self.cuts[-1] = sorted(drawn.tolist())
        elif isinstance(of, int):
            self.chunks.append(int(drawn[0]) + 1)
            self.cuts.append(None)
        elif isinstance(of[0], str):
            self.labels.append("".join(drawn))
        return drawn

    def shuffle(self, array):
        self.rng.shuffle(array)
        self.order = array.tolist()


def main():
    stand_in()
    spec = importlib.util.spec_from_file_location("utk", sys.argv[1])
    utk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utk)
    draws, cases, seed = np.random.default_rng(1), [], 0
    while len(cases) < 48:
        seed += 1
        fixed = seed % 12 == 0
        n = 2600 if fixed else int(draws.integers(10, 90))
        tokens = draws.integers(0, 256, n)
        tokens[draws.random(n) < (0.002 if fixed else 0.08)] = EOS
        order, random, backtrace = (bool(draws.integers(2)) for _ in range(3))
        probabilities = [0, 0, 0, 1.0] if fixed else [[0.2, 0.4, 0.4], [0, 0, 1.0], [1.0, 0, 0]][seed % 3]
        recorder = Recorder(seed)
        utk.create_rng_with_seed_and_idx = lambda *_: recorder
        dataset = utk.GPTDatasetUtK.__new__(utk.GPTDatasetUtK)
        dataset._query_document_sample_shuffle_indices = lambda _: (tokens.copy(), None)
        dataset.config = types.SimpleNamespace(
            tokenizer=types.SimpleNamespace(eod=EOS, vocab_size=268, tokenize=lambda text: list(text.encode())),
            chunk_tokens=KNOTS, sort_tokens=MARKS, corruption_rng_seed=47, use_length_sampler=random,
            chunk_probs_cfg=([1.0], [probabilities]), skywork_interleave=False, preserve_partial_order=order,
            add_sort_task=backtrace, reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=True,
            create_attention_mask=False,
        )
        item = dataset[0]
        ends = [i + 1 for i in range(n) if tokens[i] == EOS]
        bounds = [0] + ends + ([n] if not ends or ends[-1] != n else [])
        cuts = []
        for (start, end), count, drawn in zip(zip(bounds, bounds[1:]), recorder.chunks, recorder.cuts):
            length = end - start
            if count == 4:
                drawn = list(range(1024, length, 1024))
            elif length < count:
                drawn = []
            elif drawn is None:
                drawn = [length // count * k for k in range(1, count)]
            cuts.append(drawn)
        if backtrace and len(cuts[-1]) > 0:
            continue
        places, at = [], 0
        for i, drawn in enumerate(cuts):
            count = len(drawn) + 1 - (i + 1 == len(cuts))
            mine = recorder.order[at:at + count]
            places.append(sorted(mine) if order else mine)
            at += count
        places[-1] = places[-1] + [at]
        cases.append({
            "tokens": tokens.tolist(), "order": order, "backtrace": backtrace, "fixed": fixed, "cuts": cuts,
            "places": places, "labels": recorder.labels,
            "expected": item["tokens"].tolist() + [int(item["labels"][-1])],
            "weights": "".join(str(int(w)) for w in item["loss_mask"]),
        })
    json.dump(cases, sys.stdout, separators=(",", ":"))


main()
