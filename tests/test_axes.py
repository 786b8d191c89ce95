"""The table of axes says what is known by hand, and follows the code when it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from normbook import batch_norm, layer_norm
from normbook.axes import Row, group_of, sharing, table
from normbook.group_norm import group_norm_forward, instance_norm_forward
from normbook.layer_norm import layer_norm_forward, rms_norm, rms_norm_forward
from normbook.normalize import normalize_forward

SHAPE = (2, 6, 3, 5)  # every axis of a different length
INDEX = (1, 4, 0, 2)
NAMES = [
    "batch norm",
    "layer norm",
    "layer norm at each place",
    "RMSNorm at each place",
    "instance norm",
    "group norm",
]


def rows() -> dict[str, Row]:
    return {row.name: row for row in table(SHAPE, num_groups=3)}


def test_the_table_is_what_is_known_by_hand() -> None:
    assert list(rows().values()) == [
        Row("batch norm", "N, H, W", 30, 6, (6,), (6,), True, True),
        Row("layer norm", "C, H, W", 90, 2, (2,), (6, 3, 5), True, False),
        Row("layer norm at each place", "C", 6, 30, (2, 3, 5), (6,), True, False),
        Row("RMSNorm at each place", "C", 6, 30, (2, 3, 5), (6,), False, False),
        Row("instance norm", "H, W", 15, 12, (2, 6), (6,), True, False),
        Row("group norm", "C/3, H, W", 30, 6, (2, 3), (6,), True, False),
    ]


def test_the_masks_of_a_value_are_what_is_known_by_hand() -> None:
    n, c, h, w = np.indices(SHAPE)
    own_n, own_c, own_place = n == 1, c == 4, (h == 0) & (w == 2)
    expected = {
        "batch norm": (own_c, own_c),
        "layer norm": (own_n, own_c & own_place),
        "layer norm at each place": (own_n & own_place, own_c),
        "RMSNorm at each place": (own_n & own_place, own_c),
        "instance norm": (own_n & own_c, own_c),
        "group norm": (own_n & (c >= 4), own_c),  # channels 4 and 5 of 3 groups
    }
    found = sharing(SHAPE, 3, INDEX)
    assert list(found) == NAMES
    for name, masks in found.items():
        np.testing.assert_array_equal(masks, expected[name], err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_groups_are_the_same_or_have_nothing_in_common(name: str) -> None:
    places = [(0, 0, 0, 0), (0, 1, 2, 0), (1, 4, 0, 2), (0, 5, 2, 4), (1, 1, 0, 0)]
    masks = [sharing(SHAPE, 3, place)[name].statistics for place in places]
    for mask, place in zip(masks, places, strict=True):
        assert mask[place]
        for other, other_place in zip(masks, places, strict=True):
            assert np.array_equal(mask, other) == mask[other_place]
            assert (mask & other).any() == mask[other_place]


def test_a_function_of_the_reader_can_be_probed() -> None:
    mask = group_of(lambda x: rms_norm(x, axes=(0, 3)), SHAPE, INDEX)
    _, c, h, _ = np.indices(SHAPE)
    np.testing.assert_array_equal(mask, (c == 4) & (h == 0))
    # (N, T, D): batch norm knows the axis of time as that of the channels.
    mask = group_of(batch_norm.batch_norm, (2, 3, 4), (1, 2, 0))
    np.testing.assert_array_equal(mask, np.indices((2, 3, 4))[1] == 2)


def test_a_function_that_shares_nothing_marks_the_place_alone() -> None:
    assert np.argwhere(group_of(np.tanh, SHAPE, INDEX)).tolist() == [list(INDEX)]
    assert np.argwhere(group_of(np.zeros_like, SHAPE, INDEX)).tolist() == [list(INDEX)]


def test_the_smallest_shape_will_do() -> None:
    shared = [row.shared for row in table((2, 2, 2, 2), num_groups=2)]
    # A group for each channel is one half of two channels, and so not shared.
    assert shared == ["N, H, W", "C, H, W", "C", "C", "H, W", "H, W"]


def over_wrong_axes(x: Any, gamma: Any = None) -> Any:
    return normalize_forward(x, gamma, axes=(0, 2), parameter_axes=1)


def with_a_wrong_gain(x: Any, gamma: Any = None) -> Any:
    return normalize_forward(x, gamma, axes=(0, 2, 3), parameter_axes=2)


def without_the_mean(x: Any, gamma: Any = None) -> Any:
    return normalize_forward(
        x, gamma, axes=(0, 2, 3), parameter_axes=1, is_centred=False
    )


@pytest.mark.parametrize(
    ("broken", "row"),
    [
        (over_wrong_axes, ("N, H", 6, 30, (6, 5), (6,), True, True)),
        (with_a_wrong_gain, ("N, H, W", 30, 6, (6,), (3,), True, True)),
        (without_the_mean, ("N, H, W", 30, 6, (6,), (6,), False, True)),
        (instance_norm_forward, ("H, W", 15, 12, (2, 6), (6,), True, False)),
    ],
)
def test_a_broken_function_changes_its_row_and_no_other(
    broken: Callable[..., Any], row: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows()
    monkeypatch.setattr(batch_norm, "batch_norm_forward", broken)
    after = rows()
    assert after == before | {"batch norm": Row("batch norm", *row)}


def test_channels_dealt_out_in_turn_change_the_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_turn(x: Any, num_groups: int, gamma: Any = None) -> Any:
        order = np.arange(6).reshape(num_groups, -1).T.ravel()
        gamma = None if gamma is None else gamma[order]
        y, cache = group_norm_forward(x[:, order], num_groups, gamma)
        return y[:, np.argsort(order)], cache

    monkeypatch.setattr("normbook.group_norm.group_norm_forward", in_turn)
    mask = sharing(SHAPE, 3, INDEX)["group norm"].statistics
    # Grouped as if 0, 2, 4, 1, 3, 5 were the order: 4 is with 1 and not with 5.
    assert sorted(set(np.nonzero(mask)[1])) == [1, 4]


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("layer_norm_forward", rms_norm_forward),
        ("rms_norm_forward", layer_norm_forward),
    ],
)
def test_a_mean_taken_off_or_left_changes_the_table(
    name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [row.is_centred for row in rows().values()]
    monkeypatch.setattr(layer_norm, name, broken)
    after = [row.is_centred for row in rows().values()]
    assert before == [True, True, True, False, True, True]
    expected = {"layer_norm_forward": [True, False, False, False, True, True]}
    assert after == expected.get(name, [True] * 6)


@pytest.mark.parametrize("shape", [(2, 6, 15), (2, 6, 3, 5, 2), (1, 6, 3, 5), (2, 6)])
def test_a_shape_that_cannot_tell_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"shape must be \(N, C, H, W\), each at least"
    ):
        table(shape, 3)
    with pytest.raises(
        ValueError, match=r"shape must be \(N, C, H, W\), each at least"
    ):
        sharing(shape, 3, (0,) * len(shape))


@pytest.mark.parametrize("index", [(0, 0, 0), (2, 0, 0, 0), (0, 0, 0, -1)])
def test_an_index_outside_is_refused(index: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"a place in an array of shape \(2, 6, 3, 5\)"
    ):
        sharing(SHAPE, 3, index)
    with pytest.raises(ValueError, match="count from 0 along each axis"):
        group_of(rms_norm, SHAPE, index)


def test_groups_that_do_not_divide_the_channels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_groups must be a divisor .* 6, got 4"):
        table(SHAPE, 4)
