"""The driver: submits units, writes what comes back, and merges it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import ipaddress
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# Ray reads it when it is imported. A cluster without tokens runs anybody's code.
os.environ.setdefault("RAY_AUTH_MODE", "token")

import ray
from ray import cloudpickle

from . import _task
from ._parts import BadPart, Part
from ._task import GRACE, OTHER, WITHOUT, Files, Inbox, Job, Outcome

# Nodes do without this package.
cloudpickle.register_pickle_by_value(_task)

Note = Callable[[str], None]


class Error(RuntimeError):
    """The study could not be run, or not all of it. The message is one line for each cause."""


def _ignore(text: str) -> None:
    """The note of a caller that wants none."""


def connect(address: str = "auto", note: Note = _ignore, **options: Any) -> None:
    """Connects to a cluster, as `ray.init(address, **options)`: HOST:PORT, ray://HOST:PORT, `auto`, or `local`.

    The token is the one that Ray finds: in RAY_AUTH_TOKEN, in the file named by RAY_AUTH_TOKEN_PATH, or in ~/.ray/auth_token.
    """
    try:
        context = ray.init(address, log_to_driver=False, **options)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as e:
        raise Error(f"{address}: {_line(e)}") from e
    # `auto` and `local` are clusters with an address that others may reach, too. Only Ray Client does not say it.
    given = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    found = str(getattr(context, "address_info", {}).get("address") or given)
    if os.environ["RAY_AUTH_MODE"].lower() != "token" and not _is_loopback(found):
        note(f"warning: RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}: whoever reaches {found} can run code there")


def _is_loopback(address: str) -> bool:
    host = urlsplit(address if "//" in address else f"//{address}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run(
    plan: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    address: str = "auto",
    cpus: int | None = None,
    gpus: float = 0,
    retries: int = 3,
    program: str = "ropewalk",
    options: Sequence[str] = (),
    note: Note = _ignore,
) -> dict[str, Any]:
    """Runs what is left of a study on a cluster, merges it into `out`, and returns the summary that `ropewalk study merge`
    prints as JSON.

    Connects to `address`, unless `ray.init` was called before. Each unit is a task with `cpus` processors (default: those of the
    smallest node), `gpus` devices, and the memory that ropewalk estimates. `retries` is how often a unit is tried again without a
    new result. `options` are further options of `ropewalk study`, such as `--kv q8_0`. The files that the plan names must be at the
    same paths on all nodes.

    Raises `Error` if a unit cannot be finished; results of the others are merged. An interrupted study resumes where it stopped.
    """
    plan, out = Path(plan).resolve(), Path(out)
    is_ours = not ray.is_initialized()
    if is_ours:
        connect(address, note)
    try:
        with _locked(out):
            return _Study(plan, out, program, tuple(options), note).run(cpus, gpus, retries)
    except (OSError, ray.exceptions.RayError) as e:
        # The disk of this machine, the program, the head of the cluster.
        raise Error(_line(e)) from e
    finally:
        if is_ours:
            ray.shutdown()


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keeps a second driver out."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".ropewalk-ray-lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Error(f"{out}: another ropewalk-ray works there") from None
        yield


class _Study:
    def __init__(self, plan: Path, out: Path, program: str, options: tuple[str, ...], note: Note) -> None:
        self.plan, self.out, self.options, self.note = plan, out, options, note
        self.program = _task.find(program)
        if self.program is None:
            raise Error(f"no program {program!r} on the PATH")
        try:
            self.text = plan.read_bytes()
        except OSError as e:
            raise Error(str(e)) from e
        # Nodes have it elsewhere, unless it was given as a path.
        version = _task.version(self.program)
        self.job = Job("", self.text, str(plan.parent), program, version, options)
        self.parts: dict[str, Part] = {}
        # Units that were given up, and why.
        self.faults: dict[str, str] = {}

    def study(self, *words: str) -> dict[str, Any]:
        """Runs `ropewalk study` here. It reads, and merges, but measures nothing."""
        command = [str(self.program), "study", *words, "--json", "-q"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Error(done.stderr.strip() or f"{' '.join(command)}: exit code {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def units(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.study(str(self.plan), "-o", str(self.out), "--units", *self.options)["units"]
        return found

    def run(self, cpus: int | None, gpus: float, retries: int) -> dict[str, Any]:
        units = [unit for unit in self.units() if unit["done"] < unit["cells"]]
        for unit in units:
            try:
                self.parts[unit["id"]] = Part(self.out / "parts" / unit["id"], self.text, unit["cells"])
            except BadPart as e:
                raise Error(f"{self.out}/parts/{unit['id']}/{e}; remove the file") from e
        if units:
            cpus = cpus or _smallest()
            Tasks(self, units, cpus, gpus, retries).run()
            self.check()
        # Without parts, it was measured on one machine.
        parts = self.out / "parts"
        try:
            merged = self.study("merge", str(parts if parts.is_dir() else self.out), "-o", str(self.out))
        except Error as e:
            # Maybe because of them.
            raise Error("\n".join([*self.faults.values(), str(e)])) from e
        if self.faults:
            raise Error("\n".join([*self.faults.values(), f"{merged['missing']} cells are not measured yet"]))
        return merged

    def check(self) -> None:
        """Finds results that are not of the files that this machine has: their hashes are not the ones expected here."""
        for unit in self.units():
            part = self.parts.get(unit["id"])
            if part is None or unit["problems"] or unit["id"] in self.faults:
                continue
            if unit["done"] + part.failed() < unit["cells"]:
                self.faults[unit["id"]] = (
                    f"unit {unit['id']} ({_name(unit)}): a node measured it with other files than those of this machine; "
                    f"make them equal, and remove {part.path}"
                )


class Tasks:
    """The tasks of a run. Each has one attempt; a new one starts from the results that there are."""

    def __init__(self, study: _Study, units: list[dict[str, Any]], cpus: int, gpus: float, retries: int) -> None:
        self.study, self.retries, self.cpus, self.gpus = study, retries, cpus, gpus
        self.note, self.parts, self.faults = study.note, study.parts, study.faults
        self.units = {unit["id"]: unit for unit in units}
        self.n_cells, self.n_done = sum(unit["cells"] - unit["done"] for unit in units), 0
        # Attempts since the last new result.
        self.tried = dict.fromkeys(self.units, 0)
        self.running: dict[Any, str] = {}
        self.inbox: Any = None
        # IDs of nodes that cannot run the program.
        self.unfit: set[str] = set()
        # What the inbox need not hold any longer.
        self.kept: list[str] = []

    def run(self) -> None:
        # On the head: a cluster does not outlive it. If it is restarted, what it held is sent again with the next attempt.
        inbox = ray.remote(Inbox).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, resources={"node:__internal_head__": 0.001}
        )
        self.inbox = inbox.remote()
        self.warn()
        try:
            # The dearest ones come first, so that none is left alone at the end.
            for unit in self.units:
                self.submit(unit)
            while self.running:
                ended, _ = ray.wait(list(self.running), num_returns=1, timeout=1.0)
                # Whatever a task has sent came before its end.
                self.take()
                for task in ended:
                    # It may have been given up.
                    if task in self.running:
                        self.ended(self.running.pop(task), task)
        finally:
            self.cancel()

    def submit(self, unit: str) -> None:
        job = dataclasses.replace(self.study.job, unit=unit, options=self.options())
        memory = int(1.15 * self.units[unit]["bytes"]) + 1
        # Such a node ends each unit at once, so Ray would send it all of them.
        others = {"label_selector": {"ray.io/node-id": f"!in({','.join(sorted(self.unfit))})"}} if self.unfit else {}
        task = ray.remote(_task.remote).options(
            num_cpus=self.cpus, num_gpus=self.gpus, memory=memory, max_retries=0, name=f"unit {unit}", **others
        )
        self.running[task.remote(self.inbox, job, self.parts[unit].known())] = unit

    def options(self) -> tuple[str, ...]:
        """Options of the program on the nodes."""
        given = {option.split("=")[0] for option in self.study.options}
        threads = () if given & {"-t", "--threads"} else ("-t", str(self.cpus))
        device = () if self.gpus or "--device" in given else ("--device", "cpu")
        return (*threads, *device, *self.study.options)

    def take(self) -> None:
        sent = ray.get(self.inbox.take.remote(self.kept))
        self.kept = []
        for key, (unit, node, files) in sent.items():
            if unit in self.parts and unit in self.running.values():
                self.keep(unit, node, files)
            self.kept.append(key)

    def keep(self, unit: str, node: str, files: Files) -> None:
        try:
            for name, data in files:
                if self.parts[unit].write(name, data):
                    self.n_done += 1
                    self.tried[unit] = 0
                    self.note(f"{self.n_done} of {self.n_cells} cells: unit {unit} ({_name(self.units[unit])}) on {node}")
        except BadPart as e:
            self.give_up(unit, f"{node} sent {e}")

    def ended(self, unit: str, task: Any) -> None:
        try:
            node, node_id, outcome = ray.get(task)
        except ray.exceptions.RayError as e:
            # The worker, its node, or its memory is gone.
            node, node_id, outcome = "Ray", "", Outcome(1, _line(e))
        cells = {name[len("cells/") : -len(".json")] for name in outcome.cells}
        if outcome.code == 0 and cells <= self.parts[unit].done.keys():
            self.parts[unit].settle(cells)
            return
        if outcome.code == 0:
            outcome = Outcome(1, "results were lost on their way")
        reason = f"{node}: {outcome.message or f'exit code {outcome.code}'}"
        # On such a node the unit was not tried.
        if outcome.code in (WITHOUT, OTHER) and node_id not in self.unfit:
            self.unfit.add(node_id)
        else:
            self.tried[unit] += 1
        # Wrong usage is wrong everywhere.
        if outcome.code == 2 or self.tried[unit] > self.retries or not self.has_fit():
            self.give_up(unit, reason)
        else:
            self.note(f"unit {unit} starts again: {reason}")
            self.submit(unit)

    def has_fit(self) -> bool:
        """Returns true unless no node is left that can run the program."""
        able = (node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= self.cpus)
        return not self.unfit or any(node["NodeID"] not in self.unfit for node in able)

    def give_up(self, unit: str, reason: str) -> None:
        for task in [task for task, of in self.running.items() if of == unit]:
            del self.running[task]
            ray.cancel(task)
        self.faults[unit] = f"unit {unit} ({_name(self.units[unit])}): {reason}"
        self.note(self.faults[unit])

    def cancel(self) -> None:
        """Stops all tasks, in order: the program of each ends, and so do checkpoints. Returns at once if there are none."""
        for task in self.running:
            ray.cancel(task)
        if self.running:
            ray.wait(list(self.running), num_returns=len(self.running), timeout=GRACE + 5)
            self.take()
        ray.kill(self.inbox)

    def warn(self) -> None:
        """Says if no node can take the largest unit. A cluster that grows may add one."""
        unit = max(self.units.values(), key=lambda unit: int(unit["bytes"]))
        needs = {"CPU": self.cpus, "GPU": self.gpus, "memory": 1.15 * unit["bytes"]}
        if not any(all(node.get(key, 0) >= n for key, n in needs.items()) for node in _nodes()):
            text = f"{self.cpus} CPUs, {self.gpus} GPUs, and {needs['memory'] / 2**30:.1f} GiB"
            self.note(f"unit {unit['id']} ({_name(unit)}) waits for a node with {text}; no node has them")


def _nodes() -> list[dict[str, float]]:
    """Resources of the nodes that are up."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _smallest() -> int:
    """Processors of the smallest node that has any: a unit then uses a node whole."""
    sizes = [int(node["CPU"]) for node in _nodes() if node.get("CPU", 0) >= 1]
    if not sizes:
        raise Error("no node of the cluster offers a CPU; give the number for a unit")
    return min(sizes)


def _name(unit: dict[str, Any]) -> str:
    length = f", {unit['length']} tokens" if unit["length"] is not None else ""
    return f"{unit['model']}, {unit['method']}{length}"


def _line(e: BaseException) -> str:
    """The first line of an error. Ray's have many."""
    lines = str(e).strip().splitlines()
    return lines[0] if lines else type(e).__name__
