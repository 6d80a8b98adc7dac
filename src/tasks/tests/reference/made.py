"""Records what the published code makes of given facts, texts and answers, for the tests of module `made`.

Runs the published functions, unchanged, with a simple tokenizer (tokens are the matches of TOKEN, decoding joins
them) and texts of our own:

    booydar/babilong at 7a6efee           babilong/babilong_utils.py, metrics.py, prompts.py
    princeton-nlp/HELMET at 5dde2de       data_module/json_kv.py, data_module/graphwalk.py, utils.py

    python3 made.py BABILONG HELMET ../fixtures/made

writes babilong.json, json_kv.json and graphwalks.json there. Needs NumPy 2.4 and NLTK 3.10.4. Other libraries that
the files import are replaced by stand-ins that do nothing.
"""

import sys

# This file's own folder hides the module random.
sys.path.pop(0)

import hashlib
import json
import random
import re
import types
from unittest.mock import MagicMock

import nltk
import numpy as np

TOKEN = re.compile(r"[A-Za-z]+|[0-9]|[^A-Za-z0-9 ]| +")
IDS = {}
TEXTS = []


class Simple:
    def encode(self, text, add_special_tokens=False):
        ids = []
        for token in TOKEN.findall(text):
            if token not in IDS:
                IDS[token] = len(TEXTS)
                TEXTS.append(token)
            ids.append(IDS[token])
        return ids

    def __call__(self, text, add_special_tokens=False):
        return {"input_ids": [self.encode(t) for t in text] if isinstance(text, list) else self.encode(text)}

    def decode(self, ids):
        return "".join(TEXTS[i] for i in ids)


def load(path, **stand_ins):
    """The module of a published file, with stand-ins for what it imports."""
    names = {name.replace("__", "."): module for name, module in stand_ins.items()}
    sys.modules.update(names)
    module = types.ModuleType("published")
    exec(compile(open(path).read(), path, "exec"), module.__dict__)
    for name in names:
        del sys.modules[name]
    return module


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def books():
    """Texts with sentences of many kinds, and none of the words of the tasks."""
    r = random.Random(11)
    words = ("the a of to in river stone window market letter winter engine copper signal harbour idea question answer measure "
             "number light bridge paper wheel mountain road field clock voice glass bread café naïve I we Mr. Dr. J. 3. 12 U.S. "
             "e.g. \"so\" (then) --").split()
    ends = [".", ".", ".", ".", ".", "!", "?", "...", "?!", ".\"", ".)", ". . .", " . . . .", ".'", ".\u201d", ".--", ";", ":", ""]
    texts = []
    for size in (420, 160):
        parts = []
        for i in range(size):
            sentence = " ".join(r.choice(words) for _ in range(r.randint(3, 30)))
            if r.random() < 0.9:
                sentence = sentence[0].upper() + sentence[1:]
            parts.append(sentence + r.choice(ends) + r.choice([" ", " ", " ", "\n", "\n\n", "  ", "\u00a0", "\r\n", ""]))
        texts.append("".join(parts))
    return texts


def tricky():
    """Short texts around each rule of the sentence splitter."""
    texts = ["", " ", "a", ".", "...", "Very bad acting!!! I promise.", "(Sent one.) Sent two.", "He said \"No.\" Then left.",
             "J. Bach wrote. It was 3. we saw. It was 3. We saw.", "p. 5 is it. _. And", "Wait . . . what. Yes", "A.B. went. C.D. stays",
             "End.\nNext line. \n\n  Third.", "No end here", "Trailing space.   ", "Odd.'--dash. More.)]\" Yes.", "x.) y.] z.} w.\" v.' Yes",
             "One.Two. Three", "Go?Yes! No?! Maybe", "a . b . c", "1.5 is less. 2. more than. 3.", "\u201cSo.\u201d He \u2018went.\u2019 Off. \u00abNon.\u00bb Oui.",
             "tab.\tthen. \x1cfile sep. \x85Next.\u3000Wide.", "Hyphen-ated. Well--then. So -- yes. No--.", "comma, end. semi; end. colon: end.",
             "$5. and #7. And @you. You", "e.g., this. i.e. That. etc. And", "Dr. Who? Mr. X! ok.", "...and then... He left.... Right", ",. ;. Hm.",
             "A. b. C. D e. F", "-1. so. -.5. So 1,000. so", "? ! . Yes", "*. a ` b. c", "1. .", "X. ; y. Y. :", "a.\n.\nB. \n. c"]
    r = random.Random(12)
    pool = ["word", "Word", "J.", "3.", "it.", "It!", "so?", "...", ". .", "\"", "'", ")", "(", "--", ",", ";", ".", "\n", "\n\n", " ", "\u201d", "\u00ab", "e.g.", "x.y.", "\t", "7", "]", "\u00e9."]
    texts += ["".join(r.choice(pool) + r.choice(["", " ", " "]) for _ in range(r.randint(2, 16))) for _ in range(260)]
    return texts


PLACES = "bathroom bedroom garden hallway kitchen office".split()


def babilong(folder):
    torch = types.SimpleNamespace(Dataset=object)
    utils = load(f"{folder}/babilong_utils.py", pandas=MagicMock(), torch=MagicMock(), torch__utils=MagicMock(), torch__utils__data=torch)
    metrics = load(f"{folder}/metrics.py")
    prompts = load(f"{folder}/prompts.py")
    texts = books()
    record = {"books": texts}

    draws = []
    for seed in (0, 1, 42, 2**32 - 1, 2**32, 2**63 + 5):
        rng = np.random.default_rng(seed)
        for n in (1, 2, 3, 1000, 1, 2**31 - 1, 2**32 - 6, 7):
            draws.append([seed, n, [int(rng.choice(n))] + [int(x) for x in rng.choice(range(min(n, 100000)), 3)]])
    record["draws"] = draws

    splitter = nltk.PunktSentenceTokenizer()
    record["sentences"] = [[text, splitter.tokenize(text)] for text in tricky()]
    record["book_sentences"] = [digest("\x00".join(splitter.tokenize(text))) for text in texts]

    r = random.Random(13)
    tokenizer = Simple()
    hidden = []
    for size, number in ((200, 20), (1000, 12), (5000, 4)):
        tasks = []
        for i in range(number):
            facts = [f"{r.choice(['Mary', 'John'])} {r.choice(['moved', 'went back'])} to the {r.choice(PLACES)}." for _ in range(r.randint(1, 12))]
            tasks.append({"facts": facts, "question": f"Where is {r.choice(['Mary', 'John'])}? ", "answer": "office"})
        sampler = utils.SentenceSampler([{"text": t} for t in texts], tokenizer=tokenizer, shuffle=True)
        dataset = utils.NoiseInjectionDataset(tasks, sampler, tokenizer, sample_size=size)
        samples = []
        for i, task in enumerate(tasks):
            text = tokenizer.decode(dataset[i]["input_tokens"])
            cfg = prompts.DEFAULT_PROMPTS[f"qa{i % 5 + 1}"]
            prompt = prompts.get_formatted_input(text.strip(), task["question"], cfg["examples"], cfg["instruction"], cfg["post_prompt"])
            samples.append({"facts": task["facts"], "question": task["question"], "sha256": digest(prompt)})
        hidden.append({"size": size, "samples": samples, "last": prompt})
    record["hidden"] = hidden

    answers = []
    for task in range(1, 6):
        labels = metrics.TASK_LABELS[f"qa{task}"]
        for _ in range(80):
            a, b, c = r.sample(labels, 3)
            question = r.choice([f"Where was the apple before the {a}?", f"What is the {a} north of?", f"Where is {a}?", f"Who gave the {b} to {a}?", f"What did {a} give to {b}? ",
                                 "Where is John?"])
            target = r.choice([b, c, c])
            pieces = [target, target, target.upper(), a, b, c, "The", "is in", ".", ". ", "<context>", "<example>", "Question", "Before the", "bath", "room", "\n", " ", ",", "Answer:", "\u0130", ""]
            output = r.choice([target, f"The most recent location is {target}.", f"{target}, {c}", f"{a} {target}", "".join(r.choice(pieces) + r.choice([" ", "", " "]) for _ in range(r.randint(0, 9)))])
            answers.append([task, target, output, question, metrics.compare_answers(target, output, question, labels)])
    record["answers"] = answers
    return record


def helmet(folder):
    utils = load(f"{folder}/utils.py", torch=MagicMock(), pytrec_eval=MagicMock(), rouge_score=MagicMock(), tqdm=MagicMock())
    base = MagicMock()

    class Rows(list):
        def map(self, function):
            return Rows({**row, **function(row)} for row in self)

    def loaded(name, function, rows, shots):
        datasets = types.SimpleNamespace(load_dataset=lambda *_, **__: {"train": Rows(rows)}, load_from_disk=None)
        module = load(f"{folder}/data_module/{name}.py", datasets=datasets, utils=utils, data_module=MagicMock(), data_module__base=base)
        config = types.SimpleNamespace(shots=shots, test_file="rows.jsonl")
        return getattr(module, function)(name, config, types.SimpleNamespace())

    r = random.Random(14)

    def uuid():
        digits = f"{r.getrandbits(128):032x}"
        return "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])

    rows = []
    for i in range(12):
        pairs = [(uuid(), uuid()) for _ in range(4 + 3 * i)]
        gold = r.randrange(2, len(pairs))
        lines = [f'"{k}": "{v}"' for k, v in pairs]
        rows.append({"context": "JSON data:\n{" + ",\n ".join(lines) + "}", "demos": pairs[:2], "question": pairs[gold][0], "answer": pairs[gold][1], "num_kvs": len(pairs)})
    task = loaded("json_kv", "load_json_kv", rows, 2)
    prompts = [[row["context"], row["demos"], row["question"], digest(task["prompt_template"].format(**made))] for row, made in zip(rows, task["data"])]
    prompts = prompts[:6]
    cases = []
    values = [uuid() for _ in range(30)] + ["the cat", "An apple", "x a the y", "naïve_café", "", "a", "Ünï-cödé"]
    for _ in range(300):
        value = r.choice(values)
        pieces = [value, value, value.upper(), value.replace("-", ""), value.replace("-", " "), value[:-1], r.choice(values), "The value is", "a", "the", "an", "\n", "\u00a0", "\x1c", ".", "\"", "_", "\u201c", "then", "apple"]
        said = "".join(r.choice(pieces) + r.choice(["", " ", " "]) for _ in range(r.randint(0, 6)))
        cases.append([said, value, bool(task["post_process"]({"output": said}, {"answer": value})[0]["substring_exact_match"])])
    json_kv = {"prompts": prompts, "cases": cases}

    task = loaded("graphwalk", "load_graphwalk", [], 0)
    cases = []
    for _ in range(400):
        answer = [f"{r.getrandbits(40):010x}" for _ in range(r.randint(0, 6))]
        nodes = [r.choice(answer + [f"{r.getrandbits(40):010x}"]) for _ in range(r.randint(0, 8))] if r.random() < 0.6 else r.sample(answer, len(answer))
        inside = r.choice([", ", ",", " , ", ",\n", ", ,"]).join(nodes)
        said = r.choice(["Final Answer: ", "Final Answer:", " ", "", "FINAL answer: ", "final answer:  ", "Final Answer is: ", "[x] so Final Answer: ", "Final Answer: none. Final Answer: ", "é\u0130 final answer: "])
        said += r.choice(["[", "[", "[", "[", " [", "", "[["]) + inside + r.choice(["]", "]", "]", "", "].", "]\nFinal Answer: [a]", "]]"])
        cases.append([said, answer, task["post_process"]({"output": said}, {"answer": answer})[0]["f1"],
                      set(task["post_process"]({"output": said}, {"answer": answer})[1]["parsed_output"]) == set(answer)])
    return json_kv, {"tail": task["prompt_template"].format(context="context", question="question"), "cases": cases}


def main():
    record = babilong(f"{sys.argv[1]}/babilong")
    json_kv, graphwalks = helmet(sys.argv[2])
    for name, content in (("babilong", record), ("json_kv", json_kv), ("graphwalks", graphwalks)):
        with open(f"{sys.argv[3]}/{name}.json", "w") as file:
            json.dump(content, file)
            file.write("\n")


main()
