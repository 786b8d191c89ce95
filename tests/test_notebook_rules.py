"""Each rule for notebooks is broken once, and must notice."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import notebook_rules as rules
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from normbook import drawn

PIXEL = (  # a picture of one point
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAA"
    "SUVORK5CYII="
)
PROSE = """\
# A small chapter

Does a check notice?

## You will

- see

## Setup

## What we know

## Takeaways

## Exercises

:::{exercise} Spot the bug
:label: ex-small-bug

`x.std()` of one number?
:::

:::{solution-start} ex-small-bug
:label: sol-small-bug
:class: dropdown
:::

It is zero.

:::{solution-end}
:::
"""
FIGURE = {
    "figure": {"name": "fig-small", "caption": "A point."},
    "image": {"alt": "A single black point on a white ground, and nothing else."},
}


def sound_notebook() -> Any:
    """Return a notebook that keeps every rule."""
    data = {"image/png": PIXEL, "text/plain": "<Figure>", drawn.MIME: ["text\tshort"]}
    picture = new_output("display_data", data)
    value = new_output("execute_result", {"text/plain": "3"}, execution_count=1)
    printed = new_output("stream", name="stdout", text="3\n")
    cells = [
        new_markdown_cell(PROSE),
        new_code_cell("1 + 2", outputs=[value], execution_count=1),
        new_code_cell("print(3)", outputs=[printed], execution_count=2),
        new_code_cell(
            "plt.plot([1, 2])\nplt.show()",
            outputs=[picture],
            execution_count=3,
            metadata={"mystnb": FIGURE},
        ),
    ]
    notebook = new_notebook(cells=cells, metadata={"kernelspec": dict(rules.KERNEL)})
    stamp(notebook)
    return notebook


def stamp(notebook: Any) -> None:
    """Record the code as run, as `tools/execute.py` does."""
    digest = rules.source_digest(notebook)
    notebook.metadata["normbook"] = nbformat.from_dict({"source_sha256": digest})


def write(notebook: Any, path: Path) -> Path:
    path.write_text(rules.dumps(rules.normalize(notebook, path.stem)), encoding="utf-8")
    return path


def test_a_sound_notebook_keeps_the_rules(tmp_path: Path) -> None:
    assert rules.violations(write(sound_notebook(), tmp_path / "small.ipynb")) == []


def code(text: str, **metadata: Any) -> Callable[[Any], None]:
    """Replace the code of cell 2, as if it had been run."""

    def change(notebook: Any) -> None:
        notebook.cells[2].source = text
        notebook.cells[2].metadata.update(metadata)
        stamp(notebook)

    return change


def first_code(text: str) -> Callable[[Any], None]:
    """Replace the first code cell by one that was run and showed nothing."""

    def change(notebook: Any) -> None:
        notebook.cells[1].update(source=text, outputs=[])
        stamp(notebook)

    return change


def prose(old: str, new: str) -> Callable[[Any], None]:
    """Change the prose."""

    def change(notebook: Any) -> None:
        assert old in notebook.cells[0].source
        notebook.cells[0].source = notebook.cells[0].source.replace(old, new)

    return change


def figure(part: str, key: str, value: str) -> Callable[[Any], None]:
    """Change one entry of the figure's metadata."""

    def change(notebook: Any) -> None:
        notebook.cells[3].metadata["mystnb"][part][key] = value

    return change


def strip(notebook: Any) -> None:
    for cell in notebook.cells[1:]:
        cell.outputs, cell.execution_count = [], None


def lose_outputs(notebook: Any) -> None:
    for cell in notebook.cells[1:]:
        cell.outputs = []


def run_out_of_order(notebook: Any) -> None:
    notebook.cells[1].execution_count, notebook.cells[2].execution_count = 2, 1


def edit_after_the_run(notebook: Any) -> None:
    notebook.cells[2].source = "print(4)"


def store_error(notebook: Any) -> None:
    error = new_output("error", ename="ValueError", evalue="no", traceback=["no"])
    notebook.cells[2].outputs = [error]


def announce_error(notebook: Any) -> None:
    notebook.cells[2].metadata["tags"] = ["raises-exception"]


def store_stderr(notebook: Any) -> None:
    notebook.cells[2].outputs = [new_output("stream", name="stderr", text="careful\n")]


def ignore_output(notebook: Any) -> None:
    notebook.cells[2].metadata["tags"] = ["nbval-ignore-output"]


def ignore_with_a_token(notebook: Any) -> None:
    ignore_output(notebook)
    notebook.cells[2].metadata["reason"] = "x x x x x"


def exchange_cells(notebook: Any) -> None:
    cells = notebook.cells
    cells[1], cells[2] = cells[2], cells[1]
    cells[1].execution_count, cells[2].execution_count = 1, 2


def skip(notebook: Any) -> None:
    notebook.cells[2].metadata["tags"] = ["nbval-skip"]


def draw_twice(notebook: Any) -> None:
    notebook.cells[3].outputs *= 2


def lose_record(notebook: Any) -> None:
    """Forget what a figure shows."""
    del notebook.cells[3].outputs[0].data[drawn.MIME]


def hide_figure(notebook: Any) -> None:
    notebook.cells[3].metadata["tags"] = ["remove-cell"]


def forget_figure(notebook: Any) -> None:
    del notebook.cells[3].metadata["mystnb"]


def other_kernel(notebook: Any) -> None:
    notebook.metadata["kernelspec"]["name"] = "conda-env-mine"


def measure_at_no_rate(notebook: Any) -> None:
    prose("## What we know", "## What we know\n\n**Measured here**, three seeds\n")(
        notebook
    )
    code("x = dict(lr=3)\nprint(3)")(notebook)


BUG = ":::{exercise} Spot the bug\n:label: ex-small-bug"
UNSOLVED = ":::{exercise} Another\n:label: ex-small-other\n\nWhy?\n:::\n\n" + BUG

PLANTED: dict[str, tuple[Callable[[Any], None], str]] = {
    "stripped": (strip, "execution count is None, must be 1"),
    "outputs lost": (lose_outputs, "no output is stored"),
    "figure lost": (lose_outputs, "cell 3: ends on a value, but no output"),
    "out of order": (run_out_of_order, "execution count is 2, must be 1"),
    "edited after the run": (edit_after_the_run, "changed after it was last run"),
    "error stored": (store_error, "an error is stored"),
    "error announced, none stored": (announce_error, "no error is stored"),
    "stderr": (store_stderr, "wrote to stderr: 'careful"),
    "long cell": (code("x = 1\n" * 16), "16 lines, at most 15"),
    "import below": (code("import os"), "imports belong in the first code cell"),
    "import and more": (first_code("import os\n1 + 2"), "holds something else"),
    "bare import": (first_code("import os"), "needs the tag hide-input"),
    "long line": (code("x = " + " + 1" * 20), "columns, at most 76"),
    "hidden line": (
        prose("Does a", "50\n% of it. Does a"),
        "begins with %, which hides",
    ),
    "long prose": (
        prose("Does a", "word " * 20 + "\nDoes a"),
        "100 columns, at most 90",
    ),
    "assert on literals": (
        code("import numpy as np\nassert np.isclose(abs(0.1 * 8), 0.8)\nprint(3)"),
        "cell 2: compares typed numbers only",
    ),
    "measured without seeds": (
        prose("## What we know", "## What we know\n\n**Measured here**\n\n- much\n"),
        "names no seeds",
    ),
    "measured without rates": (measure_at_no_rate, "names no learning rate"),
    "skipped": (skip, "is skipped"),
    "skipped by comment": (code("# NBVAL_SKIP\nprint(3)"), "is skipped"),
    "ignored": (ignore_output, 'give no "reason"'),
    "ignored by comment": (code("# NBVAL_IGNORE_OUTPUT\nprint(3)"), 'no "reason"'),
    "skipped by an indented comment": (
        code("if x:\n    # NBVAL_SKIP\n    print(3)"),
        "is skipped",
    ),
    "ignored by two hashes": (code("## NBVAL_IGNORE_OUTPUT\nx"), 'no "reason"'),
    "ignored by an indented comment": (
        code("if x:\n    # NBVAL_IGNORE_OUTPUT\n    print(3)"),
        'no "reason"',
    ),
    "a token reason": (ignore_with_a_token, 'no "reason" of 4 words'),
    "cells exchanged": (exchange_cells, "changed after it was last run"),
    "the end": (code("print(3)\nquit()"), "ends the kernel: 'quit'"),
    "the end of the system": (code("print(3)\nos._exit(0)"), "'os._exit'"),
    "two figures": (draw_twice, "2 figures, one a cell"),
    "hidden figure": (hide_figure, "a figure that nobody sees"),
    "figure without anything": (forget_figure, "no name of the form"),
    "figure without record": (lose_record, "without a record of what it shows"),
    "figure without name": (figure("figure", "name", ""), "no name of the form"),
    "figure without caption": (figure("figure", "caption", " "), "no caption"),
    "figure without alt text": (figure("image", "alt", ""), "has 0 characters"),
    "figure with a token alt text": (figure("image", "alt", "a plot"), "6 characters"),
    "alt text repeats caption": (
        figure("figure", "caption", FIGURE["image"]["alt"]),
        "repeats its caption",
    ),
    "shell command": (code("!ls"), "a shell command"),
    "install": (code("%pip install normbook"), "a shell command"),
    "numpy's global seed": (code("np.random.seed(0)"), "a global seed"),
    "torch's global seed": (code("torch.manual_seed(0)"), "a global seed"),
    "python's global seed": (code("random.seed(0)"), "a global seed"),
    "semicolon": (code("x = 1\nx;"), "ends on `;`"),
    "clock": (code("start = time.perf_counter()"), "reads the clock"),
    "clock magic": (code("%time f()"), "reads the clock"),
    "other kernel": (other_kernel, "must be python3"),
    "no title": (prose("# A small", "A small"), "heading, found 0"),
    "two titles": (prose("## Setup", "# Setup"), "heading, found 2"),
    "section missing": (prose("## Takeaways", "## Summary"), '"Takeaways" is missing'),
    "section out of order": (
        prose("## You will", "## Checks\n\n## You will"),
        'the section "You will" must stand before "Checks"',
    ),
    "no exercise": (prose("{exercise}", "{note}"), "no exercise"),
    "exercise without solution": (
        prose(BUG, UNSOLVED),
        "ex-small-other has no solution",
    ),
    "solution of nothing": (
        prose("-start} ex-small-bug", "-start} ex-gone"),
        "a solution to ex-gone",
    ),
    "solution with another label": (
        prose("sol-small-bug", "sol-bug"),
        "must have the label sol-small-bug",
    ),
    "solution in the open": (prose(":class: dropdown\n", ""), "is not folded"),
    "exercise label": (prose("ex-small-bug", "small-bug"), "of the form ex-name"),
    "no bug to spot": (prose("Spot the bug", "Think"), 'called "Spot the bug"'),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str, tmp_path: Path) -> None:
    plant, complaint = PLANTED[name]
    notebook = sound_notebook()
    plant(notebook)
    if name != "other kernel":  # the normal form would put that right
        notebook = rules.normalize(notebook, "small")
    path = tmp_path / "small.ipynb"
    path.write_text(rules.dumps(notebook), encoding="utf-8")
    found = rules.violations(path)
    assert any(complaint in violation for violation in found), found


def test_a_reason_permits_to_ignore_an_output(tmp_path: Path) -> None:
    notebook = sound_notebook()
    notebook.cells[2].metadata.update(
        tags=["nbval-ignore-output"], reason="a time differs by machine"
    )
    assert rules.violations(write(notebook, tmp_path / "small.ipynb")) == []


def test_a_page_to_look_things_up_in_needs_no_exercises(tmp_path: Path) -> None:
    notebook = sound_notebook()
    notebook.cells[0].source = notebook.cells[0].source.partition("## Exercises")[0]
    path = write(notebook, tmp_path / "small.ipynb")
    assert "no exercise" in "".join(rules.violations(path))
    assert rules.violations(path, rules.REFERENCE_RULES) == []


def test_an_announced_error_is_allowed(tmp_path: Path) -> None:
    notebook = sound_notebook()
    announce_error(notebook)
    store_error(notebook)
    assert rules.violations(write(notebook, tmp_path / "small.ipynb")) == []


@pytest.mark.parametrize(
    "metadata",
    [{"execution": {"iopub.busy": "2026-01-01"}}, {"scrolled": True}],
    ids=["timing", "editor"],
)
def test_an_editor_s_traces_are_not_the_normal_form(
    metadata: dict[str, Any], tmp_path: Path
) -> None:
    path = write(sound_notebook(), tmp_path / "small.ipynb")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].metadata.update(metadata)
    path.write_text(rules.dumps(notebook), encoding="utf-8")
    assert "make execute" in "".join(rules.file_rules(path))


def test_a_heavy_notebook_is_found(tmp_path: Path) -> None:
    notebook = sound_notebook()
    notebook.cells[1].outputs[0].data["text/plain"] = "3" * rules.MAX_BYTES
    path = write(notebook, tmp_path / "small.ipynb")
    assert "bytes, at most" in "".join(rules.file_rules(path))


def test_normalizing_twice_changes_nothing() -> None:
    once = rules.normalize(sound_notebook(), "small")
    assert rules.normalize(copy.deepcopy(once), "small") == once


def test_pieces_of_a_stream_are_joined() -> None:
    pieces = [new_output("stream", name="stdout", text=text) for text in ("a\n", "b\n")]
    assert [output.text for output in rules.merge_streams(pieces)] == ["a\nb\n"]


def test_every_rule_finds_a_planted_defect() -> None:
    for rule in (*rules.NOTEBOOK_RULES, *rules.CHAPTER_RULES):
        assert any(finds(rule, plant) for plant, _ in PLANTED.values()), rule.__name__


def finds(rule: rules.Rule, plant: Callable[[Any], None]) -> bool:
    notebook = sound_notebook()
    plant(notebook)
    return bool(list(rule(notebook)))
