"""What is exported or traced at one batch size computes the same at another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_pairs import AVERAGED, LAYERS, PAIRS, assert_equal, draw, name, twins
from torch import Tensor, nn

from normbook.layers.lp_norm import LpNorm1d

EXACT = 1e-12
CASES: list[Any] = [(pair, {}) for pair in (*LAYERS, PAIRS[0], AVERAGED[3])]
# Without momentum the averages are plain ones: their weights follow the count.
CASES.append((PAIRS[2], {"momentum": None}))


def exported(layer: nn.Module, x: Tensor) -> Any:
    batch = torch.export.Dim("batch")
    return torch.export.export(layer, (x,), dynamic_shapes=({0: batch},)).module()


def traced(layer: nn.Module, x: Tensor) -> Any:
    return torch.jit.trace(layer, x, check_trace=False)  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("way", [exported, traced])
@pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: name(case[0]))
def test_a_layer_computes_the_same_at_another_batch_size(
    case: Any, is_training: bool, way: Callable[..., Any]
) -> None:
    pair, options = case
    ours, theirs = (m.train(is_training) for m in twins(pair, **options))
    x = draw(*pair.shape)
    graph = way(ours, x)
    if way is traced:
        theirs(x)  # a trace is a first step
    for seed, size in enumerate((9, 3), start=1):
        x = draw(size, *pair.shape[1:], seed=seed)
        assert (graph(x) - theirs(x)).abs().max() < EXACT
    assert_equal(graph.state_dict(), theirs.state_dict(), EXACT)


def test_a_layer_of_this_package_alone_is_exported_for_every_batch_size() -> None:
    layer = LpNorm1d(3, p=1, dtype=torch.float64)
    graph, x = exported(layer, draw(7, 3)), draw(4, 3, seed=1)
    assert (graph(x) - layer(x)).abs().max() < EXACT
