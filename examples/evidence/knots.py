"""Untie the Knots on the small model: how much a document's own beginning helps after a cut."""

import material
from small import chosen_base
from unit import Unit, perplexity, sources, train, trained


def knots(plan, records):
    own, small_plan = plan["knots"], plan["small"]
    arms = small_plan["arms"]
    base, opened = chosen_base(plan, records)
    (arm,) = [a for a in arms["methods"] if a["name"] == own["arm"]]
    rate = f"small/rate/{own['arm']}"
    for seed in own["seeds"]:
        for method in own["methods"]:
            # The texts are cut, so they have no order to keep. The seed shuffles the batches.
            options = arms["options"]
            spec = {
                "rope": arm["spec"],
                "method": method["options"],
                "options": options,
                "all": small_plan["options"],
                "steps": arms["steps"],
                "warmup": arms["warmup"],
                "seed": seed,
                "data": own["data"],
            }
            unit = Unit(f"knots/train/{method['name']}/{seed}", spec, needs=[base, rate], model=True, seed=seed)
            unit.work = [("small-train", arms["ctx"], arms["ctx"] * arms["steps"])]

            def steps(place, records, id=unit.id, seed=seed, method=method, options=options):
                lr = records[rate]["figures"]["rate"] if rate in records else arms["rates"][0]
                more = [
                    *small_plan["options"],
                    *options,
                    "--set",
                    f"warmup={arms['warmup']}",
                    "--lr",
                    lr,
                    "--seed",
                    seed,
                    "--rope",
                    arm["spec"],
                    *method["options"],
                ]
                return [
                    train(place, id, place.model(base), own["data"], arms["ctx"], arms["batch"], arms["steps"], more)
                ]

            unit.steps, unit.figures, unit.inputs = steps, trained(unit.id), sources(plan, own["data"])
            yield unit
            check = Unit(
                f"knots/measure/{method['name']}/{seed}",
                {k: own[k] for k in ("half", "distances", "scored", "documents", "seed")},
                needs=[unit.id],
                seed=own["seed"],
            )
            check.work = [
                (
                    "small-read",
                    4096,
                    4 * own["documents"] * sum(d + own["half"] + own["scored"] for d in own["distances"]),
                )
            ]

            def ask(place, _, model=unit.id):
                out = []
                for (distance, mine, marks), path in material.knots(place).items():
                    n = 1 + own["half"] + distance + own["scored"]
                    more = ["--bos", "on", "--rope", arm["spec"]]
                    out.append(
                        perplexity(
                            place, f"{distance}-{mine:d}-{marks:d}", place.model(model), [path], n, own["scored"], more
                        )
                    )
                return out

            def figures(place, _, out):
                found = {}
                for name, report in out.items():
                    # The last bucket of each document is the text after the knot.
                    found[name] = [
                        round(t["buckets"][-1]["nll_sum"] / t["buckets"][-1]["tokens"], 4)
                        for t in report["results"][0]["texts"]
                    ]
                return {"nll": found}

            check.steps, check.figures = ask, figures
            check.inputs = lambda place: sorted(material.knots(place).values())
            yield check
