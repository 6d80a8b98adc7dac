#!/usr/bin/env bash
# Writes docs/evidence.md and its pictures from the records in docs/results/records alone. Needs Python 3.11.
#
#   examples/evidence/report.sh [--plan FILE] [--records DIR] [--docs DIR]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONDONTWRITEBYTECODE=1 PYTHONUTF8=1
exec "${PYTHON:-python3}" "$here/report.py" "$@"
