"""Runs studies on Slurm and Ray, on this machine, does harm to them, and compares the reports with those of one machine. Then runs the
recipes of the guide.

    python3 scripts/cluster/main.py --program target/release/ropewalk --package DIR --folder FOLDER [--kills N] [--only slurm|ray|recipes]

`make test-cluster` installs what it needs first. FOLDER has a short path, as sockets are in it; it is removed at the end if all is well.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import recipes
from processes import kill_all
from rays import Rays
from slurm import Slurm
from study import FAULTS, N_UNITS, SPEED, Counter, Study

# Two nodes take at most so much of the time of one, on a machine whose processors do not slow each other down.
RATIO = 0.55
# Seconds, at most, that an engine adds to a unit.
MORE = 2.0
# Times that the same command is given, until a study is whole.
MAX_RUNS = 20


def say(text: str) -> None:
    print(f"cluster: {text}", flush=True)


class Deadline:
    def __init__(self, minutes: float) -> None:
        self.minutes, self.end = minutes, time.monotonic() + 60 * minutes

    def check(self) -> None:
        assert time.monotonic() < self.end, f"not finished in {self.minutes:.0f} minutes"


def timed(engine: Slurm | Rays, study: Study, out: Path, nodes: tuple[str, ...], deadline: Deadline) -> float:
    """Seconds from the command to the last result."""
    started = time.time()
    engine.begin(study, out, nodes)
    while not engine.ended():
        deadline.check()
        time.sleep(0.2)
    study.compare(out)
    return max(path.stat().st_mtime for path in out.glob("parts/*/cells/*.json")) - started


def speed(engine: Slurm | Rays, study: Study, folder: Path, deadline: Deadline) -> None:
    two = timed(engine, study, folder / f"{engine.name}-two", engine.nodes, deadline)
    engine.kill_node("n2")
    one = timed(engine, study, folder / f"{engine.name}-one", engine.nodes[:1], deadline)
    engine.start_node("n2")
    slowdown = max(1.0, study.slowdown())
    ratio, most = two / one, RATIO * slowdown
    say(f"{engine.name}: {one:.1f} s on one node, {two:.1f} s on two: {ratio:.3f} of the time; at most {most:.3f}")
    say(f"    (on this machine, two runs at once take {slowdown:.3f} of the time of one; one without {engine.name}: {study.seconds:.1f} s)")
    more, most_more = (one - study.seconds) / N_UNITS, MORE * slowdown
    say(f"    each unit takes {more:.1f} s more on one node than without {engine.name}; at most {most_more:.1f} s")
    assert ratio <= most, f"{engine.name}: two nodes take {ratio:.3f} of the time of one, expected at most {most:.3f}"
    assert more <= most_more, f"{engine.name}: a unit takes {more:.1f} s more, expected at most {most_more:.1f} s"


class Faults:
    """Studies on an engine, one after another, until there was harm enough."""

    def __init__(self, engine: Slurm | Rays, study: Study, folder: Path, draw: random.Random, deadline: Deadline) -> None:
        self.engine, self.study, self.folder, self.draw, self.deadline = engine, study, folder, draw, deadline
        self.counts = dict.fromkeys(engine.kinds, 0)
        # Nodes that are down, and until when.
        self.down: dict[str, float] = {}

    def run(self, n_kills: int) -> None:
        n_studies = n_runs = 0
        while (n_left := n_kills - sum(self.counts.values())) > 0:
            out = self.folder / f"{self.engine.name}-{n_studies}"
            n_runs += self.one(out, n_left)
            n_studies += 1
        counts = ", ".join(f"{n} {kind}" for kind, n in self.counts.items())
        say(f"{self.engine.name}: {n_studies} studies in {n_runs} runs, all as on one machine, after {n_kills} faults: {counts}")
        slowest = max(self.engine.stops, default=0.0)
        say(f"    units asked to stop {len(self.engine.stops)} times have ended within {slowest:.1f} s; {self.engine.grace}")

    def one(self, out: Path, n_left: int) -> int:
        counter, before = Counter(), dict(self.counts)
        for run in range(1, MAX_RUNS + 1):
            # The controller refuses jobs while no node is up.
            self.revive(at_once=True)
            self.engine.begin(self.study, out, self.engine.nodes)
            following = time.monotonic() + self.draw.uniform(1, 6)
            while not self.engine.ended():
                self.deadline.check()
                counter.look(self.engine.cells(out))
                self.revive()
                if n_left > 0 and time.monotonic() > following:
                    n_left -= self.hurt()
                    following = time.monotonic() + self.draw.uniform(1, 6)
                time.sleep(0.1)
            counter.look(self.engine.cells(out))
            if not self.study.left(out) and (out / "report.html").exists():
                break
        else:
            raise AssertionError(f"{out}: units {self.study.left(out)} are left after {MAX_RUNS} runs")
        self.study.compare(out)
        most = sum(self.counts[kind] - before[kind] for kind in self.engine.remeasured_by)
        assert counter.again() <= most, f"{out}: {counter.again()} cells with a result were measured again, expected at most {most}"
        return run

    def hurt(self) -> int:
        kind = self.draw.choice(self.engine.kinds)
        if kind == "node":
            up = [node for node in self.engine.nodes if node not in self.down]
            if not up:
                return 0
            node = self.draw.choice(up)
            self.engine.kill_node(node)
            self.down[node] = time.monotonic() + self.draw.uniform(1, 15)
            done: str | None = f"node {node}"
        else:
            done = self.engine.hurt(kind, self.draw)
        if done is None:
            return 0
        self.counts[kind] += 1
        say(f"{self.engine.name}: {sum(self.counts.values())}: {done}")
        return 1

    def revive(self, at_once: bool = False) -> None:
        for node in [node for node, end in self.down.items() if at_once or time.monotonic() > end]:
            del self.down[node]
            self.engine.start_node(node)


def stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run studies on Slurm and Ray on this machine.")
    parser.add_argument("--program", required=True, type=os.path.abspath)
    parser.add_argument("--package", required=True, type=Path, help="where pip has installed ropewalk-ray")
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=49)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only", choices=["slurm", "ray", "recipes"])
    parser.add_argument("--no-speed", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    deadline, mark, folder = Deadline(args.minutes), secrets.token_hex(8), args.folder.resolve()
    folder.mkdir()
    say(f"seed {args.seed}; files are in {folder}")
    faults = Study(args.program, folder / "f", FAULTS)
    timing = None if args.no_speed or args.only == "recipes" else Study(args.program, folder / "s", SPEED)
    engines = [engine for engine in (Slurm, Rays) if args.only in (None, engine.__name__.lower().rstrip("s"))]
    for engine_type in engines:
        at, its_mark = folder / engine_type.name, f"{mark}-{engine_type.name}"
        try:
            engine = Rays(at, its_mark, args.package.resolve()) if engine_type is Rays else Slurm(at, its_mark)
            if timing:
                speed(engine, timing, folder, deadline)
            Faults(engine, faults, folder, random.Random(args.seed), deadline).run(args.kills)
        finally:
            kill_all(its_mark)
    if args.only in (None, "recipes"):
        try:
            for name in recipes.run(faults, f"{mark}-recipes"):
                say(f"{name}: the report is that of one machine")
        finally:
            kill_all(f"{mark}-recipes")
    shutil.rmtree(folder)


if __name__ == "__main__":
    try:
        main()
    except AssertionError as e:
        say(f"failed: {e}")
        sys.exit(1)
