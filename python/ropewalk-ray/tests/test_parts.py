"""Files that workers send, and directories on nodes. Needs neither Ray nor the program: python3 tests/test_parts.py"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

SOURCES = Path(__file__).resolve().parents[1] / "src" / "ropewalk_ray"
# Without __init__.py, which imports Ray.
package = types.ModuleType("ropewalk_ray")
package.__path__ = [str(SOURCES)]
sys.modules.setdefault("ropewalk_ray", package)

from ropewalk_ray import _task
from ropewalk_ray._parts import LIMITS, BadPart, Part

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def record(key: str, state: str = "done", seconds: float = 1.0) -> bytes:
    figures = {"seconds": seconds} if state == "done" else "no memory"
    return json.dumps({"hash": key, "cell": {}, "state": {state: figures}}).encode()


def job(**changes: object) -> _task.Job:
    fields = {"unit": "0123456789ab", "plan": b"plan", "base": ".", "program": sys.executable, "version": "1", "options": ()}
    return _task.Job(**{**fields, **changes})  # type: ignore[arg-type]


class Parts(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        patch = mock.patch.object(tempfile, "tempdir", folder.name)
        patch.start()
        self.addCleanup(patch.stop)
        self.path = self.folder / "part"
        self.part = Part(self.path, b"plan", 1)

    def refused(self, name: object, data: object) -> str:
        before = sorted(path for path in self.folder.rglob("*"))
        with self.assertRaises(BadPart) as caught:
            self.part.write(name, data)  # type: ignore[arg-type]
        self.assertEqual(sorted(path for path in self.folder.rglob("*")), before)
        text = str(caught.exception)
        self.assertTrue(text.isprintable() and len(text) < 500, text)
        return text

    def test_names_are_those_of_a_part(self) -> None:
        whole = f"cells/{A}.json"
        names: list[object] = ["", "plan.toml", "/etc/passwd", f"../{whole}", f"cells/../{whole}", f"cells//{A}.json", whole + "\n"]
        names += [whole.upper(), whole[:-1], f"cells/{A}.jsonl", f"samples/{A}.json", f"adapters/{A}.log.jsonl", f"old/{A}.json"]
        names += [f"cells/{A[1:]}.json", f"cells/{A}a.json", f"cells/{A[1:]}\0.json", "\x1b[2J", "cells/" + "é" * 64 + ".json", "a" * 9999]
        names += [None, 3, whole.encode(), [whole]]
        for name in names:
            self.assertIn("found", self.refused(name, record(A)))

    def test_results_are_results(self) -> None:
        good = json.loads(record(A))
        bad = [b"", b"{", b"[]", b"null", b"1e9999", b"\xff", b"[" * 100_000, b'"hash"', record(B), record(A, "stopped")]
        changes = [{"more": 1}, {"hash": None}, {"state": {}}, {"state": "d"}, {"state": {"done": {}, "failed": ""}}, {"state": None}]
        bad += [json.dumps({**good, **change}).encode() for change in changes]
        bad += [json.dumps({key: good[key] for key in ("hash", "state")}).encode(), record(A) + b" " * LIMITS["cells"]]
        for data in bad:
            self.assertIn(A, self.refused(f"cells/{A}.json", data))
        for data in (None, "text", bytearray(record(A)), [1]):
            self.assertIn("type", self.refused(f"cells/{A}.json", data))
        with mock.patch.dict(LIMITS, samples=10):
            self.assertIn("10 bytes", self.refused(f"samples/{A}.jsonl", b"x" * 11))

    def test_a_worker_cannot_fill_the_disk(self) -> None:
        for key in (A, B):
            self.part.write(f"samples/{key}.jsonl", b"x")
            self.part.write(f"adapters/{key}.gguf", b"x")
            self.part.write(f"cells/{key}.json", record(key))
        for name, data in ((f"samples/{C}.jsonl", b"x"), (f"adapters/{C}.gguf", b"x"), (f"cells/{C}.json", record(C))):
            self.assertIn("expected at most 2", self.refused(name, data))

    def test_figures_are_not_replaced(self) -> None:
        name, samples = f"cells/{A}.json", f"samples/{A}.jsonl"
        self.assertFalse(self.part.write(name, record(A, "failed")))
        self.assertEqual((self.part.failed(), self.part.known()), (1, []))
        self.part.write(samples, b"first")
        self.part.write(samples, b"second")
        self.assertTrue(self.part.write(name, record(A)))
        # As an attempt that was given up may send.
        for late in (record(A, "failed"), record(A, seconds=2.0)):
            self.part.write(samples, b"third")
            self.assertFalse(self.part.write(name, late))
        self.part.write(f"adapters/{B}.gguf", b"adapter")
        expected = [(f"adapters/{B}.gguf", b"adapter"), (samples, b"second"), (name, record(A))]
        # The same after the driver was started again.
        for part in (self.part, Part(self.path, b"another plan", 1)):
            self.assertEqual((part.known(), part.failed(), part.done), (expected, 0, {A: True}))
        self.assertEqual((self.path / "plan.toml").read_bytes(), b"plan")
        hidden = [path for path in self.path.rglob(".*")]
        self.assertEqual(hidden, [])

    def test_results_of_another_state_are_put_aside(self) -> None:
        for key in (A, B):
            self.part.write(f"samples/{key}.jsonl", b"x")
            self.part.write(f"cells/{key}.json", record(key))
        self.part.settle({B})
        self.assertEqual(self.part.done, {B: True})
        self.assertEqual([name for name, _ in self.part.known()], [f"samples/{B}.jsonl", f"cells/{B}.json"])
        self.assertEqual((self.path / "old" / f"{A}.json").read_bytes(), record(A))
        # There is room for another one.
        self.assertTrue(self.part.write(f"cells/{C}.json", record(C)))

    def test_what_is_not_of_this_version_of_the_program_runs_nothing(self) -> None:
        sent: list[object] = []
        outcome = _task.measure(sent.append, job(), [])
        self.assertIn("Python 3", outcome.message)
        self.assertEqual((outcome.code, sent), (126, []))
        self.assertEqual(_task.measure(sent.append, job(program="no-such-program"), []).code, 127)

    def test_an_interruption_after_a_write_is_one(self) -> None:
        real = os.replace

        def interrupted(old: str, new: Path) -> None:
            real(old, new)
            raise KeyboardInterrupt

        with mock.patch.object(os, "replace", interrupted), self.assertRaises(KeyboardInterrupt):
            _task.replace(self.folder / "file", b"data")
        self.assertEqual((self.folder / "file").read_bytes(), b"data")

    def test_what_is_measured_while_the_program_stops_is_sent(self) -> None:
        program = self.folder / "program"
        program.write_text(f'''#!/bin/sh
[ "$1" = --version ] && echo 1 && exit
part="$4/parts/$6"
mkdir -p "$part/adapters" "$part/cells"
trap 'echo 1 > "$part/cells/.new"; mv "$part/cells/.new" "$part/cells/{A}.json"; exit 143' TERM
echo 1 > "$part/adapters/{B}.gguf"
while :; do sleep 0.05; done
''')
        program.chmod(0o700)
        sent: list[str] = []

        def send(files: _task.Files) -> None:
            sent.append(files[-1][0])
            if len(sent) == 1:
                # As ray.cancel does.
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            _task.measure(send, job(program=str(program)), [])
        self.assertEqual(sent, [f"adapters/{B}.gguf", f"adapters/{B}.gguf", f"cells/{A}.json"])

    def test_a_directory_that_others_may_have_made_is_refused(self) -> None:
        root = _task.scratch(job()).parents[1]
        self.assertEqual(root.stat().st_mode & 0o777, 0o700)
        root.chmod(0o755)
        with self.assertRaisesRegex(PermissionError, "others"):
            _task.scratch(job())
        root.rmdir()
        root.symlink_to(self.folder)
        with self.assertRaisesRegex(PermissionError, "others"):
            _task.scratch(job())

    def test_a_program_that_a_worker_left_keeps_the_directory(self) -> None:
        folder = self.folder / "unit"
        with _task.locked(folder) as lock:
            orphan = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock])
        impatient = mock.patch.object(_task, "ORPHAN", 0.0)
        with impatient, self.assertRaisesRegex(TimeoutError, "another process"), _task.locked(folder):
            self.fail("two at once")
        orphan.communicate(b"\n")
        with _task.locked(folder) as lock:
            self.assertTrue(os.fstat(lock).st_ino)

    def test_what_the_driver_has_is_not_sent_again(self) -> None:
        sent: list[_task.Files] = []
        part = self.folder / "node"
        known = [(f"samples/{A}.jsonl", b"samples"), (f"cells/{A}.json", record(A))]
        _task.replace(part / f"cells/{A}.json", record(A, "failed"))
        courier = _task.Courier(part, sent.append, known)
        courier()
        self.assertEqual(sent, [])
        for name, data in known:
            self.assertEqual((part / name).read_bytes(), data)
        # A result comes with its samples, and after them; what is not whole has a hidden name.
        new = [(f"adapters/{C}.gguf", b"adapter"), (f"samples/{B}.jsonl", b"more"), (f"cells/{B}.json", record(B, "failed"))]
        together = [new[:1], new[1:]]
        for name, data in new:
            _task.replace(part / name, data)
        (part / "cells" / f".{C}.json").write_bytes(b"half")
        courier()
        courier()
        self.assertEqual(sent, together)
        _task.replace(part / f"cells/{B}.json", record(B))
        courier()
        self.assertEqual(sent, [*together, [new[1], (f"cells/{B}.json", record(B))]])
        _task.replace(part / f"adapters/{A}.gguf", b"large")
        with mock.patch.object(_task, "MAX_ADAPTER", 4):
            courier()
        self.assertEqual(len(sent), 3)


if __name__ == "__main__":
    unittest.main()
