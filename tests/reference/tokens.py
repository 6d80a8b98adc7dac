"""Token streams of the Python packages `tokenizers` and `sentencepiece` for 10,000 strings of all of Unicode, for every
kind of pre-tokenizer below: what `convert` imports and libllama then cuts is compared with them.

Writes convert/tests/fixtures/tokens. README.md beside this file has the commands.
"""

import io
import json
import unicodedata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "convert/tests/fixtures/tokens"
N = 10_000
MASK = (1 << 64) - 1

# What strings are made of: characters, one for each draw, or [first, last] of a range of code points.
POOLS = [
    ["the", "The", "quick", "model", "context", "ROPE", "Llama", "iPhone", "camelCase", "snake_case", "x"],
    [" ", " ", " ", " ", "  ", "   ", "     "],
    ["'s", "'S", "'t", "'re", "'VE", "'m", "'ll", "'Ll", "'d", "’s", "'x", "''"],
    ["0", "7", "12", "123", "2024", "31415926", "3.14", "1,000", "0x1F"],
    ["\n", "\n\n", "\r\n", "\r", "\t", "\t\t", " \n", "\n ", "  \n\n "],
    [".", ",", "!", "?!", "...", "(", ")", "[[", "{", "}", "-", "--", "_", "/", "//", "\\", "@", "#", "$", "%", "^", "&", "*",
     "+", "=", "==", "<", ">", "|", "~", "`", "\"", ";", ":"],
    ["é", "ü", "ß", "ñ", "Å", "e\u0301", "u\u0308", "a\u030a", "\u0301"],
    ["Привет", "мир", "Ж", "ё", "й", "Ελληνικά", "ς", "Ω"],
    ["日本語", "我想在", "中", "ひらがな", "カタカナ", "ー", "한국어", "가", "。", "、", "（", "）", "！", "１２"],
    ["العربية", "مرحبا", "٣٤", "،", "עברית", "שלום"],
    ["हिन्दी", "नमस्ते", "कि", "১২", "ไทย", "ภาษา", "កាន់"],
    ["🚀", "😶\u200d🌫\ufe0f", "👩\u200d👩\u200d👧", "🇩🇪", "✅", "1️⃣", "❤\ufe0f"],
    ["²", "½", "Ⅷ", "①", "ⁿ", "ª", "º", "ǅ", "ʰ", "ﬁ", "İ", "ſ", "K"],
    ["\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\u200b", "\u200d", "\ufeff", "\u1680", "\u180e"],
    ["€", "£", "©", "®", "°", "±", "×", "÷", "→", "∑", "≠", "█", "¿", "«", "»", "—", "…", "“", "”", "·"],
    [[0x00, 0x1f]],
    [[0x21, 0x7e]],
    [[0xa0, 0x24f]],
    [[0x370, 0x5ff]],
    [[0x600, 0x1fff]],
    [[0x2000, 0x2fff]],
    [[0x3000, 0xd7ff]],
    [[0xe000, 0xffff]],
    [[0x10000, 0x1ffff]],
    [[0x20000, 0x10ffff]],
]

TEXT = """
The quick brown fox jumps over the lazy dog's back, doesn't it? I've 12 apples, 123 pears and 31,415,926 grains: 3.14 or so.
def camelCase(snake_case, x=0x1F):\n\treturn {"model": [x == 1, x != 2]}  # the context of the model\r\n
Übergröße, façade, naïve, Ångström; e\u0301 is é. Привет, мир! Как дела? Ελληνικά: καλημέρα κόσμε. 日本語の文章、カタカナとひらがな。
我想在苹果工作，今天天气很好！한국어 문장은 이렇게 생겼다. مرحبا بالعالم ٣٤، שלום עולם. हिन्दी में नमस्ते दुनिया। ภาษาไทย កាន់តែពិសេស
🚀 😶\u200d🌫\ufe0f 👩\u200d👩\u200d👧 ✅ ½ + ² = Ⅷ, 10 € × 5 £ → 50 °C … “quoted” — dashed. THE ROPE OF LLAMA, iPhone's, WE'LL SEE.
"""


def seeded(seed):
    """SplitMix64: numbers below `n` from the upper half of each output."""
    state = seed

    def below(n):
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 32) * n >> 32

    return below


def string(i):
    below = seeded(i)
    out = ""
    for _ in range(1 + below(12)):
        pool = POOLS[below(len(POOLS))]
        piece = pool[below(len(pool))]
        if not isinstance(piece, str):
            piece = chr(piece[0] + below(piece[1] - piece[0] + 1))
        out += piece
    return out


def checksum(ids):
    """One byte of FNV-1a over the ids: 255 of 256 differences show."""
    h = 0xCBF29CE484222325
    for i in ids:
        for b in i.to_bytes(4, "little"):
            h = ((h ^ b) * 0x100000001B3) & MASK
    return h >> 56


CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(after, digits):
    """The pattern of o200k and of tekken: words by case."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (f"{start}{UPPER}*{LOWER}+{after}|{start}{UPPER}+{LOWER}*{after}|{digits}|"
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + REST)


def split(*patterns):
    each = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    return {"type": "Sequence", "pretokenizers": each + [byte_level(False)]}


def byte_level(regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def llama3(digits, newlines=r"[\r\n]*"):
    return (CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+" + newlines + "|" + REST)


DIGITS = {"type": "Digits", "individual_digits": True}
WORDS = {"type": "Sequence", "pretokenizers": [DIGITS, byte_level(True)]}
NFC = {"type": "NFC"}
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
            r""" ?[\p{P}\p{S}]+[\r\n]*|""" + REST)
# As in the tokenizer.json of models that have the kind: the value of tokenizer.ggml.pre, pre-tokenizer, normalizer. Falcon's is
# left out: llama.cpp's pattern for it takes other signs for punctuation than `tokenizers` does.
KINDS = [
    ("gpt-2", byte_level(True), None),
    ("olmo", byte_level(True), NFC),
    ("smollm", WORDS, None),
    ("command-r", WORDS, NFC),
    ("llama-bpe", split(llama3(r"\p{N}{1,3}")), None),
    ("dbrx", split(llama3(r"\p{N}{1,3}")), None),
    ("qwen2", split(llama3(r"\p{N}")), NFC),
    ("qwen35", split(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + REST), NFC),
    ("gpt-4o", split(cased(CONTRACTION + "?", r"\p{N}{1,3}")), None),
    ("tekken", split(cased("", r"\p{N}")), None),
    ("deepseek-v3", split(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK), None),
]
# SentencePiece's, by whether a space is put before a text.
PIECES = [("llama", True), ("gemma", False)]


def texts():
    """Lines to train on: the documentation, and a paragraph in many languages."""
    files = ["README.md", "ARCHITECTURE.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs/guide").glob("*.md"))]
    return [TEXT] * 40 + [line for f in files for line in (ROOT / f).read_text().splitlines(keepends=True)][:2000]


def byte_pairs():
    """A vocabulary whose merges go over every border that a pre-tokenizer could draw."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<|end|>"], max_token_length=12, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(texts(), trainer)
    data = json.loads(tok.to_str())
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    return data


def pieces(prefix):
    import sentencepiece as spm

    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(line.strip("\n") for line in texts()), model_writer=model, vocab_size=1200, model_type="bpe",
        byte_fallback=True, character_coverage=0.99, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=prefix, split_digits=True, minloglevel=2, num_threads=1, allow_whitespace_only_pieces=True,
        self_test_sample_size=0)
    return model.getvalue()


def main():
    import sentencepiece as spm
    from tokenizers import Tokenizer

    OUT.mkdir(parents=True, exist_ok=True)
    strings = [string(i) for i in range(N)]
    base, streams = byte_pairs(), b""
    kinds = []
    for name, pre, normalizer in KINDS:
        kinds.append({"pre": name, "pre_tokenizer": pre, "normalizer": normalizer})
        tok = Tokenizer.from_str(json.dumps(base | {"pre_tokenizer": pre, "normalizer": normalizer}))
        streams += bytes(checksum(e.ids) for e in tok.encode_batch(strings, add_special_tokens=False))
    for name, prefix in PIECES:
        model = pieces(prefix)
        (OUT / f"{name}.model").write_bytes(model)
        sp = spm.SentencePieceProcessor(model_proto=model)
        streams += bytes(checksum(sp.encode(s)) for s in strings)
    dump = lambda name, value: (OUT / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    dump("tokenizer.json", base)
    numbers = lambda holds: [i for i, s in enumerate(strings) if holds(s)]
    dump("cases.json", {
        "pools": POOLS, "kinds": kinds, "pieces": PIECES,
        "denormal": numbers(lambda s: not unicodedata.is_normalized("NFC", s)),
        "marked": numbers(lambda s: any(unicodedata.category(c)[0] == "M" for c in s)),
    })
    (OUT / "streams.bin").write_bytes(streams)


if __name__ == "__main__":
    main()
