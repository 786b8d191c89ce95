"""Batch norm of sequences: padding does not count, and each time step has its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normbook.arguments import whole_number
from normbook.layers.base import Updates, other_device, write
from normbook.layers.batch_norm import BatchNorm1d
from normbook.running_statistics import unbiased


class MaskedBatchNorm1d(BatchNorm1d):
    r"""Batch normalization of the live entries of ``(N, C, T)`` or ``(N, D)``.

    Call it as ``layer(input, mask)``, with a ``mask`` of dtype bool, true where an
    entry is live, and shape ``(N, T)`` or ``(N,)``. Padding becomes 0.

    It equals :class:`~normbook.layers.batch_norm.BatchNorm1d` of the K live entries put
    together, of shape ``(K, C)``, in output, gradient and running statistics, and has
    its options, ``state_dict`` and errors, but that a *single live* entry is refused in
    training; if none is, the output is 0 and the running statistics stay. No gradient
    reaches the padding, and nothing leaves it, NaN included.

    Source: book, chapter *Variable length*.

    >>> layer = MaskedBatchNorm1d(1, momentum=1.0)
    >>> x, mask = torch.tensor([[[1.0, 9, 3]]]), torch.tensor([[True, False, True]])
    >>> y = layer(x, mask)
    >>> layer.running_mean, layer.running_var  # of 1 and 3
    (tensor([2.]), tensor([2.]))
    """

    def forward(self, input: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Normalize the live entries; padding becomes 0."""
        self._check(input, uses_batch=False)
        self._check_mask(input, mask)
        live = input.movedim(1, -1)[mask]  # (K, C)
        if len(live) == 1 and (self.training or self.running_mean is None):
            raise ValueError(
                f"{type(self).__name__} needs more than 1 live entry to normalize by "
                f"the batch, got 1 in a mask of shape {tuple(mask.shape)}; make the "
                "batch larger, or call eval() to use the running statistics."
            )
        y_live = super().forward(live)
        y = y_live.new_zeros(*mask.shape, self.num_features)
        return y.index_put((mask,), y_live).movedim(-1, 1).contiguous()

    def _size(self, input: Tensor, mask: Tensor) -> int:  # type: ignore[override]
        return int(mask.sum())

    def _check_mask(self, input: Tensor, mask: Any) -> None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(
                f"mask must be a torch tensor of dtype bool, got {kind}; for lengths "
                "of shape (N,) it is torch.arange(T) < lengths[:, None]."
            )
        expected = (len(input), *input.shape[2:])
        if tuple(mask.shape) != expected:
            raise ValueError(
                f"mask must have the shape of the input without its channels, "
                f"{expected}, got {tuple(mask.shape)}; give one bool for each entry."
            )
        if mask.device != input.device:
            raise other_device(input, "mask", mask)


class PerStepBatchNorm1d(MaskedBatchNorm1d):
    r"""Batch normalization of ``(N, D)`` at one time step t.

    In training mean and variance are those of the examples alive at step t, in
    evaluation the running statistics of that step. Gain and bias are shared over time.
    (The gain of the paper begins at 0.1, as after ``layer.weight.data.fill_(0.1)``.)
    Call it as ``layer(input, step, mask)``: ``step`` counts from 0, and ``mask``, of
    shape ``(N,)``, is that of :class:`MaskedBatchNorm1d`, true where a sequence has not
    ended yet; left out, all are alive.

    The first ``max_steps`` steps, as many as the longest training sequence has, have
    running statistics of their own, in rows of shape (max_steps, num_features), and an
    entry of ``num_batches_tracked``. Training at a later step is a ValueError, as are
    ``max_steps`` below 1 and a negative ``step``. In evaluation a step that was never
    trained takes those of the last trained before it.

    Where one example is alive alone, its value has no variance: batch norm would forget
    it and answer :math:`\beta`. By a choice of this book such a step is normalized in
    training as in evaluation, by running statistics, which it does not change; if
    neither it nor a step before it was ever trained, it is a ValueError.

    Source: Cooijmans et al. (2016), section 3; book, chapter *Variable length*.

    >>> layer = PerStepBatchNorm1d(1, max_steps=2, momentum=1.0)
    >>> for step, x in enumerate([[[1.0], [3.0]], [[10.0], [30.0]]]):
    ...     y = layer(torch.tensor(x), step)
    >>> layer.eval()(torch.tensor([[20.0]]), step=7).tolist()  # by the mean of step 1
    [[0.0]]
    """

    _ndims = (2,)  # type: ignore[assignment]
    _shapes = "(N, D)"
    _settings = (*MaskedBatchNorm1d._settings, "max_steps")
    _recalibrating = None  # every step has a number of batches of its own

    def __init__(
        self,
        num_features: int,
        max_steps: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        args = num_features, eps, momentum, affine, track_running_stats, device, dtype
        super().__init__(*args, bias=bias)
        self.max_steps = _whole("max_steps", max_steps, least=1)
        for name, buffer in self.named_buffers():
            rows = buffer.expand(self.max_steps, *buffer.shape).clone()
            self.register_buffer(name, rows)

    def forward(  # type: ignore[override]
        self, input: Tensor, step: int, mask: Tensor | None = None
    ) -> Tensor:
        """Normalize one time step by the batch, or by its running statistics."""
        step = _whole("step", step, least=0)
        if self.training and step >= self.max_steps:
            raise ValueError(
                f"step must be below max_steps = {self.max_steps} in training, got "
                f"{step}; make the layer with max_steps of the longest sequence."
            )
        layer = self._at(min(step, self.max_steps - 1))
        layer._check(input, uses_batch=False)
        if mask is not None:
            layer._check_mask(input, mask)
        alive = len(input) if mask is None else int(mask.sum())
        if self.running_mean is not None and (alive < 2 or not self.training):
            layer = self._by_last_trained(step, alive)
        if mask is None or alive == len(input) != 1:
            return BatchNorm1d.forward(layer, input)
        return MaskedBatchNorm1d.forward(layer, input, mask)

    @torch.no_grad()
    def take_in(self, mean: Tensor, var: Tensor, counts: Sequence[int]) -> None:
        """Update the running statistics of the first T steps, all at once.

        ``mean`` and biased ``var``, shape (T, num_features), are those of the
        ``counts`` examples alive at each step, at least 2.
        """
        pairs = zip(var, counts, strict=True)
        var = torch.stack([unbiased(of_step, count) for of_step, count in pairs])
        rows = [slice(len(counts))]
        if self.momentum is None:  # each step says how many batches it holds
            rows = [slice(step, step + 1) for step in range(len(counts))]
        updates: Updates = []
        for row in rows:
            updates += self._at(row)._updates(mean[row], var[row], None)
        steps = self.get_buffer("num_batches_tracked")
        write(updates, steps[: len(counts)])

    def known(self, first: int, steps: int) -> tuple[Tensor, Tensor]:
        """Return mean and variance by which evaluation goes at some steps."""
        rows = self._last_trained(first, steps, self.training)
        mean, var = self.get_buffer("running_mean"), self.get_buffer("running_var")
        return mean[rows], var[rows]

    def _at(self, step: int | slice) -> PerStepBatchNorm1d:
        """Return one step, or more, as a layer of its own, on the same memory."""
        layer = copy.copy(self)
        rows = self._buffers.items()
        layer._buffers = {k: None if v is None else v[step] for k, v in rows}
        return layer

    def _by_last_trained(self, step: int, alive: int) -> PerStepBatchNorm1d:
        """Return the last trained step up to this one, to be used as in evaluation."""
        is_needed = self.training and alive == 1
        layer = self._at(int(self._last_trained(step, 1, is_needed)))
        layer.training = False
        return layer

    def _last_trained(self, first: int, steps: int, is_needed: bool) -> Tensor:
        """Return the last step trained up to each; if there is none, the first."""
        counts = self.num_batches_tracked
        if counts is None:
            counts = torch.zeros(self.max_steps)
        every = torch.arange(self.max_steps, device=counts.device)
        asked = torch.arange(first, first + steps, device=counts.device)
        trained = every.where(counts > 0, -1).cummax(0).values
        rows = trained[asked.clamp(max=self.max_steps - 1)]
        if is_needed and bool((rows < 0).any()):
            raise ValueError(
                f"{type(self).__name__} needs more than 1 live example at step "
                f"{first}, got 1, and no step up to it was trained; make the batch "
                "larger."
            )
        return rows.clamp(min=0)  # with none trained yet, all are as at the start


def _whole(name: str, value: Any, least: int) -> int:
    number = whole_number(name, value, "time steps are counted")
    if number < least:
        raise ValueError(
            f"{name} must be at least {least}, got {number}; steps count from 0."
        )
    return number
