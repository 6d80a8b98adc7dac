"""Makes convert/tests/fixtures/peft with transformers and PEFT: tiny random models, adapters on them, and the logits
of model and adapter together. llama: ranks and alphas that differ. qwen2: rsLoRA, and norms and output saved whole.

    python peft.py make DIR      writes DIR/llama and DIR/qwen2
    python peft.py check DIR F   loads the adapter in folder F (as `convert --to-peft` writes it) on the model of
                                 DIR (DIR/llama or DIR/qwen2) and compares logits

Needs torch, transformers, peft, safetensors, gguf. The order of rows of queries and keys in the GGUF file is that of
LlamaModel.permute of llama.cpp's converter.
"""

import json
import os
import sys

sys.path.pop(0)  # this file's own name is that of the package

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

TOKENS = [(i * 37 + 5) % 64 for i in range(24)]
SHAPE = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
)


def model(arch):
    torch.manual_seed(7)
    config, cls = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }[arch]
    m = cls(config(**SHAPE, initializer_range=0.2)).float().eval()
    with torch.no_grad():
        for name, p in m.named_parameters():
            if "norm" in name:
                p.add_(0.2 * torch.randn_like(p))
            elif name.endswith("bias"):
                p.copy_(0.3 * torch.randn_like(p))
    return m


def config(arch):
    linears = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    if arch == "llama":
        return peft.LoraConfig(
            r=4, lora_alpha=6, target_modules=linears + ["lm_head"], init_lora_weights=False, task_type="CAUSAL_LM",
            rank_pattern={"layers.1.self_attn.q_proj": 2, "down_proj": 3}, alpha_pattern={"k_proj": 9, "down_proj": 2.5},
        )
    return peft.LoraConfig(
        r=4, lora_alpha=3, use_rslora=True, target_modules=linears, init_lora_weights=False, task_type="CAUSAL_LM",
        modules_to_save=["lm_head", "model.norm", "layers.1.input_layernorm"],
    )


def permute(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write_gguf(path, arch, m):
    out = gguf.GGUFWriter(path, arch)
    out.add_context_length(128)
    out.add_embedding_length(32)
    out.add_block_count(2)
    out.add_feed_forward_length(48)
    out.add_head_count(4)
    out.add_head_count_kv(2)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(8)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(64)
    out.add_tokenizer_model("none")
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }
    for name, p in m.state_dict().items():
        w = p.numpy().astype(np.float32)
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            layer, role = stem[len("model.layers."):].split(".", 1)
            if arch == "llama" and role.endswith(("q_proj", "k_proj")):
                w = permute(w, 4 if role.endswith("q_proj") else 2)
            to = f"blk.{layer}.{names[role]}"
        else:
            to = {"lm_head": "output", "model.embed_tokens": "token_embd", "model.norm": "output_norm"}[stem]
        out.add_tensor(f"{to}.{kind}", np.ascontiguousarray(w))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def logits(m):
    with torch.no_grad():
        return m(torch.tensor([TOKENS])).logits[0].double().numpy()


def make(folder):
    for arch in ["llama", "qwen2"]:
        to = os.path.join(folder, arch)
        os.makedirs(to, exist_ok=True)
        m = model(arch)
        write_gguf(os.path.join(to, "base.gguf"), arch, m)
        plain = logits(m)
        torch.manual_seed(11)
        adapted = peft.get_peft_model(m, config(arch)).eval()
        with torch.no_grad():
            for name, p in adapted.named_parameters():
                if "modules_to_save" in name:
                    p.add_(0.1 * torch.randn_like(p))
                elif "lora_" in name:
                    p.copy_(0.25 * torch.randn_like(p))
        adapted.save_pretrained(to)
        os.remove(os.path.join(to, "README.md"))
        record = {"tokens": TOKENS, "plain": plain.round(6).tolist(), "adapted": logits(adapted).round(6).tolist()}
        versions = {p.__name__: p.__version__ for p in (torch, transformers, peft)}
        with open(os.path.join(to, "logits.json"), "w") as f:
            json.dump({"made with": versions, **record}, f)


def check(folder, adapter):
    m = model(os.path.basename(os.path.normpath(folder)))
    adapted = peft.PeftModel.from_pretrained(m, adapter).eval()
    with open(os.path.join(folder, "logits.json")) as f:
        expected = np.array(json.load(f)["adapted"])
    worst = np.abs(logits(adapted) - expected).max()
    print(f"{adapter}: largest difference {worst:.2e} of logits up to {np.abs(expected).max():.2f}")
    assert worst < 2e-5


make(sys.argv[2]) if sys.argv[1] == "make" else check(sys.argv[2], sys.argv[3])
