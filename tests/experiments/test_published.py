"""Points read off figures: whole, in order, and where such values can lie."""

from __future__ import annotations

from typing import Any

import pytest

from normbook.experiments import deep_linear, published, sigmoid_net, vgg
from normbook.experiments.published import Points

ACCURACIES = ("SIGMOID_NET_ACCURACY", "VGG_TRAIN_ACCURACY")
CURVES = (*ACCURACIES, "DEEP_LINEAR_LOSS")
# These are looked at in test_batch_size.py.
BATCH_SIZES = ("BATCH_SIZE_ERROR", "BATCH_SIZE_LAST_ERROR", "BATCH_SIZE_LOSS")
# These in test_handwriting.py and test_reading.py.
HANDWRITING = ("HANDWRITING_LOSS",)
READING = ("READING_ERROR", "READING_STEPS")
NUMBERS = ("VGG_LOSS_RANGE", "VGG_GRADIENT_CHANGE", "VGG_BETA")


def curves(*names: str) -> list[Any]:
    return [
        pytest.param(points, id=f"{name} {key}")
        for name in names
        for key, points in getattr(published, name).items()
    ]


def test_everything_published_is_looked_at_here() -> None:
    known = {*CURVES, *NUMBERS, *BATCH_SIZES, *HANDWRITING, *READING}
    known |= {"GROUP_NORM_ERROR", "Points"}
    defined = {name for name in vars(published) if name[0].isupper()}
    assert known == defined - {"NamedTuple"}


def test_every_curve_has_as_many_values_as_steps() -> None:
    tables: list[Any] = [v for name, v in vars(published).items() if name.isupper()]
    for table in tables:
        if isinstance(table, Points):
            assert len(table.x) == len(table.y), table.source
        elif isinstance(table, dict):
            tables += table.values()
    assert sum(isinstance(table, Points) for table in tables) == 36


@pytest.mark.parametrize("points", curves(*CURVES))
def test_a_curve_has_a_value_at_each_of_some_growing_steps(points: Points) -> None:
    assert len(points.y) >= 4
    assert all(a < b for a, b in zip(points.x, points.x[1:], strict=False))
    assert points.x[0] >= 0
    assert all(isinstance(value, int | float) for value in (*points.x, *points.y))


@pytest.mark.parametrize("points", curves(*CURVES))
def test_a_curve_names_the_figure_that_it_was_read_off(points: Points) -> None:
    assert points.source.partition(", Fig")[0] in (
        "Ioffe and Szegedy (2015)",
        "Santurkar et al. (2018)",
    )


@pytest.mark.parametrize("points", curves(*ACCURACIES))
def test_an_accuracy_lies_between_chance_and_one(points: Points) -> None:
    assert all(0.1 <= y <= 1 for y in points.y)


@pytest.mark.parametrize("points", curves("DEEP_LINEAR_LOSS"))
def test_the_loss_of_the_linear_network_falls(points: Points) -> None:
    assert all(a > b > 0 for a, b in zip(points.y, points.y[1:], strict=False))
    # Before training the output is of the size of its target A x, whose summed
    # square is 1000 * 10 * 10, or larger by the order of one.
    assert 1e4 < points.y[0] < 1e5


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_the_networks_are_positive(name: str) -> None:
    values = getattr(published, name)
    assert {"none", "batch_norm"} <= values.keys()
    assert all(value > 0 for value in values.values())


@pytest.mark.parametrize(
    ("points", "settings"),
    [
        (published.SIGMOID_NET_ACCURACY, sigmoid_net.EXPERIMENT.scales["paper"]),
        (published.VGG_TRAIN_ACCURACY, vgg.EXPERIMENT.scales["paper"]),
        (published.DEEP_LINEAR_LOSS, deep_linear.EXPERIMENT.scales["paper"]),
    ],
)
def test_published_curves_belong_to_variants_and_steps_of_ours(
    points: dict[str, Points], settings: Any
) -> None:
    variants = {name.split()[0] for name in settings.settings["variants"]}
    assert points.keys() <= variants
    assert all(p.x[-1] <= settings.settings["steps"] for p in points.values())


def test_errors_on_imagenet_are_those_of_the_tables() -> None:
    for norm, points in published.GROUP_NORM_ERROR.items():
        assert points.source == "Wu and He (2018), Tables 1 and 2"
        is_swept = norm in ("batch_norm", "group_norm")
        assert points.x == ((2, 4, 8, 16, 32) if is_swept else (32,))
        assert len(points.y) == len(points.x)
    # The last column of Table 2 is Table 1; batch norm falls behind with small ones.
    ends = {norm: points.y[-1] for norm, points in published.GROUP_NORM_ERROR.items()}
    assert sorted(ends, key=lambda norm: ends[norm]) == [
        "batch_norm", "group_norm", "layer_norm", "instance_norm"
    ]  # fmt: skip
    falling = published.GROUP_NORM_ERROR["batch_norm"].y
    assert list(falling) == sorted(falling, reverse=True)
    assert falling[0] - ends["batch_norm"] == pytest.approx(0.111)
