#!/usr/bin/env python3
"""Short documents that ask for what stands further up in them, as JSON Lines: prose with sentences of keys and numbers put
in, questions and answers at the end. Frames are those of the passkey test and of RULER's needle tasks, so a model that has
learned them at its own window shows how far beyond it an extension carries them.

    recall.py OUT N TEXT...
"""
import json
import pathlib
import random
import sys

draw = random.Random(7)
prose = "\n".join(pathlib.Path(f).read_text(errors="replace") for f in sorted(sys.argv[3:]))
letters = "abcdefghijklmnopqrstuvwxyz"
# Keys are words of the text with a consonant or two changed, so that none is one of RULER's.
words = sorted({w.lower() for w in prose.split() if w.isalpha() and 4 <= len(w) <= 9})


def key():
    word = list(draw.choice(words))
    word[draw.randrange(len(word))] = draw.choice(letters)
    other = draw.choice(words)
    return "".join(word) + "-" + other


def number(digits):
    return str(draw.randrange(10 ** (digits - 1), 10**digits))


NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def filler(chars):
    if draw.random() < 0.4:
        text = " ".join([NOISE] * (chars // len(NOISE) + 1))[:chars]
    else:
        at = draw.randrange(len(prose) - chars)
        text = prose[at : at + chars]
    return [s + "." for s in text.split(".") if s.strip()] or [NOISE]


def passkey(chars):
    answer = number(5)
    needle = f"The pass key is {answer}. Remember it. {answer} is the pass key."
    body = filler(chars)
    body.insert(draw.randrange(len(body) + 1), "\n" + needle + "\n")
    head = "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about the important information there."
    return head + "\n" + "".join(body) + f"\nWhat is the pass key? The pass key is {answer}."


def numbers(chars, keys, asked, values):
    names = [key() for _ in range(keys)]
    held = {n: [number(7) for _ in range(values)] for n in names}
    body = filler(chars)
    lines = [f" One of the special magic numbers for {n} is: {v}." for n in names for v in held[n]]
    draw.shuffle(lines)
    for line in lines:
        body.insert(draw.randrange(len(body) + 1), line)
    plural = asked * values > 1
    which = names[:asked]
    of = which[0] if asked == 1 else ", ".join(which[:-1]) + ", and " + which[-1]
    what = "What are all the special magic numbers" if plural else "What is the special magic number"
    are = "The special magic numbers" if plural else "The special magic number"
    verb = "are" if plural else "is"
    some = "Some special magic numbers are" if plural else "A special magic number is"
    it = "numbers" if plural else "number"
    head = f"{some} hidden within the following text. Make sure to memorize it. I will quiz you about the {it} afterwards."
    answers = [v for n in which for v in held[n]]
    return (
        f"{head}\n{''.join(body)}\n{what} for {of} mentioned in the provided text? "
        f"{are} for {of} mentioned in the provided text {verb} {', '.join(answers)}."
    )


def table(chars):
    """Keys and numbers alone, several asked for: many lookups in one document."""
    names = [key() for _ in range(max(3, chars // 60))]
    held = {n: number(draw.choice([2, 3, 5])) for n in names}
    lines = [f"{n}: {held[n]}" for n in names]
    asked = draw.sample(names, min(len(names), max(3, len(names) // 2)))
    return "\n".join(lines) + "\n\n" + "\n".join(f"{n}: {held[n]}" for n in asked)


FORMS = [
    lambda c: passkey(c),
    lambda c: numbers(c, 1, 1, 1),
    lambda c: numbers(c, draw.randrange(2, 6), 1, 1),
    lambda c: numbers(c, 1, 1, draw.randrange(2, 5)),
    lambda c: numbers(c, draw.randrange(2, 5), 2, 1),
    lambda c: table(c),
    lambda c: table(c),
]
with open(sys.argv[1], "w") as out:
    for _ in range(int(sys.argv[2])):
        out.write(json.dumps({"text": draw.choice(FORMS)(draw.randrange(100, 700))}) + "\n")
