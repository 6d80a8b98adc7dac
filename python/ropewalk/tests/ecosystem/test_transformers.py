"""Models of transformers under RoPE methods: their logits are those of sessions of the converted models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import peft
import pytest
import torch
import transformers
from test_guide import run_page

import ropewalk
from ropewalk.transformers import patch, unpatch

TOKENIZERS = Path(__file__).parents[4] / "src" / "import" / "tests" / "checkpoints" / "tokenizers"
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "vocab_size": 344,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
N_TOKENS, N_CTX = 200, 256
#: A model has an attention of each kind: plain, with biases, with windows, with dimensions that are not rotated.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "sentencepiece", {"num_hidden_layers": 2}),
    "qwen2": ("Qwen2Config", "sentencepiece", {"num_hidden_layers": 2}),
    "gemma3": (
        "Gemma3TextConfig",
        "sentencepiece-gemma",
        {"num_hidden_layers": 6, "head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16},
    ),
    "phi3": (
        "Phi3Config",
        "sentencepiece",
        {
            "num_hidden_layers": 2,
            "sliding_window": None,
            "original_max_position_embeddings": 64,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    ),
}
#: Every method but CLEX, whose network another test trains, and settings and pairs of methods.
METHODS = [
    "plain",
    "pi:factor=4",
    "ntk:factor=4",
    "dynamic-ntk:factor=4",
    "yarn:factor=4",
    "abf:base=500000",
    "longrope:factors=FACTORS",
    "harpe:bases=500000/100000/30000/10000",
    "sba:factor=4",
    "self-extend:window=32,group=8",
    "lm-infinite:window=48,global=4",
    "dca:chunk=48",
    "string:shifted-offset=24,local-value=8",
    "rerope:window=32,leak=8",
    "streaming:window=48,sinks=4",
    "yarn:factor=4,temperature=logn",
    "ntk:factor=4,drop=0.25,temperature=1.2",
    "yarn:factor=2+self-extend:window=32,group=4",
]


class Pair:
    """A model of transformers, and the same one as a GGUF file."""

    def __init__(self, family: str, folder: Path, **others: int) -> None:
        config, tokenizer, more = FAMILIES[family]
        torch.manual_seed(5)
        made = getattr(transformers, config)(**SHAPE | more | others)
        self.torch = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, values in self.torch.named_parameters():
                if name.endswith("bias"):
                    values.copy_(0.3 * torch.randn_like(values))
        self.torch.save_pretrained(folder / "model")
        for file in (TOKENIZERS / tokenizer).iterdir():
            shutil.copy(file, folder / "model")
        self.gguf = folder / "model.gguf"
        ropewalk.convert(folder / "model", self.gguf, dtype="f32")
        self.model = ropewalk.Model(self.gguf, device="cpu")
        self.tokens = torch.randint(3, 300, (1, N_TOKENS))

    def session(self, rope: str, model: ropewalk.Model | None = None) -> ropewalk.Session:
        return (model or self.model).session(N_CTX, rope=rope, kv="f32", math="f32", n_threads=1)

    def native(self, session: ropewalk.Session) -> npt.NDArray[np.float32]:
        return session.logits(self.tokens[0].tolist(), last=N_TOKENS)

    def in_torch(self, model: Any = None) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            logits: npt.NDArray[np.float32] = (model or self.torch)(self.tokens).logits[0].numpy()
        return logits


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair("llama", tmp_path_factory.mktemp("llama"))


def agree(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)


def test_every_method_is_tried() -> None:
    tried = {part.split(":")[0] for method in METHODS for part in method.split("+")}
    assert tried == {method["name"] for method in ropewalk.rope.methods()} - {"clex"}


@pytest.mark.parametrize("method", METHODS)
def test_logits_are_those_of_the_session(pair: Pair, method: str) -> None:
    # LongRoPE has a factor for each pair of dimensions.
    n_pairs = pair.model.plan("plain").frequencies.shape[1]
    session = pair.session(method.replace("FACTORS", "/".join(f"{1 + 3 * i / n_pairs:.3}" for i in range(n_pairs))))
    plain = pair.in_torch()
    patch(pair.torch, session.plan)
    try:
        patched = pair.in_torch()
        agree(patched, pair.native(session))
        if method != "plain":
            assert np.abs(patched - plain).max() > 1e-2
    finally:
        unpatch(pair.torch)
    np.testing.assert_array_equal(pair.in_torch(), plain)


def test_a_method_can_be_given_by_its_name(llama: Pair) -> None:
    method = "self-extend:window=32,group=8"
    patch(llama.torch, method, gguf=llama.gguf, n_ctx=N_CTX)
    agree(llama.in_torch(), llama.native(llama.session(method)))
    # Another method takes its place, and a cache holds what was read.
    patch(llama.torch, llama.session("yarn:factor=4").plan)
    with torch.no_grad():
        before = llama.torch(llama.tokens[:, :150], use_cache=True)
        after = llama.torch(llama.tokens[:, 150:], cache=before.past_key_values)
    native = llama.native(llama.session("yarn:factor=4"))
    agree(after.logits[0].numpy(), native[150:])
    # A text that is shorter than the others of its batch ends with padding.
    mask = torch.ones(2, N_TOKENS, dtype=torch.long)
    mask[1, 120:] = 0
    with torch.no_grad():
        both = llama.torch(llama.tokens.expand(2, -1), attention_mask=mask).logits.numpy()
    agree(both[0], native)
    agree(both[1, :120], native[:120])
    unpatch(llama.torch)


def test_an_adapter_trained_under_harpe_is_the_same_in_pytorch(llama: Pair, text: Path, tmp_path: Path) -> None:
    method = "harpe:bases=500000/100000/30000/10000"
    lora, folder = tmp_path / "lora.gguf", tmp_path / "peft"
    settings: dict[str, object] = {"warmup": 1}
    ropewalk.finetune(llama.model, text, lora, rope=method, n_ctx=128, steps=3, lr=0.02, rank=4, settings=settings)
    report = ropewalk.adapter.to_peft(lora, llama.gguf, folder)
    assert report["n_pairs"] > 0 and "harpe" in report["rope"]
    adapted = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(llama.gguf.with_suffix(""), dtype=torch.float32), folder
    ).eval()
    session = llama.session(method, ropewalk.Model(llama.gguf, device="cpu", lora=lora))
    assert session.plan.bases is not None and len(set(session.plan.bases)) == 4
    patch(adapted, session.plan)
    native = llama.native(session)
    agree(llama.in_torch(adapted), native)
    assert np.abs(native - llama.native(llama.session(method))).max() > 1e-2
    # And back: from a model of PEFT, and from its directory.
    for number, source in enumerate([adapted, folder]):
        again = tmp_path / f"again{number}.gguf"
        assert ropewalk.adapter.from_peft(source, llama.gguf, again)["n_pairs"] == report["n_pairs"]
        agree(llama.native(llama.session(method, ropewalk.Model(llama.gguf, device="cpu", lora=again))), native)


def test_frequencies_trained_under_clex_are_the_same_in_pytorch(pair: Pair, text: Path, tmp_path: Path) -> None:
    method, lora = "clex:original=64,max-factor=4", tmp_path / "lora.gguf"
    # PEFT has no place for the network, so it is all that is trained: with this alpha, the pairs change nothing.
    how: dict[str, Any] = {"rank": 4, "alpha": 1e-9, "settings": {"warmup": 1}}
    ropewalk.finetune(pair.model, text, lora, rope=method, n_ctx=64, steps=3, lr=0.02, **how)
    session = pair.session(method, ropewalk.Model(pair.gguf, device="cpu", lora=lora))
    untrained = pair.session(method)
    assert np.abs(session.plan.frequencies / untrained.plan.frequencies - 1).max() > 1e-3
    native = pair.native(session)
    assert np.abs(native - pair.native(untrained)).max() > 1e-2
    patch(pair.torch, session.plan)
    agree(pair.in_torch(), native)
    unpatch(pair.torch)


def test_gradients_flow_through_a_patched_model(llama: Pair) -> None:
    for method in ["harpe", "self-extend:window=32,group=8"]:
        patch(llama.torch, llama.session(method).plan)
        loss = llama.torch(llama.tokens, labels=llama.tokens).loss
        loss.backward()
        gradient = llama.torch.model.layers[0].self_attn.q_proj.weight.grad
        assert gradient.isfinite().all() and gradient.abs().max() > 0
        llama.torch.zero_grad()
        unpatch(llama.torch)


def test_what_cannot_be_patched_is_an_error(llama: Pair, tmp_path: Path) -> None:
    plan = llama.session("plain").plan
    with pytest.raises(ropewalk.ArgumentError, match="gguf: expected the model's GGUF file"):
        patch(llama.torch, "yarn:factor=4")
    with pytest.raises(ropewalk.ArgumentError, match="expected none with a plan"):
        patch(llama.torch, plan, n_ctx=128)
    other = Pair("gemma3", tmp_path)
    with pytest.raises(ropewalk.ArgumentError, match=r"expected attention in layers 0 to 1 \(2\).*found 0 to 5 \(6\)"):
        patch(other.torch, plan)
    patch(llama.torch, plan)
    with pytest.raises(ropewalk.Unsupported, match="texts that begin at the left"):
        llama.torch(llama.tokens, position_ids=torch.arange(N_TOKENS)[None] // 2)
    unpatch(llama.torch)


def test_all_snippets_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Pair("llama", tmp_path, max_position_embeddings=512)
    assert run_page(tmp_path, monkeypatch) > 7
