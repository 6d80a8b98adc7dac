"""What an installation of the package has in addition to the module."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from ropewalk._program import find


@pytest.mark.parametrize(
    "end",
    [
        "/bin/ropewalk",
        "ropewalk/py.typed",
        "ropewalk/_ropewalk.pyi",
        "licenses/LICENSE-APACHE",
        "licenses/LICENSE-MIT",
        "share/doc/ropewalk/THIRD-PARTY.txt",
    ],
)
def test_a_file_is_installed(end: str) -> None:
    found = [file for file in metadata.files("ropewalk") or [] if str(file).endswith(end)]
    assert len(found) == 1 and Path(str(found[0].locate())).is_file(), found


def test_licenses_of_what_is_compiled_in_are_complete() -> None:
    (file,) = (file for file in metadata.files("ropewalk") or [] if file.name == "THIRD-PARTY.txt")
    text = file.read_text(encoding="utf-8")
    for name in ("llama-cpp-sys-2", "numpy", "pyo3", "tokenizers"):
        assert f"\n{name} " in text, name
    assert "The ggml authors" in text
    assert "ropewalk-core" not in text


def test_metadata_is_complete() -> None:
    found = metadata.metadata("ropewalk")
    assert found["License-Expression"] == "MIT OR Apache-2.0"
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    assert found["Summary"] and found["Description-Content-Type"].startswith("text/markdown")


def test_the_tag_names_a_glibc_that_the_program_runs_with() -> None:
    # maturin looks at the extension module alone.
    wheel = metadata.distribution("ropewalk").read_text("WHEEL") or ""
    promised = [int(minor) for minor in re.findall(r"^Tag: .*-manylinux_2_(\d+)_\w+$", wheel, re.MULTILINE)]
    needed = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", find().read_bytes())]
    assert promised and max(needed, default=0) <= min(promised), wheel
