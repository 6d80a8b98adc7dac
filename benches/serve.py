#!/usr/bin/env python3
"""Speed of `ropewalk serve` through HTTP: against `ropewalk bench`, and against llama-server on the same file.

    pip install xllamacpp    # has llama-server
    python benches/serve.py -m models/SmolLM2-135M-Instruct.Q4_1.gguf --program target/release/ropewalk -o serve.md

Both servers run with the same threads, context, and number of requests at once, and their own defaults otherwise. They get the
same random tokens, in turns: first one, then the other, and the other way around in the next turn. No two requests share a
beginning, but where that is measured. All settings are options; --help lists them.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Optional, TextIO


@dataclass
class Answer:
    """What came of a request, with the time of each event that has a part of the answer."""

    sent: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    error: Optional[str] = None
    done: bool = False

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.sent

    @property
    def gap(self) -> float:
        """The longest time between two tokens."""
        return max((b - a for a, b in zip(self.times, self.times[1:])), default=0.0)

    @property
    def decode(self) -> float:
        """Tokens per second after the first."""
        return float(self.usage["completion_tokens"] - 1) / (self.times[-1] - self.times[0])


class Server:
    """A process that answers completions at an address that it prints as JSON."""

    def __init__(self, command: list[str], log: Optional[TextIO] = None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log or subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{command[0]}: expected an address, found the end: {' '.join(command)}")
        self.address = json.loads(line)["url"].removeprefix("http://")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait()

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection(self.address, timeout=600)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        """The most likely tokens after a prompt."""
        return self.stream("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        connection = http.client.HTTPConnection(self.address, timeout=3600)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def stream(self, path: str, body: dict[str, Any], leave: Optional[Callable[[Answer], bool]] = None) -> Answer:
        """Reads a stream to its end, or until `leave` says to close the connection."""
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection(self.address, timeout=3600)
        answer = Answer(time.perf_counter())
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer.status = response.status
            if response.status != 200:
                answer.error = response.read().decode()
                return answer
            for line in iter(response.readline, b""):
                now = time.perf_counter()
                if line.startswith(b"data: [DONE]"):
                    answer.done = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    answer.error = json.dumps(event["error"]) if "error" in event else answer.error
                    answer.usage = event.get("usage") or answer.usage
                    answer.about = event.get("ropewalk") or answer.about
                    for choice in event.get("choices", []):
                        text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
                        answer.text += text
                        if choice["finish_reason"] is None or text or not answer.times:
                            answer.times.append(now)
                if leave is not None and leave(answer):
                    break
        # An event of a server that was killed may be cut.
        except (OSError, ValueError, http.client.HTTPException) as e:
            answer.error = f"{type(e).__name__}: {e}"
        finally:
            connection.close()
        return answer


def measured(answer: Answer) -> Answer:
    """The answer, if it is whole."""
    if not answer.done or answer.error or not answer.times:
        sys.exit(f"a request failed: {answer.error or 'it ended early'}")
    return answer


def ropewalk(args: argparse.Namespace, ctx: int, parallel: int, *more: str, log: Optional[TextIO] = None) -> Server:
    """A server of this program. Its notes and warnings go to `log`."""
    command = [args.program, "serve", "-m", args.model, "--port", "0", "--json", "-t", str(args.threads)]
    command += ["--ctx", str(ctx), "--parallel", str(parallel), *more, *args.ropewalk.split()]
    return Server(command if log else [*command, "-q"], log)


def llama(args: argparse.Namespace, ctx: int, parallel: int) -> Server:
    """llama-server in a process of this file. It divides its context among requests."""
    command = [sys.executable, __file__, "-m", args.model, "-t", str(args.threads)]
    return Server([*command, "--llama-server", str(ctx * parallel), str(parallel)])


def serve_llama(args: argparse.Namespace) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_ctx, params.n_parallel = args.llama_server
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.n_gpu_layers = 0
    params.fit_params = False
    params.port = 0
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.read()


@contextmanager
def both(args: argparse.Namespace, ctx: int, parallel: int) -> Iterator[dict[str, Server]]:
    """Both servers, or only ropewalk's with --alone."""
    with ExitStack() as stack:
        servers = {"ropewalk": ropewalk(args, ctx, parallel)}
        stack.callback(servers["ropewalk"].stop)
        if not args.alone:
            servers["llama-server"] = llama(args, ctx, parallel)
            stack.callback(servers["llama-server"].stop)
        yield servers


class Tokens:
    """Random tokens of the middle of the vocabulary, where no special ones are."""

    def __init__(self, server: Server) -> None:
        n = json.loads(server.get("/v1/models"))["data"][0]["meta"]["n_vocab"]
        self.range, self.random = (n // 8, n // 4), random.Random(42)

    def __call__(self, n: int) -> list[int]:
        return [self.random.randrange(*self.range) for _ in range(n)]


def turns(args: argparse.Namespace, names: list[str], what: str) -> Iterator[tuple[int, list[str]]]:
    for turn in range(args.turns):
        print(f"{what}: turn {turn + 1} of {args.turns}", file=sys.stderr, flush=True)
        yield turn, names if turn % 2 == 0 else names[::-1]


def percent(values: list[float], p: float) -> float:
    """A percentile, as one of the values."""
    return sorted(values)[min(len(values) - 1, int(p / 100 * len(values)))]


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def one_request(args: argparse.Namespace) -> str:
    """Prefill and decode of one request."""
    n, made = args.prompt, args.made
    found: dict[str, list[tuple[float, float]]] = {}
    with both(args, n + args.single, 1) as servers:
        tokens = Tokens(servers["ropewalk"])
        for server in servers.values():
            measured(server.ask(tokens(n), made))
        for _, names in turns(args, ["bench", *servers], "one request"):
            prompt = tokens(n)
            for name in names:
                if name == "bench":
                    command = [args.program, "bench", "-m", args.model, "-t", str(args.threads), "-r", "1", "--json", "-q"]
                    command += args.ropewalk.split()
                    rates = []
                    for test in [["-p", str(n), "-n", "0"], ["-p", "0", "-n", str(args.single), "-d", str(n)]]:
                        said = json.loads(subprocess.run([*command, *test], check=True, stdout=subprocess.PIPE).stdout)
                        rates.append(said["results"][0]["median_ts"])
                    found.setdefault(name, []).append((rates[0], rates[1]))
                else:
                    answer = measured(servers[name].ask(prompt, args.single))
                    found.setdefault(name, []).append((n / answer.first, answer.decode))
    rows = []
    for name, rates in found.items():
        ratios = [[a[i] / b[i] for a, b in zip(rates, found["bench"])] for i in (0, 1)]
        values = [median(rate[i] for rate in rates) for i in (0, 1)]
        rows.append([name, f"{values[0]:.1f}", f"{values[1]:.1f}", f"{median(ratios[0]):.3f}", f"{median(ratios[1]):.3f}"])
    head = ["", f"prompt of {n}, tokens/s", f"{args.single} tokens after it, tokens/s", "prompt / `bench`", "answer / `bench`"]
    return "## One request\n\n" + table(head, rows)


def many_requests(args: argparse.Namespace) -> str:
    """Requests at once, whose prompts have nothing in common."""
    rows, counts = [], sorted(set(args.counts))
    with both(args, args.prompt + args.made, max(counts)) as servers, ThreadPoolExecutor(max(counts)) as pool:
        tokens = Tokens(servers["ropewalk"])
        for n in counts:
            rates: dict[str, list[float]] = {name: [] for name in servers}
            firsts: dict[str, list[float]] = {name: [] for name in servers}
            for _, names in turns(args, list(servers), f"{n} requests"):
                prompts = [tokens(args.prompt) for _ in range(n)]
                for name in names:
                    started = time.perf_counter()
                    answers = list(pool.map(lambda prompt: measured(servers[name].ask(prompt, args.made)), prompts))
                    rates[name].append(n * (args.prompt + args.made) / (time.perf_counter() - started))
                    firsts[name] += [answer.first for answer in answers]
            row = [str(n)]
            for name in servers:
                row += [f"{median(rates[name]):.1f}", f"{median(firsts[name]):.2f}"]
            if not args.alone:
                row.append(f"{median(a / b for a, b in zip(rates['ropewalk'], rates['llama-server'])):.2f}")
            rows.append(row)
    head = ["requests", *(f"{name}, {what}" for name in servers for what in ("tokens/s", "first token, s"))]
    title = f"## Requests of {args.prompt} tokens in and {args.made} out at once\n\n"
    return title + "Tokens per second are those of prompts and answers.\n\n" + table(head if args.alone else [*head, "ratio"], rows)


def during_a_long_prompt(args: argparse.Namespace) -> str:
    """Short requests, one after another, while a long prompt is read."""
    n = args.document
    found: dict[str, list[Answer]] = {}
    alone: dict[str, list[Answer]] = {}
    long: dict[str, list[float]] = {}
    with both(args, n + args.made, 4) as servers, ThreadPoolExecutor(1) as pool:
        tokens = Tokens(servers["ropewalk"])
        for _, names in turns(args, list(servers), "short requests during a long one"):
            for name in names:
                ask = servers[name].ask
                alone.setdefault(name, []).append(measured(ask(tokens(args.short), args.short)))
                whole = pool.submit(ask, tokens(n), 4)
                time.sleep(args.delay)
                while not whole.done():
                    found.setdefault(name, []).append(measured(ask(tokens(args.short), args.short)))
                long.setdefault(name, []).append(measured(whole.result()).first)
    rows = []
    for name, answers in found.items():
        firsts, gaps = [a.first for a in answers], [a.gap for a in answers]
        row = [name, str(len(answers)), *(f"{percent(values, p):.3f}" for values in (firsts, gaps) for p in (50, 95))]
        rows.append([*row, f"{max(gaps):.3f}", f"{median(long[name]):.1f}", f"{median(a.first for a in alone[name]):.3f}"])
    head = ["", "short requests", "first token p50, s", "p95", "longest gap p50, s", "p95", "worst"]
    head += ["long prompt, s", "short alone, first token, s"]
    return f"## Requests of {args.short} in and out while {n} tokens are read\n\n" + table(head, rows)


def same_document(args: argparse.Namespace) -> str:
    """One document, asked about twice, and after a restart."""
    n, ctx = args.document, args.document + args.made
    help_text = subprocess.run([args.program, "serve", "--help-all"], check=True, capture_output=True, text=True).stdout
    keeps = "--prefix-dir" in help_text
    found: dict[str, list[list[float]]] = {}
    for turn, names in turns(args, ["ropewalk"] if args.alone else ["ropewalk", "llama-server"], "one document"):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:

                def start() -> Server:
                    if name == "ropewalk":
                        return ropewalk(args, ctx, 1, *(["--prefix-dir", folder] if keeps else []))
                    return llama(args, ctx, 1)

                server = start()
                tokens = Tokens(server)
                tokens.random.seed(turn)
                document = tokens(n - args.short)
                measured(server.ask(tokens(args.short), 2))
                times = [measured(server.ask(document + tokens(args.short), 2)).first for _ in range(2)]
                server.stop()
                server = start()
                measured(server.ask(tokens(args.short), 2))
                times.append(measured(server.ask(document + tokens(args.short), 2)).first)
                server.stop()
                found.setdefault(name, []).append(times)
    rows = []
    for name, runs in found.items():
        values = [median(run[i] for run in runs) for i in range(3)]
        parts = [median(run[i] / run[0] for run in runs) for i in (1, 2)]
        rows.append([name, *(f"{value:.3f}" for value in values), *(f"{100 * part:.1f} %" for part in parts)])
    head = ["", "first token, s", "asked again, s", "after a restart, s", "again / first", "restart / first"]
    note = "" if keeps else "This ropewalk keeps nothing on disk.\n\n"
    return f"## A document of {n} tokens\n\nThe last {args.short} tokens differ.\n\n{note}" + table(head, rows)


PARTS = {"one": one_request, "many": many_requests, "during": during_a_long_prompt, "document": same_document}


def about(args: argparse.Namespace, started: float, title: str) -> str:
    """The machine, the versions, and the time it took."""

    def said(*command: str) -> str:
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    git = ["git", "-C", str(Path(__file__).parent)]
    changed = ", changed" if said(*git, "status", "--porcelain", "-uno") else ""
    rows = [
        ["date", datetime.date.today().isoformat()],
        ["commit", said(*git, "rev-parse", "--short", "HEAD") + changed],
        ["processor", f"{models[0] if models else 'unknown'}, {os.cpu_count()} cores, {args.threads} threads used"],
        ["model", Path(args.model).name],
        ["programs", said(args.program, "--version")],
        ["time", f"{time.perf_counter() - started:.0f} s" + (f", {args.turns} turns; values are medians" if args.turns else "")],
    ]
    if not args.alone:
        from importlib.metadata import version

        rows[4][1] += f"; llama-server of xllamacpp {version('xllamacpp')}"
    return f"# {title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in [["", ""], ["---", "---"], *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="GGUF file")
    parser.add_argument("--program", default="target/release/ropewalk")
    parser.add_argument("--ropewalk", default="", metavar="OPTIONS", help="more options of ropewalk, such as '--math auto'")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--alone", action="store_true", help="without llama-server")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--made", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--single", type=int, default=128, help="tokens of the answer to one request alone")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="requests at once")
    # With an answer 8,192 tokens: llama-server's requests get no more than the trained context.
    parser.add_argument("--document", type=int, default=8192 - 64, help="tokens of a long prompt")
    parser.add_argument("--short", type=int, default=32, help="tokens of a short request, and of its answer")
    parser.add_argument("--delay", type=float, default=0.3, help="seconds from a long request to the first short one")
    parser.add_argument("-o", "--output", help="file to write [default: stdout]")
    parser.add_argument("--llama-server", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.llama_server is not None:
        return serve_llama(args)
    started = time.perf_counter()
    parts: list[str] = []
    for name in args.parts:
        parts.append(PARTS[name](args))
        text = "\n\n".join([about(args, started, "`ropewalk serve` through HTTP"), *parts]) + "\n"
        # After each part, as a later one may fail.
        if args.output is not None:
            Path(args.output).write_text(text)
    if args.output is None:
        print(text, end="")
    print(f"took {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
