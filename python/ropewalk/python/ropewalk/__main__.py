"""Runs the program: `python -m ropewalk` is `ropewalk`."""

from __future__ import annotations

import os
import subprocess
import sys

from ropewalk._program import find


def main() -> int:
    """Replaces this process by the program, where the system can."""
    program = str(find())
    if os.name != "nt":
        os.execv(program, [program, *sys.argv[1:]])
    return subprocess.call([program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
