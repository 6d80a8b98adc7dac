"""The command `ropewalk-ray`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from types import FrameType

from . import _driver


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ropewalk-ray",
        description="Run what is left of a study on a Ray cluster, and merge the results.",
        epilog="Options after `--` are those of `ropewalk study`, such as --kv or --math.",
    )
    parser.add_argument("plan", metavar="PLAN", help="plan of the study (a TOML file)")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="directory for the results and the report")
    parser.add_argument(
        "--address", default="auto", help="HOST:PORT, ray://HOST:PORT, local, or auto: RAY_ADDRESS, or the one on this machine"
    )
    parser.add_argument("--cpus", type=_count, metavar="N", help="CPUs for a unit [default: those of the smallest node]")
    parser.add_argument("--gpus", type=float, default=0, metavar="N", help="GPUs for a unit [default: 0]")
    parser.add_argument(
        "--retries", type=int, default=3, metavar="N", help="attempts at a unit that bring nothing new [default: 3]"
    )
    parser.add_argument("--program", default="ropewalk", metavar="PATH", help="the program on all machines [default: ropewalk]")
    parser.add_argument("--node-ip-address", metavar="IP", help="address of this machine in the cluster, where it has several")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")
    return parser.parse_args(words)


def _count(text: str) -> int:
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {n}")
    return n


def _listen() -> None:
    # Under nohup, SIGHUP stays ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """Runs the command. Returns the exit code: 1 for an error, 128 and the signal after one."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args, options = _arguments(words[:end]), words[end + 1 :]

    def note(text: str) -> None:
        if not args.quiet or text.startswith("warning"):
            _print(text)

    try:
        more = {"_node_ip_address": args.node_ip_address} if args.node_ip_address else {}
        _listen()
        _driver.connect(args.address, note, **more)
        # Ray has installed a handler, which exits with 1.
        _listen()
        merged = _driver.run(
            args.plan,
            args.output,
            cpus=args.cpus,
            gpus=args.gpus,
            retries=args.retries,
            program=args.program,
            options=options,
            note=note,
        )
    except _driver.Error as e:
        for line in str(e).splitlines():
            _print(f"error: {line}")
        return 1
    except KeyboardInterrupt:
        _print("interrupted: run the same command again to resume")
        return 128 + signal.SIGINT
    except SystemExit as e:
        _print("interrupted: run the same command again to resume")
        return e.code if isinstance(e.code, int) and e.code > 128 else 128 + signal.SIGTERM
    if args.json:
        print(json.dumps(merged))
    else:
        print(f"{merged['done']} cells measured, {merged['failed']} failed, {merged['missing']} not measured yet")
        print(merged["report"])
    return 0


def _print(text: str) -> None:
    """Parts of it may come from a worker: none controls the terminal."""
    print("".join(c if c.isprintable() else " " for c in text), file=sys.stderr, flush=True)
