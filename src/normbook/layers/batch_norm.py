r"""Batch normalization layers: drop-ins for ``torch.nn.BatchNorm1d``, ``2d``, ``3d``.

The formulas are those of :mod:`normbook.batch_norm`, the averages those of
:mod:`normbook.running_statistics`. What is left for a layer is book-keeping: which
statistics to use in which mode, when to update them, what to save.

Neither torch's batch norm nor autograd through the forward pass is used: the
backward pass is the closed form that the book derives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from normbook.batch_norm import CHANNEL
from normbook.layers.base import (
    ChannelNorm,
    check_dtypes,
    check_places,
    laid_out,
    write,
)
from normbook.layers.function import normalize, normalize_by
from normbook.normalize import METHODS

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "recalibrate"]


def by_batch(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Give y, and mean and biased variance of each channel."""
    axes = METHODS["batch norm"].axes_of(x.ndim)
    y, statistics = normalize(
        x, gamma, beta, axes=axes, parameter_axes=CHANNEL, eps=eps
    )
    return y, *statistics


def _count(x: Tensor) -> int:
    """Count the values of one channel; 0 where there is no channel."""
    return x[:, :1].numel()


# torch's type is inherited and none of its code: ChannelNorm and this class have every
# method that torch's class has. Being of the type, these layers are found by
# torch.optim.swa_utils.update_bn, by the conversion to SyncBatchNorm, by torch.func's
# replace_all_batch_norm_modules_, and by the isinstance filters common in training
# loops. Without it, update_bn would leave them out without a word.
class _BatchNorm(ChannelNorm, TorchBatchNorm):
    """What the three layers share: all but the number of axes."""

    # What recalibrate sets meanwhile; None: it cannot treat this layer.
    _recalibrating: ClassVar[dict[str, float] | None] = {"momentum": 1.0}

    def forward(self, input: Tensor) -> Tensor:
        """Normalize: by the batch in training, by the running statistics afterwards.

        Without running statistics, by the batch in both modes.
        """
        running_mean, running_var = self.running_mean, self.running_var
        uses_batch = self.training or (running_mean is None and running_var is None)
        self._check(input, uses_batch)
        eps = float(self.eps)
        if not self.training and running_mean is not None and running_var is not None:
            # Clones: should training go on before backward is called, this gradient
            # must still be that of the function which was computed here.
            mean, var = running_mean.clone(), running_var.clone()
            y = normalize_by(input, mean, var, self.weight, self.bias, eps)
            return laid_out(y, input)
        updates: list[tuple[Tensor, Tensor]] = []
        is_tracked = self.training and self.track_running_stats
        y, mean, var, count = self._by_any_batch(input, eps)
        # Nothing to average: the statistics stay; torch counts the batch.
        if is_tracked and count:
            updates = self._updates(mean, var, count)
        y = laid_out(y, input)
        if is_tracked:
            write(updates, self.num_batches_tracked)
        return y

    def _by_any_batch(
        self, input: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """Give what _by_batch gives, for an empty batch too."""
        if input.numel():
            return self._by_batch(input, eps)
        ones = input.new_ones(input.shape[1])
        y = normalize_by(input, ones, ones, self.weight, self.bias, eps)
        return y, ones, ones, 0

    def _by_batch(
        self, input: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """Give y, and what the running statistics take in: mean, biased var, count.

        Other layers of the family change this and nothing else.
        """
        y, mean, var = by_batch(input, self.weight, self.bias, eps)
        return y, mean, var, _count(input)

    def _size(self, input: Tensor) -> int:
        """Count what recalibrate weighs a batch by: the values of one channel."""
        return _count(input)

    def _check(self, input: Tensor, uses_batch: bool) -> None:
        """Refuse bad input, with the types of exception that torch.nn raises."""
        self._check_tensor(input)
        self._check_input_dim(input)
        self._check_float(input)
        if uses_batch:
            self._check_count(input)
        self._check_numbers()
        if uses_batch and self.eps <= 0:
            raise ValueError(
                f"eps must be positive to normalize by the batch, got {self.eps}; a "
                "constant channel would be divided by 0; 1e-5 is usual."
            )
        if input.shape[1] != self.num_features:
            raise RuntimeError(
                f"input must have num_features = {self.num_features} channels on axis "
                f"1, got shape {tuple(input.shape)}; make the layer with num_features="
                f"{input.shape[1]}, or move the channels to axis 1."
            )
        states = self._states()
        check_places(input, states, (self.num_features,), "channel")
        check_dtypes(input, states)

    def _check_count(self, input: Tensor) -> None:
        if input.numel() == input.shape[1]:
            raise ValueError(
                f"{type(self).__name__} needs more than 1 value per channel to "
                f"normalize by the batch, got shape {tuple(input.shape)}; make the "
                "batch larger (drop_last=True in a DataLoader), or call eval() to use "
                "the running statistics."
            )


class BatchNorm1d(_BatchNorm):
    r"""Batch normalization of ``(N, D)`` or ``(N, C, L)``.

    .. math::

        y = \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    with :math:`\mu` and the biased variance :math:`\sigma^2` of each channel: in
    training those of the batch, over all axes but axis 1; in evaluation the running
    averages. A drop-in for :class:`torch.nn.BatchNorm1d`: same arguments, same
    ``state_dict``, same numbers up to rounding.

    Parameters
    ----------
    num_features : int
        D or C, the length of axis 1.
    eps : float
        Added to the variance, inside the root; unit of x squared.
    momentum : float or None
        Weight of the *new* value in the running averages, 0 to 1. With ``None``
        they are the plain average of all batches so far.
    affine : bool
        Whether to learn :math:`\gamma` (``weight``, begins at 1) and
        :math:`\beta` (``bias``, begins at 0).
    track_running_stats : bool
        Whether to keep running statistics. Without them the batch is used in both
        modes.
    device, dtype
        Of parameters and buffers.
    bias : bool
        With ``False`` only :math:`\gamma` is learned.

    Attributes
    ----------
    weight, bias : Parameter, shape (num_features,), or None
    running_mean, running_var : Tensor, shape (num_features,), or None
        ``running_var`` averages *unbiased* variances.
    num_batches_tracked : Tensor, int64, or None

    Raises
    ------
    TypeError
        If an argument or the input is of the wrong kind.
    ValueError
        On a call: if the number of axes is wrong, a channel has a single value in
        training, eps is not positive in training, or momentum is not in 0..1.
    RuntimeError
        If ``num_features`` is negative, or input and layer differ in channels,
        device or dtype. Half precision may come with a float32 layer.
    NotImplementedError
        If the input holds no real floating-point numbers.

    Notes
    -----
    After an error the running statistics are as before.

    Source: Ioffe and Szegedy (2015), Algorithms 1 and 2; book, chapters *Batch
    normalization*, *The gradient of batch normalization* and *Moving averages*.

    Examples
    --------
    >>> layer = BatchNorm1d(1, eps=1e-12, momentum=0.5)
    >>> y = layer(torch.tensor([[1.0], [3.0]]))  # mean 2, variance 1, unbiased 2
    >>> y.tolist()
    [[-1.0], [1.0]]
    >>> layer.running_mean, layer.running_var
    (tensor([1.]), tensor([1.5000]))
    >>> layer.eval()(torch.tensor([[1.0]])).tolist()
    [[0.0]]
    """

    _ndims = (2, 3)
    _shapes = "(N, D) or (N, C, L)"


class BatchNorm2d(_BatchNorm):
    """Batch normalization of images, ``(N, C, H, W)``.

    As :class:`BatchNorm1d`, with statistics over N, H and W; channels-last memory
    stays channels-last. A drop-in for :class:`torch.nn.BatchNorm2d`.

    Examples
    --------
    >>> x = torch.arange(8.0).reshape(2, 1, 2, 2)  # mean 3.5, variance 5.25
    >>> BatchNorm2d(1, momentum=1.0)(x).sum().abs() < 1e-5
    tensor(True)
    """

    _ndims = (4,)
    _shapes = "(N, C, H, W)"


class BatchNorm3d(_BatchNorm):
    """Batch normalization of volumes or films, ``(N, C, T, H, W)``.

    As :class:`BatchNorm1d`, with statistics over all axes but C. A drop-in for
    :class:`torch.nn.BatchNorm3d`.

    Examples
    --------
    >>> BatchNorm3d(2)(torch.zeros(3, 2, 4, 5, 6)).shape
    torch.Size([3, 2, 4, 5, 6])
    """

    _ndims = (5,)
    _shapes = "(N, C, T, H, W)"


def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    device: torch.types.Device = None,
) -> None:
    r"""Compute the running statistics of a model anew, with its weights as they are.

    While a model is trained its weights move, and an average over batches mixes
    statistics of many models. This runs the finished one over ``batches``:

    .. math::

        \text{running mean} = \operatorname{E}_B[\mu_B], \qquad
        \text{running variance} = \operatorname{E}_B\Big[\tfrac{n}{n-1}\,
        \sigma_B^2\Big]

    Each batch counts by its number of values n in a channel, so a short last batch
    weighs less. (``torch.optim.swa_utils.update_bn`` gives it full weight.)

    Batch norm layers normalize by the batch, all other layers (dropout, say) are in
    evaluation mode, and no gradient is recorded. Afterwards every mode and momentum
    is as before; weights are never touched.

    Parameters
    ----------
    model : Module
        Holds batch norm layers of this module or of ``torch.nn``, with running
        statistics. A layer that the model does not call, or that does not update itself
        (a frozen one, say), keeps its statistics.
    batches : iterable
        Inputs of the model: tensors, or tuples or lists that begin with one, such as
        ``(x, target)``. Use large ones, shuffled: the inputs of the deeper layers are
        then nearly those of evaluation, and little lies between the batches.
    device : optional
        Where to send each input first.

    Raises
    ------
    TypeError
        If ``model`` is no module, ``batches`` cannot be iterated over, a batch is
        neither a tensor nor begins with one, or a layer keeps statistics for each
        time step.
    ValueError
        If the model has no such layer, no layer took statistics from a batch, or the
        statistics found are not finite.

    Notes
    -----
    After any error, the model's own included, the statistics are as before.

    Source: Ioffe and Szegedy (2015), Algorithm 2, steps 7-10; book, chapter *Moving
    averages*.

    Examples
    --------
    >>> layer = BatchNorm1d(1)
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
        _check_tallies(tallies.values())
    except BaseException:
        for tally in tallies.values():
            tally.restore()
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

    The layer itself is asked for the statistics of a batch: with momentum 1 its
    running statistics are those of the last batch, whoever wrote the layer.
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
        """Tell whether the layer wrote to its statistics since the last look."""
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

    def restore(self) -> None:
        for name, value in self.before.items():
            getattr(self.layer, name).copy_(value)

    def finish(self) -> None:
        if self.steps == 0:
            self.restore()
            return
        for name, value in self.averages.items():
            getattr(self.layer, name).copy_(value)
        if self.layer.num_batches_tracked is not None:
            self.layer.num_batches_tracked.fill_(self.steps)


def _check_tallies(tallies: Iterable[_Tally]) -> None:
    tallies = list(tallies)
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
