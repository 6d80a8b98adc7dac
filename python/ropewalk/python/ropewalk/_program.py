"""Finds the program `ropewalk` that was installed with this package."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def find() -> Path:
    """The path of the program."""
    for file in metadata.files("ropewalk") or []:
        path = Path(str(file.locate()))
        if file.name in ("ropewalk", "ropewalk.exe") and path.is_file():
            return path.resolve()
    raise FileNotFoundError("ropewalk: the program is not in this installation of the package")
