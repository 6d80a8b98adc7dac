#!/usr/bin/env python3
"""Shifted sparse attention of LongLoRA and its gradients by PyTorch's automatic differentiation, in float64.

Follows `forward_flashattn` of the released `llama_attn_replace.py` (arXiv:2309.12307) line by line, from the repeated
keys and values on. Only the call of flash attention is replaced, by attention over each of the sequences that it is told
of, one after the other. Writes s2.json beside itself. See README.md.
"""

import json
import math
import pathlib

import torch

GROUP_SIZE_RATIO = 1 / 4

# query heads, key heads, head size, tokens; odd numbers of heads are not in the released code
CASES = [(4, 4, 4, 16), (4, 2, 4, 24), (3, 3, 4, 16), (6, 1, 4, 12)]


def values(n, seed):
    """Made up, and exact in f32."""
    return torch.tensor([((i * 37 + seed * 11) % 61 - 30) / 16 for i in range(n)], dtype=torch.float64)


def flash_attn_varlen_qkvpacked_func(qkv, cu_q_lens):
    """Causal attention within each of the sequences that lie one behind another: [nnz, 3, heads, d] to [nnz, heads, d]."""
    out = []
    for start, end in zip(cu_q_lens[:-1].tolist(), cu_q_lens[1:].tolist()):
        q, k, v = qkv[start:end].permute(1, 2, 0, 3)
        out.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1))
    return torch.cat(out)


def repeat_kv(x, n_rep):
    """As in transformers' modeling_llama.py: [b, heads, tokens, d]."""
    b, heads, n, d = x.shape
    return x[:, :, None].expand(b, heads, n_rep, n, d).reshape(b, heads * n_rep, n, d)


def shifted(query_states, key_states, value_states):
    """[b, heads, tokens, d] to [b, tokens, heads, d]."""
    bsz, num_heads, q_len, head_dim = query_states.shape
    qkv = torch.stack([query_states, key_states, value_states], dim=2)  # [bsz, nh, 3, q_len, hd]
    qkv = qkv.transpose(1, 3)  # [bsz, q_len, 3, nh, hd]
    nheads = qkv.shape[-2]
    group_size = int(q_len * GROUP_SIZE_RATIO)
    if q_len % group_size > 0:
        raise ValueError(f"q_len {q_len} should be divisible by group size {group_size}.")
    max_s, cu_q_lens = q_len, torch.arange(0, (2 * bsz + 1) * q_len, q_len)
    cu_q_len_tmp = torch.arange(0, max_s, group_size)
    cu_q_len_tmp = torch.stack([cu_q_len_tmp, cu_q_len_tmp + group_size // 2]).repeat(bsz, 1) + cu_q_lens[:-1].unsqueeze(-1)
    cu_q_lens = torch.cat([cu_q_len_tmp, cu_q_lens[1:].unsqueeze(-1)], dim=-1).view(-1)
    if nheads % 2 == 0:
        qkv = qkv.reshape(bsz, q_len, 3, 2, num_heads // 2, head_dim).permute(0, 3, 1, 2, 4, 5)
        qkv = qkv.reshape(bsz * 2, q_len, 3, num_heads // 2, head_dim)
        output = flash_attn_varlen_qkvpacked_func(qkv.reshape(bsz * 2 * q_len, 3, nheads // 2, head_dim), cu_q_lens)
        output = output.reshape(bsz, 2, q_len, nheads // 2, head_dim).transpose(1, 2)
        return output.reshape(bsz, q_len, nheads, head_dim)
    # An odd number cannot be reshaped so: the first half, rounded down, is not shifted.
    assert bsz == 1
    border = (cu_q_lens == q_len).nonzero().max().item()
    plain = flash_attn_varlen_qkvpacked_func(qkv[0, :, :, : nheads // 2], cu_q_lens[: border + 1])
    moved = flash_attn_varlen_qkvpacked_func(qkv[0, :, :, nheads // 2 :], cu_q_lens[border:] - q_len)
    return torch.cat([plain, moved], dim=1)[None]


def case(n_head, n_head_kv, d, n):
    # As ropewalk has them: [tokens, heads, d].
    q = values(n * n_head * d, 1).reshape(n, n_head, d).requires_grad_()
    k = values(n * n_head_kv * d, 2).reshape(n, n_head_kv, d).requires_grad_()
    v = values(n * n_head_kv * d, 3).reshape(n, n_head_kv, d).requires_grad_()
    grad = values(n * n_head * d, 4).reshape(n, n_head, d)
    heads = lambda x: x.transpose(0, 1)[None]
    n_rep = n_head // n_head_kv
    out = shifted(heads(q), repeat_kv(heads(k), n_rep), repeat_kv(heads(v), n_rep))[0]
    (out * grad).sum().backward()
    digits = lambda x: [float(f"{value:.9g}") for value in x.detach().flatten().tolist()]
    return {
        "n_head": n_head, "n_head_kv": n_head_kv, "d": d, "n": n, "scale": 1 / math.sqrt(d),
        "out": digits(out), "d_q": digits(q.grad), "d_k": digits(k.grad), "d_v": digits(v.grad),
    }  # fmt: skip


if __name__ == "__main__":
    cases = ",\n".join(json.dumps(case(*c)) for c in CASES)
    report = f'{{"torch": "{torch.__version__}", "cases": [\n{cases}\n]}}\n'
    pathlib.Path(__file__).with_name("s2.json").write_text(report)
