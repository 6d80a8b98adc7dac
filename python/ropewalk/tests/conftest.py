"""A tiny model of random weights, a text, and the program."""

from __future__ import annotations

import faulthandler
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ropewalk
from ropewalk._program import find

SENTENCE = "The rope walk was a long shed in which hemp was spun into rope. "

Cli = Callable[..., Any]

# A job in the background of a shell ignores it, and tests of Ctrl-C would wait forever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_deadlock() -> Iterator[None]:
    """A test that waits forever ends the run, with the stacks of all threads."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    size = ropewalk.random_model(path, "llama-tiny", "q8_0", seed=7)
    assert size == path.stat().st_size
    return path


@pytest.fixture(scope="session")
def model(path: Path) -> ropewalk.Model:
    return ropewalk.Model(path, device="cpu")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(SENTENCE * 40)
    return path


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Runs the program that the wheel brought, and returns its JSON."""

    def run(*args: object) -> Any:
        command = [str(find()), *map(str, args), "--json", "-q"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return json.loads(done.stdout)

    return run
