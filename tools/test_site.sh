#!/usr/bin/env bash
# Test the built site in a browser, or say why not.
#
#   SITE_PAGES  all, or nothing: a few in which a change of a rule shows
#   BROWSER     the program to use  (Chromium or Chrome, where there is one)
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
  printf 'test-site: skipped, %s\n' "$1" >&2
  exit 0
}

if [ -z "${BROWSER:-}" ]; then
  BROWSER=$(command -v chromium chromium-browser google-chrome | head -n 1) ||
    skip "there is no Chromium; on Debian: sudo apt install chromium nodejs npm"
fi
export BROWSER
command -v node npm >/dev/null || skip "there is no node with npm"
node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || skip "node is older than 20"
test -f _build/html/index.html || {
  echo 'test-site: no site in _build/html; run make book first' >&2
  exit 1
}
cd tests/site
if ! cmp -s package-lock.json node_modules/.installed; then
  npm ci --ignore-scripts --no-audit --no-fund --silent || skip "npm cannot install the driver"
  cp package-lock.json node_modules/.installed
fi
node --test --test-reporter=dot *.test.mjs
