"""Tiny random checkpoints of every architecture that `convert` imports, as transformers saves them, and what
llama.cpp's own converter makes of each: metadata, and a checksum of every tensor in F32, F16 and BF16.

Writes src/import/tests/checkpoints. README.md beside this file has the commands.
"""

import argparse
import hashlib
import io
import json
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

OUT = Path(__file__).resolve().parents[2] / "src/import/tests/checkpoints"
TEXT = """The quick brown fox jumps over the lazy dog. A longer context needs other angles: positions beyond
those of training are pairs of dimensions rotated further than the model has seen. 1 12 123 1234 3.14 don't
we'll they've it's Übergröße façade 日本語 text, tabs\tand  two spaces, (brackets) [more] {and these} <tags>.
""" * 4
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def dump(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


# Tokenizers ---------------------------------------------------------------------------------------------------


def bpe(folder, template=False, byte_fallback=False):
    """Byte-level BPE as of GPT-2; `template`: with ignored merges and a BOS before every text, as of Llama 3;
    `byte_fallback`: words marked with U+2581 and bytes <0x..>, as of Llama 2 without its tokenizer.model."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    if byte_fallback:
        special = ["<unk>", "<s>", "</s>"]
        tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        alphabet, special_all = [], special + [f"<0x{i:02X}>" for i in range(256)]
    else:
        tok = Tokenizer(models.BPE(ignore_merges=template))
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = decoders.ByteLevel()
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
        alphabet, special_all = pre_tokenizers.ByteLevel.alphabet(), special
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=special_all, initial_alphabet=alphabet,
                                  show_progress=False)
    tok.train_from_iterator(TEXT.splitlines(), trainer)
    if template:
        tok.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", pair="<|endoftext|> $A <|endoftext|> $B",
            special_tokens=[("<|endoftext|>", tok.token_to_id("<|endoftext|>"))])
    tok.add_tokens([AddedToken("<tool call>", normalized=False, special=False),
                    AddedToken("▁wide▁", normalized=True, special=False)])
    folder.mkdir(parents=True)
    data = json.loads(tok.to_str())
    if byte_fallback:
        for t in data["added_tokens"]:
            t["special"] = t["content"] in special
        data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    dump(folder / "tokenizer.json", data)
    if byte_fallback:
        config = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_bos_token=True, add_eos_token=False)
    else:
        config = dict(bos_token="<|endoftext|>", eos_token={"content": "<|im_end|>", "__type": "AddedToken"},
                      pad_token="<|endoftext|>", add_bos_token=template)
        if not template:
            config["chat_template"] = CHAT
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    dump(folder / "tokenizer_config.json", config)
    if template:
        (folder / "chat_template.jinja").write_text(CHAT)


def sentencepiece(folder, gemma=False):
    """A tokenizer.model of SentencePiece, with tokens added beside it."""
    import sentencepiece as spm

    folder.mkdir(parents=True)
    ids = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3) if gemma else dict(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    # Not from files: their paths would be in the model.
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()), model_writer=model, vocab_size=340, model_type="bpe",
        byte_fallback=True, character_coverage=1.0, normalization_rule_name="identity",
        user_defined_symbols=["\n\n", "<mask>"], control_symbols=["<start_of_turn>"], minloglevel=2, num_threads=1,
        **ids)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    names = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    if not gemma:
        del names["pad_token"]
    first = {i: {"content": c, "special": True} for i, c in
             (enumerate(["<pad>", "</s>", "<s>", "<unk>"]) if gemma else enumerate(["<unk>", "<s>", "</s>"]))}
    added = first | {340: {"content": "<|turn|>", "special": False}, 341: {"content": "two▁words", "special": False},
                     342: {"content": "<end>", "special": True}}
    dump(folder / "added_tokens.json", {"<|turn|>": 340, "two▁words": 341, "far away": 9999})
    dump(folder / "tokenizer_config.json", names | dict(
        added_tokens_decoder={str(k): v for k, v in added.items()}, add_bos_token=True, add_eos_token=False,
        tokenizer_class="GemmaTokenizer" if gemma else "LlamaTokenizer", chat_template=CHAT))


# Checkpoints --------------------------------------------------------------------------------------------------

SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, vocab_size=344,
             bos_token_id=0, eos_token_id=2, pad_token_id=0)
DTYPES = dict(f32=torch.float32, f16=torch.float16, bf16=torch.bfloat16)


def old_rope(config):
    """As files before transformers 5 have it: rope_theta beside rope_scaling, whose type is `type`."""
    rope = config.pop("rope_parameters", None) or {}
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            config[key] = rope.pop(key)
    if rope.get("rope_type", "default") != "default":
        rope["type"] = rope.pop("rope_type")
        config["rope_scaling"] = rope
    else:
        config["rope_scaling"] = None


def neox(config):
    """As Pythia's files have it."""
    rope = config.pop("rope_parameters")
    config["rotary_pct"] = rope["partial_rotary_factor"]
    config["rotary_emb_base"] = int(rope["rope_theta"])


def nested_rope(config):
    """As OLMo 3's files have it: one base, and the scaling of the layers that have one."""
    rope = config.pop("rope_parameters")["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope


def mxfp4_config(config):
    """As OpenAI's files have it, beside weights that `packed` has packed."""
    config["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=[
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])


def packed(model):
    """Gives the experts of a model random weights in MXFP4, and returns these as such files have them. What they are
    as numbers is said by transformers."""
    from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

    out = {}
    for il, layer in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            weights = getattr(layer.mlp.experts, name)
            experts, inputs, rows = weights.shape
            blocks = torch.randint(0, 256, (experts, rows, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(119, 126, (experts, rows, inputs // 32), dtype=torch.uint8)
            weights.copy_(_convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16))
            prefix = f"model.layers.{il}.mlp.experts.{name}"
            out |= {f"{prefix}_blocks": blocks, f"{prefix}_scales": scales}
    return out


def without(*keys):
    def edit(config):
        for key in keys:
            config.pop(key, None)
    return edit


LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=64)
HALF = dict(rope_theta=10000.0, rope_type="default", partial_rotary_factor=0.5)
LONG = dict(rope_type="longrope", rope_theta=10000.0, long_factor=[1.0, 1.5, 2.5, 4.0],
            short_factor=[1.0, 1.0, 1.25, 1.5])
MINISTRAL = dict(type="yarn", rope_type="yarn", rope_theta=1000000.0, factor=16.0, beta_fast=32.0, beta_slow=1.0,
                 original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)

GPT_OSS = dict(hidden_size=64, intermediate_size=32, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=64,
               rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                    truncate=True, original_max_position_embeddings=64))

# name: (class, config, tokenizer, type of the checkpoint, edits of config.json, parts)
CASES = {
    "llama": ("Llama", dict(rope_parameters=LLAMA3), "bpe-template", "bf16", [], 3),
    "llama-linear": ("Llama", dict(vocab_size=332, rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=10000.0),
                                   num_hidden_layers=1, attention_bias=True, tie_word_embeddings=True), "byte-fallback", "f32", [old_rope], 1),
    "mistral": ("Mistral", dict(num_hidden_layers=1, head_dim=16, sliding_window=None), "sentencepiece", "bf16", [old_rope], 1),
    "qwen2": ("Qwen2", dict(rope_parameters=YARN, tie_word_embeddings=True), "bpe", "f16", [old_rope], 1),
    "qwen3": ("Qwen3", dict(head_dim=16), "bpe", "bf16", [without("dtype")], 1),
    "smollm3": ("SmolLM3", dict(), "bpe-template", "bf16", [], 1),
    "gptneox": ("GPTNeoX", dict(num_key_value_heads=4), "bpe", "f16", [neox], 1),
    "phi2": ("Phi", dict(rope_parameters=HALF, intermediate_size=128, num_key_value_heads=4), "bpe", "f16", [old_rope], 1),
    "phi3": ("Phi3", dict(rope_parameters=LONG, original_max_position_embeddings=64, sliding_window=128),
             "sentencepiece", "bf16", [old_rope], 1),
    "phi4": ("Phi3", dict(rope_parameters=LONG | dict(partial_rotary_factor=0.75, long_factor=[1.0, 1.5, 2.5],
                                                      short_factor=[1.0, 1.0, 1.25]),
                          original_max_position_embeddings=64), "bpe-gpt2", "bf16", [], 1),
    "gemma2": ("Gemma2", dict(head_dim=16, sliding_window=128, query_pre_attn_scalar=16), "sentencepiece-gemma", "f16", [old_rope], 1),
    "gemma3": ("Gemma3", dict(head_dim=16, sliding_window=64, query_pre_attn_scalar=16), "sentencepiece-gemma", "bf16", [], 1),
    "olmo2": ("Olmo2", dict(), "bpe", "bf16", [], 1),
    "cohere2": ("Cohere2", dict(sliding_window=64), "bpe", "bf16", [lambda c: c.update(rotary_pct=1.0)], 1),
    "granite": ("Granite", dict(num_hidden_layers=1, embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22,
                                attention_multiplier=0.125, tie_word_embeddings=True), "bpe", "bf16", [old_rope], 1),
    "qwen3moe": ("Qwen3Moe", dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
                              norm_topk_prob=True),
                 "bpe", "bf16", [], 2),
    "ministral3": ("Ministral3", dict(num_hidden_layers=1, head_dim=16, rope_parameters=MINISTRAL), "bpe-template", "bf16", [], 1),
    # Twice as many heads of values as of keys; a layer with attention between others.
    "qwen35": ("Qwen3_5", dict(num_hidden_layers=3, head_dim=16, layer_types=["linear_attention", "full_attention", "linear_attention"],
                               rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.5,
                                                    mrope_section=[2, 1, 1], mrope_interleaved=True),
                               linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
                               linear_num_value_heads=4, linear_conv_kernel_dim=4), "bpe", "bf16", [], 1),
    # A window in all layers but the last, which alone has YaRN.
    "olmo3": ("Olmo3", dict(num_hidden_layers=4, sliding_window=64, rope_parameters=dict(
        full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                            original_max_position_embeddings=64),
        sliding_attention=dict(rope_type="default", rope_theta=500000.0))), "bpe", "bf16", [nested_rope], 1),
    "gpt-oss": ("GptOss", GPT_OSS, "bpe", "bf16", [old_rope, mxfp4_config], 1),
    "gpt-oss-bf16": ("GptOss", GPT_OSS, "bpe", "bf16", [], 1),
    "qwen35moe": ("Qwen3_5Moe", dict(num_hidden_layers=2, head_dim=16, layer_types=["linear_attention", "full_attention"],
                                     rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.5,
                                                          mrope_section=[2, 1, 1], mrope_interleaved=True),
                                     linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
                                     linear_num_value_heads=4, linear_conv_kernel_dim=4, num_experts=4, num_experts_per_tok=2,
                                     moe_intermediate_size=24, shared_expert_intermediate_size=40), "bpe", "bf16", [], 1),
    # Other layers with a window than llama.cpp takes by itself.
    "gemma3-windows": ("Gemma3", dict(num_hidden_layers=4, head_dim=16, sliding_window=48, query_pre_attn_scalar=16,
                                      layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"]),
                       "sentencepiece-gemma", "bf16", [], 1),
    "gemma3-every-second": ("Gemma3", dict(num_hidden_layers=4, head_dim=16, sliding_window=48, query_pre_attn_scalar=16,
                                           sliding_window_pattern=2),
                            "sentencepiece-gemma", "bf16", [without("layer_types"), without("_sliding_window_pattern"),
                                                            lambda c: c.update(sliding_window_pattern=2)], 1),
    "phi2-narrow": ("Phi", dict(num_hidden_layers=1, rope_parameters=HALF, intermediate_size=80, num_key_value_heads=4,
                                hidden_act="gelu"), "bpe", "f16", [old_rope], 1),
    # A window that llama.cpp leaves out; experts whose weights are not scaled to a sum of 1, as it has them.
    "mistral-window": ("Mistral", dict(num_hidden_layers=2, sliding_window=48), "sentencepiece", "bf16", [old_rope], 1),
    "qwen3moe-unscaled": ("Qwen3Moe", dict(num_hidden_layers=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
                                           moe_intermediate_size=24, norm_topk_prob=False), "bpe", "bf16", [], 1),
    # A window in the second half of the layers, and a magnitude of YaRN of its own.
    "qwen2-window": ("Qwen2", dict(rope_parameters=YARN | dict(attention_factor=0.9), use_sliding_window=True, sliding_window=48,
                                   max_window_layers=1, tie_word_embeddings=True), "bpe", "bf16", [without("layer_types")], 1),
}
CLASSES = {"Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
           "Qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
           "Qwen3_5Moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM")}


def checkpoint(folder, case, number):
    cls, changes, _, dtype, edits, parts = case
    config_name, model_name = CLASSES.get(cls, (f"{cls}Config", f"{cls}ForCausalLM"))
    torch.manual_seed(number)
    config = getattr(transformers, config_name)(**(SMALL | json.loads(json.dumps(changes))))
    model = getattr(transformers, model_name)(config).to(DTYPES[dtype])
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(p.float() * 2 + torch.randn(p.shape) * 0.05)
        blocks = packed(model) if mxfp4_config in edits else {}
    # The last of 100 tokens, in F32.
    # In another model, whose angles were never rounded to the type of the weights.
    exact = getattr(transformers, model_name)(config).float().eval()
    exact.load_state_dict(model.state_dict())
    exact.set_attn_implementation("eager")
    with torch.no_grad():
        logits = exact(torch.tensor([[i * 37 % 300 for i in range(100)]])).logits[0, -1]
    # One part at first; parts are cut by name below, so that experts of one layer lie in several.
    model.save_pretrained(folder, max_shard_size="1GB")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for edit in edits:
        edit(config)
    for key in ("transformers_version", "use_cache", "initializer_range"):
        config.pop(key, None)
    dump(path, config)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if cls == "Qwen2":
        dump(folder / "generation_config.json", dict(eos_token_id=[2, 1], temperature=0.7, top_k=20, top_p=0.8,
                                                     repetition_penalty=1.05))
    if blocks:
        whole = load_file(folder / "model.safetensors")
        for name in {n.rpartition("_")[0] for n in blocks}:
            del whole[name]
        save_file(whole | blocks, folder / "model.safetensors", metadata={"format": "pt"})
    if parts > 1:
        whole = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names, index = sorted(whole), {}
        for i in range(parts):
            file = f"model-{i + 1:05d}-of-{parts:05d}.safetensors"
            part = {n: whole[n].clone() for n in names[i::parts]}
            save_file(part, folder / file, metadata={"format": "pt"})
            index |= dict.fromkeys(part, file)
        dump(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": dict(sorted(index.items()))})
    return [round(x, 6) for x in logits.tolist()[:40]]


# What llama.cpp makes of them ---------------------------------------------------------------------------------


def encode(field, gguf):
    """A value as JSON has it; a long array as its length and the SHA-256 of its elements as GGUF has them."""
    value, types = field.contents(), field.types
    if types[0] != gguf.GGUFValueType.ARRAY:
        return [types[0].name.lower(), value]
    if len(value) <= 16:
        return [f"array {types[-1].name.lower()}", value]
    pack = {"STRING": lambda s: struct.pack("<Q", len(s.encode())) + s.encode(), "INT32": lambda i: struct.pack("<i", i),
            "UINT32": lambda i: struct.pack("<I", i), "FLOAT32": lambda f: struct.pack("<f", f)}[types[-1].name]
    digest = hashlib.sha256(b"".join(map(pack, value))).hexdigest()
    return [f"array {types[-1].name.lower()}", len(value), digest]


def convert(llama_cpp, folder, dtype):
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    # As its --no-mtp: without layers that draft further tokens.
    ModelBase.no_mtp = True
    ftype = dict(f32=gguf.LlamaFileType.ALL_F32, f16=gguf.LlamaFileType.MOSTLY_F16,
                 bf16=gguf.LlamaFileType.MOSTLY_BF16)[dtype]
    path = folder / "out.gguf"
    hparams = ModelBase.load_hparams(folder, False)
    if "rotary_pct" not in hparams and "partial_rotary_factor" in (hparams.get("rope_parameters") or {}):
        # transformers 5 renames what the converter still asks for under the old name.
        load = ModelBase.load_hparams
        def patched(*args, **kwargs):
            hp = load(*args, **kwargs)
            if hp.get("model_type") == "gpt_neox":
                hp["rotary_pct"] = hp["rope_parameters"]["partial_rotary_factor"]
            return hp
        ModelBase.load_hparams = staticmethod(patched)
    with torch.inference_mode():
        cls = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
        cls(folder, ftype, path).write()
    reader = gguf.GGUFReader(path)
    keys = {k: encode(f, gguf) for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    tensors = {t.name: [[int(n) for n in t.shape], t.tensor_type.name.lower(),
                        hashlib.sha256(t.data.tobytes()).hexdigest()[:16]] for t in reader.tensors}
    del reader
    path.unlink()
    return keys, tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llama_cpp", type=Path, help="llama.cpp's source, with conversion/ and gguf-py/")
    parser.add_argument("--only", help="one case")
    args = parser.parse_args()
    sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]
    tokenizers = OUT / "tokenizers"
    if not args.only:
        shutil.rmtree(OUT, ignore_errors=True)
        bpe(tokenizers / "bpe")
        bpe(tokenizers / "bpe-template", template=True)
        bpe(tokenizers / "byte-fallback", byte_fallback=True)
        shutil.copytree(tokenizers / "bpe", tokenizers / "bpe-gpt2")
        path = tokenizers / "bpe-gpt2/tokenizer_config.json"
        dump(path, json.loads(path.read_text()) | dict(tokenizer_class="GPT2Tokenizer"))
        sentencepiece(tokenizers / "sentencepiece")
        sentencepiece(tokenizers / "sentencepiece-gemma", gemma=True)
    for number, (name, case) in enumerate(CASES.items()):
        if args.only and args.only != name:
            continue
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        logits = checkpoint(folder, case, number)
        with tempfile.TemporaryDirectory() as work:
            # A folder with a name: general.name comes from it.
            copy = Path(work) / "tiny-model"
            shutil.copytree(folder, copy)
            shutil.copytree(tokenizers / case[2], copy, dirs_exist_ok=True)
            expected = {"tokenizer": case[2], "logits": logits, "types": {}}
            for dtype in DTYPES:
                keys, tensors = convert(args.llama_cpp, copy, dtype)
                if dtype == "f32":
                    expected["keys"] = keys
                expected["types"][dtype] = tensors
        dump(folder / "expected.json", expected)
        print(name, len(tensors), "tensors", file=sys.stderr)


if __name__ == "__main__":
    main()
