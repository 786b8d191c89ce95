"""Points read off published figures, to be drawn beside our own records.

They were digitised from the vector graphics of the papers: accuracies to about
0.002, values on logarithmic axes to about 3 %.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "DEEP_LINEAR_LOSS",
    "SIGMOID_NET_ACCURACY",
    "VGG_BETA",
    "VGG_GRADIENT_CHANGE",
    "VGG_LOSS_RANGE",
    "VGG_TEST_ACCURACY",
    "VGG_TRAIN_ACCURACY",
    "Points",
]


class Points(NamedTuple):
    """Points of one curve.

    Attributes
    ----------
    source : str
        Paper and figure.
    x, y : tuple of float
    """

    source: str
    x: tuple[float, ...]
    y: tuple[float, ...]


_IOFFE_1A = "Ioffe and Szegedy (2015), Fig. 1(a)"
# Test accuracy against steps. The curves begin at about 4 000 steps.
SIGMOID_NET_ACCURACY = {
    "none": Points(
        _IOFFE_1A,
        (4000, 5000, 10_000, 20_000, 30_000, 40_000, 44_000),
        (0.712, 0.784, 0.926, 0.963, 0.968, 0.972, 0.972),
    ),
    "batch_norm": Points(
        _IOFFE_1A,
        (4000, 5000, 10_000, 20_000, 30_000, 40_000, 49_000),
        (0.953, 0.956, 0.966, 0.974, 0.978, 0.980, 0.982),
    ),
}

_SANTURKAR_1 = "Santurkar et al. (2018), Figs. 1 and 2"
_STEPS = (1000, 2000, 3000, 5000)
# Training accuracy against steps, VGG on CIFAR-10. Without batch norm at the rate
# 0.5 the network never learns: about 0.10.
VGG_TRAIN_ACCURACY = {
    "none": Points(_SANTURKAR_1, _STEPS, (0.49, 0.77, 0.77, 0.96)),
    "batch_norm": Points(_SANTURKAR_1, _STEPS, (0.83, 0.94, 0.91, 0.99)),
    "noisy_batch_norm": Points(_SANTURKAR_1, _STEPS, (0.77, 0.87, 0.92, 0.98)),
    "none_fast": Points(_SANTURKAR_1, _STEPS, (0.10, 0.10, 0.10, 0.10)),
    "batch_norm_fast": Points(_SANTURKAR_1, _STEPS, (0.66, 0.85, 0.84, 0.96)),
}
# Test accuracy at the end of 15 000 steps.
VGG_TEST_ACCURACY = {
    "none": 0.800,
    "batch_norm": 0.829,
    "none_fast": 0.100,
    "batch_norm_fast": 0.802,
}

# Width of the range of losses along the gradient, mean over training (nats).
VGG_LOSS_RANGE = {"none": 1.54, "batch_norm": 0.25}
# Largest change of the gradient along it: median over training.
VGG_GRADIENT_CHANGE = {"none": 47.0, "batch_norm": 22.0}
# Effective smoothness, mean over steps 3 000 to 6 000.
VGG_BETA = {"none": 20.1, "batch_norm": 19.9}

_SANTURKAR_5B = "Santurkar et al. (2018), Fig. 5(b)"
_TIMES = (0, 100, 1000, 5000, 10_000)
# Loss (summed over 1 000 examples) against steps.
DEEP_LINEAR_LOSS = {
    "none": Points(_SANTURKAR_5B, _TIMES, (34_500, 12_600, 4200, 2900, 1660)),
    "batch_norm": Points(_SANTURKAR_5B, _TIMES, (39_600, 6000, 1400, 533, 480)),
    "l1": Points(_SANTURKAR_5B, _TIMES, (37_000, 3700, 1200, 605, 98)),
    "l2": Points(_SANTURKAR_5B, _TIMES, (40_000, 6400, 1200, 982, 482)),
    "linf": Points(_SANTURKAR_5B, _TIMES, (35_000, 23_000, 3200, 1050, 986)),
}
