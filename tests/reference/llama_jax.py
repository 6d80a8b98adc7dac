"""The llama architecture with LoRA as one function of its trained parts, in JAX and float64."""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

from gguf_weights import Gguf
from seeded import TARGETS, lora

NORMS = ("attn_norm", "ffn_norm")


class Frozen:
    """What the file holds, dequantized; tensors of all layers in one array, the layer first."""

    def __init__(self, path):
        self.file = Gguf(path)
        meta = self.file.meta
        assert meta["general.architecture"] == "llama" and "output.weight" not in self.file.infos
        assert "rope_freqs.weight" not in self.file.infos and not [k for k in meta if ".rope.scaling" in k]
        self.n_layer = meta["llama.block_count"]
        self.n_head = meta["llama.attention.head_count"]
        self.n_head_kv = meta["llama.attention.head_count_kv"]
        self.n_embd = meta["llama.embedding_length"]
        self.d = self.n_embd // self.n_head
        assert meta["llama.rope.dimension_count"] == self.d
        self.base = float(meta["llama.rope.freq_base"])
        self.eps = float(meta["llama.attention.layer_norm_rms_epsilon"])
        one = lambda name: self.file.tensor(f"{name}.weight")
        stack = lambda name: jnp.asarray(np.stack([one(f"blk.{n}.{name}") for n in range(self.n_layer)]))
        self.linear = {name: stack(name) for name in TARGETS}
        self.embd = jnp.asarray(one("token_embd"))
        self.norms = {name: stack(name) for name in NORMS} | {"output_norm": jnp.asarray(one("output_norm"))}

    def theta(self, bases):
        """[n_head_kv, d/2]: radians per position, from a base for each KV head; None is the file's."""
        bases = np.array([self.base] * self.n_head_kv if bases is None else bases, np.float64)
        assert len(bases) == self.n_head_kv
        return bases[:, None] ** (-2.0 * np.arange(self.d // 2) / self.d)

    def adapter(self, targets, rank, b_zero=False):
        """target -> (A [layers, rank, n_in], B [layers, n_out, rank])."""
        out = {}
        for t in targets:
            n_out, n_in = self.linear[t].shape[1:]
            pairs = [lora(n, t, rank, n_in, n_out) for n in range(self.n_layer)]
            a, b = (np.stack(m) for m in zip(*pairs))
            out[t] = (a, b * 0.0 if b_zero else b)
        return out

    def trained(self, adapter):
        """All that a gradient is asked for; the embedding twice, as rows that go in and as output matrix."""
        return {"lora": adapter, "embd_in": self.embd, "embd_out": self.embd, **self.norms}


def rms(x, weight, eps):
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def turn(x, angle):
    """Rotates the pairs (2i, 2i+1) of x [n, n_head_kv, heads, d] by angle [n, n_head_kv, d/2]."""
    c, s = jnp.cos(angle)[:, :, None, :], jnp.sin(angle)[:, :, None, :]
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(x.shape)


def make_loss(m, scale):
    """loss(trained, linear, theta, tokens): mean of -ln p of tokens 1 on. `scale` is alpha / rank."""

    def loss(trained, linear, theta, tokens):
        n = len(tokens) - 1
        angle = jnp.arange(n)[:, None, None] * theta
        unseen = jnp.where(jnp.tril(jnp.ones((n, n), bool)), 0.0, -jnp.inf)

        def layer(x, w):
            def product(name, h):
                y = h @ w["linear"][name].T
                if name in w["lora"]:
                    a, b = w["lora"][name]
                    y = y + scale * ((h @ a.T) @ b.T)
                return y

            h = rms(x, w["attn_norm"], m.eps)
            # Query heads that share a key head stand side by side: head = kv_head * group + member.
            q = turn(product("attn_q", h).reshape(n, m.n_head_kv, -1, m.d), angle)
            k = turn(product("attn_k", h).reshape(n, m.n_head_kv, 1, m.d), angle)[:, :, 0]
            v = product("attn_v", h).reshape(n, m.n_head_kv, m.d)
            score = jnp.einsum("ihgd,jhd->hgij", q, k) / np.sqrt(m.d) + unseen
            p = jax.nn.softmax(score, axis=-1)
            x = x + product("attn_output", jnp.einsum("hgij,jhd->ihgd", p, v).reshape(n, -1))
            h = rms(x, w["ffn_norm"], m.eps)
            act = jax.nn.silu(product("ffn_gate", h)) * product("ffn_up", h)
            return x + product("ffn_down", act), None

        per_layer = {"linear": linear, "lora": trained["lora"]} | {name: trained[name] for name in NORMS}
        x, _ = jax.lax.scan(layer, trained["embd_in"][tokens[:-1]], per_layer)
        logits = rms(x, trained["output_norm"], m.eps) @ trained["embd_out"].T
        return -jnp.mean(jax.nn.log_softmax(logits, axis=-1)[jnp.arange(n), tokens[1:]])

    return loss
