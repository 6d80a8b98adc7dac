"""Parts of a study on the driver's disk. What workers send is checked before it is written: they may run anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ._task import MAX_ADAPTER, Files, replace

# Bytes of a file, at most, as `ropewalk study merge` reads them.
LIMITS = {"cells": 4 << 20, "samples": 1 << 30, "adapters": MAX_ADAPTER}
NAME = re.compile(r"(?:(cells)/([0-9a-f]{64})\.json|(samples)/([0-9a-f]{64})\.jsonl|(adapters)/([0-9a-f]{64})\.gguf)")


class BadPart(ValueError):
    """A file from a worker that cannot be one of a part."""


class Part:
    """The results of a unit, in a directory that `ropewalk study merge` reads.

    `n_cells` bounds the number of files: a unit has results of its cells, and as many that are out of date.
    """

    def __init__(self, path: Path, plan: bytes, n_cells: int) -> None:
        self.path, self.n_cells = path, n_cells
        # Each result that is there, and whether it has figures.
        self.done: dict[str, bool] = {}
        for kind in LIMITS:
            (path / kind).mkdir(parents=True, exist_ok=True)
        if not (path / "plan.toml").exists():
            replace(path / "plan.toml", plan)
        for cell in sorted((path / "cells").glob("[0-9a-f]*.json")):
            with cell.open("rb") as file:
                self.done[cell.stem] = _is_done(f"cells/{cell.name}", cell.stem, file.read(LIMITS["cells"] + 1))

    def write(self, name: str, data: bytes) -> bool:
        """Checks a file and writes it. Returns true if it is the first result with figures of its cell.

        A result with figures is never replaced. An attempt that was given up may still send.
        """
        kind, key = _names(name)
        if type(data) is not bytes or len(data) > LIMITS[kind]:
            found = f"{len(data)} bytes" if type(data) is bytes else f"a value of type {type(data).__name__}"
            raise BadPart(f"{name}: expected at most {LIMITS[kind]} bytes, found {found}")
        if self.done.get(key):
            return False
        path = self.path / name
        if kind != "cells":
            is_new = not path.exists()
            if is_new and len(list(path.parent.iterdir())) >= 2 * self.n_cells:
                raise BadPart(f"{name}: expected at most {2 * self.n_cells} files, found another one")
            if is_new or kind == "samples":
                replace(path, data)
            return False
        is_done = _is_done(name, key, data)
        if key not in self.done and len(self.done) >= 2 * self.n_cells:
            raise BadPart(f"{name}: expected at most {2 * self.n_cells} results, found another one")
        replace(path, data)
        self.done[key] = is_done
        return is_done

    def settle(self, cells: set[str]) -> None:
        """Puts results aside that an attempt no longer had at its end: a model, a text, or a setting has changed."""
        for key in self.done.keys() - cells:
            for path in (self.path / "cells" / f"{key}.json", self.path / "samples" / f"{key}.jsonl"):
                if path.exists():
                    (self.path / "old").mkdir(exist_ok=True)
                    path.replace(self.path / "old" / path.name)
            del self.done[key]

    def known(self) -> Files:
        """What a new attempt starts from: results with figures, their samples, and adapters."""
        names = [f"adapters/{path.name}" for path in sorted((self.path / "adapters").glob("[0-9a-f]*.gguf"))]
        for key in sorted(key for key, is_done in self.done.items() if is_done):
            names += [f"samples/{key}.jsonl", f"cells/{key}.json"]
        return [(name, (self.path / name).read_bytes()) for name in names if (self.path / name).exists()]

    def failed(self) -> int:
        """Results without figures."""
        return sum(not is_done for is_done in self.done.values())


def _names(name: str) -> tuple[str, str]:
    """The kind and the hash that a name has."""
    match = NAME.fullmatch(name) if type(name) is str else None
    if match is None:
        text = ascii(name) if type(name) is str else f"a value of type {type(name).__name__}"
        raise BadPart(f"expected cells/HASH.json, samples/HASH.jsonl, or adapters/HASH.gguf, found {text[:200]}")
    kind, key = (group for group in match.groups() if group)
    return kind, key


def _is_done(name: str, key: str, data: bytes) -> bool:
    """Returns true if a result has figures. The program checks them when it merges."""
    try:
        if len(data) > LIMITS["cells"]:
            raise ValueError(f"more than {LIMITS['cells']} bytes")
        record = json.loads(data)
        if record.keys() != {"hash", "cell", "state"} or record["hash"] != key:
            raise ValueError("another hash or other keys")
        (state,) = record["state"]
        if state not in ("done", "failed"):
            raise ValueError(f"the state {ascii(state)[:50]}")
    except (ValueError, TypeError, AttributeError, RecursionError) as e:
        raise BadPart(f"{name}: expected the result of a cell, found {str(e)[:200]}") from None
    return bool(state == "done")
