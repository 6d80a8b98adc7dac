"""Processes of a test, found by what is in their environment: children inherit it, also those of daemons."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "ROPEWALK_TEST_CLUSTER"
NODE = "ROPEWALK_TEST_NODE"
# Seconds for a unit to stop in order. Slurm gives it 30 by default (`KillWait`), and ropewalk-ray 20.
GRACE = 20.0


@dataclass(frozen=True)
class Process:
    pid: int
    words: tuple[str, ...]
    # Slurm gives its jobs the environment of who submits them, and the name of the node.
    node: str


def environment(mark: str, node: str = "", **more: str) -> dict[str, str]:
    """The environment of a process of the test."""
    return {**os.environ, **more, MARK: mark, NODE: node}


def find(mark: str) -> list[Process]:
    """The processes of a test that are alive."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            words = tuple((folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
        except OSError:
            continue
        env = dict(field.split("=", 1) for field in fields if "=" in field)
        if env.get(MARK) == mark and words and int(folder.name) != os.getpid():
            found.append(Process(int(folder.name), words, env.get("SLURMD_NODENAME") or env.get(NODE, "")))
    return found


def kill(process: Process, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        pass


def units(mark: str, node: str | None = None) -> list[Process]:
    """Units that are measured, everywhere or on a node."""
    return [process for process in find(mark) if "--unit" in process.words and node in (None, process.node)]


def ended(mark: str, asked: list[Process]) -> list[float]:
    """Waits until units have ended that were asked to. Gives the seconds that it took, unless there are none."""
    started = time.monotonic()
    while left := {process.pid for process in asked} & {process.pid for process in find(mark)}:
        assert time.monotonic() < started + GRACE, f"processes {left} have not stopped within {GRACE:.0f} s"
        time.sleep(0.05)
    return [time.monotonic() - started] if asked else []


def kill_all(mark: str, node: str | None = None) -> None:
    """Kills the processes of a test, or those on a node, until there are none: some start others meanwhile."""
    for _ in range(100):
        found = [process for process in find(mark) if node in (None, process.node)]
        if not found:
            return
        for process in found:
            kill(process)
        time.sleep(0.1)
    raise AssertionError(f"processes that cannot be killed: {found}")
