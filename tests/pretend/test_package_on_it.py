"""What the package computes on a GPU, or a pretended one, is what a CPU computes."""

import copy
import importlib.util
from typing import Any

import pytest
import small
import torch
from layer_pairs import LAYERS, Pair, Wired, assert_equal, draw, name, run, stirred
from test_every_experiment import every_variant
from test_methods import CASES, EPS, Case, named
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.nn.utils.rnn import pack_padded_sequence

from normbook.gradient_check import relative_error
from normbook.lab import runner
from normbook.layers.batch_norm_lstm import BatchNormLSTM
from normbook.layers.folding import fold_batch_norm
from normbook.layers.lp_norm import LpNorm1d
from normbook.layers.lstm import LayerNormLSTM
from normbook.layers.recalibrate import recalibrate
from normbook.layers.sequences import MaskedBatchNorm1d, PerStepBatchNorm1d
from normbook.layers.small_batches import (
    BatchRenorm2d,
    GhostBatchNorm2d,
    UnbiasedBatchNorm1d,
)
from normbook.layers.weight_norm import WeightNorm, WeightStandardization

HAS_GPU = torch.cuda.is_available()
IS_PRETENDED = importlib.util.find_spec("pretend_accelerator") is not None
pytestmark = pytest.mark.skipif(
    not (HAS_GPU or IS_PRETENDED),
    reason="needs a GPU, or a pretended one: make pretend",
)
dev = torch.device("pretend" if IS_PRETENDED else "cuda" if HAS_GPU else "cpu")
EXACT = 1e-10


def assert_same(layer: nn.Module, x: Tensor, *rest: Any, mode: bool = True) -> None:
    """Compare output, gradients and buffers of a layer here with those there."""
    layer = stirred(layer.double()).train(mode)
    there = copy.deepcopy(layer).to(dev)
    dl_dy = draw(*layer(x, *rest).shape, seed=1)
    layer = copy.deepcopy(there).cpu()
    here = run(layer, x, dl_dy, *rest)
    moved = (v.to(dev) if isinstance(v, Tensor) else v for v in rest)
    found = run(there, x.to(dev), dl_dy.to(dev), *moved)
    assert {v.device.type for v in found.values()} == {dev.type}
    assert_equal({k: v.cpu() for k, v in found.items()}, here, EXACT)


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("pair", LAYERS, ids=name)
def test_layers(pair: Pair, mode: bool) -> None:
    assert_same(pair.ours(*pair.size), draw(*pair.shape), mode=mode)


def registered(layer: nn.Module, kind: nn.Module) -> nn.Module:
    return register_parametrization(layer, "weight", kind)


OTHERS = {
    "ghosts": (lambda: GhostBatchNorm2d(3, 2), (4, 3, 5, 2)),
    "renorm": (lambda: BatchRenorm2d(3), (4, 3, 5, 2)),
    "unbiased": (lambda: UnbiasedBatchNorm1d(3), (4, 3)),
    "L1": (lambda: LpNorm1d(3, p=1), (7, 3)),
    "weights": (lambda: registered(nn.Linear(3, 4), WeightNorm()), (7, 3)),
    "filters": (
        lambda: registered(nn.Conv2d(3, 4, 2), WeightStandardization()),
        (2, 3, 5, 4),
    ),
}


@pytest.mark.parametrize(("make", "shape"), OTHERS.values(), ids=OTHERS)
def test_other_layers(make: Any, shape: tuple[int, ...]) -> None:
    for mode in (True, False):
        assert_same(make(), draw(*shape), mode=mode)


def test_layers_for_sequences() -> None:
    mask = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    assert_same(MaskedBatchNorm1d(3), draw(4, 3, 5), mask)
    assert_same(PerStepBatchNorm1d(3, 4), draw(6, 3), 2)


CELLS: dict[str, Any] = {
    f"{norm} {carried}": lambda n=norm, c=carried: LayerNormLSTM(
        3, 4, norm=n, carried=c
    )
    for norm in ("terms", "sum", "gates")
    for carried in ("raw", "normalized")
}
CELLS["none"] = lambda: LayerNormLSTM(3, 4, norm=None)
CELLS["two hats"] = lambda: LayerNormLSTM(3, 4, hats="pc")
CELLS["deep"] = lambda: LayerNormLSTM(3, 4, num_layers=2, bidirectional=True)
CELLS["batch norm"] = lambda: BatchNormLSTM(3, 4, max_steps=6)


@pytest.mark.parametrize("make", CELLS.values(), ids=CELLS)
def test_recurrent_layers(make: Any) -> None:
    cells = Wired(lambda net, x: net.lstm(x)[0], lstm=make())
    assert_same(cells, draw(6, 5, 3))
    if isinstance(cells.lstm, LayerNormLSTM):
        lengths = torch.tensor([6, 4, 4, 2, 1])
        pack = pack_padded_sequence
        assert_same(
            Wired(lambda net, x: net.lstm(pack(x, lengths))[0].data, lstm=make()),
            draw(6, 5, 3),
        )


@pytest.mark.parametrize("case", CASES, ids=named)
def test_functions(case: Case) -> None:
    *arrays, dl_dy = map(torch.tensor, case.draw())
    found = []
    for place in ("cpu", dev):
        y, cache = case.forward(*(a.to(place) for a in arrays), EPS)
        found.append([y, *case.backward(dl_dy.to(place), cache)])
    for here, there in zip(*found, strict=True):
        assert (here is None) == (there is None)
        if here is not None:
            assert there.device.type == dev.type
            assert relative_error(there, here) < EXACT


def test_folding_and_recalibration() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    net, x = stirred(net.double()), draw(5, 3, 6, 6)
    there = copy.deepcopy(net).to(dev)
    for model, images in ((net, x), (there, x.to(dev))):
        recalibrate(model, [images[:2], images[2:]])
    folded = fold_batch_norm(there.eval())
    assert relative_error(folded(x.to(dev)), net.eval()(x)) < EXACT


@every_variant
def test_experiments(name: str, variant: str) -> None:
    here, there = (small.begun(name, variant, place=p) for p in (small.CPU, dev))
    assert {p.device.type for p in there.model.parameters()} == {dev.type}
    # As the first losses of a record are repeated by another machine.
    is_wide = next(there.model.parameters()).dtype == torch.float64
    precision = runner.PRECISIONS["float64" if is_wide else "float32, unsteady"]
    for rel in precision.losses[:2]:
        assert there.update() == pytest.approx(here.update(), rel=rel, nan_ok=True)
        there.measure(steps=there.step)
