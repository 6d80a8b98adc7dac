"""Pictures of methods and of measurements.

A notebook shows a `Figure`. Its `save` writes SVG, PNG, and PDF files, and its `text` is for a terminal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._errors import ArgumentError
from ._ropewalk import (
    Figure,
    Plan,
    draw_attention,
    draw_distances,
    draw_grid,
    draw_lines,
    draw_wavelengths,
)

__all__ = ["Figure", "attention", "depths", "distances", "lines", "perplexity", "scores", "wavelengths"]

Row = Mapping[str, Any]
# A label, whether the axis is logarithmic, values that are marked, and values that it shows.
_Axis = tuple[str, bool, Sequence[tuple[float, str]], Sequence[float]]


def wavelengths(*plans: Plan) -> Figure:
    """Wavelength in tokens of each pair of rotary dimensions, under several methods and as in the file.

    A pair whose wavelength is above the original context did not complete a turn in training.
    """
    return draw_wavelengths(plans)


def distances(*plans: Plan) -> Figure:
    """The distance that each method shows between a query and a key: a map for each of up to four plans."""
    return draw_distances(plans)


def lines(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str = "",
    x: str = "",
    y: str = "",
    log_x: bool = False,
    log_y: bool = False,
    mark_x: Mapping[float, str] | None = None,
    mark_y: Mapping[float, str] | None = None,
) -> Figure:
    """Lines by name, each with its x and y values. `mark_x` and `mark_y` label values on the axes."""
    drawn = [(name, _pairs(name, xs, ys), _NO_BOUNDS) for name, (xs, ys) in lines.items()]
    return draw_lines(title, (x, log_x, _marks(mark_x), []), (y, log_y, _marks(mark_y), []), drawn)


def perplexity(report: Row, n_ctx_train: int | None = None) -> Figure:
    """Perplexity by position, of the report of `ropewalk.perplexity`: a line with 95% intervals for each method and length.

    `n_ctx_train` is marked if positions go beyond it.
    """
    rows = report["results"]
    several = len({row["ctx"] for row in rows}) > 1
    drawn, known = [], False
    specs = [(str(row.get("rope", report.get("rope"))), row["ctx"]) for row in rows]
    for method, row in zip(_methods(specs), rows):
        name = f"{method}, ctx {row['ctx']}" if several else method
        buckets = row["buckets"]
        points = [((each["start"] + each["end"]) / 2, each["ppl"]) for each in buckets]
        bounds = [_interval(each["ppl"], each["ppl_stderr"]) for each in buckets]
        known |= any(math.isfinite(low) for low, _ in bounds)
        drawn.append((name, points, bounds))
    title = f"{report['model']}: perplexity by position ({report['protocol']}){', 95% intervals' if known else ''}"
    whole = "document" if report["protocol"] == "restart" else "window"
    x = _tokens(f"position in the {whole}, tokens", [row["ctx"] for row in rows], n_ctx_train)
    return draw_lines(title, x, ("perplexity", True, [], []), drawn)


def scores(rows: Iterable[Row], n_ctx_train: int | None = None) -> Figure:
    """Scores by length, of the rows of `ropewalk.evaluate`: a line with 95% intervals for each task and method.

    `n_ctx_train` is marked if lengths go beyond it.
    """
    known = sorted((row for row in rows if row["length"] is not None), key=lambda row: row["length"])
    tasks = sorted({row["task"] for row in known})
    methods: set[str] = set()
    by_name: dict[str, list[Row]] = {}
    specs = [(str(row["rope"]), (row["task"], row["length"])) for row in known]
    for method, row in zip(_methods(specs), known):
        methods.add(method)
        by_name.setdefault(f"{row['task']}, {method}" if len(tasks) > 1 else method, []).append(row)
    drawn = []
    for name, of_line in by_name.items():
        points = [(float(row["length"]), row["score"]) for row in of_line]
        drawn.append((name, points, [(row["ci_low"], row["ci_high"]) for row in of_line]))
    what = f"{tasks[0]}, score" if len(tasks) == 1 else "score"
    under = f" ({methods.pop()})" if len(methods) == 1 else ""
    title = f"{known[0]['model'] if known else ''}: {what} by length{under}, 95% intervals"
    x = _tokens("length, tokens", [row["length"] for row in known], n_ctx_train)
    return draw_lines(title, x, ("score, percent", False, [], [0.0, 100.0]), drawn)


def depths(rows: Iterable[Row]) -> Figure:
    """Scores by length and depth of the needle, of the rows of `ropewalk.evaluate` for one task and one method."""
    known = sorted((row for row in rows if row["by"]), key=lambda row: row["length"])
    kinds = {(row["task"], _short(row["rope"])) for row in known}
    if len(kinds) != 1:
        raise ArgumentError(f"rows: expected one task and method with depths, found {len(kinds)}")
    ((task, method),) = kinds
    if len({row["length"] for row in known}) < len(known):
        raise ArgumentError("rows: expected one for each length, found two of the same length")
    found = [{each["value"]: each["score"] for each in row["by"] if each["tag"] == "depth"} for row in known]
    at = sorted({depth for scores in found for depth in scores}, key=_depth)
    columns = [str(row["length"]) for row in known]
    cells = [[scores.get(depth) for scores in found] for depth in at]
    return draw_grid(f"{known[0]['model']}: {task} ({method})", "length, tokens", "depth", columns, at, cells)


def _depth(text: str) -> tuple[float, str]:
    """A depth's place: names, such as start, come first."""
    try:
        return float(text), text
    except ValueError:
        return 0.0, text


def attention(*reports: Row) -> Figure:
    """Where a head looks, of reports of `Session.attention`: a map for each.

    Two reports of the same head and text get a third map, the second minus the first.
    """
    if not reports:
        raise ArgumentError("reports: expected at least one, found none")
    maps = [
        (f"{each['model']}, {each['rope']}", each["map"]["tokens"], each["n_ctx_orig"], each["map"]["rows"])
        for each in reports
    ]
    heads = [(each["shown"]["layer"], each["shown"]["head"]) for each in reports]
    shapes = {(*head, each["map"]["tokens"], each["map"]["tile"]) for head, each in zip(heads, reports)}
    layer, head = heads[0]
    scale = f"layer {layer}, head {head}, probability, %" if len(set(heads)) == 1 else "probability, %"
    return draw_attention(maps, scale, len(shapes) == 1)


_NO_BOUNDS: list[tuple[float, float]] = []


def _pairs(name: str, xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    if len(xs) != len(ys):
        raise ArgumentError(f"lines: {name}: expected a y for each of {len(xs)} x, found {len(ys)}")
    return [(float(x), float(y)) for x, y in zip(xs, ys)]


def _marks(marks: Mapping[float, str] | None) -> list[tuple[float, str]]:
    return [(float(at), label) for at, label in (marks or {}).items()]


def _tokens(label: str, lengths: Sequence[int], n_ctx: int | None) -> _Axis:
    """An axis of tokens, with the original context if lengths go beyond it."""
    beyond = n_ctx is not None and max(lengths, default=0) > n_ctx
    marks = _marks({n_ctx: f"original context {n_ctx}"} if n_ctx is not None and beyond else None)
    return (label, False, marks, [])


def _interval(ppl: float, stderr: float | None) -> tuple[float, float]:
    """The 95% interval, as the program draws it: symmetric around the mean log-likelihood, and never below 1."""
    ratio = math.nan if stderr is None else math.exp(1.96 * stderr / ppl)
    return (max(1.0, ppl / ratio), ppl * ratio)


def _short(spec: str) -> str:
    """The names of a spec's methods, without their parameters."""
    return "+".join(part.split(":")[0] for part in spec.split("+"))


def _methods(specs: Sequence[tuple[str, object]]) -> list[str]:
    """Names of lines, from specs and the places where they were measured: those of methods, with their parameters if one
    place has several methods of a name. Parameters alone do not tell methods apart, because they can depend on the place.
    """
    several = Counter((_short(spec), place) for spec, place in set(specs))
    alike = {name for (name, _), n in several.items() if n > 1}
    return [spec if _short(spec) in alike else _short(spec) for spec, _ in specs]
