"""Each word of the glossary is linked where a chapter first uses it, and is used."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import nbformat
import notebook_rules
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = ROOT / "book/glossary.md"

# An entry's word is found in prose as it stands or in its plural. These have other
# forms, which replace them.
FORMS = {
    "centred": "centr(?:ed|ing)",
    "debiasing": "debias(?:ed|ing)",
    "detach": "detach(?:ed|ing)?",
    "epsilon": "ε|epsilon",
    "example": "examples?",
    "folding": "fold(?:ed|ing)?",
    "freezing": "freez(?:e|es|ing)|frozen?",
    "ghost batch": "ghost batch(?:es| normalization)?|ghosts?",
    "packed sequence": "packed(?: sequences?)?",
    "recalibration": "recalibrat(?:e|ed|es|ing|ion)",
    "standardize": "standardiz(?:e|ed|es|ing|ation)",
    "synchronized batch normalization": (
        "synchronized (?:batch norm(?:alization)?s?|statistics)"
    ),
    "weight averaging": "weight averaging|averages? (?:of )?(?:the )?weights",
    "vanishing gradient": "vanishing gradients?|gradients? vanish(?:es|ed)?",
}
# Phrases in which a word of the glossary has another sense, or its everyday one.
EVERYDAY = {
    "batch": ("[Bb]atch, instance",),  # the names of layers, shortened
    "bias": (r"by a \*\*bias",),  # of drawn samples: a number that sharpens the density
    "covariate shift": (r"internal\W+covariate shift",),
    "epsilon": ("ε in Adam",),
    "example": ("example by hand", "[Ff]or example"),
    "folding": ("fold the result", "fold it into", "these fold into", "code is folded"),
    "freezing": ("that they freeze", "and then frozen", "the gates frozen"),
    "gain": ("gain or lose", "it gains", "folding gains"),
    "group": (
        *("groups its parameters", "one other group", "in groups", "are two groups"),
        *("for groups of", r"(?:between|of|within)\W+the groups"),
        "convolution with groups",
    ),
    "inference": ("Training and inference",),  # the name of a section
    "loss": ("cures the loss",),
    "projection": ("peepholes, projections",),  # of an LSTM
    "rank": ("do not rank",),
    "running statistics": ("its running mean",),  # of Welford's rule
    "unit": (
        *("unit vectors?", "unit Gaussians?", "in units of", "3 units", "1.5 units"),
        *("2 units", "the unit(?=[,:.])", "(?:its|their|another) unit", "The unit"),
    ),
}
# Words that are so common in another sense that these chapters alone use them so.
ONLY_IN = {
    "cell": ("lstm", "layer_norm_lstm", "handwriting", "reading", "which_hat"),
    "moment": ("covariate_shift", "small_batches"),
    "residual stream": ("transformers", "large_transformers", "few_bits"),
    "rotation": ("few_bits",),
    "state": (
        *("variable_length", "layer_norm"),
        *("lstm", "layer_norm_lstm", "handwriting", "reading", "which_hat"),
    ),
}
# What a page of markdown holds beside running prose.
NOT_PROSE = re.compile(
    r"""
      ^\ *(`{3,})(?!`).*?^\ *\1`*\s*?$    # fenced code
    | ^\ *\$\$.*?\$\$.*?$                 # a formula on lines of its own
    | ^\#+\ .*?$                          # a heading
    | ^\ *\|.*?$                          # a row of a table
    | ^\ *:{3,}.*?$                       # the first or last line of a directive
    | ^\ *:[\w-]+:.*?$                    # an option of a directive
    | ^\([\w-]+\)=$                       # a label
    | ^\[[\w-]+\]:.*?$                    # the address of a link
    | \{[\w:]+\}`[^`]*`                   # a role: a link, a citation
    | (`+)[^`]+\2                         # code in a line
    | \$[^$]+\$                           # a formula in a line
    | \[[^\]]*\][(\[][^)\]]*[)\]]         # a link
    | <?https?:\S+                        # an address
    | “[^”]*”                             # the words of others
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
ROLE = re.compile(r"\{term\}`([^`<]+?)(?:\s*<([^`>]+)>)?`")


class Use(NamedTuple):
    """Where in a text an entry's word stands, and whether it is a link."""

    start: int
    end: int
    entry: str
    is_link: bool


class Entry(NamedTuple):
    """The words that an entry of the glossary explains, and what it says."""

    words: tuple[str, ...]
    text: str


@cache
def entries() -> dict[str, Entry]:
    """Return the entries under their first words, in the order of the page."""
    page = GLOSSARY.read_text("utf-8")
    block = re.search(r"(?ms)^:::\{glossary\}\n(.*?)^:::$", page)
    assert block
    found = re.findall(r"((?:^\S.*\n)+)((?:^  .*\n)+)", block[1], re.MULTILINE)
    return {
        head.splitlines()[0]: Entry(tuple(head.splitlines()), " ".join(text.split()))
        for head, text in found
    }


def entry_of(word: str) -> str | None:
    """Return the first word of the entry that a link leads to."""
    wanted = " ".join(word.split()).lower()
    found = (k for k, v in entries().items() if wanted in map(str.lower, v.words))
    return next(found, None)


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    """Return what finds each entry's words in prose, in any form."""
    found = {}
    for first, entry in entries().items():
        forms = [FORMS[first]] if first in FORMS else [plural(w) for w in entry.words]
        # The first letter in any case.
        either = re.sub(
            r"(^|\|)([a-z])", lambda m: f"{m[1]}(?i:{m[2]})", "|".join(forms)
        )
        source = either.replace(" ", r"\s+")
        found[first] = re.compile(rf"(?<![\w-])(?:{source})(?![\w-])")
    return found


def plural(word: str) -> str:
    """Return a pattern for a word and its plural."""
    if word.endswith("y"):
        return f"{word[:-1]}(?:y|ies)"
    return f"{word}(?:{'es' if re.search('(?:s|x|ch|sh)$', word) else 's'})?"


def blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


@cache
def uses(text: str, name: str = "") -> list[Use]:
    """Return every use of an entry's word in the prose of a page, in order."""
    prose = NOT_PROSE.sub(blank, text)
    found = [
        Use(*match.span(), entry, False)
        for entry, pattern in patterns().items()
        if name in ONLY_IN.get(entry, (name,))
        for match in pattern.finditer(everyday_left_out(entry, prose))
    ]
    links = [
        Use(*match.span(), entry, True)
        for match in ROLE.finditer(text)
        if (entry := entry_of(match[2] or match[1]))
    ]
    return sorted([use for use in found if not is_part(use, found)] + links)


def everyday_left_out(entry: str, prose: str) -> str:
    """Return the prose without the phrases that `EVERYDAY` lists for an entry."""
    for phrase in EVERYDAY.get(entry, ()):
        prose = everyday(phrase).sub(blank, prose)
    return prose


def everyday(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{phrase})(?!\w)".replace(" ", r"\s+"))


def is_part(use: Use, found: list[Use]) -> bool:
    """Return whether a longer word covers this one: "batch size" is no "batch"."""
    length = use.end - use.start
    return any(
        other.start <= use.start < other.end and other.end - other.start > length
        for other in found
    )


def first_uses(text: str, name: str) -> dict[str, Use]:
    """Return the first use of each entry's word."""
    found: dict[str, Use] = {}
    for use in uses(text, name):
        found.setdefault(use.entry, use)
    return found


def unlinked(text: str, name: str) -> list[str]:
    """Return a sentence for each first use of a word that is no link."""
    return [
        f'{name}: link "{text[use.start : use.end]}" to the glossary\'s "{use.entry}" '
        f"in: …{' '.join(text[max(0, use.start - 60) : use.end + 40].split())}…"
        for use in first_uses(text, name).values()
        if not use.is_link
    ]


@cache
def prose(path: Path) -> str:
    """Return the markdown of a notebook."""
    return notebook_rules.all_markdown(nbformat.read(path, as_version=4))


def chapters() -> list[Path]:
    """Return the notebooks in the order of the book."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    listed = [ROOT / f for part in toc["parts"] for f in notebook_rules.pages(part)]
    return [path for file in listed if (path := file.with_suffix(".ipynb")).exists()]


by_chapter = pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)


@by_chapter
def test_the_first_use_of_each_word_is_a_link(path: Path) -> None:
    assert unlinked(prose(path), path.stem) == []


@by_chapter
def test_a_link_that_is_removed_is_missed(path: Path) -> None:
    text = prose(path)
    linked = first_uses(text, path.stem)
    assert linked
    bare = ROLE.sub(lambda match: match[1], text)
    assert len(unlinked(bare, path.stem)) == len(linked)


def test_every_link_leads_to_an_entry() -> None:
    pages = [*(ROOT / "book").glob("*.md"), *chapters()]
    links = [
        (path.name, match[2] or match[1])
        for path in pages
        for match in ROLE.finditer(path.read_text("utf-8"))
    ]
    assert links
    assert [link for link in links if entry_of(link[1]) is None] == []


def test_every_entry_is_used_by_a_chapter() -> None:
    used = {
        entry for path in chapters() for entry in first_uses(prose(path), path.stem)
    }
    assert list(entries().keys() - used) == []


def test_the_entries_are_in_alphabetical_order() -> None:
    heads = [head.lower() for head in entries()]
    assert heads == sorted(heads)


def test_no_word_stands_in_two_entries() -> None:
    words = [word.lower() for entry in entries().values() for word in entry.words]
    assert sorted(set(words)) == sorted(words)


def test_every_entry_ends_on_a_link_to_a_chapter() -> None:
    names = "|".join(path.stem for path in chapters())
    ending = re.compile(rf"\. See \{{doc\}}`(?:{names})`\.$")
    assert [h for h, entry in entries().items() if not ending.search(entry.text)] == []


def test_every_exception_is_met_in_a_chapter() -> None:
    texts = [NOT_PROSE.sub(blank, prose(path)) for path in chapters()]
    assert {*FORMS, *EVERYDAY, *ONLY_IN} <= entries().keys()
    for phrase in itertools.chain(*EVERYDAY.values()):
        assert any(everyday(phrase).search(text) for text in texts), phrase
