"""The driver, with a stand-in for Ray that runs no tasks: python3 tests/test_driver.py"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))


class RayError(Exception):
    """As of ray.exceptions."""


def get(answer: object) -> object:
    if isinstance(answer, BaseException):
        raise answer
    return answer


RAY = mock.Mock(spec_set=["cancel", "cloudpickle", "exceptions", "get", "init", "is_initialized", "kill", "nodes", "remote", "wait"])
RAY.exceptions = types.SimpleNamespace(RayError=RayError)
RAY.get = get
RAY.wait.return_value = ([], [])
sys.modules["ray"] = RAY

from ropewalk_ray import _cli, _driver
from ropewalk_ray._parts import Part
from ropewalk_ray._task import Files, Inbox, Job, Outcome
from test_parts import A, B, record


class Remote:
    """An actor: its calls give their answers at once."""

    def __init__(self, actor: object) -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> object:
        return types.SimpleNamespace(remote=getattr(self.actor, name))


class Driver(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.part = Part(self.folder / "part", b"plan", 2)
        unit = {"id": "u", "cells": 2, "done": 0, "bytes": 1, "model": "m", "method": "x", "length": None}
        job = Job("", b"plan", ".", "ropewalk", "1", ())
        study = mock.Mock(note=mock.Mock(), parts={"u": self.part}, faults={}, options=(), job=job)
        self.tasks = _driver.Tasks(study, [unit], 1, 0, 3)
        self.inbox = Inbox()
        self.tasks.inbox = Remote(self.inbox)
        self.tasks.running = {"task": "u"}

    @staticmethod
    def result(key: str) -> Files:
        return [(f"samples/{key}.jsonl", b"samples"), (f"cells/{key}.json", record(key))]

    def test_an_interruption_loses_no_result(self) -> None:
        for key in (A, B):
            self.inbox.put("u", "node", self.result(key))
        # Ctrl-C, or SIGTERM, as the answer comes, and as a file is written.
        with mock.patch.object(RAY, "get", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            self.tasks.take()
        with mock.patch.object(self.part, "write", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            self.tasks.take()
        self.tasks.cancel()
        self.assertEqual(self.part.done, {A: True, B: True})
        self.assertEqual(self.tasks.n_done, 2)
        self.tasks.take()
        self.assertEqual(self.inbox.sent, {})

    def test_a_node_without_the_program_does_not_get_every_unit(self) -> None:
        RAY.nodes.return_value = [{"NodeID": name, "Alive": True, "Resources": {"CPU": 1.0}} for name in ("n1", "n2")]
        # No processors: it takes no unit.
        RAY.nodes.return_value.append({"NodeID": "head", "Alive": True, "Resources": {}})
        options = RAY.remote.return_value.options
        self.tasks.ended("u", ("host", "n3", Outcome(1, "disk full")))
        self.assertNotIn("label_selector", options.call_args.kwargs)
        # Such a node does not count as a try.
        self.tasks.retries = self.tasks.tried["u"]
        self.tasks.ended("u", ("host", "n1", Outcome(127, "no program")))
        self.assertEqual(options.call_args.kwargs["label_selector"], {"ray.io/node-id": "!in(n1)"})
        self.assertEqual(self.tasks.faults, {})
        # None is left: it does not wait forever.
        self.tasks.ended("u", ("other", "n2", Outcome(126, "another version")))
        self.assertIn("other: another version", self.tasks.faults["u"])

    def test_a_study_that_is_done_is_merged_and_faults_of_units_are_named(self) -> None:
        out = self.folder / "out"
        out.mkdir()
        study = _driver._Study(self.part.path / "plan.toml", out, sys.executable, (), mock.Mock())
        merged = {"missing": 0}
        with mock.patch.object(study, "study", side_effect=[{"units": []}, merged]) as program:
            self.assertEqual(study.run(1, 0, 3), merged)
        program.assert_called_with("merge", str(out), "-o", str(out))
        (out / "parts").mkdir()
        study.faults["u"] = "unit u: no"
        with (
            mock.patch.object(study, "study", side_effect=[{"units": []}, _driver.Error("not merged")]) as program,
            self.assertRaisesRegex(_driver.Error, "unit u: no\nnot merged"),
        ):
            study.run(1, 0, 3)
        program.assert_called_with("merge", str(out / "parts"), "-o", str(out))

    def test_a_cluster_without_tokens_is_warned_of_by_its_address(self) -> None:
        for address, found, warns in (
            ("auto", "10.0.0.1:6379", True),
            ("local", "10.0.0.1:6379", True),
            ("auto", "127.0.0.2:6379", False),
            ("ray://10.0.0.1:10001", None, True),
            ("ray://[::1]:10001", None, False),
            ("ray://localhost:10001", None, False),
        ):
            for mode in ("disabled", "token"):
                # Ray Client does not have the address.
                RAY.init.return_value = types.SimpleNamespace(**({"address_info": {"address": found}} if found else {}))
                notes: list[str] = []
                with mock.patch.dict(os.environ, RAY_AUTH_MODE=mode):
                    _driver.connect(address, notes.append)
                self.assertEqual(len(notes), int(warns and mode == "disabled"), (address, found, notes))
                self.assertTrue(all((found or address) in note for note in notes), notes)

    def test_faults_of_the_disk_and_of_ray_are_errors_of_a_line(self) -> None:
        RAY.is_initialized.return_value, run = True, _driver.run
        file = self.folder / "file"
        file.write_text("mine")
        code, said = self.command(lambda *_, **__: run("plan.toml", file))
        self.assertEqual((code, said.count("\n")), (1, 1), said)
        self.assertIn(str(file), said)
        with mock.patch.object(_driver._Study, "run", side_effect=RayError("the head died\n  at worker.cc")):
            code, said = self.command(lambda *_, **__: run(self.part.path / "plan.toml", self.folder / "out", program=sys.executable))
        self.assertEqual((code, said), (1, "error: the head died\n"))

    def command(self, run: object) -> tuple[int, str]:
        """Exit code and messages of the command, with another run."""
        said = io.StringIO()
        with (
            mock.patch.object(_driver, "run", run),
            mock.patch.object(_driver, "connect"),
            mock.patch.object(sys, "argv", ["ropewalk-ray", "plan.toml", "-o", "out"]),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            try:
                return _cli.main(), said.getvalue()
            except SystemExit as e:
                return int(str(e.code)), said.getvalue()

    def test_signals_stop_it_except_for_a_hangup_under_nohup(self) -> None:
        merged = {"done": 1, "failed": 0, "missing": 0, "report": "report.html"}
        for number, before, code in (
            (signal.SIGTERM, signal.SIG_DFL, 143),
            (signal.SIGHUP, signal.SIG_DFL, 129),
            (signal.SIGHUP, signal.SIG_IGN, 0),
        ):
            old = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
            signal.signal(number, before)

            def run(*_: object, number: int = number, **__: object) -> dict[str, object]:
                os.kill(os.getpid(), number)
                return merged

            try:
                self.assertEqual(self.command(run)[0], code)
            finally:
                for n, handler in old.items():
                    signal.signal(n, handler)


if __name__ == "__main__":
    unittest.main()
