"""The build backend of the Python package (PEP 517): compiles the program, then calls maturin.

pip calls the functions, in a clone or a source distribution. scripts/python.sh runs the file, which only compiles the
program, and calls maturin itself, for a wheel with a tag of manylinux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping, Optional

import maturin
from maturin import build_sdist, prepare_metadata_for_build_editable, prepare_metadata_for_build_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parents[2]
# Named in pyproject.toml. maturin fails without it, whatever it is to do.
DATA = ROOT / "python/ropewalk/data"
DATA.mkdir(exist_ok=True)

Settings = Optional[Mapping[str, Any]]


def program() -> None:
    """Compiles the program, and puts it, stripped, and the licenses of its crates into the package."""
    # One directory for the program and the extension module, so that ggml is compiled once.
    target = Path(os.environ.setdefault("CARGO_TARGET_DIR", str(ROOT / "target")))
    cargo = os.environ.get("CARGO", "cargo")
    subprocess.run([cargo, "build", "--release", "--locked", "-p", "ropewalk", "--bin", "ropewalk"], cwd=ROOT, check=True)
    name = "ropewalk.exe" if os.name == "nt" else "ropewalk"
    (DATA / "scripts").mkdir(exist_ok=True)
    shutil.copy(target / "release" / name, DATA / "scripts" / name)
    if os.name != "nt":
        subprocess.run(["strip", DATA / "scripts" / name], check=True)
    licenses = DATA / "data/share/doc/ropewalk/THIRD-PARTY.txt"
    manifests = ["Cargo.toml", "python/ropewalk/Cargo.toml"]
    subprocess.run([sys.executable, "scripts/licenses.py", licenses, *manifests], cwd=ROOT, check=True)


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    program()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    program()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


if __name__ == "__main__":
    program()
