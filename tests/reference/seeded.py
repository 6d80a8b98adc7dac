"""Numbers that any language makes the same, bit by bit, from the number of a stream and an index."""

import numpy as np

# Streams of the adapter are 14 * layer + 2 * target + (0 for A, 1 for B); those of signs come later.
TARGETS = "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split()
SIGN_STREAM = 1 << 20
# Bound of both matrices: a power of two, so that every value is exact in f32.
BOUND = 2.0**-4


def words(stream, n):
    """SplitMix64's output at the counters (stream * 2^32 + index + 1), index from 0 to n - 1, as uint64."""
    z = (np.uint64(stream << 32) + np.arange(1, n + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(stream, n):
    """Uniform in [-BOUND, BOUND): the top 24 bits of each word."""
    return ((words(stream, n) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0) * BOUND


def signs(k, n):
    """+1 where the top bit is 0, else -1. A shorter tensor has the beginning of a longer one's."""
    return 1.0 - 2.0 * (words(SIGN_STREAM + k, n) >> np.uint64(63)).astype(np.float64)


def lora(layer, target, rank, n_in, n_out):
    """A [rank, n_in] and B [n_out, rank]; in ggml's order A is [n_in, rank] and B [rank, n_out]."""
    stream = 2 * (layer * len(TARGETS) + TARGETS.index(target))
    a = uniform(stream, rank * n_in).reshape(rank, n_in)
    b = uniform(stream + 1, n_out * rank).reshape(n_out, rank)
    return a, b
