"""Computes the result for each prediction from the records, and whether the prediction held."""

import math
from typing import NamedTuple

from stats import Interval, bootstrap, over_novels, paired, perplexity, reach, wilson
from units import all_units, plan_hashes


NOT_YET = "not measured yet"


class Answer(NamedTuple):
    """What was measured, and for each part of the prediction whether it held: true, false, or None if the interval or the seeds
    do not decide it. `left` has the parts that are not measured yet."""

    measured: str
    parts: dict
    left: tuple = ()

    def verdict(self):
        names = {True: "held", False: "did not hold", None: "undecided"}
        by = {name: [part for part, held in self.parts.items() if held is of] for of, name in names.items()}
        by = {name: parts for name, parts in (by | {NOT_YET: self.left}).items() if parts}
        if len(by) == 1:
            return next(iter(by))
        return "; ".join(f"{name}: {', '.join(parts)}" for name, parts in by.items())


class Evidence:
    def __init__(self, plan, records):
        self.plan = plan
        self.units = all_units(plan, records)
        hashes = plan_hashes(self.units)
        self.records = {id: r for id, r in records.items() if hashes.get(id) == r["plan"]}
        self.old = sorted(set(records) - set(self.records))
        self.equal = self.figures("frozen/plans").get("equal", {})

    def figures(self, id):
        return self.records.get(id, {}).get("figures", {})

    def documents(self, id):
        return self.figures(id).get("documents")

    def alike(self, *ids):
        """Returns true if all these records were computed on GPUs, or none was: losses differ by up to 0.017 nats."""
        return len({self.records[id]["processor"].startswith("NVIDIA") for id in ids if id in self.records}) < 2

    def frozen(self, name):
        return self.documents(f"frozen/perplexity/{self.equal.get(name, name)}")

    def arm(self, name):
        """Returns the figures of an arm of the small model by seed."""
        ids = {seed: f"small/measure/{name}/{seed}" for seed in self.plan["small"]["arms"]["seeds"]}
        return {seed: self.figures(id) for seed, id in ids.items() if self.figures(id)}

    def both(self, a, b):
        """Returns the figures of both arms for each seed that has records of both."""
        arms = {name: self.arm(name) for name in (a, b)}
        both = [seed for seed in arms[a] if seed in arms[b]]
        alike = [seed for seed in both if self.alike(*(f"small/measure/{name}/{seed}" for name in arms))]
        return [(arms[a][seed], arms[b][seed]) for seed in alike]

    # Differences, or None if a record is missing.

    def losses(self, a, b, start, end=1 << 40):
        a, b = self.frozen(a), self.frozen(b)
        return paired(a, b, start, end) if a and b else None

    def arms_losses(self, a, b, start, end=1 << 40):
        pairs = self.both(a, b)
        documents = ([figures["documents"] for figures in side] for side in zip(*pairs))
        return paired(*documents, start, end) if pairs else None

    def arms_found(self, a, b, length=None):
        """Returns by how many percentage points `a` finds more than `b` on the same questions, and the number of questions."""
        seeds = [
            [
                100 * (p - q)
                for task, by in x["questions"].items()
                for n, scores in by.items()
                if length in (None, int(n))
                for p, q in zip(scores, y["questions"][task][n], strict=True)
            ]
            for x, y in self.both(a, b)
        ]
        each = [sum(of) / len(of) for of in seeds] if len(seeds) > 1 else ()
        every = [value for of in seeds for value in of]
        return Points(bootstrap(every, each), len(every)) if every else None

    def found(self, arm, length, task=None):
        """Returns the percentages that an arm finds, by seed."""
        out = []
        for figures in self.arm(arm).values():
            scores = [s for t, by in figures["questions"].items() if task in (None, t) for s in by[str(length)]]
            out.append(100 * sum(scores) / len(scores))
        return out


class Points(NamedTuple):
    of: Interval
    questions: int


def seeds(of, form):
    return "; seeds " + ", ".join(format(value, form) for value in of.each) if of.each else ""


def nats(of):
    return f"{of.value:+.3f} nats ({of.low:+.3f} to {of.high:+.3f}{seeds(of, '+.3f')})"


def points(found):
    of = found.of
    return f"{of.value:+.1f} points ({of.low:+.1f} to {of.high:+.1f}{seeds(of, '+.1f')}; {found.questions:,} questions)"


def differences(parts):
    """Returns the text for named differences, or None if one is missing."""
    if not all(of for _, of in parts):
        return None
    return "; ".join(f"{name}: {points(of) if isinstance(of, Points) else nats(of)}" for name, of in parts)


# One function for each prediction.


def breaks(e):
    own = e.plan["frozen"]
    plain = e.frozen("plain")
    if not plain:
        return None
    inside, last = perplexity(plain, 0, own["window"]), perplexity(plain, own["ctx"] - own["bucket"])
    times, tokens = last / inside, f"the last {own['bucket']:,} tokens"
    what = f"perplexity {inside:.1f} within the trained context, {last:.1f} on {tokens}: {times:.1f} times"
    return Answer(what, {"break": times > 5})


def interpolation(e):
    window = e.plan["frozen"]["window"]
    ntk, pi = e.losses("ntk", "yarn", window), e.losses("pi", "ntk", window)
    what = differences([("ntk minus yarn", ntk), ("pi minus ntk", pi)])
    return what and Answer(
        f"{what}, which is {math.exp(pi.value):.1f} times its perplexity",
        {"yarn below ntk": ntk.above(0), "pi twice as high": pi.above(math.log(2))},
    )


def want_training(e):
    window = e.plan["frozen"]["window"]
    of = {m: e.losses(m, "yarn", window) for m in ("harpe", "sba")}
    what = differences([(f"{m} minus yarn", d) for m, d in of.items()])
    return what and Answer(what, {m: every(d.above(0), d.below(0.2)) for m, d in of.items()})


def training_free(e):
    window = e.plan["frozen"]["window"]
    of = {m: e.losses(m, "yarn", window) for m in ("self-extend", "dca", "rerope")}
    what = differences([(f"{m} minus yarn", d) for m, d in of.items()])
    return what and Answer(what, {m: d.within(0.05) for m, d in of.items()})


def every(*parts):
    """Returns true if all parts held, false if one did not, and otherwise None."""
    return False if False in parts else None if None in parts else True


def needles(e, name):
    """Returns {(length, depth): (right, asked)} for a frozen method."""
    out = {}
    for length in e.plan["frozen"]["needle"]["lengths"]:
        for depth, scores in e.figures(f"frozen/needle/{name}/{length}").get("depths", {}).items():
            out[length, int(depth)] = (sum(scores), len(scores))
    return out


def needle_methods(e):
    names = [m["name"] for m in e.plan["frozen"]["methods"]]
    return [n for n in names if needles(e, n)]


def chosen_for_needles(e):
    """Returns the methods that the plan looks for needles with."""
    found = [u.id.split("/")[2] for u in e.units if u.id.startswith("frozen/needle/") and not u.waits]
    return list(dict.fromkeys(found))


def at_length(cells, length):
    return tuple(sum(part) for part in zip(*[v for (n, _), v in cells.items() if n == length])) or (0, 0)


def finding(e):
    own = e.plan["frozen"]["needle"]
    longest, few = max(own["lengths"]), ("lm-infinite", "streaming")
    chosen = chosen_for_needles(e)
    texts, left, parts = [], [], {"two of the four best": set(few) <= set(chosen)}
    for name in chosen:
        right, asked = at_length(needles(e, name), longest)
        low, high = wilson(right, asked)
        if asked:
            texts.append(f"{name} {right:g} of {asked} ({low:.0f}-{high:.0f}%)")
        else:
            left.append(name)
        if asked and name not in own["always"]:
            under = Interval(right, low, high).below(60)
            parts[name] = under if name in few or under is None else not under
    return Answer(f"at {longest:,}: {'; '.join(texts)}", parts, tuple(left)) if len(texts) > 1 else None


def harpe(e):
    others = ("abf", "abf in three stages", "yarn")
    of = {m: e.arms_found("harpe", m) for m in others}
    yarn = e.arms_found("yarn", "abf")
    what = differences([*((f"harpe minus {m}", d) for m, d in of.items()), ("yarn minus abf", yarn)])
    same = [(f"{a} at 3e-4", f"{b} at 3e-4") for a, b in (("harpe", "abf"), ("harpe", "yarn"), ("yarn", "abf"))]
    return what and Answer(
        "; ".join([what, *at_one_rate(e, same)]),
        {
            "harpe not 5 points above abf": of["abf"].of.below(5),
            "yarn above abf": yarn.of.above(0),
            "yarn above harpe": of["yarn"].of.below(0),
        },
    )


def spread(e):
    mean = "harpe, bases at their mean"
    found, loss = e.arms_found("harpe", mean), e.arms_losses("harpe", mean, 2048)
    what = differences([("spread minus mean, found", found), ("loss at 2k to 4k", loss)])
    same = at_one_rate(e, [("harpe at 3e-4", f"{mean}, at 3e-4")])
    return what and Answer("; ".join([what, *same]), {"found": found.of.within(3)})


def at_one_rate(e, pairs, length=None):
    """Returns the differences of what arms with the same learning rate find."""
    found = [(f"{a} minus {b}", e.arms_found(a, b, length)) for a, b in pairs]
    return [differences([pair]) for pair in found if pair[1]]


def sba(e):
    longest = e.plan["small"]["arms"]["ctx"]
    found, loss = e.arms_found("sba", "yarn", longest), e.arms_losses("sba", "yarn", 2048)
    what = differences([(f"sba minus yarn, found at {longest:,}", found), ("loss at 2k to 4k", loss)])
    if not what:
        return None
    rates = [e.figures(f"small/rate/{m}").get("rate", "") for m in ("sba", "yarn")]
    # What part of it is due to the rates.
    pairs = [("sba", "yarn at 3e-4"), ("sba at 1.2e-3", "yarn")]
    same, both = at_one_rate(e, pairs, longest), at_one_rate(e, pairs[:1])
    more = [f"learning rates {' and '.join(rates)}", *same, *(f"{text} at both lengths" for text in both)]
    return Answer("; ".join([what, *more]), {"found": found.of.below(0)})


def pi(e):
    loss, found = e.arms_losses("pi", "abf", 2048), e.arms_found("pi", "abf")
    what = differences([("pi minus abf, loss at 2k to 4k", loss), ("found", found)])
    return what and Answer(what, {"loss": loss.below(0.15), "found": found.of.below(0)})


# The held-out texts.
NOVELS = 6


def gap(e, arm, distance, marks=0, minus=None):
    """Returns how much a document's own beginning lowers the loss after a cut, compared with another beginning; with `minus`,
    how much more than in that arm without markers."""

    def of(arm, seed, marks):
        nll = e.figures(f"knots/measure/{arm}/{seed}").get("nll")
        pairs = zip(nll[f"{distance}-1-{marks}"], nll[f"{distance}-0-{marks}"], strict=True) if nll else []
        return [o - w for w, o in pairs]

    parts = []
    for seed in e.plan["knots"]["seeds"]:
        gaps = of(arm, seed, marks)
        if minus:
            both = [f"knots/measure/{name}/{seed}" for name in (arm, minus)]
            gaps = [a - b for a, b in zip(gaps, of(minus, seed, 0))] if e.alike(*both) else []
        if gaps:
            parts.append(gaps)
    if not parts:
        return None
    # Each document counts once, with its mean over seeds. The documents take turns with the novels.
    documents = [sum(d) / len(d) for d in zip(*parts)]
    each = [sum(d) / len(d) for d in parts] if len(parts) > 1 else ()
    return over_novels({i: documents[i::NOVELS] for i in range(min(NOVELS, len(documents)))}, each)


def knots(e):
    own = e.plan["knots"]
    far, (first, *others) = max(own["distances"]), [m["name"] for m in own["methods"]]
    more = {name: gap(e, name, far, 0, first) for name in others}
    last = others[-1]
    marked = gap(e, last, far, 1, first)
    between = gap(e, "cip", far, 0, "utk")
    parts = [(name, gap(e, name, far)) for name in (first, *others)]
    parts += [(f"{name} minus {first}", d) for name, d in more.items()]
    parts += [("cip minus utk", between), (f"{last} with knot tokens minus {first} without", marked)]
    what = differences(parts)
    return what and Answer(
        what,
        {"utk": more["utk"].above(0.05), "cip in between": every(more["cip"].above(0), between.below(0))},
    )


def questions(e, id):
    of = e.figures(id).get("questions")
    return [s for by in of.values() for scores in by.values() for s in scores] if of else None


def recipe(e):
    first, window = e.plan["recipe"]["methods"][0]["name"], e.plan["frozen"]["window"]
    ids = [f"recipe/perplexity/{kind}/{first}" for kind in ("trained", "frozen")]
    ids += [f"recipe/short/trained/{first}", "recipe/short/frozen/plain"]
    a, b = (e.documents(id) for id in ids[:2])
    short = [questions(e, id) for id in ids[2:]]
    if not (a and b and all(short) and e.alike(*ids)):
        return None
    change = Points(bootstrap([100 * (x - y) for x, y in zip(*short, strict=True)]), len(short[0]))
    past = paired(a, b, window)
    # What training gains within the trained context as well is not reach.
    parts = [
        f"trained minus frozen {first}: {nats(past)}",
        f"within the trained context {nats(paired(a, b, 0, window))}",
        f"past it more than within it by {nats(reach(a, b, window))}",
    ]
    for m in e.plan["recipe"]["frozen"]:
        id = f"recipe/perplexity/frozen/{m['name']}"
        if e.documents(id) and e.alike(id, *ids):
            parts.append(f"trained minus frozen {m['name']}: {nats(paired(a, e.documents(id), window))}")
    what = "; ".join([*parts, f"PIQA: {points(change)}"])
    return Answer(what, {"loss": past.below(0), "PIQA": change.of.above(-3)})


def unseen(e):
    own = e.plan["recipe"]
    ids = [f"recipe/perplexity/trained/{m}" for m in ("sba", "yarn", "pi")]
    sba, yarn, pi = (e.documents(id) for id in ids)
    if not (sba and yarn and e.alike(*ids[:2])):
        return None
    of = {name: paired(d, yarn, own["target"]) for name, d in (("sba", sba), ("pi", pi if e.alike(*ids) else None)) if d}
    return Answer(differences([(f"{name} minus yarn", d) for name, d in of.items()]), {"loss": of["sba"].above(0)})


# By part of the plan.
ANSWERS = {
    "frozen": (breaks, interpolation, want_training, training_free, finding),
    "small": (harpe, spread, sba, pi),
    "knots": (knots,),
    "recipe": (recipe, unseen),
}


def answers(plan):
    """Returns the functions of the plan's parts by name."""
    return {f.__name__: f for part in plan["parts"] for f in ANSWERS[part]}
