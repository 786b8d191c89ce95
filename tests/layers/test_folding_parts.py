"""What cannot be traced as a whole is folded part by part, and never wrongly."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from normbook.gradient_check import relative_error
from normbook.lab.architectures import stir
from normbook.layers import folding, folding_code, folding_traces
from normbook.layers.folding import FoldingError, fold_batch_norm, folding_plan

X = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1)).double()


class ConvNorm(nn.Module):
    size = 3

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 1), nn.BatchNorm2d(width)
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))  # type: ignore[no-any-return]


def by_shape(x: Tensor) -> bool:
    return x.shape[-1] > 2  # no trace can follow


class Block(nn.Module):
    """Goes by the shape of its input; what it does with its parts differs by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = ConvNorm(), nn.Sequential(ConvNorm(), nn.ReLU())
        self.several = nn.ModuleList([ConvNorm(), ConvNorm()])
        self.none: Any = None

    def head(self, x: Tensor) -> Tensor:
        return self.one(x) if by_shape(x) else x

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(self.head(x)) * self.one.factor
        if self.none is not None:
            x = self.none(x)
        for layer in self.several:
            x = layer(x)
        for k, layer2 in enumerate(self.several):
            x = x + k * layer2(x)
        return x

    def unused(self) -> Tensor:
        return self.one.norm.weight


class Model(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.first, self.block, self.last = ConvNorm(), block, ConvNorm(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.block(self.first(x))))  # type: ignore[no-any-return]


def stirred(model: nn.Module) -> Any:
    return stir(model, torch.Generator().manual_seed(0)).double().eval()


def norms(model: nn.Module) -> list[str]:
    return [k for k, m in model.named_modules() if isinstance(m, TorchBatchNorm)]


def folds_rightly(model: nn.Module) -> list[str]:
    """Return the names of the batch norms that stay."""
    before = copy.deepcopy(model.state_dict())
    folded = fold_batch_norm(model, X, strict=False)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert relative_error(folded(X), model(X)) < 1e-12
    left = [f.norm for f in folding_plan(model) if f.layer is None]
    assert left == norms(folded)
    return left


def test_inside_of_what_cannot_be_traced_its_parts_are_folded() -> None:
    model = stirred(Model(Block()))
    assert folds_rightly(model) == []
    assert norms(fold_batch_norm(model)) == []  # nothing stays, so nothing is refused


def test_what_cannot_be_traced_may_lie_in_another_or_be_the_model() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = Model(Block()), nn.BatchNorm2d(5)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.inner(x)) if by_shape(x) else x

    assert folds_rightly(stirred(Outer())) == ["norm"]
    assert folds_rightly(stirred(Block())) == []
    reason = {f.norm: f.reason for f in folding_plan(stirred(Outer()))}["norm"]
    assert "it is in the model, which torch.fx cannot trace (symbolically" in reason
    with pytest.raises(FoldingError, match=r"fold its parts.*as strict=False does"):
        fold_batch_norm(stirred(Outer()))


def variant(**methods: Any) -> type[Block]:
    """Make a block with other methods, of which the code stands in this file."""
    kind: Any = type("Other", (Block,), {})
    for name, method in methods.items():
        setattr(kind, name, method)
    return kind  # type: ignore[no-any-return]


class Weight(Block):
    def head(self, x: Tensor) -> Tensor:
        return self.one(x) * self.one.norm.weight.sum() if by_shape(x) else x


class Inside(Block):
    def head(self, x: Tensor) -> Tensor:
        return self.one(x) + self.one.conv(x) if by_shape(x) else x


class Renamed(Block):
    def head(self, x: Tensor) -> Tensor:
        one = self.one
        return one(x) + one.conv(x) if by_shape(x) else x


class HandedOn(Block):
    def head(self, x: Tensor) -> Tensor:
        return inside(self, x) if by_shape(x) else x


class All(Block):
    def head(self, x: Tensor) -> Tensor:
        total = sum(p.sum() for p in self.parameters())
        return self.one(x) * total if by_shape(x) else x


class OneByOne(Block):
    """Goes through a sequence, and takes what is between."""

    def head(self, x: Tensor) -> Tensor:
        y = x if by_shape(x) else 2 * x
        for layer in self.two[0].children():
            x = layer(x)
            y = y + x
        return self.one(y)  # type: ignore[no-any-return]


class Subscript(Block):
    def head(self, x: Tensor) -> Tensor:
        inner: Any = self.several[0]
        return self.one(x) + inner.conv(x) if by_shape(x) else x


class Nested(Block):
    def head(self, x: Tensor) -> Tensor:
        reach = lambda: self.one.conv(x)  # noqa: E731
        return self.one(x) + reach() if by_shape(x) else x  # type: ignore[no-untyped-call]


class ByName(Block):
    def head(self, x: Tensor) -> Tensor:
        return self.one(x) + getattr(self, "one").conv(x) if by_shape(x) else x  # noqa: B009


class Computed(Block):
    @property
    def gain(self) -> Tensor:
        return self.one.norm.weight.sum()

    def head(self, x: Tensor) -> Tensor:
        return self.one(x) * self.gain if by_shape(x) else x


class Marked(Block):
    @staticmethod
    def doubled(method: Any) -> Any:
        return lambda self, x: method(self, x) + self.one.conv(x)

    @doubled
    def head(self, x: Tensor) -> Tensor:
        return self.one(x) if by_shape(x) else x


def with_more(method: Any) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, x: Tensor) -> Any:
        return method(self, x) + self.one.conv(x)

    return wrapped


class Wrapped(Block):
    @with_more
    def head(self, x: Tensor) -> Tensor:
        return self.one(x) if by_shape(x) else x


class EachInside(Block):
    def head(self, x: Tensor) -> Tensor:
        for layer in self.several:
            x = layer(x) + layer.conv(x)  # type: ignore[operator]
        return self.one(x) if by_shape(x) else x


class OfTwo(Block):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Sequential(self.one.conv)

    def head(self, x: Tensor) -> Tensor:
        return self.one(x) + self.again(x) if by_shape(x) else x


class Kept(Block):
    def __init__(self) -> None:
        super().__init__()
        self.way = self.one.conv.forward

    def head(self, x: Tensor) -> Tensor:
        return self.one(x) + self.way(x) if by_shape(x) else x


class Hidden(Block):
    def __init__(self) -> None:
        super().__init__()
        self.more = [self.one.conv]

    def head(self, x: Tensor) -> Tensor:
        return self.one(x) + self.more[0](x) if by_shape(x) else x


class OwnCall(ConvNorm):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + self.conv(x)  # type: ignore[no-any-return]


class Calls(Block):
    def __init__(self) -> None:
        super().__init__()
        self.one = OwnCall()


def inside(block: Any, x: Tensor) -> Tensor:
    return block.one(x) + block.one.conv(x)  # type: ignore[no-any-return]


def helper(self: Any, x: Tensor) -> Tensor:
    return inside(self, x) if by_shape(x) else x


Replaced = variant(head=helper)
KINDS = [
    *(Weight, Inside, Renamed, HandedOn, All, OneByOne, Subscript, Nested, ByName),
    *(Wrapped, EachInside, Computed, Marked, OfTwo, Kept, Hidden, Calls, Replaced),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_parts_that_the_code_may_look_into_stay(kind: type[Block]) -> None:
    left = folds_rightly(stirred(Model(kind())))
    assert "block.one.norm" in left or "block.several.0.norm" in left
    assert "first.norm" not in left
    assert "last.norm" not in left


def with_own_forward(block: Any) -> None:
    block.one.forward = lambda x: block.one.norm(block.one.conv(2 * x))


def with_own_method(block: Any) -> None:
    block.head = lambda x: inside(block, x) if by_shape(x) else x


@pytest.mark.parametrize("change", [with_own_forward, with_own_method])
def test_parts_that_were_changed_stay(change: Callable[[Any], None]) -> None:
    model = stirred(Model(Block()))
    change(model.block)
    folded = fold_batch_norm(model, strict=False)
    assert "block.one.norm" in norms(folded)


def test_a_part_that_the_model_looks_into_stays() -> None:
    class Looks(Model):
        def forward(self, x: Tensor) -> Tensor:
            y: Any = self.block.one.conv(x)  # type: ignore[operator, union-attr]
            return super().forward(x) + y.mean()  # type: ignore[no-any-return]

    model = stirred(Looks(Block()))
    assert folds_rightly(model) == ["block.one.norm"]
    reason = {f.norm: f.reason for f in folding_plan(model)}["block.one.norm"]
    assert reason == "the model calls a part of what holds it by itself"


def test_a_part_that_goes_another_way_once_folded_is_refused() -> None:
    class Asks(ConvNorm):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if isinstance(self.norm, nn.BatchNorm2d) else 2 * y

    model = stirred(Model(Block()))
    model.block.one = stirred(Asks())
    with pytest.raises(FoldingError, match="must go the same way once it is folded"):
        fold_batch_norm(model, strict=False)


def test_the_example_is_tried_where_parts_are_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = stirred(Model(Inside()))
    found = folding_code.called_whole
    every = lambda m, box: [*found(m, box), *([f"{box}.one"] if box else [])]  # noqa: E731
    monkeypatch.setattr(folding_traces, "called_whole", every)
    with pytest.raises(FoldingError, match="difference, as a share of the largest"):
        fold_batch_norm(model, X, strict=False)


def test_norms_of_a_part_keep_the_reasons_of_their_own() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
            self.factor = 2.0

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(torch.relu(self.norm(x)))  # type: ignore[no-any-return]

    model = Model(Block())
    model.block.one = Dense()
    (left,) = [f for f in folding_plan(stirred(model)) if f.layer is None]
    assert left.norm == "block.one.norm"
    assert left.reason.startswith("in front: the input of the model; behind: relu")


# --- outputs that are joined before they are normalized


class Joined(nn.Module):
    """As mixed convolutions: one batch norm behind several layers."""

    def __init__(self, join: Callable[[Any, Tensor], Tensor], width: int = 9) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 5, 1, bias=False)
        self.c = nn.ConvTranspose2d(3, 4, 1)
        self.inner, self.join = nn.BatchNorm2d(4), join
        self.norm, self.act = nn.BatchNorm2d(width), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.join(self, x)))  # type: ignore[no-any-return]


JOINTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "by position": lambda m, x: torch.cat([m.a(x), m.b(x)], 1),
    "by name": lambda m, x: torch.concat(tensors=(m.b(x), m.a(x)), dim=-3),
    "nested": lambda m, x: torch.cat([torch.cat([m.b(x)], 1), m.c(x)], dim=1),
    "through a batch norm": lambda m, x: torch.cat([m.inner(m.a(x)), m.b(x)], dim=1),
}


@pytest.mark.parametrize("join", JOINTS.values(), ids=JOINTS)
def test_a_batch_norm_behind_joined_outputs_is_shared_out(join: Any) -> None:
    model = stirred(Joined(join))
    assert set(folds_rightly(model)) <= {"inner"}
    (found,) = [f for f in folding_plan(model) if f.norm == "norm"]
    assert found.side == "previous"
    assert len(found.layers) == 2
    assert str(found).endswith("the previous layers")


REFUSED: dict[str, tuple[Any, int, str]] = {
    "other axis": (lambda m, x: torch.cat([m.a(x), m.c(x)], 2), 4, "joins along ano"),
    "an output twice": (lambda m, x: torch.cat([y := m.a(x), y], 1), 8, "a, a give ot"),
    "a layer twice": (lambda m, x: torch.cat([m.a(x), m.a(x)], 1), 8, "a, a give"),
    "something else": (lambda m, x: torch.cat([m.b(x), m.a(x).relu()], 1), 9, "in cat"),
    "used elsewhere": (
        lambda m, x: torch.cat([y := m.a(x), m.b(x)], 1) + y.mean(), 9, "add",
    ),
    "piece used elsewhere": (
        lambda m, x: torch.cat([y := m.a(x), m.b(y[:, :3])], 1), 9, "used elsewhere",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_is_joined_otherwise_keeps_its_batch_norm(case: Any) -> None:
    join, width, reason = case
    model = stirred(Joined(join, width))
    assert "norm" in folds_rightly(model)
    found = {f.norm: f for f in folding_plan(model)}["norm"]
    assert reason in found.reason


def test_another_number_of_channels_behind_a_joint_stays() -> None:
    model = stirred(Joined(JOINTS["by position"], 8))
    found = {f.norm: f for f in folding_plan(model)}["norm"]
    assert "a, b give other channels than it takes" in found.reason


def test_a_layer_that_cannot_take_its_share_is_told() -> None:
    model = stirred(Joined(JOINTS["by position"]))
    nn.utils.parametrizations.weight_norm(model.b)
    found = {f.norm: f for f in folding_plan(model)}["norm"]
    assert "'b' is parametrized" in found.reason
    assert folding.fold_batch_norm(model, X, strict=False)(X).equal(model(X))


class PaddedByItself(nn.Conv2d):
    """As TensorFlow pads: by the size of the input, which no trace knows."""

    def forward(self, x: Tensor) -> Tensor:
        more = x.shape[-1] % 2
        x = functional.pad(x, (1, 1 + more, 1, 1 + more))
        return functional.conv2d(x, self.weight, self.bias, groups=self.groups)


class Behind(PaddedByItself):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class WithoutMean(PaddedByItself):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight - self.weight.mean() + 1
        return functional.conv2d(x, w, self.bias)


class Rounded(PaddedByItself):
    def forward(self, x: Tensor) -> Tensor:
        w = (100 * self.weight).round() / 100
        return functional.conv2d(x, w, self.bias)


class WithoutBias(PaddedByItself):
    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight)


def of_kind(kind: type[nn.Conv2d], groups: int = 1) -> nn.Module:
    layers = kind(4, 6, 3, groups=groups, bias=False), nn.BatchNorm2d(6)
    model = stir(nn.Sequential(*layers), torch.Generator().manual_seed(0))
    return model.double()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_that_pads_by_itself_takes_in_what_is_behind(groups: int) -> None:
    model = of_kind(PaddedByItself, groups)
    folded = fold_batch_norm(model)
    for size in (7, 8):
        x = torch.randn(2, 4, size, size, dtype=torch.float64)
        assert relative_error(folded(x), model(x)) < 1e-13


@pytest.mark.parametrize("kind", [Behind, WithoutMean, Rounded, WithoutBias])
def test_a_convolution_that_is_not_linear_in_its_weights_takes_in_nothing(
    kind: type[nn.Conv2d],
) -> None:
    with pytest.raises(FoldingError, match="computes something of its own"):
        fold_batch_norm(of_kind(kind))


def test_a_convolution_that_pads_by_itself_takes_in_nothing_in_front() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4), PaddedByItself(4, 6, 3)).eval()
    with pytest.raises(FoldingError, match="may pad its input"):
        fold_batch_norm(model)
