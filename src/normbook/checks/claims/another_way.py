"""What a layer computes in another mode than the one that most tests run it in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normbook.checks.claims.output import affine, biased, eps_place, statistics
from normbook.checks.copies import copy_of
from normbook.checks.layer.subject import Given, Subject
from normbook.checks.tensors import is_near


class _InOneMode(nn.Module):
    """A layer that stays in one mode, and records gradients or none."""

    def __init__(self, layer: nn.Module, is_training: bool, records: bool) -> None:
        super().__init__()
        self.layer, self.is_training, self.records = layer, is_training, records

    def forward(self, x: Tensor) -> Tensor:
        self.layer.train(self.is_training)
        with torch.set_grad_enabled(self.records):
            y: Tensor = self.layer(x)
        return y


def computed(
    subject: Subject, x: Tensor, y: Tensor, *, is_training: bool, records: bool
) -> str:
    """Say what a layer computes in a mode, where it gives y for x; or nothing."""
    if is_near(y, x.to(y.dtype), least=1e-9):
        return "there the output is x itself, not normalized"
    if not y.any():
        return "there the output is 0"
    layer = _InOneMode(copy_of(subject.layer), is_training, records)
    given = Given(subject.shape, subject.kind, subject.eps)
    try:
        other = Subject(layer, given, has_condition=subject.has_condition)
    except (TypeError, ValueError):
        return ""
    for claim in (statistics, affine, biased, eps_place):
        if (finding := claim(other)).passed is False:
            return f"there {finding.reason.removesuffix('.')}"
    return ""
