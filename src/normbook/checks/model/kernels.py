"""Over which axes the weights are standardized that convolutions make of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)  # of nn.functional, too
PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
ZERO, FAR = 1e-4, 1e-2  # of a mean, in deviations


class Kernel(NamedTuple):
    """A weight that a convolution was given, and is no parameter."""

    name: str  # of the module
    weight: Tensor

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


def kernels_of(model: nn.Module, run: Callable[[], Any]) -> Iterator[Kernel]:
    """Run a model, which keeps hooks, and yield what weights its convolutions made."""
    own = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, PLAIN) and type(part) not in PLAIN
    ]
    if not own:
        return
    inside: list[str] = []
    found: dict[str, Tensor] = {}

    def entered(name: str) -> Any:
        return lambda *_: inside.append(name)

    class Noting(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func in CONVOLUTIONS and inside:
                weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
                if isinstance(weight, Tensor) and not isinstance(weight, nn.Parameter):
                    found.setdefault(inside[-1], weight.detach())
            return func(*args, **kwargs)

    for name, part in own:
        part.register_forward_pre_hook(entered(name))
        part.register_forward_hook(lambda *_: (inside.pop(), None)[1])
    with Noting():
        run()
    yield from (Kernel(name, weight) for name, weight in found.items())
