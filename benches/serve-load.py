#!/usr/bin/env python3
"""Random load on `ropewalk serve`: answers stay those of each request alone, memory stays, and no cell is lost.

    python benches/serve-load.py -m models/SmolLM2-135M-Instruct.Q4_1.gguf --program target/release/ropewalk --minutes 60

Clients send completions, chats, scores, and wrong requests at random. They read the answers, read them slowly, or close the
connection: at once, in the prompt, or in the answer. In the first half of the time, one server runs. In the second half it is
stopped again and again, or killed (kill -9), and started again. Between, when no client asks, as many requests of full length as
its cells have room for must run at once.

A second server answers each of the requests alone and without reuse. An answer, or the part of it that came, differs if its text
does, except where the two most likely tokens are closer than --tie; scores differ by that much. Sums are rounded differently
depending on where tokens are in the cache. With --ropewalk '--math f32 --kv f32', the default of --tie is enough; int8 turns it
into some tenths.

Texts that leave memory go to a directory. After each start it has whole files alone, never more than --prefix-bytes of them. The
server's log has no warnings and no panics: a file that is damaged would be one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

from serve import Answer, Server, Tokens, about, ropewalk, table


class Load:
    """Clients, and the server that they ask."""

    def __init__(self, args: argparse.Namespace, folder: str) -> None:
        self.args, self.folder = args, folder
        self.random = random.Random(args.seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.largest = self.apart = 0.0
        self.sizes: list[tuple[float, int, int, int]] = []
        self.n_log = 0
        self.lock = threading.Lock()
        #: Set while clients may ask, and while the server may be gone.
        self.go, self.gone, self.end = threading.Event(), threading.Event(), threading.Event()
        self.idle = threading.Semaphore(0)
        self.reference = ropewalk(args, args.ctx, 1, *self.plans())
        self.expected: dict[int, str] = {}
        self.costs: dict[int, list[float]] = {}
        self.reference_lock = threading.Lock()
        self.tokens = Tokens(self.reference)
        self.tokens.random.seed(args.seed)
        self.requests = self.make_requests()
        self.log = open(Path(folder) / "log", "a")
        self.server = self.start()
        self.since = self.started = time.perf_counter()

    def plans(self) -> list[str]:
        return [option for rope in self.args.rope for option in ("--rope", rope)]

    def start(self) -> Server:
        keeps = ["--prefix-dir", f"{self.folder}/texts", "--prefix-bytes", str(self.args.prefix_bytes)]
        return ropewalk(self.args, self.args.ctx, self.args.parallel, *self.plans(), *keeps, log=self.log)

    def make_requests(self) -> list[tuple[str, dict[str, Any]]]:
        """Requests of all lengths, many with a beginning in common."""
        draw, ctx = self.random, self.args.ctx
        documents = [self.tokens(draw.randrange(1, ctx * 3 // 4)) for _ in range(8)]
        requests: list[tuple[str, dict[str, Any]]] = []
        for i in range(self.args.requests):
            made = draw.choice([1, 4, 16, 64])
            settings: dict[str, Any] = {"max_tokens": made, "temperature": 0, "ignore_eos": True}
            if i % 4 == 0:
                words = " ".join(draw.choices(["rope", "walk", "hemp", "spun", "long", "shed"], k=draw.randrange(1, 60)))
                requests.append(("/v1/chat/completions", {**settings, "messages": [{"role": "user", "content": words}]}))
                continue
            document = draw.choice(documents)
            start = document[: draw.randrange(len(document) + 1)] if draw.random() < 0.7 else []
            prompt = start + self.tokens(draw.randrange(1, 64))
            requests.append(("/v1/completions", {**settings, "prompt": prompt[: ctx - made]}))
        return requests

    # What an answer is to be.

    def alone(self, i: int) -> str:
        """The text of a request that is answered alone."""
        with self.reference_lock:
            if i not in self.expected:
                path, body = self.requests[i]
                answer = self.reference.stream(path, {**body, "cache_prompt": False})
                if not answer.done:
                    sys.exit(f"the reference failed: {answer.error}")
                self.expected[i] = answer.text
            return self.expected[i]

    def alone_costs(self, i: int) -> list[float]:
        """The scores of a request's prompt, read alone."""
        with self.reference_lock:
            if i not in self.costs:
                body = {"prompt": self.requests[i][1]["prompt"], "cache_prompt": False}
                self.costs[i] = self.reference.post("/v1/score", body)["scores"][0]["nll"][1:]
            return self.costs[i]

    def gap(self, i: int, text: str) -> float:
        """By how much the two most likely tokens differ where a text begins to differ: a difference of log-probabilities."""
        path, body = self.requests[i]
        chat = path.endswith("/chat/completions")
        with self.reference_lock:
            more = {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
            found = self.reference.post(path, {**body, **more, "cache_prompt": False})
        expected, at = self.alone(i), 0
        same = next((k for k, (a, b) in enumerate(zip(expected, text)) if a != b), min(len(expected), len(text)))
        if chat:
            entries = found["choices"][0]["logprobs"]["content"]
            tokens = [(entry["token"], [top["logprob"] for top in entry["top_logprobs"]]) for entry in entries]
        else:
            logprobs = found["choices"][0]["logprobs"]
            tokens = [(token, list(top.values())) for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"])]
        gaps = [float("inf")]
        for token, values in tokens:
            # Tokens that are parts of a character count as one each, so the place is known up to some tokens.
            values.sort(reverse=True)
            if same - 4 < at + len(token) and at <= same + 4 and len(values) > 1:
                gaps.append(values[0] - values[1])
            at += len(token)
        return min(gaps)

    # Clients.

    def client(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self.end.is_set():
            if not self.go.is_set():
                self.idle.release()
                self.go.wait()
                continue
            i = draw.randrange(len(self.requests))
            ways = {"read": 45, "score": 5, "slow": 5, "wrong": 5, "half": 5, "at_once": 10, "soon": 15, "later": 10}
            (way,) = draw.choices(list(ways), list(ways.values()))
            try:
                getattr(self, f"do_{way}")(draw, i)
            except BaseException as e:
                # Those that wait for this client would wait forever.
                self.fail(f"request {i}, {way}: {type(e).__name__}: {e}")
                self.end.wait(1)

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def fail(self, what: str) -> None:
        with self.lock:
            self.wrong.append(f"{time.perf_counter() - self.since:.1f} s: {what}"[:500])
            print(self.wrong[-1], file=sys.stderr, flush=True)

    def check_text(self, i: int, answer: Answer, what: str) -> None:
        """Compares an answer, or the beginning that came of it, with that of the request alone."""
        expected = self.alone(i)
        if answer.text == expected or not answer.done and expected.startswith(answer.text):
            self.count(what)
        else:
            gap = self.gap(i, answer.text)
            with self.lock:
                self.largest = max(self.largest, gap)
            if gap < self.args.tie:
                self.count(f"{what} up to a tie")
            else:
                self.count("different")
                self.fail(f"request {i}, gap {gap:.4f}: expected {expected!r}, found {answer.text!r}, {answer.about}")

    def check(self, i: int, answer: Answer) -> None:
        if answer.done and answer.error is None:
            self.check_text(i, answer, "equal")
            cached = answer.about.get("cached", {})
            if cached.get("tokens") and cached["from"] == "disk":
                self.count("with tokens from disk")
        elif answer.status == 429:
            self.count("busy")
            time.sleep(0.2)
        elif self.gone.is_set() or answer.sent < self.started:
            self.check_text(i, answer, "lost by a stop or a kill")
            time.sleep(0.05)
        else:
            self.count("failed")
            self.fail(f"request {i}: status {answer.status}, {answer.error or 'no end'}")

    def send(self, i: int, leave: Any = None) -> Answer:
        path, body = self.requests[i]
        return self.server.stream(path, body, leave)

    def do_read(self, draw: random.Random, i: int) -> None:
        self.check(i, self.send(i))

    def do_slow(self, draw: random.Random, i: int) -> None:
        self.check(i, self.send(i, lambda answer: self.end.wait(0.02) and False))

    def do_score(self, draw: random.Random, i: int) -> None:
        prompt = self.requests[i][1].get("prompt", [])
        if len(prompt) < 2:
            self.do_read(draw, i)
            return
        answer, found = Answer(time.perf_counter()), {}
        try:
            found = self.server.post("/v1/score", {"prompt": prompt})
            answer.error = json.dumps(found["error"]) if "error" in found else None
            answer.status = 429 if answer.error and found["error"].get("code") == "queue_full" else 0
        except (OSError, ValueError, http.client.HTTPException) as e:
            answer.error = f"{type(e).__name__}: {e}"
        if answer.error is not None:
            self.check(i, answer)
            return
        costs, expected = found["scores"][0]["nll"][1:], self.alone_costs(i)
        apart = max(abs(a - b) for a, b in zip(costs, expected)) if len(costs) == len(expected) else float("inf")
        with self.lock:
            self.apart = max(self.apart, apart)
        self.count("scored")
        if not apart < self.args.tie:
            self.fail(f"scores of request {i}: {apart:.4f} apart, {found['ropewalk']}")

    def do_wrong(self, draw: random.Random, i: int) -> None:
        """What the server must refuse."""
        prompt, most = [self.tokens.range[0]], {"max_tokens": 1}
        bodies: list[dict[str, Any]] = [
            {"prompt": prompt * (self.args.ctx + 1), **most},
            {"prompt": prompt, "temperature": -1, **most},
            {"prompt": prompt, "rope": "none", **most},
            {"prompt": [1 << 30], **most},
        ]
        answer = self.server.stream("/v1/completions", draw.choice(bodies))
        if answer.status == 400:
            self.count("refused")
        else:
            self.check(i, answer)

    def do_half(self, draw: random.Random, i: int) -> None:
        """A part of a request, and no more."""
        host, port = self.server.address.split(":")
        try:
            with socket.create_connection((host, int(port)), 10) as connection:
                text = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
                connection.sendall(text[: draw.randrange(1, len(text))])
                time.sleep(draw.random() * 0.2)
            self.count("left")
        except OSError:
            if not self.gone.is_set():
                time.sleep(0.05)

    def do_at_once(self, draw: random.Random, i: int) -> None:
        """The connection closes when the request is sent."""
        path, body = self.requests[i]
        text = json.dumps({**body, "stream": bool(draw.randrange(2))})
        host, port = self.server.address.split(":")
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        try:
            with socket.create_connection((host, int(port)), 10) as connection:
                connection.sendall((head + text).encode())
                time.sleep(draw.random() ** 4 * 2)
            self.count("left")
        except OSError:
            time.sleep(0.05)

    def do_soon(self, draw: random.Random, i: int) -> None:
        """The connection closes in the answer."""
        n = draw.randrange(1, 12)
        self.left(i, self.send(i, lambda answer: len(answer.times) >= n))

    def do_later(self, draw: random.Random, i: int) -> None:
        until = time.perf_counter() + draw.random() * 3
        self.left(i, self.send(i, lambda answer: time.perf_counter() > until))

    def left(self, i: int, answer: Answer) -> None:
        if answer.error is None and not answer.done:
            self.check_text(i, answer, "left")
        else:
            self.check(i, answer)

    # The server.

    def rest(self) -> None:
        """Waits until no client asks, then looks at the server."""
        self.go.clear()
        for _ in range(self.args.clients):
            self.idle.acquire()
        deadline = time.perf_counter() + 60
        while True:
            found = metrics(self.server)
            if found["ropewalk_running"] == found["ropewalk_waiting"] == 0:
                break
            if time.perf_counter() > deadline:
                n = int(found["ropewalk_running"] + found["ropewalk_waiting"])
                self.fail(f"expected no request when no client asks, found {n}")
                break
            time.sleep(0.05)
        plans = json.loads(self.server.get("/v1/models"))["data"][0]["ropewalk"]
        for plan in plans:
            self.full(plan["rope"], plan["n_ctx"], found)
        pid = self.server.process.pid
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        n_files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        now = time.perf_counter() - self.since
        self.sizes.append((now, int(lines["VmRSS"].split()[0]), int(lines["Threads"]), n_files))
        self.look()

    def look(self, started: bool = False) -> None:
        """Checks the directory of texts and the log."""
        files = {}
        for path in Path(self.folder, "texts").iterdir():
            # Texts of the last requests are still written, and others go for them.
            with suppress(FileNotFoundError):
                files[path.name] = path.stat().st_size
        parts = [name for name in files if not name.startswith("prefix-") and name != ".ropewalk-lock"]
        # Before a client asks, nothing is written.
        if started and parts:
            self.fail(f"expected whole files after a start, found {parts}")
        size = sum(size for name, size in files.items() if name != ".ropewalk-lock")
        if size > self.args.prefix_bytes:
            self.fail(f"expected at most {self.args.prefix_bytes} bytes in files, found {size}")
        # The server writes at the end, wherever it is read.
        with open(self.log.name) as log:
            log.seek(self.n_log)
            for line in log.readlines():
                if line.startswith("warning:") or "panicked" in line:
                    self.fail(f"the server: {line.strip()}")
            self.n_log = log.tell()

    def full(self, rope: str, n_ctx: int, found: dict[str, float]) -> None:
        """As many requests of full length as have room must run at once, and none makes room for another."""
        cells = sum(n for name, n in found.items() if name.startswith(f'ropewalk_cells{{plan="{rope}"'))
        n = min(int(cells // n_ctx), self.args.parallel)
        body = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, "rope": rope}
        # Different from the first token on, so that no cell is shared.
        prompts = [[self.tokens.range[0] + k, *self.tokens(n_ctx - 5)] for k in range(n)]
        with ThreadPoolExecutor(max(n, 1)) as pool:
            answers = list(pool.map(lambda prompt: self.server.stream("/v1/completions", {**body, "prompt": prompt}), prompts))
        for answer in answers:
            if not answer.done or answer.about.get("preempted") != 0:
                self.fail(f"{rope}: expected room for {n} requests of {n_ctx} tokens, found {answer.error or answer.about}")
        self.count("of full length together" if n else "no room")

    def restart(self) -> None:
        """Stops or kills the server while clients ask, and starts it again."""
        self.gone.set()
        if self.random.random() < 0.5:
            self.count("stops")
            code = self.server.stop()
            if code != 0:
                self.fail(f"SIGTERM: expected exit code 0, found {code}")
        else:
            self.count("kills")
            self.server.process.send_signal(signal.SIGKILL)
            self.server.process.wait()
        server = self.start()
        self.look(started=True)
        self.server = server
        self.started = time.perf_counter()
        self.gone.clear()

    def run(self) -> None:
        clients = [threading.Thread(target=self.client, args=(self.args.seed + k,), daemon=True) for k in range(self.args.clients)]
        for client in clients:
            client.start()
        seconds = self.args.minutes * 60
        half, end = self.since + seconds / 2, self.since + seconds
        while time.perf_counter() < end:
            self.go.set()
            # Twenty looks in all, and then a restart each.
            until = time.perf_counter() + seconds / 20
            while time.perf_counter() < until:
                time.sleep(min(1, until - time.perf_counter()) if until > time.perf_counter() else 0)
                if time.perf_counter() > half and self.random.random() < self.args.restart:
                    self.restart()
            self.rest()
        self.end.set()
        self.go.set()
        for client in clients:
            client.join()
        for server in (self.server, self.reference):
            if server.stop() != 0:
                self.fail("SIGTERM: expected exit code 0 at the end")
        self.look()
        if self.counts["stops"] >= 10 and not self.counts["with tokens from disk"]:
            self.fail("expected tokens from disk after a stop, found none")

    def kill(self) -> None:
        self.server.process.kill()
        self.reference.process.kill()

    def report(self) -> str:
        steady = [size for size in self.sizes if size[0] < self.args.minutes * 30] or self.sizes
        first, last = steady[len(steady) // 3], steady[-1]
        if last[1] > first[1] * 1.05 + 16 * 1024:
            self.fail(f"memory: expected about {first[1]} KiB, found {last[1]} KiB")
        # The threads that read requests end some seconds after the last one.
        if last[2] > first[2] + 2 * self.args.clients or last[3] > first[3] + self.args.clients:
            self.fail(f"threads and files: expected {first[2:]}, found {last[2:]}")
        rows = [[what, str(n)] for what, n in sorted(self.counts.items())]
        sizes = [[f"{now:.0f}", f"{rss / 1024:.1f}", str(threads), str(files)] for now, rss, threads, files in self.sizes]
        failed = "\n".join(f"- {wrong}" for wrong in self.wrong[:50]) or "None."
        return (
            f"## Requests\n\n{table(['', ''], rows)}\n\nThe two most likely tokens where an answer first differs: at most "
            f"{self.largest:.4f} apart. Scores: at most {self.apart:.4f} apart.\n\n## When no client asks\n\n"
            f"{table(['s', 'resident MiB', 'threads', 'files'], sizes)}\n\n## Failures\n\n{failed}\n"
        )


def metrics(server: Server) -> dict[str, float]:
    pairs = [line.rsplit(" ", 1) for line in server.get("/metrics").splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def main() -> Optional[str]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="GGUF file")
    parser.add_argument("--program", default="target/release/ropewalk")
    parser.add_argument("--ropewalk", default="", metavar="OPTIONS", help="more options of both servers, such as '--math f32'")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--rope", nargs="+", default=["plain", "yarn:factor=2"])
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--requests", type=int, default=200, help="different requests")
    parser.add_argument("--restart", type=float, default=0.1, help="probability of a restart in a second of the second half")
    parser.add_argument("--tie", type=float, default=1e-3, help="difference of log-probabilities below which either token is right")
    parser.add_argument("--prefix-bytes", type=int, default=1 << 29, help="most bytes of texts on disk")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", help="file to write [default: stdout]")
    args = parser.parse_args()
    args.alone, args.turns = True, 0
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        load = Load(args, folder)
        try:
            load.run()
        finally:
            load.kill()
        report = load.report()
    text = about(args, started, "`ropewalk serve` under random load") + "\n\n" + report
    if args.output is None:
        print(text, end="")
    else:
        Path(args.output).write_text(text)
    return f"{len(load.wrong)} failures" if load.wrong else None


if __name__ == "__main__":
    sys.exit(main())
