r"""Statistics gathered over many batches, for use at inference.

At inference a layer needs *one* mean and variance for each channel: an exponential
average over the batches of training, a cumulative one, or a second look at all data.

Two conventions name the weight of an exponential average, and they are opposite.
``momentum``, in (0, 1], is the weight of the **new** value (torch). ``decay``, in
[0, 1), is the weight of the **old** one: :math:`\alpha` in the literature, called
*momentum* in Keras. Every function takes one of them, by name. The momentum 0.1 is
computed as the decay 0.9.

Averages take arrays or numbers of one shape and leave them as they were. What is no
array of floats where one is asked for, or both of momentum and decay, is a
``TypeError``; a number outside its range or a shape that does not fit a ``ValueError``.

:func:`averaged`, :func:`debiased` and :func:`one_pass` are the formulas of the
chapters *Moving averages* and *Split batches*, word for word, and check nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

from array_api_compat import array_namespace

from normbook.arrays import (
    Array,
    Axes,
    check_float_array,
    check_like,
    check_same_kind,
    check_same_shape,
)
from normbook.normalize import moments


def averaged(average: Array, value: Array, alpha: Any) -> Array:
    """Take one more value into an exponential moving average."""
    return alpha * average + (1 - alpha) * value


def debiased(average: Array, alpha: float, steps: int) -> Array:
    """Divide by the weights of the values: what is missing to 1 is the start at 0."""
    return average / (1 - alpha**steps)


def corrected(var: Array, count: Any) -> Array:
    """Multiply by n / (n - 1), n a number, or what stands for one in a traced graph."""
    return var * (count / (count - 1))


def one_pass(values: Iterable[Array]) -> tuple[Array, Array]:
    """Return mean and biased variance of a stream, by Welford's rule."""
    mean, squares = 0.0, 0.0
    for n, x in enumerate(values, start=1):
        delta = x - mean
        mean = mean + delta / n
        squares = squares + delta * (x - mean)
    return mean, squares / n


def exponential_average(
    running: Array,
    new: Array,
    *,
    momentum: float | None = None,
    decay: float | None = None,
) -> Array:
    """Return the next value of an exponential moving average, :func:`averaged`.

    Source: Bishop and Bishop (2024), eq. 7.56.

    Examples
    --------
    >>> exponential_average(0.0, 10.0, momentum=0.25)
    2.5
    >>> exponential_average(0.0, 10.0, decay=0.25)
    7.5
    """
    alpha = _decay(momentum, decay)
    check_same_shape("new", new, "running", running)
    return averaged(running, new, alpha)


def cumulative_average(running: Array, new: Array, steps: int) -> Array:
    r"""Return the plain average of all values so far, without storing them.

    ``steps`` counts the values in ``running``; with 0 that is ignored.

    Examples
    --------
    >>> cumulative_average(2.0, 8.0, steps=2)  # of 2, 2 and 8
    4.0
    """
    _check_number("steps", steps, 0, "count the values that the average holds")
    check_same_shape("new", new, "running", running)
    if steps == 0:
        return new
    return running + (new - running) / (steps + 1)


def debias(
    running: Array,
    *,
    steps: int,
    momentum: float | None = None,
    decay: float | None = None,
) -> Array:
    r"""Remove the pull of a start at 0 from an exponential average of ``steps`` values.

    Their weights sum to :math:`1 - \alpha^\tau` after :math:`\tau` steps; dividing by
    that makes them sum to 1. Source: Kingma and Ba (2015), section 3.

    Examples
    --------
    >>> debias(exponential_average(0.0, 5.0, decay=0.75), steps=1, decay=0.75)
    5.0
    """
    decay = _decay(momentum, decay)
    _check_number("steps", steps, 1, "count the values that the average holds")
    return debiased(running, decay, steps)


def unbiased(var: Array, count: int) -> Array:
    """Return the unbiased variance, n / (n - 1) times the biased: Bessel's correction.

    ``count`` is n >= 2, the number of values in a group: N, or N H W of (N, C, H, W).

    Examples
    --------
    >>> unbiased(3.0, count=4)
    4.0
    """
    cure = "the unbiased variance divides by count - 1, so one value is not enough"
    _check_number("count", count, 2, cure)
    return corrected(var, int(count))


@dataclass(frozen=True, eq=False)
class RunningStatistics:
    """Mean and variance gathered batch by batch; ``update`` gives a new one.

    Make the first one with :meth:`start`, whose defaults are those of torch. Objects do
    not change, so after an error the old statistics are still whole. ``mean`` and
    ``var``, shape (D,), are what inference should use; ``steps`` counts the batches.
    Source: Ioffe and Szegedy (2015), Algorithm 2, for the unbiased variance.

    Examples
    --------
    >>> running = RunningStatistics.start(np.zeros(1), momentum=0.5)
    >>> running = running.update(np.array([4.0]), np.array([3.0]), count=4)
    >>> running.mean, running.var  # 0.5 * 1 + 0.5 * 3 * 4 / 3
    (array([2.]), array([2.5]))
    """

    averaged_mean: Array
    averaged_spread: Array
    steps: int
    decay: float | None
    is_unbiased: bool
    averages: Literal["var", "std"]
    is_debiased: bool

    @classmethod
    def start(
        cls,
        like: Array,
        *,
        momentum: float | None = None,
        decay: float | None = None,
        is_cumulative: bool = False,
        is_unbiased: bool = True,
        averages: Literal["var", "std"] = "var",
        is_debiased: bool = False,
    ) -> RunningStatistics:
        """Begin with mean 0 and variance 1, as torch does; debiased from 0 and 0.

        ``like``, shape (D,), gives shape, dtype and device; the momentum is 0.1 if none
        is named. ``is_cumulative`` takes the plain average of all batches instead
        (torch: ``momentum=None``), without debiasing. ``is_unbiased`` corrects the
        variance of each batch with :func:`unbiased`, ``is_debiased`` the averages with
        :func:`debias` when they are read. ``averages="std"`` averages standard
        deviations, to show the difference.
        """
        check_float_array("like", like)
        if averages not in ("var", "std"):
            raise ValueError(
                f'averages must be "var" or "std", got {averages!r}; "var" is what '
                "the frameworks average."
            )
        if not is_cumulative:
            usual = 0.1 if momentum is None and decay is None else momentum
            decay = _decay(usual, decay)
        elif is_debiased or not momentum is decay is None:
            raise TypeError(
                "a cumulative average has no momentum, no decay and no bias to "
                "remove; leave these out, or leave out is_cumulative."
            )
        zero = array_namespace(like).zeros_like(like)
        spread = zero + (0 if is_debiased else 1)
        return cls(zero, spread, 0, decay, is_unbiased, averages, is_debiased)

    @property
    def mean(self) -> Array:
        """Return the mean to use at inference."""
        return self._read(self.averaged_mean)

    @property
    def var(self) -> Array:
        """Return the variance to use at inference, also of averaged deviations."""
        spread = self._read(self.averaged_spread)
        return spread**2 if self.averages == "std" else spread

    def _read(self, average: Array) -> Array:
        if not self.is_debiased:
            return average + 0  # a copy: these statistics do not change
        if self.steps == 0:
            raise ValueError(
                "a debiased average has no value before its first update, got "
                "steps = 0; call update first."
            )
        return debias(average, steps=self.steps, decay=self.decay)

    def update(self, mean: Array, var: Array, count: int) -> RunningStatistics:
        """Return statistics that have taken in those of one batch, (D,) each.

        ``var`` is biased, as :func:`normbook.normalize.moments` gives it; ``count`` is
        the number of values in each group.
        """
        for name, value in (("mean", mean), ("var", var)):
            check_like(name, value, "those at the start", self.averaged_mean)
        spread = unbiased(var, count) if self.is_unbiased else var
        if self.averages == "std":
            spread = array_namespace(var).sqrt(spread)
        return replace(
            self,
            averaged_mean=self._average(self.averaged_mean, mean),
            averaged_spread=self._average(self.averaged_spread, spread),
            steps=self.steps + 1,
        )

    def _average(self, running: Array, new: Array) -> Array:
        if self.decay is None:
            # A copy: the first average is the caller's own array.
            return cumulative_average(running, new, self.steps) + 0
        return averaged(running, new, self.decay)


class PopulationStatistics(NamedTuple):
    """Statistics of a data set or a part of it; with size 0 the others do not count."""

    mean: Array  # (D,)
    var: Array  # (D,), biased
    size: int  # values of one channel


def merge(parts: Iterable[PopulationStatistics]) -> PopulationStatistics:
    r"""Return the exact statistics of the whole from those of its parts.

    Two parts a and b join without a loss, however unequal (Chan's rule):

    .. math:: \mu = \mu_a + \delta\,\frac{n_b}{n}, \qquad
        M = M_a + M_b + \delta^2\,\frac{n_a n_b}{n}, \qquad
        \delta = \mu_b - \mu_a,\quad n = n_a + n_b,

    with :math:`M = n \sigma^2` the sum of squared deviations; the average of the
    variances alone would lack the last term, the spread of the means. At least one part
    must have a value. Source: Chan, Golub and LeVeque (1983), eq. 2.1.

    Examples
    --------
    >>> a = PopulationStatistics(np.array([2.0]), np.array([1.0]), 2)  # 1 and 3
    >>> b = PopulationStatistics(np.array([8.0]), np.array([0.0]), 1)  # 8
    >>> merge([a, b])
    PopulationStatistics(mean=array([4.]), var=array([8.66666667]), size=3)
    """
    if isinstance(parts, PopulationStatistics):
        raise TypeError(
            "parts must be an iterable of PopulationStatistics, got a single one; put "
            "it into a list."
        )
    total: PopulationStatistics | None = None
    for part in parts:
        if not isinstance(part, PopulationStatistics):
            raise TypeError(
                "a part must be PopulationStatistics(mean, var, size), got "
                f"{type(part).__name__}; population_statistics makes one from values."
            )
        cure = "count the values of one channel"
        _check_number("the size of a part", part.size, 0, cure)
        if part.size:
            total = part if total is None else _join(total, part)
    if total is None:
        raise _none("parts", "part with values in it")
    return total


def welford(values: Iterable[Array]) -> PopulationStatistics:
    r"""Return the statistics of a stream, one value at a time: :func:`one_pass`.

    The values have shape (D,); an array of shape (N, D) is a stream of N. Each step is
    :func:`merge` with a part of a single value. Neither subtracts two large numbers, as
    :math:`\operatorname{E} x^2 - (\operatorname{E} x)^2` does. Source: Welford (1962).

    Examples
    --------
    >>> welford(np.array([[1.0], [3.0], [8.0]]))
    PopulationStatistics(mean=array([4.]), var=array([8.66666667]), size=3)
    """
    stream = iter(values)
    first = next(stream, None)
    if first is None:
        raise _none("values", "value")
    size = 0

    def checked() -> Iterator[Array]:
        nonlocal size
        for x in itertools.chain([first], stream):
            check_like("a value", x, "the first one", first)
            size += 1
            yield x

    return PopulationStatistics(*one_pass(checked()), size)


def population_statistics(batches: Iterable[Array], axes: Axes) -> PopulationStatistics:
    """Return exact mean and biased variance of all batches together.

    The batches differ at most in their length along ``axes``, along which one group
    lies, as in :func:`normbook.normalize.moments`; :func:`merge` joins them.

    Examples
    --------
    >>> population_statistics([np.array([[1.0], [3.0]]), np.array([[8.0]])], axes=0)
    PopulationStatistics(mean=array([4.]), var=array([8.66666667]), size=3)
    """
    if hasattr(batches, "shape"):
        raise TypeError(
            "batches must be an iterable of arrays, got a single "
            f"{type(batches).__name__}; put it into a list."
        )
    parts = [_statistics(batch, axes) for batch in batches]
    if not parts:
        raise _none("batches", "batch")
    return merge(parts)


def _statistics(batch: Array, axes: Axes) -> PopulationStatistics:
    mu, var = moments(batch, axes)
    reduced = axes if isinstance(axes, tuple) else (axes,)
    xp = array_namespace(batch)
    size = math.prod(batch.shape[axis] for axis in reduced)
    return PopulationStatistics(xp.squeeze(mu, reduced), xp.squeeze(var, reduced), size)


def _join(a: PopulationStatistics, b: PopulationStatistics) -> PopulationStatistics:
    check_same_kind("a batch", b.mean, "the first one", a.mean)
    check_same_shape("the mean of a batch", b.mean, "that of the first", a.mean)
    size = a.size + b.size
    delta = b.mean - a.mean
    between = delta**2 * (a.size * b.size / size**2)
    return PopulationStatistics(
        mean=a.mean + delta * (b.size / size),
        var=(a.size * a.var + b.size * b.var) / size + between,
        size=size,
    )


def _decay(momentum: float | None, decay: float | None) -> float:
    """Return the weight of the old value, from either convention."""
    if (momentum is None) == (decay is None):
        raise TypeError(
            "exactly one of momentum (weight of the new value) and decay (weight of "
            f"the old value) must be given, got momentum={momentum!r}, "
            f"decay={decay!r}; momentum=0.1 and decay=0.9 mean the same."
        )
    if decay is None:
        if not isinstance(momentum, Real) or not 0 < momentum <= 1:
            raise ValueError(
                f"momentum must lie in (0, 1], got {momentum!r}; it is the weight of "
                "the new value, 0.1 is usual."
            )
        decay = 1 - float(momentum)
        if decay == 1:
            raise ValueError(
                f"momentum must be at least 2e-16, got {momentum!r}; a smaller weight "
                "is lost in rounding."
            )
    if not isinstance(decay, Real) or not 0 <= decay < 1:
        raise ValueError(
            f"decay must lie in [0, 1), got {decay!r}; it is the weight of the old "
            "value, 0.9 is usual, and with 1 nothing is ever learned."
        )
    return float(decay)


def _check_number(name: str, value: int, least: int, cure: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(
            f"{name} must be a whole number >= {least}, got {value!r}; {cure}."
        )


def _none(name: str, what: str) -> ValueError:
    return ValueError(
        f"{name} must hold at least one {what}, got none; an iterator that was used "
        "before is empty, make a new one."
    )
