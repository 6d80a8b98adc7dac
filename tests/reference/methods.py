"""Attention-side methods by definition: for each query i and key j, whether i sees j and at what distance.

Nothing here knows of branches, rotated copies or caches. Every function takes the column `i` and the row `j`
and returns (distance, visible), integer and boolean matrices [n, n]; distances of pairs that are not visible
mean nothing.
"""

from dataclasses import dataclass

import numpy as np

# The trained window the model is taken to have.
L = 256


def plain(i, j):
    return i - j, j <= i


def self_extend(i, j, W, G, neighbour=np.less, grouped="positions"):
    """Neighbors exactly; beyond them in groups of G, shifted so that the two meet at distance W."""
    far = i // G - j // G if grouped == "positions" else (i - j) // G
    return np.where(neighbour(i - j, W), i - j, far + W - W // G), j <= i


def lm_infinite(i, j, M, G, near=np.less, far=None):
    """The last M keys, and of the others the first G, all at distance M unless `far` gives another for i - j."""
    d = i - j
    is_near = near(d, M)
    there = np.full_like(d, M) if far is None else far(d)
    return np.where(is_near, d, there), (j <= i) & (is_near | (j < G))


def dca(i, j, c, cap):
    """Chunks of c. Keys sit at their place in their chunk. Queries sit at theirs for keys of their own chunk;
    c further, but at most at `cap`, for those of the chunk before; and for all older ones where the last query
    of a chunk is for the chunk before."""
    back = i // c - j // c
    own, before, older = i % c, np.minimum(i % c + c, cap), min(2 * c - 1, cap)
    q = np.where(back == 0, own, np.where(back == 1, before, older))
    return q - j % c, j <= i


def streaming(i, j, S, M, last=None):
    """S first keys and the last M. Positions are places in the cache; the query never stands beyond `last`."""
    last = S + M - 1 if last is None else last
    sink = j < S
    return np.where(sink, np.minimum(i, last) - j, i - j), (j <= i) & (sink | (i - j < M))


@dataclass
class Case:
    """One thing to measure."""

    name: str
    # (distance, visible), see above.
    pairs: object
    # What ropewalk calls it; None for a reading that is not its own.
    spec: str = None
    # Which case it is another reading of, and what that reading is.
    of: str = None
    reading: str = None
    # All angles times this.
    angle: float = 1.0
    # Scores times this: a number, or one for each query from its 0-based position.
    score: object = 1.0


def log_scale(i):
    """Self-Extend's optional factor on queries, with the trained window as base of the logarithm."""
    return np.maximum(1.0, np.log(i + 1) / np.log(L))


SE, LMI, DCA, STR = "self-extend", "lm-infinite", "dca", "streaming"
SE_SPEC = f"self-extend:original={L},window=64,group=4"

CASES = [
    Case("plain", plain, "plain"),
    Case("pi", plain, "pi:factor=2", angle=0.5),
    Case(SE, lambda i, j: self_extend(i, j, 64, 4), SE_SPEC),
    Case("pi+self-extend", lambda i, j: self_extend(i, j, 64, 4), f"pi:factor=2+{SE_SPEC}", angle=0.5),
    Case(
        "self-extend-8",
        lambda i, j: self_extend(i, j, 64, 8),
        f"self-extend:original={L},window=64,group=8",
    ),
    Case(
        "self-extend-8-log",
        lambda i, j: self_extend(i, j, 64, 8),
        f"self-extend:original={L},window=64,group=8,log-scale=true",
        score=log_scale,
    ),
    Case(LMI, lambda i, j: lm_infinite(i, j, 128, 10), f"lm-infinite:original={L},window=128,global=10"),
    Case(DCA, lambda i, j: dca(i, j, 160, 192), f"dca:original={L},chunk=192,local=32"),
    Case(STR, lambda i, j: streaming(i, j, 4, 124), "streaming:sinks=4,window=124"),
]

VARIANTS = [
    Case(
        "self-extend-distance",
        lambda i, j: self_extend(i, j, 64, 4, grouped="distance"),
        of=SE,
        reading="groups the distance, floor((i-j)/G), where the code groups positions",
    ),
    Case(
        "self-extend-le",
        lambda i, j: self_extend(i, j, 64, 4, neighbour=np.less_equal),
        of=SE,
        reading="a key at distance W is still a neighbour; the same where G divides W",
    ),
    Case(
        "self-extend-eq15",
        lambda i, j: self_extend(i, j, 64, 4, neighbour=np.less_equal, grouped="distance"),
        of=SE,
        reading="equation 15 of LCEG (arXiv:2409.12181): both of the above",
    ),
    Case(
        "lm-infinite-at-L",
        lambda i, j: lm_infinite(i, j, 128, 10, far=lambda d: np.full_like(d, L)),
        of=LMI,
        reading="global keys at distance L, not M",
    ),
    Case(
        "lm-infinite-min",
        lambda i, j: lm_infinite(i, j, 128, 10, far=lambda d: np.minimum(d, L)),
        of=LMI,
        reading="global keys at min(i-j, L), as the text of LCEG has it",
    ),
    Case(
        "lm-infinite-le",
        lambda i, j: lm_infinite(i, j, 128, 10, near=np.less_equal),
        of=LMI,
        reading="a key at distance M is still seen",
    ),
    Case(
        "dca-chunks-of-C",
        lambda i, j: dca(i, j, 192, 192 + 32),
        of=DCA,
        reading="chunks are C long, not C-w, and the window comes on top: queries at most at C+w",
    ),
    Case(
        "dca-to-the-end",
        lambda i, j: dca(i, j, 192, L - 1),
        of=DCA,
        reading="chunks are C long and the window is what L leaves, w = L-C: queries at most at L-1",
    ),
    Case(
        "dca-mscale",
        lambda i, j: dca(i, j, 160, 192),
        of=DCA,
        reading="with the reference code's factor 0.05 ln(n/L) + 1, n = 700, on queries and keys",
        score=lambda i: (0.05 * np.log(len(i) / L) + 1) ** 2,
    ),
    Case(
        "streaming-late",
        lambda i, j: streaming(i, j, 4, 125),
        of=STR,
        reading="evicts after the step, as eval_long_ppl.py does: the query comes on top of 124 recent keys",
    ),
    Case(
        "streaming-text",
        lambda i, j: streaming(i, j, 4, 124, last=len(i)),
        of=STR,
        reading="positions in the text, not in the cache",
    ),
]
