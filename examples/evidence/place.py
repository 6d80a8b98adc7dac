"""The working directory of one machine (frozen program, texts, models, unfinished work), and the records."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
RECORDS = ROOT / "docs/results/records"


class Problem(Exception):
    """An error that the user can fix, in one line."""


def write(path, text):
    """Writes a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def environment(args):
    """Returns the variables set for a command. Training uses the instructions that all processors with AVX2 have, so that the
    same build makes the same model on all of them, bit for bit."""
    return {"ROPEWALK_INSTRUCTIONS": "avx2"} if args[0] == "finetune" else {}


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value):
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def read_plan(changes=None):
    """Returns plan.toml, with the changes of another file. Tables are merged; other values are replaced."""
    plan = read_toml(HERE / "plan.toml")
    return merged(plan, read_toml(changes), str(changes)) if changes else plan


def read_toml(path):
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise Problem(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def merged(old, new, where):
    for key, value in new.items():
        if key not in old:
            raise Problem(f"{where}: {key}: expected a key of plan.toml here: {', '.join(old)}")
        if kind(old[key]) != kind(value):
            raise Problem(f"{where}: {key}: expected {kind(old[key])}, found {value!r}")
    return old | {k: merged(old[k], v, f"{where}: {k}") if isinstance(v, dict) else v for k, v in new.items()}


def kind(value):
    """Names the type of a value in a plan."""
    names = {dict: "a table", list: "a list", str: "a string", int: "a number", float: "a number"}
    if isinstance(value, list) and value:
        return f"a list whose items are each {kind(value[0])}"
    return names.get(type(value), "a value of another type")


def record_name(unit):
    return unit.replace("/", ".").replace(", ", "-").replace(" ", "-").replace("(", "").replace(")", "") + ".json"


def read_records(folder):
    found = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            found[record["unit"]] = record
        except (ValueError, KeyError, TypeError) as error:
            raise Problem(f"{path}: not a record: {error}") from None
    return found


class Place:
    """Paths and program of one run. `out` can be None if only the plan and the records are needed."""

    def __init__(self, out=None, plan=None, records=None, threads=0, program=None, device="cpu", changes=None):
        self.out = pathlib.Path(out).resolve() if out else None
        self.plan = plan or read_plan(changes)
        self.changes = digest(read_toml(changes)) if changes else ""
        self.folder = pathlib.Path(records).resolve() if records else self.inside("records") if changes else RECORDS
        self.threads = threads
        self.device = device
        self.given = pathlib.Path(program).resolve() if program else None
        self.sums = {}

    def records(self):
        return read_records(self.folder)

    # Files.

    def claim(self):
        """Makes the working directory. It has texts and models of one plan, so it rejects a plan with other changes."""
        mark, new = self.inside("changes"), not self.inside("program").exists()
        self.out.mkdir(parents=True, exist_ok=True)
        if new and self.changes:
            write(mark, self.changes)
        if (mark.read_text() if mark.is_file() else "") != self.changes:
            raise Problem(f"{self.out} has texts and models of another plan; use another OUT")

    def inside(self, *parts):
        return (self.out or pathlib.Path("OUT")).joinpath(*parts)

    def work(self, unit):
        return self.inside("work", record_name(unit)[:-5])

    def model(self, unit):
        return self.inside("models", record_name(unit)[:-5] + ".gguf")

    def data(self, name):
        """Returns a directory of published data."""
        return f"{self.plan['benchmarks']}/{name}"

    def shown(self, text):
        """Returns a text with paths as records have them, which are the same on every machine."""
        text = str(text)
        for path, name in ((self.inside("program"), ""), (self.given, ""), (self.out, "OUT"), (ROOT, "")):
            if path:
                text = text.replace(f"{path}/", f"{name}/" if name else "")
        return text

    def sha256(self, path):
        """Returns the SHA-256 of a file. For a directory, hashes the sorted list of its files' checksums and names."""
        path = ROOT / path
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.is_file())
            lines = "".join(f"{self.sha256(p)}  {p.relative_to(path)}\n" for p in files)
            return hashlib.sha256(lines.encode()).hexdigest()
        stat = path.stat()
        key = (str(path), stat.st_size, stat.st_mtime_ns)
        if key not in self.sums:
            with open(path, "rb") as file:
                self.sums[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self.sums[key]

    # The program.

    def program(self):
        return (self.given or self.inside("program")) / "ropewalk"

    def build(self):
        """Returns the commit and the checksum of the frozen program."""
        path = self.inside("program", "build.json")
        if not path.is_file():
            raise Problem(f"{path} does not exist: no program is frozen yet")
        return json.loads(path.read_text(encoding="utf-8"))

    def ask(self, args):
        """Runs a short command and returns the JSON it prints."""
        env = os.environ | environment(args)
        done = subprocess.run([self.program(), *map(str, args)], cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            raise Problem(done.stderr.strip() or f"ropewalk {args[0]}: exit status {done.returncode}")
        return json.loads(done.stdout)

    def freeze(self):
        """Freezes one build for all units: that of --program, or a build of the checked-out commit."""
        folder = self.inside("program")
        if not (folder / "build.json").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            source = self.given or self.compile()
            shutil.copy2(source / "ropewalk", folder / "ropewalk")
            shown = subprocess.run(
                [folder / "ropewalk", "--version"], capture_output=True, text=True, check=True
            ).stdout
            stamp = shown.rpartition("(")[2].strip(" )\n")
            full = subprocess.run(
                ["git", "rev-parse", "--verify", "-q", stamp + "^{commit}"], cwd=ROOT, capture_output=True, text=True
            )
            if full.returncode:
                raise Problem(f"the program was built from {stamp}, which is not a commit of this repository")
            build = {"commit": full.stdout.strip(), "sha256": self.sha256(folder / "ropewalk")}
            write(folder / "build.json", json.dumps(build, indent=1) + "\n")
        self.given = None
        build = self.build()
        if self.sha256(folder / "ropewalk") != build["sha256"]:
            raise Problem(f"{folder / 'ropewalk'}: differs from the frozen program: expected sha256 {build['sha256']}")
        return build

    def compile(self):
        if subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip():
            raise Problem("the working tree has changes; commit them, or name a build with --program")
        source = self.inside("source")
        if not source.exists():
            subprocess.run(["git", "clone", "-q", "--shared", ROOT, source], check=True)
        subprocess.run(["cargo", "build", "--release", "--bin", "ropewalk"], cwd=source, check=True)
        return source / "target/release"


def processor(device="cpu"):
    """Returns the name of the processor, or of the GPU that computes. Without nvidia-smi, a GPU is named as `--device` does."""
    if device.startswith("cuda:"):
        ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=" + device.removeprefix("cuda:")]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    if device != "cpu":
        return device
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return "unknown"
