"""The model of lm-evaluation-harness: its answers are those of `evaluate`, item by item."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import lm_eval.tasks
import pytest
from conftest import SENTENCE
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from transformers import LlamaConfig, LlamaForCausalLM

import ropewalk
from ropewalk.lm_eval import RopewalkLM

#: Benchmark data, as `make benchmarks` gets it.
DATA = Path(os.environ["ROPEWALK_DATA"])
#: Tokenizers of tiny models.
TOKENIZERS = Path(__file__).parents[4] / "src" / "import" / "tests" / "checkpoints" / "tokenizers"
ITEMS = 200
SHOTS = 2


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness's own tasks on local files. Without training splits, it takes examples from validation, as ropewalk does."""
    folder = tmp_path_factory.mktemp("tasks")
    own = Path(lm_eval.tasks.__file__).parent

    def task(name: str, path: str, files: dict[str, Path]) -> None:
        quoted = json.dumps({split: str(file) for split, file in files.items()})
        (folder / f"{name}.yaml").write_text(
            f"include: {own / path}\ntask: {name}_local\ndataset_path: json\ndataset_name: null\n"
            f"dataset_kwargs: {{data_files: {quoted}}}\ntraining_split: null\n"
        )

    def copied(name: str) -> Path:
        file = folder / f"{name}.jsonl"
        datasets.Dataset.from_file(str(DATA / "short" / f"{name}.arrow")).to_json(file)
        return file

    task("hellaswag", "hellaswag/hellaswag.yaml", {"validation": copied("hellaswag_validation")})
    with gzip.open(DATA / "short" / "arc_challenge_test.jsonl.gz") as lines:
        docs = {line["doc"]["id"]: line["doc"] for line in map(json.loads, lines)}
    test = folder / "arc_challenge_test.jsonl"
    with test.open("w") as out:
        for doc in docs.values():
            labels = "ABCDE"[: len(doc["choices"])]
            question = {
                "id": doc["id"],
                "question": doc["query"].removeprefix("Question: ").removesuffix("\nAnswer:"),
                "choices": {"text": doc["choices"], "label": list(labels)},
                "answerKey": labels[doc["gold"]],
            }
            out.write(json.dumps(question) + "\n")
    task("arc_challenge", "arc/arc_challenge.yaml", {"test": test, "validation": copied("arc_challenge_validation")})
    return folder


def test_the_harness_finds_the_model() -> None:
    (point,) = [point for point in entry_points(group="lm_eval.models") if point.name == "ropewalk"]
    assert point.load() is RopewalkLM is get_model("ropewalk")


@pytest.mark.parametrize(("task", "batch_size"), [("hellaswag", 1), ("arc_challenge", 8)])
def test_answers_are_those_of_evaluate(
    model: ropewalk.Model, path: Path, tasks: Path, tmp_path: Path, task: str, batch_size: int
) -> None:
    rope, n_ctx, output = "yarn:factor=8", 4096, tmp_path / "records.jsonl"
    exact: dict[str, Any] = {"kv": "f32", "math": "f32"}
    ropewalk.evaluate(
        model, task, rope=rope, samples=ITEMS, options={"shots": SHOTS}, data=DATA, output=output, ctx=n_ctx, n_threads=1, **exact
    )
    records = [json.loads(line) for line in output.read_text().splitlines()]
    ours = {record["id"]: record for record in records if "choices" in record}
    found = lm_eval.simple_evaluate(
        model="ropewalk",
        model_args={"path": str(path), "rope": rope, "ctx": n_ctx, "threads": 1, **exact},
        tasks=[f"{task}_local"],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tasks)),
        num_fewshot=SHOTS,
        batch_size=batch_size,
        device="cpu",
        limit=ITEMS,
        bootstrap_iters=0,
    )
    samples = found["samples"][f"{task}_local"]
    assert len(samples) == len(ours) == ITEMS
    for sample in samples:
        record = ours[str(sample["doc"].get("ind", sample["doc"].get("id")))]
        assert hashlib.sha256(sample["arguments"][0][0].encode()).hexdigest() == record["prompt_sha256"]
        # Every bit: both compute the same tokens together.
        choices = [(float(logprob), bool(greedy)) for logprob, greedy in sample["filtered_resps"]]
        assert choices == [(logprob, greedy) for logprob, _, greedy in record["choices"]]
        assert {metric: sample[metric] for metric in record["scores"]} == record["scores"]


def request(kind: str, *arguments: object) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


@pytest.fixture(scope="module")
def lm(path: Path) -> RopewalkLM:
    return RopewalkLM(str(path), ctx=64, kv="f32", math="f32", threads=1, device="cpu", batch_size=2)


def test_whole_texts_are_read_in_windows(lm: RopewalkLM, model: ropewalk.Model) -> None:
    tokens = model.tokenize(SENTENCE * 3, add_special=False)
    assert 128 < len(tokens) < 256 and model.bos is not None
    expected, session = 0.0, model.session(128, kv="f32", math="f32", n_threads=1)
    text = [model.bos, *tokens]
    for start in range(0, len(tokens), 64):
        end = min(start + 64, len(tokens))
        # A window predicts up to 64 tokens, after at least one. The last one goes back as far as the context does.
        window = text[max(0, end - 64) : end + 1]
        expected -= float(session.nll(window, start=len(window) - (end - start)).sum())
    (found,) = lm.loglikelihood_rolling([request("loglikelihood_rolling", SENTENCE * 3)], disable_tqdm=True)
    assert found == pytest.approx(expected, rel=1e-5)
    # Without a context, likelihoods are those after BOS.
    short = SENTENCE[:20]
    (alone,) = lm.loglikelihood([request("loglikelihood", "", short)], disable_tqdm=True)
    (rolled,) = lm.loglikelihood_rolling([request("loglikelihood_rolling", short)], disable_tqdm=True)
    assert alone[0] == pytest.approx(rolled, rel=1e-6)


def test_texts_that_are_too_long_lose_their_beginning(lm: RopewalkLM, model: ropewalk.Model) -> None:
    context, continuation = SENTENCE * 3, " and hemp"
    (found,) = lm.loglikelihood([request("loglikelihood", context, continuation)], disable_tqdm=True)
    whole = [model.bos or 0, *model.tokenize(context.rstrip() + " " + continuation, add_special=False)]
    n = len(whole) - len(model.tokenize(context.rstrip(), add_special=False)) - 1
    session = model.session(128, kv="f32", math="f32", n_threads=1)
    assert found[0] == pytest.approx(-float(session.nll(whole[-65:], start=65 - n).sum()), rel=1e-5)
    with pytest.raises(ropewalk.ArgumentError, match="ctx=64: expected room for a continuation"):
        lm.loglikelihood([request("loglikelihood", "a", SENTENCE * 3)], disable_tqdm=True)


def test_answers_are_those_of_generate(lm: RopewalkLM, model: ropewalk.Model) -> None:
    session = model.session(64, kv="f32", math="f32", n_threads=1)
    prompts = ["Once", "The rope", "A rope walk", "Once upon"]
    how = {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False, "temperature": 0.0}
    found = lm.generate_until([request("generate_until", prompt, how) for prompt in prompts], disable_tqdm=True)
    expected = ["".join(session.generate(prompt, 12)) for prompt in prompts]
    assert found == expected
    # Up to a text that the answer has.
    letter = next(c for c in expected[0][1:] if c.isascii() and c.isalnum())
    (short,) = lm.generate_until([request("generate_until", "Once", how | {"until": letter})], disable_tqdm=True)
    assert short == expected[0].split(letter)[0]
    # Samples.
    sampling = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 0.7, "top_k": 20, "seed": 3}
    (sampled,) = lm.generate_until([request("generate_until", "Once", sampling)], disable_tqdm=True)
    assert sampled == "".join(session.generate("Once", 12, temperature=0.7, top_k=20, seed=3))
    # Repeats of a request are other samples, and the same in another run.
    repeats = [request("generate_until", "Many", sampling) for _ in range(3)]
    found = lm.generate_until(repeats, disable_tqdm=True)
    expected = [
        "".join(session.generate("Many", 12, temperature=0.7, top_k=20, seed=seed)) for seed in (3, 4, 5)
    ]
    assert found == expected and len(set(found)) > 1
    with pytest.raises(ropewalk.ArgumentError, match="gen_kwargs: found num_beams"):
        lm.generate_until([request("generate_until", "Once", {"num_beams": 4})], disable_tqdm=True)


#: ChatML, and a template that begins with BOS, trims messages, and refuses those of a system.
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "turns": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<{{ 'model' if m.role == 'assistant' else m.role }}>{{ m.content | trim }}</turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<model>{% endif %}"
    ),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_chats_are_those_of_transformers(tasks: Path, tmp_path: Path, template: str) -> None:
    folder, path = tmp_path / "model", tmp_path / "model.gguf"
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 344}
    made = LlamaForCausalLM(LlamaConfig(**shape, max_position_embeddings=2048))
    made.save_pretrained(folder)
    for file in (TOKENIZERS / "byte-fallback").iterdir():
        shutil.copy(file, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATES[template])
    ropewalk.convert(folder, path, dtype="f32")
    ours, theirs = RopewalkLM(str(path), device="cpu"), HFLM(str(folder), device="cpu")
    assert ours.chat_template(True) == theirs.chat_template(True)
    system, user = {"role": "system", "content": "Be brief. "}, {"role": "user", "content": " Spin \"a rope\"\n\n"}
    chats = [[user], [system, user], [user, {"role": "assistant", "content": "The answer is "}]]
    for chat in [*chats, [*chats[2], user], [system, *chats[2]]]:
        for opened in [True, False]:
            prompt = ours.apply_chat_template(chat, add_generation_prompt=opened)
            assert prompt == theirs.apply_chat_template(chat, add_generation_prompt=opened)
            assert ours.tok_encode(prompt).count(1) == 1  # BOS, from the template or from the tokenizer
    # The harness asks for all of that.
    command = [sys.executable, "-m", "ropewalk.lm_eval", "--model", "ropewalk", "--tasks", "hellaswag_local", "--limit", "2"]
    command += ["--include_path", str(tasks), "--log_samples", "--output_path", str(tmp_path / "out"), "--apply_chat_template"]
    command += ["--num_fewshot", "1", "--model_args", f"path={path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["chat_template"] == ours.chat_template(True)
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    begin = ours.apply_chat_template([{"role": "user", "content": "X"}], add_generation_prompt=True).split("X")[0]
    prompts = [json.loads(line)["arguments"]["gen_args_0"]["arg_0"] for line in samples.read_text().splitlines()]
    assert len(prompts) == 2 and all(prompt.startswith(begin) for prompt in prompts)
    with pytest.raises(ropewalk.ArgumentError, match="expected no name"):
        ours.chat_template("other")


def test_the_command_runs(path: Path, tasks: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ropewalk.lm_eval", "--model", "ropewalk", "--tasks", "hellaswag_local", "--limit", "3"]
    command += ["--include_path", str(tasks), "--log_samples", "--output_path", str(tmp_path), "--model_args"]
    settings = f'path={path},rope="self-extend:window=128,group=8",ctx=2048'
    done = subprocess.run([*command, settings], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.rglob("results_*.json")
    report = json.loads(results.read_text())
    assert report["config"]["model_rope"].startswith("self-extend:window=128,group=8")
    assert report["n-samples"]["hellaswag_local"]["effective"] == 3
    # Without the quotes, the harness takes a part of the method for an argument.
    with pytest.raises(ropewalk.ArgumentError, match="model_args: found group; a method with several parameters"):
        RopewalkLM(str(path), rope="self-extend:window=128", group="8", ctx=2048)
