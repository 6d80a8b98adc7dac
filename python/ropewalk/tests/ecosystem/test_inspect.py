"""`inspect_ai` evaluates tasks on `ropewalk serve`, through its provider for servers of OpenAI's interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import inspect_ai
import inspect_ai.dataset
import inspect_ai.model
import inspect_ai.scorer
import inspect_ai.solver
import inspect_ai.tool
import pytest
from conftest import SENTENCE
from served import hermes, serving, session

import ropewalk


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package keeps traces and caches in directories of the user."""
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


def evaluated(url: str, folder: Path, solvers: list[Any], samples: list[Any], **config: Any) -> Any:
    """The log of a task. A sample is right if the answer has its target."""
    task = inspect_ai.Task(
        dataset=inspect_ai.dataset.MemoryDataset(samples),
        solver=solvers,
        scorer=inspect_ai.scorer.includes(ignore_case=False),
    )
    settings = inspect_ai.model.GenerateConfig(temperature=0, max_retries=0, **config)
    model = inspect_ai.model.get_model("openai-api/ropewalk/tiny", base_url=f"{url}/v1", api_key="none", config=settings)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(folder / "logs"), display="none")
    assert log.status == "success", log.error
    return log


def test_an_evaluation_finds_what_the_library_finds(path: Path, model: ropewalk.Model, tmp_path: Path) -> None:
    questions = [SENTENCE[:n].strip() + "?" for n in range(4, 64, 6)]
    expected = []
    for question in questions:
        prompt = model.tokenize(model.render([{"role": "user", "content": question}]), parse_special=True)
        expected.append("".join(session(model).generate(prompt, 12, ignore_eos=True)))
    # No answer has this text.
    wrong = "x" * 99
    targets = [wrong if i % 2 else answer for i, answer in enumerate(expected)]
    samples = [inspect_ai.dataset.Sample(input=q, target=t) for q, t in zip(questions, targets, strict=True)]
    samples.append(inspect_ai.dataset.Sample(input=SENTENCE * 400, target=wrong))
    with serving(path, "--rope", "plain", "--ctx", 512, "--parallel", 4) as url:
        solvers = [inspect_ai.solver.generate()]
        log = evaluated(url, tmp_path, solvers, samples, max_tokens=12, extra_body={"ignore_eos": True})
    *found, long = log.samples
    assert [sample.output.completion for sample in found] == expected
    for sample, target, answer in zip(found, targets, expected, strict=True):
        assert sample.output.stop_reason == "max_tokens" and sample.output.usage.output_tokens == 12
        assert sample.scores["includes"].value == ("C" if target in answer else "I")
    # The package knows a prompt that is too long by the error's code.
    assert long.output.stop_reason == "model_length"
    (score,) = log.results.scores
    assert score.metrics["accuracy"].value == pytest.approx(5 / 11)


def test_an_evaluation_calls_functions(tmp_path: Path) -> None:
    called: list[tuple[str, bool]] = []

    async def weather(city: Literal["Bergen", "Oslo"], rain: bool) -> str:
        called.append((city, rain))
        return "Noted."

    words = {"city": "Where.", "rain": "Whether it rains."}
    tool = inspect_ai.tool.ToolDef(weather, "weather", "Notes the weather.", words).as_tool()
    solvers = [
        inspect_ai.solver.use_tools(tool, tool_choice=inspect_ai.tool.ToolFunction("weather")),
        inspect_ai.solver.generate(tool_calls="single"),
        inspect_ai.solver.use_tools(tool_choice="none"),
        inspect_ai.solver.generate(),
    ]
    samples = [inspect_ai.dataset.Sample(input="Is it raining?", target="")]
    with serving(hermes(tmp_path), "--ctx", 2048) as url:
        log = evaluated(url, tmp_path, solvers, samples, max_tokens=400, parallel_tool_calls=False)
    user, call, result, answer = log.samples[0].messages
    assert (user.role, call.role, result.role, answer.role) == ("user", "assistant", "tool", "assistant")
    (made,) = call.tool_calls
    assert made.parse_error is None and called == [(made.arguments["city"], made.arguments["rain"])]
    assert result.text == "Noted." and result.error is None and not answer.tool_calls
