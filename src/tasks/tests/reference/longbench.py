"""Records the prompts and scores of LongBench's official code, for the tests of `longbench`.

Runs `get_pred` of LongBench/pred.py and `scorer` of LongBench/eval.py of THUDM/LongBench at commit 2e00731, and
those of Leooyii/LCEG's longbench/ at commit 2ce672d, with the packages of metrics_longbench.py and NumPy:

    python -P longbench.py LONGBENCH/LongBench LCEG/longbench OUT

The model, PyTorch, Transformers and the data are stand-ins of this script's. Its tokenizer puts BOS before a text
(or not), makes `<s>` in a text BOS too, and else has the tokens `[A-Za-z]+`, `[0-9]`, ` +` and single characters;
decoding joins them and leaves BOS out. The records are of this script's making, in LongBench's schema.

OUT/data/longbench/NAME.jsonl are the records and OUT/data/trec/*.label questions in the format of TREC's own files;
OUT/prompts.json is a list of [dataset, form, context length, BOS,
record, new tokens at most, new tokens at least, characters of the prompt, its SHA-256], OUT/scores.json a list of
[dataset, form, record, prediction, score in percent]; OUT/texts.json has some prompts in full: [dataset, form,
context length, BOS, record, prompt].
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import random
import re
import sys
import tempfile
import types

import numpy as np

TOKEN = re.compile(r"<s>|[A-Za-z]+|[0-9]| +|[^A-Za-z0-9 ]")


class Batch(dict):
    input_ids = property(lambda self: self["input_ids"])

    def to(self, device):
        return self


class Tokenizer:
    eos_token_id = -1

    def __init__(self, bos):
        self.bos, self.ids, self.texts = bos, {"<s>": 0}, ["<s>"]

    def encode(self, text, add_special_tokens=True):
        ids = [0] if self.bos and add_special_tokens else []
        for token in TOKEN.findall(text):
            if token not in self.ids:
                self.ids[token] = len(self.texts)
                self.texts.append(token)
            ids.append(self.ids[token])
        return ids

    def __call__(self, text, truncation, return_tensors):
        self.last = text
        return Batch(input_ids=np.array([self.encode(text)]))

    def decode(self, ids, skip_special_tokens):
        return "".join(self.texts[i] for i in ids if i != 0)


class Model:
    """Answers with nothing, and notes what it was asked."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked = tokenizer, []

    def generate(self, input_ids, max_new_tokens, num_beams, do_sample, temperature, min_length=None,
                 eos_token_id=None, use_cache=True):
        assert (num_beams, do_sample) == (1, False)
        least = 0 if min_length is None else min_length - input_ids.shape[1]
        stops = [] if eos_token_id is None else [self.tokenizer.texts[i] for i in eos_token_id if i >= 0]
        self.asked.append((self.tokenizer.last, max_new_tokens, least, stops))
        return input_ids


class Anything:
    def __getattr__(self, name):
        return Anything()

    def __call__(self, *args, **kwargs):
        return Anything()


def stand_in(name):
    module = types.ModuleType(name)
    module.__getattr__ = lambda attribute: Anything()
    sys.modules[name] = module


def load(folder, name):
    sys.path.insert(0, folder)
    sys.modules.pop("metrics", None)
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.pop(0)
    return module


SETS = """narrativeqa qasper multifieldqa_en hotpotqa 2wikimqa musique gov_report qmsum multi_news trec triviaqa
samsum passage_count passage_retrieval_en lcc repobench-p""".split()
SUBJECTS = "The ferry,Her brother,An old map,The council,Nobody,A red kite,The café,Ms. Øst,The engine".split(",")
VERBS = "crossed,forgot,sold,measured,painted,lost,described,repaired,counted".split(",")
OBJECTS = "the lake,12 boxes,a letter,three bridges,the north wall,its price (4.50),a naïve plan,東京".split(",")
CLASSES = ["Food", "Date", "Order, rank", "Speed", "Number of something", "Other number", "Individual", "Reason"]


def prose(rng, n):
    out = []
    for _ in range(n):
        out.append(f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}.")
        if rng.random() < 0.1:
            out.append(rng.choice(["\n\n", "\n", "  ", "{input}", "{context}", "{}", "<s>", '"quoted"']))
    return " ".join(out)


def code(rng, n):
    names = [f"{rng.choice('abcdefgh')}{rng.randrange(10)}" for _ in range(8)]
    lines = [f"{'    ' * rng.randrange(3)}{rng.choice(names)} = {rng.choice(names)} + {rng.randrange(100)};"
             for _ in range(n)]
    return "\n".join(lines) + "\n"


def record(name, i, rng):
    n = (4, 150)[i]  # sentences
    classes, question = None, f"Who {rng.choice(VERBS)} {rng.choice(OBJECTS)}?"
    answers = [f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} it", rng.choice(SUBJECTS)]
    context = prose(rng, n)
    if name in ("gov_report", "qmsum", "multi_news"):
        question, answers = (question if name == "qmsum" else ""), [prose(rng, 5)]
    elif name == "trec":
        classes = CLASSES
        shown = [f"Question: Who {rng.choice(VERBS)} {rng.choice(OBJECTS)} ?\nType: {rng.choice(CLASSES)}"
                 for _ in range(n)]
        context, question, answers = "\n".join(shown), f"Question: {question}\nType:", [CLASSES[i * 4]]
    elif name == "triviaqa":
        question = f"Passage:\n{prose(rng, 3)}\nQuestion:\n{question}\nAnswer:\n"
    elif name == "samsum":
        question = f"Dialogue: A: {prose(rng, 1)}\r\nB: {prose(rng, 1)}\nSummary: "
        answers = answers[:1]
    elif name == "passage_count":
        question, answers = "", [str(3 + i)]
    elif name == "passage_retrieval_en":
        question, answers = prose(rng, 2), [f"Paragraph {7 + 5 * i}"]
    elif name in ("lcc", "repobench-p"):
        context = code(rng, n)
        question = "" if name == "lcc" else code(rng, 2)
        answers = [code(rng, 1).rstrip("\n")]
    return {"input": question, "context": context, "answers": answers, "length": len(context.split()),
            "dataset": name, "language": "en", "all_classes": classes, "_id": f"{name}-{i}"}


def predictions(name, row, rng):
    gold, other = row["answers"][-1], row["answers"][0]
    return ["", gold, "\n\n" + gold + "\nand so on " + gold, "Answer: " + other + "\n" + gold,
            gold[: len(gold) // 2], "```\n" + gold + "\n# 7", prose(rng, 2), " ".join(CLASSES[:3]) + " 3, 7\n4 7"]


FINE = """ABBR:abb ABBR:exp ENTY:animal ENTY:body ENTY:color ENTY:cremat ENTY:currency ENTY:dismed ENTY:event ENTY:food
ENTY:instru ENTY:lang ENTY:letter ENTY:other ENTY:plant ENTY:product ENTY:religion ENTY:sport ENTY:substance ENTY:symbol
ENTY:techmeth ENTY:termeq ENTY:veh ENTY:word DESC:def DESC:desc DESC:manner DESC:reason HUM:gr HUM:ind HUM:title HUM:desc
LOC:city LOC:country LOC:mount LOC:other LOC:state NUM:code NUM:count NUM:date NUM:dist NUM:money NUM:ord NUM:other
NUM:period NUM:perc NUM:speed NUM:temp NUM:volsize NUM:weight""".split()


def questions(out):
    """TREC's files by their form only: the questions are nonsense, a number in each makes it the only one."""
    os.makedirs(os.path.join(out, "data", "trec"), exist_ok=True)
    rng = random.Random("questions")
    for file, n in (("train_5500", 1030), ("TREC_10", 6)):
        with open(os.path.join(out, "data", "trec", file + ".label"), "wb") as f:
            for i in range(n):
                name = b"Ba\xf0r" if i == 3 else b"he"
                line = f"{FINE[i % 50]} Who {rng.choice(VERBS)} {i} maps of ".encode() + name + b" ?\n"
                f.write(line)


def max_length(form, length, table):
    """What model2maxlen.json says of such a context."""
    if form == "lceg":
        return length
    said = {4096: "llama2-7b-chat-4k", 8192: "xgen-7b-8k", 16384: "vicuna-v1.5-7b-16k", 32768: "longchat-v1.5-7b-32k"}
    if length in said:
        return table[said[length]]
    return (length // 1024 * 1000 if length % 1024 == 0 else length) - 500


def main(official, lceg, out):
    for name in ("torch", "torch.distributed", "torch.multiprocessing", "transformers", "datasets", "tqdm",
                 "llama_flash_attn_monkey_patch"):
        stand_in(name)
    sys.modules["tqdm"].tqdm = lambda rows: rows
    folders = {"official": official, "chat": official, "lceg": lceg}
    config = {f: [json.load(open(os.path.join(p, "config", n + ".json"), encoding="utf-8"))
                  for n in ("dataset2prompt", "dataset2maxlen", "model2maxlen")] for f, p in folders.items()}
    predict = {"official": load(official, "pred"), "lceg": load(lceg, "pred")}
    judge = {"official": load(official, "eval"), "lceg": load(lceg, "eval")}
    os.makedirs(os.path.join(out, "data", "longbench"), exist_ok=True)
    questions(out)
    prompts, texts, scores = [], [], []
    for name in SETS:
        rng = random.Random(name)
        rows = [record(name, i, rng) for i in range(2)]
        with open(os.path.join(out, "data", "longbench", name + ".jsonl"), "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        for form in ("official", "chat", "lceg"):
            lengths = (600, 711, 999) if form == "lceg" else (1024, 1211, 1499)
            for length, bos in [(lengths[0], 0), (lengths[1], 1), (lengths[2], 0), (4096, 1), (32768, 1)]:
                tokenizer = Tokenizer(bos)
                model = Model(tokenizer)
                prompt, budgets, table = config[form]
                limit = max_length(form, length, table)
                args = (limit, budgets[name], prompt[name], name)
                if form == "lceg":
                    predict["lceg"].get_pred(model, tokenizer, {"test": rows}, *args, None, "base")
                else:
                    predict["official"].load_model_and_tokenizer = lambda *_: (model, tokenizer)
                    with tempfile.TemporaryDirectory() as folder:
                        model_name = "llama2" if form == "chat" else "base"
                        predict["official"].get_pred(0, 1, rows, *args, None, model_name, {model_name: ""},
                                                     os.path.join(folder, "pred.jsonl"))
                assert len(model.asked) == len(rows)
                for i, (text, most, least, stops) in enumerate(model.asked):
                    assert stops == (["\n"] if name == "samsum" else [])
                    hashed = hashlib.sha256(text.encode()).hexdigest()
                    prompts.append([name, form, length, bos, i, most, least, len(text), hashed])
                    if i == 0 and length == 32768 and form != "lceg" and (form == "chat") == (name == "qasper"):
                        texts.append([name, form, length, bos, i, text])
                    if i == 1 and length == lengths[1] and form == "lceg" and name in ("lcc", "hotpotqa", "trec"):
                        texts.append([name, form, length, bos, i, text])
        for i, row in enumerate(rows):
            for said in predictions(name, row, rng):
                for form in ("official", "lceg"):
                    value = judge[form].scorer(name, [said], [row["answers"]], row["all_classes"])
                    scores.append([name, form, i, said, repr(float(value))])
    for file, rows in (("prompts", prompts), ("texts", texts), ("scores", scores)):
        with open(os.path.join(out, file + ".json"), "w", encoding="utf-8") as f:
            lines = (json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in rows)
            f.write("[\n" + ",\n".join(lines) + "\n]\n")
    print(len(prompts), "prompts,", len({p[-1] for p in prompts}), "different;", len(scores), "scores,",
          len({s[-1] for s in scores}), "different")


main(*sys.argv[1:4])
