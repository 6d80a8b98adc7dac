"""The default model trained by PoSE for an hour."""

import material
from unit import Step, Unit, device, evaluation, reads, right_or_wrong, samples_of, trained


def train(plan, m):
    """Returns the unit that trains the default model for a method."""
    own, model = plan["recipe"], plan["frozen"]["model"]
    fixed = {k: own[k] for k in ("data", "seed", "options", "ctx", "steps", "target")}
    unit = Unit(
        f"recipe/train/{m['name']}", {"model": model, "spec": m["spec"], **fixed}, model=True, seed=own["seed"]
    )
    unit.work = [("read", own["ctx"], own["cost"] * own["ctx"] * own["steps"])]

    def steps(place, _):
        args = [
            "finetune",
            "-m",
            model,
            "-d",
            own["data"],
            "--rope",
            m["spec"],
            "--ctx",
            own["ctx"],
            "--steps",
            own["steps"],
        ]
        args += ["--transform", f"pose:target={own['target']}", "--seed", own["seed"], *own["options"]]
        cache = place.inside("material", "recipe.tokens")
        args += ["--set", f"cache={cache}", "-o", place.model(unit.id), *device(place)]
        return [Step("train", args, makes=place.model(unit.id), resumes=True)]

    unit.steps, unit.figures, unit.inputs = steps, trained(unit.id), lambda place: [model, own["data"]]
    return unit


def recipe(plan, records):
    own, model = plan["recipe"], plan["frozen"]["model"]

    def documents(place):
        return material.documents(place, own["texts"])

    cells = [(m["name"], ["--rope", m["spec"]], None, m) for m in own["methods"]]
    cells = [c for pair in ((c, (c[0], c[1], f"recipe/train/{c[0]}", c[3])) for c in cells) for c in pair]
    # Frozen methods that are not trained.
    cells[2:2] = [(m["name"], ["--rope", m["spec"]], None, m) for m in own["frozen"]]
    for name, rope, adapter, m in cells:
        if not adapter and m in own["methods"]:
            yield train(plan, m)
        kind = "trained" if adapter else "frozen"
        unit = Unit(
            f"recipe/perplexity/{kind}/{name}",
            {
                "model": model,
                "spec": m["spec"],
                "ctx": own["measured"],
                "bucket": own["bucket"],
                "texts": plan["texts"][own["texts"]],
            },
            needs=[adapter] if adapter else [],
        )
        unit.work = [("read", own["measured"], 12 * own["measured"] * m.get("cost", 1))]

        def options(place, rope=rope, adapter=adapter):
            return [*rope, *(["--lora", place.model(adapter)] if adapter else [])]

        reads(unit, documents, model, own["measured"], own["bucket"], options)
        yield unit
    first = own["methods"][0]
    for name, more, adapter in (
        ("plain", ["--rope", "plain"], None),
        (first["name"], ["--rope", first["spec"]], f"recipe/train/{first['name']}"),
    ):
        unit = Unit(
            f"recipe/short/{'trained' if adapter else 'frozen'}/{name}",
            {"model": model, **own["short"], "more": more},
            needs=[adapter] if adapter else [],
        )
        unit.work = [("read", 512, own["short"]["questions"] * 120)]

        def steps(place, _, more=more, adapter=adapter, id=unit.id):
            lora = ["--lora", place.model(adapter)] if adapter else []
            ctx = ["--ctx", own["target"]] if adapter else []
            return [
                evaluation(
                    place,
                    id,
                    "short",
                    model,
                    [own["short"]["task"]],
                    [],
                    own["short"]["questions"],
                    own["seed"],
                    [*more, *lora, *ctx],
                )
            ]

        def figures(place, _, out, id=unit.id):
            return {"questions": right_or_wrong(out["short"], samples_of(place, id, "short"))}

        unit.steps, unit.figures = steps, figures
        unit.inputs = lambda place: [model, place.data("short")]
        yield unit
