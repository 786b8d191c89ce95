"""What each kind of norm is: the axes of its statistics."""

from __future__ import annotations

import pytest

from normbook.checks.layer.definitions import Definition


@pytest.mark.parametrize(
    ("definition", "size"),
    [
        (Definition("batch"), 2 * 4 * 5),
        (Definition("instance"), 4 * 5),
        (Definition("group", groups=3), 2 * 4 * 5),
        (Definition("layer", last=2), 4 * 5),
        (Definition("rms", last=0), 6),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else str(value),
)
def test_the_values_of_one_set_of_statistics_are_counted(
    definition: Definition, size: int
) -> None:
    assert definition.size((2, 6, 4, 5)) == size


def test_axes_are_told_of_very_many_groups() -> None:
    cure = Definition("group", groups=512).axes_cure(5)
    assert "dim=(2,) of x.reshape(N, 512, -1)" in cure
