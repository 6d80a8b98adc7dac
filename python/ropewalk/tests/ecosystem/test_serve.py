"""`ropewalk serve` with clients of OpenAI's interface: their answers are those of the library, and they understand its errors."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Optional

import lm_eval
import lm_eval.tasks
import openai
import pydantic
import pytest
from conftest import SENTENCE
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI
from served import CHAT, answered, hermes, metrics, serving, session

import ropewalk
import ropewalk.lm_eval  # registers the harness's model


@pytest.fixture(scope="module")
def url(path: Path) -> Iterator[str]:
    with serving(path, "--rope", "plain", "--rope", "yarn:factor=4", "--ctx", 2048, "--parallel", 8) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none")


def test_models_are_listed(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == ["tiny", "tiny@plain", "tiny@yarn:factor=4"]
    assert client.models.retrieve("tiny@yarn:factor=4") == models[2]
    assert [model.max_model_len for model in models] == [2048, 512, 2048]


def test_chats_are_those_of_the_library(client: openai.OpenAI, model: ropewalk.Model) -> None:
    prompt = model.tokenize(model.render(CHAT), parse_special=True)
    pieces = session(model).generate(prompt, 24, ignore_eos=True, special=True)
    expected = "".join(pieces)
    more = {"ignore_eos": True, "skip_special_tokens": False}
    settings: Any = {"model": "tiny", "messages": CHAT, "temperature": 0, "extra_body": more}
    whole = client.chat.completions.create(**settings, max_tokens=24, logprobs=True, top_logprobs=3)
    (choice,) = whole.choices
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (expected, "assistant", "length")
    assert whole.usage is not None and whole.usage.prompt_tokens == len(prompt)
    assert whole.usage.completion_tokens == len(pieces.tokens) == 24
    # The bytes of all tokens are the text, and each is the most likely one.
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert b"".join(bytes(token.bytes or []) for token in choice.logprobs.content).decode(errors="replace") == expected
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 3 and token.logprob == max(top.logprob for top in token.top_logprobs)
    nll = session(model).nll([*prompt, *pieces.tokens], start=len(prompt))
    assert [-token.logprob for token in choice.logprobs.content] == pytest.approx(list(map(float, nll)), abs=1e-4)
    # The same in pieces.
    stream = client.chat.completions.create(**settings, max_tokens=24, stream=True, stream_options={"include_usage": True})
    text, reasons, chunks = "", [], list(stream)
    for chunk in chunks:
        for piece in chunk.choices:
            text += piece.delta.content or ""
            reasons.append(piece.finish_reason)
    assert text == expected and reasons[-1] == "length" and not any(reasons[:-1])
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == whole.usage.total_tokens
    details = chunks[-1].usage.prompt_tokens_details
    assert details is not None and details.cached_tokens == len(prompt) - 1
    # The package puts chunks together. It takes only answers that have ended.
    stop = next(text for text in expected[8:] if text.isascii() and text.isprintable())
    with client.chat.completions.stream(**settings, max_tokens=24, stop=stop, logprobs=True) as events:
        completion = events.get_final_completion()
    assert completion.choices[0].message.content == expected.split(stop)[0]
    assert completion.choices[0].finish_reason == "stop"


def test_the_snippet_of_the_guide_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[4] / "docs" / "guide" / "serving.md").read_text()
    snippet = page.split("```python\n")[1].split("\n```")[0]
    exec(compile(snippet.replace("http://127.0.0.1:8080", url).replace("smollm2", "tiny"), "serving.md", "exec"), {})
    assert capsys.readouterr().out


def test_completions_score_their_prompt(client: openai.OpenAI, model: ropewalk.Model) -> None:
    tokens = model.tokenize(SENTENCE, add_special=False)
    more = {"add_special_tokens": False, "ignore_eos": True}
    for prompt in [SENTENCE, tokens]:
        found = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=1, temperature=0, echo=True, logprobs=2, extra_body=more
        )
        logprobs = found.choices[0].logprobs
        assert found.choices[0].text.startswith(SENTENCE) and logprobs is not None
        assert logprobs.token_logprobs is not None and logprobs.text_offset is not None and logprobs.tokens is not None
        assert len(logprobs.token_logprobs) == len(tokens) + 1 and logprobs.token_logprobs[0] is None
        nll = session(model).nll(tokens)
        assert [-value for value in logprobs.token_logprobs[1:-1]] == pytest.approx(list(map(float, nll)), abs=1e-4)
        assert "".join(logprobs.tokens[: len(tokens)]) == SENTENCE
        assert logprobs.text_offset[: len(tokens)] == [len("".join(logprobs.tokens[:i])) for i in range(len(tokens))]
    # Several prompts, several answers to each, in order. Equal seeds give equal answers.
    settings: Any = {"model": "tiny", "prompt": ["The rope", "A walk"], "n": 2, "max_tokens": 8, "seed": 3}
    settings["extra_body"] = {"ignore_eos": True}
    several = client.completions.create(**settings)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in several.choices]
    assert texts[0] != texts[1] and [choice.text for choice in client.completions.create(**settings).choices] == texts
    streamed = ["", "", "", ""]
    for chunk in client.completions.create(**settings, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def test_a_request_gets_the_method_it_needs(client: openai.OpenAI, model: ropewalk.Model) -> None:
    long, short = model.tokenize(SENTENCE * 30), model.tokenize(SENTENCE)
    assert 512 < len(long) < 2000
    asked: list[tuple[list[int], str, dict[str, str], str]] = [
        (short, "tiny", {}, "plain"),
        (long, "tiny", {}, "yarn:factor=4"),
        (short, "tiny@yarn:factor=4", {}, "yarn:factor=4"),
        (short, "tiny", {"rope": "yarn:factor=4"}, "yarn:factor=4"),
    ]
    for prompt, name, more, rope in asked:
        raw = client.completions.with_raw_response.create(
            model=name, prompt=prompt, max_tokens=8, temperature=0, extra_body={"ignore_eos": True, **more}
        )
        assert raw.headers["x-ropewalk-rope"] == rope
        assert raw.headers["x-ropewalk-beyond-trained"] == str(len(prompt) > 512).lower()
        answer = raw.parse()
        assert answer.ropewalk["rope"] == rope and answer.ropewalk["stop"] == "length"
        ctx = 512 if rope == "plain" else 2048
        assert answer.choices[0].text == "".join(session(model, rope, ctx).generate(prompt, 8, ignore_eos=True))


def test_errors_are_those_of_the_package(url: str, client: openai.OpenAI) -> None:
    before = answered(url, 400)
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt=SENTENCE * 400)
    assert long.value.code == "context_length_exceeded" and isinstance(long.value.body, dict)
    assert long.value.body["n_ctx"] == 2048 < long.value.body["n_prompt_tokens"]
    with pytest.raises(openai.BadRequestError) as streamed:
        client.completions.create(model="tiny", prompt=SENTENCE * 400, stream=True)
    assert streamed.value.body == long.value.body
    with pytest.raises(openai.BadRequestError, match="top_p: expected") as wrong:
        client.completions.create(model="tiny", prompt="x", top_p=2)
    assert wrong.value.param == "top_p" and wrong.value.type == "invalid_request_error"
    # What cannot succeed is sent once.
    assert answered(url, 400) == before + 3
    with pytest.raises(openai.NotFoundError) as other:
        client.chat.completions.create(model="other", messages=CHAT)
    assert other.value.code == "model_not_found"


def test_what_fails_for_now_is_sent_again(path: Path) -> None:
    with serving(path, "--ctx", 512, "--parallel", 1) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        settings: Any = {"model": "tiny", "prompt": "x", "n": 128, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
        # As many answers as may wait.
        held = [client.completions.create(**settings, stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as busy:
            client.completions.create(**settings)
        assert busy.value.code == "queue_full" and float(busy.value.response.headers["retry-after"]) > 0
        assert answered(url, 429) == 1
        # The header says when.
        started = time.monotonic()
        with pytest.raises(openai.RateLimitError):
            client.with_options(max_retries=1).completions.create(**settings)
        assert answered(url, 429) == 3
        assert time.monotonic() - started > float(busy.value.response.headers["retry-after"]) / 2
        for stream in held:
            stream.close()
    with pytest.raises(openai.APIConnectionError):
        client.models.list()


def test_keys(path: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("one\ntwo\n")
    with serving(path, "--ctx", 512, "--api-key-file", tmp_path / "keys.txt") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="two")
        assert client.completions.create(model="tiny", prompt="x", max_tokens=1).choices
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="three").models.list()


def test_a_stream_that_is_closed_ends_its_work(url: str, client: openai.OpenAI) -> None:
    # Together, the answers take longer than the test, also on a busy machine.
    settings: Any = {"model": "tiny", "prompt": "The rope", "n": 64, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}

    def canceled(more_than: float, runs: bool) -> float:
        """How many answers were canceled, when they are more than these. Counts are of the last step."""
        for _ in range(6000):
            found = metrics(url)
            total = found["ropewalk_cancelled_total"]
            if total > more_than and (found["ropewalk_running"] + found["ropewalk_waiting"] > 0) == runs:
                return total
            time.sleep(0.01)
        pytest.fail(f"expected more than {more_than} canceled answers, found {found}")

    stream = client.completions.create(**settings, stream=True)
    next(stream)
    before = canceled(-1, runs=True)
    stream.close()
    before = canceled(before, runs=False)
    # As does a client that waits no longer.
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1, max_retries=0).completions.create(**settings)
    canceled(before, runs=False)


def test_many_at_once_are_each_alone(url: str, model: ropewalk.Model) -> None:
    prompts = [SENTENCE[:n] for n in range(1, 64, 4)] + [SENTENCE * n for n in (3, 9, 27)]

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            settings: Any = {"model": "tiny", "max_tokens": 16, "temperature": 0, "extra_body": {"ignore_eos": True}}
            found = await asyncio.gather(*(client.completions.create(prompt=prompt, **settings) for prompt in prompts))
            return [answer.choices[0].text for answer in found]

    alone = session(model), session(model, "yarn:factor=4", 2048)
    tokens = [model.tokenize(prompt, parse_special=True) for prompt in prompts]
    expected = ["".join(alone[len(prompt) + 16 > 512].generate(prompt, 16, ignore_eos=True)) for prompt in tokens]
    assert asyncio.run(ask()) == expected


#: A form that ends, whatever the model chooses: lists and texts are bounded.
Place: Any = pydantic.create_model("Place", city=(Literal["Bergen", "Oslo"], ...), rain=(bool, ...))
Forecast: Any = pydantic.create_model(
    "Forecast", places=(list[Place], pydantic.Field(min_length=1, max_length=2)), sure=(Optional[bool], ...)
)


def test_answers_have_the_form_that_is_asked_for(url: str, client: openai.OpenAI) -> None:
    settings: Any = {"model": "tiny", "messages": CHAT, "temperature": 0, "max_tokens": 400, "response_format": Forecast}
    parsed = client.chat.completions.parse(**settings)
    forecast = parsed.choices[0].message.parsed
    assert isinstance(forecast, Forecast) and 1 <= len(forecast.places) <= 2
    assert parsed.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(**settings) as events:
        assert events.get_final_completion().choices[0].message.parsed == forecast
    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="tiny", temperature=0, max_tokens=400)
    messages = [(message["role"], message["content"]) for message in CHAT]
    assert chat.with_structured_output(Forecast, method="json_schema").invoke(messages) == forecast
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**settings, "max_tokens": 4})
    # Drawn answers parse as well.
    for seed in range(8):
        sampled = client.chat.completions.parse(**{**settings, "temperature": 1, "seed": seed})
        assert isinstance(sampled.choices[0].message.parsed, Forecast)


def test_functions_are_called(tmp_path: Path) -> None:
    path = hermes(tmp_path)
    parameters = Place.model_json_schema() | {"additionalProperties": False}
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": parameters, "strict": True}}]
    with serving(path, "--ctx", 2048) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        settings: Any = {"model": "tiny", "tools": tools, "temperature": 0, "max_tokens": 400, "parallel_tool_calls": False}
        chosen: list[Any] = ["required", {"type": "function", "function": {"name": "weather"}}]
        for choice in chosen:
            answer = client.chat.completions.create(messages=CHAT, tool_choice=choice, **settings).choices[0]
            assert answer.finish_reason == "tool_calls" and answer.message.tool_calls is not None
            (call,) = answer.message.tool_calls
            assert call.function.name == "weather" and Place.model_validate_json(call.function.arguments)
            with client.chat.completions.stream(messages=CHAT, tool_choice=choice, **settings) as stream:
                (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or []
            assert streamed.function.arguments == call.function.arguments
        # The result goes back.
        result = {"role": "tool", "tool_call_id": call.id, "content": "It rains."}
        messages: Any = [*CHAT, answer.message.model_dump(exclude_none=True), result]
        again = client.chat.completions.create(messages=messages, tool_choice="none", **settings).choices[0]
        assert again.message.tool_calls is None and again.finish_reason in ("stop", "length")
        # The same through responses.
        flat: Any = {"tools": [{"type": "function", **tools[0]["function"]}], "tool_choice": "required", "parallel_tool_calls": False}
        asked: Any = {"model": "tiny", "input": CHAT, "temperature": 0, "max_output_tokens": 400, **flat}
        (item,) = client.responses.create(**asked).output
        assert item.type == "function_call" and item.name == "weather" and item.arguments == call.function.arguments
        events = list(client.responses.create(**asked, stream=True))
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert len(deltas) > 1 and "".join(deltas) == item.arguments


def test_responses_are_chats(client: openai.OpenAI) -> None:
    settings: Any = {"model": "tiny", "temperature": 0, "extra_body": {"ignore_eos": True}}
    chat = client.chat.completions.create(messages=CHAT, max_tokens=24, **settings)
    asked: Any = {"instructions": CHAT[0]["content"], "input": CHAT[1]["content"], "max_output_tokens": 24, **settings}
    whole = client.responses.create(**asked)
    assert whole.output_text == chat.choices[0].message.content and whole.status == "incomplete"
    assert whole.incomplete_details is not None and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None and chat.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (chat.usage.prompt_tokens, 24)
    events = list(client.responses.create(**asked, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    with pytest.raises(openai.BadRequestError) as stored:
        client.responses.create(**asked, previous_response_id=whole.id)
    assert stored.value.param == "previous_response_id"


def test_langchain_sees_a_prompt_that_is_too_long(url: str, client: openai.OpenAI) -> None:
    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="tiny", temperature=0, max_tokens=16)
    expected = client.chat.completions.create(model="tiny", messages=CHAT, temperature=0, max_tokens=16)
    messages = [(message["role"], message["content"]) for message in CHAT]
    assert chat.invoke(messages).content == expected.choices[0].message.content
    assert "".join(str(chunk.content) for chunk in chat.stream(messages)) == expected.choices[0].message.content
    with pytest.raises(ContextOverflowError):
        chat.invoke(SENTENCE * 400)
    with pytest.raises(ContextOverflowError):
        list(chat.stream(SENTENCE * 400))


#: A question of four choices, and a text to complete.
TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "texts": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def test_the_harness_finds_what_its_own_model_finds(path: Path, url: str, model: ropewalk.Model, tmp_path: Path) -> None:
    words = SENTENCE.split()
    with (tmp_path / "docs.jsonl").open("w") as out:
        for i in range(24):
            question = " ".join([*words[i % 7 :], *words[: i % 5], *words[: i * 3 % 11]] * (1 + i % 3))
            doc = {"question": question, "choices": [" ".join(words[k : k + 1 + i % 4]) for k in range(4)], "gold": i % 4}
            out.write(json.dumps(doc) + "\n")
    for name, task in TASKS.items():
        files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "docs.jsonl")}}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"task": name, **files, "test_split": "test", **task}))

    def evaluate(kind: str, batch_size: int, **arguments: object) -> Any:
        return lm_eval.simple_evaluate(
            model=kind,
            model_args=arguments,
            tasks=list(TASKS),
            task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
            batch_size=batch_size,
            device="cpu",
            bootstrap_iters=0,
        )

    # The harness adds no token in front of a text if the server has the tokenizer.
    assert model.tokenize("x") == model.tokenize("x", add_special=False)
    ours = evaluate("ropewalk", 1, path=str(path), rope="plain", ctx=512, threads=1, kv="f32", math="f32")
    at: dict[str, Any] = {"base_url": f"{url}/v1/completions", "tokenizer_backend": "remote", "max_length": 512}
    for batch_size, concurrent in [(1, 1), (4, 1), (1, 4)]:
        found = evaluate("local-completions", batch_size, model="tiny", num_concurrent=concurrent, **at)
        for name in TASKS:
            for sample, expected in zip(found["samples"][name], ours["samples"][name], strict=True):
                assert sample["arguments"] == expected["arguments"]
                if name == "texts":
                    assert sample["resps"] == expected["resps"]
                    continue
                for (logprob, greedy), (own, own_greedy) in zip(sample["filtered_resps"], expected["filtered_resps"], strict=True):
                    # A sum of decimals.
                    assert greedy == own_greedy and math.isclose(logprob, own, rel_tol=1e-6), (logprob, own)
                assert all(sample[metric] == expected[metric] for metric in ("acc", "acc_norm"))
        assert {name: found["results"][name] for name in TASKS} == {name: ours["results"][name] for name in TASKS}
