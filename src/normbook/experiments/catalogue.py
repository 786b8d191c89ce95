"""What experiments there are; one file each, and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normbook.lab.experiment import Experiment

# Where each one stands: its module, and its name there.
_PLACES = {
    "sigmoid_net": "sigmoid_net.EXPERIMENT",
    "sigmoid_net_tuned": "sigmoid_net.TUNED",
    "vgg": "vgg.EXPERIMENT",
    "vgg_tuned": "vgg.TUNED",
    "smoothness_rates": "smoothness_rates.EXPERIMENT",
    "deep_linear": "deep_linear.EXPERIMENT",
    "batch_128": "batch_size.BATCH_128",
    "batch_4": "batch_size.BATCH_4",
    "vowels_tuned": "vowels.EXPERIMENT",
    "vowels_longer_tuned": "vowels.LONGER",
    "conv_norms_tuned": "conv_norms.CONV_NORMS_TUNED",
    "conv_norms_border": "conv_norms.CONV_NORMS_BORDER",
    "batch_size_tuned": "batch_size.TUNED",
    "transformer": "transformer.EXPERIMENT",
    "handwriting_tuned": "handwriting.EXPERIMENT",
    "reading": "reading.EXPERIMENT",
    "reading_tuned": "reading.TUNED",
    "which_hat_qa1": "which_hat.QA1",
    "which_hat_qa5": "which_hat.QA5",
    "which_hat_strokes": "which_hat.STROKES",
    "which_hat_counting": "which_hat.COUNTING",
    "without_norm": "without_norm.EXPERIMENT",
    "without_norm_tanh": "without_norm.TANH",
    "without_norm_attention": "without_norm_attention.EXPERIMENT",
}


class _Experiments(MutableMapping[str, "Experiment"]):
    """Experiments by name, each imported when it is first asked for."""

    def __init__(self) -> None:
        self._known: dict[str, Experiment | None] = dict.fromkeys(_PLACES)

    def __getitem__(self, name: str) -> Experiment:
        found = self._known[name]
        if found is None:
            module, _, attribute = _PLACES[name].partition(".")
            place = importlib.import_module(f"normbook.experiments.{module}")
            found = self._known[name] = getattr(place, attribute)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __setitem__(self, name: str, experiment: Experiment) -> None:
        self._known[name] = experiment

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


EXPERIMENTS = _Experiments()
