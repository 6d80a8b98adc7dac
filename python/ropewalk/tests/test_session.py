"""Sessions: each number is found in two ways."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SENTENCE, Cli

import ropewalk


def exact(model: ropewalk.Model, n_ctx: int = 256) -> ropewalk.Session:
    """A session that rounds nothing, whose numbers do not depend on how tokens are batched."""
    return model.session(n_ctx, kv="f32", math="f32", n_threads=1)


def test_a_model_says_what_it_is(model: ropewalk.Model, path: Path) -> None:
    assert (model.architecture, model.n_layer, model.n_vocab, model.n_ctx_train) == ("llama", 2, 320, 512)
    assert model.path == path and model.device == "cpu" and model.default_rope == "plain"
    assert "tiny.gguf" in model.description and model.description in repr(model)
    assert model.n_bytes > 0
    tokens = model.tokenize(SENTENCE, add_special=False)
    assert model.detokenize(tokens) == model.detokenize(np.array(tokens)) == SENTENCE


def test_likelihoods_are_those_of_the_logits(model: ropewalk.Model) -> None:
    session = exact(model)
    tokens = model.tokenize(SENTENCE)
    nll = session.nll(tokens)
    assert nll.dtype == np.float32 and nll.shape == (len(tokens) - 1,)
    assert session.tokens == tokens[: len(session.tokens)]
    logits = session.logits(np.array(tokens), last=len(tokens))
    assert logits.shape == (len(tokens), model.n_vocab)
    p = np.exp(logits.astype(np.float64))
    by_hand = -np.log(p / p.sum(axis=1, keepdims=True))[np.arange(len(tokens) - 1), tokens[1:]]
    np.testing.assert_allclose(nll, by_hand, rtol=1e-4)
    # A part of them, with the keys of the others reused; and the same from the text.
    np.testing.assert_allclose(session.nll(tokens, start=20), nll[19:], rtol=1e-3)
    np.testing.assert_array_equal(exact(model).nll(SENTENCE), nll)
    np.testing.assert_allclose(session.logits(tokens)[0], logits[-1], rtol=1e-3, atol=1e-3)


def test_a_continuation_has_the_likelihood_of_its_tokens(model: ropewalk.Model) -> None:
    session = exact(model)
    score = session.score("The rope walk was", " a long shed")
    whole = model.tokenize("The rope walk was a long shed")
    prompt = model.tokenize("The rope walk was")
    n = len(prompt)
    nll = session.nll(whole, start=n)
    assert score.n_tokens == len(nll) and not score.greedy
    assert score.logprob == pytest.approx(-float(nll.sum()), rel=1e-4)
    # The model itself takes the most likely tokens.
    pieces = session.generate(prompt, 4, ignore_eos=True)
    list(pieces)
    logits = session.logits(prompt + pieces.tokens[:-1], last=4)
    assert logits.argmax(axis=1).tolist() == pieces.tokens


def test_several_texts_are_read_together(model: ropewalk.Model) -> None:
    session = model.session(256, kv="f32", math="f32", n_threads=1, parallel=3)
    prompt = model.tokenize("The rope walk was", add_special=True)
    endings = [model.tokenize(text, add_special=False) for text in [" a long shed", " hemp", " a", " spun into rope"]]
    scores = session.scores(prompt, endings)
    for score, ending in zip(scores, endings):
        assert score.n_tokens == len(ending)
        alone = exact(model).nll(prompt + ending, start=len(prompt))
        assert score.logprob == pytest.approx(-float(alone.sum()), rel=1e-5)
    prompts = [model.tokenize(text) for text in ["Once", "The rope", "A long shed in which"]]
    for tokens, answer in zip(prompts, session.answers(prompts, 12)):
        pieces = exact(model).generate(tokens, 12)
        list(pieces)
        assert answer == pieces.tokens
    with pytest.raises(ropewalk.ArgumentError, match="prompts.*at most 3"):
        session.answers(prompts * 3, 12)
    assert model.bos == model.eos == 256


def test_generation_is_that_of_the_program(model: ropewalk.Model, path: Path, cli: Cli) -> None:
    method = "yarn:factor=2"
    args = ["-m", path, "-p", "Once upon a time", "-n", 24, "--ctx", 256, "--rope", method, "--ignore-eos"]
    machine = ["--math", "f32", "-t", 1, "--device", "cpu"]
    for temperature in [0.0, 0.8]:
        sampling = ["--temp", temperature, "--top-k", 40, "--top-p", 1, "--min-p", 0, "--seed", 5]
        said = cli("run", *args, *machine, *sampling)
        session = model.session(256, rope=method, math="f32", n_threads=1)
        pieces = session.generate("Once upon a time", 24, temperature=temperature, top_k=40, seed=5, ignore_eos=True)
        assert "".join(pieces) == said["text"]
        assert pieces.tokens == said["tokens"] and pieces.stop_reason == "length" == said["stop"]
        assert session.plan.spec == said["rope"]


def test_generations_end(model: ropewalk.Model) -> None:
    session = model.session(64, n_threads=1)
    pieces = session.generate("Once", ignore_eos=True, temperature=1)
    assert pieces.stop_reason is None
    text = "".join(pieces)
    assert pieces.stop_reason == "context" and len(session.tokens) == 64
    letter = next(c for c in text if c.isascii() and c.isalnum())
    pieces = session.generate("Once", ignore_eos=True, temperature=1, stop=letter)
    assert "".join(pieces) == text[: text.index(letter)] and pieces.stop_reason == "stop"
    # A generation whose context was changed by another call is an error, not other text.
    pieces = session.generate("Once", 8, ignore_eos=True)
    session.clear()
    with pytest.raises(ropewalk.RopewalkError, match="expected sequence 0 to hold"):
        next(pieces)
    pieces = session.generate("Once", 8, ignore_eos=True)
    session.logits("Ones")
    with pytest.raises(ropewalk.RopewalkError, match="expected sequence 0 to hold .* tokens, found others"):
        next(pieces)


def test_arrays_are_not_copied(model: ropewalk.Model, path: Path) -> None:
    def owner(array: Any) -> str:
        while isinstance(array.base, np.ndarray):
            array = array.base
        return type(array.base).__name__

    session = model.session(64, n_threads=1)
    plan = ropewalk.rope.inspect(path, "harpe", 1024)
    arrays: list[Any] = [session.nll("Once upon"), session.logits("Once upon", last=3), plan.distances([3], [1]), plan.frequencies]
    assert [owner(array) for array in arrays] == ["PySliceContainer"] * len(arrays)
    assert all(array.flags.writeable for array in arrays)


def test_memory_does_not_grow(model: ropewalk.Model) -> None:
    def resident() -> int:
        fields = Path("/proc/self/statm").read_text().split()
        return int(fields[1]) * resource.getpagesize()

    def use(n: int) -> int:
        """Opens sessions and uses each, and returns the bytes of one. Some generations do not end."""
        for i in range(n):
            session = model.session(1024, rope=["plain", "yarn:factor=2"][i % 2], n_threads=1)
            session.logits(SENTENCE, last=8)
            pieces = session.generate(SENTENCE, 8, ignore_eos=True, seed=i)
            next(pieces)
            session.plan.to_dict()
        return session.memory["kv"] + session.memory["compute"]

    use(50)
    before = resident()
    each = use(1000)
    # If one session in a hundred stayed, it would be ten sessions, of whose memory a third is in use.
    assert resident() - before < 2 * each


def test_messages_are_rendered(model: ropewalk.Model) -> None:
    assert model.chat_template is not None and "<|im_start|>" in model.chat_template
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A \"rope\" é"}]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA \"rope\" é<|im_end|>\n"
    assert model.render(messages, add_generation_prompt=False) == text
    assert model.render(messages) == text + "<|im_start|>assistant\n"
    # What the template does not read does not matter.
    assert model.render(messages, tools=[{"name": "now"}], enable_thinking=False) == model.render(messages)
    with pytest.raises(ropewalk.ArgumentError, match="messages: invalid type"):
        model.render(messages[0])  # type: ignore[arg-type]


def test_another_chat_template(path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    model = ropewalk.Model(path, device="cpu", chat_template=template)
    assert model.chat_template == template
    assert model.render([{"role": "user", "content": "hi"}]) == "[user]hi"


def test_a_conversation(model: ropewalk.Model) -> None:
    chat = model.chat(512, system="Be brief.", max_tokens=12, kv="f32", math="f32", n_threads=1)
    assert chat.messages == [{"role": "system", "content": "Be brief."}]
    answer = chat.say("What is a rope walk?")
    text = "".join(answer)
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a rope walk?"}
    assert chat.messages[:2] == [system, user] and chat.messages[2]["role"] == "assistant"
    prompt = model.tokenize(model.render([system, user]), parse_special=True)
    pieces = exact(model, 512).generate(prompt, 12)
    assert text == "".join(pieces)
    assert answer.turn is not None
    assert answer.turn["n_prompt"] == len(prompt) and answer.turn["n_generated"] == len(pieces.tokens)
    assert answer.turn["stop"] == pieces.stop_reason
    # The next turn has the keys of this one.
    again = chat.say("And a yarn?")
    list(again)
    assert again.turn is not None and again.turn["reused"] > len(prompt) // 2 and len(chat.messages) == 5
    assert chat.undo() == "And a yarn?" and len(chat.messages) == 3
    # A message that does not fit is not sent.
    with pytest.raises(ropewalk.ContextFull):
        list(chat.say(SENTENCE * 40))
    assert len(chat.messages) == 3
    chat.clear()
    assert chat.messages == [system]


def test_answers_end_early(model: ropewalk.Model) -> None:
    chat = model.chat(512, temperature=1, n_threads=1)
    answer = chat.say("Once")
    assert next(answer) and answer.turn is None
    with pytest.raises(ropewalk.SessionBusy):
        chat.say("Twice")
    answer.close()
    assert list(answer) == [] and answer.turn is not None and answer.turn["stop"] == "cancelled"
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    # One that is left is stopped.
    for _ in chat.say("Twice"):
        break
    assert len(chat.messages) == 4
    assert next(chat.say("Thrice"))
