#!/usr/bin/env bash
# Runs the units of plan.toml. It takes the next unit that has no record, runs it at low priority with one frozen build, and
# writes its record to docs/results/records/. You can kill it at any time. The same command resumes.
#
#   examples/evidence/run.sh --list            list the units, their state, and their hours
#   examples/evidence/run.sh OUT               run all units, after `make models benchmarks train-texts`; OUT is the
#                                              working directory of this machine
#   examples/evidence/run.sh OUT --only frozen/perplexity --count 1 -t 1
#   examples/evidence/run.sh OUT --device cuda:0
#                                              compute on this device [default: cpu]
#   examples/evidence/run.sh OUT --plan examples/evidence/gpu.toml --device cuda:0
#                                              apply the changes in this file to plan.toml; takes another OUT, and the records
#                                              go to OUT/records
#   touch OUT/stop                             stop before the next command, or at the end of a training slice; remove
#                                              the file before the next run
#   examples/evidence/run.sh OUT --import DIR  import records of other machines that match this plan, commit, models,
#                                              and texts
#   examples/evidence/run.sh --check           check the plan; with --program DIR, also check every command line
#
# A machine that lacks the model of a recorded unit rebuilds it when another unit needs it, and compares its checksum. Training
# uses the same instructions on every x86-64 processor with AVX2, so the checksums should match.
# Several runs can share one directory; each takes a different unit, and waits while others measure units. You need
# bash, git, and Python 3.11. You also need cargo, which builds the program once, unless --program names a directory with a
# build. report.sh writes docs/evidence.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONDONTWRITEBYTECODE=1 PYTHONUTF8=1
# Linux divides CPU time between sessions first. In a new session (setsid), nice alone has no effect.
if [ "$(cut -d ' ' -f 6 /proc/$$/stat 2> /dev/null)" = $$ ]; then
  { echo 19 > /proc/$$/autogroup; } 2> /dev/null || true
fi
exec nice -n 19 "${PYTHON:-python3}" "$here/evidence.py" "$@"
