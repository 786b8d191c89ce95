#!/usr/bin/env bash
# Build the wheel and the source archive into dist/, check what is in them, and try the
# wheel in an empty environment, in a folder with a space: a layer is checked there, and
# a broken one is found.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/build"
pip() { "$1/bin/python" -m pip --disable-pip-version-check install -q "${@:2}"; }
pip "$scratch/build" build==1.6.1 twine==7.0.0
rm -rf dist build
"$scratch/build/bin/python" -m build -o dist .
rm -rf build
"$scratch/build/bin/python" -m twine check --strict dist/*

# Nothing but the package, with what it reads.
names=$("$scratch/build/bin/python" -m zipfile -l dist/*.whl | awk 'NR > 1 { print $1 }')
for file in py.typed book.mplstyle lab/record.schema.json pytest_plugin.py; do
  grep -qx "normbook/$file" <<<"$names" || { echo "dist: $file is not in the wheel" >&2; exit 1; }
done
if grep -vE '^normbook(-[0-9.]+\.dist-info)?/' <<<"$names"; then
  echo 'dist: the wheel holds the above, which is no part of the package' >&2
  exit 1
fi
if tar -tzf dist/*.tar.gz | grep -E '^[^/]+/(book|tests|benchmarks)/.'; then
  echo 'dist: the source archive holds the above, which is no part of the package' >&2
  exit 1
fi

fresh="$scratch/an empty place"
mkdir "$fresh"
"${PYTHON:-python3}" -m venv "$fresh/venv"
pip "$fresh/venv" -c constraints.txt dist/*.whl pytest
cp tests/dist_example.py "$fresh/test_layers.py"
cd "$fresh"
venv/bin/python -m pytest -q -p no:cacheprovider test_layers.py
du -sm venv/lib/python*/site-packages/normbook | awk '{ print "normbook itself: " $1 " MB" }'
