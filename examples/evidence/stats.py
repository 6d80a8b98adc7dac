"""95% intervals: Wilson's for proportions, the bootstrap for paired differences."""

import math
import random

DRAWS = 4000


def wilson(right, n):
    """Returns the interval of a proportion, in percent."""
    if n == 0:
        return (0.0, 100.0)
    z = 1.959964
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return (max(0.0, 100 * (middle - half)), min(100.0, 100 * (middle + half)))


def bootstrap(pairs):
    """Takes (sum, count) for each document or question. Returns the ratio of the totals and its bootstrap interval."""
    total = sum(s for s, _ in pairs) / sum(n for _, n in pairs)
    draw, found = random.Random(1), []
    for _ in range(DRAWS):
        of = draw.choices(pairs, k=len(pairs))
        found.append(sum(s for s, _ in of) / sum(n for _, n in of))
    found.sort()
    return total, found[int(0.025 * DRAWS)], found[int(0.975 * DRAWS) - 1]


def sums(documents, start, end):
    """Returns, for each document of a record, the sum and the number of its losses at these positions."""
    out = {}
    for name, buckets in documents.items():
        inside = [b for b in buckets if start <= b[0] < end]
        out[name] = (sum(b[2] for b in inside), sum(b[1] for b in inside))
    return out


def perplexity(documents, start=0, end=1 << 40):
    of = sums(documents, start, end).values()
    return math.exp(sum(s for s, _ in of) / sum(n for _, n in of))


def reach(a, b, split):
    """Returns by how much more `a` is below `b` past a position than before it, in nats, with its interval over documents."""
    parts = []
    for name in a:
        means = []
        for span in ((split, 1 << 40), (0, split)):
            (x, n), (y, m) = sums(a, *span)[name], sums(b, *span)[name]
            means.append(x / n - y / m)
        parts.append((means[0] - means[1], 1))
    return bootstrap(parts)


def paired(a, b, start=0, end=1 << 40):
    """Returns the loss of `a` minus the loss of `b` on the same tokens, in nats per token, with its interval over documents.
    Both can be lists of seeds. The losses of the seeds on a document are averaged before documents are drawn."""
    a, b = ([x] if isinstance(x, dict) else x for x in (a, b))
    parts = []
    for name in a[0]:
        one = [sums(x, start, end)[name] for x in a]
        other = [sums(x, start, end)[name] for x in b]
        n = {count for _, count in one + other}
        if len(n) != 1:
            raise ValueError(f"{name}: token counts differ: {sorted(n)}")
        (n,) = n
        parts.append((sum(s for s, _ in one) / len(one) - sum(s for s, _ in other) / len(other), n))
    return bootstrap(parts)
