r"""Recalibration: the running statistics of a finished model, computed anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from normbook.layers.batch_norm import _BatchNorm, _count


def recalibrate(
    model: nn.Module, batches: Iterable[Any], *, device: torch.types.Device = None
) -> None:
    r"""Compute the running statistics of a model anew, with its weights as they are.

    The running statistics become averages over the batches of mean and unbiased
    variance, each counted by its number of values in a channel, so a short last batch
    weighs less (in ``torch.optim.swa_utils.update_bn`` it does not). Batch norm layers
    normalize by the batch, all others are in evaluation mode, and no gradient is
    recorded. Afterwards every mode and momentum is as before, and after an error, the
    model's own included, so are the statistics.

    ``batches`` holds inputs of the model, or tuples or lists that begin with one, such
    as ``(x, target)``; ``device`` is where to send each input first. Use large batches,
    shuffled: the inputs of the deeper layers are then nearly those of evaluation. A
    layer that the model does not call, or that does not update itself (a frozen one,
    say), keeps its statistics.

    A layer with statistics for each time step is a TypeError. A model without running
    statistics, batches from which no layer took any, and some that are not finite are a
    ValueError.

    Source: Ioffe and Szegedy (2015), Algorithm 2, steps 7-10; book, chapter *Moving
    averages*.

    >>> layer = nn.BatchNorm1d(1)
    >>> recalibrate(layer, [torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0], [8.0]])])
    >>> layer.running_mean, layer.running_var  # means 2 and 6, variances 2 and 8
    (tensor([4.]), tensor([5.]))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; the order "
            "is recalibrate(model, batches)."
        )
    if not (isinstance(batches, Iterable) or hasattr(batches, "__getitem__")):
        raise TypeError(
            "batches must be an iterable of inputs of the model, got "
            f"{type(batches).__name__}; give a list of tensors or a DataLoader."
        )
    tallies = {
        module: _Tally(name, module)
        for name, module in model.named_modules()
        if isinstance(module, TorchBatchNorm)
        and module.track_running_stats
        and module.running_mean is not None
    }
    if not tallies:
        raise ValueError(
            "model must have a batch norm layer with running statistics, got "
            f"{type(model).__name__} with none; nothing needs recalibrating."
        )
    modes = {module: module.training for module in model.modules()}
    hooks = [
        layer.register_forward_hook(tally.take, with_kwargs=True)
        for layer, tally in tallies.items()
    ]
    try:
        model.eval()
        for tally in tallies.values():
            tally.begin()
        with torch.no_grad():
            for batch in batches:
                model(_input_of(batch, device))
        _check_tallies(list(tallies.values()))
    except BaseException:
        for tally in tallies.values():
            tally.write(tally.before)
        raise
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
        for tally in tallies.values():
            tally.set(tally.settings)
    for tally in tallies.values():
        tally.finish()


class _Tally:
    """Average statistics of one layer, and what it had before.

    With momentum 1 its running statistics are those of the last batch.
    """

    def __init__(self, name: str, layer: TorchBatchNorm) -> None:
        self.name, self.layer = name, layer
        self.meanwhile = getattr(layer, "_recalibrating", {"momentum": 1.0})
        if self.meanwhile is None:
            raise TypeError(
                f"recalibrate cannot treat layer {name!r}, a {type(layer).__name__}; "
                "set its momentum to None, call reset_running_stats(), and run the "
                "batches through the model in training mode."
            )
        self.settings = {key: getattr(layer, key) for key in self.meanwhile}
        self.before = self.last = self._buffers()
        self.averages: dict[str, Tensor] = {}
        self.size = self.steps = 0

    def _buffers(self) -> dict[str, Tensor]:
        return {k: v.clone() for k, v in self.layer.named_buffers(recurse=False)}

    def _has_updated(self) -> bool:
        """Return whether the layer wrote to its statistics since the last look."""
        last, self.last = self.last, self._buffers()
        return not all(bool((v == last[k]).all()) for k, v in self.last.items())

    def begin(self) -> None:
        self.layer.train()
        self.set(self.meanwhile)
        # The old values stay: a frozen layer normalizes by them. But 0 times an old
        # NaN would be NaN.
        for buffer in self.layer.buffers(recurse=False):
            buffer.nan_to_num_()
        self.last = self._buffers()

    def set(self, settings: dict[str, Any]) -> None:
        for key, value in settings.items():
            setattr(self.layer, key, value)

    def take(self, layer: Any, args: Any, kwargs: Any, y: Tensor) -> None:
        is_ours = isinstance(layer, _BatchNorm)
        size = layer._size(*args, **kwargs) if is_ours else _count(y)
        if not self._has_updated() or size == 0:
            return
        self.size += size
        self.steps += 1
        for name in ("running_mean", "running_var"):
            new = getattr(layer, name)
            new = new.to(torch.promote_types(new.dtype, torch.float32))
            old = self.averages.get(name, torch.zeros_like(new))
            self.averages[name] = old + (new - old) * (size / self.size)

    def write(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            getattr(self.layer, name).copy_(value)

    def finish(self) -> None:
        self.write(self.averages if self.steps else self.before)
        if self.steps and self.layer.num_batches_tracked is not None:
            self.layer.num_batches_tracked.fill_(self.steps)


def _check_tallies(tallies: list[_Tally]) -> None:
    if not any(tally.steps for tally in tallies):
        raise ValueError(
            "batches must hold at least one batch with values that reaches a batch "
            "norm layer in training mode, got none; an iterator that was used before "
            "is empty, make a new one, and a frozen layer takes no statistics."
        )
    for tally in tallies:
        if not all(bool(v.isfinite().all()) for v in tally.averages.values()):
            raise ValueError(
                f"the statistics must be finite, got NaN or infinity in layer "
                f"{tally.name!r}; look for such values in the batches and the weights."
            )


def _input_of(batch: Any, device: torch.types.Device) -> Tensor:
    x = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(x, Tensor):
        raise TypeError(
            "a batch must be a tensor, or a tuple or list that begins with one, got "
            f"{type(batch).__name__}; write a generator that yields the model's input."
        )
    return x if device is None else x.to(device)
