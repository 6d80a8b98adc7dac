"""Optional dependencies."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def needed(module: str, extra: str) -> Any:
    """The module, or an error that names the extra that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as e:
        if e.name is None or module.split(".")[0] != e.name:
            raise
        raise ModuleNotFoundError(
            f"{e.name} is not installed: expected ropewalk[{extra}], as `pip install 'ropewalk[{extra}]'` installs it",
            name=e.name,
        ) from None
