"""Errors of the layer under test are told from those of the checks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, call, of_the_layer


def test_an_error_of_the_layer_is_told_with_its_type_and_first_line() -> None:
    with pytest.raises(LayerError, match=r"^KeyError: 'a'$"), of_the_layer():
        raise KeyError("a")


def test_a_long_error_is_cut() -> None:
    with pytest.raises(LayerError) as caught, of_the_layer():
        raise ValueError("long " * 100 + "\nand a second line")
    assert len(str(caught.value)) == len("ValueError: ") + 160
    assert str(caught.value).endswith("...")


def test_an_output_of_another_shape_is_an_error_of_the_layer() -> None:
    with pytest.raises(LayerError, match=r"shape \(4, 2\) the output is \(4, 3\)"):
        call(nn.Linear(2, 3), torch.ones(4, 2))


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.zero_()


def test_a_layer_that_writes_into_its_input_spoils_a_copy_only() -> None:
    x = torch.ones(4, 2)
    assert call(InPlace(), x).sum() == 0
    assert x.sum() == 8
