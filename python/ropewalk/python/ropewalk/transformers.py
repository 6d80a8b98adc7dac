"""RoPE methods for models of transformers, so that a method or an adapter can be checked in PyTorch.

`patch` gives the attention of a model the frequencies and distances of a plan. It is exact, not fast: under methods that change
distances, it needs memory for each pair of tokens. `unpatch` makes the model what it was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, TypeVar, Union

import numpy as np
import numpy.typing as npt

from ropewalk import ArgumentError, Plan, Unsupported
from ropewalk._extras import extra
from ropewalk.rope import inspect

with extra("transformers", "torch", "transformers"):
    import torch
    from torch import Tensor, nn
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

__all__ = ["patch", "unpatch"]

_NAME = "ropewalk"
_Path = Union[str, "os.PathLike[str]"]
_M = TypeVar("_M", bound="nn.Module")


def patch(
    model: _M, rope: str | Plan, *, gguf: _Path | None = None, n_ctx: int | None = None
) -> _M:
    """Lets a model of transformers, or a PEFT model, compute under a RoPE method, and returns it. The method is a plan, as
    `session.plan`, or a spec; then `gguf` is the converted model, whose metadata is read, and `n_ctx` the context."""
    if isinstance(rope, Plan):
        if gguf is not None or n_ctx is not None:
            raise ArgumentError("gguf, n_ctx: expected none with a plan, which is for one model and one context")
        plan = rope
    elif gguf is None:
        raise ArgumentError("gguf: expected the model's GGUF file, as the method is given by its name; found none")
    else:
        plan = inspect(gguf, rope, n_ctx)
    unpatch(model)
    modules = [module for module in model.modules() if hasattr(module, "layer_idx") and hasattr(module, "o_proj")]
    rotaries = [module for module in model.modules() if type(module).__name__.endswith("RotaryEmbedding")]
    kinds = plan.to_dict()["kinds"]
    of_layer = {layer: _Kind(plan, kind, layer) for kind in kinds for layer in kind["layers"]}
    found = sorted(module.layer_idx for module in modules)
    if found != sorted(of_layer) or not rotaries:
        raise ArgumentError(
            f"{type(model).__name__}: expected attention in layers {_ranges(sorted(of_layer))} as the plan has it, and a "
            f"rotary embedding, found {_ranges(found)} and {len(rotaries)}: the plan is for another model, or this one cannot be patched"
        )
    kinds_of = {id(module): of_layer[module.layer_idx] for module in modules}
    for module in modules:
        kinds_of[id(module)].check(module)
    for module in modules:
        module._ropewalk = kinds_of[id(module)]
    for rotary in rotaries:
        rotary.forward = _Unrotated(rotary.forward)
    for config in {id(module.config): module.config for module in modules}.values():
        config._ropewalk_before = config._attn_implementation
        config._attn_implementation = _NAME
    return model


def unpatch(model: _M) -> _M:
    """Takes the method of `patch` from a model, and returns it."""
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), _Unrotated):
            del module.forward
        if "_ropewalk" in module.__dict__:
            del module._ropewalk
            if hasattr(module.config, "_ropewalk_before"):
                module.config._attn_implementation = module.config._ropewalk_before
                del module.config._ropewalk_before
    return model


def _ranges(layers: Sequence[int]) -> str:
    return f"{layers[0]} to {layers[-1]} ({len(layers)})" if layers else "none"


class _Unrotated:
    """A rotary embedding by angles of 0: the attention itself rotates."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        cos, sin = self.before(*args, **kwargs)
        return torch.ones_like(cos), torch.zeros_like(sin)


class _Kind:
    """The plan of a layer, as its attention needs it."""

    def __init__(self, plan: Plan, kind: dict[str, Any], layer: int) -> None:
        self.plan = plan
        self.layer = layer
        self.n_head_kv: int = kind["n_head_kv"]
        self.n_rot: int = kind["n_rot"]
        self.mscale: float = kind["mscale"]
        #: A row for all heads, or one per KV head.
        self.theta = torch.tensor(kind["freqs"], dtype=torch.float64).reshape(len(kind["freqs"]), -1)
        self.halves = True
        self.last: tuple[tuple[int, int, int], npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None

    def check(self, module: nn.Module) -> None:
        """Refuses attention that does more than rotate, or rotates in another way than models do."""
        config, name = module.config, type(module).__name__
        if (config.num_key_value_heads, self.n_rot <= module.head_dim) != (self.n_head_kv, True):
            raise ArgumentError(
                f"{name}: expected {self.n_head_kv} KV heads, and {self.n_rot} of their dimensions to rotate, found "
                f"{config.num_key_value_heads} heads of {module.head_dim}: the plan is for another model"
            )
        temperature = "llama_4_scaling_beta" in (getattr(config, "rope_parameters", None) or {})
        if temperature or getattr(config, "attn_temperature_tuning", False) or hasattr(module, "sinks"):
            raise Unsupported(f"{name}: attention with its own temperature or with sinks cannot be patched")
        if self.n_rot == 0:
            return
        rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
        if rotate is None:
            raise Unsupported(f"{name}: expected attention that calls apply_rotary_pos_emb of its module")
        # A turn of 90 degrees shows which dimension is in a pair with the first one.
        first = torch.eye(module.head_dim)[0].reshape(1, 1, 1, -1)
        turned, _ = rotate(first, first, torch.zeros(1, 1, self.n_rot), torch.ones(1, 1, self.n_rot))
        pair = int(turned.abs().argmax())
        if pair not in (1, self.n_rot // 2):
            raise Unsupported(f"{name}: expected pairs of neighboring dimensions or of halves, found 0 and {pair}")
        self.halves = pair == self.n_rot // 2

    def reach(self, first: int, n_queries: int, n_keys: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Distances of queries from position `first` on to the first keys, or those before them, and factors on queries."""
        asked = (first, n_queries, n_keys)
        if self.last is None or self.last[0] != asked:
            queries = range(first, first + n_queries)
            start = max(0, first + n_queries - n_keys)
            distances = self.plan.distances(queries, range(start, start + n_keys), self.layer)
            self.last = (asked, distances, self.plan.query_scale(queries, self.layer))
        return self.last[1], self.last[2]

    def pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """First and second dimensions of all pairs."""
        x = x[..., : self.n_rot]
        if self.halves:
            return x[..., : self.n_rot // 2], x[..., self.n_rot // 2 :]
        return x[..., 0::2], x[..., 1::2]

    def rotated(self, x: Tensor, positions: Tensor) -> list[Tensor]:
        """Vectors of all heads at their positions. The order of dimensions is another one, which products do not see."""
        first, second = self.pairs(x)
        angles = positions[:, None] * self.theta.to(x.device)[:, None, :]
        # A table for all heads, or one for each KV head, which several heads of queries have.
        angles = angles.repeat_interleave(x.shape[1] // len(angles) if len(angles) > 1 else 1, dim=0)
        cos, sin = (angles.cos() * self.mscale).to(x.dtype), (angles.sin() * self.mscale).to(x.dtype)
        return [first * cos - second * sin, second * cos + first * sin, x[..., self.n_rot :]]

    def scores(self, query: Tensor, key: Tensor, distances: Tensor) -> Tensor:
        """Products of queries and keys, of which each pair is rotated by its distance."""
        theta = self.theta.to(query.device)
        rest = query[..., self.n_rot :] @ key[..., self.n_rot :].transpose(2, 3)
        (q1, q2), (k1, k2) = self.pairs(query), self.pairs(key)
        scores = torch.zeros_like(rest)
        per_table = query.shape[1] // len(theta)
        for pair in range(theta.shape[1]):
            angles = distances * theta[:, pair, None, None]
            cos, sin = (part.to(query.dtype).repeat_interleave(per_table, dim=0) for part in (angles.cos(), angles.sin()))
            a, b, c, d = q1[..., pair, None], q2[..., pair, None], k1[..., None, :, pair], k2[..., None, :, pair]
            scores = scores + (a * c + b * d) * cos - (b * c - a * d) * sin
        return scores * self.mscale**2 + rest


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    position_ids: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Attention under a plan, of queries and keys that are not rotated."""
    kind = getattr(module, "_ropewalk", None)
    if kind is None:
        raise ArgumentError(f"{type(module).__name__}: its configuration is shared with a model that is patched")
    n_queries, n_keys = query.shape[2], key.shape[2]
    first = n_keys - n_queries
    if position_ids is not None:
        first = int(position_ids[0, 0])
        expected = torch.arange(first, first + n_queries, device=position_ids.device)
        if not bool((position_ids == expected).all()):
            raise Unsupported(
                "position_ids: expected the same ascending positions in all rows, found others: patched models take texts that "
                "begin at the left, and no packed ones"
            )
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    shown, factors = kind.reach(first, n_queries, n_keys)
    distances = torch.from_numpy(shown).to(query.device)
    visible = ~distances.isnan()
    distances = distances.nan_to_num(0.0)
    start = max(0, first + n_queries - n_keys)
    queries = torch.arange(first, first + n_queries, device=query.device, dtype=torch.float64)
    keys = torch.arange(start, start + n_keys, device=query.device, dtype=torch.float64)
    if kind.n_rot == 0:
        scores = query @ key.transpose(2, 3)
    elif bool((distances == queries[:, None] - keys)[visible].all()):
        q, k = kind.rotated(query, queries), kind.rotated(key, keys)
        scores = torch.cat(q, dim=-1) @ torch.cat(k, dim=-1).transpose(2, 3)
    else:
        scores = kind.scores(query, key, distances)
    scores = scores * (module.head_dim**-0.5 if scaling is None else scaling)
    scores = scores * torch.from_numpy(factors).to(query)[:, None]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    if attention_mask is not None:
        scores = scores + attention_mask[..., :n_keys]
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, eager_mask)
