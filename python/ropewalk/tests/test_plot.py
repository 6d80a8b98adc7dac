"""Pictures, against those that the program draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import SENTENCE, Cli

import ropewalk
from ropewalk import plot

MACHINE = ["--device", "cpu", "-t", 1]


def same(figure: ropewalk.Figure, theirs: Path) -> None:
    """Compares a picture with a file of the program, and with what a notebook gets."""
    ours = theirs.with_name("ours.svg")
    figure.save(ours)
    assert ours.read_bytes() == theirs.read_bytes()
    drawn = ElementTree.fromstring(figure.svg())
    assert drawn.tag.endswith("svg") and len(drawn) > 3
    assert figure._repr_svg_() == figure.svg()
    assert len(figure.text(60, 8).splitlines()) >= 3
    ours.unlink()


def test_methods_are_drawn_as_by_the_program(path: Path, tmp_path: Path, cli: Cli) -> None:
    frequency, reach = ["pi", "ntk", "yarn"], ["self-extend:window=128,group=4", "dca"]
    for specs, option, draw in [(frequency, "--plot", plot.wavelengths), (reach, "--map", plot.distances)]:
        theirs = tmp_path / f"theirs{option}.svg"
        cli("rope", *specs, "-m", path, "--ctx", 2048, option, theirs)
        same(draw(*(ropewalk.rope.inspect(path, spec, 2048) for spec in specs)), theirs)


def test_perplexity_is_drawn_as_by_the_program(
    model: ropewalk.Model, path: Path, text: Path, tmp_path: Path, cli: Cli
) -> None:
    theirs = tmp_path / "theirs.svg"
    how = ["-f", text, "--lengths", "256,1024", "--rope", "plain", "--rope", "yarn", "--plot", theirs]
    report = cli("perplexity", "-m", path, *how, *MACHINE)
    same(plot.perplexity(report, model.n_ctx_train), theirs)
    # Methods that differ only in parameters are told apart.
    ropes = ["yarn:factor=2", "yarn:factor=4"]
    report = ropewalk.perplexity(model, files=text, lengths=256, rope=ropes, n_threads=1)
    assert all(name in plot.perplexity(report).svg() for name in ["factor=2", "factor=4"])


def test_scores_are_drawn_as_by_the_program(
    model: ropewalk.Model, path: Path, tmp_path: Path, cli: Cli
) -> None:
    def evaluate(ropes: list[str], tasks: list[str], depth: str) -> tuple[Path, list[dict[str, Any]]]:
        theirs = tmp_path / f"theirs-{len(ropes)}-{len(tasks)}.svg"
        each = [word for rope in ropes for word in ("--rope", rope)]
        more = ["--lengths", "300,600", "-n", 4, "--set", f"depth={depth}", "--plot", theirs]
        cli("eval", *tasks, "-m", path, *each, *more, *MACHINE)
        options: dict[str, object] = {"depth": depth}
        rows = ropewalk.evaluate(
            model, tasks, [300, 600], rope=ropes, samples=4, options=options, n_threads=1, data=tmp_path
        )
        return theirs, rows

    theirs, rows = evaluate(["plain", "yarn"], ["passkey"], "0.5")
    same(plot.scores(rows, model.n_ctx_train), theirs)
    theirs, rows = evaluate(["plain"], ["passkey"], "0/1")
    same(plot.depths(rows), theirs)
    named = ropewalk.evaluate(model, "passkey", 300, options={"depth": "start/0.5/1"}, samples=3, n_threads=1)
    assert "start" in plot.depths(named).svg()
    with pytest.raises(ropewalk.ArgumentError, match="one task and method"):
        plot.depths([])


def test_attention_is_drawn_as_by_the_program(
    model: ropewalk.Model, path: Path, text: Path, tmp_path: Path, cli: Cli
) -> None:
    theirs = tmp_path / "theirs.svg"
    settings = "distance=100,sinks=2,tiles=8"
    how = ["--map", settings, "-f", text, "--ctx", 600, "--rope", "plain", "-o", theirs, *MACHINE]
    (said,) = cli("inspect", path, *how)["results"]
    tokens = model.tokenize(text.read_text())[:600]
    session = model.session(600, rope="plain", n_threads=1)
    seen: list[int] = []
    found = session.attention(
        tokens, distance=100, sinks=2, tile=8, progress=lambda done, total, what: seen.append(total)
    )
    assert set(seen) == {600} and found.pop("n_ctx_orig") == model.n_ctx_train
    # The program writes numbers of 32 bits with the digits they need.
    rows = [found["map"]["rows"], said["map"].pop("rows")]
    assert [np.float32(row).tolist() for row in rows[0]] == [np.float32(row).tolist() for row in rows[1]]
    assert {**found, "map": {**found["map"], "rows": None}} == {**said, "map": {**said["map"], "rows": None}}
    # The probabilities of a query sum to one, so no square has more.
    assert all(0 <= p <= 1 for row in found["map"]["rows"] for p in row)
    found["n_ctx_orig"] = model.n_ctx_train
    same(plot.attention(found), theirs)
    head = found["shown"]
    other = model.session(600, rope="streaming:window=64,sinks=4", n_threads=1).attention(
        tokens, layer=head["layer"], head=head["head"], tile=8
    )
    assert "minus" in plot.attention(found, other).svg()
    with pytest.raises(ropewalk.ArgumentError, match="layer"):
        session.attention(SENTENCE, layer=99)
    with pytest.raises(ropewalk.ArgumentError, match="at least one"):
        plot.attention()


def test_lines_and_mistakes(model: ropewalk.Model, tmp_path: Path) -> None:
    figure = plot.lines(
        {"loss": ([1, 2, 3], [4.0, 2.0, 1.0]), "other": ([1, 3], [3.0, 2.5])},
        title="Loss by step",
        x="step",
        y="loss, nats",
        log_y=True,
        mark_x={2.5: "warm"},
    )
    svg = figure.svg()
    assert all(text in svg for text in ["Loss by step", "loss, nats (log)", "warm", "other"])
    for name in ["a.svg", "a.png", "a.pdf"]:
        figure.save(tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    figure.save(str(tmp_path / "a.svg"))
    with pytest.raises(ropewalk.ArgumentError, match="a.txt"):
        figure.save(tmp_path / "a.txt")
    notes = tmp_path / "notes.svg"
    notes.write_text("of somebody else")
    with pytest.raises(ropewalk.FileError, match="notes.svg"):
        figure.save(notes)
    assert notes.read_text() == "of somebody else"
    with pytest.raises(ropewalk.ArgumentError, match="finite point"):
        plot.lines({"nothing": ([], [])}).svg()
    with pytest.raises(ropewalk.ArgumentError, match="expected a y for each of 2 x, found 1"):
        plot.lines({"uneven": ([1, 2], [1])})
    with pytest.raises(ropewalk.ArgumentError, match="1 to 4 plans, found 5"):
        plot.distances(*[model.plan("dca", 2048)] * 5)
    with pytest.raises(ropewalk.ArgumentError, match="at least one"):
        plot.wavelengths()
    other = tmp_path / "other.gguf"
    ropewalk.random_model(other, "qwen3-tiny")
    with pytest.raises(ropewalk.ArgumentError, match="one model"):
        plot.wavelengths(model.plan("yarn", 2048), ropewalk.rope.inspect(other, "yarn", 2048))
