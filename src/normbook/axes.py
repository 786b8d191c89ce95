"""Which values share what: the axes of each normalization, found by running it.

Nothing here is written down from a paper. One input value is changed: the outputs that
change with it share its statistics. One gain is changed: the outputs that change share
it. The book's table of axes and its figure are made of such probes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from normbook import batch_norm, group_norm, layer_norm
from normbook.arguments import check_index
from normbook.arrays import Array
from normbook.normalize import NormalizeCache, NormalizeGradients, normalize_backward

Shape = tuple[int, ...]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

LETTERS = "NCHW"


class Row(NamedTuple):
    """What one normalization does on an array (N, C, H, W)."""

    name: str
    shared: str  # the axes along which a group lies: all of "H", or the part "C/2"
    group_size: int  # values
    statistics: int  # groups
    statistics_shape: Shape  # of their variances, axes of length 1 left out
    parameter_shape: Shape  # of the gain, and of the bias where there is one
    is_centred: bool
    depends_on_other_examples: bool  # needs running statistics to treat one alone


class Sharing(NamedTuple):
    """Which values share statistics, and which gain and bias, with one value of x."""

    statistics: Mask
    parameters: Mask


class _Method(NamedTuple):
    forward: Callable[..., tuple[Array, NormalizeCache]]
    backward: Callable[[Array, NormalizeCache], NormalizeGradients] = normalize_backward

    def output(self, x: Array, **gain: Array) -> Array:
        return self.forward(x, **gain)[0]


def _methods(num_groups: int) -> dict[str, _Method]:
    """Functions by name; looked up at each call, so that tests can break one.

    Layer norm comes twice: over the whole image, as its paper has it for a layer, and
    over the channels of each place, as in transformers and ConvNeXt.
    """
    layer, rms = layer_norm.layer_norm_forward, layer_norm.rms_norm_forward
    grouped = partial(group_norm.group_norm_forward, num_groups=num_groups)
    return {
        "batch norm": _Method(batch_norm.batch_norm_forward),
        "layer norm": _Method(partial(layer, axes=(1, 2, 3))),
        "layer norm at each place": _Method(partial(layer, axes=1)),
        "RMSNorm at each place": _Method(partial(rms, axes=1)),
        "instance norm": _Method(group_norm.instance_norm_forward),
        "group norm": _Method(grouped, group_norm.group_norm_backward),
    }


def table(shape: Shape, num_groups: int) -> tuple[Row, ...]:
    """Find out, for each normalization, what it shares on an array of this shape.

    ``shape`` is (N, C, H, W), each at least 2, or else what is shared could not be told
    from what is not. ``num_groups``, a divisor of C, is that of group norm.

    Examples
    --------
    >>> for row in table((2, 6, 3, 5), num_groups=2)[:2]:
    ...     print(row.name, "|", row.shared, "|", row.statistics_shape)
    batch norm | N, H, W | (6,)
    layer norm | C, H, W | (2,)
    """
    _check_shape(shape)
    methods = _methods(num_groups)
    return tuple(_row(name, method, shape) for name, method in methods.items())


def group_of(function: Callable[[Array], Array], shape: Shape, index: Shape) -> Mask:
    """Mark the values that share statistics with one value, and that value.

    They are the places of the output that change when this value of the input does.
    ``function`` maps an array of this shape to one of the same shape.

    Examples
    --------
    >>> group_of(layer_norm.layer_norm, (2, 3), index=(0, 1)).tolist()
    [[True, True, True], [False, False, False]]
    """
    check_index(shape, index)
    x = _values(shape)
    changed = x.copy()
    changed[index] += 1
    mask: Mask = function(changed) != function(x)
    mask[index] = True
    return mask


def sharing(shape: Shape, num_groups: int, index: Shape) -> dict[str, Sharing]:
    """Find, for each normalization, what shares statistics and gain with x[index].

    ``shape`` and ``num_groups`` are those of :func:`table`.

    Examples
    --------
    >>> methods = sharing((2, 6, 3, 5), num_groups=2, index=(0, 0, 0, 0))
    >>> methods["layer norm"].statistics.sum(), methods["layer norm"].parameters.sum()
    (np.int64(90), np.int64(2))
    """
    _check_shape(shape)
    return {
        name: Sharing(
            statistics=group_of(method.output, shape, index),
            parameters=_parameters_of(method, _values(shape), index),
        )
        for name, method in _methods(num_groups).items()
    }


def _row(name: str, method: _Method, shape: Shape) -> Row:
    masks = [group_of(method.output, shape, index) for index in np.ndindex(shape)]
    first, x = masks[0], _values(shape)
    y, cache = method.forward(x)
    return Row(
        name=name,
        shared=", ".join(_extent(first, axis) for axis in _spread(first)),
        group_size=int(first.sum()),
        statistics=len({mask.tobytes() for mask in masks}),
        statistics_shape=tuple(n for n in cache.inv_std.shape if n > 1),
        parameter_shape=tuple(method.backward(y, cache).dl_dgamma.shape),
        is_centred=bool(np.allclose(method.output(x + 1), y, rtol=0, atol=1e-9)),
        depends_on_other_examples=0 in _spread(first),
    )


def _spread(mask: Mask) -> list[int]:
    """Axes along which the marked values do not all stand at one place."""
    places = np.argwhere(mask)
    return [axis for axis, at in enumerate(places.T) if len(set(at)) > 1]


def _extent(mask: Mask, axis: int) -> str:
    """Name an axis, or the part of it that is marked."""
    length, marked = mask.shape[axis], len(set(np.nonzero(mask)[axis]))
    return LETTERS[axis] + ("" if marked == length else f"/{length / marked:g}")


def _parameters_of(method: _Method, x: Array, index: Shape) -> Mask:
    """Find which gain acts on one value, and all values that it acts on."""
    y, cache = method.forward(x)
    dl_dy = np.zeros_like(x)
    dl_dy[index] = 1
    acts = method.backward(dl_dy, cache).dl_dgamma != 0
    mask: Mask = method.output(x, gamma=np.where(acts, 2.0, 1.0)) != y
    return mask


def _values(shape: Shape) -> Array:
    """Draw values that are all different, none of them a special case."""
    return np.random.default_rng(0).normal(size=shape)


def _check_shape(shape: Shape) -> None:
    if len(shape) != len(LETTERS) or min(shape) < 2:
        raise ValueError(
            "shape must be (N, C, H, W), each at least 2, got "
            f"{shape}; along an axis of length 1 all is shared and nothing is."
        )
