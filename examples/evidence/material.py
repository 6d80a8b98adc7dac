"""Makes the texts that units read from the downloaded ones: held-out documents, lessons for the small model, and knots."""

import json
import pathlib
import random
import struct

import recall
import start
from place import ROOT, Problem, write

LESSONS = {"lists": 20_000, "questions": 30_000}
# Characters of a passage of prose: 500 to 2,000 tokens of the small model.
PASSAGE = (1500, 6000)
# Documents of each kind that the tokenizer of the small model is made from.
EXAMPLES = 6000


def documents(place, name):
    """Cuts held-out documents: `characters` of each file (or of each of `files`), from the first blank line after each
    position in `at`."""
    if place.out is None:
        return [pathlib.Path(f"{name}.txt")]
    rule = place.plan["texts"][name]
    folder = place.inside("material", name)
    novels = sorted(p for p in (ROOT / rule["folder"]).glob("*.txt") if p.stem in rule.get("files", [p.stem]))
    expected = [folder / f"{novel.stem}-{round(100 * at):02}.txt" for novel in novels for at in rule["at"]]
    if not novels or len(novels) < len(rule.get("files", [])):
        raise Problem(f"{rule['folder']}: texts are missing; run `make train-texts`")
    if all(path.is_file() for path in expected):
        return expected
    for novel in novels:
        text = novel.read_text(encoding="utf-8")
        for at in rule["at"]:
            begin = text.find("\n\n", int(len(text) * at)) + 2
            part = text[begin : begin + rule["characters"]]
            if begin < 2 or len(part) < rule["characters"]:
                raise Problem(f"{novel}: too short for {rule['characters']} characters after {at:.0%} of the file")
            write(folder / f"{novel.stem}-{round(100 * at):02}.txt", part)
    return expected


def prose_files(place):
    folder = ROOT / place.plan["small"]["prose"]
    files = sorted(str(p) for p in folder.iterdir()) if folder.is_dir() else []
    if not files:
        raise Problem(f"{place.plan['small']['prose']}: no texts; run `make train-texts`")
    return files


def passages(files):
    """Yields all prose as documents of a few paragraphs, as lines of JSON."""
    draw = random.Random(8)
    for file in files:
        text, at = pathlib.Path(file).read_text(encoding="utf-8", errors="replace"), 0
        while at < len(text):
            end = text.find("\n\n", at + draw.randrange(*PASSAGE))
            end = len(text) if end < 0 else end
            if text[at:end].strip():
                yield json.dumps({"text": text[at:end].strip()}) + "\n"
            at = end


def lesson(place, name):
    """Makes documents that repeat, or ask for, earlier parts of themselves."""
    path = place.inside("material", f"{name}.jsonl")
    if place.out and not path.is_file():
        if name == "passages":
            made = passages(prose_files(place))
        else:
            made = recall.lines(name, LESSONS[name], prose_files(place))
        write(path, "".join(made))
    return path


def start_folder(place):
    """Makes the untrained small model as a Hugging Face model directory."""
    folder = place.inside("material", "start")
    small = place.plan["small"]
    if place.out and not (folder / "model.safetensors").is_file():
        examples = recall.Recall(prose_files(place), 7)

        def texts():
            yield examples.prose
            for _ in range(EXAMPLES):
                yield examples.passkey(150)
                yield examples.needles(150)

        start.write(folder, small["shape"], texts(), small["seed"])
    return folder


def source(place, name):
    """Returns the path of a source of training data, and makes the data if needed."""
    return place.plan["small"]["prose"] if name == "prose" else lesson(place, name)


def knots(place):
    """Makes held-out documents with other text in the middle, as token ids. They differ in distance, in whether the beginning
    is the document's own, and in whether they have marker tokens. Every file has the same ends in the same order, so losses
    are paired."""
    rule, folder = place.plan["knots"], place.inside("material", "knots")
    keys = [(d, own, marks) for d in rule["distances"] for own in (True, False) for marks in (False, True)]
    names = {key: folder / f"{key[0]}-{'own' if key[1] else 'other'}{'-marked' if key[2] else ''}.bin" for key in keys}
    if place.out is None or all(path.is_file() for path in names.values()):
        return names
    tokenizer = start.tokenizer_of(start_folder(place))
    draw, novels = random.Random(rule["seed"]), sorted((ROOT / place.plan["texts"]["short"]["folder"]).glob("*.txt"))
    if not novels:
        raise Problem(f"{place.plan['texts']['short']['folder']}: no texts; run `make train-texts`")
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
        # The other beginning is from the same novel, so the author is the same. The text in the middle is from another novel.
        filler = piece(longest, (novel + 1 + draw.randrange(len(texts) - 1)) % len(texts))
        parts.append((whole[:half], piece(half, novel), filler, whole[half:]))
    folder.mkdir(parents=True, exist_ok=True)
    for (distance, own, marks), path in names.items():
        tokens = []
        for first, other, filler, scored_ones in parts:
            between = filler[:distance]
            if marks:
                between = [end_of_first, *filler[: distance - 2], start_of_second]
            # Each document starts with 0, which is read as BOS.
            tokens += [0, *(first if own else other), *between, *scored_ones]
        part = path.with_suffix(".part")
        part.write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        part.rename(path)
    return names
