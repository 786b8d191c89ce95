"""Subclasses that are a batch norm and what comes behind it; norms that are idle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.gradient_check import relative_error
from normbook.lab.architectures import stir
from normbook.layers import folding
from normbook.layers.folding import (
    FoldedBatchNorm,
    FoldingError,
    Opened,
    fold_batch_norm,
    folding_plan,
)


class NormAct(nn.BatchNorm2d):
    """As libraries write it: batch norm by its function, then dropout, activation."""

    def __init__(self, width: int, act: nn.Module | None = None) -> None:
        super().__init__(width)
        self.drop = nn.Identity()
        self.act = nn.ReLU() if act is None else act

    def normalized(self, x: Tensor) -> Tensor:
        is_training = self.training or self.running_mean is None
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias,
            is_training, self.momentum or 0.0, self.eps,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.ndim == 4, "expected 4 axes")  # type: ignore[no-untyped-call]
        return self.act(self.drop(self.normalized(x)))  # type: ignore[no-any-return]


class BySuper(NormAct):
    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(nn.BatchNorm2d.forward(self, x)))  # type: ignore[no-any-return]


def network(norm: nn.Module, behind: nn.Module | None = None) -> Any:
    layers = [nn.Conv2d(3, 5, 3), norm, behind or nn.Conv2d(5, 2, 3)]
    model = nn.Sequential(*layers)
    return stir(model, torch.Generator().manual_seed(0)).double().eval()


X = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1)).double()


def holds(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


@pytest.mark.parametrize(
    "norm",
    [
        NormAct(5),
        BySuper(5),
        NormAct(5, nn.ReLU(inplace=True)),
        NormAct(5, nn.Sequential(nn.Conv2d(5, 5, 1), nn.BatchNorm2d(5))),
        NormAct(5, NormAct(5)),
        NormAct(5, nn.PReLU()),
    ],
)
def test_a_batch_norm_with_what_comes_behind_is_taken_apart(norm: Any) -> None:
    model = network(copy.deepcopy(norm))
    before = str(model)
    y = model(X)
    folded: Any = fold_batch_norm(model, X, strict=not isinstance(norm.act, NormAct))
    assert relative_error(folded(X), y) < 1e-12
    assert isinstance(folded[1], Opened)
    assert isinstance(folded[1].batch_norm, FoldedBatchNorm)
    assert str(model) == before
    kept = {k for k in model.state_dict() if k.startswith(("1.drop", "1.act"))}
    has_norms = isinstance(norm.act, (nn.Sequential, NormAct))
    assert has_norms or kept <= {*folded.state_dict()}
    with pytest.raises(AssertionError, match="another number of axes"):
        folded[1](X[0])


def test_the_plan_names_the_whole_layer() -> None:
    (found,) = folding_plan(network(NormAct(5)))
    assert (found.norm, found.layer, found.side) == ("1", "0", "previous")


def test_a_layer_that_no_linear_layer_takes_in_stays_as_it_is() -> None:
    model = nn.Sequential(nn.ReLU(), NormAct(3), nn.Conv2d(3, 2, 3)).eval()
    with pytest.raises(FoldingError, match="1: in front: ReLU '0'"):
        fold_batch_norm(model)
    folded: Any = fold_batch_norm(model, strict=False)
    assert type(folded[1]) is NormAct
    assert {*folded.state_dict()} == {*model.state_dict()}


def test_a_layer_with_two_names_is_taken_apart_under_both() -> None:
    model = network(NormAct(5))

    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = model[0], model[1]
            self.again = self.norm

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.first(x))  # type: ignore[no-any-return]

    one = Once().eval()
    folded: Any = fold_batch_norm(one, X)
    assert isinstance(folded.norm, Opened)
    assert folded.again is folded.norm


def scaled(self: Any, x: Tensor) -> Tensor:
    return self.act(self.drop(2 * self.normalized(x)))  # type: ignore[no-any-return]


def before(self: Any, x: Tensor) -> Tensor:
    return self.act(self.drop(self.normalized(x + 1)))  # type: ignore[no-any-return]


def in_place(self: Any, x: Tensor) -> Tensor:
    x.add_(1)
    return self.act(self.drop(self.normalized(x)))  # type: ignore[no-any-return]


def residual(self: Any, x: Tensor) -> Tensor:
    y = self.normalized(x)
    return y + self.act(self.drop(y))  # type: ignore[no-any-return]


def twice(self: Any, x: Tensor) -> Tensor:
    return self.act(self.drop(self.act(self.normalized(x))))  # type: ignore[no-any-return]


def left_out(self: Any, x: Tensor) -> Tensor:
    return self.act(self.normalized(x))  # type: ignore[no-any-return]


def by_function(self: Any, x: Tensor) -> Tensor:
    return functional.relu(self.normalized(x))


def of_the_batch(self: Any, x: Tensor) -> Tensor:
    y = functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.1, 1e-5)
    return self.act(self.drop(y))  # type: ignore[no-any-return]


def other_eps(self: Any, x: Tensor) -> Tensor:
    y = functional.batch_norm(
        x, self.running_mean, self.running_var, self.weight, self.bias, eps=0.1
    )
    return self.act(self.drop(y))  # type: ignore[no-any-return]


def without_gain(self: Any, x: Tensor) -> Tensor:
    y = functional.batch_norm(x, self.running_mean, self.running_var, eps=self.eps)
    return self.act(self.drop(y))  # type: ignore[no-any-return]


def exchanged(self: Any, x: Tensor) -> Tensor:
    y = functional.batch_norm(
        x, self.running_mean, self.running_var, self.bias, self.weight, eps=self.eps
    )
    return self.act(self.drop(y))  # type: ignore[no-any-return]


def by_values(self: Any, x: Tensor) -> Tensor:
    y = self.act(self.drop(self.normalized(x)))
    return y if float(x.mean()) > 0 else -y  # type: ignore[no-any-return]


def by_argument(self: Any, x: Tensor, scale: float = 2.0) -> Tensor:
    return scale * self.act(self.drop(self.normalized(x)))  # type: ignore[no-any-return]


def rounded(self: Any, x: Tensor) -> Tensor:
    return self.act(self.drop(self.normalized(x.float()).to(x.dtype)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "forward",
    [
        *(scaled, before, in_place, residual, twice, left_out, by_function),
        *(of_the_batch, other_eps, without_gain, exchanged, by_values, by_argument),
        rounded,
    ],
)
def test_a_subclass_that_does_anything_else_is_refused(
    forward: Callable[..., Tensor],
) -> None:
    kind: Any = type("Own", (NormAct,), {"forward": forward})
    with pytest.raises(FoldingError, match="1: it, a Own, computes something of its"):
        fold_batch_norm(network(kind(5)))


def with_more_state(norm: Any) -> None:
    norm.register_buffer("calls", torch.zeros(()))


def with_own_forward(norm: Any) -> None:
    norm.forward = lambda x: 2 * x


def with_the_name(norm: Any) -> None:
    norm.add_module("batch_norm", nn.ReLU())


def in_training(norm: Any) -> None:
    norm.train()


@pytest.mark.parametrize(
    "change", [with_more_state, with_own_forward, with_the_name, in_training]
)
def test_a_layer_that_was_changed_is_not_taken_apart(
    change: Callable[[Any], None],
) -> None:
    model = network(NormAct(5))
    change(model[1])
    with pytest.raises(FoldingError):
        fold_batch_norm(model)
    folded: Any = fold_batch_norm(model, strict=False)
    assert isinstance(folded[1], NormAct)


class Asks(nn.Module):
    """Goes another way if its layer is no batch norm."""

    def __init__(self, question: Callable[[Any], Any]) -> None:
        super().__init__()
        self.conv, self.norm, self.question = nn.Conv2d(3, 5, 3), NormAct(5), question

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return y if self.question(self.norm) else 2 * y  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "question",
    [
        lambda norm: isinstance(norm, nn.BatchNorm2d),
        lambda norm: hasattr(norm, "num_features"),
        lambda norm: norm.eps > 0,
        lambda norm: norm.weight is not None,
    ],
)
def test_a_model_that_asks_what_its_layer_is_keeps_it(
    question: Callable[[Any], Any],
) -> None:
    model = stir(Asks(question), torch.Generator().manual_seed(0)).double().eval()
    folded: Any = fold_batch_norm(model, X, strict=False)
    assert isinstance(folded.norm, NormAct)
    assert relative_error(folded(X), model(X)) < 1e-12


def test_a_layer_that_is_called_twice_stays() -> None:
    shared = NormAct(5)
    model = network(shared, nn.Sequential(nn.Conv2d(5, 5, 3), shared))
    with pytest.raises(FoldingError, match="1: it is called 2 times"):
        fold_batch_norm(model)
    assert relative_error(fold_batch_norm(model, strict=False)(X), model(X)) < 1e-12


# --- idle


class TwoHeads(nn.Module):
    """As a network with a second head that training alone needs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5))
        self.second = nn.Sequential(nn.Conv2d(5, 2, 1), nn.BatchNorm2d(2))
        self.head = nn.Sequential(nn.Conv2d(5, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        if self.training:
            return self.head(x), self.second(x)
        return self.head(x)


def test_what_evaluation_never_calls_stays_and_refuses_nothing() -> None:
    model: Any = stir(TwoHeads(), torch.Generator().manual_seed(0)).double().eval()
    folded: Any = fold_batch_norm(model, X)
    assert holds(folded) == [folded.second[1]]
    plan = {folding.norm: folding.is_idle for folding in folding_plan(model)}
    assert plan == {"stem.1": False, "second.1": True, "head.1": False}
    assert torch.equal(folded.second[0].weight, model.second[0].weight)


def test_a_norm_whose_weights_the_model_reads_is_not_idle() -> None:
    class Reads(TwoHeads):
        def forward(self, x: Tensor) -> Any:
            norm: Any = self.second[1]
            return super().forward(x) * norm.weight.sum()

    model = stir(Reads(), torch.Generator().manual_seed(0)).eval()
    with pytest.raises(FoldingError, match=r"second\.1: the model does not call it"):
        fold_batch_norm(model)


# --- how far rounding may go


class Amplifies(nn.Module):
    """Makes much of little: outputs are the last digits of what was computed."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.part, self.power = network(nn.BatchNorm2d(5)), power

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        return torch.sin(self.power * y)


@pytest.mark.parametrize(("power", "wrong_by"), [(1.0, 1e-5), (1e8, 1e-3)])
def test_a_model_that_amplifies_rounding_has_more_room_but_not_for_a_wrong_folding(
    monkeypatch: pytest.MonkeyPatch, power: float, wrong_by: float
) -> None:
    model = Amplifies(power).eval()
    error = relative_error(fold_batch_norm(model)(X), model(X))
    assert (error > 1.5e-8) == (power > 1)  # which was refused
    fold_batch_norm(model, X)
    change = folding._change

    def wrong(name: str, layer: Any, *rest: Any) -> None:
        change(name, layer, *rest)
        layer.bias.data.mul_(1 + wrong_by)

    monkeypatch.setattr(folding, "_change", wrong)
    with pytest.raises(FoldingError, match="difference, as a share of the largest"):
        fold_batch_norm(model, X)
