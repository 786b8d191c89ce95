"""Figures of records are on the pages as they are drawn here, published points, too."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

from normbook import drawn
from normbook.experiments import published, which_hat
from normbook.experiments.catalogue import EXPERIMENTS
from normbook.lab import record

BOOK = Path(__file__).parents[2] / "book"
# Of each record the figures that a page shows as they are drawn; others are shown after
# a change of the page's own, or not at all.
SHOWN = {
    "batch_128": ("small_batches", "train_loss"),
    "batch_4": ("small_batches", "error"),
    "batch_size_tuned": ("small_batches", "ends"),
    "conv_norms_border": ("choosing_axes", "error"),
    "conv_norms_tuned": ("choosing_axes", "error", "grid_2", "published"),
    "deep_linear": ("smoothness_measured", "loss", "smoothness"),
    "handwriting_tuned": ("handwriting", "loss", "quotient", "samples"),
    "reading_tuned": ("reading", "grid", "error"),
    "sigmoid_net": ("internal_covariate_shift", "accuracy"),
    "sigmoid_net_tuned": (
        *("internal_covariate_shift", "error", "steps", "input_shift"),
        "gradient_shift",
    ),
    "smoothness_rates": ("smoothness_measured", "grid", "edge", "sweep", "distance"),
    "transformer": ("transformers", "training", "blocks"),
    "vgg": ("smoothness_measured", "accuracy"),
    "vgg_tuned": ("internal_covariate_shift", "ways", "shift"),
    "vowels_longer_tuned": ("variable_length", "lengths"),
    "vowels_tuned": ("variable_length", "grid", "training"),
    "without_norm": ("without_norm", "end", "grid"),
    "without_norm_attention": ("without_norm", "end"),
}


pytestmark = pytest.mark.usefixtures("plain_style")


@cache
def outputs(page: str) -> list[dict[str, Any]]:
    notebook: Any = nbformat.read(BOOK / f"{page}.ipynb", as_version=4)
    cells = (cell.get("outputs", ()) for cell in notebook.cells)
    return list(itertools.chain(*cells))


def figures(page: str) -> list[list[str]]:
    """Return the records of a page's figures."""
    data = (output.get("data", {}) for output in outputs(page))
    return [found[drawn.MIME] for found in data if drawn.MIME in found]


def printed(page: str) -> str:
    """Return what the cells of a page print."""
    return "\n".join(output.get("text", "") for output in outputs(page))


@cache
def drawn_of(name: str) -> dict[str, Any]:
    kept = record.load(BOOK / f"recorded/{name}.json")
    return EXPERIMENTS[kept.name].figures(kept)


def is_shown(figure: Any, page: str) -> bool:
    found = drawn.record(figure)
    return any(not drawn.differences(stored, found) for stored in figures(page))


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_shows_what_is_drawn_of_a_record(name: str) -> None:
    page, *shown = SHOWN[name]
    found = drawn_of(name).items()
    assert {which for which, figure in found if is_shown(figure, page)} == {*shown}


@pytest.mark.parametrize("name", ["which_hat_counting", "which_hat_strokes"])
def test_figures_of_hats_name_all_that_they_draw(name: str) -> None:
    for which, figure in drawn_of(name).items():
        panels = [ax.get_legend_handles_labels()[1] for ax in figure.axes]
        legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes)]
        told = {text.get_text() for box in legends if box for text in box.get_texts()}
        told |= {ax.get_xlabel() for ax in figure.axes}
        assert told >= {*itertools.chain(*panels)}, which


def test_a_page_shows_the_cell_of_four_records() -> None:
    # in the order of the page, and as high as it wants it
    kept = {
        task: record.load(BOOK / f"recorded/which_hat_{task}.json")
        for task in ("qa1", "qa5", "counting", "strokes")
    }
    figure = which_hat.draw_cell(kept)
    figure.set_size_inches(7.4, 7.4)
    assert is_shown(figure, "which_hat")


def test_the_page_of_readers_draws_the_published_errors() -> None:
    stored = [set(drawn.read_off(figure)) for figure in figures("reading")]
    numbers = [
        *(x / 1000 for of in published.READING_ERROR.values() for x in of.x),
        *(y for of in published.READING_ERROR.values() for y in of.y),
    ]
    assert any({f"{number:.3g}" for number in numbers} <= one for one in stored)


def test_a_page_prints_the_published_steps_of_readers() -> None:
    text = printed("reading")
    for name, count in published.READING_STEPS.items():
        times = count / published.READING_STEPS["layer_norm"]
        assert count % 1000 == 0
        line = f"{name}: {count // 1000} thousand steps, {times:.1f} times"
        assert line in text


def test_pages_print_by_how_much_published_methods_are_apart() -> None:
    text, other = printed("layer_norm"), printed("sources_papers")
    last = published.BATCH_SIZE_LAST_ERROR
    for (size, of), norm in itertools.product(
        published.BATCH_SIZE_ERROR.items(), ("batch_norm", "none")
    ):
        pairs = zip(of[norm].y, of["layer_norm"].y, strict=True)
        apart = " ".join(f"{10_000 * (a - b):.0f}" for a, b in pairs)
        epochs = " ".join(map(str, of[norm].x))
        end = 10_000 * (last[size][norm] - last[size]["layer_norm"])
        assert (
            f"batches of {size}, more right than {norm}\n"
            f"  published at {epochs} is {apart}\n"
            f"  last ten epochs, published: {end:.0f};"
        ) in text
        ends = (
            f"{k} {100 * last[size][k]:.2f} %" for k in ("batch_norm", "layer_norm")
        )
        assert f"N = {size}, test error, last ten epochs: {' '.join(ends)}" in other


def test_a_page_prints_quotients_of_published_losses() -> None:
    text = printed("layer_norm")
    for (size, of), other in itertools.product(
        published.BATCH_SIZE_LOSS.items(), ("batch_norm", "none")
    ):
        pairs = zip(of["layer_norm"].y, of[other].y, strict=True)
        row = " ".join(f"{a / b:7.2g}" for a, b in pairs)
        assert f"{size:3} {other:10} paper {row}" in text
        assert of[other].x == of["layer_norm"].x
        epochs = " ".join(f"{epoch:7}" for epoch in of[other].x)
        assert f"epoch {epochs}\n" in text


def test_a_page_prints_the_published_quotients_of_smoothness() -> None:
    rows = printed("smoothness_measured").splitlines()
    for name, begin in {
        "VGG_LOSS_RANGE": "loss range",
        "VGG_GRADIENT_CHANGE": "gradient change",
        "VGG_BETA": "effective smoothness",
    }.items():
        of = getattr(published, name)
        (row,) = (r for r in rows if r.startswith(begin) and "published" in r)
        assert row.endswith(f"published {of['none'] / of['batch_norm']:.2g}")
    both = published.VGG_BETA.values()
    assert f"{' '.join(map(str, both))} published" in printed("sources_papers")


def test_figures_of_sequences_are_as_wide_as_each_other() -> None:
    found = drawn_of("vowels_tuned")
    widths = {figure.get_size_inches()[0] for figure in found.values()}
    assert widths == {8.4}


def test_the_panels_of_a_grid_have_one_scale() -> None:
    first, *others = drawn_of("reading_tuned")["grid"].axes
    assert others
    assert all(first.get_shared_y_axes().joined(first, ax) for ax in others)


def test_quotients_of_updates_have_whole_numbers_at_their_ticks() -> None:
    for ax in drawn_of("handwriting_tuned")["quotient"].axes:
        assert ax.yaxis.get_major_formatter()(4.0) == "4"
        steps = np.diff(ax.xaxis.get_major_locator().tick_values(0, 3000))
        assert {*steps} == {1000}


def test_published_errors_stand_below_ours() -> None:
    specs = [
        ax.get_subplotspec() for ax in drawn_of("conv_norms_tuned")["published"].axes
    ]
    assert {spec.get_gridspec().nrows for spec in specs if spec} == {2}
