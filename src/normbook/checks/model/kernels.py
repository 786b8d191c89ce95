"""Over which axes the weights are standardized that convolutions make of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.model.passes import Pass

PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
ZERO, FAR = 1e-4, 1e-2  # of a mean, in deviations


# Of the parameter's deviations, in those of what is made of it: 0 is right, and 1 is
# a weight that is centred alone, perhaps on purpose.
POWERS = {
    2: "multiplied by their deviations, not divided",
    -1: "divided by their variances, not by the roots of these",
}


class Kernel(NamedTuple):
    """A weight that a convolution was given, and is no parameter."""

    name: str  # of the module
    weight: Tensor
    held: Tensor  # the parameter

    @property
    def slip(self) -> str:
        """Return what else is done to filters that are centred, if it is known."""
        if self.weight.shape != self.held.shape or len(self.held) < 2:
            return ""
        made, held = (w.double().flatten(1) for w in (self.weight, self.held))
        sigma, own = (w.std(1, correction=0) for w in (made, held))
        if not made.mean(1).abs().max() < ZERO * sigma.mean() or not own.min() > 0:
            return ""
        own_hat = (held - held.mean(1, keepdim=True)) / own[:, None]
        if (made / sigma[:, None] - own_hat).abs().max() > FAR:  # made in another way
            return ""
        apart = own.log() - own.log().mean()
        power = float(((sigma.log() * apart).sum() / apart.square().sum()).nan_to_num())
        known = min(POWERS, key=lambda k: abs(k - power))
        rest = sigma.log() - known * own.log()
        is_it = rest.max() - rest.min() < FAR < apart.max() - apart.min()
        return POWERS[known] if is_it else ""

    @property
    def is_by_input(self) -> bool:
        """Return whether it is standardized for each input channel, not each output."""
        outputs, inputs = self.weight.shape[:2]
        if outputs < 2 or inputs < 2:  # one filter, or depthwise
            return False
        w = self.weight.double()
        rest = tuple(range(2, w.dim()))
        sigma, mean = torch.std_mean(w, (0, *rest), correction=0)
        size, own_mean = sigma.mean(), w.mean((1, *rest))
        is_centred = mean.abs().max() < ZERO * size
        is_alike = is_centred and sigma.max() - sigma.min() < FAR * size
        return bool(is_alike and own_mean.abs().max() > FAR * size)


def kernels_of(done: Pass) -> Iterator[Kernel]:
    """Yield the weights that convolutions made in a pass."""
    for name, part in done.model.named_modules():
        if isinstance(part, PLAIN) and type(part) not in PLAIN and name in done.weights:
            yield Kernel(name, done.weights[name], part.weight.detach())
