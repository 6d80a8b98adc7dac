#!/usr/bin/env python3
"""Lists the public items of the library, from the pages that `cargo doc` wrote: a change of the API is seen in review.

    scripts/api.py TARGET           writes docs/api.txt from TARGET/doc/ropewalk
    scripts/api.py TARGET --check   fails if docs/api.txt is another list
"""

import re
import sys
from pathlib import Path

ITEM = re.compile(r"(struct|enum|union|trait|fn|type|constant|static|macro)\.(\w+)\.html")
# In a page: fields, variants, and methods of the item itself. Implemented traits come after them.
PART = re.compile(r'id="(structfield|variant|method|tymethod|associatedconstant|associatedtype)\.(\w+)"')
END = re.compile(r'id="(trait-implementations|foreign-impls|implementors|synthetic-implementations|deref-methods)')


def items(folder):
    """One line for each item, and for each of its parts."""
    for link in re.findall(r'href="([\w/]+\.\w+\.html)"', (folder / "all.html").read_text(encoding="utf-8")):
        page = folder / link
        found = ITEM.fullmatch(page.name)
        if not found:
            continue
        kind, name = found.groups()
        path = "::".join([*page.relative_to(folder).parent.parts, name])
        yield f"{path} ({kind})"
        text = page.read_text(encoding="utf-8")
        end = END.search(text)
        for part, inner in PART.findall(text[: end.start()] if end else text):
            yield f"{path}::{inner} ({part.removeprefix('ty').removeprefix('struct')})"


def main():
    root = Path(__file__).parent.parent
    target, *rest = sys.argv[1:]
    folder, kept = Path(target) / "doc/ropewalk", root / "docs/api.txt"
    listed = sorted(set(items(folder)))
    if len(listed) < 100:
        sys.exit(f"{folder}: found only {len(listed)} public items; run `cargo doc --release --no-deps` first")
    text = "".join(f"{line}\n" for line in listed)
    if rest != ["--check"]:
        kept.write_text(text, encoding="utf-8")
        return
    old = set(kept.read_text(encoding="utf-8").splitlines())
    changes = [f"+ {line}" for line in listed if line not in old]
    changes += [f"- {line}" for line in sorted(old - set(listed))]
    if changes:
        print("\n".join(changes))
        sys.exit(f"the public API is not that of docs/api.txt; if that is meant: scripts/api.py {target}")


if __name__ == "__main__":
    main()
