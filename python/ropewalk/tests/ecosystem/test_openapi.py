"""Requests that `schemathesis` makes of `/openapi.json`: none is a fault of the server, and the answers are as described."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

from served import answered, serving

#: Requests of each operation at most, in addition to those at the bounds of its fields, and seconds for all.
N, SECONDS = (300, 7200) if "ROPEWALK_SOAK" in os.environ else (10, 240)


def test_answers_are_as_the_description_says(path: Path, tmp_path: Path) -> None:
    faulthandler.dump_traceback_later(SECONDS + 60, exit=True)
    # Without a directory, saving a slot is not served, which is an error of the server's kind (501).
    texts = tmp_path / "texts"
    texts.mkdir(mode=0o700)
    with serving(path, "--rope", "plain", "--ctx", 64, "--parallel", 4, "--prefix-dir", texts) as url:
        options = ["--checks", "not_a_server_error,response_schema_conformance", "--phases", "coverage,fuzzing"]
        # The same requests each time, of what is valid and of what is nearly so.
        options += ["--generation-deterministic", "--max-examples", str(N), "--mode", "all"]
        options += ["--continue-on-failure", "--suppress-health-check", "all", "--request-timeout", "60", "--no-color"]
        program = str(Path(sys.executable).with_name("schemathesis"))
        command = [program, "run", f"{url}/openapi.json", *options]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stdout
        # It got through to the model, and past it.
        assert answered(url, 200) > N and answered(url, 400) > N, done.stdout
