"""Optional dependencies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, *packages: str) -> Iterator[None]:
    """Imports of the packages of an extra. If one is not installed, the error names the extra that installs it."""
    try:
        yield
    except ModuleNotFoundError as e:
        if e.name not in packages:
            raise
        raise ModuleNotFoundError(
            f"{e.name} is not installed: expected ropewalk[{name}], as `pip install 'ropewalk[{name}]'` installs it",
            name=e.name,
        ) from None
