"""What experiments there are; one file each, and one line here."""

from __future__ import annotations

from normbook.experiments import batch_size, deep_linear, sigmoid_net, vgg, vowels
from normbook.experiments.experiment import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        sigmoid_net.EXPERIMENT,
        sigmoid_net.CHOICES,
        vgg.EXPERIMENT,
        deep_linear.EXPERIMENT,
        batch_size.BATCH_128,
        batch_size.BATCH_4,
        vowels.VOWELS,
        vowels.LONGER,
        batch_size.BATCH_128_CHOICES,
        batch_size.BATCH_4_CHOICES,
    )
}
