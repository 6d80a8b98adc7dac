"""Every snippet of the guide's page, one after another, in one directory."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import SENTENCE

import ropewalk

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "python.md"


def run_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs the snippets in a folder with model.gguf. Those for packages that are not installed are left out."""
    snippets = [block.split("\n```")[0] for block in PAGE.read_text().split("```python\n")[1:]]
    if find_spec("transformers") is None:
        snippets = [snippet for snippet in snippets if "transformers" not in snippet]
    monkeypatch.chdir(folder)
    (folder / "book.txt").write_text(SENTENCE * 80)
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)
    for file in ["lora.gguf", "long.gguf", "again.gguf"]:
        assert (folder / file).exists(), file
    return len(snippets)


def test_snippets_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ropewalk.random_model(tmp_path / "model.gguf", "llama-tiny", "q8_0")
    assert run_page(tmp_path, monkeypatch) > 6
