"""A bar for `progress`."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class ProgressBar:
    """A bar that tqdm draws: `progress=ropewalk.ProgressBar()`. The package `tqdm` must be installed.

    Settings are those of `tqdm.tqdm`, such as `desc` and `leave`.
    """

    def __init__(self, **settings: Any) -> None:
        self._new = import_module("tqdm.auto").tqdm
        self._settings = settings
        self._bar: Any = None

    def __call__(self, done: int, total: int, text: str) -> None:
        """Shows how much is done."""
        if self._bar is None or done < self._bar.n:
            # Another part of the work begins.
            self.close()
            self._bar = self._new(total=total, **self._settings)
        self._bar.total = total
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()

    def close(self) -> None:
        """Ends the bar where it is, after work that did not reach its end."""
        if self._bar is not None:
            self._bar.close()
