"""Published points, to be drawn beside our own records.

Curves were digitised from the vector graphics of the papers: accuracies to about
0.002, values on logarithmic axes to about 3 %. Tables are copied.
"""

from __future__ import annotations

from typing import NamedTuple


class Points(NamedTuple):
    """Points of one curve."""

    source: str  # paper and figure
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
# Width of the range of losses along the gradient, mean over 15 000 steps (nats).
VGG_LOSS_RANGE = {"none": 1.54, "batch_norm": 0.25}
# Largest change of the gradient along it: median over 15 000 steps.
VGG_GRADIENT_CHANGE = {"none": 47.0, "batch_norm": 22.0}
# Effective smoothness, mean over steps 3 000 to 6 000: to be compared with a mean over
# the same steps.
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

_BA_6 = "Ba et al. (2016), Fig. 6"


def _by_norm(
    epochs: tuple[float, ...],
    layer_norm: tuple[float, ...],
    batch_norm: tuple[float, ...],
    none: tuple[float, ...],
) -> dict[str, Points]:
    curves = {"layer_norm": layer_norm, "batch_norm": batch_norm, "none": none}
    return {norm: Points(_BA_6, epochs, values) for norm, values in curves.items()}


# Negative log likelihood on the training set (nats) by batch size, against epochs
# counted from 0. The paper gives no numbers of runs.
_LOSS_EPOCHS = (0, 5, 10, 20, 30, 40, 60)
BATCH_SIZE_LOSS = {
    128: _by_norm(
        _LOSS_EPOCHS,
        layer_norm=(6.6e-2, 1.3e-2, 5.6e-3, 5.9e-3, 1.4e-7, 6e-9, 3e-10),
        batch_norm=(1.6e-1, 7.7e-3, 4.0e-3, 6.7e-4, 2.4e-4, 2.4e-4, 6.5e-5),
        none=(7.0e-2, 1.1e-2, 4.2e-3, 5.0e-3, 4.0e-3, 5.9e-4, 4.5e-10),
    ),
    4: _by_norm(
        _LOSS_EPOCHS,
        layer_norm=(8.6e-2, 4.3e-3, 3.1e-3, 2.7e-3, 6.0e-4, 4.4e-4, 2.6e-3),
        batch_norm=(1.8e-1, 7.0e-2, 5.7e-2, 1.2e-1, 3.6e-2, 3.2e-2, 2.1e-2),
        none=(7.1e-2, 9.7e-3, 8.2e-3, 6.0e-3, 9.3e-3, 3.1e-3, 6.5e-3),
    ),
}
# Error on the test set.
_ERROR_EPOCHS = (0, 5, 10, 20, 40, 64)
BATCH_SIZE_ERROR = {
    128: _by_norm(
        _ERROR_EPOCHS,
        layer_norm=(0.0277, 0.0199, 0.0173, 0.0174, 0.0127, 0.0129),
        batch_norm=(0.0195, 0.0157, 0.0159, 0.0128, 0.0139, 0.0132),
        none=(0.0300, 0.0189, 0.0159, 0.0173, 0.0162, 0.0150),
    ),
    4: _by_norm(
        _ERROR_EPOCHS,
        layer_norm=(0.0317, 0.0158, 0.0156, 0.0164, 0.0158, 0.0136),
        batch_norm=(0.0520, 0.0246, 0.0246, 0.0422, 0.0204, 0.0200),
        none=(0.0281, 0.0182, 0.0182, 0.0165, 0.0161, 0.0158),
    ),
}
# Mean over the last ten epochs.
BATCH_SIZE_LAST_ERROR = {
    128: {"layer_norm": 0.0129, "batch_norm": 0.0132, "none": 0.0151},
    4: {"layer_norm": 0.0152, "batch_norm": 0.0210, "none": 0.0158},
}

_BA_5 = "Ba et al. (2016), Fig. 5"
_UPDATES = (2000, 10_000, 20_000, 40_000, 100_000)
# Negative log likelihood of a test line (nats) against updates.
HANDWRITING_LOSS = {
    "none": Points(
        _BA_5, (*_UPDATES, 191_000), (-339.0, -507.0, -573.0, -624.0, -726.0, -762.0)
    ),
    "layer_norm": Points(_BA_5, _UPDATES, (-553.0, -729.0, -796.0, -810.0, -822.0)),
}

_WU, _SIZES = "Wu and He (2018), Tables 1 and 2", (2, 4, 8, 16, 32)
# Error on the validation set of ImageNet, ResNet-50, against the images of a batch on
# each GPU. Layer norm and instance norm are given at 32 only.
GROUP_NORM_ERROR = {
    "batch_norm": Points(_WU, _SIZES, (0.347, 0.273, 0.248, 0.237, 0.236)),
    "layer_norm": Points(_WU, _SIZES[-1:], (0.253,)),
    "instance_norm": Points(_WU, _SIZES[-1:], (0.284,)),
    "group_norm": Points(_WU, _SIZES, (0.241, 0.242, 0.240, 0.242, 0.241)),
}

_BA_2 = "Ba et al. (2016), Fig. 2"
_COOIJMANS = "Cooijmans et al. (2016), attentive reader"
_NEWS = (25_000, 50_000, 100_000, 200_000)
# Error on the validation set of the attentive reader against steps. The curves but
# that of layer norm were drawn by Cooijmans et al. first, who have two more than Ba et
# al. show: batch norm everywhere with other settings, and that in both directions.
READING_ERROR = {
    "none": Points(_BA_2, _NEWS, (1.00, 0.996, 0.993, 0.937)),
    "batch_norm": Points(_BA_2, _NEWS, (0.998, 0.992, 0.663, 0.508)),
    "batch_norm_everywhere": Points(_BA_2, _NEWS, (0.936, 0.599, 0.503, 0.507)),
    "layer_norm": Points(_BA_2, _NEWS, (0.786, 0.501, 0.490, 0.493)),
    "batch_norm_everywhere_2": Points(_COOIJMANS, _NEWS[1:], (0.520, 0.478, 0.482)),
    "batch_norm_bidirectional": Points(_COOIJMANS, _NEWS[1:], (0.452, 0.458, 0.453)),
}
# Steps after which that error is at most 0.55 for the first time.
READING_STEPS = {
    "none": 426_000,
    "batch_norm": 130_000,
    "batch_norm_everywhere": 62_000,
    "layer_norm": 38_000,
    "batch_norm_everywhere_2": 35_000,
    "batch_norm_bidirectional": 12_000,
}
