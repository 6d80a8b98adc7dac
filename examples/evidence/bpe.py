"""A byte-level BPE tokenizer: trains it on word counts, writes it as tokenizer.json, and encodes with it."""

import json
import re
from collections import Counter, defaultdict

# Splits words as GPT-2 does, with each digit separate, as SmolLM's tokenizer does.
WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
N_RESERVED = 15
SPECIAL = ["<|endoftext|>"] + [f"<|reserved_{i}|>" for i in range(N_RESERVED)]


def byte_names():
    """Returns the character for each byte (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, more = {byte: chr(byte) for byte in shown}, 256
    for byte in range(256):
        if byte not in names:
            names[byte], more = chr(more), more + 1
    return names


NAMES = byte_names()


def cut(text):
    return WORD.findall(text)


def learn(texts, n_vocab):
    """Returns the merges of a vocabulary of `n_vocab` tokens: most frequent pair first, ties by name."""
    counts = Counter()
    for text in texts:
        counts.update(cut(text))
    words = [[NAMES[b] for b in word.encode()] for word in counts]
    times = list(counts.values())
    pairs, where = Counter(), defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += times[i]
            where[pair].add(i)
    merges, known = [], set(NAMES.values())
    while len(SPECIAL) + 256 + len(merges) < n_vocab and pairs:
        pair = max(pairs, key=lambda p: (pairs[p], p))
        joined = pair[0] + pair[1]
        if joined in known:
            # Two merges give the same token. Keep the first.
            del pairs[pair]
            continue
        merges.append(pair)
        known.add(joined)
        for i in where.pop(pair):
            word, new, at = words[i], [], 0
            for old in zip(word, word[1:]):
                pairs[old] -= times[i]
            while at < len(word):
                if tuple(word[at : at + 2]) == pair:
                    new.append(joined)
                    at += 2
                else:
                    new.append(word[at])
                    at += 1
            words[i] = new
            for made in zip(new, new[1:]):
                pairs[made] += times[i]
                where[made].add(i)
        pairs = +pairs
    return merges


class Tokenizer:
    def __init__(self, merges):
        self.merges = [tuple(pair) for pair in merges]
        self.rank = {pair: i for i, pair in enumerate(self.merges)}
        tokens = SPECIAL + [NAMES[b] for b in range(256)] + [a + b for a, b in self.merges]
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.seen = {}

    def encode(self, text):
        return [i for word in cut(text) for i in self.word(word)]

    def word(self, word):
        if word not in self.seen:
            parts = [NAMES[b] for b in word.encode()]
            while len(parts) > 1:
                ranks = [self.rank.get(pair, len(self.rank)) for pair in zip(parts, parts[1:])]
                at = min(range(len(ranks)), key=ranks.__getitem__)
                if ranks[at] == len(self.rank):
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            self.seen[word] = [self.ids[part] for part in parts]
        return self.seen[word]

    def json(self):
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(SPECIAL)],
                "normalizer": None,
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [{"type": "Digits", "individual_digits": True}, level],
                },
                "post_processor": None,
                "decoder": level,
                "model": {
                    "type": "BPE",
                    "dropout": None,
                    "unk_token": None,
                    "continuing_subword_prefix": None,
                    "end_of_word_suffix": None,
                    "fuse_unk": False,
                    "byte_fallback": False,
                    "vocab": self.ids,
                    "merges": [f"{a} {b}" for a, b in self.merges],
                },
            }
        )
