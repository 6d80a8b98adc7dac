"""Errors by kind, signals, and threads."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import SENTENCE

import ropewalk


def test_errors_have_kinds(model: ropewalk.Model, path: Path, tmp_path: Path) -> None:
    session = model.session(64, n_threads=1)
    with pytest.raises(ropewalk.ContextFull) as full:
        session.nll(SENTENCE * 2)
    assert (full.value.n_ctx, full.value.free) == (64, 64) and full.value.needed > 64
    with pytest.raises(ropewalk.FileError, match="nowhere.gguf"):
        ropewalk.Model(tmp_path / "nowhere.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(OSError, match="broken.gguf"):
        ropewalk.Model(broken)
    with pytest.raises(ropewalk.OutOfMemory) as memory:
        model.session(2**31 - 1)
    assert memory.value.needed > (memory.value.free or 0)
    # As pools of processes send them.
    for error in (full.value, memory.value):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))
    for wrong in (
        lambda: model.session(64, rope="yarm"),
        lambda: model.session(64, kv="q5_0"),
        lambda: model.session(64, math="f64"),
        lambda: session.nll(SENTENCE[:10], start=0),
        lambda: session.logits(SENTENCE[:10], last=100),
        lambda: session.nll([1, 2, 100_000]),
        # Before the data of the first task is read.
        lambda: ropewalk.evaluate(model, ["hellaswag", "passkey"], data=tmp_path),
        lambda: ropewalk.evaluate(model, "passkey", 300, samples=0),
        lambda: ropewalk.perplexity(model, texts=SENTENCE, lengths=[]),
        lambda: ropewalk.convert(path, tmp_path / "x.gguf", dtype="q9_9"),
        lambda: ropewalk.finetune(model, "text", tmp_path / "x.gguf", recipe="none of them"),
        lambda: ropewalk.finetune(model, "text", tmp_path / "x.gguf", settings={"warmpu": 1}),
    ):
        with pytest.raises(ValueError) as e:
            wrong()
        assert isinstance(e.value, ropewalk.ArgumentError) and "\n" not in str(e.value)
    existing = tmp_path / "existing.gguf"
    existing.write_text("not ours")
    with pytest.raises(ropewalk.RopewalkError, match="existing.gguf"):
        ropewalk.random_model(existing)
    ropewalk.random_model(existing, force=True)
    with pytest.raises(TypeError):
        session.nll([0.5, 1.5])  # type: ignore[list-item]
    # The session works on after all of this.
    assert session.nll(SENTENCE[:32]).shape[0] > 0


def test_what_is_no_text_file_is_refused(model: ropewalk.Model, tmp_path: Path) -> None:
    pipe, huge, dangling = tmp_path / "pipe", tmp_path / "huge", tmp_path / "dangling"
    os.mkfifo(pipe)
    with huge.open("wb") as file:
        file.truncate(2**34)
    dangling.symlink_to(tmp_path / "nowhere")
    for path in (pipe, huge, dangling, tmp_path, Path("/dev/zero")):
        with pytest.raises(ropewalk.FileError, match=path.name) as e:
            ropewalk.perplexity(model, files=path, lengths=64)
        assert "\n" not in str(e.value)
        with pytest.raises(ropewalk.RopewalkError):
            ropewalk.finetune(model, path, tmp_path / "a.gguf", n_ctx=64, steps=1)
        if path != tmp_path:
            with pytest.raises(ropewalk.RopewalkError):
                ropewalk.Model(path)
            with pytest.raises(ropewalk.RopewalkError):
                ropewalk.rope.inspect(path)


def test_arrays_beyond_memory_are_errors(model: ropewalk.Model) -> None:
    many = list(range(2**22))
    with pytest.raises(ropewalk.OutOfMemory):
        model.plan("yarn:factor=2").distances(many, many)


def test_an_error_of_a_callback_ends_the_work(model: ropewalk.Model, text: Path, tmp_path: Path) -> None:
    steps: list[float] = []
    callers: set[threading.Thread] = set()

    def stop(step: dict[str, float]) -> None:
        steps.append(step["step"])
        callers.add(threading.current_thread())
        if step["step"] == 2:
            raise LookupError("enough")

    output = tmp_path / "a.gguf"
    with pytest.raises(LookupError, match="enough"):
        ropewalk.finetune(model, text, output, rope="pi:factor=2", n_ctx=64, steps=10**6, on_step=stop)
    assert steps == [1, 2]
    assert callers == {threading.main_thread()}


def interruption() -> threading.Timer:
    """Ctrl-C, a moment after it is started."""
    return threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))


def test_ctrl_c_stops_training_which_resumes(model: ropewalk.Model, text: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "a.gguf"
    timer = interruption()

    def begun(note: str) -> None:
        # The only notes after this one are those of validations, which are many steps apart.
        if note.startswith("step 0"):
            timer.start()

    def train(steps: int, resume: bool) -> dict[str, object]:
        how = {"rope": "pi:factor=2", "n_ctx": 64, "steps": steps, "resume": resume, "n_threads": 1}
        return ropewalk.finetune(model, text, adapter, **how, on_note=begun)  # type: ignore[arg-type]

    with pytest.raises(KeyboardInterrupt):
        train(10**6, resume=False)
    timer.join()
    (newest,) = sorted((tmp_path / "a.checkpoints").glob("step-*.safetensors"))[-1:]
    done = int(newest.stem.split("-")[1])
    assert not adapter.exists()
    report = train(done + 2, resume=True)
    assert report["steps"] == done + 2 and adapter.exists()


def test_ctrl_c_leaves_a_session_usable(model: ropewalk.Model) -> None:
    session = model.session(4096, kv="f32", math="f32", n_threads=1)
    tokens = model.tokenize(SENTENCE * 60)[:4000]
    expected = session.nll(tokens[:100])
    timer = interruption()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            session.nll(tokens)
            session.clear()
    timer.join()
    session.clear()
    np.testing.assert_allclose(session.nll(tokens[:100]), expected, rtol=1e-4)


def test_threads_share_a_model_and_not_a_session(model: ropewalk.Model) -> None:
    texts = [SENTENCE * 4 + str(i) for i in range(6)]
    expected = [model.session(512, n_threads=1).nll(text) for text in texts]
    found: dict[int, object] = {}

    def measure(i: int) -> None:
        found[i] = model.session(512, n_threads=1).nll(texts[i])

    threads = [threading.Thread(target=measure, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, nll in enumerate(expected):
        np.testing.assert_array_equal(found[i], nll)

    # A second caller is told so, and does not wait. It runs at all because the first one computes without the GIL.
    session = model.session(4096, n_threads=1)
    tokens = model.tokenize(SENTENCE * 60)[:4000]
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            try:
                session.nll(tokens)
            except ropewalk.SessionBusy:
                pass

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with pytest.raises(ropewalk.SessionBusy):
            while worker.is_alive():
                session.clear()
    finally:
        end.set()
        worker.join()


def test_ctrl_c_stops_measurements(model: ropewalk.Model, text: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ropewalk.perplexity(model, files=text, lengths=64, rope="plain", n_threads=1, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        ropewalk.evaluate(model, "passkey", 300, samples=50, data=tmp_path, n_threads=1, progress=interrupt)
    output = tmp_path / "converted.gguf"
    with pytest.raises(KeyboardInterrupt):
        ropewalk.convert(model.path, output, dtype="f16", progress=interrupt)
    assert not output.exists()
    # Other calls run as before.
    assert ropewalk.perplexity(model, files=text, lengths=64, max_windows=1, n_threads=1)["results"]


def test_ctrl_c_leaves_a_generation_whole(model: ropewalk.Model) -> None:
    expected = model.session(256, n_threads=1).generate("Once", 100, ignore_eos=True, temperature=1)
    whole = list(expected)
    pieces = model.session(256, n_threads=1).generate("Once", 100, ignore_eos=True, temperature=1)
    found: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        for piece in pieces:
            found.append(piece)
            if len(found) == 20:
                os.kill(os.getpid(), signal.SIGINT)
    # The iterator continues where it was.
    assert found + list(pieces) == whole and pieces.tokens == expected.tokens


def test_threads_share_a_generation(model: ropewalk.Model) -> None:
    expected = model.session(256, n_threads=1).generate("Once", 100, ignore_eos=True, temperature=1)
    whole = list(expected)
    pieces = model.session(256, n_threads=1).generate("Once", 100, ignore_eos=True, temperature=1)
    taken: list[str] = []

    def take() -> None:
        while True:
            try:
                taken.append(next(pieces))
            except ropewalk.SessionBusy:
                pass
            except StopIteration:
                return

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Every piece went to one thread.
    assert sorted(taken) == sorted(whole) and pieces.tokens == expected.tokens


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_says_that_it_cannot_compute(model: ropewalk.Model) -> None:
    session = model.session(64, n_threads=1)
    session.nll("a b c")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            session.nll("a b c")
        except ropewalk.RopewalkError as e:
            os.write(write, str(e).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"spawn" in os.read(read, 1000)
    os.close(read)
    os.close(write)


def test_the_package_runs_the_program() -> None:
    command = [sys.executable, "-m", "ropewalk", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split()[:2] == ["ropewalk", ropewalk.__version__]
    wrong = subprocess.run([*command[:3], "nothing"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "nothing" in wrong.stderr
