"""Our layers beside torch's: the same weights, the same input, everything compared."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from normbook.gradient_check import survivors
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normbook.layers.group_norm import (
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from normbook.layers.layer_norm import LayerNorm, RMSNorm

# float64, the same formula summed in another order: some 1e-15 for each sum.
EXACT = 1e-10


class Pair(NamedTuple):
    ours: type[nn.Module]
    theirs: type[nn.Module]
    shape: tuple[int, ...]  # every axis has another length
    args: tuple[Any, ...] = ()  # of the constructor; else the length of axis 1

    @property
    def size(self) -> tuple[Any, ...]:
        return self.args or (self.shape[1],)


PAIRS = [
    Pair(BatchNorm1d, nn.BatchNorm1d, (7, 3)),
    Pair(BatchNorm1d, nn.BatchNorm1d, (5, 3, 4)),
    Pair(BatchNorm2d, nn.BatchNorm2d, (2, 3, 4, 5)),
    Pair(BatchNorm3d, nn.BatchNorm3d, (2, 3, 4, 5, 6)),
]
FEATURES = [
    Pair(LayerNorm, nn.LayerNorm, (5,), (5,)),
    Pair(LayerNorm, nn.LayerNorm, (7, 5), (5,)),
    Pair(LayerNorm, nn.LayerNorm, (7, 3, 5), (5,)),
    Pair(LayerNorm, nn.LayerNorm, (2, 3, 4, 5), ((3, 4, 5),)),
    Pair(RMSNorm, nn.RMSNorm, (5,), (5,)),
    Pair(RMSNorm, nn.RMSNorm, (7, 5), (5,)),
    Pair(RMSNorm, nn.RMSNorm, (2, 7, 3, 5), ([3, 5],)),
]
GROUPS = [
    Pair(GroupNorm, nn.GroupNorm, (7, 6), (2, 6)),
    Pair(GroupNorm, nn.GroupNorm, (5, 6, 4), (2, 6)),
    Pair(GroupNorm, nn.GroupNorm, (2, 6, 4, 5), (1, 6)),
    Pair(GroupNorm, nn.GroupNorm, (2, 4, 3, 5), (4, 4)),
    Pair(GroupNorm, nn.GroupNorm, (2, 6, 3, 5, 4), (2, 6)),
]
AFFINE = (3, 1e-5, 0.1, True)
INSTANCES = [
    Pair(InstanceNorm1d, nn.InstanceNorm1d, (3, 5), AFFINE),
    Pair(InstanceNorm1d, nn.InstanceNorm1d, (7, 3, 5), AFFINE),
    Pair(InstanceNorm2d, nn.InstanceNorm2d, (3, 4, 5), AFFINE),
    Pair(InstanceNorm2d, nn.InstanceNorm2d, (2, 3, 4, 5), AFFINE),
    Pair(InstanceNorm3d, nn.InstanceNorm3d, (3, 4, 5, 6), AFFINE),
    Pair(InstanceNorm3d, nn.InstanceNorm3d, (2, 3, 4, 5, 6), AFFINE),
]
EXAMPLES = [*FEATURES, *GROUPS, *INSTANCES]  # each example by itself
EVERY = [*PAIRS, *EXAMPLES]
AVERAGED = [  # instance norm with running statistics
    pair._replace(args=(3, 1e-5, 0.3, True, True)) for pair in INSTANCES
]


def name(pair: Pair) -> str:
    return f"{pair.theirs.__name__}-{'x'.join(map(str, pair.shape))}"


each_pair = pytest.mark.parametrize("pair", EVERY, ids=name)
# One of each class.
LAYERS = [*PAIRS[1:], FEATURES[2], FEATURES[5], GROUPS[2], *INSTANCES[1::2]]
each_layer = pytest.mark.parametrize("pair", LAYERS, ids=name)
each_mode = pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
# Each pair in the modes in which it computes different things.
each_case = pytest.mark.parametrize(
    ("pair", "is_training"),
    [*((pair, True) for pair in EVERY), *((pair, False) for pair in PAIRS)],
    ids=lambda value: name(value) if isinstance(value, Pair) else str(value),
)
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU that torch can use"
)
HALF = [torch.float16, torch.bfloat16]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return values with mean 2 and deviation 3, so that no statistic is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype) * 3 + 2


def twins(pair: Pair, *args: Any, **options: Any) -> tuple[Any, Any]:
    """Make both layers, with the same random state."""
    options = {"dtype": torch.float64} | options
    size = args or pair.size
    ours, theirs = pair.ours(*size, **options), stirred(pair.theirs(*size, **options))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def stirred(layer: nn.Module, low: float = 0.5, high: float = 2) -> Any:
    """Give parameters and statistics random values, the same for the same names."""
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for value in layer.state_dict().values():
            if value.is_floating_point():
                value.uniform_(low, high, generator=generator)
    return layer


def copy_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in state.items()}


class Wired(nn.Module):
    """Layers that are called by a function of the model and its input."""

    def __init__(self, wiring: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for key, layer in layers.items():
            self.add_module(key, layer)
        self.wiring = wiring

    def forward(self, x: Tensor) -> Any:
        return self.wiring(self, x)


def through_pickle(layer: Any) -> Any:
    return pickle.loads(pickle.dumps(layer))  # noqa: S301 - our own bytes


def through_a_file(layer: Any) -> Any:
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    copied = copy.deepcopy(layer)
    for value in copied.state_dict().values():
        value.zero_()
    copied.load_state_dict(torch.load(file, weights_only=True))
    return copied


each_copy = pytest.mark.parametrize(
    "copied", [copy.deepcopy, through_pickle, through_a_file]
)


def run(layer: Any, x: Tensor, dl_dy: Tensor, *rest: Any) -> dict[str, Tensor]:
    """Return the output, every gradient, and the buffers afterwards."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x, *rest)
    leaves = {"x": x} | dict(layer.named_parameters())
    slopes = torch.autograd.grad(y, list(leaves.values()), dl_dy.to(y.dtype))
    found = {f"dl_d{k}": v for k, v in zip(leaves, slopes, strict=True)}
    return {"y": y.detach()} | found | {k: v.clone() for k, v in layer.named_buffers()}


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference, as a share of the largest value of b."""
    a, b = a.detach().double(), b.detach().double()
    assert a.shape == b.shape
    if a.numel() == 0:
        return 0.0
    scale = float(b.abs().max())
    return float((a - b).abs().max()) / (scale or 1.0)


def assert_equal(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = EXACT
) -> None:
    assert ours.keys() == theirs.keys()
    for key, expected in theirs.items():
        assert ours[key].dtype == expected.dtype, key
        assert distance(ours[key], expected) <= tolerance, key


def assert_alike(
    layers: tuple[Any, Any], x: Tensor, dl_dy: Tensor, tolerance: float = EXACT
) -> None:
    ours, theirs = (run(layer, x, dl_dy) for layer in layers)
    assert_equal(ours, theirs, tolerance)


def assert_checkpoints_go_both_ways(layer: Any, other: Any, again: Any) -> None:
    """Load the state of a layer into another, and that into a third."""
    other.load_state_dict(layer.state_dict())
    again.load_state_dict(other.state_dict())
    assert_equal(again.state_dict(), layer.state_dict(), 0.0)


def assert_every_mutant_is_caught(
    owner: Any, name: str, check: Callable[[], None]
) -> None:
    """Change the formula of a function in every way, and see the check fail."""
    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)

    def check_with(mutant: Callable[..., Any]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, staticmethod(mutant) if is_static else mutant)
            check()

    assert survivors(getattr(owner, name), check_with) == []


def zeros(
    *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def let_fail(monkeypatch: pytest.MonkeyPatch, path: str, call: int) -> None:
    """Let a function run out of memory at its first, second ... call."""
    right, calls = pkgutil.resolve_name(path), []

    def fail(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == call:
            raise MemoryError
        return right(*args, **options)

    monkeypatch.setattr(path, fail)
