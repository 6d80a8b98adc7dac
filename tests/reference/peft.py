"""Makes convert/tests/fixtures/peft with transformers and PEFT: tiny random models, adapters on them, and the logits
of model and adapter together. llama: ranks and alphas that differ. qwen2: rsLoRA, and norms and output saved whole.

    python peft.py make DIR      writes DIR/llama and DIR/qwen2
    python peft.py cases DIR     writes DIR/cases (one adapter for each way to write one, with PEFT's logits), the tied model that
                                 some of them are for, DIR/fields.json (the fields of LoraConfig) and DIR/targets.json (which
                                 modules a configuration is of)
    python peft.py rope DIR C    writes DIR/rope.json: the rope_scaling that the program C (`convert`) writes for adapters that were
                                 trained under rope methods, with the angles that transformers computes by it
    python peft.py check DIR F   loads the adapter in folder F (as `ropewalk convert --to-peft` writes it) on the model of
                                 DIR (DIR/llama or DIR/qwen2) and compares logits

Needs torch, transformers, peft, safetensors, gguf. The order of rows of queries and keys in the GGUF file is that of
LlamaModel.permute of llama.cpp's converter.
"""

import dataclasses
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
        "tied": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }[arch]
    m = cls(config(**SHAPE | {"tie_word_embeddings": arch == "tied"}, initializer_range=0.2)).float().eval()
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
    tied = arch == "tied"
    arch = "llama" if tied else arch
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
        if tied and stem == "lm_head":
            continue
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


# Name: (the model, what its LoraConfig has beyond rank, alpha and targets, what is changed in the written configuration).
EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "rslora-patterns": (
        "llama",
        dict(
            target_modules=["q_proj", "k_proj", "down_proj"], use_rslora=True,
            rank_pattern={r"layers\.1\..*\.q_proj": 6, "down_proj": 3},
            alpha_pattern={r"layers\.0\.self_attn\.(q|k)_proj": 1.5, "q_proj": 9, "k_proj": 5},
        ),
        {},
    ),
    # More than k and v are wide, and more than the model.
    "wide-rank": ("llama", dict(r=40, lora_alpha=20, target_modules=["k_proj", "o_proj"]), {}),
    "layers": ("llama", dict(target_modules=EVERY, r=2), {"layers_to_transform": [1], "layers_pattern": "layers"}),
    "excluded": (
        "llama", dict(target_modules=EVERY, r=2),
        {"target_modules": r"model\.layers\.\d+\.(self_attn|mlp)\.(q|k|up)_proj", "exclude_modules": ["layers.0.self_attn.k_proj"]},
    ),
    "fan-in-fan-out": ("llama", dict(target_modules=["v_proj"], fan_in_fan_out=True), {}),
    "bias-all": ("llama", dict(target_modules=["v_proj"], bias="all"), {}),
    "unknown-key": ("llama", dict(target_modules=["v_proj"]), {"lora_dtype": None, "lorap_lr_ratio": 16.0}),
    "eva": ("llama", dict(target_modules=["v_proj"]), {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}}),
    "mica": ("llama", dict(target_modules=["v_proj"], r=2), {"init_lora_weights": "mica"}),
    "orthogonal": ("llama", dict(target_modules=["v_proj"], r=2), {"init_lora_weights": "orthogonal"}),
    "velora": ("llama", dict(target_modules=["v_proj"], velora_config=peft.tuners.lora.config.VeloraConfig()), {}),
    "untied-both": ("llama", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]), {}),
    "tied-embed": ("tied", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"]), {}),
    "tied-head": ("tied", dict(target_modules=["q_proj"], modules_to_save=["lm_head"]), {}),
    "tied-both": ("tied", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]), {}),
    "tied-ensured": ("tied", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True), {}),
    "tied-head-pair": ("tied", dict(target_modules=["q_proj", "lm_head"], modules_to_save=["embed_tokens"]), {}),
    # Pairs beside the embedding, and single rows of it. The tokens that are asked about are among the rows.
    "embedding-pair": ("llama", dict(target_modules=["v_proj", "embed_tokens"], use_rslora=True, alpha_pattern={"embed_tokens": 9}), {}),
    "rows": ("llama", dict(target_modules=["v_proj"], trainable_token_indices=[42, 5]), {}),
    "rows-of-both": ("llama", dict(target_modules=["v_proj"], trainable_token_indices={"embed_tokens": [5, 42], "lm_head": [2]}), {}),
    "tied-embedding-pair": ("tied", dict(target_modules=["v_proj", "embed_tokens"]), {}),
    "tied-embedding-ensured": ("tied", dict(target_modules=["v_proj", "embed_tokens"], ensure_weight_tying=True), {}),
    "tied-pairs-of-both": ("tied", dict(target_modules=["v_proj", "embed_tokens", "lm_head"]), {}),
    "tied-rows": ("tied", dict(target_modules=["v_proj"], trainable_token_indices=[42, 5]), {}),
    "tied-rows-of-both": ("tied", dict(target_modules=["v_proj"], trainable_token_indices={"embed_tokens": [42, 5], "lm_head": [2]}), {}),
    "tied-rows-of-output": ("tied", dict(target_modules=["v_proj"], trainable_token_indices={"lm_head": [42, 5]}), {}),
    # Those that are refused.
    "no-lora-bias": ("llama", dict(target_modules=["v_proj"], lora_bias=True), {}),
    "no-dora": ("llama", dict(target_modules=["v_proj"], use_dora=True), {}),
    "no-kasa": ("llama", dict(target_modules=["v_proj"], kasa_config=peft.tuners.lora.config.KasaConfig()), {}),
    # PEFT leaves out the pair of the output here.
    "no-rows-beside-pair": ("tied", dict(target_modules=["v_proj", "lm_head"], trainable_token_indices=[1, 5]), {}),
}
# Fewer than above: each case has its own logits.
FEW = TOKENS[:6]


def few(m):
    with torch.no_grad():
        return m(torch.tensor([FEW])).logits[0].double().numpy()


def cases(folder):
    os.makedirs(os.path.join(folder, "tied"), exist_ok=True)
    write_gguf(os.path.join(folder, "tied", "base.gguf"), "tied", model("tied"))
    for name, (base, made, written) in CASES.items():
        to = os.path.join(folder, "cases", name)
        os.makedirs(to, exist_ok=True)
        plain = few(model(base))
        torch.manual_seed(len(name))
        how = dict(r=4, lora_alpha=6, task_type="CAUSAL_LM") | made
        adapted = peft.get_peft_model(model(base), peft.LoraConfig(**how)).eval()
        with torch.no_grad():
            for at, p in adapted.named_parameters():
                if "modules_to_save" in at:
                    p.add_(0.1 * torch.randn_like(p))
                elif "lora_" in at or "trainable_tokens_delta" in at:
                    p.add_(0.25 * torch.randn_like(p))
        adapted.save_pretrained(to)
        os.remove(os.path.join(to, "README.md"))
        path = os.path.join(to, "adapter_config.json")
        with open(path) as f:
            config = json.load(f) | written
        # PEFT writes sets in any order.
        config["target_modules"] = config["target_modules"] if isinstance(config["target_modules"], str) else sorted(config["target_modules"])
        with open(path, "w") as f:
            json.dump(config, f)
        if name.startswith("no-"):
            continue
        loaded = few(peft.PeftModel.from_pretrained(model(base), to).eval())
        assert np.abs(loaded - plain).max() > 0.1, name
        record = {"base": base, "tokens": FEW, "adapted": loaded.round(6).tolist()}
        with open(os.path.join(to, "logits.json"), "w") as f:
            json.dump(record, f)

    of = {f.name: f.default if isinstance(f.default, (bool, int, float, str)) else None for f in dataclasses.fields(peft.LoraConfig)}
    with open(os.path.join(folder, "fields.json"), "w") as f:
        json.dump({"peft": peft.__version__, "fields": of}, f, indent=1)

    modules = [
        "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.10.self_attn.k_proj",
        "model.layers.1.mlp.down_proj", "model.language_model.layers.1.self_attn.q_proj", "model.layers.1.mlp.experts.0.up_proj",
        "model.layers.0.self_attn.xq_proj", "q_proj", "layers.1.q_proj", "lm_head", "model.embed_tokens",
    ]
    configs = [
        {"target_modules": ["q_proj"]},
        {"target_modules": ["self_attn.q_proj", "lm_head"]},
        {"target_modules": ["model.layers.0.self_attn.q_proj"]},
        {"target_modules": []},
        {"target_modules": r".*\.(q|k)_proj"},
        {"target_modules": "q_proj"},
        {"target_modules": r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|down_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:mlp)\.(?:(?:down_proj)))"},
        {"target_modules": ["q_proj", "down_proj", "up_proj"], "layers_to_transform": 1},
        {"target_modules": ["q_proj", "down_proj", "up_proj"], "layers_to_transform": [0, 1]},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": []},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [10], "layers_pattern": "layers"},
        {"target_modules": ["q_proj", "k_proj", "up_proj"], "layers_to_transform": [1], "layers_pattern": ["blocks", "layers"]},
        {"target_modules": ["up_proj", "q_proj"], "layers_to_transform": [0], "layers_pattern": "experts"},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [1], "layers_pattern": "blocks"},
        {"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["layers.0.self_attn.q_proj", "q_proj"]},
        {"target_modules": ["q_proj", "k_proj"], "exclude_modules": r"model\.layers\.\d\..*"},
        {"target_modules": ["q_proj", "lm_head", "down_proj"], "modules_to_save": ["lm_head", "mlp"]},
    ]
    from peft.tuners.tuners_utils import _ExcludedModule, check_target_module_exists

    def has(config, module):
        found = check_target_module_exists(peft.LoraConfig(**config), module)
        return bool(found) and not isinstance(found, _ExcludedModule)

    done = [{"config": c, "targeted": [m for m in modules if has(c, m)]} for c in configs]
    with open(os.path.join(folder, "targets.json"), "w") as f:
        json.dump({"peft": peft.__version__, "modules": modules, "cases": done}, f, indent=1)


# What adapters of DIR/llama were trained under, and the context.
ROPES = [
    ("plain", 128), ("pi:factor=4", 512), ("pi:factor=2.5", 320), ("abf:base=500000", 512), ("ntk:factor=4", 512), ("yarn:factor=4", 512),
    ("yarn:factor=8,beta-fast=4,beta-slow=2", 1024), ("yarn:factor=4,attn-factor=1.5", 512),
    ("yarn:factor=4,ext-factor=0.5", 512), ("dynamic-ntk", 512), ("self-extend:group=4,window=64", 512),
]


def rope(folder, program):
    import subprocess
    import tempfile

    done = []
    for spec, n_ctx in ROPES:
        with tempfile.TemporaryDirectory() as temp:
            out = gguf.GGUFWriter(f"{temp}/a.gguf", "llama")
            out.add_string("general.type", "adapter")
            out.add_string("adapter.type", "lora")
            out.add_float32("adapter.lora.alpha", 4.0)
            out.add_string("ropewalk.lora.rope", spec)
            out.add_uint32("ropewalk.lora.n_ctx", n_ctx)
            out.add_tensor("blk.0.attn_v.weight.lora_a", np.ones((4, 32), np.float32))
            out.add_tensor("blk.0.attn_v.weight.lora_b", np.zeros((16, 4), np.float32))
            out.write_header_to_file()
            out.write_kv_data_to_file()
            out.write_tensors_to_file()
            out.close()
            base = os.path.join(folder, "llama", "base.gguf")
            said = subprocess.run([program, "--to-peft", f"{temp}/peft", "-m", base, f"{temp}/a.gguf"], check=True, capture_output=True)
            path = f"{temp}/peft/rope_scaling.json"
            scaling = json.load(open(path)) if os.path.exists(path) else None
            print(spec, said.stderr.decode())
        case = {"spec": spec, "n_ctx": n_ctx, "scaling": scaling}
        if scaling is not None:
            shape = SHAPE | {"max_position_embeddings": 128}
            config = transformers.LlamaConfig(**shape, rope_scaling=dict(scaling))
            embedding = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
            # Those of longrope depend on the length; both lists are the same.
            embedding(torch.zeros(1, n_ctx, 32), torch.arange(n_ctx)[None])
            case |= {"inv_freq": embedding.inv_freq.double().tolist(), "attention_scaling": float(embedding.attention_scaling)}
        done.append(case)
    with open(os.path.join(folder, "rope.json"), "w") as f:
        json.dump({"transformers": transformers.__version__, "cases": done}, f, indent=1)


def check(folder, adapter):
    m = model(os.path.basename(os.path.normpath(folder)))
    adapted = peft.PeftModel.from_pretrained(m, adapter).eval()
    with open(os.path.join(folder, "logits.json")) as f:
        expected = np.array(json.load(f)["adapted"])
    worst = np.abs(logits(adapted) - expected).max()
    print(f"{adapter}: largest difference {worst:.2e} of logits up to {np.abs(expected).max():.2f}")
    assert worst < 2e-5


{"make": make, "cases": cases, "rope": rope, "check": check}[sys.argv[1]](*sys.argv[2:])
