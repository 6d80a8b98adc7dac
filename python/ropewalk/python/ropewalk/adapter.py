"""Adapters from PEFT and to PEFT."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Union

from . import _ropewalk
from ._errors import ArgumentError
from ._ropewalk import to_peft

if TYPE_CHECKING:
    from peft import PeftModel

__all__ = ["from_peft", "to_peft"]

_Path = Union[str, "os.PathLike[str]"]


def from_peft(
    adapter: _Path | PeftModel, base: _Path, output: _Path, *, name: str | None = None, force: bool = False
) -> dict[str, Any]:
    """Converts a PEFT adapter to a LoRA file for the model in the GGUF file `base`. The adapter is a directory, or a model
    with an adapter, of which `name` is one that is not active. Returns the figures of the adapter."""
    if isinstance(adapter, (str, os.PathLike)):
        if name is not None:
            raise ArgumentError(f"name: found {name}, expected none for a directory")
        return _ropewalk.from_peft(adapter, base, output, force)
    if not hasattr(adapter, "peft_config"):
        raise ArgumentError(f"adapter: found {type(adapter).__name__}, expected a directory or a PeftModel")
    name = adapter.active_adapter if name is None else name
    if name not in adapter.peft_config:
        raise ArgumentError(f"name: found {name}, expected one of {', '.join(adapter.peft_config)}")
    with TemporaryDirectory() as folder:
        # Whether PEFT saves the embedding, it would ask the hub.
        adapter.save_pretrained(folder, selected_adapters=[name], save_embedding_layers=False)
        saved = Path(folder) if name == "default" else Path(folder) / name
        return _ropewalk.from_peft(saved, base, output, force)
