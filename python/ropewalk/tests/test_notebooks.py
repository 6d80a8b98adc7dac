"""The notebooks of docs/notebooks, run from the first cell to the last on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import SENTENCE
from nbclient import NotebookClient

import ropewalk

NOTEBOOKS = Path(__file__).parents[3] / "docs" / "notebooks"
# What replaces the cell of parameters, and how many pictures a notebook shows.
SMALL: dict[str, tuple[dict[str, object], int]] = {
    "1-see-a-method": ({"FACTOR": 2, "WINDOW": 128, "GROUP": 4, "READ": 200, "FAR": 50}, 3),
    "2-measure-it": ({"BEYOND": 1.5, "SAMPLES": 3, "OUT": "out"}, 3),
    "3-train-and-ship": ({"FACTOR": 2, "N_CTX": 64, "STEPS": 8, "MEASURED": 1.25, "OUT": "out"}, 1),
}


def test_every_notebook_is_known() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(SMALL)


# Warnings of the packages that run notebooks are not ours.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", SMALL)
def test_notebooks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ["IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"]:
        monkeypatch.setenv(variable, str(tmp_path / variable))
    ropewalk.random_model(tmp_path / "model.gguf", "llama-tiny", "q8_0", seed=7)
    (tmp_path / "text.txt").write_text(SENTENCE * 200)
    notebook: Any = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "commit notebooks without outputs"
    values, pictures = SMALL[name]
    values = {"MODEL": "model.gguf", "TEXT": "text.txt", **values}
    (parameters,) = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assigned = {line.split(" = ")[0] for line in parameters.source.splitlines()}
    assert {each for names in assigned for each in names.split(", ")} == set(values)
    parameters.source = "\n".join(f"{key} = {value!r}" for key, value in values.items())
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in code for output in cell.outputs]
    errors = [output for output in outputs if output.get("name") == "stderr"]
    assert not errors, errors
    shown = [output for output in outputs if "image/svg+xml" in output.get("data", {})]
    assert len(shown) == pictures
