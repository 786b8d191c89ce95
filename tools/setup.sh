#!/usr/bin/env bash
# Make the virtual environment .venv and install what requirements.txt lists.
# Does nothing when that is done already; redone when a file it depends on changes.
#
#   PYTHON    interpreter to use                         (python3)
#   VENV      where the environment goes                 (.venv)
#   VERSIONS  pinned: constraints.txt; newest, oldest: the ends of the supported ranges
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} venv=${VENV:-.venv} versions=${VERSIONS:-pinned}
stamp="$venv/.installed"
fail() {
  printf 'setup: %s\n' "$1" >&2
  exit 1
}

key="$versions in $PWD: $(cat requirements.txt constraints.txt pyproject.toml | cksum)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && "$venv/bin/python" -c ''; then
  exit 0
fi

command -v "$python" >/dev/null ||
  fail "no Python found as '$python'; install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "Python 3.11 or newer is needed, '$python' is $("$python" -V 2>&1); name a newer one: make PYTHON=python3.11"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "this Python has no venv module; on Debian and Ubuntu: sudo apt install python3-venv"

# Only what this script made is ever deleted: a folder that holds its mark beside what
# venv writes. An environment that somebody made by hand is used as it is; any other
# folder that is not empty is left alone.
mark="$venv/.made-by-normbook"
if [ -e "$venv" ] && [ ! -d "$venv" ]; then
  fail "VENV must name a folder, '$venv' is a file; name another: make VENV=FOLDER"
fi
want=$("$python" -c 'import sys; print(sys.version_info[:2])')
have=$("$venv/bin/python" -c 'import sys, pip; print(sys.version_info[:2])' 2>/dev/null || true)
home=$(cat "$mark" 2>/dev/null || true)
if [ -z "$have" ] || [ "$have" != "$want" ] || [ "${home:-$PWD}" != "$PWD" ]; then
  # From another Python or another folder, or interrupted: made anew.
  if [ -f "$mark" ] && [ -f "$venv/pyvenv.cfg" ]; then
    rm -rf "$venv"
  elif [ -d "$venv" ] && [ -n "$(ls -A "$venv" | grep -vxF "${mark##*/}")" ]; then
    fail "VENV must name a new folder or an environment that works with $("$python" -V), '$venv' is neither and was left as it is; name another: make VENV=FOLDER, or remove it yourself"
  fi
  mkdir -p "$venv" && printf '%s\n' "$PWD" >"$mark" && "$python" -m venv "$venv" ||
    fail "could not make $venv; is the disk full or the folder read-only?"
fi
rm -f "$stamp"

# pip reads relative paths in a requirements file from the current folder.
requirements=requirements.txt
if [ "$versions" != pinned ]; then
  requirements="$venv/requirements.txt"
  case $versions in
    newest) grep -v '^-c' requirements.txt >"$requirements" ;;
    oldest) grep -v '^-c' requirements.txt | sed -E 's/>=([0-9a-z.]+)(,<[0-9.]+)?/==\1/' >"$requirements" ;;
    *) fail "VERSIONS must be pinned, newest or oldest, got '$versions'" ;;
  esac
fi
quiet=-q
[ ! -t 1 ] || quiet=
echo "setup: installing into $venv (a few minutes the first time)"
"$venv/bin/python" -m pip --disable-pip-version-check install $quiet -r "$requirements" ||
  fail "the install failed, see above; run the same command again when the cause is gone"
"$venv/bin/python" -m pip --disable-pip-version-check check ||
  fail "the installed packages do not fit together, see above; remove $venv and try again"
# Loops of the LSTM layers: compiled once, in half a minute, and kept beside their source.
if [ -e src/normbook/layers/compiled_lstm.py ]; then
  "$venv/bin/python" tools/compile_loops.py ||
    fail "the loops of the layers could not be compiled, see above; NORMBOOK_NATIVE=0 does without"
fi
printf '%s\n' "$key" >"$stamp"
