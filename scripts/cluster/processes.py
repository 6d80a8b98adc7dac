"""Processes of a test, found by what is in their environment: children inherit it, also those of daemons."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "ROPEWALK_TEST_CLUSTER"
NODE = "ROPEWALK_TEST_NODE"


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
