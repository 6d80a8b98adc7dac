"""Exceptions by kind. Each has one line of text: what was expected, and what was found."""

from __future__ import annotations


class RopewalkError(Exception):
    """An error of ropewalk."""


class ArgumentError(RopewalkError, ValueError):
    """An argument or a setting is out of range, or cannot be combined with another one."""


class FileError(RopewalkError, OSError):
    """A file cannot be read or written, or is not what it should be."""


class Unsupported(RopewalkError):
    """This model, device, or method cannot do what was requested."""


class SessionBusy(RopewalkError):
    """Another call uses the session."""


class ContextFull(RopewalkError):
    """The context has no room for the tokens. It is as it was before."""

    def __init__(self, text: str, needed: int, free: int, n_ctx: int) -> None:
        super().__init__(text)
        #: Tokens to be added.
        self.needed = needed
        #: Tokens for which there is room.
        self.free = free
        #: The context of the session.
        self.n_ctx = n_ctx

    def __reduce__(self) -> tuple[type[ContextFull], tuple[str, int, int, int]]:
        return type(self), (str(self), self.needed, self.free, self.n_ctx)


class OutOfMemory(RopewalkError, MemoryError):
    """More memory is needed than there is."""

    def __init__(self, text: str, needed: int, free: int | None) -> None:
        super().__init__(text)
        #: Bytes needed.
        self.needed = needed
        #: Bytes free, if known.
        self.free = free

    def __reduce__(self) -> tuple[type[OutOfMemory], tuple[str, int, int | None]]:
        return type(self), (str(self), self.needed, self.free)
