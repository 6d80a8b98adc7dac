"""`ropewalk serve` and a model that calls functions, for the tests of this directory."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

import ropewalk
from ropewalk._program import find

#: One thread and no rounding, so that an answer does not depend on what is computed with it.
EXACT = ["--device", "cpu", "-t", "1", "--math", "f32", "--kv", "f32"]
CHAT: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a rope walk?"}]


@contextmanager
def serving(path: Path, *more: object) -> Iterator[str]:
    """The URL of a server that runs meanwhile."""
    command = [str(find()), "serve", "-m", str(path), "--alias", "tiny", "--port", "0", "--json", "-q", *EXACT]
    with subprocess.Popen([*command, *map(str, more)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"]
            server.terminate()
            assert server.wait() == 0
        finally:
            server.kill()


def metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        lines = response.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def answered(url: str, status: int) -> float:
    """How many requests for an answer got a status."""
    return sum(n for name, n in metrics(url).items() if "requests_total" in name and f'status="{status}"' in name)


def session(model: ropewalk.Model, rope: str = "plain", ctx: int = 512) -> ropewalk.Session:
    return model.session(ctx, rope=rope, kv="f32", math="f32", n_threads=1)


#: The form of Hermes: functions in the system's message, calls between tags.
HERMES = (
    "{% if tools %}<|im_start|>system\n<tools>{{ tools | tojson }}</tools> Call: <tool_call></tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def hermes(directory: Path) -> Path:
    """A file of a tiny model of random weights with this template."""
    folder, path = directory / "model", directory / "model.gguf"
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 344}
    LlamaForCausalLM(LlamaConfig(**shape, max_position_embeddings=2048)).save_pretrained(folder)
    for file in (Path(__file__).parents[4] / "src" / "import" / "tests" / "checkpoints" / "tokenizers" / "byte-fallback").iterdir():
        shutil.copy(file, folder)
    (folder / "chat_template.jinja").write_text(HERMES)
    ropewalk.convert(folder, path, dtype="f32")
    return path
