"""Texts that units read, made from what `make` fetches: held-out documents, lessons for the small model, knots."""

import pathlib
import random
import struct

import recall
import start
from place import ROOT, Problem, write

LESSONS = {"chains": 60_000, "first": 20_000, "second": 30_000}


def documents(place, name):
    """Held-out documents: of each file so many characters from the first blank line behind each share of it."""
    if place.out is None:
        return [pathlib.Path(f"{name}.txt")]
    rule = place.plan["texts"][name]
    folder = place.inside("material", name)
    novels = sorted((ROOT / rule["folder"]).glob("*.txt"))
    expected = [folder / f"{novel.stem}-{round(100 * at):02}.txt" for novel in novels for at in rule["at"]]
    if not novels:
        raise Problem(f"{rule['folder']}: no texts; `make train-texts` fetches them")
    if all(path.is_file() for path in expected):
        return expected
    for novel in novels:
        text = novel.read_text(encoding="utf-8")
        for at in rule["at"]:
            begin = text.find("\n\n", int(len(text) * at)) + 2
            part = text[begin : begin + rule["characters"]]
            if begin < 2 or len(part) < rule["characters"]:
                raise Problem(f"{novel}: too short for {rule['characters']} characters behind {at:.0%} of it")
            write(folder / f"{novel.stem}-{round(100 * at):02}.txt", part)
    return expected


def prose_files(place):
    folder = ROOT / place.plan["small"]["prose"]
    files = sorted(str(p) for p in folder.iterdir()) if folder.is_dir() else []
    if not files:
        raise Problem(f"{place.plan['small']['prose']}: no texts; `make train-texts` fetches them")
    return files


def lesson(place, name):
    """Documents that say again, or ask for, what stands further up in them."""
    path = place.inside("material", f"{name}.jsonl")
    if place.out and not path.is_file():
        if name == "chains":
            tokens = start.tokenizer_of(start_folder(place)).ids
            # Those that are a token with the blank before them.
            words = [t[1:] for t in tokens if t[0] == start.BLANK and t[1:].isascii() and t[1:].isalpha()]
            made = recall.chains(LESSONS[name], words)
        else:
            made = recall.lines(name, LESSONS[name], prose_files(place))
        write(path, "".join(made))
    return path


def start_folder(place):
    """The small model before any training, as a folder of Hugging Face."""
    folder = place.inside("material", "start")
    small = place.plan["small"]
    if place.out and not (folder / "model.safetensors").is_file():
        examples = recall.Recall(prose_files(place), 7)

        def texts():
            yield examples.prose
            for _ in range(6000):
                yield examples.passkey(150)
                yield examples.needles(150)

        start.write(folder, small["shape"], texts(), small["seed"])
    return folder


def source(place, name):
    """Where a source of training data is, made if need be."""
    return place.plan["small"]["prose"] if name == "prose" else lesson(place, name)


def knots(place):
    """Held-out documents with others in their middle, as token ids: by distance, with their own beginning or another's,
    with the tokens of knots or without. Every file has the same ends in the same order, so losses are paired."""
    rule, folder = place.plan["knots"], place.inside("material", "knots")
    keys = [(d, own, marks) for d in rule["distances"] for own in (True, False) for marks in (False, True)]
    names = {key: folder / f"{key[0]}-{'own' if key[1] else 'other'}{'-marked' if key[2] else ''}.bin" for key in keys}
    if place.out is None or all(path.is_file() for path in names.values()):
        return names
    tokenizer = start.tokenizer_of(start_folder(place))
    draw, novels = random.Random(rule["seed"]), sorted((ROOT / place.plan["texts"]["short"]["folder"]).glob("*.txt"))
    if not novels:
        raise Problem(f"{place.plan['texts']['short']['folder']}: no texts; `make train-texts` fetches them")
    texts = [tokenizer.encode(novel.read_text(encoding="utf-8")) for novel in novels]
    half, scored, longest = rule["half"], rule["scored"], max(rule["distances"])
    end_of_first, start_of_second = start.SPECIAL.index("<|reserved_0|>"), start.SPECIAL.index("<|reserved_1|>")

    def piece(n, novel):
        at = draw.randrange(len(texts[novel]) - n)
        return texts[novel][at : at + n]

    parts = []
    for i in range(rule["documents"]):
        novel = i % len(texts)
        whole = piece(half + scored, novel)
        # Another place of the same novel: what differs is not the author. Between them stands another novel.
        filler = piece(longest, (novel + 1 + draw.randrange(len(texts) - 1)) % len(texts))
        parts.append((whole[:half], piece(half, novel), filler, whole[half:]))
    folder.mkdir(parents=True, exist_ok=True)
    for (distance, own, marks), path in names.items():
        tokens = []
        for first, other, filler, scored_ones in parts:
            between = filler[:distance]
            if marks:
                between = [end_of_first, *filler[: distance - 2], start_of_second]
            # 0 begins each document, and is read as BOS.
            tokens += [0, *(first if own else other), *between, *scored_ones]
        part = path.with_suffix(".part")
        part.write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        part.rename(path)
    return names
