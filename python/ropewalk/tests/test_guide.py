"""Every snippet of the guide's page, one after another, in one directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SENTENCE

import ropewalk

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "python.md"


def test_snippets_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = [block.split("\n```")[0] for block in PAGE.read_text().split("```python\n")[1:]]
    assert len(snippets) > 5
    monkeypatch.chdir(tmp_path)
    ropewalk.random_model("model.gguf", "llama-tiny", "q8_0")
    (tmp_path / "book.txt").write_text(SENTENCE * 80)
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)
    for file in ["lora.gguf", "long.gguf"]:
        assert (tmp_path / file).exists(), file
