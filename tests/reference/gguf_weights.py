"""Reads a GGUF file: metadata, and tensors dequantized to float64. Needs numpy only.

Only what the default model needs: GGUF 3, little-endian, element types F32, F16, Q4_1, Q8_0.
"""

import mmap
import struct

import numpy as np

# GGUF value types that have a fixed size: id -> struct code.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def f32_values(raw):
    return raw.view("<f4").astype(np.float64)


def f16_values(raw):
    return raw.view("<f2").astype(np.float64)


def q4_1_values(raw):
    """Blocks of 32: d and m in f16, then 16 bytes, byte b with values b (low half) and b + 16; x = d q + m."""
    blocks = raw.reshape(-1, 20)
    d, m = np.split(blocks[:, :4].copy().view("<f2").astype(np.float64), 2, axis=1)
    q = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return d * q + m


def q8_0_values(raw):
    """Blocks of 32: d in f16, then 32 signed bytes; x = d q."""
    blocks = raw.reshape(-1, 34)
    d = blocks[:, :2].copy().view("<f2").astype(np.float64)
    return d * blocks[:, 2:].copy().view("i1")


# Element types: id -> (values in a block, bytes of a block, reader).
TYPES = {
    0: (1, 4, f32_values),
    1: (1, 2, f16_values),
    3: (32, 20, q4_1_values),
    8: (32, 34, q8_0_values),
}


class Gguf:
    """`meta`: the metadata. `tensor(name)`: float64, [rows, columns], where GGUF lists columns first."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 0
        if self.data[:4] != b"GGUF":
            raise ValueError(f"{path}: not a GGUF file")
        self.at = 4
        version, n_tensors, n_meta = self._unpack("I"), self._unpack("Q"), self._unpack("Q")
        if version != 3:
            raise ValueError(f"{path}: GGUF version {version}, expected 3")
        self.meta = {}
        for _ in range(n_meta):
            key = self._string()
            self.meta[key] = self._value(self._unpack("I"))
        self.infos = {}
        for _ in range(n_tensors):
            name = self._string()
            dims = [self._unpack("Q") for _ in range(self._unpack("I"))]
            self.infos[name] = (dims, self._unpack("I"), self._unpack("Q"))
        alignment = self.meta.get("general.alignment", 32)
        self.start = -(-self.at // alignment) * alignment

    def _unpack(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def _string(self):
        n = self._unpack("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode("utf-8")

    def _value(self, kind):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, n = self._unpack("I"), self._unpack("Q")
            return [self._value(inner) for _ in range(n)]
        return self._unpack(SCALARS[kind])

    def tensor(self, name):
        dims, kind, offset = self.infos[name]
        if kind not in TYPES:
            raise ValueError(f"{name}: element type {kind} is not read here")
        per_block, n_bytes, read = TYPES[kind]
        n = int(np.prod(dims))
        raw = np.frombuffer(self.data, np.uint8, n // per_block * n_bytes, self.start + offset)
        return read(raw).reshape(dims[::-1])
