"""Measurements, conversions, and training, against the program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import SENTENCE, Cli

import ropewalk

MACHINE = ["--device", "cpu", "-t", 1]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        timed = {"tokens_per_s", "seconds"}
        return {key: without_times(each) for key, each in value.items() if key not in timed}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def test_perplexity_is_that_of_the_program(model: ropewalk.Model, path: Path, text: Path, cli: Cli) -> None:
    ropes = ["plain", "yarn:factor=2"]
    more = ["--rope", ropes[0], "--rope", ropes[1], *MACHINE]
    said = cli("perplexity", "-m", path, "-f", text, "--lengths", "128,256", *more)
    del said["differences"]
    seen: list[tuple[int, int, str]] = []
    found = ropewalk.perplexity(
        model,
        files=text,
        lengths=[128, 256],
        rope=ropes,
        n_threads=1,
        progress=lambda done, total, what: seen.append((done, total, what)),
    )
    assert without_times(found) == without_times(said)
    assert seen[-1][0] == seen[-1][1] > 0 and "ppl" in seen[-1][2]
    # The same text, given as it is, under another name.
    one = ropewalk.perplexity(model, texts=SENTENCE * 40, lengths=128, rope="plain", n_threads=1)
    assert one["results"][0]["ppl"] == found["results"][0]["ppl"]


def test_benchmarks_are_those_of_the_program(
    model: ropewalk.Model, path: Path, tmp_path: Path, cli: Cli
) -> None:
    said = cli("eval", "passkey", "-m", path, "--lengths", 300, "-n", 2, "--set", "depth=0.5", *MACHINE)
    kept = tmp_path / "kept.jsonl"

    def evaluate() -> list[dict[str, Any]]:
        options: dict[str, object] = {"depth": 0.5}
        return ropewalk.evaluate(
            model, "passkey", 300, samples=2, options=options, output=kept, n_threads=1, data=tmp_path
        )

    (row,) = evaluate()
    (of_program,) = said["results"]
    for key in ["task", "rope", "length", "score", "ci_low", "ci_high", "samples", "tokens", "n_ctx", "metrics"]:
        assert row[key] == of_program[key], key
    assert row["model"] == said["model"] and row["source"] == said["source"]
    lines = kept.read_text()
    assert without_times(evaluate()) == without_times([row]) and kept.read_text() == lines
    before = path.read_bytes()
    with pytest.raises(ropewalk.ArgumentError, match="apart from the files to read"):
        ropewalk.evaluate(model, "passkey", 300, output=path, force=True)
    assert path.read_bytes() == before
    # Each task once, under each method.
    ropes = ["plain", "pi:factor=2"]
    both = ropewalk.evaluate(model, ["passkey"] * 2, 300, rope=ropes, samples=1, n_threads=1)
    assert [row["rope"][:2] for row in both] == ["pl", "pi"]
    with pytest.raises(ropewalk.ArgumentError, match="depht"):
        ropewalk.evaluate(model, "passkey", 300, options={"depht": 0.5})
    with pytest.raises(ropewalk.ArgumentError, match="unknown task"):
        ropewalk.evaluate(model, "passkeys", 300)
    # Figures before an error are not lost.
    with pytest.raises(ropewalk.RopewalkError) as failed:
        ropewalk.evaluate(model, ["passkey", "niah_single_1"], 300, samples=1, data=tmp_path / "none", n_threads=1)
    (done,) = getattr(failed.value, "results")
    assert done["task"] == "passkey" and done["score"] is not None


def test_prompts_are_messages(model: ropewalk.Model, path: Path, tmp_path: Path, cli: Cli) -> None:
    ours, theirs, plain = (tmp_path / f"{name}.jsonl" for name in ["ours", "theirs", "plain"])
    cli("eval", "passkey", "-m", path, "--lengths", 300, "-n", 2, "--template", "chat", "--output", theirs, *MACHINE)
    for chat, output in [(True, ours), (False, plain)]:
        (row,) = ropewalk.evaluate(model, "passkey", 300, samples=2, chat=chat, output=output, n_threads=1)
        assert row["template"] == ("chat" if chat else "base")

    def hashes(file: Path) -> list[str]:
        # The first line describes the file.
        return [json.loads(line)["prompt_sha256"] for line in file.read_text().splitlines()[1:]]

    prompts = [hashes(file) for file in (ours, theirs, plain)]
    assert prompts[0] == prompts[1] != prompts[2] and len(prompts[0]) == 2


def test_conversions_are_those_of_the_program(path: Path, tmp_path: Path, cli: Cli) -> None:
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    report = ropewalk.convert(path, ours, rope="yarn:factor=4", dtype="q4_0", llama_cpp=True)
    said = cli("convert", path, "--rope", "yarn:factor=4", "--type", "q4_0", "--llama-cpp", "-o", theirs)
    assert ours.read_bytes() == theirs.read_bytes()
    assert report["converted"] == said["converted"] and report["bytes"] == ours.stat().st_size
    long = ropewalk.Model(ours, device="cpu")
    assert long.n_ctx_train == 2048 and long.default_rope.startswith("yarn:factor=4")
    random = tmp_path / "random.gguf"
    cli("convert", "--random", "llama-tiny", "--type", "q8_0", "-s", 7, "-o", random)
    assert random.read_bytes() == path.read_bytes()


def test_training_is_that_of_the_program(
    model: ropewalk.Model, path: Path, text: Path, tmp_path: Path, cli: Cli
) -> None:
    how = ["--rope", "pi:factor=2", "--ctx", 64, "--rank", 4, "--steps", 4, "--lr", 0.01, "--set", "warmup=1"]
    said = cli("finetune", "-m", path, "-d", text, *how, *MACHINE, "-o", tmp_path / "theirs.gguf")
    adapter = tmp_path / "ours.gguf"
    steps: list[dict[str, float]] = []
    notes: list[str] = []
    report = ropewalk.finetune(
        model,
        text,
        adapter,
        rope="pi:factor=2",
        n_ctx=64,
        rank=4,
        steps=4,
        lr=0.01,
        settings={"warmup": 1},
        n_threads=1,
        on_step=steps.append,
        on_note=notes.append,
    )
    assert (report["loss"], report["val_after"]) == (said["loss"], said["val_after"])
    assert [step["step"] for step in steps] == [1, 2, 3, 4] and steps[-1]["steps"] == 4
    assert steps[-1]["loss"] == report["loss"] and steps[0]["grad_norm"] > 0 and steps[-1]["lr"] == 0.01
    assert any("held-out" in note for note in notes)
    # The adapter lowers the loss on its text, and brings its method.
    trained = ropewalk.Model(path, device="cpu", lora=adapter)
    assert trained.default_rope.startswith("pi:factor=2")
    before, after = (
        each.session(64, rope="pi:factor=2", n_threads=1).nll(SENTENCE[:60]).mean() for each in (model, trained)
    )
    assert after < before
