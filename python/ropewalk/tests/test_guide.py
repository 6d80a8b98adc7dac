"""Every snippet of the guide's page, one after another, in one directory; and that of the README."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import SENTENCE

import ropewalk

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guide" / "python.md"


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
    for file in ["lora.gguf", "long.gguf", "again.gguf", "methods.svg", "perplexity.svg", "scores.svg", "loss.svg", "study/report.html"]:
        assert (folder / file).exists(), file
    return len(snippets)


def test_snippets_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ropewalk.random_model(tmp_path / "model.gguf", "llama-tiny", "q8_0")
    assert run_page(tmp_path, monkeypatch) > 6


# The tour leaves closing a file to Python.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_tour_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tour,) = [block.split("\n```")[0] for block in (ROOT / "README.md").read_text().split("```python\n")[1:]]
    monkeypatch.chdir(tmp_path)
    ropewalk.random_model("model.gguf", "llama-tiny", "q8_0")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(SENTENCE * 80)
    for name in ["book.txt", "report.txt"]:
        (tmp_path / name).write_text(SENTENCE * 12)
    # Short enough for a test: the context, and the steps.
    exec(compile(tour.replace("16384", "1024").replace("steps=200", "steps=2"), "README.md", "exec"), {})
    assert (tmp_path / "lora.gguf").exists() and (tmp_path / "long.gguf").exists()
