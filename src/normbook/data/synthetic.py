"""Sequences that are drawn, not measured: embedded, and their law is known."""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import NDArray

from normbook.data.sequences import Sequences

__all__ = ["sequences"]

# How far the classes lie apart, in standard deviations of the noise of one step.
SIGNAL = 0.4
# Mean of every feature at the first step, in standard deviations of the noise there.
LEVEL = 2.0


def sequences(
    generator: np.random.Generator,
    *,
    train: int = 240,
    test: int = 240,
    classes: int = 4,
    features: int = 6,
    shortest: int = 7,
    longest: int = 29,
) -> Sequences:
    r"""Draw sequences whose class only many steps together tell.

    Each class :math:`c` has a mean :math:`m_c`, a vector of `features` normal numbers.
    A sequence of this class is, at the steps :math:`t = 0, 1, \dots, T_i - 1`,

    .. math::
        x_t = s_t \, (2 + 0.4\, m_c + e_t), \qquad s_t = 1 + t / T,

    with T = `longest` and :math:`e_t` standard normal, new in each step and feature.
    So mean and standard deviation of a step grow with its number and have nearly
    doubled at the last, and no mean is 0. A single step says little about the class:
    the noise is much larger than what sets the classes apart. The mean of
    :math:`x_t / s_t` over k steps has a noise that is smaller by :math:`\sqrt{k}`.

    Parameters
    ----------
    generator : np.random.Generator
        All numbers are drawn from it.
    train, test : int
        Sequences for training and for testing. Each class has the same share of
        both, up to one; the order is random.
    classes, features : int
        At least 2, at least 1.
    shortest, longest : int
        Bounds of the lengths T_i, inclusive, which are drawn uniformly and
        independently of the class.

    Returns
    -------
    Sequences
        float64.

    Raises
    ------
    ValueError
        If a size is not a whole number or too small, or the bounds are reversed.

    Examples
    --------
    >>> x_train, y_train, x_test, y_test = sequences(np.random.default_rng(0))
    >>> len(x_train), x_train[0].shape[1], np.bincount(y_train)
    (240, 6, array([60, 60, 60, 60]))
    >>> sorted({len(x) for x in x_train}) == list(range(7, 30))
    True
    """
    _check("train", train, 1)
    _check("test", test, 1)
    _check("classes", classes, 2)
    _check("features", features, 1)
    _check("shortest", shortest, 1)
    _check("longest", longest, shortest)
    means = LEVEL + SIGNAL * generator.normal(size=(classes, features))

    def draw(count: int) -> tuple[tuple[NDArray[np.float64], ...], NDArray[np.int64]]:
        y = generator.permutation(np.arange(count, dtype=np.int64) % classes)
        lengths = generator.integers(shortest, longest, size=count, endpoint=True)
        x = []
        for label, length in zip(y, lengths, strict=True):
            scale = 1 + np.arange(length)[:, None] / longest  # (T, 1)
            noise = generator.normal(size=(length, features))
            x.append(scale * (means[label] + noise))
        return tuple(x), y

    x_train, y_train = draw(train)
    x_test, y_test = draw(test)
    return Sequences(x_train, y_train, x_test, y_test)


def _check(name: str, value: int, least: int) -> None:
    try:
        is_valid = operator.index(value) >= least
    except TypeError:
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"{name} must be a whole number of at least {least}, got {value!r}."
        )
