#!/usr/bin/env python3
"""A Llama of random weights with a tokenizer of its own, as a folder of Hugging Face: what run.sh trains from scratch.

    model.py OUT TEXT...      needs: pip install tokenizers numpy safetensors
"""
import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

N_VOCAB, N_LAYER, N_EMBD, N_HEAD, N_FF, N_CTX = 2048, 4, 192, 3, 512, 512

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)

# Each digit is a token, as in SmolLM: numbers are then copied digit by digit.
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train(
    sorted(sys.argv[2:]),
    trainers.BpeTrainer(
        vocab_size=N_VOCAB,
        special_tokens=["<|endoftext|>"] + [f"<|reserved_{i}|>" for i in range(15)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
tokenizer.save(str(out / "tokenizer.json"))
(out / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
(out / "config.json").write_text(
    json.dumps(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": N_VOCAB,
            "hidden_size": N_EMBD,
            "intermediate_size": N_FF,
            "num_hidden_layers": N_LAYER,
            "num_attention_heads": N_HEAD,
            "num_key_value_heads": N_HEAD,
            "head_dim": N_EMBD // N_HEAD,
            "max_position_embeddings": N_CTX,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "torch_dtype": "float32",
        }
    )
)

random = np.random.default_rng(1)


def normal(rows, columns, std=0.02):
    return random.normal(0, std, (rows, columns)).astype(np.float32)


# GPT-2's start: 0.02, and less on what is added to the residual stream.
residual = 0.02 / (2 * N_LAYER) ** 0.5
tensors = {"model.embed_tokens.weight": normal(N_VOCAB, N_EMBD), "model.norm.weight": np.ones(N_EMBD, np.float32)}
for i in range(N_LAYER):
    at = f"model.layers.{i}."
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{at}{name}.weight"] = np.ones(N_EMBD, np.float32)
    for name in ("q", "k", "v"):
        tensors[f"{at}self_attn.{name}_proj.weight"] = normal(N_EMBD, N_EMBD)
    tensors[f"{at}self_attn.o_proj.weight"] = normal(N_EMBD, N_EMBD, residual)
    for name in ("gate", "up"):
        tensors[f"{at}mlp.{name}_proj.weight"] = normal(N_FF, N_EMBD)
    tensors[f"{at}mlp.down_proj.weight"] = normal(N_EMBD, N_FF, residual)
save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
