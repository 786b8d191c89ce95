"""What experiments there are; one file each, and one line here."""

from __future__ import annotations

from normbook.experiments import (
    batch_size,
    conv_norms,
    deep_linear,
    handwriting,
    reading,
    sigmoid_net,
    smoothness_rates,
    transformer,
    vgg,
    vowels,
    which_hat,
    without_norm,
    without_norm_attention,
)
from normbook.lab.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        sigmoid_net.EXPERIMENT,
        sigmoid_net.TUNED,
        vgg.EXPERIMENT,
        vgg.TUNED,
        smoothness_rates.EXPERIMENT,
        deep_linear.EXPERIMENT,
        batch_size.BATCH_128,
        batch_size.BATCH_4,
        vowels.EXPERIMENT,
        vowels.LONGER,
        conv_norms.CONV_NORMS_TUNED,
        conv_norms.CONV_NORMS_BORDER,
        batch_size.TUNED,
        transformer.EXPERIMENT,
        handwriting.EXPERIMENT,
        reading.EXPERIMENT,
        reading.TUNED,
        which_hat.QA1,
        which_hat.QA5,
        which_hat.STROKES,
        which_hat.COUNTING,
        without_norm.EXPERIMENT,
        without_norm.TANH,
        without_norm_attention.EXPERIMENT,
    )
}
