#!/usr/bin/env bash
# Run notebooks and tests on a pretend accelerator: what a GPU would refuse is refused.
#
#   tools/pretend.sh PYTHON NOTEBOOK-OR-FOLDER ...
#
# A cell may take long: every operator costs ten times its time.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
export NORMBOOK_DEVICE=pretend
export PYTHONPATH=$PWD/tools/pretend${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -m pytest -q --nbval -n "${JOBS:-2}" --dist loadfile \
  --nbval-cell-timeout=1000 -p no:cacheprovider --no-header "$@"
