"""Records what InfiniteBench's official code gives, for the tests of `metrics::infinitebench` and `infinitebench`.

Runs OpenBMB/InfiniteBench at commit 88b3daa (src/compute_scores.py, eval_utils.py, prompt.py, eval_yarn_mistral.py;
torch, transformers and the model are replaced by empty modules) with the `rouge` of huggingface/evaluate (file
metrics/rouge/rouge.py at commit a7dd338, loaded by evaluate 0.4.6) and rouge_score 0.1.2 under CPython 3.11:

    python infinitebench.py INFINITEBENCH/src EVALUATE/metrics/rouge/rouge.py OUT_FOLDER

All texts are of this script's making. OUT_FOLDER receives

    metrics.json    {task: [[prediction, label, score], ..]}, scores as Python prints them, by `get_score_one`
    TASK.jsonl      records in the published schema
    labels.json     {task: [label of each record, ..]} by `get_answer`
    prompts.json    [[task, max_length, n_bos, record, budget, sha256 of the prompt, the prompt or null], ..] by
                    `create_prompt` and `truncate_by_tokens`, with a tokenizer that splits text by a regular
                    expression and puts n_bos tokens before it
"""

import hashlib
import itertools
import json
import random
import re
import sys
from pathlib import Path
from unittest import mock

checkout, rouge_file, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])

import evaluate  # noqa: E402

load = evaluate.load
evaluate.load = lambda name: load({"rouge": rouge_file}[name])
sys.path.insert(0, checkout)

import compute_scores  # noqa: E402
import eval_utils  # noqa: E402

EN = """the a an The of and to in is was he She Georgie Bronwyn 1984 3.14 well-known it's U.S. stockings war London.
café naïve Straße ΟΔΟΣ İstanbul \u212aelvin 東京 don't (yes) no river River house 10,000 50% -- ... — “quoted” walking
under_score e\u0301 नमस्ते 🙂 ran running runs stones""".split()
ZH = "胡一刀马行空商老太徐峥程紫洁田立帆王剑英，。、《》的是在一二三ABc1 　！？…".replace("　", "\u3000")
EDGE = ["", " ", "\n", ".", "the", "a an the", "The.", "...", "\u3000", "é", "_", "\x1c", "\n\n", "yes"]
TASKS = ["longbook_sum_eng", "longbook_qa_eng", "longbook_choice_eng", "longdialogue_qa_eng", "longbook_qa_chn"]
NAMES = ["ACE", "GAGGI", "Remo", "MR. BLONDE", "O'NEIL", "ZOË", "STRASSE", "JEAN-LUC", "X", ""]
OPTIONS = ["Walking Georgie", "Snowfield", "A cat", "be kind", "Desert", "AB", "42", "é", "the answer is: B", "BC"]


def words(rng, n, pool=EN, blanks=(" ",)):
    return "".join(rng.choice(pool) + rng.choice(blanks) for _ in range(n)).strip()


def near(rng, gold, pool=EN, join=" "):
    pieces = gold.split(" ") if join else list(gold)
    out = [p if rng.random() < 0.8 else rng.choice(pool) for p in pieces if rng.random() < 0.85]
    if rng.random() < 0.2:
        rng.shuffle(out)
    return join.join(out)


def answered(rng, make, near):
    golds = [make() for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    kind = rng.random()
    pred = golds[-1] if kind < 0.1 else near(rng.choice(golds)) if kind < 0.8 else make()
    return pred, golds


def case(task, rng):
    if task == "longbook_qa_eng":
        return answered(rng, lambda: words(rng, rng.randint(1, 10)), lambda g: near(rng, g))
    if task == "longbook_qa_chn":
        return answered(rng, lambda: words(rng, rng.randint(1, 16), ZH, ("",)), lambda g: near(rng, g, ZH, ""))
    if task == "longbook_sum_eng":
        blanks = [" "] * 6 + ["\n", ". ", "\n\n", "\r\n"]
        # Few different words make many longest common subsequences of one length.
        pool = rng.choice([EN, ["a", "b", "c", "the"], ["a", "b"]])
        return answered(rng, lambda: words(rng, rng.randint(1, 30), pool, blanks), lambda g: near(rng, g, pool))
    if task == "longdialogue_qa_eng":
        names = [rng.choice(NAMES) for _ in range(rng.randint(1, 3))]
        said = rng.choice([names[0], names[-1], names[0].lower(), rng.choice(NAMES)])
        ends = ["", " ", ".", ":", "\n", "'s", '"', "!", "{", "}", ",", "?", "-", "ß", " said"]
        return rng.choice(["", "likely ", "to be '", "It is ", "straße "]) + said + rng.choice(ends), names
    options = rng.sample(OPTIONS, 4)
    right = rng.randrange(4)
    letter = "ABCD"[right]
    said = rng.choice([letter, options[right], rng.choice("ABCD"), rng.choice(options), letter.lower(), "E"])
    before = rng.choice(["", "", " ", ":\n\n", "The answer is ", "the answer is: ", "Answer: ", "answer:", "(", "I say ",
                         "the correct option is ", "my  answer   is  ", "answer is", "it is", "\"", "'", "é ", "- "])
    after = rng.choice(["", "", ".", ")", " because", "\n\n", " or BCD", "!", "{", " answer is: A", ", of course"])
    return before + said + after, [options[right], letter]


rng = random.Random(88)
recorded = {}
for task in TASKS:
    cases = [case(task, rng) for _ in range(380 if task == "longbook_choice_eng" else 260)]
    golds = [["A cat", "A"], ["", "B"]] if task == "longbook_choice_eng" else [[e] for e in EDGE[::2]] + [["", "yes"]]
    cases += [(edge, gold) for edge in EDGE + ["A", " B.", "answer is:", "answer is", "AB", "x AB"] for gold in golds]
    rows = [[pred, gold, repr(compute_scores.get_score_one(pred, gold, task, "yarn-mistral"))] for pred, gold in cases]
    recorded[task] = rows
    print(task, len(rows), len({r[2] for r in rows}), sum(float(r[2]) for r in rows) / len(rows))

# Records and prompts.
empty = ["torch", "transformers", "transformers.modeling_outputs", "yarn_mistral", "yarn_mistral.modeling_mistral_yarn"]
with mock.patch.dict(sys.modules, {name: mock.MagicMock(name=name) for name in empty}):
    import eval_yarn_mistral
rng = random.Random(89)


class Pieces:
    """A tokenizer that puts special tokens, None here, before a text."""

    def __init__(self, n_bos):
        self.n_bos = n_bos

    def encode(self, text):
        return [None] * self.n_bos + re.findall(r"[A-Za-z]+|[0-9]|[^A-Za-z0-9 ]| +", text)

    def decode(self, tokens, skip_special_tokens):
        return "".join(t for t in tokens if t is not None)


prompts, labels = [], {}
for task in TASKS:
    records = []
    for r in range(3):
        chinese = task.endswith("chn")
        book = words(rng, [40, 120, 400][r], ZH if chinese else EN, [""] if chinese else [" "] * 6 + ["\n", "\n\n"])
        options = rng.sample(OPTIONS, 4)
        answer = {
            "longbook_sum_eng": ["Georgie walked.\nThen the war came."],
            "longbook_qa_eng": ["stockings", "a pair of stockings"],
            "longbook_choice_eng": [options[r]] if r else [options[2], "C"],
            "longdialogue_qa_eng": [["ACE", "ACE ROTHSTEIN"], ["GAGGI", "Remo"], ["X"]][r],
            "longbook_qa_chn": ["胡一刀，马行空"],
        }[task]
        records.append({
            "id": r,
            "context": book + ["", " {question} $$MASK$$ ", " {context}{OPTION_A}"][r],
            "input": ["Who?", "What of {context}?\n", "谁？"][r],
            "answer": answer,
            "options": options if task == "longbook_choice_eng" else [],
        })
    lines = [json.dumps(r, ensure_ascii=False) for r in records]
    (out / f"{task}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf8")
    labels[task] = [eval_utils.get_answer(r, task) for r in records]
    budget = eval_utils.DATA_NAME_TO_MAX_NEW_TOKENS[task]
    for max_length, n_bos in itertools.product([100_000, 300, 151, 40, 3], [0, 1]):
        for i, record in enumerate(records):
            prompt = eval_utils.create_prompt(dict(record), task, "yarn-mistral", "")
            with mock.patch("builtins.print"):
                prompt = eval_yarn_mistral.truncate_by_tokens(prompt, Pieces(n_bos), max_length)
            digest = hashlib.sha256(prompt.encode()).hexdigest()
            shown = max_length == 151 and i == 1 and n_bos == 0
            prompts.append([task, max_length, n_bos, i, budget, digest, prompt if shown else None])
print("prompts:", len(prompts))

for name, data in [("metrics", recorded), ("labels", labels), ("prompts", prompts)]:
    with open(out / f"{name}.json", "w", encoding="utf8") as f:
        json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
