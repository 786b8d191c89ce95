"""The bibliography: every entry is cited, and says where the work is to be found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
BIBLIOGRAPHY = (ROOT / "book/references.bib").read_text("utf-8")


class Entry(NamedTuple):
    """A work: its kind, its key, its fields, and the comment above it."""

    kind: str
    key: str
    fields: dict[str, str]
    comment: str


def entries(text: str = BIBLIOGRAPHY) -> list[Entry]:
    """Return the entries of a bibliography in BibTeX's format."""
    found = re.findall(r"(?ms)((?:^%.*?\n)*)^@(\w+)\{([^,]+),\n(.*?)^\}$", text)
    return [
        Entry(kind, key, dict(re.findall(r"(?ms)^  (\w+) *= \{(.*?)\},$", body)), above)
        for above, kind, key, body in found
    ]


def faults(entry: Entry) -> list[str]:
    """Return what is missing or wrong in how an entry names the place of a work."""
    doi, number = entry.fields.get("doi", ""), entry.fields.get("eprint", "")
    found = []
    if doi and not re.fullmatch(r"10\.\d{4,}/\S+", doi):
        found.append(f"no DOI: {doi!r}")
    if number and not re.fullmatch(r"\d{4}\.\d{4,5}", number):
        found.append(f"no arXiv number: {number!r}")
    if number and entry.fields.get("archivePrefix") != "arXiv":
        found.append("an eprint needs archivePrefix = {arXiv}")
    if entry.kind == "unpublished":
        return found if entry.fields.get("note") else [*found, "what is it? add a note"]
    if (doi or number) and "url" in entry.fields:
        found.append("the address follows from the DOI or the arXiv number")
    if not doi and not number and not entry.fields.get("url"):
        found.append("needs a DOI, an arXiv number or the publisher's address")
    elif not doi and not number and not entry.comment.startswith("%"):
        found.append("has an address only: a comment above it must say why")
    return found


by_entry = pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.key)


def test_every_entry_is_read() -> None:
    keys = [entry.key for entry in entries()]
    assert keys == re.findall(r"(?m)^@\w+\{([^,]+),", BIBLIOGRAPHY)
    assert len(set(keys)) == len(keys)


@by_entry
def test_the_work_can_be_found(entry: Entry) -> None:
    assert faults(entry) == []


@by_entry
def test_the_entry_has_what_a_citation_prints(entry: Entry) -> None:
    assert {"author", "title", "year"} <= entry.fields.keys()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("  year = {2000},", "needs a DOI"),
        ("  url = {https://example.org},", "must say why"),
        ("  doi = {https://doi.org/10.1000/1},", "no DOI"),
        ("  eprint = {1502.03167v3},\n  archivePrefix = {arXiv},", "no arXiv number"),
        ("  eprint = {1502.03167},", "archivePrefix"),
        ("  doi = {10.1000/1},\n  url = {https://example.org},", "follows from"),
    ],
)
def test_a_fault_is_found(line: str, fault: str) -> None:
    (entry,) = entries(f"@article{{key,\n{line}\n}}\n")
    (found,) = faults(entry)
    assert fault in found


def test_every_entry_is_cited() -> None:
    pages = [*(ROOT / "book").glob("*.md"), *(ROOT / "book").glob("*.ipynb")]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    citations = re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text)
    cited = {key.strip() for citation in citations for key in citation.split(",")}
    assert {entry.key for entry in entries()} == cited


def test_the_first_page_tells_how_the_book_is_cited() -> None:
    page = (ROOT / "book/index.md").read_text("utf-8")
    (box,) = re.findall(r"(?ms)^```bibtex\n(.*?)^```", page)
    (entry,) = entries(box)
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    whole = yaml.safe_load(text)
    wanted = whole["preferred-citation"]
    assert entry.kind == wanted["type"]
    assert entry.fields["title"] == wanted["title"]
    assert entry.fields["author"] == f"{{{wanted['authors'][0]['name']}}}"
    assert entry.fields["year"] == str(wanted["year"])
    assert entry.fields["note"] == f"Version {whole['version']}"
