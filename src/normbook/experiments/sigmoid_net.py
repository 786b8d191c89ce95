"""Three hidden layers of sigmoids with and without batch norm (Ioffe and Szegedy).

The first figure of the paper: test accuracy during training, and the distribution of
the input of one sigmoid. A third network adds noise after each batch norm, so that
the distributions shift on purpose (Santurkar et al. 2018).

The paper gives the sizes, the batch of 60 and the 50 000 steps. It does not give the
learning rate or the standard deviation of the first weights; the experiment
``sigmoid_net_choices`` shows what they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normbook.data import Dataset
from normbook.diagnostics.activations import layer_statistics
from normbook.diagnostics.internal_covariate_shift import (
    gradient_shift,
    input_shift_of_update,
)
from normbook.diagnostics.noise import DistributionNoise
from normbook.experiments.digits_mlp import build, evaluate
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
from normbook.layers.batch_norm import BatchNorm1d

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normbook.experiments.record import Record

__all__ = ["CHOICES", "EXPERIMENT"]

SOURCE = "Ioffe and Szegedy (2015), Fig. 1"
# Units of the last hidden layer whose input is followed.
UNITS = 5
# Training examples on which the distributions are measured.
PROBE = 1000


def begin(
    settings: Settings, seed: int, data: Dataset | None, device: torch.device
) -> Run:
    """Make one network, its data and its measurements."""
    data = required(data)
    noise = generator(seed, "noise")

    def norm(size: int) -> nn.Module:
        layers: list[nn.Module] = [BatchNorm1d(size)]
        if settings["norm"] == "noisy_batch_norm":
            layers.append(DistributionNoise(generator=noise))
        return nn.Sequential(*layers)

    x_train, x_test = (_pixels(x, settings, device) for x in (data[0], data[2]))
    y_train, y_test = (torch.as_tensor(y).to(device) for y in (data[1], data[3]))
    model = build(
        generator=generator(seed, "weights"),
        norm=None if settings["norm"] == "none" else norm,
        activation="sigmoid",
        depth=settings["depth"],
        width=settings["width"],
        std=settings["std"],
        features=x_train.shape[1],
        device=device,
    )
    sigmoids = [name for name, m in model.named_modules() if isinstance(m, nn.Sigmoid)]
    rate = settings["learning_rate"]
    x_probe, y_probe = x_train[:PROBE], y_train[:PROBE]

    def probe(m: nn.Module) -> torch.Tensor:
        return classification(m, x_probe, y_probe)["loss"]

    def test(run: Run) -> Values:
        loss, accuracy = evaluate(run.model, x_test, y_test)
        return {"loss": loss, "accuracy": accuracy}

    def inputs(run: Run) -> Values:
        (last,) = layer_statistics(run.model, probe, sigmoids[-1:])
        quantiles = last.inputs.quantiles[:, :UNITS].tolist()
        return dict(zip(("q15", "q50", "q85"), quantiles, strict=True))

    def shift(run: Run) -> Values:
        moved = input_shift_of_update(run.model, run.loss, rate, sigmoids, probe)
        found = gradient_shift(run.model, run.loss, rate)
        return {
            "inputs": [float(moved[name].mean()) for name in sigmoids],
            "l2": found.l2.tolist(),
            "cosine": found.cosine.tolist(),
            "gradient_norm": found.gradient_norm.tolist(),
        }

    every = settings["measure_every"]
    measurements = {"test": Measurement(every, test)}
    if settings["is_diagnosed"]:
        measurements["inputs"] = Measurement(every, inputs)
        measurements["shift"] = Measurement(every, shift)
    return Run(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        objective=classification,
        batches=Batches(
            x_train, y_train, settings["batch_size"], generator(seed, "batches")
        ),
        measurements=measurements,
        every=every,
        generators={"noise": noise},
    )


def _pixels(x: Any, settings: Settings, device: torch.device) -> torch.Tensor:
    """Images as rows of 0 and 1, as in the paper, or of grey values in [0, 1]."""
    rows = torch.as_tensor(x).flatten(1).to(device, torch.float64)
    return (rows > 0.5).double() if settings["is_binary"] else rows


def figures(record: Record) -> dict[str, Figure]:
    """Draw the accuracies beside the published ones, and the distributions."""
    raise NotImplementedError


def choices_figures(record: Record) -> dict[str, Figure]:
    """Draw the accuracy at the end and on the way over the grid of choices."""
    raise NotImplementedError


VARIANTS = {
    "none": {"norm": "none"},
    "batch_norm": {"norm": "batch_norm"},
    "noisy_batch_norm": {"norm": "noisy_batch_norm"},
}
COMMON: dict[str, Any] = {
    "dtype": "float64",
    "batch_size": 60,
    "depth": 3,
    "width": 100,
    "is_diagnosed": True,
    "variants": VARIANTS,
}
EXPERIMENT = Experiment(
    name="sigmoid_net",
    title="Three sigmoid layers with and without batch norm, and with noise after it",
    source=SOURCE,
    scales={
        "live": Scale(
            {
                **COMMON,
                "steps": 1500,
                "learning_rate": 0.3,
                "std": 0.1,
                "is_binary": False,
                "measure_every": 50,
            },
            seeds=(0, 1, 2),
            data="digits",
            about="embedded digits of 8 x 8 pixels",
        ),
        "paper": Scale(
            {
                **COMMON,
                "steps": 50_000,
                "learning_rate": 0.3,
                "std": 0.03,
                "is_binary": True,
                "measure_every": 500,
            },
            seeds=(0, 1, 2, 3, 4),
            data="mnist",
            about="binary MNIST as in the paper",
        ),
    },
    begin=begin,
    figures=figures,
)

# What the paper leaves open, over a grid.
GRID = {
    f"{norm} rate={rate} std={std}": {"norm": norm, "learning_rate": rate, "std": std}
    for norm in ("none", "batch_norm")
    for rate in (0.1, 0.3, 1.0)
    for std in (0.01, 0.03, 0.1)
}
CHOICES = Experiment(
    name="sigmoid_net_choices",
    title="The same networks with other learning rates and other first weights",
    source=SOURCE,
    scales={
        "live": Scale(
            {
                **COMMON,
                "steps": 500,
                "is_binary": False,
                "is_diagnosed": False,
                "measure_every": 50,
                "variants": GRID,
            },
            seeds=(0,),
            data="digits",
            about="embedded digits of 8 x 8 pixels",
        ),
        "paper": Scale(
            {
                **COMMON,
                "steps": 20_000,
                "is_binary": True,
                "is_diagnosed": False,
                "measure_every": 500,
                "variants": GRID,
            },
            seeds=(0, 1),
            data="mnist",
            about="binary MNIST, two fifths of the steps of the paper",
        ),
    },
    begin=begin,
    figures=choices_figures,
)
