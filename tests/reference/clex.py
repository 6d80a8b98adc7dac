#!/usr/bin/env python3
"""Frequencies and gradients of CLEX by torchdiffeq's solver and PyTorch's automatic differentiation, in float64.

Writes clex.json beside itself. See README.md.
"""

import json
import math
import pathlib

import torch
from torchdiffeq import odeint

# d, base, param_factor, act, step, max_factor, t of the gradient
CASES = [
    (8, 10000.0, 1, "silu", 0.01, 32, 9),
    (6, 500000.0, 2, "tanh", 0.05, 8, 5),
    # t lies between points of the grid.
    (8, 10000.0, 1, "silu", 0.3, 6, 4),
]


def values(n, seed, most):
    """Made up, and exact in f32."""
    return [(((i * 37 + seed * 11) % 31) - 15) / 16 * most for i in range(n)]


class Velocity(torch.nn.Module):
    """The equation as published (arXiv:2310.16450, equations 14 and 15), for the base given."""

    def __init__(self, d, base, up, down, act):
        super().__init__()
        self.base, self.up, self.down = base, up, down
        self.act = {"silu": torch.nn.functional.silu, "tanh": torch.tanh}[act]
        self.d, self.two_j = d, torch.arange(0, d, 2, dtype=torch.float64)

    def forward(self, t, x):
        alpha = 2 * t - 1
        ntk_base = self.base * alpha ** (self.d / (self.d - 2))
        ntk = ntk_base ** (-self.two_j / self.d)
        moves = -2 * self.two_j / (self.d - 2) / alpha
        return self.down @ self.act(self.up @ (x + torch.log(ntk))) + moves


def case(d, base, param_factor, act, step, max_factor, grad_t):
    pairs, hidden = d // 2, param_factor * d
    up = torch.tensor(values(pairs * hidden, 1, 0.5), dtype=torch.float64).reshape(hidden, pairs).requires_grad_()
    down = torch.tensor(values(pairs * hidden, 2, 0.0625), dtype=torch.float64).reshape(pairs, hidden).requires_grad_()
    start = -torch.arange(0, d, 2, dtype=torch.float64) / d * math.log(base)
    times = torch.arange(1, max_factor + 1, dtype=torch.float64)
    equation = Velocity(d, base, up, down, act)
    x = odeint(equation, start, times, method="rk4", options={"step_size": step})
    grad = [((5 * j) % 7 - 3) / 4 for j in range(pairs)]
    (x[grad_t - 1] * torch.tensor(grad, dtype=torch.float64)).sum().backward()
    return {
        "d": d, "base": base, "param_factor": param_factor, "act": act, "step": step, "max_factor": max_factor,
        "up": up.detach().flatten().tolist(), "down": down.detach().flatten().tolist(),
        "theta": torch.exp(x).detach().tolist(), "grad_t": grad_t, "grad": grad,
        "d_up": up.grad.flatten().tolist(), "d_down": down.grad.flatten().tolist(),
    }  # fmt: skip


if __name__ == "__main__":
    report = {"torch": torch.__version__, "cases": [case(*c) for c in CASES]}
    pathlib.Path(__file__).with_name("clex.json").write_text(json.dumps(report, indent=1) + "\n")
