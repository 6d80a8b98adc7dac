"""Recipes of docs/guide/cluster.md, as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import processes
from study import Study

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "cluster.md"


def block(heading: str, language: str) -> str:
    """The first block of a section."""
    section = GUIDE.read_text().split(f"\n### {heading}\n")[1].split("\n### ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found, f"{GUIDE}: {heading}: expected a block of {language}"
    return found[1]


def run(study: Study, mark: str) -> Iterator[str]:
    """Runs the recipes, one after another, and compares the reports. Gives the name of each."""
    programs = study.folder / "bin"
    programs.mkdir()
    (programs / "ropewalk").symlink_to(study.program)
    (study.folder / "Snakefile").write_text(block("Snakemake", "python"))
    typed = "".join(line.removeprefix("$ ") for line in block("xargs and GNU parallel", "console").splitlines(keepends=True))
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for name, commands in (
        ("xargs and GNU parallel", typed.replace("examples/study-small.toml", "plan.toml")),
        ("Snakemake", "snakemake --cores 1"),
    ):
        # One processor, so one thread, as the report to compare with was made by.
        words = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), "bash", "-euo", "pipefail", "-c", commands]
        log = study.folder / "recipe.log"
        with log.open("wb") as file:
            env = processes.environment(mark, PATH=path)
            done = subprocess.run(
                words, cwd=study.folder, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False, timeout=600
            )
        assert done.returncode == 0, f"{name}: exit code {done.returncode}; see {log}"
        study.compare(study.folder / "out" / "study")
        shutil.rmtree(study.folder / "out")
        yield name
