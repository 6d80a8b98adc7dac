"""Records prompts and scores of the published needle tests for the tests of module `needle`.

Runs the published functions, unchanged, with a simple tokenizer (tokens are the matches of TOKEN, decoding joins
them) in place of the models', and texts of our own in place of essays and books:

    Leooyii/LCEG at 2ce672d                            needle/
    LargeWorldModel/LWM at f45d2b7                     scripts/eval_needle.py
    gkamradt/LLMTest_NeedleInAHaystack at 7b90d28      needlehaystack/

    python3 needle.py LCEG LWM LLMTest_NeedleInAHaystack > ../fixtures/needle/official.json

Needs NumPy. Model libraries that the scripts import are replaced by stand-ins that do nothing.
"""

import sys

# This file's own folder hides the module random.
sys.path.pop(0)

import asyncio
import contextlib
import glob
import hashlib
import json
import os
import random
import re
import tempfile
import types
from unittest.mock import MagicMock

import numpy as np

TOKEN = re.compile(r"[A-Za-z]+|[0-9]|[^A-Za-z0-9 ]| +")
# Llama's token of the full stop, which LCEG names.
IDS = {".": 29889}
TEXTS = {29889: "."}


class Simple:
    def encode(self, text):
        ids = []
        for token in TOKEN.findall(text):
            if token not in IDS:
                IDS[token] = 100000 + len(IDS)
                TEXTS[IDS[token]] = token
            ids.append(IDS[token])
        return ids

    def decode(self, ids):
        return "".join(TEXTS[i] for i in ids)


def load(path, stand_ins, replace=()):
    """The module of a published file, with stand-ins for what it imports."""
    saved = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    source = open(path).read()
    for old, new in replace:
        assert old in source, old
        source = source.replace(old, new)
    module = types.ModuleType("published")
    module.__file__ = os.path.abspath(path)
    exec(compile(source, path, "exec"), module.__dict__)
    for name, old in saved.items():
        if old is None:
            del sys.modules[name]
        else:
            sys.modules[name] = old
    return module


def stand_ins(*names, **special):
    return {name: special.get(name.replace(".", "_"), MagicMock()) for name in names}


def documents():
    """Texts with sentences of many kinds, and places without any full stop."""
    r = random.Random(7)
    words = ("the a of to in river stone window market letter winter engine garden copper signal harbour idea question "
             "answer measure number light bridge paper wheel mountain road field clock voice glass bread café naïve 東京").split()
    texts = []
    for size in (180, 90, 260):
        parts = []
        for i in range(size):
            n = r.randint(3, 22)
            sentence = " ".join(r.choice(words) for _ in range(n)).capitalize()
            end = r.choice([".", ".", ".", ".", "!", "?", "...", " . ", " 3.5", ""])
            parts.append(sentence + end + r.choice([" ", " ", " ", "\n", "\n\n", "  "]))
        texts.append("".join(parts))
    return texts


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def prompts(entries):
    """Hashes of all, text of one."""
    return {"sha256": [digest(p) for p in entries], "last": entries[-1]}


def lceg(folder, texts_folder, lengths):
    libraries = stand_ins("tiktoken", "tensor_parallel", "transformers", "rouge_score", "openai", "torch")
    module = load(f"{folder}/needle/needle_in_haystack.py", libraries)
    out = []
    for length in lengths:
        tester = object.__new__(module.LLMNeedleHaystackTester)
        tester.needle = module.LLMNeedleHaystackTester.__init__.__defaults__[0]
        tester.retrieval_question = module.LLMNeedleHaystackTester.__init__.__defaults__[2]
        tester.haystack_dir = texts_folder
        tester.model_provider = "LLaMA"
        tester.enc = Simple()
        tester.context_lengths = [length]
        tester.final_context_length_buffer = 200
        depths = np.round(np.linspace(0, 100, num=10, endpoint=True)).astype(int)
        made = [tester.generate_prompt(tester.generate_context(length, depth)) for depth in depths]
        out.append({"length": length, "depths": depths.tolist(), **prompts(made)})
    plot = load(f"{folder}/needle/needle_plot.py", stand_ins(
        "pandas", "seaborn", "matplotlib", "matplotlib.pyplot", "matplotlib.colors", pandas=types.SimpleNamespace(DataFrame=list)))
    r = random.Random(8)
    pool = ("eat a sandwich and sit in Dolores Park on a sunny day. day sunny, Eat A PARK the best thing to do is "
            "San Francisco \u0130n \u1e9e dolores\u00a0park on\x1ca sit\tin \n\n and\x85eat").split(" ")
    answers = ["", " ", "eat a sandwich and sit in Dolores Park on a sunny day.", tester.needle.strip()]
    answers += [" ".join(r.choice(pool) for _ in range(r.randint(1, 25))) for _ in range(230)]
    scores = []
    with tempfile.TemporaryDirectory() as results:
        for answer in answers:
            with open(f"{results}/one.json", "w") as file:
                json.dump({"context_length": 1000, "depth_percent": 0, "model_response": answer.strip()}, file)
            [row] = plot.load_data({"folder": f"{results}/"})
            scores.append(row["Score"])
    return {"prompts": out, "scores": [list(pair) for pair in zip(answers, scores)]}


def lwm(folder, texts, lengths):
    class Progress:
        def __new__(cls, items=None, total=None):
            return items if items is not None else MagicMock()

    flags = types.SimpleNamespace(max_tokens_per_batch=10**9)
    tux = types.SimpleNamespace(**{name: MagicMock() for name in (
        "StreamingCheckpointer JaxDistributedConfig set_random_seed get_float_dtype_by_name JaxRNG next_rng match_partition_rules "
        "make_shard_and_gather_fns with_sharding_constraint tree_apply").split()},
        define_flags_with_default=lambda **_: (flags, None), open_file=open)
    jax = MagicMock(process_index=lambda: 0)
    libraries = stand_ins("absl", "absl.app", "tqdm", "jax", "jax.experimental", "jax.experimental.pjit", "jax.sharding", "gcsfs",
                          "tiktoken", "transformers", "tux", "lwm", "lwm.llama",
                          tux=tux, jax=jax, tqdm=types.SimpleNamespace(tqdm=Progress))
    module = load(f"{folder}/scripts/eval_needle.py", libraries)
    r = random.Random(9)
    out = []
    for length in lengths:
        flags.n_rounds = 3
        module.random.seed(1234)  # tux.set_random_seed
        seen, answers = [], []

        class Sampler:
            data_dim = 1
            block_size = 1

            def __call__(self, given, _):
                seen.extend(given)
                for prompt in given:
                    number = re.search(r"number is: (\d{7})\n", prompt).group(1)
                    answers.append(r.choice([number, f"It is {number}.", number[:6], number[::-1], "", f"{number[:3]} {number[3:]}",
                                             f"0{number}1"]))
                return answers[-len(given):]

        with tempfile.TemporaryDirectory() as run:
            flags.output_file = f"{run}/results.json"
            haystack = f"{run}/books.jsonl"
            with open(haystack, "w") as file:
                for text in texts * 4:
                    file.write(json.dumps({"text": text}) + "\n")
            tester = object.__new__(module.LLMNeedleHaystackTester)
            module.Sampler = Sampler
            module.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda _: Simple())
            flags.tokenizer = ""
            module.tiktoken = types.SimpleNamespace(encoding_for_model=lambda _: Simple())
            tester.__init__(haystack_file=haystack, context_lengths_min=length, context_lengths_max=length,
                            context_lengths_num_intervals=1, document_depth_percent_intervals=20)
            tester.run_test()
            results = json.load(open(flags.output_file))
        # In the order of the published loop: depth by depth, then round by round.
        out.append({"length": length, **prompts(seen),
                    "judged": [[a, x["answer"], x["correct"]] for a, x in zip(answers, results)]})
    return out


def kamradt(folder, texts_folder, lengths):
    path = f"{folder}/needlehaystack"
    module = load(f"{path}/llm_needle_haystack_tester.py", {}, [
        ("from .evaluators import Evaluator", "Evaluator = object"), ("from .providers import ModelProvider", "ModelProvider = object")])
    chat = load(f"{path}/providers/openai.py", stand_ins("openai", "langchain_openai", "langchain", "langchain.prompts", "tiktoken"), [
        ("from .model import ModelProvider", "ModelProvider = object")])
    structure = open(f"{path}/providers/Anthropic_prompt.txt").read()
    run = open(f"{path}/run.py").read()
    needle = eval(re.search(r"needle: Optional\[str\] = (.*)", run).group(1))
    question = eval(re.search(r"retrieval_question: Optional\[str\] = (.*)", run).group(1))

    class Model(Simple):
        model_name = "simple"
        encode_text_to_tokens = Simple.encode

        def decode_tokens(self, tokens, context_length=None):
            return self.decode(tokens[:context_length])

    out = []
    for length in lengths:
        tester = module.LLMNeedleHaystackTester(Model(), None, needle, texts_folder, question, context_lengths=[length])
        plain, messages = [], []
        for depth in tester.document_depth_percents:
            context = asyncio.run(tester.generate_context(length, depth))
            plain.append(structure.format(retrieval_question=question, context=context))
            messages.append("\n\n".join(m["content"] for m in chat.OpenAI.generate_prompt(None, context, question)))
        out.append({"length": length, "depths": tester.document_depth_percents.tolist(), **prompts(plain),
                    "messages": [digest(m) for m in messages]})
    return out


def main():
    texts = documents()
    lengths = [300, 777, 2500, 9000]
    # Python's glob has no order; ours is that of names.
    unsorted = glob.glob
    glob.glob = lambda pattern: sorted(unsorted(pattern))
    # The published code talks.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        for i, text in enumerate(texts):
            with open(f"{folder}/{i}.txt", "w") as file:
                file.write(text)
        record = {
            "documents": texts,
            "depths": [np.round(np.linspace(0, 100, num=n, endpoint=True)).astype(int).tolist() for n in (1, 2, 3, 10, 11, 20, 35, 41, 100, 101)],
            "lceg": lceg(sys.argv[1], folder, lengths),
            "lwm": lwm(sys.argv[2], texts, lengths),
            "kamradt": kamradt(sys.argv[3], folder, lengths),
        }
    print(json.dumps(record, ensure_ascii=True))


main()
