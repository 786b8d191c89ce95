"""Leave out of a style the rules that no page and no script of the site can call up.

The theme brings all of its framework and all icons: of its rules, the pages use some
third, and nothing is drawn before the whole style has come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import tinycss2

ATTRIBUTE = re.compile(r'\b(?:class|id)="([^"]*)"')
WORD = re.compile(r"-?[A-Za-z_][\w-]*")
# Scripts put these together from parts: the side on which a hint stands.
COMPOSED = ("bs-tooltip-", "bs-popover-")
GROUPS = {"media", "supports", "layer", "container"}  # at-rules that hold rules


def words_of(out: Path) -> set[str]:
    """Return every name that a page of a site bears, or a script could give it."""
    words: set[str] = set()
    for page in out.rglob("*.html"):
        for value in ATTRIBUTE.findall(page.read_text(encoding="utf-8")):
            words.update(value.split())
    for script in out.rglob("*.js"):
        if script.name != "searchindex.js":  # the words of the text
            words.update(WORD.findall(script.read_text(encoding="utf-8")))
    return words


def keep_used(style: str, words: set[str]) -> str:
    """Return a style with those of its rules whose names are all among the words."""
    rules = tinycss2.parse_stylesheet(style, skip_comments=True, skip_whitespace=True)
    return "\n".join(kept(rules, words))


def kept(rules: Iterable[Any], words: set[str]) -> Iterator[str]:
    """Yield the text of each rule that is left, without the selectors that are not."""
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors = [s for s in parts(rule.prelude) if names(s) <= words]
            if selectors:
                heads = ",".join(tinycss2.serialize(s).strip() for s in selectors)
                yield f"{heads}{{{tinycss2.serialize(rule.content).strip()}}}"
        elif (
            rule.type == "at-rule" and rule.lower_at_keyword in GROUPS and rule.content
        ):
            inner = tinycss2.parse_rule_list(
                rule.content, skip_comments=True, skip_whitespace=True
            )
            if text := "\n".join(kept(inner, words)):
                head = tinycss2.serialize(rule.prelude).rstrip()
                yield f"@{rule.at_keyword}{head}{{{text}}}"
        elif rule.type == "error":
            raise ValueError(
                f"a style must be one that can be read, got {rule.message!r} in line "
                f"{rule.source_line} of all of them joined; mend that one."
            )
        else:
            yield rule.serialize()


def parts(prelude: list[Any]) -> Iterator[list[Any]]:
    """Yield the selectors of a list that commas part."""
    part: list[Any] = []
    for piece in prelude:
        if piece == ",":
            yield part
            part = []
        elif piece.type != "comment":
            part.append(piece)
    yield part


def names(selector: list[Any]) -> set[str]:
    """Return the classes and identifiers that must all be there for a selector to hold.

    What stands in a function may be one of several, or must not be there: not counted.
    """
    found = {token.value for token in selector if token.type == "hash"}
    for point, token in pairwise(selector):
        if point == "." and token.type == "ident":
            found.add(token.value)
    return {name for name in found if not name.startswith(COMPOSED)}
