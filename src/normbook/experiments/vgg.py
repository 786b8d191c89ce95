"""A VGG-like network with and without batch norm (Santurkar et al. 2018).

Figures 1, 2 and 4 of the paper: training with the rates 0.1 and 0.5, batch norm with
noise after it, and the loss and its gradient along the gradient.

The paper does not give the layers of its network. Ours is a stack of 3 x 3
convolutions with max pooling between, and one hidden fully connected layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from normbook.data import Dataset
from normbook.diagnostics.activations import layer_statistics
from normbook.diagnostics.internal_covariate_shift import (
    gradient_shift,
    input_shift_of_update,
)
from normbook.diagnostics.noise import DistributionNoise
from normbook.diagnostics.smoothness import along_gradient
from normbook.experiments.digits_mlp import evaluate
from normbook.experiments.experiment import (
    Batches,
    Experiment,
    Measurement,
    Run,
    Scale,
    Settings,
    Values,
    classification,
    generator,
    required,
)
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normbook.experiments.record import Record

__all__ = ["EXPERIMENT", "build"]

SOURCE = "Santurkar et al. (2018), Figs. 1, 2 and 4"
POOL = "pool"
# Units of a layer whose input is followed.
UNITS = 5
# Examples that go through the network at once in a test: a matter of memory only.
CHUNK = 1000


def build(
    layers: Sequence[int | str],
    hidden: int,
    *,
    images: tuple[int, int, int],
    norm: str,
    weights: torch.Generator,
    noise: torch.Generator,
    classes: int = 10,
) -> nn.Sequential:
    """Stack convolutions, pooling, one hidden layer and a linear read-out.

    Parameters
    ----------
    layers : sequence of int or "pool"
        Channels of each 3 x 3 convolution, and where the sides are halved.
    hidden : int
        Units of the fully connected hidden layer.
    images : tuple (C, H, W)
    norm : "none", "batch_norm" or "noisy_batch_norm"
        What stands before each ReLU.
    weights, noise : torch.Generator
        CPU generators. Weights are uniform after Glorot, biases 0.
    classes : int

    Returns
    -------
    nn.Sequential
        float32, on the CPU, in training mode.
    """

    def normalization(layer: nn.Module) -> list[nn.Module]:
        if norm == "none":
            return []
        return [layer, DistributionNoise(generator=noise)][: 1 + (norm != "batch_norm")]

    channels, height, width = images
    modules: list[nn.Module] = []
    for size in layers:
        if isinstance(size, str):
            modules.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
            continue
        modules.append(nn.Conv2d(channels, size, 3, padding=1))
        modules += [*normalization(BatchNorm2d(size)), nn.ReLU()]
        channels = size
    modules += [nn.Flatten(), nn.Linear(channels * height * width, hidden)]
    modules += [*normalization(BatchNorm1d(hidden)), nn.ReLU()]
    modules.append(nn.Linear(hidden, classes))
    for module in modules:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=weights)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return nn.Sequential(*modules)


def begin(
    settings: Settings, seed: int, data: Dataset | None, device: torch.device
) -> Run:
    """Make one network, its data and its measurements."""
    data = required(data)
    x_train, x_test = (_images(x, device) for x in (data.x_train, data.x_test))
    y_train = torch.as_tensor(data.y_train).to(device)
    y_test = torch.as_tensor(data.y_test).to(device)
    noise = generator(seed, "noise")
    model = build(
        settings["layers"],
        settings["hidden"],
        images=(x_train.shape[1], x_train.shape[2], x_train.shape[3]),
        norm=settings["norm"],
        weights=generator(seed, "weights"),
        noise=noise,
    )
    # The order of the numbers in memory that convolutions are fastest with.
    model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    rate = settings["learning_rate"]
    relus = [name for name, m in model.named_modules() if isinstance(m, nn.ReLU)]
    followed = [relus[i] for i in settings["followed"]]

    def test(run: Run) -> Values:
        loss = accuracy = 0.0
        for k in range(0, len(x_test), CHUNK):
            x = x_test[k : k + CHUNK]
            found = evaluate(run.model, x, y_test[k : k + CHUNK])
            loss += found[0] * len(x) / len(x_test)
            accuracy += found[1] * len(x) / len(x_test)
        return {"loss": loss, "accuracy": accuracy}

    def inputs(run: Run) -> Values:
        found = layer_statistics(run.model, run.loss, followed)
        return {
            "mean": [layer.inputs.mean[:UNITS].tolist() for layer in found],
            "std": [layer.inputs.std[:UNITS].tolist() for layer in found],
        }

    def landscape(run: Run) -> Values:
        found = along_gradient(run.model, run.loss, _step_sizes(rate))
        return {
            "loss": found.loss,
            "lowest": found.loss_range[0],
            "highest": found.loss_range[1],
            "gradient_norm": found.gradient_norm,
            "least_change": found.gradient_predictiveness[0],
            "most_change": found.gradient_predictiveness[1],
            "beta": found.effective_smoothness,
        }

    def shift(run: Run) -> Values:
        moved = input_shift_of_update(run.model, run.loss, rate, relus)
        found = gradient_shift(run.model, run.loss, rate)
        return {
            "inputs": [float(np.nanmean(moved[name])) for name in relus],
            "l2": found.l2.tolist(),
            "cosine": found.cosine.tolist(),
            "gradient_norm": found.gradient_norm.tolist(),
        }

    return Run(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        objective=classification,
        batches=Batches(
            x_train, y_train, settings["batch_size"], generator(seed, "batches")
        ),
        measurements={
            "test": Measurement(settings["test_every"], test),
            "inputs": Measurement(settings["landscape_every"], inputs),
            "landscape": Measurement(settings["landscape_every"], landscape),
            "shift": Measurement(settings["shift_every"], shift),
        },
        every=settings["average_over"],
        generators={"noise": noise},
    )


def _step_sizes(rate: float) -> list[float]:
    """Half to four times the learning rate, as in the paper."""
    return [rate * k / 2 for k in range(1, 9)]


def _images(x: Any, device: torch.device) -> Tensor:
    """Images as (N, C, H, W) float32; digits come as rows of 64."""
    images = torch.as_tensor(x).to(torch.float32)
    if images.dim() == 2:
        images = images.reshape(-1, 8, 8)
    if images.dim() == 3:
        images = images[:, None]
    return images.to(device=device, memory_format=torch.channels_last)


def figures(record: Record) -> dict[str, Figure]:
    """Draw training, the landscape and the shifts beside the published points."""
    raise NotImplementedError


COMMON: dict[str, Any] = {
    "dtype": "float32",
    "batch_size": 128,
    "variants": {
        "none": {"norm": "none", "learning_rate": 0.1},
        "batch_norm": {"norm": "batch_norm", "learning_rate": 0.1},
        "noisy_batch_norm": {"norm": "noisy_batch_norm", "learning_rate": 0.1},
        "none_fast": {"norm": "none", "learning_rate": 0.5},
        "batch_norm_fast": {"norm": "batch_norm", "learning_rate": 0.5},
    },
}
# The widths of VGG, with pooling as far as images of 28 x 28 allow it.
PAPER_LAYERS = [64, 64, POOL, 128, 128, POOL, 256, 256, 256, POOL, 512, 512, 512]
CPU_LAYERS = [8, 8, POOL, 16, 16, POOL, 32, 32, 32, POOL, 32, 32, 32]
EVERY = {
    "average_over": 50,
    "landscape_every": 50,
    "shift_every": 250,
    "test_every": 500,
}
EXPERIMENT = Experiment(
    name="vgg",
    title="A VGG-like network: training, noise, and the loss along the gradient",
    source=SOURCE,
    scales={
        "live": Scale(
            {
                **COMMON,
                "steps": 150,
                "layers": [8, 8, POOL, 16, 16, 16, POOL, 16, 16, 16],
                "hidden": 32,
                "followed": [2, 6],
                "average_over": 10,
                "landscape_every": 10,
                "shift_every": 50,
                "test_every": 50,
            },
            seeds=(0, 1),
            data="digits",
            about="embedded digits, a network of 10 layers",
        ),
        "cpu": Scale(
            {
                **COMMON,
                **EVERY,
                "steps": 5000,
                "layers": CPU_LAYERS,
                "hidden": 64,
                "followed": [2, 8],
            },
            seeds=(0, 1, 2),
            data="fashion-mnist",
            about="Fashion-MNIST, an eighth of the widths of VGG, a third of the steps",
        ),
        "paper": Scale(
            {
                **COMMON,
                **EVERY,
                "steps": 15_000,
                "layers": PAPER_LAYERS,
                "hidden": 512,
                "followed": [2, 8],
            },
            seeds=(0, 1, 2),
            data="fashion-mnist",
            about="Fashion-MNIST, the widths of VGG and the steps of the paper (GPU)",
        ),
    },
    begin=begin,
    figures=figures,
)
