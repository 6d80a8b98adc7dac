"""tokenizer.json of SentencePiece families without tokenizer.model, as transformers writes it from the models that tokens.py
trained; and what the package `tokenizers` makes of 10,000 strings with each.

Writes convert/tests/fixtures/tokens/pieces: run tokens.py first. README.md beside this file has the commands.
"""

import importlib
import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

import tokens

OUT = tokens.OUT / "pieces"


def extracted(name):
    """Vocabulary and merges as transformers takes them out of tokenizer.model."""
    convert = importlib.import_module("transformers.convert_slow_tokenizer")
    return convert.SentencePieceExtractor(str(tokens.OUT / f"{name}.model")).extract(None)


def tokenizer(name, normalizer, cuts, strip):
    found = extracted(name)
    tok = Tokenizer(models.BPE(vocab=found["vocab"], merges=found["merges"], fuse_unk=True, byte_fallback=True,
                               unk_token="<unk>"))
    tok.normalizer, tok.pre_tokenizer = normalizer, cuts
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tok.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    return tok


def main():
    OUT.mkdir(exist_ok=True)
    # Llama 2, Mistral and Phi-3; and Gemma.
    legacy = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    gemma = pre_tokenizers.Split(" ", "merged_with_previous")
    made = {
        "llama": tokenizer("llama", legacy, None, True),
        "gemma": tokenizer("gemma", normalizers.Replace(" ", "▁"), gemma, False),
    }
    strings = [tokens.string(i) for i in range(tokens.N)]
    for name, tok in made.items():
        ids = [e.ids for e in tok.encode_batch(strings, add_special_tokens=False)]
        (OUT / f"{name}.bin").write_bytes(bytes(tokens.checksum(i) for i in ids))
        data = json.loads(tok.to_str())
        (OUT / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
