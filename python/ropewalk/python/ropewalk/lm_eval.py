"""The model `ropewalk` of lm-evaluation-harness: a GGUF file under a RoPE method.

`python -m ropewalk.lm_eval` is `lm_eval` with this model. Releases of lm-eval after 0.4.13 find it by its entry point, also
without that. `RopewalkLM(...)` can be passed to `lm_eval.simple_evaluate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Union

from ropewalk import ArgumentError, Model, RopewalkError
from ropewalk._extras import extra

with extra("lm-eval", "lm_eval", "tqdm"):
    from lm_eval import utils
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import MODEL_REGISTRY, register_model
    from tqdm import tqdm

__all__ = ["RopewalkLM", "main"]

_NAME = "ropewalk"
#: Longer continuations are scored in parts, as batches of sessions are limited.
_PART = 1024
#: Marks where a message ends that the answer continues. A template can trim the space.
_END = "END_OF_THE_LAST_MESSAGE "
#: Texts at once for `--batch_size auto`, as `ropewalk.evaluate` has by default.
_AUTO = 8

_Request = tuple[tuple[str, str], list[int], list[int]]
_Answer = tuple[float, bool]


class RopewalkLM(TemplateLM):  # type: ignore[misc]
    """A GGUF model as lm-evaluation-harness sees it. `ctx` is the context, and `batch_size` the number of contexts."""

    def __init__(
        self,
        path: str,
        rope: str | None = None,
        ctx: int | None = None,
        lora: str | Sequence[str] | None = None,
        kv: str = "f16",
        math: str = "auto",
        threads: int = 0,
        max_gen_toks: int = 256,
        device: str | None = None,
        batch_size: int | str | None = 1,
        max_batch_size: int | None = None,
        **others: object,
    ) -> None:
        super().__init__()
        if others:
            raise ArgumentError(
                f"model_args: found {', '.join(others)}; a method with several parameters is expected in quotes, as in "
                'rope="self-extend:window=128,group=4"'
            )
        self.batch_size = _AUTO if str(batch_size).startswith("auto") else int(batch_size or 1)
        if max_batch_size is not None:
            self.batch_size = min(self.batch_size, max_batch_size)
        self.max_gen_toks = max_gen_toks
        # Sampled requests so far.
        self.repeated: Counter[str] = Counter()
        # cuda:0 is the harness's default device; "auto" also chooses the first GPU.
        self.model = Model(path, device="auto" if device in (None, "cuda", "cuda:0") else device, lora=lora)
        self.session = self.model.session(
            ctx, rope=rope, kv=kv, n_threads=threads, math=math, parallel=self.batch_size
        )
        # The token that begins texts, if the file asks for one.
        self._first = [bos for bos in [self.model.bos] if bos is not None and bos in self.model.tokenize("")[:1]]

    @property
    def max_length(self) -> int:
        """Tokens of a text at most."""
        return self.session.n_ctx

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        token = self.model.bos if self.model.eos is None else self.model.eos
        if token is None:
            raise ArgumentError(f"{self.model.path}: expected a vocabulary with a token that begins or ends a text")
        return token

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        return self.eot_token_id if self.model.bos is None else self.model.bos

    @property
    def tokenizer_name(self) -> str:
        """What determines the tokens of a text. Caches of requests have it in their names."""
        return str(self.model.path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The text of the model's chat template."""
        if not chat_template:
            return None
        if isinstance(chat_template, str):
            raise ArgumentError(f"apply_chat_template: expected no name, as a GGUF file has one template, found {chat_template}")
        if self.model.chat_template is None:
            raise ArgumentError(f"{self.model.path}: expected a chat template, found none")
        return self.model.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as a prompt. Without `add_generation_prompt`, it ends within the last message, which the answer continues.
        If the template refuses a system message, it is left out, as the harness does for models of transformers."""
        # An error without a template.
        self.chat_template(True)
        if add_generation_prompt:
            return self._rendered(chat_history, True)
        last = chat_history[-1]
        text = self._rendered([*chat_history[:-1], {**last, "content": last["content"] + _END}], False)
        before, mark, after = text.rpartition(_END.strip())
        if not mark or last["content"].strip() not in before:
            raise ArgumentError(f"{self.model.path}: expected a chat template that keeps the last message, which the answer continues")
        # The template trimmed the message if the space is missing.
        return before if after.startswith(" ") else before.rstrip()

    def _rendered(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        try:
            return self.model.render(messages, add_generation_prompt=add_generation_prompt)
        except RopewalkError:
            others = [message for message in messages if message["role"] != "system"]
            if len(others) == len(messages):
                raise
            return self.model.render(others, add_generation_prompt=add_generation_prompt)

    def get_model_info(self) -> dict[str, object]:
        """What results are saved with."""
        return {"model_path": str(self.model.path), "model_rope": self.session.plan.spec, "model_ctx": self.max_length}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """The tokens of a text, with BOS if the file asks for it. The text of a special token is that token."""
        tokens = self.model.tokenize(string, add_special=False, parse_special=True)
        if add_special_tokens is False or tokens[:1] == self._first:
            return tokens
        return self._first + tokens

    def tok_decode(self, tokens: Sequence[int], **_: object) -> str:
        """The text of tokens, without special ones."""
        return self.model.detokenize(tokens)

    def _fitting(self, request: _Request) -> tuple[list[int], list[int]]:
        """Context and continuation; of a text that is too long, the end. The last token is not read."""
        _, context, continuation = request
        room = self.max_length + 1 - len(continuation)
        if room < 1:
            raise ArgumentError(
                f"ctx={self.max_length}: expected room for a continuation of {len(continuation)} tokens and one before it"
            )
        return context[-room:], continuation

    def _scores(self, context: list[int], continuations: list[list[int]]) -> list[_Answer]:
        """The likelihoods of continuations of one context."""
        if all(len(tokens) <= _PART for tokens in continuations):
            scores = self.session.scores(context, continuations)
            return [(score.logprob, score.greedy) for score in scores]
        answers = []
        for tokens in continuations:
            parts = [
                self.session.scores(context + tokens[:at], [tokens[at : at + _PART]])[0]
                for at in range(0, len(tokens), _PART)
            ]
            answers.append((sum(part.logprob for part in parts), all(part.greedy for part in parts)))
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[_Request], disable_tqdm: bool = False, **_: object
    ) -> list[_Answer]:
        answers: list[_Answer] = []
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests") as bar:
            # The choices of a question come one after another, and their context is computed once.
            fitting = [self._fitting(request) for request in requests]
            for context, group in groupby(fitting, key=lambda both: both[0]):
                scored = self._scores(context, [continuation for _, continuation in group])
                for request, answer in zip(requests[len(answers) :], scored):
                    self.cache_hook.add_partial("loglikelihood", request[0], answer)
                answers.extend(scored)
                bar.update(len(scored))
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The likelihood of whole texts, in windows that do not overlap more than the last one needs."""
        answers = []
        for (string,) in tqdm([request.args for request in requests], disable=disable_tqdm):
            # The prefix is the only BOS.
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(string, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            scored = [self._scores(*_one(utils.make_disjoint_window(window)))[0] for window in windows]
            answer = sum(logprob for logprob, _ in scored)
            self.cache_hook.add_partial("loglikelihood_rolling", (string,), answer)
            answers.append(answer)
        return answers

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers to prompts: the most likely ones, or samples if `do_sample` is true."""
        answers: list[str] = []
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests") as bar:
            for batch in self._alike(requests):
                how = _Sampling(batch[0].args[1], self.max_gen_toks)
                room = self.max_length - how.max_tokens
                if room < 1:
                    raise ArgumentError(
                        f"max_gen_toks: expected less than ctx={self.max_length}, found {how.max_tokens}"
                    )
                prompts = [self.tok_encode(request.args[0])[-room:] for request in batch]
                if how.greedy:
                    found = self.session.answers(prompts, how.max_tokens, stop=how.until)
                    texts = [self.tok_decode(tokens) for tokens in found]
                else:
                    texts = [
                        "".join(
                            self.session.generate(
                                prompt, how.max_tokens, stop=how.until, **how.sampling, seed=how.seed + self._nth(request)
                            )
                        )
                        for prompt, request in zip(prompts, batch)
                    ]
                for request, text in zip(batch, texts):
                    answer = how.before_stop(text)
                    self.cache_hook.add_partial("generate_until", request.args, answer)
                    answers.append(answer)
                bar.update(len(batch))
        return answers

    def _nth(self, request: Instance) -> int:
        """Number of equal requests before this one: a task with repeats asks for as many different samples."""
        key = repr(request.args)
        self.repeated[key] += 1
        return self.repeated[key] - 1

    def _alike(self, requests: Sequence[Instance]) -> Iterator[list[Instance]]:
        """Requests with equal settings, as many as are computed together."""
        for _, group in groupby(requests, key=lambda request: request.args[1]):
            alike = list(group)
            for at in range(0, len(alike), self.batch_size):
                yield alike[at : at + self.batch_size]


def _one(window: tuple[list[int], list[int]]) -> tuple[list[int], list[list[int]]]:
    """A window as a context with one continuation."""
    return window[0], [window[1]]


class _Sampling:
    """Settings of generation, as tasks write them."""

    def __init__(self, given: dict[str, Any], max_gen_toks: int) -> None:
        settings = dict(given)
        until: Union[str, list[str]] = settings.pop("until", None) or []
        self.until = [until] if isinstance(until, str) else list(until)
        # Names of several model types for one setting, the harness's own first.
        names = ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"]
        limits = [limit for limit in [settings.pop(name, None) for name in names] if limit is not None]
        self.max_tokens = int([*limits, max_gen_toks][0])
        temperature = settings.pop("temperature", 1.0)
        self.greedy = not settings.pop("do_sample", False) or temperature == 0
        self.sampling: dict[str, Any] = {"temperature": float(temperature)}
        for name in ["top_k", "top_p", "min_p"]:
            if name in settings:
                self.sampling[name] = settings.pop(name)
        self.seed = int(settings.pop("seed", 42))
        if settings:
            raise ArgumentError(
                f"gen_kwargs: found {', '.join(settings)}; expected until, max_gen_toks, do_sample, temperature, top_k, "
                "top_p, min_p, seed"
            )

    def before_stop(self, text: str) -> str:
        """The text before the first of the texts that end it."""
        return text[: min((at for at in (text.find(stop) for stop in self.until if stop) if at >= 0), default=len(text))]


def _register() -> None:
    """Gives the model its name. Built-in models of the harness come first."""
    import lm_eval.models

    if _NAME not in MODEL_REGISTRY:
        register_model(_NAME)(RopewalkLM)


def main() -> None:
    """Runs `lm_eval`."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    # The class that is registered is that of the module by its name.
    from ropewalk import lm_eval

    lm_eval.main()
else:
    _register()
