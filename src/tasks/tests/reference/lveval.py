"""Records what LV-Eval's official code gives, for the tests of `metrics::lveval`, `metrics::chinese` and `lveval`.

Runs infinigence/LVEval at commit 63e7ae9 (evaluation.py, metrics.py, config.py, prediction.py and utils.py; what
they import but do not use here is replaced by empty modules) with jieba 0.42.1 and rouge 1.0.1 under CPython 3.11:

    python lveval.py LVEVAL OUT_FOLDER

All texts are of this script's making. OUT_FOLDER receives

    metrics.json    {task: [[prediction, answers, keywords, score], ..]}, scores as Python prints them, by
                    `scorer` of evaluation.py
    words.json      [[text, words], ..] of jieba.cut
    dict.txt        the words of jieba's dictionary that occur in these texts, and one more that has the rest of
                    the frequencies: it cuts these texts as the whole dictionary does, which is checked
    LANGUAGE.jsonl  records in the published schema
    prompts.json    [[task, max_length, n_bos, record, budget, sha256 of the prompt, the prompt or null], ..] by
                    `get_pred` of prediction.py, with a tokenizer that splits text by a regular expression and
                    puts n_bos tokens before it
"""

import hashlib
import itertools
import json
import logging
import random
import re
import sys
import types
from pathlib import Path
from unittest import mock

checkout, out = Path(sys.argv[1]), Path(sys.argv[2])
for name in ["torch", "numpy", "pandas", "datasets", "transformers", "tqdm"]:
    sys.modules[name] = mock.MagicMock(name=name)
sys.modules["tqdm"].tqdm = lambda x: x
sys.path.insert(0, str(checkout))

import jieba  # noqa: E402

jieba.setLogLevel(logging.WARNING)

import config  # noqa: E402
import evaluation  # noqa: E402
import prediction  # noqa: E402

EN = """the a an The of and to in is was he She with for because which Ludwig Beethoven 1984 3.14 well-known it's U.S.
music services services, independent digital books 2020 London. café naïve Straße ΟΔΟΣ İstanbul Дом 東京 don't
(yes) "no" yes no not river River house 10,000 50% a.b -- ... — “quoted” under_score e\u0301 नमस्ते 🙂 what being""".split()
ZH = """的 和 是 在 年 可以 了 一种 月 c 日 有 不 中 × 根据 小 上 类 个 给 你 度 北京 大学 提莫·贝克曼贝托夫 毕业风暴 导演 罗马尼亚
克里斯汀穆基 2020年 3.5 1.5.3 2020-01-02 A-B C++ AT&T foo_bar 50% 10,000 《红楼梦》 “引号” ， 。 、 ； ！ ？ … — 东京
龥 鿖 𠀀 〇 Ａ é ‰ 首先 然后 通过 因素 科学家 现代物理学 奠基人 爱因斯坦 贝多芬 杭研大厦 小明硕士毕业于中国科学院计算所
他来到了网易 我们 乒乓球拍卖完了 南京市长江大桥 T恤 U.S.A. 亿元 ab12 5%3 x..y ３ ٣ iPhone15 Wi-Fi""".split()
EDGE_EN = ["", " ", "\n", ".", "the", "a an the", "The.", "...", "and", "of the", "yes", "Yes!", "\u3000", "é", "_"]
EDGE_ZH = ["", " ", "\n", "。", "的", "是的", "，，", "\u3000", "贝多芬", "贝多芬。", "c", "C", "A-B", "1.5.3", "。.", "\r\n"]


def text(rng, words, n, blanks):
    pieces = [rng.choice(words) for _ in range(n)]
    return "".join(p + rng.choice(blanks) for p in pieces)


def near(rng, gold, words, chinese):
    if chinese:
        for _ in range(rng.randint(0, 3)):
            a = rng.randint(0, len(gold))
            gold = gold[:a] + rng.choice([""] + words) + gold[a + rng.randint(0, 4) :]
        return gold
    out = [p if rng.random() < 0.8 else rng.choice(words) for p in gold.split(" ") if rng.random() < 0.85]
    if rng.random() < 0.2:
        rng.shuffle(out)
    return " ".join(out)


def cases(task, rng, n):
    chinese = task in ("cmrc_mixup", "dureader_mixup", "factrecall_zh")
    words, edge = (ZH, EDGE_ZH) if chinese else (EN, EDGE_EN)
    blanks = [""] * 8 + [" ", "\n", "\u3000"] if chinese else [" "] * 8 + ["  ", "\n", "\t", "\u00a0", ". "]
    found = [[a, [b], None] for a in edge for b in edge[::2]]
    while len(found) < n:
        gold = text(rng, words, rng.randint(1, 12), blanks)
        kind = rng.random()
        if kind < 0.1:
            pred = gold
        elif kind < 0.75:
            pred = near(rng, gold, words, chinese)
        elif kind < 0.8:
            pred = rng.choice(edge)
        else:
            pred = text(rng, words, rng.randint(1, 12), blanks)
        kind = rng.random()
        if kind < 0.25:
            keywords = None
        elif kind < 0.3:
            keywords = ""
        elif kind < 0.6:
            keywords = near(rng, gold, words, chinese)
        elif kind < 0.8:
            keywords = text(rng, words, rng.randint(1, 6), blanks)
        else:
            keywords = gold
        found.append([pred, [gold, text(rng, words, 3, blanks)][: rng.randint(1, 2)], keywords])
    return found


# Two words so far apart in the answer that the recursion of the package rouge fails, which scores 0, and two that
# are not.
FAR = [["末尾", ["末尾" + "九 " * n], None] for n in (988, 989)]

rng = random.Random(63)
recorded, texts = {}, set()
for task in ["loogle_SD_mixup", "factrecall_en", "cmrc_mixup", "factrecall_zh", "dureader_mixup"]:
    rows = []
    for pred, answers, keywords in cases(task, rng, 330) + (FAR if task == "dureader_mixup" else []):
        try:
            score = evaluation.scorer(task, [pred], [answers], [keywords])[1]
        except ZeroDivisionError:
            continue  # keywords without a word
        rows.append([pred, answers, keywords, repr(float(list(score.values())[0][0]))])
        texts.update([pred, *answers, keywords or ""])
    recorded[task] = rows
    print(task, len(rows), len({r[3] for r in rows}))

words = sorted({t for t in texts if re.search("[\u4e00-\u9fff]", t)})[::6]
lexicon = [line.split(" ") for line in open(Path(jieba.__file__).parent / "dict.txt", encoding="utf8").read().splitlines()]
heads = [line[0] for line in lexicon]
names = [w[0] for w in heads if "\u4e00" <= w[0] <= "\u9fff"]
for i in range(400):
    if i % 2:
        words.append(text(rng, ZH, rng.randint(1, 10), [""] * 6 + [" ", "\n", "\r\n", "\t", "%", "."]))
    else:
        known = [rng.choice(heads), "".join(rng.choice(names) for _ in range(3)), rng.choice(heads)[:2]]
        words.append(text(rng, known + [rng.choice(ZH)], rng.randint(2, 8), [""]))
words = [[t, list(jieba.cut(t))] for t in words]
print("texts cut:", len(words))

texts.update(t for t, _ in words)
everything = "\n".join(sorted(texts))
used = {line[0]: line for line in lexicon if line[0] in everything}
rest = sum(int(line[1]) for line in lexicon) - sum(int(line[1]) for line in used.values())
filler = "无此词也"
assert filler not in everything
lines = [" ".join(line) for line in used.values()] + [f"{filler} {rest} x"]
(out / "dict.txt").write_text("\n".join(lines) + "\n", encoding="utf8")
small = jieba.Tokenizer(str((out / "dict.txt").resolve()))
for t in texts:
    assert list(small.cut(t)) == list(jieba.cut(t)), t
    again = " ".join(jieba.cut(t))
    assert list(small.cut(again)) == list(jieba.cut(again)), t

# Records and prompts.
rng = random.Random(64)
records = {}
ANSWERS = {"en": ["Services to\nmusic, and to **independent** books."], "zh": ["导演是克里斯汀穆基\n和提莫·贝克曼贝托夫。"]}
KEYWORDS = {"en": "services to music", "zh": "克里斯汀穆基"}
for language, heading, pool, join in [("en", "### Passage {}\n", EN, " "), ("zh", "### 文章{}\n", ZH, "")]:
    records[language] = []
    for r in range(3):
        passages = [
            heading.format(i + 1) + join.join(rng.choice(pool) for _ in range(6)) + "\n"
            + join.join(rng.choice(pool) for _ in range(60))
            for i in range([1, 4, 11][r])
        ]
        records[language].append({
            "input": ["{context} or {input}?", "北京 is where?\n", "谁是电影《毕业风暴》的导演？"][r],
            "context": "\n\n".join(passages),
            "answers": [["In 2020, of course.", "unused"], ANSWERS[language], ["北京大学", "南京"]][r],
            "length": 1,
            "dataset": "own",
            "language": language,
            "answer_keywords": ["2020", KEYWORDS[language], None][r],
            "confusing_facts": None,
        })
    lines = [json.dumps(r, ensure_ascii=False) for r in records[language]]
    (out / f"{language}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf8")


class Pieces(types.SimpleNamespace):
    """A tokenizer that puts `n_bos` special tokens, None here, before a text."""

    def __call__(self, prompt, truncation, return_tensors):
        pieces = re.findall(r"[A-Za-z]+|[0-9]|[^A-Za-z0-9 ]| +", prompt)
        return types.SimpleNamespace(input_ids=[[None] * self.n_bos + pieces])

    def decode(self, tokens, skip_special_tokens):
        return "".join(t for t in tokens if t is not None)


prompts = []
with mock.patch.object(prediction, "model_generate", lambda tokenizer, prompt, max_gen, model: (prompt, max_gen)), \
        mock.patch.object(prediction, "post_process", lambda pred, model_name: pred):
    for task in config.DATASET_SELECTED:
        of = records["zh" if config.DATASET_METRIC[task].__name__.find("zh") >= 0 else "en"]
        for max_length, n_bos in itertools.product([100_000, 600, 257, 64, 3], [0, 1]):
            preds = prediction.get_pred(
                types.SimpleNamespace(), Pieces(n_bos=n_bos), of, max_length, config.DATASET_MAXGEN[task],
                config.DATASET_PROMPT[task], "some-base-model",
            )
            for i, pred in enumerate(preds):
                prompt, budget = pred["pred"]
                assert budget == config.DATASET_MAXGEN[task]
                digest = hashlib.sha256(prompt.encode()).hexdigest()
                shown = max_length == 257 and i == 1 and n_bos == 0
                prompts.append([task, max_length, n_bos, i, budget, digest, prompt if shown else None])
print("prompts:", len(prompts))

for name, data in [("metrics", recorded), ("words", words), ("prompts", prompts)]:
    with open(out / f"{name}.json", "w", encoding="utf8") as f:
        json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
