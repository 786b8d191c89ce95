"""Sequences that are drawn, not measured: embedded, and their law is known.

Numbers in steps, whose class is to be told, marks to be counted, and characters of a
pen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normbook.data import check_size
from normbook.data.sequences import Sequences
from normbook.data.strokes import Drawing

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

    with T = `longest` and :math:`e_t` standard normal, new in each step and feature;
    the length :math:`T_i` is uniform from `shortest` to T, whatever the class. Each
    class has the same share, up to one, in random order.

    So mean and standard deviation of a step grow with its number and have nearly
    doubled at the last, and no mean is 0. A single step says little about the class:
    the noise is much larger than what sets the classes apart. The mean of
    :math:`x_t / s_t` over k steps has a noise that is smaller by :math:`\sqrt{k}`.

    Examples
    --------
    >>> x_train, y_train, x_test, y_test = sequences(np.random.default_rng(0))
    >>> len(x_train), x_train[0].shape[1], np.bincount(y_train)
    (240, 6, array([60, 60, 60, 60]))
    >>> sorted({len(x) for x in x_train}) == list(range(7, 30))
    True
    """
    check_size("train", train, 1)
    check_size("test", test, 1)
    check_size("classes", classes, 2)
    check_size("features", features, 1)
    check_size("shortest", shortest, 1)
    check_size("longest", longest, shortest)
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

    return Sequences(*draw(train), *draw(test))


def marked(
    generator: np.random.Generator,
    *,
    count: int,
    steps: int,
    least: int,
    most: int,
    letters: int = 4,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw sequences of letters in which marks have to be counted.

    `count` sequences x of `steps` letters, of which some are marks, the letter 0, and
    then `most` times the letter `letters`, which asks for the count: at its k-th time
    the label y is 1 if there were at least k marks, else 0. Before that y is -1. The
    number of marks is uniform from `least` to `most`, their places are any, and the
    letters between them are drawn from the others, 1 to `letters` - 1. Both arrays have
    the shape (count, steps + most).

    Who answers must have counted: neither the letters nor the number of the step tell.

    Examples
    --------
    >>> drawn = np.random.default_rng(0)
    >>> x, y = marked(drawn, count=2, steps=5, least=1, most=3)
    >>> x.tolist()
    [[0, 2, 3, 0, 0, 4, 4, 4], [2, 0, 3, 0, 3, 4, 4, 4]]
    >>> y[:, 5:].tolist()
    [[1, 1, 1], [1, 1, 0]]
    """
    check_size("count", count, 1)
    check_size("least", least, 0)
    check_size("most", most, max(least, 1))
    check_size("steps", steps, most)
    check_size("letters", letters, 2)
    marks = generator.integers(least, most, size=(count, 1), endpoint=True)
    order = generator.permuted(np.tile(np.arange(steps), (count, 1)), axis=1)
    between = generator.integers(1, letters, size=(count, steps))
    x = np.full((count, steps + most), letters, dtype=np.int64)
    x[:, :steps] = np.where(order < marks, 0, between)
    y = np.full(x.shape, -1, dtype=np.int64)
    y[:, steps:] = np.arange(most) < marks
    return x, y


def drawings(
    generator: np.random.Generator, *, drawers: int = 20
) -> tuple[Drawing, ...]:
    r"""Draw the twelve characters of a small alphabet, as several people might.

    A character is made of arcs and straight lines in a square from (-1, -1) to (1, 1).
    Each person has a width, a height and a slant; these move the points by

    .. math:: (x, y) \mapsto (52 + w x + s h y,\; -52 + h y),

    with w and h uniform from 18 to 36, and s normal with a deviation of 0.25. So the
    characters lie in a box like that of Omniglot, from (0, -105) to (105, 0). Each
    drawing turns its character by an angle that is normal with a deviation of 0.1.

    Examples
    --------
    >>> made = drawings(np.random.default_rng(0), drawers=3)
    >>> len(made), made[0].alphabet, sorted({drawing.drawer for drawing in made})
    (36, 'synthetic', [1, 2, 3])
    """
    check_size("drawers", drawers, 1)
    middle = np.array([52.0, -52.0])
    made = []
    for drawer in range(1, drawers + 1):
        width, height = generator.uniform(18, 36, size=2)
        slant = generator.normal(0, 0.25)
        person = np.array([[width, 0.0], [slant * height, height]])
        for number, strokes in enumerate(_alphabet(), start=1):
            angle = generator.normal(0, 0.1)
            c, s = np.cos(angle), np.sin(angle)
            turned = np.array([[c, s], [-s, c]]) @ person
            moved = tuple(stroke @ turned + middle for stroke in strokes)
            made.append(Drawing("synthetic", number, drawer, moved))
    return tuple(made)


def _alphabet() -> list[list[NDArray[np.float64]]]:
    """Strokes of each character, points in a square from -1 to 1."""

    def line(*points: tuple[float, float]) -> NDArray[np.float64]:
        return np.array(points, dtype=float)

    def arc(
        start: float, end: float, x: float = 0, y: float = 0, r: float = 1
    ) -> NDArray[np.float64]:
        """Part of a circle around (x, y), between two angles in turns."""
        turns = 2 * np.pi * np.linspace(start, end, 40)
        return np.stack([x + r * np.cos(turns), y + r * np.sin(turns)], axis=1)

    bar = line((0, 1), (0, -1))
    ring = arc(0.25, 1.25)
    bowl = arc(0.25, -0.25, x=-0.5, y=0, r=1)
    hook = np.concatenate([line((0.5, 1), (0.5, -0.5)), arc(0, -0.5, y=-0.5, r=0.5)])
    cup = np.concatenate([line((-1, 1), (-1, 0)), arc(0.5, 1), line((1, 0), (1, 1))])
    wave = np.concatenate(
        [arc(0.1, 0.75, y=0.5, r=0.5), arc(0.25, -0.4, y=-0.5, r=0.5)]
    )
    return [
        [bar],
        [ring],
        [arc(0.12, 0.88)],
        [hook],
        [cup],
        [wave],
        [line((-1, 1), (0, -1), (1, 1))],
        [line((-1, 1), (1, 1), (-1, -1), (1, -1))],
        [line((-1, 1), (1, 1)), bar],
        [line((-0.5, 1), (-0.5, -1)), bowl],
        [line((-1, 1), (1, -1)), line((1, 1), (-1, -1))],
        [ring, line((-1, 0), (1, 0))],
    ]
