"""What the pages of failures share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normbook.lab.failures import LONGEST, error_of, observe


def test_an_error_is_told_with_its_kind_in_lines_that_fit() -> None:
    def fail() -> None:
        raise ValueError("word " * 100)

    lines = error_of(fail).splitlines()
    assert lines[0].startswith("ValueError: word word")
    assert max(map(len, lines)) <= 70
    assert LONGEST - 10 < len(" ".join(lines)) <= LONGEST
    assert lines[-1].endswith("...")


def test_what_works_is_no_error_and_an_interrupt_is_not_told() -> None:
    assert error_of(lambda: 1) == "no error"

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        error_of(interrupt)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("learns", [True, False])
def test_a_layer_answers_three_questions(is_training: bool, learns: bool) -> None:
    layer = nn.BatchNorm1d(3).train(is_training).requires_grad_(learns)
    first, second = ("batch", "move") if is_training else ("averages", "rest")
    assert observe(layer) == (first, second, "learns" if learns else "-")
    assert observe(nn.BatchNorm1d(3).train(is_training), torch.no_grad) == (
        first,
        second,
        "-",
    )
    assert layer.num_batches_tracked == is_training  # a call like any other


def test_a_layer_without_averages_has_none_that_move() -> None:
    layer = nn.BatchNorm1d(3, track_running_stats=False).eval()
    assert observe(layer) == ("batch", "rest", "learns")


def test_a_frozen_gain_behind_averages_moves_nothing() -> None:
    layer = nn.BatchNorm1d(3, affine=True).eval().requires_grad_(False)
    assert observe(layer, torch.enable_grad) == ("averages", "rest", "-")


def test_a_long_text_is_cut_at_220_characters() -> None:
    def fail() -> None:
        raise ValueError("a " * 300)

    assert len(error_of(fail).replace("\n", " ")) == 219  # a word more is too long
