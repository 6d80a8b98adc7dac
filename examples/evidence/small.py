"""A small model, trained from scratch and extended by each method."""

import material
from place import write
from unit import (
    Step,
    Unit,
    by_document,
    evaluation,
    losses,
    mean_nll,
    perplexity,
    right_or_wrong,
    samples_of,
    slug,
    sources,
    train,
    trained,
)


def chosen_base(plan, records):
    """Returns the unit whose model is extended, and the gate that the model must pass."""
    last = f"small/base-{len(plan['small']['base'])}"
    gate = records.get("small/gate")
    if gate and not gate["figures"]["open"]:
        return f"small/base-{len(plan['small']['base']) + len(plan['small']['more'])}", "small/gate again"
    return last, "small/gate"


def small(plan, records):
    own = plan["small"]
    shape = own["shape"]
    first = Unit(
        "small/start", {"shape": shape, "seed": own["seed"], "prose": own["prose"]}, model=True, seed=own["seed"]
    )

    def make(place, _):
        folder = material.start_folder(place)
        return [
            Step(
                "convert",
                ["convert", folder, "--pre", "smollm", "--type", "f32", "-o", place.model(first.id)],
                makes=place.model(first.id),
            )
        ]

    first.steps, first.figures, first.inputs = make, (lambda place, _, out: {}), (lambda place: [own["prose"]])
    yield first

    before = first.id
    gate_of = {}
    stages = [("base", s) for s in own["base"]]
    gate = records.get("small/gate")
    if gate and not gate["figures"]["open"]:
        stages += [("more", s) for s in own["more"]]
    for i, (part, stage) in enumerate(stages, 1):
        unit = Unit(f"small/base-{i}", {"options": own["options"], **stage}, needs=[before], model=True)
        unit.work = [("small-train", stage["ctx"], stage["ctx"] * stage["batch"] * stage["steps"])]

        def steps(place, _, id=unit.id, before=before, stage=stage):
            options = [*own["options"], "--set", "held-out=16,eval-every=100", *stage["options"]]
            return [
                train(
                    place, id, place.model(before), stage["data"], stage["ctx"], stage["batch"], stage["steps"], options
                )
            ]

        unit.steps, unit.figures, unit.inputs = steps, trained(unit.id), sources(plan, stage["data"])
        before = unit.id
        yield unit
        if i in (len(own["base"]), len(own["base"]) + len(own["more"])):
            rule = own["gate"]
            check = Unit(
                "small/gate" if part == "base" else "small/gate again", dict(rule), needs=[before], seed=rule["seed"]
            )
            check.work = [("small-read", rule["length"], 3 * rule["length"] * rule["questions"])]

            def ask(place, _, id=check.id, model=before):
                tasks = [rule["task"], "niah_single_1", "niah_single_2"]
                return [
                    evaluation(
                        place,
                        id,
                        "gate",
                        place.model(model),
                        tasks,
                        [rule["length"]],
                        rule["questions"],
                        rule["seed"],
                        ["--set", f"ruler={rule['ruler']}"],
                    )
                ]

            def judge(place, _, out, id=check.id):
                scores = right_or_wrong(out["gate"], samples_of(place, id, "gate"))
                of = scores[rule["task"]][str(rule["length"])]
                return {"open": 100 * sum(of) / len(of) > rule["above"], "questions": scores}

            check.steps, check.figures, check.inputs = ask, judge, lambda place: [place.data("ruler")]
            gate_of[before] = check.id
            yield check

    base, opened = chosen_base(plan, records)
    # All rates come first, then all arms of a seed: they can be compared before another seed starts.
    for arms in (own["arms"]["methods"], own["arms"]["controls"]):
        for groups in zip(*(arm_units(plan, records, base, opened, arm) for arm in arms), strict=True):
            for group in groups:
                yield from group


def rope_of(place, arm, base):
    """Returns the RoPE spec of an arm."""
    if "mean_of" not in arm:
        return arm["spec"]
    if place.out is None:
        return "harpe"
    shown = place.ask(
        ["rope", arm["mean_of"], "-m", place.model(base), "--ctx", place.plan["small"]["arms"]["ctx"], "--json"]
    )
    mean = sum(shown["bases"]) / len(shown["bases"])
    return "harpe:bases=" + "/".join([f"{mean:.0f}"] * len(shown["bases"]))


def arm_options(place, arm, base, name):
    """Returns the options of an arm: its RoPE method, or its file of stages."""
    if "stages" not in arm:
        return ["--rope", rope_of(place, arm, base)]
    path = place.inside("material", f"{slug(arm['name'])}-{name}.toml")
    arms = place.plan["small"]["arms"]
    share, step = arms["rate_steps"] / arms["steps"] if name == "rate" else 1, arms["ctx"] * arms["batch"]
    text = ""
    for ctx, rope, tokens in arm["stages"]:
        tokens = max(1, round(tokens * share / step)) * step
        # A step has as many tokens at every context.
        text += f'[[stage]]\nctx = {ctx}\nbatch = {step // ctx}\nrope = "{rope}"\ntokens = {tokens}\n'
    if place.out:
        write(path, text)
    return ["--stages", path]


def arm_units(plan, records, base, opened, arm):
    """Yields the unit that chooses an arm's rate, then for each seed the units that train and measure it."""
    own = plan["small"]
    arms, name = own["arms"], arm["name"]
    rates = arm.get("rates", arms["rates"])
    tokens = arms["ctx"] * arms["batch"]
    common = {
        "arm": {k: v for k, v in arm.items() if k != "name"},
        **{k: arms[k] for k in ("ctx", "batch", "data", "order", "options")},
        "all": own["options"],
    }
    rate = Unit(
        f"small/rate/{name}",
        {
            **common,
            "rates": rates,
            **{k: arms[k] for k in ("rate_steps", "rate_warmup", "rate_seed")},
            "texts": plan["texts"]["rates"],
        },
        needs=[base, opened],
        seed=arms["rate_seed"],
    )
    rate.work = [("small-train", arms["ctx"], len(rates) * tokens * arms["rate_steps"])]

    def one(place, id, lr, steps, seed, name, out=None, kind="arm"):
        warmup = arms["rate_warmup" if kind == "rate" else "warmup"]
        options = [*own["options"], *arms["options"], "--set", f"order={arms['order']},warmup={warmup}"]
        options += ["--lr", lr, "--seed", seed, *arm_options(place, arm, base, kind)]
        whole = (None, None, None) if "stages" in arm else (arms["ctx"], arms["batch"], steps)
        return train(place, id, place.model(base), arms["data"], *whole, options, name, out)

    def tries(place, _):
        texts, steps = material.documents(place, "rates"), []
        for lr in rates:
            model = place.work(rate.id) / f"{lr}.gguf"
            steps += [
                one(place, rate.id, lr, arms["rate_steps"], arms["rate_seed"], f"lr-{lr}", model, "rate"),
                perplexity(place, f"loss-{lr}", model, texts, arms["ctx"], own["measure"]["bucket"]),
            ]
        return steps

    def choose(place, _, out):
        last = {lr: losses(place.work(rate.id) / f"{lr}.log.jsonl")["held_out"][-1][1] for lr in rates}
        loss = {lr: round(mean_nll({"documents": by_document(out[f"loss-{lr}"])}), 4) for lr in rates}
        return {"held_out": last, "loss": loss, "rate": min(loss, key=loss.get)}

    def inputs(place):
        return [*sources(plan, arms["data"])(place), *material.documents(place, "rates")]

    rate.steps, rate.figures, rate.inputs = tries, choose, inputs
    yield [rate]
    for seed in arms["seeds"]:
        unit = Unit(
            f"small/train/{name}/{seed}",
            {**common, "steps": arms["steps"], "warmup": arms["warmup"], "seed": seed},
            needs=[base, rate.id],
            model=True,
            seed=seed,
        )
        unit.work = [("small-train", arms["ctx"], tokens * arms["steps"])]

        def steps(place, records, id=unit.id, seed=seed):
            lr = records[rate.id]["figures"]["rate"] if rate.id in records else rates[0]
            return [one(place, id, lr, arms["steps"], seed, "train")]

        unit.steps, unit.figures, unit.inputs = steps, trained(unit.id), sources(plan, arms["data"])
        yield [unit, measure(plan, f"small/measure/{name}/{seed}", unit.id, seed)]


def measure(plan, id, model, seed):
    own = plan["small"]
    rule = own["measure"]
    unit = Unit(
        id, {**rule, "seed": seed, "texts": plan["texts"][own["texts"]]}, needs=[model], seed=rule["seed"] + seed
    )
    each = sum(rule["lengths"]) * rule["questions"] * len(rule["tasks"])
    unit.work = [("small-read", 4096, each + 48 * 4096)]

    def steps(place, _):
        texts = material.documents(place, own["texts"])
        return [
            perplexity(place, "perplexity", place.model(model), texts, max(rule["lengths"]), rule["bucket"]),
            evaluation(
                place,
                id,
                "needles",
                place.model(model),
                rule["tasks"],
                rule["lengths"],
                rule["questions"],
                rule["seed"] + seed,
                ["--ctx", max(rule["lengths"])],
            ),
        ]

    def figures(place, _, out):
        return {
            "rope": out["perplexity"]["rope"],
            "documents": by_document(out["perplexity"]),
            "questions": right_or_wrong(out["needles"], samples_of(place, id, "needles")),
        }

    unit.steps, unit.figures = steps, figures
    unit.inputs = lambda place: [*material.documents(place, own["texts"]), place.data("ruler")]
    return unit
