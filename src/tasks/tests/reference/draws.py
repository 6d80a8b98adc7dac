"""Records draws of Python's `random` and NumPy's `numpy.random` for the tests of module `random`.

Runs CPython 3.11 and NumPy 2.4.6 (any CPython since 3.11 and any NumPy since 1.17 gives the same):

    python3 draws.py > ../fixtures/random/draws.json
"""

import json
import random
import string
import sys
import uuid

import numpy as np


def python(seed):
    random.seed(seed)
    draws = {"seed": seed}
    draws["random"] = [random.random().hex() for _ in range(5)]
    draws["getrandbits"] = [[k, str(random.getrandbits(k))] for k in (1, 7, 31, 32, 33, 64, 65, 100, 128)]
    draws["randint"] = [[a, b, random.randint(a, b)] for a, b in
                        ((0, 0), (0, 1), (1, 6), (5, 8), (1000000, 9999999), (0, 2**32 - 1), (0, 2**40)) * 3]
    draws["choice"] = [random.choice(string.ascii_lowercase) for _ in range(20)]
    draws["choices"] = ["".join(random.choices(string.ascii_uppercase, k=k)) for k in (1, 5, 40)]
    # A list for small populations, a set for large ones: both sides of the border (21, 85, 277, 1045), and k of 0 and n.
    draws["sample"] = [[n, k, random.sample(range(n), k)] for n, k in
                       ((0, 0), (1, 1), (40, 1), (40, 4), (21, 5), (22, 5), (85, 6), (86, 6), (85, 21), (86, 21), (277, 22),
                        (278, 22), (30, 30), (277, 85), (278, 85), (1045, 86), (1046, 86), (100000, 50))]
    shuffled = list(range(100))
    random.shuffle(shuffled)
    draws["shuffle"] = shuffled
    draws["uuid4"] = [str(uuid.UUID(int=random.getrandbits(128), version=4)) for _ in range(5)]
    # Far into the stream, over several renewals of the state.
    draws["sum_of_10000_words"] = sum(random.getrandbits(32) for _ in range(10000))
    draws["last"] = random.random().hex()
    return draws


def numpy(seed):
    np.random.seed(seed)
    ranges = ((10000, 99999), (0, 1), (0, 2), (0, 10), (7, 8), (0, 2**31), (0, 2**32 - 1), (10000, 99999)) * 8
    return {"seed": seed, "randint": [[a, b, int(np.random.randint(a, b))] for a, b in ranges]}


json.dump({"python": [python(s) for s in (0, 1, 42, 43, 2**32 - 1, 2**32, 123456789012345678)],
           "numpy": [numpy(s) for s in (0, 1, 42, 43, 2**32 - 1)]}, sys.stdout, separators=(",", ":"))
print()
