"""Records what LongBench's official metrics give, for the tests of `metrics::longbench`.

Runs LongBench/metrics.py of THUDM/LongBench at commit 2e00731 with rouge 1.0.1, fuzzywuzzy 0.18.0 (without
python-Levenshtein, as LongBench/requirements.txt has it) and jieba 0.42.1 under CPython 3.11, and
longbench/metrics.py of Leooyii/LCEG at commit 2ce672d beside it, which must give the same:

    python -P metrics_longbench.py LONGBENCH/LongBench/metrics.py LCEG/longbench/metrics.py OUT.json

The texts are of this script's making. OUT.json is {metric: [[prediction, gold, score], ..]} with
scores as Python prints them; for classification_score, gold is [gold, all_classes].
"""

import importlib.util
import json
import random
import sys

WORDS = """the a an The A of in house houses river Paris London 1984 42 3.14 well-known it's U.S. e.g. café naïve
Straße ΟΔΟΣ ὈΔΥΣΣΕΎΣ İstanbul ДОМ дом 東京 大学 你好 ٣٤ ५ ² ½ Ⅷ _under_score don't rock'n'roll (yes) "no" yes no
unanswerable Mr. Dr. 10,000 $5 50% a.b the. an, -- ... ! ? € “quoted” — – … cat dog quick brown fox jumps over lazy
á é\u0301 a\u0301 the\u0301 नमस्ते कि ก็ 🙂 🇫🇷 ﬁ Ⅻ \u200b a\u200bb""".split()
SPACES = [" "] * 12 + ["  ", "\n", "\t", "\u00a0", "\u2003", "\u3000", "\x1c", "\x1f", "\x85", "\u2028", "\r\n"]
EDGE = ["", " ", "\n", ".", "...", "!?", "the", "a an the", "The.", "a", ". .", " . ", "\x1c", "\u200b", "\u3000",
        "。", "…", "a.a.a", "word", "word.", ".word", "word word", "WORD", "é", "e\u0301", "\u0301", "'s", "_", "__",
        "a_b", "the_end", "0", "00", "7", "７", "٧"]


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text(rng, n, words=WORDS):
    out = ""
    for _ in range(n):
        out += rng.choice(words) + rng.choice(SPACES)
        if rng.random() < 0.15:
            out = out.rstrip() + ". "
    return out if rng.random() < 0.5 else out.strip()


def near(rng, gold, words=WORDS):
    """Some of the words of a text, in places others or out of order."""
    kept = [w if rng.random() < 0.8 else rng.choice(words) for w in gold.split(" ") if rng.random() < 0.8]
    if rng.random() < 0.3:
        rng.shuffle(kept)
    return " ".join(kept)


def pairs(rng, lengths, words=WORDS):
    cases = [(a, b) for a in EDGE for b in (a, "", "word", "a the")]
    for n in lengths:
        gold = text(rng, n, words)
        cases += [(gold, gold), (near(rng, gold, words), gold), (text(rng, max(1, n // 2), words), gold)]
    return cases


def rouge_pairs(rng):
    cases = pairs(rng, [1, 2, 3, 5, 8, 13, 20, 30] * 5)
    few = ["a", "b", "c"]  # ties between subsequences
    for n in (2, 3, 4, 5, 6, 8, 10, 14):
        for _ in range(8):
            cases.append((text(rng, n, few), text(rng, n, few)))
    # At the limit of Python's recursion: a way of n steps straight, and one around.
    for n in range(986, 996):
        cases.append(("a " * n, "a " * n))
    for n in (492, 493, 494, 495, 496, 497, 498):
        cases.append(("b " * n + "a " * n, "a " * n + "b " * n))
        cases.append(("a " * n + "x " * n, "y " * n + "a " * n))
    cases.append(("a " * 1200, "a. b. a b a b a b."))
    cases.append(("a. b. a b a b a b.", "a " * 1200))
    cases.append(("b", "a " * 1200 + "b"))
    cases.append(("b " + "a " * 1200, "b"))
    return cases


CLASSES = [
    ["Food", "Date", "Order, rank", "Speed", "Other number", "Number of something", "Individual", "Other location"],
    ["a", "ab", "abc", "b", "bc", "c"],
    ["Number", "Number of something", "of", "something", "Other"],
    ["", "x", "xx", "xxx"],
    ["abc", "ab", "ab", "b", "abc"],
    ["東", "東京", "京", "東京大学"],
]


def class_cases(rng):
    cases = []
    for classes in CLASSES:
        for gold in classes:
            cases += [("", gold, classes), (gold, gold, classes), (gold + " " + classes[0], gold, classes)]
            cases += [(gold.lower(), gold, classes), ("Type: " + gold + ".", gold, classes)]
            for _ in range(3):
                said = " ".join(rng.choice(classes) for _ in range(rng.randint(1, 4)))
                cases.append((said, gold, classes))
        cases.append(("".join(classes), "none of them", classes))
    cases += [("...", "Food", CLASSES[0]), ("Food", "Food", []), ("", "", [""])]
    return cases


NUMBERS = ["1", "2", "12", "21", "30", "7", "07", "٧", "７", "१२", "²", "½", "Ⅷ", "x", "Paragraph", "paragraph",
           "1.5", "1,000", "-3", "#4", "a1b2", "", "!", "\n"]


def number_cases(rng):
    golds = ["1", "2", "12", "7", "30", "21", "07", "٧"]
    cases = [(a, b) for a in EDGE for b in ("7", "0")]
    for _ in range(200):
        gold = rng.choice(golds)
        numbers = [gold if rng.random() < 0.3 else rng.choice(NUMBERS) for _ in range(rng.randint(1, 6))]
        cases.append((rng.choice([" ", ", ", "-", ""]).join(numbers), gold))
    return cases + [(g, g) for g in golds]


def paragraph_cases(rng):
    golds = ["Paragraph 1", "Paragraph 12", "the Paragraph 7.", "Paragraph x, Paragraph 2", "Paragraph 3 Paragraph 1",
             "Paragraph ٧", "paragraph 1 Paragraph 30"]
    cases = [(a, b) for a in EDGE[::2] for b in golds[:2]]
    for said, number in number_cases(rng):
        cases.append((said, rng.choice([rng.choice(golds), f"Paragraph {number}"])))
    return cases + [(g, g) for g in golds]


CODE = ["int main() {", "    return x + 1;", "def f(self, x):", "  if a == b:", "}", "# comment", "// note", "```python",
        "`x`", "", "    ", "import os", "print('é東')", "x = [i for i in range(10)]", "\treturn None", "a/b", "a / / b"]


def code_cases(rng):
    cases = [(a, b) for a in EDGE for b in (a, "x", "")]
    for _ in range(110):
        gold = rng.choice(CODE)
        said = "\n".join(rng.choice(CODE) for _ in range(rng.randint(1, 4)))
        cases += [(rng.choice(["", "\n", "\n\n"]) + said, gold), (near(rng, gold, CODE), gold)]
    # From 200 characters on, popular ones start no match.
    for n in (150, 199, 200, 201, 260, 400, 700):
        for letters in ("ab", "abcdefgh", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 =()_."):
            gold = "".join(rng.choice(letters) for _ in range(n))
            said = "".join(c for c in gold if rng.random() < 0.9)
            cut = rng.randrange(n)
            cases += [(said, gold), (gold[cut:] + gold[:cut], gold), (gold[: n // 2], gold), (gold, said)]
    # Halves of a percent, which Python rounds to even: 1/8, 3/8, 1/40, 5/200 ...
    for same, n in ((1, 8), (3, 8), (5, 8), (7, 8), (1, 40), (3, 40), (21, 40), (5, 200), (101, 200)):
        cases.append(("a" * same + "b" * (n - same), "a" * same + "c" * (n - same)))
    return cases


def score(metric, case):
    # Called from the module itself, as `scorer` is in eval.py: Python's limit of frames counts from there.
    if metric.__name__ == "classification_score":
        return metric(case[0], case[1], all_classes=list(case[2]))
    return metric(case[0], case[1], all_classes=None)


official = load(sys.argv[1], "longbench_metrics")
copy = load(sys.argv[2], "lceg_metrics")
assert official.fuzz.SequenceMatcher.__module__ == "difflib"
made = {
    "qa_f1_score": pairs(random.Random(1), [1, 2, 3, 5, 8, 13, 20] * 6),
    "rouge_score": rouge_pairs(random.Random(2)),
    "classification_score": class_cases(random.Random(3)),
    "retrieval_score": paragraph_cases(random.Random(4)),
    "count_score": number_cases(random.Random(5)),
    "code_sim_score": code_cases(random.Random(6)),
}
recorded = {}
for name in made:
    rows = []
    for case in dict.fromkeys((c[0], c[1], tuple(c[2]) if len(c) > 2 else None) for c in made[name]):
        value = score(getattr(official, name), case)
        assert value == score(getattr(copy, name), case), (name, case)
        rows.append([case[0], case[1] if case[2] is None else [case[1], list(case[2])], repr(float(value))])
    recorded[name] = rows
    scores = [r[2] for r in rows]
    print(name, len(rows), "cases;", scores.count("0.0"), "are 0,", len(set(scores)), "different scores")
    assert len(rows) >= 200
with open(sys.argv[3], "w", encoding="utf-8") as out:
    out.write("{\n")
    for i, (name, rows) in enumerate(recorded.items()):
        lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
        out.write(f"{json.dumps(name)}: [\n{lines}\n]{',' if i + 1 < len(recorded) else ''}\n")
    out.write("}\n")
