"""Finds the program `ropewalk` that was installed with this package."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from ._errors import FileError


def find() -> Path:
    """The path of the program."""
    names = ("ropewalk", "ropewalk.exe")
    listed = [Path(str(file.locate())) for file in metadata.files("ropewalk") or [] if file.name in names]
    # `pip install --target` puts it there, and lists another place.
    bundled = [Path(__file__).resolve().parents[1] / "bin" / name for name in names]
    for path in listed + bundled:
        if path.is_file():
            return path.resolve()
    raise FileError("ropewalk: the program is not in this installation of the package")
