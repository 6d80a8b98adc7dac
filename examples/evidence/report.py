"""Writes docs/evidence.md and its pictures from the records alone. See report.sh."""

import argparse
import pathlib
import sys
import tomllib
from statistics import fmean as mean

import drawing
from answers import NOT_YET, Evidence, answers, at_length, gap, nats, chosen_for_needles, needle_methods, needles, points
from place import HERE, Problem, RECORDS, ROOT, read_plan, read_records, write
from start import parameters
from stats import paired, perplexity, wilson

# Tables.


def table(head, rows):
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(map(str, r))} |" for r in rows), ""]


def best_of(names, documents, start, end):
    """Returns the method with the lowest loss if its interval against every other method excludes 0."""
    if len(names) < 2:
        return None
    best = min(names, key=lambda n: perplexity(documents(n), start, end))
    others = [n for n in names if n != best]
    return best if all(paired(documents(best), documents(n), start, end).below(0) for n in others) else None


def k(n):
    return f"{n / 1024:g}k"


def frozen_section(e):
    own = e.plan["frozen"]
    names = [m["name"] for m in own["methods"]]
    there = [n for n in names if n not in e.equal and e.frozen(n)]
    out = [f"## {own['name']}, frozen, at {own['ctx']:,} tokens", ""]
    if not there:
        return [*out, NOT_YET + ".", ""], {}
    n_documents = len(e.frozen(there[0]))
    spans = [(0, own["window"])] + [(s, s + own["bucket"]) for s in range(own["window"], own["ctx"], own["bucket"])]
    against = "yarn" if "yarn" in there else None
    bold = {span: best_of(there, e.frozen, *span) for span in spans}
    rows = []
    for name in names:
        if name in e.equal:
            rows.append([name, *["="] * len(spans), f"same computation as {e.equal[name]}"])
            continue
        of = e.frozen(name)
        if not of:
            rows.append([name, *[""] * len(spans), NOT_YET])
            continue
        cells = [f"**{perplexity(of, *s):.1f}**" if bold[s] == name else f"{perplexity(of, *s):.1f}" for s in spans]
        rows.append([name, *cells, nats(e.losses(name, against, own["window"])) if against and name != against else ""])
    out += [
        f"Perplexity by position on {n_documents} held-out documents, two from each of six novels. The protocol is `window`. "
        f"The trained context is {own['window']:,} tokens.",
        "The last column is the loss past the trained context minus YaRN's loss on the same tokens, with its 95% interval.",
        "Bold marks the lowest perplexity of a column if its interval against every other method excludes 0.",
        "",
        *table(["method", *(f"{k(a)}-{k(b)}" for a, b in spans), "past the trained context, minus yarn"], rows),
    ]
    buckets = range(0, own["ctx"], own["bucket"])
    # The chart has colors for the baseline and the methods with the lowest loss past the trained context.
    shown = sorted(there, key=lambda n: (n != "plain", perplexity(e.frozen(n), own["window"])))
    series = [
        (n, [(s + own["bucket"] / 2, perplexity(e.frozen(n), s, s + own["bucket"])) for s in buckets]) for n in shown
    ]
    pictures = {
        "evidence-frozen.svg": drawing.lines(
            f"{own['name']}, frozen: perplexity by position",
            "position (tokens)",
            "perplexity (log scale)",
            series,
            (own["window"], "trained context"),
        )
    }
    out += ["![Perplexity by position](images/evidence-frozen.svg)", ""]
    chosen, left = needle_methods(e), [n for n in chosen_for_needles(e) if n not in needle_methods(e)]
    needle = own["needle"]
    out += [
        f"Needles found (`{needle['task']}`) of {len(needle['depths']) * needle['questions']}, by context, with the 95% "
        f"Wilson interval. The methods are plain and the {needle['best']} with the lowest perplexity over all "
        f"{own['ctx']:,} tokens" + (f"; not measured yet: {', '.join(left)}:" if left else ":"),
        "",
    ]
    if not chosen:
        return [*out, NOT_YET + ".", ""], pictures
    rows = []
    for name in chosen:
        cells = []
        for length in needle["lengths"]:
            right, asked = at_length(needles(e, name), length)
            low, high = wilson(right, asked)
            cells.append(f"{right:g} of {asked} ({low:.0f}-{high:.0f}%)" if asked else "")
        rows.append([name, *cells])
    out += [
        *table(["method", *map(k, needle["lengths"])], rows),
        "![Needles found by depth and context](images/evidence-needles.svg)",
        "",
    ]
    pictures["evidence-needles.svg"] = drawing.maps(
        f"{own['name']}, frozen: needles found by depth and context",
        [(n, needles(e, n)) for n in chosen],
        needle["lengths"],
        needle["depths"],
    )
    return out, pictures


def arm_of(name):
    """Returns the arm that has another learning rate in a control."""
    return name.rpartition(" at ")[0].rstrip(",") if name.endswith(("e-3", "e-4")) else name


def with_rate(e, name):
    return f"{arm_of(name)}, {e.figures(f'small/rate/{name}').get('rate', '')}"


def small_section(e):
    own = e.plan["small"]
    arms, rule = own["arms"], own["measure"]
    out = [f"## A small model trained from scratch at {own['shape']['window']} tokens, extended to {arms['ctx']:,}", ""]
    for id in ("small/gate", "small/gate again"):
        gate = e.figures(id)
        if gate:
            parts = []
            for task, by in gate["questions"].items():
                (of,) = by.values()
                low, high = wilson(sum(of), len(of))
                parts.append(f"`{task}` {100 * sum(of) / len(of):.0f}% ({low:.0f}-{high:.0f}%, {len(of)} questions)")
            out += [
                f"Before extension, at {own['gate']['length']} tokens: {', '.join(parts)}. The base model "
                f"{'passes' if gate['open'] else 'does not pass'} the gate: `{own['gate']['task']}` above {own['gate']['above']:g}%.",
                "",
            ]
    there = [m["name"] for m in arms["methods"] if e.arm(m["name"])]
    if not there:
        return [*out, NOT_YET + ".", ""], {}
    spans = [(0, 512), (512, 1024), (1024, 2048), (2048, 4096)]
    rows, series = [], []
    controls = [m["name"] for m in arms["controls"] if e.arm(m["name"])]
    for name in [*(m["name"] for m in arms["methods"]), *controls]:
        of = e.arm(name)
        if not of:
            rows.append([name, *[""] * (len(spans) + 2 + len(rule["lengths"])), NOT_YET])
            continue
        rate = e.figures(f"small/rate/{name}").get("rate", "")
        cells = []
        for span in spans:
            ppl = [perplexity(f["documents"], *span) for f in of.values()]
            cells.append(f"{mean(ppl):.1f}" + (f" ({min(ppl):.1f}-{max(ppl):.1f})" if len(ppl) > 1 else ""))
        for length in rule["lengths"]:
            found = e.found(name, length)
            cells.append(f"{mean(found):.1f}" + (f" ({min(found):.1f}-{max(found):.1f})" if len(found) > 1 else ""))
        difference = e.arms_found(name, "abf") if name != "abf" else None
        rows.append([name, rate, len(of), *cells, points(difference) if difference else ""])
        if name in controls:
            continue
        buckets = range(0, arms["ctx"], rule["bucket"])
        series.append(
            (
                name,
                [
                    (
                        s + rule["bucket"] / 2,
                        mean([perplexity(f["documents"], s, s + rule["bucket"]) for f in of.values()]),
                    )
                    for s in buckets
                ],
            )
        )
    out += [
        f"The model has {own['shape']['layers']} layers, width {own['shape']['width']}, and {own['shape']['heads']} KV heads of "
        f"{own['shape']['width'] // own['shape']['heads']} dimensions.",
        f"Each arm trains all parameters on {arms['steps'] * arms['ctx'] * arms['batch'] / 1e6:.2f}M tokens. "
        "All arms of a seed see identical batches, plain too.",
        "A seed chooses the documents, their order, and the questions. All seeds start from the same base.",
        "Perplexities and percentages are means over seeds, with the lowest and the highest in parentheses.",
        f'"Found" is the mean score of {", ".join(f"`{t}`" for t in rule["tasks"])}. The last task has four numbers, and '
        "each is a quarter of its score.",
        "",
        *table(
            [
                "method",
                "learning rate",
                "seeds",
                *(f"{a:,}-{b:,}" for a, b in spans),
                *(f"found at {n:,}" for n in rule["lengths"]),
                "found at both, minus abf",
            ],
            rows,
        ),
    ]
    task_rows = []
    for name in there + controls:
        cells = []
        for task in rule["tasks"]:
            parts = []
            for length in rule["lengths"]:
                parts.append(f"{mean(e.found(name, length, task)):.0f}")
            cells.append(" ".join(parts))
        task_rows.append([name, *cells])
    out += [
        f"Found by task, at {' and '.join(f'{n:,}' for n in rule['lengths'])}:",
        "",
        *table(["method", *(f"`{t}`" for t in rule["tasks"])], task_rows),
    ]
    out += [
        "![Found by method](images/evidence-found.svg)",
        "",
        "![Perplexity by position](images/evidence-small.svg)",
        "",
    ]
    title = f"A small model extended from {own['shape']['window']} tokens"
    longest = rule["lengths"][-1]
    return out, {
        "evidence-found.svg": drawing.dots(
            f"{title}: found at {longest:,}",
            "percent found (dots: seeds; bars: means)",
            [(with_rate(e, name), e.found(name, longest)) for name in sorted(there + controls, key=lambda n: there.index(arm_of(n)))],
        ),
        "evidence-small.svg": drawing.lines(
            f"{title}: perplexity by position",
            "position (tokens)",
            "perplexity (log scale)",
            series,
            (own["shape"]["window"], "context of the base"),
        ),
    }


def knots_section(e):
    own = e.plan["knots"]
    out = ["## The mechanism of Untie the Knots", ""]
    rows, seeds = [], set()
    for method in own["methods"]:
        seeds |= {seed for seed in own["seeds"] if e.figures(f"knots/measure/{method['name']}/{seed}")}
        for marks in (0, 1):
            found = [gap(e, method["name"], d, marks) for d in own["distances"]]
            if all(found) and (not marks or "utk" in " ".join(method["options"])):
                rows.append(
                    [
                        method["name"] + (", with knot tokens" if marks else ""),
                        *(f"{g.value:.3f} ({g.low:.3f} to {g.high:.3f})" for g in found),
                    ]
                )
    if not rows:
        return [*out, NOT_YET + ".", ""], {}
    out += [
        f"How much a document's own beginning helps after a cut, in nats per token on the first {own['scored']} tokens.",
        "The number is the loss after another passage of the same novel minus the loss after the document's own beginning. "
        "The columns are the distance in tokens.",
        f"It is measured on {own['documents']} documents. It is the mean of {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}.",
        "`pack` puts whole texts one after another. `cip` cuts texts into two chunks, which alternate. `utk` cuts them into more",
        "chunks, tangles them, and marks them with knot tokens.",
        "",
        *table(["trained on", *(f"{d:,}" for d in own["distances"])], rows),
    ]
    return out, {}


def recipe_section(e):
    own, window, name = e.plan["recipe"], e.plan["frozen"]["window"], e.plan["frozen"]["name"]
    out = [f"## {name} trained by PoSE to {own['target']:,}", ""]
    ends = sorted({0, window, own["target"], own["measured"]})
    spans = list(zip(ends, ends[1:]))
    buckets = range(0, own["measured"], own["bucket"])
    rows, series = [], []
    for method in own["methods"] + own["frozen"]:
        for kind in ("frozen", "trained"):
            of, row = e.documents(f"recipe/perplexity/{kind}/{method['name']}"), f"{method['spec']}, {kind}"
            if of:
                rows.append([row, *(f"{perplexity(of, *s):.2f}" for s in spans)])
                points = [(s + own["bucket"] / 2, perplexity(of, s, s + own["bucket"])) for s in buckets]
                series.append((row, points))
    if not rows:
        return [*out, NOT_YET + ".", ""], {}
    out += [
        f"Perplexity by position in windows of {own['measured']:,} tokens. No model was trained at positions past {own['target']:,}.",
        "",
        *table(["method", *(f"{k(a)}-{k(b)}" for a, b in spans)], rows),
        "![Perplexity by position](images/evidence-recipe.svg)",
        "",
    ]
    title, end = f"{name} trained to {own['target']:,}: perplexity by position", (own["target"], "trained positions end")
    return out, {
        "evidence-recipe.svg": drawing.lines(title, "position (tokens)", "perplexity (log scale)", series, end)
    }


def claims_section(e):
    with open(HERE / "predictions.toml", "rb") as file:
        claims = tomllib.load(file)["claim"]
    rows, details, ask = [], [], answers(e.plan)
    for c in claims:
        if c["measured"] not in ask:
            continue
        answer = ask[c["measured"]](e)
        rows.append([c["about"], c["predicted"], answer.verdict() if answer else NOT_YET])
        details.append(f"- **{c['about']}.** Paper: {c['paper']}. Here: {answer.measured if answer else NOT_YET}.")
    return [*table(["claim", "prediction", "did the prediction hold?"], rows), *details, ""]


def facts(e):
    commits = sorted({r["commit"][:9] for r in e.records.values()})
    machines = sorted({r["processor"] for r in e.records.values()})
    hours = sum(r["seconds"] for r in e.records.values()) / 3600
    left = sum(1 for u in e.units if u.id not in e.records)
    if not e.records:
        return "There are no records yet."
    return (
        f"So far there are {len(e.records)} records. Measuring them took {hours:.1f} hours, on {', '.join(machines)}. The programs were "
        f"built from commits {', '.join(commits)}. {left} units remain."
    )


def rates_at_an_end(e):
    """Says for how many methods a lower or higher rate might have been better."""
    arms = e.plan["small"]["arms"]
    chosen = [f["rate"] for f in (e.figures(f"small/rate/{m['name']}") for m in arms["methods"]) if f]
    ends = sum(rate in (arms["rates"][0], arms["rates"][-1]) for rate in chosen)
    return f". For {ends} of {len(chosen)} methods it is the lowest or the highest" if chosen else ""


SECTIONS = {"frozen": frozen_section, "small": small_section, "knots": knots_section, "recipe": recipe_section}


def controls(e):
    """Says what another learning rate changes."""
    names = [m["name"] for m in e.plan["small"]["arms"]["controls"]]
    arms = {name: arm_of(name) for name in names}
    parts = [f"{name} minus {arm}: {points(e.arms_found(name, arm))}" for name, arm in arms.items() if e.arms_found(name, arm)]
    more = f"  Arms with another rate were added after these had been measured. Found: {'; '.join(parts)}."
    return [more] if parts else []


def render(plan, records, changes=None):
    """Returns the page and its pictures. `changes` is the file that changed the plan."""
    e = Evidence(plan, records)
    if changes:
        intro = [
            f"This page compares claims of the papers with predictions and measurements. The plan is plan.toml with the changes in {changes}.",
            "The predictions were registered for the models of plan.toml.",
            "",
            facts(e),
        ]
    else:
        intro = [
            "This page compares claims of the papers with predictions and measurements, on models that two cores can train or run.",
            "`examples/evidence/report.sh` writes it from the records in `docs/results/records`; do not edit it.",
            "",
            facts(e),
            "",
            "The predictions were registered before the first unit ran. The small model was redesigned later, before any of its arms was",
            "measured: width 128 instead of 384, other lessons, and another rule for learning rates. The predictions for the frozen default",
            "model were not blind: an [earlier record](results/quality-methods-16384.md) has most of its perplexities on another text.",
        ]
    out = [
        "# Evidence",
        "",
        *intro,
        "",
        "All intervals are 95% intervals. Those of losses are Student's, over six novels, because passages of one novel resemble each",
        "other. Those of found needles are bootstrapped over questions, or Wilson's for a single percentage. Differences are paired on",
        "the same tokens or questions. No interval includes the variation between seeds, so the difference of each seed follows it. A",
        "part of a prediction held, or did not hold, only if the interval and every seed are on the same side of its threshold; otherwise",
        "it is undecided. Ratios and ranks without an interval are compared as they are.",
        "",
        "## Claims",
        "",
        *claims_section(e),
    ]
    pictures = {}
    for part in plan["parts"]:
        lines, drawn = SECTIONS[part](e)
        out += lines
        pictures.update(drawn)
    out += [] if changes else limits(e)
    if e.old:
        out += [f"Not used, because the plan has changed since: {', '.join(e.old)}.", ""]
    return "\n".join(out), pictures


def limits(e):
    """Says what the models of plan.toml cannot show, and how to check a record."""
    return [
        "## What this cannot show",
        "",
        f"- **Larger models.** One model has 135M parameters, the other {parameters(e.plan['small']['shape']) / 1e6:.1f}M. Methods can rank "
        "differently at the papers' sizes.",
        "- **Longer training.** HARPE trains on 6B tokens, SBA on 41M, Untie the Knots on 20B. Each arm here trains on 0.75M. A",
        "  method that starts slowly and ends well looks bad here.",
        "- **Other texts.** The held-out texts are six novels by one author. The intervals do not cover other kinds of text.",
        "- **Other base models.** All seeds of the small model start from one base.",
        "- **Better learning rates.** The small model's rate is the one of three with the lowest loss on other prose after a tenth of the",
        f"  tokens, for each method{rates_at_an_end(e)}. No rate was chosen by what a model finds.",
        "  The default model has one rate for all methods.",
        *controls(e),
        "- **Rounding.** GPUs and CPUs round differently. Losses differ by up to 0.02 nats per token, so claims about trained models",
        "  compare records of one kind of processor only. Needles do not: rounding can decide a question or two of 40.",
        "",
        "## Check it",
        "",
        "The predictions are in [predictions.toml](../examples/evidence/predictions.toml), the settings in "
        "[plan.toml](../examples/evidence/plan.toml).",
        "Checking a record by hand takes ten minutes. `DIR` is a directory with a build of the record's commit:",
        "",
        "```sh",
        "make models train-texts && examples/evidence/run.sh OUT --program DIR --show frozen/perplexity/plain",
        "```",
        "",
        "This writes the texts to `OUT` and prints the unit's twelve commands. Run one of them (80 seconds). Compare `nll_sum` in",
        "`results[0].texts[0].buckets` with the document's entry in `figures.documents` of the record: [first position, tokens, sum].",
        "On a CPU, losses are up to 0.02 nats per token lower than in records of a GPU: CUDA rounds activations to 8 bits in a way",
        "that loses more under weights with an offset, such as Q4_1.",
        "`run.sh OUT` measures all units that have no record. `run.sh OUT --plan examples/evidence/gpu.toml --device cuda:0` is for an",
        "8B model. It has not run yet; the estimate is an hour or more of an H100.",
        "",
    ]


def main():
    parser = argparse.ArgumentParser(
        prog="report.sh", description="Write docs/evidence.md and its pictures from the records"
    )
    parser.add_argument(
        "--records",
        default=RECORDS,
        type=pathlib.Path,
        metavar="DIR",
        help="directory of the records [default: docs/results/records]",
    )
    parser.add_argument(
        "--docs", default=ROOT / "docs", type=pathlib.Path, metavar="DIR", help="directory to write to [default: docs]"
    )
    parser.add_argument("--plan", metavar="FILE", help="apply the changes in this file to plan.toml")
    args = parser.parse_args()
    if args.plan and (args.records == RECORDS or args.docs == ROOT / "docs"):
        parser.error("--plan needs --records and --docs")
    page, pictures = render(read_plan(args.plan), read_records(args.records), args.plan)
    write(args.docs / "evidence.md", page)
    for name, svg in pictures.items():
        write(args.docs / "images" / name, svg)
    print(f"{args.docs / 'evidence.md'}: {page.count(chr(10))} lines, {len(pictures)} pictures", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except Problem as problem:
        sys.exit(f"report.sh: {problem}")
