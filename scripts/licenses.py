#!/usr/bin/env python3
"""Writes the licenses of the crates that packages are compiled from, and of the C code in them, into one file.

    scripts/licenses.py OUTPUT MANIFEST..    for example Cargo.toml python/ropewalk/Cargo.toml
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

NAME = re.compile(
    r".*licen[cs]e.*|(copying|copyright|notice)([-_.].*)?|(hack-regular|ofl|ufl)\.txt",  # The last ones: of fonts.
    re.IGNORECASE,
)
CODE = {".cmake", ".cpp", ".h", ".html", ".json", ".py", ".rs", ".toml"}


def crates(manifest):
    """The packages from elsewhere that a package is compiled from on this machine."""
    host = re.search(r"^host: (.*)$", output("rustc", "-vV"), re.MULTILINE)[1]
    options = ["--locked", "--format-version", "1", "--filter-platform", host, "--manifest-path", manifest]
    metadata = json.loads(output(os.environ.get("CARGO", "cargo"), "metadata", *options))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    seen, waiting = set(), [metadata["resolve"]["root"]]
    while waiting:
        crate = waiting.pop()
        if crate not in seen:
            seen.add(crate)
            linked = (d for d in nodes[crate]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"]))
            waiting += [dependency["pkg"] for dependency in linked]
    return [packages[crate] for crate in seen if packages[crate]["source"]]


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def texts(crate):
    """The license texts in a package, with the folder of each."""
    folder = Path(crate["manifest_path"]).parent
    for path in sorted(folder.rglob("*")):
        if NAME.fullmatch(path.name) and path.suffix not in CODE and path.is_file():
            inside = path.parent.relative_to(folder).as_posix()
            yield "" if inside == "." else f": {inside}", path.read_text(encoding="utf-8", errors="replace")


def main(out, *manifests):
    found = {f"{c['name']} {c['version']}": c for manifest in manifests for c in crates(manifest)}
    named, without = {}, []
    for name, crate in sorted(found.items()):
        of_crate = list(texts(crate))
        for inside, text in of_crate:
            # Copies differ in their line breaks.
            named.setdefault(" ".join(text.split()), (text, []))[1].append(name + inside)
        if not any(not inside for inside, _ in of_crate):
            without.append(f"{name}: {crate['license']}, by {', '.join(crate['authors']) or 'its contributors'}")
    lines = ["ropewalk is compiled from the crates named here. Each license follows the names of its crates.", ""]
    for text, names in named.values():
        lines += ["=" * 80, *dict.fromkeys(names), "-" * 80, text.strip("\n"), ""]
    lines += ["=" * 80, "Crates whose packages have no license text of the crate:", *without]
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: scripts/licenses.py OUTPUT MANIFEST..")
    main(*sys.argv[1:])
