#!/usr/bin/env python3
"""What PyTorch's AdamW and clipping and transformers' schedules give for small made-up figures, in float64.

Writes optimiser.json beside itself. See README.md.
"""

import json
import pathlib

import torch
import transformers
from transformers.optimization import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

SHAPES = [5, 3]
STEPS = 12
# lr, beta1, beta2, eps, weight decay, clip (0: none)
CASES = [
    (1e-3, 0.9, 0.95, 1e-8, 0.0, 0.0),
    (1e-2, 0.9, 0.999, 1e-8, 0.1, 0.75),
    (3e-2, 0.8, 0.9, 1e-3, 0.5, 0.25),
]
# peak, lowest, warm-up, steps
SCHEDULES = [(2e-4, 0.0, 0, 10), (2e-4, 0.0, 4, 20), (1e-3, 1e-5, 3, 15)]


def gradient(step, tensor, i):
    """Exact in f32; the first elements of a tensor are small ones, as AdamW's eps is for those."""
    value = ((7 * i + 13 * step + 5 * tensor) % 17 - 8) / 16
    return value * 2.0**-20 if i == 0 else value


def adamw(lr, beta1, beta2, eps, decay, clip):
    start = [[((3 * i + 11 * t) % 13 - 6) / 8 for i in range(n)] for t, n in enumerate(SHAPES)]
    params = [torch.nn.Parameter(torch.tensor(s, dtype=torch.float64)) for s in start]
    rule = torch.optim.AdamW(params, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    norms, values = [], []
    for step in range(STEPS):
        for t, p in enumerate(params):
            p.grad = torch.tensor([gradient(step, t, i) for i in range(len(p))], dtype=torch.float64)
        norm = torch.nn.utils.clip_grad_norm_(params, clip if clip else float("inf"))
        norms.append(float(norm))
        rule.step()
        values.append([p.detach().tolist() for p in params])
    state = [rule.state[p] for p in params]
    return {
        "lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": decay, "clip": clip, "start": start,
        "norms": norms, "values": values,
        "m": [s["exp_avg"].tolist() for s in state], "v": [s["exp_avg_sq"].tolist() for s in state],
    }  # fmt: skip


def rates(make, peak, steps):
    """Up to the end: beyond it, transformers' cosine rises again and ours does not."""
    rule = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    schedule, out = make(rule), []
    for _ in range(steps + 1):
        out.append(schedule.get_last_lr()[0])
        rule.step()
        schedule.step()
    return out


def schedules():
    for peak, low, warmup, steps in SCHEDULES:
        made = {
            "constant": lambda o: get_constant_schedule_with_warmup(o, warmup),
            "linear": None if low else lambda o: get_linear_schedule_with_warmup(o, warmup, steps),
            "cosine": (lambda o: get_cosine_with_min_lr_schedule_with_warmup(o, warmup, steps, min_lr=low))
            if low
            else (lambda o: get_cosine_schedule_with_warmup(o, warmup, steps)),
        }
        for decay, make in made.items():
            if make:
                yield {
                    "decay": decay, "lr": peak, "lr_min": low, "warmup": warmup, "steps": steps,
                    "rates": rates(make, peak, steps),
                }  # fmt: skip


def main():
    report = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "gradients": [
            [[gradient(s, t, i) for i in range(n)] for t, n in enumerate(SHAPES)] for s in range(STEPS)
        ],
        "adamw": [adamw(*case) for case in CASES],
        "schedules": list(schedules()),
    }
    lines = []
    for key, value in report.items():
        if isinstance(value, list):
            rows = ",\n".join(" " + json.dumps(v) for v in value)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    path = pathlib.Path(__file__).resolve().parent / "optimiser.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
