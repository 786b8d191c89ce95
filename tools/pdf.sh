#!/usr/bin/env bash
# Typeset the book into _pdf/normbook.pdf, in a folder that `make book` leaves alone.
#
#   $1  the Python of the environment
set -euo pipefail
cd "$(dirname "$0")/.."
for program in latexmk xelatex rsvg-convert; do
  command -v "$program" >/dev/null || {
    printf 'pdf: %s is missing; on Debian and Ubuntu: make pdf-packages\n' "$program" >&2
    exit 1
  }
done
rm -rf _pdf/_build
"$(dirname "$1")/jupyter-book" build . --builder latex -W -n --keep-going -q --path-output _pdf
cd _pdf/_build/latex
# It ends where no reference moves any more, and with an error where one leads nowhere.
latexmk -xelatex -interaction=nonstopmode -halt-on-error -quiet normbook.tex >latexmk.log 2>&1 || {
  grep -A 4 '^!' normbook.log >&2 || tail -n 20 latexmk.log >&2
  exit 1
}
if grep -A 1 -E 'Missing character|Warning: (Hyper )?[Rr]eference|Warning: Citation' normbook.log >&2; then
  printf 'pdf: the lines above tell what LaTeX did not find\n' >&2
  exit 1
fi
cp normbook.pdf ../../normbook.pdf
printf 'The PDF: %s (%s, %s)\n' "$(cd ../.. && pwd)/normbook.pdf" \
  "$(du -h --apparent-size normbook.pdf | cut -f 1)B" "$(grep -o '[0-9]* pages' normbook.log | tail -n 1)"
