"""Computes the result for each prediction from the records."""

from stats import bootstrap, paired, perplexity, reach, wilson
from units import all_units, plan_hashes


NOT_YET = "not measured yet"


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
        """Returns the seeds for which both arms have records."""
        a, b = self.arm(a), self.arm(b)
        return [(seed, a[seed], b[seed]) for seed in a if seed in b]

    # Comparisons. Each returns text, or None if a record is missing.

    def losses(self, a, b, start, end=1 << 40):
        a, b = self.frozen(a), self.frozen(b)
        return paired(a, b, start, end) if a and b else None

    def arms_losses(self, a, b, start, end=1 << 40):
        pairs = self.both(a, b)
        return (
            paired([x["documents"] for _, x, _ in pairs], [y["documents"] for _, _, y in pairs], start, end)
            if pairs
            else None
        )

    def arms_found(self, a, b, length=None):
        """Returns by how many percentage points `a` finds more than `b` on the same questions, and the number of questions."""
        parts = []
        for _, x, y in self.both(a, b):
            for task, by in x["questions"].items():
                for n, scores in by.items():
                    if length in (None, int(n)):
                        parts += [(100 * (p - q), 1) for p, q in zip(scores, y["questions"][task][n], strict=True)]
        return (*bootstrap(parts), len(parts)) if parts else None

    def found(self, arm, length=None):
        scores = [
            s
            for f in self.arm(arm).values()
            for by in f["questions"].values()
            for n, of in by.items()
            if length in (None, int(n))
            for s in of
        ]
        return sum(scores), len(scores)


def nats(of):
    return f"{of[0]:+.3f} nats ({of[1]:+.3f} to {of[2]:+.3f})"


def points(of):
    return f"{of[0]:+.1f} points ({of[1]:+.1f} to {of[2]:+.1f}; {of[3]:,} questions)"


def joined(parts):
    """Joins comparisons. Returns None if one is missing."""
    return "; ".join(f"{name}: {show(of)}" for name, of, show in parts) if all(of for _, of, _ in parts) else None


# One function for each prediction.


def breaks(e):
    own = e.plan["frozen"]
    plain = e.frozen("plain")
    if not plain:
        return None
    inside, last = perplexity(plain, 0, own["window"]), perplexity(plain, own["ctx"] - own["bucket"])
    last_tokens = f"the last {own['bucket']:,} tokens"
    return f"perplexity {inside:.1f} within the trained context, {last:.1f} on {last_tokens}: {last / inside:.1f} times"


def interpolation(e):
    window = e.plan["frozen"]["window"]
    return joined(
        [
            ("ntk minus yarn", e.losses("ntk", "yarn", window), nats),
            ("pi minus ntk", e.losses("pi", "ntk", window), nats),
        ]
    )


def want_training(e):
    window = e.plan["frozen"]["window"]
    return joined([(f"{m} minus yarn", e.losses(m, "yarn", window), nats) for m in ("harpe", "sba")])


def training_free(e):
    window = e.plan["frozen"]["window"]
    return joined([(f"{m} minus yarn", e.losses(m, "yarn", window), nats) for m in ("self-extend", "dca", "rerope")])


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
    longest = max(e.plan["frozen"]["needle"]["lengths"])
    parts = []
    for name in needle_methods(e):
        right, asked = at_length(needles(e, name), longest)
        if asked:
            low, high = wilson(right, asked)
            parts.append(f"{name} {right:g} of {asked} ({low:.0f}-{high:.0f}%)")
    left = [n for n in chosen_for_needles(e) if not at_length(needles(e, n), longest)[1]]
    missing = f"; {NOT_YET}: {', '.join(left)}" if left else ""
    return f"at {longest:,}: {'; '.join(parts)}{missing}" if len(parts) > 1 else None


def harpe(e):
    return joined(
        [(f"harpe minus {m}", e.arms_found("harpe", m), points) for m in ("abf", "abf in three stages", "yarn")]
    )


def spread(e):
    mean = "harpe, bases at their mean"
    return joined(
        [
            ("spread minus mean", e.arms_found("harpe", mean), points),
            ("loss at 2k to 4k", e.arms_losses("harpe", mean, 2048), nats),
        ]
    )


def sba(e):
    longest = e.plan["small"]["arms"]["ctx"]
    return joined(
        [
            ("sba minus yarn", e.arms_found("sba", "yarn", longest), points),
            ("loss at 2k to 4k", e.arms_losses("sba", "yarn", 2048), nats),
        ]
    )


def pi(e):
    return joined(
        [("pi minus abf", e.arms_losses("pi", "abf", 2048), nats), ("found", e.arms_found("pi", "abf"), points)]
    )


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
            gaps = [a - b for a, b in zip(gaps, of(minus, seed, 0))]
        if gaps:
            parts.append(gaps)
    # Each document counts once, with its mean over seeds.
    return bootstrap([(sum(d) / len(d), 1) for d in zip(*parts)]) if parts else None


def knots(e):
    own = e.plan["knots"]
    far, first = max(own["distances"]), own["methods"][0]["name"]
    parts = [(m["name"], gap(e, m["name"], far), nats) for m in own["methods"]]
    parts += [(f"{m['name']} minus {first}", gap(e, m["name"], far, 0, first), nats) for m in own["methods"][1:]]
    last = own["methods"][-1]["name"]
    parts.append((f"{last} with knot tokens minus {first} without", gap(e, last, far, 1, first), nats))
    return joined(parts)


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
    change = bootstrap([(100 * (x - y), 1) for x, y in zip(*short, strict=True)])
    # What training gains within the trained context as well is not reach.
    parts = [
        f"trained minus frozen {first}: {nats(paired(a, b, window))}",
        f"within the trained context {nats(paired(a, b, 0, window))}",
        f"past it more than within it by {nats(reach(a, b, window))}",
    ]
    for m in e.plan["recipe"]["frozen"]:
        id = f"recipe/perplexity/frozen/{m['name']}"
        if e.documents(id) and e.alike(id, *ids):
            parts.append(f"trained minus frozen {m['name']}: {nats(paired(a, e.documents(id), window))}")
    return "; ".join([*parts, f"PIQA: {points((*change, len(short[0])))}"])


def unseen(e):
    own = e.plan["recipe"]
    ids = [f"recipe/perplexity/trained/{m}" for m in ("sba", "yarn", "pi")]
    a, b, c = (e.documents(id) for id in ids)
    if not (a and b and c and e.alike(*ids)):
        return None
    start = own["target"]
    return f"sba minus yarn: {nats(paired(a, b, start))}; pi minus yarn: {nats(paired(c, b, start))}"


ANSWERS = {
    f.__name__: f
    for f in (
        breaks,
        interpolation,
        want_training,
        training_free,
        finding,
        harpe,
        spread,
        sba,
        pi,
        knots,
        recipe,
        unseen,
    )
}
