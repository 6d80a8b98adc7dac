"""The default model, frozen, at twice its trained context: perplexity by position, and needles by context and depth."""

import material
from place import digest
from unit import Step, Unit, evaluation, mean_nll, reads, right_or_wrong, samples_of, slug


def frozen(plan, records):
    own = plan["frozen"]
    methods, model, ctx = own["methods"], own["model"], own["ctx"]
    n_texts = 2 * 6 if own["texts"] == "long" else 48
    fixed = {"model": model, "ctx": ctx}

    def plans(place, _):
        return [Step(slug(m["name"]), ["rope", m["spec"], "-m", model, "--ctx", ctx, "--json"]) for m in methods]

    def groups(place, _, out):
        """Groups methods that are the same computation under the first of them."""
        seen, equal, keys = {}, {}, {}
        for m in methods:
            shown = out[slug(m["name"])]
            rows = [[float(f"{x:.6g}") for x in row] for row in shown["freqs"]]
            # If all heads have the same table, keep one.
            rows = rows[:1] if all(row == rows[0] for row in rows) else rows
            key = digest([rows, round(shown["mscale"], 6), shown["temperature"], shown["branches"]])
            # Temperatures of queries are only in the spec.
            key = digest(
                [
                    key,
                    [s for s in m["spec"].replace("+", ",").split(",") if "temperature" in s or "log-scale=true" in s],
                ]
            )
            keys[m["name"]] = {"spec": shown["rope"], "plan": key[:16]}
            if key in seen:
                equal[m["name"]] = seen[key]
            seen.setdefault(key, m["name"])
        return {"methods": keys, "equal": equal}

    first = Unit("frozen/plans", {**fixed, "methods": [m["spec"] for m in methods]}, steps=plans, figures=groups)
    first.inputs = lambda place: [model]
    yield first
    equal = records.get(first.id, {}).get("figures", {}).get("equal", {})

    def documents(place):
        return material.documents(place, own["texts"])

    measured = []
    for m in methods:
        if m["name"] in equal:
            continue
        unit = Unit(
            f"frozen/perplexity/{m['name']}",
            {**fixed, "spec": m["spec"], "bucket": own["bucket"], "texts": plan["texts"][own["texts"]]},
        )
        unit.after = [first.id]
        unit.work = [("read", ctx, n_texts * ctx * m.get("cost", 1))]

        reads(unit, documents, model, ctx, own["bucket"], lambda _, m=m: ["--rope", m["spec"]])
        measured.append(unit)
        yield unit

    needle = own["needle"]
    chosen = [m for m in methods if m["name"] in needle["always"]]
    done = [u for u in measured if u.id in records]
    if len(done) == len(measured):
        ranked = sorted(
            (m for m in methods if m["name"] not in equal and m not in chosen),
            key=lambda m: mean_nll(records[f"frozen/perplexity/{m['name']}"]["figures"]),
        )
        chosen += ranked[: needle["best"]]
    for m in chosen:
        for length in needle["lengths"]:
            unit = Unit(
                f"frozen/needle/{m['name']}/{length}",
                {
                    **fixed,
                    "spec": m["spec"],
                    "length": length,
                    **{k: needle[k] for k in ("task", "depths", "questions", "seed")},
                },
            )
            # The text before a needle is read once for all questions at a depth.
            share = sum(1 + (needle["questions"] - 1) * (1 - d / 100) for d in needle["depths"])
            unit.work = [("read", length, share * length * m.get("cost", 1))]

            def steps(place, _, m=m, length=length, id=unit.id):
                def one(d):
                    more = ["--rope", m["spec"], "--ctx", ctx, "--set", f"depth={d}"]
                    return evaluation(
                        place,
                        id,
                        f"depth-{d}",
                        model,
                        [needle["task"]],
                        [length],
                        needle["questions"],
                        needle["seed"] + d,
                        more,
                    )

                return [one(d) for d in needle["depths"]]

            def figures(place, _, out, id=unit.id, length=length):
                of = {n: right_or_wrong(report, samples_of(place, id, n)) for n, report in out.items()}
                return {"depths": {n.removeprefix("depth-"): x[needle["task"]][str(length)] for n, x in of.items()}}

            unit.steps, unit.figures, unit.seed, unit.after = steps, figures, needle["seed"], [first.id]
            unit.inputs = lambda place: [model, place.data("ruler")]
            yield unit
    if len(done) < len(measured):
        for i in range(needle["best"]):
            yield Unit(
                f"frozen/needle/best {i + 1}",
                {},
                after=[u.id for u in measured],
                waits="depends on the perplexity of all methods",
            )
