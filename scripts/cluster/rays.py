"""Ray on loopback: a head, and two raylets of one processor, with a token. Nodes have directories of their own."""

from __future__ import annotations

import random
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import processes
from slurm import free_ports
from study import Study

# Ray takes 127.0.0.1 for another address of this machine.
HEAD = "127.0.0.2"
ADDRESSES = {"n1": "127.0.0.3", "n2": "127.0.0.4"}


class Rays:
    name = "Ray"
    nodes = ("n1", "n2")
    kinds = ("cell", "worker", "node", "driver")
    # What a node had not sent is lost with it.
    remeasured_by = ("worker", "node", "driver")
    grace = "ropewalk-ray gives 20 s"

    def __init__(self, folder: Path, mark: str, package: Path) -> None:
        self.folder, self.mark, self.package = folder, mark, package
        self.stops: list[float] = []
        folder.mkdir()
        token = folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.more = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray's processes rename themselves, and else write the names over the environments that they are found by.
            "SPT_NOENV": "1",
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        }
        self.port, self.client = free_ports(2)
        self.driver: subprocess.Popen[bytes] | None = None
        self.log = (folder / "log").open("ab")
        # A path of Ray's sockets has at most 107 bytes.
        words = ["--head", f"--port={self.port}", f"--ray-client-server-port={self.client}", "--include-dashboard=false"]
        self.ray(HEAD, "", 0, *words, f"--temp-dir={folder}/r")
        for node in self.nodes:
            self.start_node(node)

    def ray(self, address: str, node: str, cpus: int, *words: str) -> None:
        env = processes.environment(self.mark, node, TMPDIR=str(self.folder / node), **self.more)
        command = ["ray", "start", f"--node-ip-address={address}", f"--num-cpus={cpus}", "--object-store-memory=80000000"]
        command[0] = str(Path(sys.executable).parent / "ray")
        done = subprocess.run([*command, *words], env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, check=False)
        assert done.returncode == 0, f"Ray does not start; see {self.folder}/log"

    def start_node(self, node: str) -> None:
        (self.folder / node).mkdir(exist_ok=True)
        self.ray(ADDRESSES[node], node, 1, f"--address={HEAD}:{self.port}")

    def kill_node(self, node: str) -> None:
        processes.kill_all(self.mark, node)
        shutil.rmtree(self.folder / node, ignore_errors=True)

    def begin(self, study: Study, out: Path, nodes: tuple[str, ...]) -> None:
        del nodes
        command = str(self.package / "bin" / "ropewalk-ray")
        words = [command, str(study.plan), "-o", str(out), "--program", study.program, "--retries=100"]
        # A driver in the cluster begins a study, and those outside, which use Ray Client, resume it.
        if out.exists():
            words.append(f"--address=ray://{HEAD}:{self.client}")
        else:
            words += [f"--address={HEAD}:{self.port}", f"--node-ip-address={HEAD}"]
        # Only there: nodes do without the package.
        env = processes.environment(self.mark, "driver", PYTHONPATH=str(self.package), **self.more)
        self.driver = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def ended(self) -> bool:
        assert self.driver is not None
        code = self.driver.poll()
        # A signal may come before Python has begun.
        assert code in (None, 0, 128 + signal.SIGTERM, -signal.SIGTERM), f"ropewalk-ray: exit code {code}; see {self.folder}/log"
        return code is not None

    def hurt(self, kind: str, draw: random.Random) -> str | None:
        """Does harm, and says which; `None` if there is nothing to harm."""
        if kind == "driver":
            # In order, as Ctrl-C: a driver that is killed takes the tasks along.
            assert self.driver is not None
            units = processes.units(self.mark)
            self.driver.send_signal(signal.SIGTERM)
            self.stops += processes.ended(self.mark, units)
            return kind
        found = processes.units(self.mark)
        if kind == "worker":
            found = [process for process in processes.find(self.mark) if process.words[0].startswith(("ray::unit", "ray::Inbox"))]
        if not found:
            return None
        processes.kill(victim := draw.choice(found))
        return f"{kind} {victim.pid}"

    def cells(self, out: Path) -> list[Path]:
        scratch = self.folder.glob("n?/ropewalk-ray-*/*/*/out/parts/*/cells/[0-9a-f]*.json")
        return [*scratch, *out.glob("parts/*/cells/[0-9a-f]*.json")]

    def stop(self) -> None:
        processes.kill_all(self.mark)
        self.log.close()
