"""Studies, against the program, and progress."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli

import ropewalk

PLAN = """
title = "Two methods and a trained one"
lengths = [64, 128]
texts = ["{text}"]
models = [{{ name = "tiny", path = "{model}" }}]
methods = [
    {{ name = "plain", spec = "plain" }},
    {{ name = "pi", spec = "pi:factor=2" }},
    {{ name = "trained", spec = "pi:factor=2", train = {{ args = {args}, data = ["{text}"] }} }},
]
tasks = [{{ name = "perplexity", protocol = "window" }}]
"""
ARGS = ["--ctx", "64", "--steps=2", "--rank", "4", "--lr", "0.01", "--set", "warmup=1", "-s", "3", "--targets", "q,v"]


@pytest.fixture
def plan(path: Path, text: Path, tmp_path: Path) -> Path:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(text=text, model=path, args=json.dumps(ARGS)))
    return plan


def test_a_study_is_that_of_the_program(plan: Path, tmp_path: Path, cli: Cli) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    said = cli("study", plan, "-o", theirs, "--device", "cpu", "-t", 1)
    seen: list[tuple[int, int]] = []
    notes: list[str] = []

    def run() -> list[dict[str, Any]]:
        return ropewalk.study(
            plan,
            ours,
            device="cpu",
            n_threads=1,
            progress=lambda done, total, what: seen.append((done, total)),
            on_note=notes.append,
        )

    rows = run()
    assert [row["method"] for row in rows] == ["plain"] * 2 + ["pi"] * 2 + ["trained"] * 2
    assert rows == said["results"] and all(row["finished"] and row["ppl"] > 1 for row in rows)
    # The trained method differs from the frozen one; both were trained in the same way.
    assert rows[4]["ppl"] != rows[2]["ppl"]
    names = {kept.name for kept in (theirs / "cells").iterdir()}
    assert names == {kept.name for kept in (ours / "cells").iterdir()} and len(names) == 6
    # Each cell is reported when it begins, and the last one also when it ends.
    assert seen[-2:] == [(5, 6), (6, 6)] and any("held-out" in note for note in notes)
    assert (ours / "report.html").read_text() == (theirs / "report.html").read_text()
    # Nothing is measured again.
    notes.clear()
    assert run() == rows and not notes


def test_a_unit_of_a_study(plan: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out"
    units = cli("study", plan, "-o", out, "--units", "--device", "cpu")["units"]
    assert [unit["trains"] for unit in units] == [True] + [False] * 4
    rows = ropewalk.study(plan, out, device="cpu", n_threads=1, unit=units[0]["id"])
    assert [row["finished"] for row in rows] == [False] * 4 + [True] * 2
    assert (out / "parts" / units[0]["id"] / "cells").exists() and not (out / "report.html").exists()
    with pytest.raises(ropewalk.ArgumentError, match="expected the ID of a unit"):
        ropewalk.study(plan, out, unit="1/3")
    other = tmp_path / "other.toml"
    other.write_text(plan.read_text().replace("128", "256"))
    with pytest.raises(ropewalk.ArgumentError, match="another plan"):
        ropewalk.study(other, out / "parts" / units[0]["id"])


@pytest.mark.parametrize(
    ("word", "value"), [("--stpes", "2"), ("--steps", "two"), ("--output", "a.gguf"), ("--set", "sync=x"), ("--rank", None)]
)
def test_mistakes_in_recipes(plan: Path, tmp_path: Path, word: str, value: str | None) -> None:
    text = plan.read_text().replace(json.dumps(ARGS), json.dumps([word] if value is None else [word, value]))
    assert text != plan.read_text()
    plan.write_text(text)
    with pytest.raises(ropewalk.ArgumentError) as e:
        ropewalk.study(plan, tmp_path / "out")
    assert word.lstrip("-") in str(e.value) and "plan.toml" in str(e.value) and "\n" not in str(e.value)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_study_resumes(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def interrupt(done: int, total: int, what: str) -> None:
        if done == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ropewalk.study(plan, out, device="cpu", n_threads=1, progress=interrupt)
    kept = {cell: cell.stat().st_mtime_ns for cell in (out / "cells").iterdir()}
    assert 1 <= len(kept) < 6
    rows = ropewalk.study(plan, out, device="cpu", n_threads=1)
    assert all(row["finished"] for row in rows)
    assert {cell: cell.stat().st_mtime_ns for cell in kept} == kept


def test_a_bar_shows_progress(model: ropewalk.Model, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = ropewalk.ProgressBar(desc="measuring", ascii=True)
    ropewalk.perplexity(model, files=text, lengths=128, rope="plain", n_threads=1, progress=bar)
    shown = capsys.readouterr().err
    assert "measuring: 100%" in shown and "ppl" in shown
    # A second part of the work has a separate bar; one that ends early is closed.
    for done in [1, 2, 1]:
        bar(done, 2, "a part")
    bar.close()
    shown = capsys.readouterr().err
    assert shown.count("100%") == 1 and "50%" in shown
