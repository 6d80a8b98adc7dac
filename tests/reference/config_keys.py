"""The keys that transformers' configuration classes know, with their defaults, of every class that `convert` imports.

A key is known to a class if it is a field of the dataclass, if the class takes it out of the arguments that are no fields
(`kwargs.pop("NAME"`), if the class maps it to another name, or if the model's code asks whether the config has it
(`getattr(config, "NAME"`). Writes src/import/tests/config_keys.json. README.md beside this file has the command.
"""

import dataclasses
import importlib
import inspect
import json
import re
from pathlib import Path

import transformers
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters, RotaryEmbeddingConfigMixin

OUT = Path(__file__).resolve().parents[2] / "src/import/tests/config_keys.json"
# The class of each model that is imported: (its module, the class of the configuration).
CLASSES = {
    "Cohere2ForCausalLM": ("cohere2", "Cohere2Config"),
    "GPTNeoXForCausalLM": ("gpt_neox", "GPTNeoXConfig"),
    "Gemma2ForCausalLM": ("gemma2", "Gemma2Config"),
    "Gemma3ForCausalLM": ("gemma3", "Gemma3TextConfig"),
    "Gemma3ForConditionalGeneration": ("gemma3", "Gemma3Config"),
    "GptOssForCausalLM": ("gpt_oss", "GptOssConfig"),
    "GraniteForCausalLM": ("granite", "GraniteConfig"),
    "LLaMAForCausalLM": ("llama", "LlamaConfig"),
    "LlamaForCausalLM": ("llama", "LlamaConfig"),
    "MistralForCausalLM": ("mistral", "MistralConfig"),
    "Ministral3ForCausalLM": ("ministral3", "Ministral3Config"),
    "Mistral3ForConditionalGeneration": ("mistral3", "Mistral3Config"),
    "Olmo2ForCausalLM": ("olmo2", "Olmo2Config"),
    "Olmo3ForCausalLM": ("olmo3", "Olmo3Config"),
    "PhiForCausalLM": ("phi", "PhiConfig"),
    "Phi3ForCausalLM": ("phi3", "Phi3Config"),
    "Qwen2ForCausalLM": ("qwen2", "Qwen2Config"),
    "Qwen3ForCausalLM": ("qwen3", "Qwen3Config"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeConfig"),
    "Qwen3_5ForCausalLM": ("qwen3_5", "Qwen3_5TextConfig"),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5", "Qwen3_5Config"),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe", "Qwen3_5MoeTextConfig"),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe", "Qwen3_5MoeConfig"),
    "SmolLM3ForCausalLM": ("smollm3", "SmolLM3Config"),
}
TAKEN = re.compile(r"""kwargs\.(?:pop|get|setdefault)\(\s*["'](\w+)["'](?:,\s*([-\w.]+))?""")
ASKED = re.compile(r"""getattr\(\s*(?:self\.)?config,\s*["'](\w+)["']""")
# What the libraries around a config set on it.
PRIVATE = re.compile("^_(attn|experts)_implementation")


def fields(cls):
    out = {}
    for f in dataclasses.fields(cls):
        value = f.default
        if value is dataclasses.MISSING:
            value = f.default_factory() if f.default_factory is not dataclasses.MISSING else None
        out[f.name] = value
    return out


def asked(text, known):
    out = {}
    for name, default in TAKEN.findall(text):
        try:
            out.setdefault(name, json.loads(default.lower()) if default else None)
        except json.JSONDecodeError:
            out.setdefault(name, None)
    return {k: v for k, v in out.items() if k not in known}


def of(module, name):
    base = f"transformers.models.{module}"
    cls = getattr(importlib.import_module(f"{base}.configuration_{module}"), name, None)
    if cls is None:
        return None
    common = fields(PreTrainedConfig)
    keys = {k: v for k, v in fields(cls).items() if k not in common or v != common[k]}
    code = Path(importlib.util.find_spec(f"{base}.modeling_{module}").origin).read_text()
    # What the model sees where config.json has nothing: from the fields, and after all that follows from them.
    keys |= asked(inspect.getsource(cls), keys)
    keys |= {k: None for k in ASKED.findall(code) if k not in keys and k not in common and not PRIVATE.match(k)}
    keys |= {k: None for k in [*cls.attribute_map, *cls.attribute_map.values()] if k not in keys}
    theta = getattr(cls, "default_theta", None)
    return {"model_type": cls.model_type, "rope_theta": theta if isinstance(theta, float) else None,
            "keys": dict(sorted(keys.items()))}


def main():
    common = fields(PreTrainedConfig)
    common |= asked(inspect.getsource(PreTrainedConfig.__post_init__), common)
    common |= asked(inspect.getsource(RotaryEmbeddingConfigMixin), common)
    common["model_type"] = None
    out = {"transformers": transformers.__version__, "common": dict(sorted(common.items())),
           "rope": sorted(RopeParameters.__annotations__), "classes": {}}
    for model, (module, name) in CLASSES.items():
        out["classes"][model] = {"config": name} | (of(module, name) or {"missing": True})
    OUT.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
