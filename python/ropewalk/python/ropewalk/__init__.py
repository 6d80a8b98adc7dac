"""Long context for quantized GGUF language models: extend, measure, train, convert."""

from . import adapter, rope
from ._errors import (
    ArgumentError,
    ContextFull,
    FileError,
    OutOfMemory,
    RopewalkError,
    SessionBusy,
    Unsupported,
)
from ._ropewalk import (
    Model,
    Pieces,
    Plan,
    Score,
    Session,
    __version__,
    convert,
    evaluate,
    finetune,
    perplexity,
    random_model,
)

__all__ = [
    "ArgumentError",
    "ContextFull",
    "FileError",
    "Model",
    "OutOfMemory",
    "Pieces",
    "Plan",
    "RopewalkError",
    "Score",
    "Session",
    "SessionBusy",
    "Unsupported",
    "__version__",
    "adapter",
    "convert",
    "evaluate",
    "finetune",
    "perplexity",
    "random_model",
    "rope",
]
