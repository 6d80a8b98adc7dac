"""Long context for quantized GGUF language models: extend, measure, train, convert."""

from . import adapter, plot, rope
from ._errors import (
    ArgumentError,
    ContextFull,
    FileError,
    OutOfMemory,
    RopewalkError,
    SessionBusy,
    Unsupported,
)
from ._progress import ProgressBar
from ._ropewalk import (
    Answer,
    Chat,
    Figure,
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
    study,
)

__all__ = [
    "Answer",
    "ArgumentError",
    "Chat",
    "ContextFull",
    "Figure",
    "FileError",
    "Model",
    "OutOfMemory",
    "Pieces",
    "Plan",
    "ProgressBar",
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
    "plot",
    "random_model",
    "rope",
    "study",
]
