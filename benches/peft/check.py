"""PEFT against the recording of tests/reference: loss, LoRA gradients and loss curve of the same adapter."""

import json

import numpy as np
import torch

from peft_model import adapter_parts, fill, load, side_by_side
from seeded import signs


def compare_gradients(model, case, blob, bound):
    """Largest relative error of a tensor, estimated from its products with signs, and smallest cosine."""
    recorded = {g["name"]: g for g in case["gradients"]}
    vectors = np.stack([signs(k, 1 << 16) for k in range(8)])
    worst, cosine, norms = (0.0, ""), (1.0, ""), (0.0, "")
    for name, n, n_head, *pair in adapter_parts(model):
        for side, linear in zip("ab", pair):
            grad = linear.weight.grad.double().numpy()
            if side == "b" and n_head:
                grad = side_by_side(grad, n_head)
            flat = grad.reshape(-1)
            key = f"blk.{n}.{name}.weight.lora_{side}"
            g = recorded.pop(key)
            assert g["shape"] == list(grad.shape[::-1]), key
            off = vectors[:, : flat.size] @ flat - np.array(g["signs"])
            worst = max(worst, (float(np.sqrt(np.mean(off * off))) / g["norm"], key))
            norms = max(norms, (abs(float(np.linalg.norm(flat)) / g["norm"] - 1), key))
            if "whole" in g:
                there = np.frombuffer(blob, "<f2", flat.size, g["whole"]["at"]).astype(np.float64)
                cos = there @ flat / np.linalg.norm(there) / np.linalg.norm(flat)
                cosine = min(cosine, (float(cos), key))
    assert not [k for k in recorded if ".lora_" in k]
    print(f"gradients: largest relative error {worst[0]:.1e} ({worst[1]}), of a norm {norms[0]:.1e}")
    print(f"smallest cosine with a stored tensor: 1 - {1 - cosine[0]:.1e} ({cosine[1]})")
    return worst[0] < bound and cosine[0] > 1 - 1e-6


def check(path, threads):
    torch.set_num_threads(threads)
    recording, blob = json.loads(path.read_text()), path.with_suffix(".bin").read_bytes()
    ids = torch.tensor(recording["tokens"])
    model = load(torch.float32)
    tokens = ids[None, : recording["n_tokens"]]
    case = next(c for c in recording["cases"] if c["name"] == "plain-attention")
    ok = True

    def same(what, here, there, bound):
        nonlocal ok
        ok &= abs(here / there - 1) < bound
        print(f"{what}: {here:.8f} here, {there:.8f} recorded: {abs(here / there - 1):.1e}", flush=True)

    fill(model, b_zero=True)
    with torch.no_grad():
        same(
            "loss without adapter",
            model(input_ids=tokens, labels=tokens).loss.item(),
            case["base_loss"],
            1e-5,
        )
    fill(model, b_zero=False)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    same("loss with adapter", loss.item(), case["loss"], 1e-5)
    ok &= compare_gradients(model, case, blob, 2e-3)

    model.zero_grad()
    logits = model(input_ids=tokens).logits[0, :-1].double()
    loss = torch.nn.functional.cross_entropy(logits, tokens[0, 1:])
    loss.backward()
    same("with the cross entropy alone in f64", loss.item(), case["loss"], 1e-6)
    ok &= compare_gradients(model, case, blob, 1e-4)

    fill(model, b_zero=True)
    curve = recording["curve"]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=curve["lr"], betas=(curve["beta1"], curve["beta2"]), eps=curve["eps"], weight_decay=0.0
    )
    worst, n = (0.0, 0), curve["tokens_per_step"]
    for step, there in enumerate(curve["losses"]):
        optimizer.zero_grad()
        tokens = ids[None, n * step : n * (step + 1) + 1]
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, curve["clip"])
        optimizer.step()
        worst = max(worst, (abs(loss.item() / there - 1), step + 1))
    print(
        f"curve of {len(curve['losses'])} steps: largest relative difference {worst[0]:.1e} at step {worst[1]}"
    )
    return ok and worst[0] < 1e-3
