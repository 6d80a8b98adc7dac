"""What runs on the nodes.

Ray sends this module with its tasks, so a node needs Ray and the program `ropewalk`, not this package. It uses nothing but the
standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Names in a part, `cells/HASH.json`, and bytes.
Files = list[tuple[str, bytes]]

# Bytes of an adapter that is sent, at most. Where a larger one is missing, it is trained again.
MAX_ADAPTER = 1 << 30
# Seconds between looks for new results.
POLL = 0.2
# Seconds for the program to stop: a training writes a checkpoint first.
GRACE = 20.0
# Exit codes of an attempt on a node without the program, or with another version of it, as of a shell.
WITHOUT, OTHER = 127, 126
# Seconds for the program of a worker that was killed to die: Ray kills it too, a little later.
ORPHAN = 60.0


@dataclass(frozen=True)
class Job:
    """One attempt at a unit."""

    unit: str
    # Text of the plan, and the directory that its relative paths start from.
    plan: bytes
    base: str
    # The program, its version, and its further options.
    program: str
    version: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    # Exit code of the program, below 0 if a signal ended it.
    code: int
    # Last line of the program, or another reason.
    message: str
    # Names of all results; they were sent before.
    cells: tuple[str, ...] = ()


class Inbox:
    """An actor. Holds what the tasks send until the driver says that it has it: a call of the driver can be interrupted."""

    def __init__(self) -> None:
        self.sent: dict[str, tuple[str, str, Files]] = {}

    def put(self, unit: str, node: str, files: Files) -> None:
        # Not a count: the driver may still name what an inbox had that has died.
        self.sent[os.urandom(8).hex()] = (unit, node, files)

    def take(self, kept: list[str]) -> dict[str, tuple[str, str, Files]]:
        """What is there, less what the driver has kept."""
        for key in kept:
            self.sent.pop(key, None)
        return dict(self.sent)


def find(program: str) -> str | None:
    """The program on the PATH, or in the environment that Python runs in."""
    found = shutil.which(program) or shutil.which(program, path=os.path.dirname(sys.executable))
    return found and os.path.abspath(found)


def version(program: str) -> str:
    """What the program prints for `--version`."""
    done = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def replace(path: Path, data: bytes) -> None:
    """Writes a file at once or not at all. Unfinished ones are hidden."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(file, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        # It is not there if Ctrl-C came last.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def scratch(job: Job) -> Path:
    """A directory of this node for a unit. A later attempt on the same node finds samples and checkpoints there."""
    root = Path(tempfile.gettempdir()) / f"ropewalk-ray-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        root.mkdir(0o700)
    # Others can make names in a shared directory.
    found = root.lstat()
    if not root.is_dir() or root.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{root}: expected a directory of this user that others cannot enter; remove it")
    job_id = hashlib.sha256(repr((job.plan, job.base, job.options)).encode()).hexdigest()[:16]
    return root / job_id / job.unit


def _lock(folder: Path) -> int | None:
    """Takes the lock of a directory, unless another process has it, or has removed the directory."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), os.stat(folder / ".lock")):
            return file
    os.close(file)
    return None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Waits until no other attempt works in the directory, nor a program that one left. Gives the lock, for the program."""
    end = time.monotonic() + ORPHAN
    while (file := _lock(folder)) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"{folder}: another process has worked there for {ORPHAN:.0f} seconds")
        time.sleep(POLL)
    try:
        yield file
    finally:
        os.close(file)


def stop(child: subprocess.Popen[bytes]) -> None:
    """Asks the program to stop, and ends it if it does not."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


class Courier:
    """Sends each file of a part when it is whole. A result and its samples are sent together: if the inbox is lost between
    the two, the driver would have one of them only."""

    def __init__(self, part: Path, send: Callable[[Files], None], known: Files) -> None:
        self.part, self.send = part, send
        self.sent: dict[str, tuple[int, int]] = {}
        for name, data in known:
            path = part / name
            # What an earlier attempt left here may be a failure, or an adapter that nothing was measured with.
            if not path.exists() or path.read_bytes() != data:
                replace(path, data)
            self.sent[name] = self.stamp(path)

    @staticmethod
    def stamp(path: Path) -> tuple[int, int]:
        found = path.stat()
        return found.st_ino, found.st_mtime_ns

    def names(self, kind: str, ending: str) -> list[str]:
        found = sorted((self.part / kind).glob(f"[0-9a-f]*{ending}"))
        return [f"{kind}/{path.name}" for path in found]

    def cells(self) -> tuple[str, ...]:
        return tuple(self.names("cells", ".json"))

    def __call__(self) -> None:
        # Without the adapter, another node would train again.
        for name in self.names("adapters", ".gguf"):
            if (self.part / name).stat().st_size <= MAX_ADAPTER:
                self.files(name)
        for name in self.cells():
            self.files(name, name.replace("cells/", "samples/") + "l")

    def files(self, name: str, samples: str = "") -> None:
        stamp = self.stamp(self.part / name)
        if self.sent.get(name) != stamp:
            names = [samples] if samples and (self.part / samples).exists() else []
            self.send([(file, (self.part / file).read_bytes()) for file in [*names, name]])
            self.sent[name] = stamp


def measure(send: Callable[[Files], None], job: Job, known: Files) -> Outcome:
    """Runs the program for a unit, and sends each result as soon as it is there. `known` are files of the part that the
    driver has."""
    program = find(job.program)
    if program is None:
        return Outcome(WITHOUT, f"no program {job.program!r} on the PATH; install ropewalk there")
    found = version(program)
    if found != job.version:
        return Outcome(OTHER, f"expected {job.version!r} as on the driver, found {found!r}")
    folder = scratch(job)
    with locked(folder) as lock:
        out, log = folder / "out", folder / "log"
        courier = Courier(out / "parts" / job.unit, send, known)
        command = [program, "study", "-", "-o", str(out), "--unit", job.unit, "-q", *job.options]
        # The plan's paths start from there. If it is not there, they may be absolute.
        base = job.base if os.path.isdir(job.base) else folder
        with log.open("wb") as errors, tempfile.TemporaryFile() as plan:
            plan.write(job.plan)
            plan.seek(0)
            child = subprocess.Popen(
                command, stdin=plan, stdout=subprocess.DEVNULL, stderr=errors, pass_fds=[lock], cwd=base
            )
        try:
            # An exception comes from Ray, which cancels the task, or from sending.
            while child.poll() is None:
                time.sleep(POLL)
                courier()
        except BaseException:
            stop(child)
            # What was measured meanwhile. The driver waits for it.
            with contextlib.suppress(Exception):
                courier()
            raise
        courier()
        lines = log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
        outcome = Outcome(child.returncode, lines[-1] if lines else "", courier.cells())
        if outcome.code == 0:
            shutil.rmtree(folder)
    return outcome


def remote(inbox: object, job: Job, known: Files) -> tuple[str, str, Outcome]:
    """The task. Gives the name and the ID of the node, too."""
    import ray

    node = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
    node_id = ray.get_runtime_context().get_node_id()

    def send(files: Files) -> None:
        # An answer means that the driver will get them.
        ray.get(inbox.put.remote(job.unit, node, files))  # type: ignore[attr-defined]

    try:
        return node, node_id, measure(send, job, known)
    except OSError as e:
        return node, node_id, Outcome(1, str(e))
