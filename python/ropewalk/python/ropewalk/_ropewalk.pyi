from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Union, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

_Path = Union[str, PathLike[str]]
_Paths = Union[_Path, Sequence[_Path]]
_Texts = Union[str, Sequence[str]]
_Lengths = Union[int, Sequence[int]]
_Tokens = Union[Sequence[int], npt.NDArray[np.integer[Any]]]
_Progress = Callable[[int, int, str], object]

__version__: str

@final
class Model:
    def __new__(
        cls, path: _Path, device: str = "auto", lora: _Paths | None = None, *, chat_template: str | None = None
    ) -> Self: ...
    @property
    def architecture(self) -> str: ...
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def path(self) -> Path: ...
    @property
    def device(self) -> str: ...
    @property
    def default_rope(self) -> str: ...
    @property
    def description(self) -> str: ...
    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]: ...
    def detokenize(self, tokens: _Tokens, special: bool = False) -> str: ...
    @property
    def chat_template(self) -> str | None: ...
    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **variables: object,
    ) -> str: ...
    def session(
        self,
        n_ctx: int | None = None,
        rope: str | None = None,
        kv: str = "f16",
        n_threads: int = 0,
        math: str = "auto",
        parallel: int = 1,
    ) -> Session: ...
    def chat(
        self,
        n_ctx: int | None = None,
        rope: str | None = None,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 42,
        stop: _Texts | None = None,
        kv: str = "f16",
        n_threads: int = 0,
        math: str = "auto",
    ) -> Chat: ...
    def plan(self, rope: str | None = None, n_ctx: int | None = None) -> Plan: ...

@final
class Chat:
    @property
    def messages(self) -> list[dict[str, str]]: ...
    def say(self, text: str) -> Answer: ...
    def undo(self) -> str | None: ...
    def clear(self) -> None: ...

@final
class Answer:
    def __iter__(self) -> Self: ...
    def __next__(self) -> str: ...
    def close(self) -> None: ...
    @property
    def turn(self) -> dict[str, Any] | None: ...

@final
class Session:
    @property
    def n_ctx(self) -> int: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def memory(self) -> dict[str, int]: ...
    def clear(self) -> None: ...
    def generate(
        self,
        prompt: str | _Tokens,
        max_tokens: int | None = None,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 42,
        stop: _Texts | None = None,
        ignore_eos: bool = False,
        special: bool = False,
    ) -> Pieces: ...
    def nll(self, tokens: str | _Tokens, start: int = 1) -> npt.NDArray[np.float32]: ...
    def logits(self, tokens: str | _Tokens, last: int = 1) -> npt.NDArray[np.float32]: ...
    def score(self, prompt: str, continuation: str) -> Score: ...
    def scores(self, prompt: _Tokens, continuations: Sequence[_Tokens]) -> list[Score]: ...
    def answers(
        self, prompts: Sequence[_Tokens], max_tokens: int, stop: _Texts | None = None
    ) -> list[list[int]]: ...
    def attention(
        self,
        tokens: str | _Tokens,
        *,
        layer: int | None = None,
        head: int | None = None,
        distance: int = 1000,
        sinks: int = 0,
        tile: int = 16,
        progress: _Progress | None = None,
    ) -> dict[str, Any]: ...

@final
class Score:
    @property
    def logprob(self) -> float: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def greedy(self) -> bool: ...

@final
class Pieces:
    def __iter__(self) -> Self: ...
    def __next__(self) -> str: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def stop_reason(self) -> str | None: ...

@final
class Plan:
    @property
    def spec(self) -> str: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_ctx_orig(self) -> int: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def mscale(self) -> float: ...
    @property
    def frequencies(self) -> npt.NDArray[np.float64]: ...
    @property
    def bases(self) -> npt.NDArray[np.float64] | None: ...
    def distances(
        self, queries: _Tokens, keys: _Tokens, layer: int | None = None
    ) -> npt.NDArray[np.float64]: ...
    def query_scale(self, queries: _Tokens, layer: int | None = None) -> npt.NDArray[np.float64]: ...
    def to_dict(self) -> dict[str, Any]: ...

@final
class Figure:
    def svg(self) -> str: ...
    def _repr_svg_(self) -> str: ...
    def text(self, width: int = 78, height: int = 20) -> str: ...
    def save(self, path: _Path, force: bool = False) -> None: ...

def draw_wavelengths(plans: Sequence[Plan]) -> Figure: ...
def draw_distances(plans: Sequence[Plan]) -> Figure: ...
def draw_lines(
    title: str,
    x: tuple[str, bool, Sequence[tuple[float, str]], Sequence[float]],
    y: tuple[str, bool, Sequence[tuple[float, str]], Sequence[float]],
    lines: Sequence[tuple[str, Sequence[tuple[float, float]], Sequence[tuple[float, float]]]],
) -> Figure: ...
def draw_grid(
    title: str,
    x: str,
    y: str,
    columns: Sequence[str],
    rows: Sequence[str],
    scores: Sequence[Sequence[float | None]],
) -> Figure: ...
def draw_attention(
    maps: Sequence[tuple[str, int, int, Sequence[Sequence[float]]]], scale: str, difference: bool
) -> Figure: ...
def methods() -> list[dict[str, Any]]: ...
def inspect(path: _Path, rope: str | None = None, n_ctx: int | None = None) -> Plan: ...
def perplexity(
    model: Model,
    *,
    files: _Paths | None = None,
    texts: _Texts | None = None,
    lengths: _Lengths | None = None,
    rope: _Texts | None = None,
    protocol: str | None = None,
    stride: int | None = None,
    ctx: int | None = None,
    max_windows: int | None = None,
    kv: str = "f16",
    n_threads: int = 0,
    math: str = "auto",
    progress: _Progress | None = None,
) -> dict[str, Any]: ...
def evaluate(
    model: Model,
    tasks: _Texts,
    lengths: _Lengths | None = None,
    *,
    rope: _Texts | None = None,
    samples: int | None = None,
    seed: int | None = None,
    options: dict[str, object] | None = None,
    data: _Path | None = None,
    output: _Path | None = None,
    force: bool = False,
    ctx: int | None = None,
    chat: bool = False,
    parallel: int = 8,
    kv: str = "f16",
    n_threads: int = 0,
    math: str = "auto",
    progress: _Progress | None = None,
) -> list[dict[str, Any]]: ...
def convert(
    input: _Path,
    output: _Path,
    *,
    rope: str | None = None,
    n_ctx: int | None = None,
    dtype: str | None = None,
    lora: _Paths | None = None,
    llama_cpp: bool = False,
    force: bool = False,
    progress: _Progress | None = None,
) -> dict[str, Any]: ...
def from_peft(folder: _Path, base: _Path, output: _Path, force: bool = False) -> dict[str, Any]: ...
def to_peft(
    adapter: _Path, base: _Path, folder: _Path, repository: str | None = None, force: bool = False
) -> dict[str, Any]: ...
def random_model(
    output: _Path, shape: str = "llama-tiny", dtype: str = "f16", seed: int = 0, force: bool = False
) -> int: ...
def finetune(
    model: Model,
    data: _Paths,
    output: _Path,
    *,
    rope: str | None = None,
    n_ctx: int | None = None,
    steps: int | None = None,
    lr: float | None = None,
    rank: int | None = None,
    alpha: float | None = None,
    targets: _Texts | None = None,
    recipe: str | None = None,
    attention: str | None = None,
    transform: str | None = None,
    init: _Path | None = None,
    resume: bool = False,
    seed: int = 42,
    n_threads: int = 0,
    force: bool = False,
    settings: dict[str, object] | None = None,
    on_step: Callable[[dict[str, float]], object] | None = None,
    on_note: Callable[[str], object] | None = None,
    progress: _Progress | None = None,
) -> dict[str, Any]: ...
def study(
    plan: _Path,
    output: _Path,
    *,
    device: str = "auto",
    unit: str | None = None,
    kv: str = "f16",
    parallel: int = 8,
    n_threads: int = 0,
    math: str = "auto",
    force: bool = False,
    progress: _Progress | None = None,
    on_note: Callable[[str], object] | None = None,
) -> list[dict[str, Any]]: ...
