"""The studies of the test, and what they come to on one machine."""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path

WORDS = ("the", "a", "rope", "walk", "shed", "long", "hemp", "spun", "tar", "ship", "yard", "strand", "was", "in", "of", "which", "turns")

# Twelve cells in five units, with training, samples, and perplexities.
FAULTS = """title = "Twelve cells"
lengths = [384, 512]
models = [{ name = "tiny", path = "tiny.gguf" }]
methods = [
    { name = "plain", spec = "plain" },
    { name = "pi", spec = "pi:factor=2" },
    { name = "tuned", spec = "pi:factor=2", train = { args = ["--ctx", "256", "--steps", "30", "--set", "held-out=2"], data = ["0.txt"] } },
]
tasks = [
    { name = "perplexity", protocol = "stride", stride = 64, max_windows = 80, texts = ["1.txt"] },
    { name = "passkey", samples = 80 },
]
"""

# Twelve units of equal cost.
N_UNITS = 12
SPEED = """title = "Twelve units"
lengths = [512]
models = [{ name = "tiny", path = "tiny.gguf" }]
tasks = [{ name = "perplexity", protocol = "stride", stride = 64, max_windows = 250, texts = ["1.txt"] }]
""" + "".join(f'[[methods]]\nname = "pi-{n}"\nspec = "pi:factor={n}"\n' for n in range(2, 14))


class Study:
    """A plan, with the files that it names, and the report of one machine."""

    def __init__(self, program: str, folder: Path, plan: str) -> None:
        self.program, self.folder, self.plan = program, folder, folder / "plan.toml"
        folder.mkdir()
        self.plan.write_text(plan)
        draw = random.Random(1)
        for n in range(2):
            (folder / f"{n}.txt").write_text(" ".join(draw.choice(WORDS) for _ in range(30_000)))
        self.run("convert", "--random", "llama-tiny-gqa", "--type", "q8_0", "-o", str(folder / "tiny.gguf"))
        self.alone = folder / "alone"
        started = time.monotonic()
        done = json.loads(self.run(*self.words(self.alone), "--json", "-q"))
        self.seconds = time.monotonic() - started
        assert (done["done"], done["failed"], done["missing"]) == (12, 0, 0), done

    def words(self, out: Path) -> list[str]:
        """Runs it on this machine."""
        return ["study", str(self.plan), "-o", str(out), "--device", "cpu", "-t", "1"]

    def run(self, *words: str) -> str:
        done = subprocess.run([self.program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.returncode}: {done.stderr}"
        return done.stdout

    def left(self, out: Path) -> list[str]:
        """Units that are not done."""
        return self.run("study", str(self.plan), "-o", str(out), "--units", "-q").split()

    def slowdown(self) -> float:
        """How much longer this machine takes for each of two runs at once, which have nothing to do with each other."""
        started = time.monotonic()
        both = [
            subprocess.Popen([self.program, *self.words(self.folder / f"twice-{n}"), "-q"], stdout=subprocess.DEVNULL)
            for n in range(2)
        ]
        assert [run.wait() for run in both] == [0, 0]
        return (time.monotonic() - started) / self.seconds

    def compare(self, out: Path) -> None:
        """The report, and the results, are those of one machine."""
        for name in ("report.html", "report.md"):
            assert (out / name).read_bytes() == (self.alone / name).read_bytes(), f"{out / name}: another report"
        names = [sorted(path.name for path in (folder / "cells").iterdir()) for folder in (out, self.alone)]
        assert names[0] == names[1] and len(names[0]) == 12, names


class Counter:
    """Results that were seen in directories. Each measurement has another time, so another text."""

    def __init__(self) -> None:
        self.seen: dict[str, set[bytes]] = {}
        self.stamps: dict[Path, tuple[int, int]] = {}

    def look(self, cells: list[Path]) -> None:
        for path in cells:
            try:
                stamp = (path.stat().st_ino, path.stat().st_mtime_ns)
                if self.stamps.get(path) != stamp:
                    data = path.read_bytes()
                    self.stamps[path] = stamp
                    if "done" in json.loads(data)["state"]:
                        self.seen.setdefault(path.name, set()).add(data)
            except FileNotFoundError:
                # A node, or its directory, is gone.
                continue

    def again(self) -> int:
        """Measurements of cells that had a result."""
        return sum(len(texts) - 1 for texts in self.seen.values())
