#!/usr/bin/env bash
# Run notebooks where nothing is as at home: an empty HOME, no network, a folder with a
# space and an umlaut that nobody may write to, LANG=C, and no GPU.
#
#   $@  notebooks (all of the book)
#
# Needs the right to mount and to unshare: root, or a system that gives it to everybody.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v python)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
git clone -q . "$scratch/a copy, öde"
mkdir "$scratch/home"
[ $# -gt 0 ] || set -- book
env -i PATH="$PATH" HOME="$scratch/home" LANG=C LC_ALL=C CUDA_VISIBLE_DEVICES= \
  unshare --map-root-user --mount --net bash -euc '
    copy=$1 python=$2
    shift 2
    ip link set lo up
    mount --bind "$copy" "$copy"
    mount -o remount,bind,ro "$copy"
    cd "$copy"
    ! touch here 2>/dev/null || { echo "cold start: the folder can be written to" >&2; exit 1; }
    export PYTHONPATH=$copy/src PYTHONDONTWRITEBYTECODE=1
    "$python" -m pytest -q --nbval -p no:cacheprovider "$@"
  ' - "$scratch/a copy, öde" "$python" "$@" | tee "$scratch/said"
printf 'cold start: %s\n' "$(grep -E ' passed| failed' "$scratch/said" | tail -n 1)"
