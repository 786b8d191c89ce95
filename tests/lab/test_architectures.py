"""The small architectures: what they hold, and that nothing is left to chance."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from normbook.lab.architectures import ARCHITECTURES, stir


def norms(model: nn.Module) -> list[TorchBatchNorm]:
    return [m for m in model.modules() if isinstance(m, TorchBatchNorm)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_value_is_drawn_by_the_generator(name: str) -> None:
    build = ARCHITECTURES[name].build
    one, other = (stir(build(), torch.Generator().manual_seed(5)) for _ in range(2))
    states = one.state_dict(), other.state_dict()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_batch_norm_keeps_its_initial_values(name: str) -> None:
    model = stir(ARCHITECTURES[name].build(), torch.Generator().manual_seed(5))
    assert len(norms(model)) >= 2
    for norm in norms(model):
        values = [*norm.parameters(), norm.running_mean, norm.running_var]
        for value in values:
            assert value is not None
            assert len(set(value.tolist())) == norm.num_features


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_output_depends_on_the_input(name: str) -> None:
    build, shape = ARCHITECTURES[name]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        y = stir(build(), generator)(torch.randn(shape, generator=generator))
    assert len(y) == 3
    assert (y[0] - y[1]).abs().max() > 0.01 * y.abs().max()


def test_layers_without_gain_or_statistics_are_left_without() -> None:
    norm = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
    stir(norm, torch.Generator().manual_seed(0))
    assert norm.state_dict() == {}


SIZES = {  # numbers of parameters, and the shape of what one example gives
    "MLP": (223, (5,)),
    "VGG": (2025, (5,)),
    "ResNet, basic block": (445, (5,)),
    "ResNet, bottleneck": (362, (5,)),
    "ResNeXt, grouped": (329, (5,)),
    "MobileNet, depthwise": (231, (5,)),
    "MobileNet, inverted residual": (401, (5,)),
    "DenseNet": (513, (5,)),
    "U-Net": (1157, (2, 8, 8)),
    "1-D convolutions": (321, (5,)),
    "3-D convolutions": (227, (5,)),
    "GAN generator": (899, (3, 8, 8)),
    "autoencoder": (470, (3, 8, 8)),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sizes_are_those_of_the_patterns(name: str) -> None:
    build, shape = ARCHITECTURES[name]
    model = build()
    count = sum(p.numel() for p in model.parameters())
    assert (count, model(torch.zeros(shape))[0].shape) == SIZES[name]
