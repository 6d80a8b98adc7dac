#!/usr/bin/env python3
"""Takes texts out of the containers some packages keep them in.

  texts.py sword FOLDER OUT    blocks of a SWORD zCom commentary (FOLDER/{ot,nt}.?z{s,z}), a text each: OUT/ot-001.txt
  texts.py austen RDB OUT      novels of an R lazy-load file (RDB), a text each: OUT/emma.txt
"""

import html
import pathlib
import re
import struct
import sys
import zlib

# Elements that end a paragraph; all others are inside a line.
BREAKS = re.compile(r"</?(?:div|chapter|title|p|lg|l|lb|br|list|item|table|row)\b[^>]*>")
TAG = re.compile(r"<[^>]*>")


def plain(xml):
    """The text of OSIS XML: an empty line between paragraphs."""
    text = html.unescape(TAG.sub("", BREAKS.sub("\0", xml)))
    paragraphs = (" ".join(p.split()) for p in text.split("\0"))
    return "\n\n".join(p for p in paragraphs if p)


def sword(folder, out):
    """The index is triples (offset, size, size unpacked), little endian, of zlib streams in the data file."""
    for index in sorted(folder.glob("?t.?zs")):
        entries = index.read_bytes()
        data = index.with_suffix(index.suffix[:-1] + "z").read_bytes()
        for i, (at, size, unpacked) in enumerate(struct.iter_unpack("<III", entries)):
            if size == 0:
                continue
            block = zlib.decompress(data[at : at + size])
            if len(block) != unpacked:
                sys.exit(f"{index}: block {i}: expected {unpacked} bytes, found {len(block)}")
            text = plain(block.decode("utf-8"))
            if text:
                (out / f"{index.stem}-{i:03}.txt").write_text(text + "\n", encoding="utf-8", newline="")


def strings(block):
    """The character vector in a serialized R object (XDR, version 2 or 3), with nothing around it."""
    at = 2

    def integer():
        nonlocal at
        at += 4
        return struct.unpack_from(">i", block, at - 4)[0]

    def take(n):
        nonlocal at
        at += n
        return block[at - n : at]

    if block[:2] != b"X\n":
        sys.exit("not a serialized R object")
    version, _, _ = integer(), integer(), integer()
    if version == 3:
        take(integer())
    if integer() & 0xFF != 16:
        sys.exit("not a vector of strings")
    for _ in range(integer()):
        if integer() & 0xFF != 9:
            sys.exit("not a string")
        yield take(max(integer(), 0)).decode("utf-8")


def austen(rdb, out):
    """The file is records: size unpacked (u32, big endian) and a zlib stream. A novel's first line is its title."""
    data = rdb.read_bytes()
    while data:
        stream = zlib.decompressobj()
        block = stream.decompress(data[4:])
        if len(block) != struct.unpack_from(">I", data)[0]:
            sys.exit(f"{rdb}: a record has another length than it says")
        lines = list(strings(block))
        name = re.sub(r"[^a-z]+", "-", lines[0].lower()).strip("-")
        (out / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
        data = stream.unused_data


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("sword", "austen"):
        sys.exit(__doc__)
    target = pathlib.Path(sys.argv[3])
    target.mkdir(parents=True, exist_ok=True)
    {"sword": sword, "austen": austen}[sys.argv[1]](pathlib.Path(sys.argv[2]), target)
