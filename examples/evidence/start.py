"""Writes a small untrained Llama with its own tokenizer as a Hugging Face model directory."""

import array
import json
import math
import random
import struct
import sys

from bpe import SPECIAL, Tokenizer, learn  # noqa: F401


def tensors(shape, seed):
    """Yields names, shapes, and values, drawn from normal distributions with the widths of GPT-NeoX."""
    draw = random.Random(seed).gauss
    width, ff, vocab, layers = shape["width"], shape["feed_forward"], shape["vocabulary"], shape["layers"]
    inside, outwards = math.sqrt(2 / (5 * width)), 2 / (layers * math.sqrt(width))

    def normal(name, rows, columns, std):
        return name, [rows, columns], array.array("f", (draw(0, std) for _ in range(rows * columns)))

    def ones(name):
        return name, [width], array.array("f", [1.0] * width)

    yield normal("model.embed_tokens.weight", vocab, width, inside)
    for i in range(layers):
        at = f"model.layers.{i}."
        yield ones(at + "input_layernorm.weight")
        yield ones(at + "post_attention_layernorm.weight")
        for name in ("q", "k", "v"):
            yield normal(f"{at}self_attn.{name}_proj.weight", width, width, inside)
        yield normal(at + "self_attn.o_proj.weight", width, width, outwards)
        for name in ("gate", "up"):
            yield normal(f"{at}mlp.{name}_proj.weight", ff, width, inside)
        yield normal(at + "mlp.down_proj.weight", width, ff, outwards)
    yield ones("model.norm.weight")


def parameters(shape):
    width, ff = shape["width"], shape["feed_forward"]
    per_layer = 4 * width * width + 3 * width * ff + 2 * width
    return shape["vocabulary"] * width + shape["layers"] * per_layer + width


def write_safetensors(path, named):
    head, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, shape, values in named:
        if sys.byteorder == "big":
            values.byteswap()
        data = values.tobytes()
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.writelines(parts)


def config(shape):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape["vocabulary"],
        "hidden_size": shape["width"],
        "intermediate_size": shape["feed_forward"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["heads"],
        "head_dim": shape["width"] // shape["heads"],
        "max_position_embeddings": shape["window"],
        "rms_norm_eps": 1e-5,
        "rope_theta": shape["rope_theta"],
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }


def write(folder, shape, texts, seed):
    """Writes the directory. The tokenizer is trained on `texts`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(learn(texts, shape["vocabulary"]))
    (folder / "tokenizer.json").write_text(tokenizer.json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (folder / "config.json").write_text(json.dumps(config(shape)))
    write_safetensors(folder / "model.safetensors", tensors(shape, seed))


def tokenizer_of(folder):
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    return Tokenizer(pair.split(" ") for pair in merges)
