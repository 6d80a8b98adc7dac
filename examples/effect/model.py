#!/usr/bin/env python3
"""A small Llama that is not trained yet, with a tokenizer of its own, as a folder of Hugging Face: what run.sh begins with.

    model.py OUT TEXT...      needs: pip install tokenizers numpy safetensors
"""
import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from recall import Recall

N_VOCAB, N_LAYER, N_EMBD, N_HEAD, N_FF, N_CTX = 1024, 3, 128, 4, 384, 512
THETA = 10000.0

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)


def texts():
    recall = Recall(sys.argv[2:], 7)
    for at in range(0, len(recall.prose), 20000):
        yield recall.prose[at : at + 20000]
    for _ in range(6000):
        yield recall.passkey(150)
        yield recall.needles(150)


# Each digit is a token, as in SmolLM: numbers are then copied digit by digit.
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(
    texts(),
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
            "rope_theta": THETA,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "torch_dtype": "float32",
        }
    )
)

random = np.random.default_rng(1)


def normal(rows, columns, std):
    return random.normal(0, std, (rows, columns)).astype(np.float32)


def orthogonal():
    return np.linalg.qr(random.normal(0, 1, (N_EMBD, N_EMBD)))[0].astype(np.float32)


# A model copies by two heads in a row: one fetches the token before, the next one looks for it and takes what came behind.
# From GPT-2's start the loss of run.sh's first 400 steps shows nothing of the kind (3.15 at their end, with what follows 2.50),
# nor within two million tokens at a rate of 4e-3. So two things are put in, and everything is trained from there: three heads
# of the first layer look one, two and three tokens back, and later layers add to the logit of the tokens they attend to (the
# values and outputs of Trockman and Kolter 2023, Mimetic initialization). Which tokens to look for, and where, is learned.
head, pairs = N_EMBD // N_HEAD, N_EMBD // N_HEAD // 2
frequency = THETA ** (-np.arange(pairs) / pairs)
fast = 5.0 * (frequency > 0.1)
embedding_std, constant = 0.08, 0.04
seen = 0.45  # what the norm makes of the constant part of an embedding
tensors = {
    "model.embed_tokens.weight": normal(N_VOCAB, N_EMBD, embedding_std) + constant,
    "model.norm.weight": np.ones(N_EMBD),
}
for i in range(N_LAYER):
    at = f"model.layers.{i}."
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{at}{name}.weight"] = np.ones(N_EMBD)
    query, key, value = normal(N_EMBD, N_EMBD, 0.5 * N_EMBD**-0.5), normal(N_EMBD, N_EMBD, 0.5 * N_EMBD**-0.5), orthogonal()
    if i == 0:
        for h in range(3):
            rows = slice(h * head, (h + 1) * head)
            turned = frequency * (h + 1)
            looks = np.concatenate([fast, 0 * fast]).astype(np.float32)
            found = np.concatenate([fast * np.cos(turned), fast * np.sin(turned)]).astype(np.float32)
            query[rows] = 0.25 * query[rows] + np.outer(looks, np.ones(N_EMBD, np.float32)) / N_EMBD / seen
            key[rows] = 0.25 * key[rows] + np.outer(found, np.ones(N_EMBD, np.float32)) / N_EMBD / seen
    tensors[f"{at}self_attn.q_proj.weight"] = query
    tensors[f"{at}self_attn.k_proj.weight"] = key
    tensors[f"{at}self_attn.v_proj.weight"] = value
    tensors[f"{at}self_attn.o_proj.weight"] = 0.1 * orthogonal() if i == 0 else 0.08 * value.T
    for name in ("gate", "up"):
        tensors[f"{at}mlp.{name}_proj.weight"] = normal(N_FF, N_EMBD, 0.05)
    tensors[f"{at}mlp.down_proj.weight"] = normal(N_EMBD, N_FF, 0.01)
tensors = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
