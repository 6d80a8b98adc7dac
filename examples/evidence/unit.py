"""Units, the commands they run, and the figures computed from the output."""

import json
from dataclasses import dataclass, field

import material
from place import Problem, environment, record_name


@dataclass
class Step:
    """One command. Its output is kept, so that a unit can resume after it."""

    name: str
    args: list
    # The file the command writes, if any, and whether an interrupted command can resume.
    makes: object = None
    resumes: bool = False

    def line(self, program="ropewalk"):
        """Returns the command line to type."""
        variables = [f"{name}={value}" for name, value in environment(self.args).items()]
        return " ".join([*variables, str(program), *map(quoted, self.args)])


@dataclass
class Unit:
    id: str
    # Everything that determines the result, except the units it needs.
    spec: dict
    needs: list = field(default_factory=list)
    # Units that run first, although the result does not depend on them.
    after: list = field(default_factory=list)
    # Work as (rate, context, tokens), from which the hours are estimated.
    work: list = field(default_factory=list)
    # (place, records) -> [Step]
    steps: object = None
    # (place, records, {step: output}) -> figures
    figures: object = None
    # (place) -> files and directories whose checksums are recorded
    inputs: object = lambda place: []
    # Whether the unit writes a model.
    model: bool = False
    seed: object = None
    # Why the unit is not known yet.
    waits: str = ""


def slug(name):
    return record_name(name)[:-5]


def quoted(arg):
    text = str(arg)
    return "'" + text + "'" if any(c in text for c in " |<>#*()") else text


# Figures from outputs of the program.


def by_document(report):
    """Returns [start, tokens, sum of negative log-likelihoods] of each bucket of each document of perplexity's JSON."""
    (row,) = report["results"]
    return {
        text["name"].rpartition("/")[2].removesuffix(".txt"): [
            [b["start"], b["tokens"], round(b["nll_sum"], 4)] for b in text["buckets"]
        ]
        for text in row["texts"]
    }


def reads(unit, documents, model, ctx, bucket, more):
    """Gives a unit one perplexity step for each document, with options `more(place)`."""

    def steps(place, _):
        return [perplexity(place, d.stem, model, [d], ctx, bucket, more(place)) for d in documents(place)]

    def figures(place, _, out):
        found = {}
        for report in out.values():
            found.update(by_document(report))
        for name, buckets in found.items():
            tokens = 1 + sum(n for _, n, _ in buckets)
            if tokens < ctx:
                raise Problem(f"{name}: expected {ctx} tokens, found {tokens}; raise `characters` of the texts in the plan")
        return {"rope": next(iter(out.values()))["rope"], "documents": found}

    unit.steps, unit.figures = steps, figures
    unit.inputs = lambda place: [model, *documents(place)]


def right_or_wrong(report, samples):
    """Returns the scores of the questions in eval's samples by task and length, in order."""
    metric = {row["task"]: row.get("metric") or report["metric"] for row in report["results"]}
    found = {}
    for line in samples.read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        # The first line says what the file is.
        if "ropewalk" in sample:
            continue
        score = sample["scores"][metric[sample["task"]]]
        found.setdefault((sample["task"], sample["length"]), {})[sample["id"]] = score
    out = {}
    for row in report["results"]:
        of = found[row["task"], row["length"]]
        if len(of) != row["samples"] or abs(100 * sum(of.values()) / len(of) - row["score"]) > 0.01:
            raise Problem(f"{samples}: {row['task']}: the samples do not match the score {row['score']}")
        scores = [of[i] for i in sorted(of, key=lambda i: (len(i), i))]
        out.setdefault(row["task"], {})[str(row["length"] or "")] = [
            int(x) if x == int(x) else round(x, 4) for x in scores
        ]
    return out


def device(place):
    return ["--device", place.device, "-t", str(place.threads), "--json", "-q"]


def perplexity(place, name, model, texts, ctx, bucket, more=()):
    args = ["perplexity", "-m", model, "-f", *texts, "--protocol", "window", "--ctx", ctx, "--bucket", bucket, *more]
    return Step(name, [*args, *device(place)])


def evaluation(place, unit, name, model, tasks, lengths, questions, seed, more=()):
    args = ["eval", ",".join(tasks), "-m", model, *(["--lengths", ",".join(map(str, lengths))] if lengths else [])]
    args += [
        "-n",
        questions,
        "-s",
        seed,
        "-o",
        place.work(unit) / f"{name}.samples.jsonl",
        "--data",
        place.plan["benchmarks"],
        *more,
    ]
    return Step(name, [*args, *device(place)], resumes=True)


def samples_of(place, unit, name):
    return place.work(unit) / f"{name}.samples.jsonl"


def mean_nll(figures):
    parts = [b for of in figures["documents"].values() for b in of]
    return sum(b[2] for b in parts) / sum(b[1] for b in parts)


def train(place, unit, model, data, ctx, batch, steps, options, name="train", out=None):
    out = out or place.model(unit)
    args = ["finetune", "-m", model]
    for source, share in data.items():
        args += ["-d", f"{source}={material.source(place, source)}:{share:g}"]
    cache = place.inside("material", "-".join(sorted(data)) + ".tokens")
    args += [
        *(["--ctx", ctx] if ctx else []),
        *(["--set", f"batch={batch}"] if batch else []),
        *(["--steps", steps] if steps else []),
    ]
    return Step(name, [*args, "--set", f"cache={cache}", *options, "-o", out, *device(place)], makes=out, resumes=True)


def losses(path):
    """Returns the validation losses of a training log, and the mean loss of each tenth of the steps."""
    held, steps = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "val_loss" in row:
            held.append([row["step"], round(row["val_loss"], 4)])
        elif "loss" in row:
            steps.append(row["loss"])
    tenth = max(1, len(steps) // 10)
    return {
        "held_out": held if len(held) < 10 else held[:1] + held[-9:],
        "loss": [round(sum(p) / len(p), 4) for p in (steps[i : i + tenth] for i in range(0, len(steps), tenth))],
    }


def trained(unit):
    def figures(place, _, out):
        return losses(place.model(unit).with_suffix(".log.jsonl"))

    return figures


def sources(plan, data):
    return lambda place: [material.source(place, s) for s in data]
