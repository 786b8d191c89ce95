r"""Batch normalization layers: drop-ins for ``torch.nn.BatchNorm1d``, ``2d``, ``3d``.

The formulas are those of :mod:`normbook.batch_norm`, the averages those of
:mod:`normbook.running_statistics`. What is left for a layer is book-keeping: which
statistics to use in which mode, when to update them, what to save.

Neither torch's batch norm nor autograd through the forward pass is used: the
backward pass is the closed form that the book derives.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from normbook.batch_norm import (
    BatchNormCache,
    batch_axes,
    batch_norm_backward,
    batch_norm_forward,
    batch_norm_inference,
    batch_norm_inference_backward,
)
from normbook.running_statistics import (
    cumulative_average,
    exponential_average,
    unbiased,
)

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "recalibrate"]


class _Training(torch.autograd.Function):
    """Batch norm with the statistics of the batch; every derivative in closed form.

    It returns y; mu and inv_std, with derivatives; mean and var (biased) of shape
    (C,), without: they are for the running statistics, which no graph may follow.

    The backward pass is written in x, gamma, mu and inv_std. As mu and inv_std are
    outputs with derivatives of their own, it can be differentiated in turn, as often
    as one likes.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        y, cache = batch_norm_forward(x, gamma, beta, eps)
        mean, var = cache.mu.reshape(-1).clone(), cache.var.reshape(-1)
        return y, cache.mu, cache.inv_std, mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, gamma, _, _ = inputs
        _, mu, inv_std, mean, var = output
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        # x_hat is not kept: to compute it again costs less than its memory.
        ctx.save_for_backward(x, gamma, mu, inv_std)
        ctx.save_for_forward(x, gamma, mu, inv_std)

    @staticmethod
    def backward(
        ctx: Any,
        dl_dy: Tensor | None,
        dl_dmu: Tensor | None,
        dl_dinv_std: Tensor | None,
        *_: None,
    ) -> tuple[Tensor | None, ...]:
        # Unpacked once: torch.utils.checkpoint allows no more.
        x, gamma, mu, inv_std = ctx.saved_tensors
        cache = _cache(x, gamma, mu, inv_std)
        dl_dx = dl_dgamma = dl_dbeta = None
        if dl_dy is not None:
            dl_dx, dl_dgamma, dl_dbeta = batch_norm_backward(dl_dy, cache)
        # These two arrive in second derivatives only:
        # d mu / d x = 1 / n and d inv_std / d x = -inv_std**2 x_hat / n.
        if dl_dmu is not None:
            dl_dx = _plus(dl_dx, dl_dmu.expand(x.shape) / _count(x))
        if dl_dinv_std is not None:
            dl_dx = _plus(dl_dx, -dl_dinv_std * inv_std**2 * cache.x_hat / _count(x))
        return _needed(ctx, dl_dx, dl_dgamma, dl_dbeta, None)


class _TrainingWithTangents(_Training):
    """The same with forward-mode derivatives, which torch.compile cannot take."""

    @staticmethod
    def jvp(
        ctx: Any,
        dx: Tensor | None,
        dgamma: Tensor | None,
        dbeta: Tensor | None,
        _: None,
    ) -> tuple[Tensor | None, ...]:
        x, gamma, mu, inv_std = ctx.saved_tensors
        cache = _cache(x, gamma, mu, inv_std)
        dy = _affine_tangent(cache.x_hat, dgamma, dbeta)
        if dx is None:  # torch wants tangents of mu and inv_std even so
            zero = torch.zeros_like(mu)
            return dy.to(x.dtype), zero, zero.clone(), None, None
        # The Jacobian of a standardization is symmetric: forward is backward.
        dy = dy + batch_norm_backward(dx, cache).dl_dx
        dmu = dx.to(mu.dtype).mean(cache.axes, keepdim=True)
        along = (dx * cache.x_hat).mean(cache.axes, keepdim=True)
        return dy.to(x.dtype), dmu, -(inv_std**2) * along, None, None


class _Inference(torch.autograd.Function):
    """Batch norm with given statistics, which are constants."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        mean: Tensor,
        var: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        eps: float,
    ) -> Tensor:
        y: Tensor = batch_norm_inference(x, mean, var, gamma, beta, eps)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, mean, var, gamma, _, ctx.eps = inputs
        ctx.save_for_backward(x, mean, var, gamma)
        ctx.save_for_forward(x, mean, var, gamma)

    @staticmethod
    def backward(ctx: Any, dl_dy: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, var, gamma = ctx.saved_tensors
        dl_dx, dl_dgamma, dl_dbeta = batch_norm_inference_backward(
            dl_dy, x, mean, var, gamma, ctx.eps
        )
        return _needed(ctx, dl_dx, None, None, dl_dgamma, dl_dbeta, None)


class _InferenceWithTangents(_Inference):
    """The same with forward-mode derivatives, which torch.compile cannot take."""

    @staticmethod
    def jvp(
        ctx: Any,
        dx: Tensor | None,
        _dmean: None,
        _dvar: None,
        dgamma: Tensor | None,
        dbeta: Tensor | None,
        _deps: None,
    ) -> Tensor:
        x, mean, var, gamma = ctx.saved_tensors
        x_hat = batch_norm_inference(x, mean, var, eps=ctx.eps)
        dy = _affine_tangent(x_hat, dgamma, dbeta)
        if dx is not None:
            # The Jacobian is diagonal, so again forward is backward.
            gradients = batch_norm_inference_backward(dx, x, mean, var, gamma, ctx.eps)
            dy = dy + gradients.dl_dx
        return dy.to(x.dtype)


def by_batch(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Give y, and mean and biased variance of each channel."""
    is_compiling = torch.compiler.is_compiling()
    function = _Training if is_compiling else _TrainingWithTangents
    y, _, _, mean, var = function.apply(x, gamma, beta, eps)  # type: ignore[no-untyped-call]
    return y, mean, var


def _by_given(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
) -> Tensor:
    is_compiling = torch.compiler.is_compiling()
    function = _Inference if is_compiling else _InferenceWithTangents
    y: Tensor = function.apply(x, mean, var, gamma, beta, eps)  # type: ignore[no-untyped-call]
    return y


def _cache(
    x: Tensor, gamma: Tensor | None, mu: Tensor, inv_std: Tensor
) -> BatchNormCache:
    x_hat = (x - mu) * inv_std
    var = None  # no derivative is written in it
    return BatchNormCache(x_hat, mu, var, inv_std, batch_axes(x), gamma)


def _count(x: Tensor) -> int:
    """Count the values of one channel; 0 where there is no channel."""
    return x[:, :1].numel()


def _plus(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a + b


def _needed(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Drop what nobody asked for; a gain or bias that is missing takes no gradient."""
    return tuple(
        gradient if is_needed else None
        for gradient, is_needed in zip(gradients, ctx.needs_input_grad, strict=True)
    )


def _affine_tangent(
    x_hat: Tensor, dgamma: Tensor | None, dbeta: Tensor | None
) -> Tensor:
    """Change of gamma x_hat + beta with gamma and beta."""
    shape = (1, -1, *(1,) * (x_hat.ndim - 2))
    dy = torch.zeros_like(x_hat) if dgamma is None else x_hat * dgamma.reshape(shape)
    return dy if dbeta is None else dy + dbeta.reshape(shape)


# torch's type is inherited and none of its code: every method that torch's class has
# is written out below. Being of the type, these layers are found by
# torch.optim.swa_utils.update_bn, by the conversion to SyncBatchNorm, by torch.func's
# replace_all_batch_norm_modules_, and by the isinstance filters common in training
# loops. Without it, update_bn would leave them out without a word.
class _BatchNorm(TorchBatchNorm):
    """What the three layers share: all but the number of axes."""

    _version = 2  # of the state_dict: num_batches_tracked came with 2
    _ndims: ClassVar[tuple[int, ...]]
    _shapes: ClassVar[str]
    # What recalibrate sets meanwhile; None: it cannot treat this layer.
    _recalibrating: ClassVar[dict[str, float] | None] = {"momentum": 1.0}

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        nn.Module.__init__(self)  # past torch's class, see above
        _check_num_features(num_features)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats

        def empty() -> Tensor:
            return torch.empty(num_features, device=device, dtype=dtype)

        self.register_parameter("weight", nn.Parameter(empty()) if affine else None)
        has_bias = affine and bias
        self.register_parameter("bias", nn.Parameter(empty()) if has_bias else None)
        # Buffers, so that state_dict has them and .to() moves them.
        is_tracked = track_running_stats
        self.register_buffer("running_mean", empty() if is_tracked else None)
        self.register_buffer("running_var", empty() if is_tracked else None)
        steps = torch.tensor(0, device=device) if is_tracked else None
        self.register_buffer("num_batches_tracked", steps)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Begin the running statistics again: mean 0, variance 1, no batch seen."""
        for name, start in (
            ("running_mean", 0),
            ("running_var", 1),
            ("num_batches_tracked", 0),
        ):
            buffer = getattr(self, name)
            if self.track_running_stats and buffer is not None:
                buffer.fill_(start)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin all again: gain 1, bias 0, and the running statistics."""
        self.reset_running_stats()
        if self.weight is not None:
            self.weight.fill_(1)
        if self.bias is not None:
            self.bias.fill_(0)

    def extra_repr(self) -> str:
        """Name the settings, as torch does."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )

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
            y = _by_given(input, mean, var, self.weight, self.bias, eps)
            return _laid_out(y, input)
        updates: list[tuple[Tensor, Tensor]] = []
        is_tracked = self.training and self.track_running_stats
        y, mean, var, count = self._by_any_batch(input, eps)
        # Nothing to average: the statistics stay; torch counts the batch.
        if is_tracked and count:
            updates = self._updates(mean, var, count)
        y = _laid_out(y, input)
        if is_tracked:
            _write(updates, self.num_batches_tracked)
        return y

    def _by_any_batch(
        self, input: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """Give what _by_batch gives, for an empty batch too."""
        if input.numel():
            return self._by_batch(input, eps)
        ones = input.new_ones(input.shape[1])
        y = _by_given(input, ones, ones, self.weight, self.bias, eps)
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

    def _updates(
        self, mean: Tensor, var: Tensor, count: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Pairs of a running statistic and its next value; nothing is written."""
        updates: list[tuple[Tensor, Tensor]] = []
        momentum = None if self.momentum is None else float(self.momentum)
        if momentum is not None and not 0 <= momentum <= 1:
            raise ValueError(
                f"momentum must lie in 0..1, where 0 freezes the running statistics, "
                f"got {self.momentum}; it is the weight of the new value, 0.1 is usual."
            )
        if momentum == 0:  # torch's way to freeze the running statistics
            return updates
        for running, new in (
            (self.running_mean, mean),
            (self.running_var, unbiased(var, count)),
        ):
            if running is None:
                continue
            old = running.to(new.dtype)  # half precision is rounded once, at the end
            if momentum is not None:
                value = exponential_average(old, new, momentum=momentum)
            elif self.num_batches_tracked is not None:
                steps = int(self.num_batches_tracked)
                value = cumulative_average(old, new, steps)
            else:
                continue
            updates.append((running, value))
        return updates

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self._ndims:
            raise ValueError(
                f"input of {type(self).__name__} must have shape {self._shapes}, got "
                f"{input.dim()}D input of shape {tuple(input.shape)}; add the missing "
                "axis, e.g. input[None] for a single example, or take the layer for "
                "this number of axes."
            )

    def _check(self, input: Tensor, uses_batch: bool) -> None:
        """Refuse bad input, with the types of exception that torch.nn raises."""
        name = type(self).__name__
        if not isinstance(input, Tensor):
            raise TypeError(
                f"input of {name} must be a torch tensor, got "
                f"{type(input).__name__}; convert it, e.g. torch.as_tensor(input)."
            )
        self._check_input_dim(input)
        if input.dtype not in _DTYPES:
            raise NotImplementedError(
                f"input of {name} must hold real floating-point numbers, got "
                f"{input.dtype}; convert it, e.g. input.float()."
            )
        if uses_batch:
            self._check_count(input)
        if not isinstance(self.eps, Real):
            raise TypeError(f"eps must be a number, got {self.eps!r}; 1e-5 is usual.")
        if not isinstance(self.momentum, Real | None):
            raise TypeError(
                f"momentum must be a number or None, got {self.momentum!r}; it is the "
                "weight of the new value, 0.1 is usual."
            )
        for name, value in (("eps", self.eps), ("momentum", self.momentum)):
            if value is not None and not _fits_float(value):
                raise ValueError(
                    f"{name} must be a finite number, got {type(value).__name__} too "
                    "large for a float; 1e-5 is usual for eps, 0.1 for momentum."
                )
        if uses_batch and self.eps <= 0:
            raise ValueError(
                f"eps must be positive to normalize by the batch, got {self.eps}; a "
                "constant channel would be divided by 0; 1e-5 is usual."
            )
        self._check_states(input)

    def _check_count(self, input: Tensor) -> None:
        if input.numel() == input.shape[1]:
            raise ValueError(
                f"{type(self).__name__} needs more than 1 value per channel to "
                f"normalize by the batch, got shape {tuple(input.shape)}; make the "
                "batch larger (drop_last=True in a DataLoader), or call eval() to use "
                "the running statistics."
            )

    def _check_states(self, input: Tensor) -> None:
        if input.shape[1] != self.num_features:
            raise RuntimeError(
                f"input must have num_features = {self.num_features} channels on axis "
                f"1, got shape {tuple(input.shape)}; make the layer with num_features="
                f"{input.shape[1]}, or move the channels to axis 1."
            )
        if (self.running_mean is None) is not (self.running_var is None):
            raise ValueError(
                "running_mean and running_var must both be tensors or both be None, "
                "got one of each; set both."
            )
        states = {
            name: value
            for name in ("weight", "bias", "running_mean", "running_var")
            if (value := getattr(self, name)) is not None
        }
        for name, value in states.items():
            if tuple(value.shape) != (self.num_features,):
                raise RuntimeError(
                    f"{name} must have shape ({self.num_features},), got "
                    f"{tuple(value.shape)}; give one value for each channel."
                )
            if value.device != input.device:
                raise RuntimeError(
                    f"input and {name} must be on one device, got {input.device} and "
                    f"{value.device}; move one of them with .to(...)."
                )
        found = {value.dtype for value in states.values()}
        # Half precision may come with float32 state, as autocast makes it.
        is_mixed = input.dtype in _HALF and found == {torch.float32}
        if found and found != {input.dtype} and not is_mixed:
            raise RuntimeError(
                "the layer must have the dtype of its input, or float32 for half "
                f"precision (no mixed dtype otherwise), got input {input.dtype} and "
                f"{', '.join(f'{k} {v.dtype}' for k, v in states.items())}; convert "
                "one of them with .to(...)."
            )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # Checkpoints older than version 2 have no num_batches_tracked: keep ours.
        key = prefix + "num_batches_tracked"
        is_old = (local_metadata.get("version") or 0) < 2
        if is_old and self.track_running_stats and key not in state_dict:
            steps = self.num_batches_tracked
            if steps is None or steps.is_meta:
                steps = torch.tensor(0)
            state_dict[key] = steps
        nn.Module._load_from_state_dict(
            self,
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
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


_HALF = (torch.float16, torch.bfloat16)
_DTYPES = (*_HALF, torch.float32, torch.float64)


def _check_num_features(num_features: int) -> None:
    try:
        size = operator.index(num_features)
    except TypeError:
        size = None
    if size is None or isinstance(num_features, bool):
        raise TypeError(
            f"num_features must be a whole number, got {num_features!r}; it is the "
            "number of channels, the length of axis 1."
        )
    if size < 0:
        raise RuntimeError(
            f"num_features must not be negative, got {size}; it is the number of "
            "channels, the length of axis 1."
        )


def _fits_float(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:  # such as 10**400
        return False
    return True


def _write(updates: list[tuple[Tensor, Tensor]], steps: Tensor | None) -> None:
    """Write the running statistics and count the batch; after an error, neither."""
    buffers = [buffer for buffer, _ in updates] + ([] if steps is None else [steps])
    is_inference = torch.compiler.is_compiling() or torch.is_inference_mode_enabled()
    # torch writes to such a tensor before it refuses to.
    if not is_inference and any(buffer.is_inference() for buffer in buffers):
        raise RuntimeError(
            "the running statistics must be normal tensors to be updated here, got an "
            "inference tensor, made in torch.inference_mode(); clone it, or train in "
            "that mode."
        )
    written: list[tuple[Tensor, Tensor]] = []
    try:
        # torch refuses some tensors only now: expanded ones, say.
        for buffer, value in updates:
            old = buffer.clone()
            buffer.copy_(value)
            written.append((buffer, old))
        if steps is not None:
            steps.add_(1)
    except BaseException:
        for buffer, old in written:
            buffer.copy_(old)
        raise


def _laid_out(y: Tensor, x: Tensor) -> Tensor:
    """Lay y out in memory as torch does: channels-last where x is, else contiguous.

    Arithmetic keeps whatever order the axes of x have in memory. Code written for
    torch.nn may call ``view`` on the result of a transposed input, though.
    """
    if x.ndim in (4, 5):
        # Channels-last: axis 1 is the fastest, the others follow in their order.
        order = [1, *range(x.ndim - 1, 1, -1), 0]
        strides = [x.stride(axis) for axis in order]
        if strides == sorted(strides):
            layout = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
            return y.contiguous(memory_format=layout)
    return y.contiguous()


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
