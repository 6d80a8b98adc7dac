"""The default model's GGUF file as a Hugging Face model with PEFT's LoRA: the same numbers, dequantized."""

import pathlib
import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/reference"))

from gguf_weights import Gguf
from seeded import lora

GGUF = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
# Where `prepare` writes the weights for `from_pretrained`.
FOLDER = ROOT / "target/peft/model"
RANK, ALPHA = 8, 16
# PEFT's name, the name in GGUF.
TARGETS = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
LINEAR = {f"self_attn.{k}": v for k, v in TARGETS.items()} | {
    f"mlp.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")
}
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def half_split(rows, n_head):
    """Rows of a head from GGUF's order, pairs side by side, to Hugging Face's, pairs half a head apart."""
    return np.ascontiguousarray(
        rows.reshape(n_head, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    )


def side_by_side(rows, n_head):
    """The other way round."""
    return np.ascontiguousarray(
        rows.reshape(n_head, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    )


def heads(config, name):
    """How many heads the rows of a matrix are, where its rows are rotated; else 0."""
    return {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name, 0)


def prepare():
    """Dequantizes the GGUF file into FOLDER, in float32."""
    file = Gguf(GGUF)
    get = lambda key: file.meta["llama." + key]
    config = LlamaConfig(
        vocab_size=get("vocab_size"),
        hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"),
        num_attention_heads=get("attention.head_count"),
        num_key_value_heads=get("attention.head_count_kv"),
        head_dim=get("rope.dimension_count"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=get("context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": float(get("rope.freq_base"))},
        tie_word_embeddings=True,
    )
    state = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}
    for n in range(config.num_hidden_layers):
        state |= {f"model.layers.{n}.{k}.weight": f"blk.{n}.{v}" for k, v in (LINEAR | NORMS).items()}
    for key, name in state.items():
        x = file.tensor(f"{name}.weight")
        n_head = heads(config, name.split(".")[-1])
        state[key] = torch.from_numpy((half_split(x, n_head) if n_head else x).astype(np.float32))
    model = LlamaForCausalLM(config)
    lost = model.load_state_dict(state, strict=False)
    assert lost.missing_keys == ["lm_head.weight"] and not lost.unexpected_keys, lost
    model.tie_weights()
    model.save_pretrained(FOLDER)


def load(dtype, checkpointing=False):
    """The model with a fresh adapter, ready to train."""
    if not FOLDER.exists():
        sys.exit("run `bench.py prepare` first")
    base = LlamaForCausalLM.from_pretrained(FOLDER, dtype=dtype, attn_implementation="sdpa")
    base.config.use_cache = False
    if checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.enable_input_require_grads()
    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=list(TARGETS), task_type="CAUSAL_LM"
    )
    return get_peft_model(base, config).train()


def adapter_parts(model):
    """(GGUF name of the matrix, layer, heads of its rotated rows, lora_A, lora_B) for each target."""
    config = model.config
    for n, layer in enumerate(model.base_model.model.model.layers):
        for key, name in TARGETS.items():
            linear = getattr(layer.self_attn, key)
            yield name, n, heads(config, name), linear.lora_A["default"], linear.lora_B["default"]


def fill(model, b_zero):
    """The adapter of tests/reference, see its README."""
    with torch.no_grad():
        for name, n, n_head, lora_a, lora_b in adapter_parts(model):
            a, b = lora(n, name, RANK, lora_a.in_features, lora_b.out_features)
            b = half_split(b, n_head) if n_head else b
            lora_a.weight.copy_(torch.from_numpy(a))
            lora_b.weight.copy_(torch.from_numpy(b * 0.0 if b_zero else b))
