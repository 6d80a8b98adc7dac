"""The pairs of methods.py found another way: token by token, with what a decoder would keep.

`attention.py --check` compares. Each function yields for query 0, 1, 2, ... a dict {key: distance} of what
that query sees.
"""


def streaming(n, S, M):
    """A cache of S + M places; room is made before a token enters, and positions are places."""
    cache = []
    for i in range(n):
        if len(cache) == S + M:
            del cache[S]
        cache.append(i)
        yield {j: len(cache) - 1 - place for place, j in enumerate(cache)}


def streaming_late(n, S, M):
    """The same with room made after the token was used, so that it finds S + M others."""
    cache = []
    for i in range(n):
        cache.append(i)
        yield {j: len(cache) - 1 - place for place, j in enumerate(cache)}
        if len(cache) > S + M:
            del cache[S]


def lm_infinite(n, M, G):
    """The first keys, not turned, meet a query turned to M; the last M are then put in as they are."""
    for i in range(n):
        sees = {j: M for j in range(min(G, i + 1))}
        sees.update({j: i - j for j in range(max(0, i - M + 1), i + 1)})
        yield sees


def self_extend(n, W, G):
    """All keys at grouped positions, then the last W again at their own."""
    for i in range(n):
        query = i // G + W - W // G
        sees = {j: query - j // G for j in range(i + 1)}
        sees.update({j: i - j for j in range(i + 1)[-W:]})
        yield sees


def dca(n, C, w):
    """Three tables of positions, and the chunks closed so far."""
    c = C - w
    own = list(range(c))
    next_ = [min(p + c, C) for p in own]
    closed, now = [], []
    for i in range(n):
        if len(now) == c:
            closed.append(now)
            now = []
        now.append(i)
        place = len(now) - 1
        sees = {j: own[place] - p for p, j in enumerate(now)}
        for age, chunk in enumerate(reversed(closed)):
            query = next_[place] if age == 0 else next_[-1]
            sees.update({j: query - p for p, j in enumerate(chunk)})
        yield sees


# Names of methods.py -> the same case here, for n tokens.
WALKS = {
    "self-extend": lambda n: self_extend(n, 64, 4),
    "self-extend-8": lambda n: self_extend(n, 64, 8),
    "lm-infinite": lambda n: lm_infinite(n, 128, 10),
    "dca": lambda n: dca(n, 192, 32),
    "streaming": lambda n: streaming(n, 4, 124),
    "streaming-late": lambda n: streaming_late(n, 4, 124),
}
