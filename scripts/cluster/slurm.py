"""Slurm on loopback: a controller and two nodes of one processor, without munge, systemd, and control groups."""

from __future__ import annotations

import getpass
import json
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

import processes
from study import Study

CONFIG = """ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SlurmdTimeout=10
KillWait=30
MinJobAge=3600
ReturnToService=2
StateSaveLocation={folder}/controller
SlurmctldPidFile={folder}/controller.pid
SlurmctldLogFile={folder}/controller.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=2,bf_interval=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=4000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=60 State=UP
"""


class Slurm:
    name = "Slurm"
    nodes = ("n1", "n2")
    # `requeue` is what preemption does; `limit` is the signal that Slurm sends before the time limit; `cancel` is for good.
    kinds = ("cell", "cell", "node", "requeue", "limit", "cancel")
    # Results are on a shared disk, so nothing is measured twice.
    remeasured_by: tuple[str, ...] = ()
    grace = "KillWait is 30 s"

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder, self.mark = folder, mark
        self.stops: list[float] = []
        self.cancelled: set[str] = set()
        (folder / "controller").mkdir(parents=True)
        host, config = socket.gethostname().split(".")[0], folder / "slurm.conf"
        config.write_text(CONFIG.format(host=host, user=getpass.getuser(), ports=free_ports(3), folder=folder))
        self.more = {"SLURM_CONF": str(config)}
        self.jobs: list[str] = []
        self.log = (folder / "daemons.log").open("ab")
        self.daemon("", "slurmctld", "-D")
        for node in self.nodes:
            self.start_node(node)
        for _ in range(120):
            if (self.slurm("sinfo", "-h", "-t", "idle", "-o", "%D") or "").strip() == "2":
                return
            time.sleep(0.5)
        raise AssertionError(f"Slurm does not start; see {folder}")

    def daemon(self, node: str, *words: str) -> None:
        # Debian has daemons where the path of a user may not lead.
        path = shutil.which(words[0]) or f"/usr/sbin/{words[0]}"
        env = processes.environment(self.mark, node, **self.more)
        subprocess.Popen([path, *words[1:]], env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)

    def slurm(self, *words: str) -> str | None:
        """Output of a command; `None` if it fails. `scancel` tries again for minutes if a task ends at that moment."""
        env = processes.environment(self.mark, **self.more)
        try:
            done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=10)
        except subprocess.TimeoutExpired:
            return None
        return done.stdout if done.returncode == 0 else None

    def start_node(self, node: str) -> None:
        (self.folder / node).mkdir(exist_ok=True)
        self.daemon(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        processes.kill_all(self.mark, node)

    def begin(self, study: Study, out: Path, nodes: tuple[str, ...]) -> None:
        words = [study.program, "study", str(study.plan), "-o", str(out), "--slurm", "--submit", "--json", "-q", "--device", "cpu", "--"]
        words += ["--cpus-per-task=1", "--time=30", *(f"--exclude={node}" for node in self.nodes if node not in nodes)]
        done = subprocess.run(words, env=processes.environment(self.mark, **self.more), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.jobs = json.loads(done.stdout)["jobs"]

    def ended(self) -> bool:
        """Whether no job is left. Jobs that wait for a time need not, in a test."""
        jobs = self.slurm("squeue", "-h", "-r", "-o", "%i %T %r")
        is_left = jobs is None
        for line in (jobs or "").splitlines():
            job, state, reason = line.split(" ", 2)
            if job.split("_")[0] not in self.jobs:
                continue
            is_left = True
            assert state != "PENDING" or job not in self.cancelled, f"task {job} was cancelled, and is queued again"
            if reason == "BeginTime":
                self.slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
            elif "held" in reason.lower():
                # A node that dies while a job starts.
                self.slurm("scontrol", "release", job)
        return not is_left

    def hurt(self, kind: str, draw: random.Random) -> str | None:
        """Does harm, and says which; `None` if there is nothing to harm."""
        if kind == "cell":
            if found := processes.units(self.mark):
                processes.kill(victim := draw.choice(found))
                return f"{kind} {victim.pid}"
            return None
        running = (self.slurm("squeue", "-h", "-r", "-t", "R", "-o", "%i %N") or "").splitlines()
        tasks = sorted(line.split(" ") for line in running if line.split("_")[0] == self.jobs[0])
        if not tasks:
            return None
        task, node = draw.choice(tasks)
        units = processes.units(self.mark, node)
        words = {"requeue": ["scontrol", "requeue"], "limit": ["scancel", "--batch", "--signal=HUP"], "cancel": ["scancel"]}
        if self.slurm(*words[kind], task) is None:
            return None
        self.stops += processes.ended(self.mark, units)
        if kind == "cancel":
            self.cancelled.add(task)
        return f"{kind} {task}"

    def cells(self, out: Path) -> list[Path]:
        return list(out.glob("parts/*/cells/[0-9a-f]*.json"))

    def stop(self) -> None:
        processes.kill_all(self.mark)
        self.log.close()


def free_ports(n: int) -> list[int]:
    """Ports of loopback that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
