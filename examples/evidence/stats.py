"""95% intervals: Wilson's for proportions, Student's over novels for losses, the bootstrap for paired answers."""

import math
import random
import statistics
from typing import NamedTuple

DRAWS = 4000
# 97.5% quantiles of Student's t distribution, by degrees of freedom.
STUDENT = [math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]


class Interval(NamedTuple):
    """A difference, its interval, and the difference of each seed, if there are several."""

    value: float
    low: float
    high: float
    each: tuple = ()

    def below(self, limit):
        """Returns true if the interval and every seed are below a limit, false if they are above, and otherwise None."""
        all_of = (self.low, self.high, *self.each)
        return True if max(all_of) < limit else False if min(all_of) > limit else None

    def above(self, limit):
        below = self.below(limit)
        return None if below is None else not below

    def within(self, limit):
        """Returns true if the difference is less than a limit in both directions, and false if it is more in one."""
        sides = (self.below(limit), self.above(-limit))
        return True if all(sides) else False if False in sides else None


def wilson(right, n):
    """Returns the interval of a proportion, in percent."""
    if n == 0:
        return (0.0, 100.0)
    z = 1.959964
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return (max(0.0, 100 * (middle - half)), min(100.0, 100 * (middle + half)))


def bootstrap(values, each=()):
    """Takes a value for each question. Returns their mean and its bootstrap interval."""
    draw = random.Random(1)
    found = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(DRAWS))
    return Interval(sum(values) / len(values), found[int(0.025 * DRAWS)], found[int(0.975 * DRAWS) - 1], tuple(each))


def over_novels(values, each=()):
    """Takes lists of values by novel. Returns the mean of the novels' means and its interval. Documents of one novel resemble each
    other, so they do not count as independent."""
    means = [statistics.fmean(of) for of in values.values()]
    mean, n = statistics.fmean(means), len(means)
    half = STUDENT[n - 1] * statistics.stdev(means) / math.sqrt(n) if n > 1 else math.inf
    return Interval(mean, mean - half, mean + half, tuple(each))


def novel(document):
    """Returns the novel of a document, whose name ends with its position."""
    return document.rpartition("-")[0]


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


def differences(a, b, start=0, end=1 << 40):
    """Returns the loss of `a` minus the loss of `b` on the same tokens of each document, in nats per token."""
    out, other = {}, sums(b, start, end)
    for name, (x, n) in sums(a, start, end).items():
        y, m = other[name]
        if n != m:
            raise ValueError(f"{name}: token counts differ: {n} and {m}")
        out[name] = (x - y) / n
    return out


def by_novel(documents):
    out = {}
    for name, value in documents.items():
        out.setdefault(novel(name), []).append(value)
    return out


def reach(a, b, split):
    """Returns by how much more `a` is below `b` past a position than before it, in nats, with its interval."""
    past, before = differences(a, b, split), differences(a, b, 0, split)
    return over_novels(by_novel({name: past[name] - before[name] for name in past}))


def paired(a, b, start=0, end=1 << 40):
    """Returns the loss of `a` minus the loss of `b` on the same tokens, in nats per token, with its interval. Both can be lists of
    seeds. The losses of the seeds on a document are averaged first."""
    a, b = ([x] if isinstance(x, dict) else x for x in (a, b))
    seeds = [differences(x, y, start, end) for x, y in zip(a, b, strict=True)]
    mean = {name: statistics.fmean(seed[name] for seed in seeds) for name in seeds[0]}
    each = [statistics.fmean(seed.values()) for seed in seeds] if len(seeds) > 1 else ()
    return over_novels(by_novel(mean), each)
