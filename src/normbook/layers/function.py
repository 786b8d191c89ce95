"""Normalization as torch.autograd sees it: one Function for the whole family.

:mod:`normbook.normalize` computes; torch is told to take its backward pass, the closed
form that the book derives. A layer chooses the axes and keeps the books.
"""

from __future__ import annotations

import inspect
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import normbook.normalize as formulas
from normbook.arrays import Array, check_eps
from normbook.batch_norm import CHANNEL, inference, inference_backward
from normbook.normalize import NormalizeCache, affine

__all__ = ["Statistics", "as_needed", "normalize", "normalize_by"]

Slopes = tuple[Tensor | None, ...]  # one for each input, or for each output


class Statistics(NamedTuple):
    """Mean and biased variance of each group, one axis long; part of no graph."""

    mean: Array  # None where it was not taken off
    var: Array  # then the mean square


class _Normalize(torch.autograd.Function):
    """Normalization by the statistics of x itself; every derivative in closed form.

    It returns y; mu and inv_std, with derivatives, so that the backward pass, written
    in them, can be differentiated in turn; mean and var (biased), one axis long,
    without: they are for the running statistics, which no graph may follow.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Slopes:
        y, cache = formulas.forward(*inputs)
        mean = None if cache.mu is None else cache.mu.reshape(-1).clone()
        return y, cache.mu, cache.inv_std, mean, cache.var.reshape(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, gamma, _, ctx.axes, ctx.parameter_axes, _, _ = inputs
        _, mu, inv_std, *statistics = output
        ctx.mark_non_differentiable(*(v for v in statistics if v is not None))
        ctx.set_materialize_grads(False)
        # x_hat is not kept: to compute it again costs less than its memory.
        ctx.save_for_backward(x, gamma, mu, inv_std)
        ctx.save_for_forward(x, gamma, mu, inv_std)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor | None) -> Slopes:
        dl_dy, dl_dmu, dl_dinv_std, *_ = arriving
        x, cache = _saved(ctx)
        dl_dx = dl_dgamma = dl_dbeta = None
        if dl_dy is not None:
            dl_dx, dl_dgamma, dl_dbeta = formulas.backward(dl_dy, cache)
        # These two arrive in second derivatives only:
        # d mu / d x = 1 / n and d inv_std / d x = -inv_std**2 x_hat / n.
        n = x.numel() // cache.inv_std.numel()
        if dl_dmu is not None:
            dl_dx = _plus(dl_dx, dl_dmu.expand(x.shape) / n)
        if dl_dinv_std is not None:
            along = -dl_dinv_std * cache.inv_std**2 * cache.x_hat
            dl_dx = _plus(dl_dx, along / n)
        return as_needed(ctx, dl_dx, dl_dgamma, dl_dbeta)


class _NormalizeWithTangents(_Normalize):
    """The same with forward-mode derivatives, which torch.compile cannot take."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Slopes:
        dx, dgamma, dbeta, *_ = tangents
        x, cache = _saved(ctx)
        dy = _affine_tangent(cache.x_hat, dgamma, dbeta, ctx.parameter_axes)
        if dx is None:  # torch wants tangents of mu and inv_std even so
            zero = torch.zeros_like(cache.inv_std)
            dmu = None if cache.mu is None else zero.clone()
            return dy.to(x.dtype), dmu, zero, None, None
        # The Jacobian of a standardization is symmetric: forward is backward, but that
        # the gain comes after it.
        dx_hat = formulas.backward(dx, cache._replace(gamma=None)).dl_dx
        dy = dy + affine(dx_hat, cache.gamma, None, ctx.parameter_axes)
        dx = dx.to(cache.inv_std.dtype)
        dmu = None if cache.mu is None else dx.mean(ctx.axes, keepdim=True)
        along = (dx * cache.x_hat).mean(ctx.axes, keepdim=True)
        return dy.to(x.dtype), dmu, -(cache.inv_std**2) * along, None, None


class _NormalizeBy(torch.autograd.Function):
    """Normalization of each channel by given statistics, which are constants."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return inference(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, mean, var, gamma, _, ctx.eps = inputs
        ctx.save_for_backward(x, mean, var, gamma)
        ctx.save_for_forward(x, mean, var, gamma)

    @staticmethod
    def backward(ctx: Any, dl_dy: Tensor) -> Slopes:
        x, mean, var, gamma = ctx.saved_tensors
        slopes = inference_backward(dl_dy, x, mean, var, gamma, ctx.eps)
        return as_needed(
            ctx, slopes.dl_dx, None, None, slopes.dl_dgamma, slopes.dl_dbeta
        )


class _NormalizeByWithTangents(_NormalizeBy):
    """The same with forward-mode derivatives, which torch.compile cannot take."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        dx, _, _, dgamma, dbeta, _ = tangents
        x, mean, var, gamma = ctx.saved_tensors
        x_hat = inference(x, mean, var, None, None, ctx.eps)
        dy = _affine_tangent(x_hat, dgamma, dbeta, CHANNEL)
        if dx is not None:
            # The Jacobian is diagonal, so again forward is backward.
            gradients = inference_backward(dx, x, mean, var, gamma, ctx.eps)
            dy = dy + gradients.dl_dx
        return dy.to(x.dtype)


class _ByPosition(inspect.Signature):
    """What torch binds arguments to at each call, which costs more than a mean."""

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(args=args, kwargs=kwargs, apply_defaults=lambda: None)


def bind_by_position(function: type[torch.autograd.Function]) -> None:
    """Spare a Function what torch binds; its arguments must all come by position."""
    vars(function.forward)["__signature__"] = _ByPosition()


bind_by_position(_Normalize)
bind_by_position(_NormalizeBy)


def normalize(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    *,
    axes: tuple[int, ...],
    parameter_axes: tuple[int, ...],
    eps: float,
    is_centred: bool = True,
) -> tuple[Tensor, Statistics]:
    """Return y and the statistics that x has along some axes.

    Parameters are those of :func:`normbook.normalize.normalize_forward`, but the axes
    are counted from 0, in order. Only eps is checked. Where ``x`` holds no value there
    are no statistics.

    >>> x = torch.tensor([[1.0, 3.0], [10.0, 50.0]])
    >>> normalize(x, None, None, axes=(1,), parameter_axes=(1,), eps=1e-12)[1]
    Statistics(mean=tensor([ 2., 30.]), var=tensor([  1., 400.]))
    """
    eps = check_eps(eps)
    if not x.numel():
        y = affine(x, gamma, beta, parameter_axes).to(x.dtype)
        return y, Statistics(x.new_zeros(0), x.new_zeros(0))
    is_compiling = torch.compiler.is_compiling()
    function = _Normalize if is_compiling else _NormalizeWithTangents
    y, _, _, *statistics = function.apply(  # type: ignore[no-untyped-call]
        x, gamma, beta, axes, parameter_axes, eps, is_centred
    )
    return y, Statistics(*statistics)


def normalize_by(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalize each channel, axis 1, by given statistics, which are constants.

    Parameters are those of :func:`normbook.batch_norm.batch_norm_inference`; only eps
    is checked.
    """
    is_compiling = torch.compiler.is_compiling()
    function = _NormalizeBy if is_compiling else _NormalizeByWithTangents
    y: Tensor = function.apply(x, mean, var, gamma, beta, check_eps(eps))  # type: ignore[no-untyped-call]
    return y


def _saved(ctx: Any) -> tuple[Tensor, NormalizeCache]:
    """Return x, and what the forward pass knew."""
    # Unpacked once: torch.utils.checkpoint allows no more.
    x, gamma, mu, inv_std = ctx.saved_tensors
    x_hat = (x if mu is None else x - mu) * inv_std
    var = None  # no derivative is written in it
    cache = NormalizeCache(x_hat, mu, var, inv_std, ctx.axes, ctx.parameter_axes, gamma)
    return x, cache


def _plus(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a + b


def as_needed(ctx: Any, *slopes: Tensor | None) -> Slopes:
    """Drop what nobody asked for; inputs behind the last slope have none."""
    pairs = zip_longest(slopes, ctx.needs_input_grad)
    return tuple(slope if is_needed else None for slope, is_needed in pairs)


def _affine_tangent(
    x_hat: Tensor,
    dgamma: Tensor | None,
    dbeta: Tensor | None,
    parameter_axes: tuple[int, ...],
) -> Tensor:
    """Change of gamma x_hat + beta with gamma and beta."""
    if dgamma is None:
        x_hat = torch.zeros_like(x_hat)
    dy: Tensor = affine(x_hat, dgamma, dbeta, parameter_axes)
    return dy
