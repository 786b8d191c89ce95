#!/usr/bin/env bash
# Build the site from nothing into _build/html.
#
#   $1  the Python of the environment
#
# Where it cannot be written, Sphinx ends with tracebacks of its own: here that is one
# line, and nothing half-written is left.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  printf 'book: %s\n' "$1" >&2
  exit 1
}
rm -rf _build 2>/dev/null || fail "the old _build cannot be deleted; delete it yourself"
if ! said=$("${1%/*}/jupyter-book" build . -W -n --keep-going -q 2>&1); then
  system='No space left on device|Disk quota exceeded|File too large|Permission denied|Read-only file system'
  why=$(printf '%s\n' "$said" | grep -oE "\[Errno [0-9]+\] ($system).*" | tail -n 1) || true
  [ -z "$why" ] || rm -rf _build 2>/dev/null || true
  [ -z "$why" ] || fail "the site could not be written to $PWD/_build: ${why#*] }; make room there or change its permissions, then run make book again"
  printf '%s\n' "$said" >&2
  exit 1
fi
printf '%s\n' "$said"
