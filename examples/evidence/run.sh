#!/usr/bin/env bash
# Measures what plan.toml asks for: takes the next unit without a record, runs it at low priority with one frozen build,
# and writes its record to docs/results/records/. It may be killed at any time; the same command goes on where it was.
#
#   examples/evidence/run.sh --list            units, which have records, hours
#   examples/evidence/run.sh OUT               after `make models benchmarks train-texts`; OUT: this machine's folder
#   examples/evidence/run.sh OUT --only frozen/perplexity --count 1 -t 1
#   touch OUT/stop                             stops between commands, training at the end of its slice; then remove it
#   examples/evidence/run.sh OUT --import DIR  records of other machines that fit this plan, commit, models and texts
#   examples/evidence/run.sh --check           whether the plan is sound; with --program DIR also every command line
#
# Several of these may run at once, on one folder: each takes another unit. Needs bash, git and Python 3.11, and cargo to
# build the program once, unless --program names a folder with a build. report.sh makes docs/evidence.md from the records.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONDONTWRITEBYTECODE=1 PYTHONUTF8=1
# Linux divides the processors between sessions first, so nice alone changes nothing when setsid starts a new one.
if [ "$(cut -d ' ' -f 6 /proc/$$/stat 2> /dev/null)" = $$ ]; then
  { echo 19 > /proc/$$/autogroup; } 2> /dev/null || true
fi
exec nice -n 19 "${PYTHON:-python3}" "$here/evidence.py" "$@"
