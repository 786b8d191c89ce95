"""What a condition does is tested under two of them, and in a mixed batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer
from normbook.checks.report import Report

SIZE, GIVEN = 12, 7


class Adaptive(nn.Module):
    """A layer norm whose gain and bias are made from a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-5
        self.project = nn.Linear(GIVEN, 2 * SIZE)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.project(condition)[:, None].chunk(2, -1)
        return self.mixed(x, scale, shift)

    def x_hat(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (SIZE,))

    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return self.x_hat(x) * (1 + scale) + shift


class Ignored(Adaptive):
    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return self.x_hat(x)


class WithoutOne(Adaptive):
    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return self.x_hat(x) * scale + shift


class OfTheFirst(Adaptive):
    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return super().mixed(x, scale[:1], shift[:1])


class Reversed(Adaptive):
    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return super().mixed(x, scale.flip(0), shift.flip(0))


class Mean(Adaptive):
    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return super().mixed(x, scale.mean(0), shift.mean(0))


class OneForBoth(Adaptive):
    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return super().mixed(x, scale, scale)


class BiasAlone(Adaptive):
    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return self.x_hat(x) + shift


class GainAlone(Adaptive):
    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return self.x_hat(x) * (1 + scale)


class Before(Adaptive):
    def mixed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return self.x_hat(x * (1 + scale) + shift)


def checked(layer: nn.Module) -> Report:
    torch.manual_seed(0)
    return check_norm_layer(layer, (4, 5, SIZE), quiet=True)


def test_a_right_one_is_conditional_and_nothing_else() -> None:
    report = checked(Adaptive())
    assert not report.failed
    assert set(report.others) == {"conditional"}


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (Ignored, "is ignored: another one changes nothing"),
        (WithoutOne, "1 + is missing"),
        (OfTheFirst, "the condition of the first example acts on all"),
        (Reversed, "examples have the condition of others, in reversed order"),
        (Mean, "the mean of both acts on every example"),
        (OneForBoth, "made from one output of the projection"),
        (BiasAlone, "the condition makes the bias alone, and no gain"),
        (GainAlone, "the condition makes the gain alone, and no bias"),
        (Before, "gain and bias act before the norm"),
    ],
)
def test_a_slip_with_the_condition_is_named(layer: type[Adaptive], text: str) -> None:
    report = checked(layer())
    assert text in " ".join(str(report).split())


class Classes(nn.Module):
    """Conditional batch norm of a class, with rows of random numbers."""

    def __init__(self, first: float, size: int = SIZE) -> None:
        super().__init__()
        self.first = first
        self.norm = nn.BatchNorm2d(size, affine=False)
        self.embed = nn.Embedding(10, 2 * size)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        gain, bias = self.embed(label)[..., None, None].chunk(2, 1)
        y: Tensor = (self.first + gain) * self.norm(x) + bias
        return y


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("first", "is_told"), [(1.0, False), (0.0, True)])
def test_random_rows_of_classes_are_told_by_their_mean(
    first: float, is_told: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    report = check_norm_layer(Classes(first), quiet=True)
    assert ("no 1 +" in report.others) == is_told, report


def test_of_one_gain_it_is_not_told_whether_1_is_missing() -> None:
    torch.manual_seed(0)
    report = check_norm_layer(Classes(0.0, 1), quiet=True)
    (finding,) = (f for f in report.findings if f.name.startswith("a projection of 0"))
    assert finding.passed is None
    assert "one gain alone" in finding.reason


class BatchWithoutRoot(nn.Module):
    """A conditional batch norm that divides by the variance, of no telling name."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(GIVEN, 2 * SIZE)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        gain, bias = self.project(condition).chunk(2, -1)
        var, mean = torch.var_mean(x, 0, correction=0)
        y: Tensor = gain * (x - mean) / (var + 1e-5) + bias
        return y


def test_a_wrong_norm_is_taken_for_the_kind_whose_slip_explains_it() -> None:
    torch.manual_seed(0)
    report = check_norm_layer(BatchWithoutRoot(), shape=(16, SIZE), quiet=True)
    assert report.kind == f"batch norm of (N, {SIZE})"
    (statistics,) = (f for f in report.findings if "the right axes" in f.name)
    assert "divided by the variance, not by its root" in statistics.reason


def test_what_the_condition_alone_makes_is_no_norm() -> None:
    """Attention whose keys are all alike gives the mean of its values."""
    with pytest.raises(ValueError, match="the kind of norm must be known"):
        check_norm_layer(nn.MultiheadAttention(8, 2), (5, 4, 8))
