"""Short documents that ask for earlier parts of themselves, as JSON Lines. `lists` have a few keys and numbers in random order,
again and again. `questions` have tables, the passkey test, needles, and copies within 512 tokens.

Words and passages are from the texts. `passkey` and `needles` have the wording of the passkey test and of RULER's needle
tasks. A model that learned them within its trained context shows how far past it an extension works.
"""

import json
import pathlib
import random

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


class Recall:
    """Draws documents of about `chars` characters with a seed."""

    def __init__(self, texts, seed):
        self.draw = random.Random(seed)
        self.prose = "\n".join(pathlib.Path(f).read_text(encoding="utf-8", errors="replace") for f in sorted(texts))
        self.words = sorted({w.lower() for w in self.prose.split() if w.isascii() and w.isalpha() and 4 <= len(w) <= 9})

    def word(self):
        return self.draw.choice(self.words)

    def key(self):
        return self.word() + "-" + self.word()

    def number(self, digits):
        return str(self.draw.randrange(10 ** (digits - 1), 10**digits))

    def numbers(self, count):
        return " ".join(self.number(self.draw.choice([1, 2, 3, 5, 7])) for _ in range(count))

    def passage(self, chars):
        at = self.draw.randrange(len(self.prose) - chars)
        return self.prose[at : at + chars]

    def repeat(self, chars):
        """Repeats some words, numbers, or a line of text."""
        kind, length = self.draw.random(), self.draw.choice([4, 6, 8, 12, 16, 24])
        if kind < 0.5:
            unit = " ".join(self.word() for _ in range(length // 2))
        elif kind < 0.8:
            unit = self.numbers(length // 4)
        else:
            unit = self.passage(length * 3)
        return self.draw.choice([" ", "\n", ", ", ". "]).join([unit] * max(2, chars // len(unit) + 1))

    def rounds(self, chars):
        """Writes a few keys and their numbers again and again in random order: the densest lesson in finding a key."""
        key, line = self.draw.choice([self.word, self.key]), self.draw.choice(["{} {}", "{}: {}", "{} is {}.", "{} is: {}."])
        told = [line.format(key(), self.number(self.draw.randint(1, 7))) for _ in range(self.draw.randint(1, 4))]
        entries = [self.draw.choice(told) for _ in range(chars // len(told[0]) + 1)]
        return self.draw.choice([" ", "\n"]).join(entries)

    def copy(self, chars):
        """Writes a passage, its shuffled words, or numbers twice."""
        part = self.passage(max(40, chars // 2))
        if self.draw.random() < 0.5:
            shuffled = part.split()
            self.draw.shuffle(shuffled)
            part = " ".join(shuffled)
        if self.draw.random() < 0.3:
            part = self.numbers(chars // 12)
        return part + "\n" + part

    def table(self, chars):
        """Writes keys and numbers, then all of them in a different order."""
        names = [self.key() if self.draw.random() < 0.5 else self.word() for _ in range(max(3, chars // 45))]
        held = {name: self.number(self.draw.choice([2, 3, 5, 7])) for name in names}
        line = self.draw.choice(
            [
                "{}: {}",
                "{} is {}.",
                "The number of {} is {}.",
                "One of the special magic numbers for {} is: {}.",
                "The pass key of {} is {}.",
            ]
        )
        told = [line.format(name, held[name]) for name in names]
        asked = list(held)
        self.draw.shuffle(asked)
        return "\n".join(told) + "\n" + "\n".join(line.format(name, held[name]) for name in asked)

    def passkey(self, chars):
        answer = self.draw.randrange(1, 50000)
        noise = " ".join([NOISE] * (chars // len(NOISE) + 2))
        before = self.draw.randrange(chars + 1)
        lines = [
            "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
            "I will quiz you about the important information there.",
            noise[:before],
            f"The pass key is {answer}. Remember it. {answer} is the pass key.",
            noise[: chars - before],
            f"What is the pass key? The pass key is {answer}.",
        ]
        return "\n".join(lines)

    def needles(self, chars):
        n_keys = self.draw.choice([1, 1, 2, 4])
        n_values = self.draw.choice([1, 1, 2, 4]) if n_keys == 1 else 1
        names = [self.key() for _ in range(n_keys)]
        held = {name: [self.number(7) for _ in range(n_values)] for name in names}
        if self.draw.random() < 0.5:
            hay = ((NOISE + " ") * (chars // len(NOISE) + 1))[:chars]
        else:
            hay = self.passage(chars)
        body = [sentence + "." for sentence in hay.split(".") if sentence.strip()] or [NOISE]
        lines = [f" One of the special magic numbers for {name} is: {value}." for name in names for value in held[name]]
        places = sorted(self.draw.randrange(len(body) + 1) for _ in lines)
        self.draw.shuffle(lines)
        for place, line in zip(reversed(places), lines):
            body.insert(place, line)
        body = "".join(body).strip()
        some, s, are = ("Some", "s", "are") if n_values > 1 else ("A", "", "is")
        text = f"{some} special magic number{s} {are} hidden within the following text. "
        text += f"Make sure to memorize it. I will quiz you about the number{s} afterwards.\n{body}"
        self.draw.shuffle(names)
        for name in names[:2]:
            # Values in the order of their first position in the text, which includes earlier questions.
            answers = ", ".join(sorted(held[name], key=text.find))
            what = f"special magic number{s} for {name} mentioned in the provided text"
            text += f"\nWhat {are} {'all ' if s else ''}the {what}? The {what} {are} {answers}."
        return text


STAGES = {
    "lists": (5, {"rounds": 1.0}),
    "questions": (6, {"table": 0.3, "passkey": 0.18, "needles": 0.32, "repeat": 0.1, "copy": 0.1}),
}


def lines(stage, count, texts):
    """Yields `count` lines of JSON of a stage."""
    seed, shares = STAGES[stage]
    recall = Recall(texts, seed)
    between = recall.draw.randrange
    for _ in range(count):
        kind = recall.draw.choices(list(shares), list(shares.values()))[0]
        chars = {
            "rounds": between(300, 700),
            "table": between(80, 700),
            "passkey": between(20, 1300),
            "needles": between(30, 600),
            "repeat": between(80, 260),
            "copy": between(100, 800),
        }[kind]
        yield json.dumps({"text": getattr(recall, kind)(chars)}) + "\n"
