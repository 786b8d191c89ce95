"""What is neither norm nor LSTM is refused, with what is wrong with it as any layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normbook.checks import check_norm_layer


class Scaled(nn.Module):
    """A layer that no norm is like, with a slip or none."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.calls = slip, 0
        self.scale = nn.Parameter(torch.ones(6))

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        return None if self.slip == "nothing" else self

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.slip == "writes":
            with torch.no_grad():
                x *= 2
        if self.slip == "counts":
            return x * self.scale * self.calls
        if self.slip == "learns":
            return x * self.scale + (self.calls if self.training else 0)
        if self.slip == "draws" and self.training:
            return x * self.scale * torch.empty(6).uniform_(0.5, 2)
        if self.slip == "moves":
            self.scale.data *= 2
        if self.slip == "no graph":
            return (x * self.scale).detach()
        if self.slip == "whole":
            return (x * self.scale).long()
        return x * (self.scale.detach() if self.slip == "detached" else self.scale)


@pytest.mark.parametrize(
    ("slip", "text"),
    [
        ("writes", "it writes into its input"),
        ("counts", "after eval\\(\\) two calls with one x differ by 1 of"),
        ("moves", "a call in evaluation overwrites scale"),
        ("nothing", r"train\(\) returns no layer"),
        ("learns", "it gives another output in training"),
        ("draws", "normalizes by its input.$"),
        ("detached", "gradients are not what .* give \\(scale: 0 for "),
        ("no graph", "But its output has no derivative: it is detached"),
        ("whole", "of shape \\(16, 6\\) the output is torch.int64;"),
        ("", "the layer must normalize in training.*normalizes by its input.$"),
    ],
)
def test_what_holds_of_any_layer_is_told_with_the_refusal(slip: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_norm_layer(Scaled(slip), (8, 6))


class Unruly(Scaled):
    """A layer that fails where tests of any layer look, and not before."""

    def eval(self) -> Any:
        raise RuntimeError("not here")

    def load_state_dict(self, *given: Any, **named: Any) -> Any:
        raise KeyError("nor here")


def test_no_test_of_any_layer_hides_the_refusal() -> None:
    with pytest.raises(ValueError, match="must normalize in training"):
        check_norm_layer(Unruly(), (8, 6))


class Gated(nn.Module):
    """A GRU of (T, N, D), with layer norm and a slip or none."""

    def __init__(self, size: int, slip: str) -> None:
        super().__init__()
        self.slip = slip
        self.cell, self.norm = nn.GRUCell(size, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor, h: Tensor | None = None) -> Any:
        if h is None:
            h = x.new_full((x.shape[1], 6), 0.1 * (self.slip == "start"))
        rows = []
        for x_t in x:
            h = self.norm(self.cell(x_t, h))
            rows.append(h)
        out = torch.stack(rows)
        if self.slip == "state":
            return out, h + 1
        return out, out[0] if self.slip == "first" else h


PIECES = "in two pieces, the second begun with the state of the first"


@pytest.mark.parametrize(
    ("slip", "text"),
    [
        ("start", "without a state its output differs"),
        ("state", PIECES),
        ("first", PIECES),
        ("", ""),
    ],
)
@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 3, 6)])
def test_a_layer_with_one_state_goes_on_from_it(
    slip: str, text: str, shape: tuple[int, ...]
) -> None:
    report = check_norm_layer(Gated(shape[-1], slip), shape, quiet=True)
    name = "it begins with zeros, and goes on from the state that it returns"
    assert [*report.failed] == [name] * bool(slip)
    assert text in " ".join(str(report).split())


@pytest.mark.parametrize(
    "layer",
    [
        nn.GRU(5, 6),
        nn.GRU(5, 6, batch_first=True),
        nn.GRU(5, 6, 2, bidirectional=True),
        nn.RNN(5, 5),
    ],
)
def test_those_of_torch_pass(layer: nn.Module) -> None:
    assert check_norm_layer(layer, (4, 3, 5), quiet=True).passed
