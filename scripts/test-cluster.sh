#!/usr/bin/env bash
# Runs studies on Slurm and Ray, both on this machine, with two nodes of one processor each. Compares their reports with those of
# one machine, after 30 cells, workers, and nodes were killed on each engine, and the time of two nodes with that of one. Runs the
# recipes of docs/guide/cluster.md for GNU parallel and Snakemake.
#   scripts/test-cluster.sh [ARGUMENTS OF scripts/cluster/main.py..]    --seed N, --kills N, --only slurm|ray|recipes, --no-speed
#
# Installs all by name if they are missing; Ray and Snakemake go into a virtual environment in target. Daemons listen on loopback and
# end with the test. The times mean something only if nothing else runs.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
environment=$target/cluster

scripts/setup.sh cluster
[ -x "$environment/bin/pip" ] || python3 -m venv "$environment"
"$environment/bin/pip" install --quiet 'ray[client]>=2.52,<3' 'snakemake>=9,<10'
# Nodes do without it, so it is not in their environment.
"$environment/bin/pip" install --quiet --no-deps --upgrade --target "$environment/driver" ./python/ropewalk-ray
export PYTHONDONTWRITEBYTECODE=1
python3 python/ropewalk-ray/tests/test_parts.py --quiet

# A short path, as sockets are in it.
folder=$(mktemp -d)
status=0
timeout --kill-after=60 45m "$environment/bin/python" scripts/cluster/main.py --program "$target/release/ropewalk" \
    --package "$environment/driver" --folder "$folder/c" "$@" || status=$?
[ "$status" = 124 ] && echo "test-cluster: stopped after 45 minutes" >&2
[ "$status" = 0 ] && rmdir "$folder"
exit "$status"
