"""Byte-level BPE of the default model (`gpt2`, pre-tokenizer `smollm`), from the vocabulary in its file."""

import re

# One digit, a contraction, or a run of letters or of other signs with one space before it; whitespace gives
# its last character to what follows. `[^\W\d_]` stands for \p{L}, near enough for English essays.
DIGIT = re.compile(r"(\d)")
WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def byte_signs():
    """The character that stands for each byte: itself where it is printable Latin-1, else one from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}


class Bpe:
    def __init__(self, meta):
        if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
            raise ValueError("this file has another tokenizer")
        self.pieces = meta["tokenizer.ggml.tokens"]
        self.ids = {piece: n for n, piece in enumerate(self.pieces)}
        self.ranks = {tuple(m.split(" ")): n for n, m in enumerate(meta["tokenizer.ggml.merges"])}
        self.signs = byte_signs()

    def merge(self, word):
        """Joins, again and again, the neighbors whose merge was learned first."""
        parts = [self.signs[b] for b in word.encode("utf-8")]
        while len(parts) > 1:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in zip(parts, parts[1:])]
            best = min(ranks)
            if best == len(self.ranks):
                break
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[p] for p in parts]

    def encode(self, text):
        fragments = [f for f in DIGIT.split(text) if f]
        words = [w for f in fragments for w in ([f] if f.isdigit() else WORD.findall(f))]
        return [t for w in words for t in self.merge(w)]

    def decode(self, tokens):
        """The bytes of ordinary tokens."""
        byte = {sign: b for b, sign in self.signs.items()}
        return bytes(byte[c] for t in tokens for c in self.pieces[t])
