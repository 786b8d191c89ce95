"""The law of the synthetic sequences, seen in many of them."""

import hashlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from normbook.data.sequences import Sequences
from normbook.data.synthetic import LEVEL, SIGNAL, drawings, marked, sequences

LONGEST = 8
CLASSES = 3
FEATURES = 5


def draw(seed: int = 0, **changed: int) -> Sequences:
    sizes = {"train": 6000, "test": 4, "classes": CLASSES, "features": FEATURES}
    bounds = {"shortest": 2, "longest": LONGEST}
    return sequences(np.random.default_rng(seed), **{**sizes, **bounds, **changed})


def means(seed: int = 0) -> NDArray[np.float64]:
    """What the generator gives first: the means of the classes."""
    drawn = np.random.default_rng(seed).normal(size=(CLASSES, FEATURES))
    return LEVEL + SIGNAL * drawn


def at(dataset: Sequences, step: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All values at one step, and their classes."""
    live = [i for i, x in enumerate(dataset.x_train) if len(x) > step]
    return np.array([dataset.x_train[i][step] for i in live]), dataset.y_train[live]


@pytest.mark.parametrize("step", [0, 4, 7])
def test_mean_and_deviation_of_a_class_grow_with_the_step(step: int) -> None:
    x, y = at(draw(), step)
    scale = 1 + step / LONGEST
    for label in range(CLASSES):
        own = x[y == label]
        tolerance = 5 * scale / len(own) ** 0.5  # five standard errors
        np.testing.assert_allclose(
            own.mean(0), scale * means()[label], atol=tolerance, rtol=0
        )
        np.testing.assert_allclose(own.std(0), scale, atol=tolerance, rtol=0)


def test_steps_of_a_sequence_are_independent_given_the_class() -> None:
    dataset = draw(shortest=LONGEST)
    x = np.array(dataset.x_train)[dataset.y_train == 1]
    noise = (x - x.mean(0)) / x.std(0)
    products = (noise[:, :-1] * noise[:, 1:]).mean(0)
    assert np.abs(products).max() < 5 / len(x) ** 0.5


def test_all_steps_tell_a_class_that_a_single_one_does_not() -> None:
    x, y = (draw(longest=29, shortest=20)[k] for k in (0, 1))

    def error(first: int) -> float:
        """Of the rule that knows the means and sees the steps from the first on."""
        scaled = [(s / (1 + np.arange(len(s))[:, None] / 29))[first:] for s in x]
        seen = np.array([s.mean(0) for s in scaled])  # (N, D)
        distance = ((seen[:, None] - means()) ** 2).sum(2)
        return float((distance.argmin(1) != y).mean())

    assert error(0) < 0.05
    assert error(-1) > 0.25


def test_lengths_reach_both_bounds_and_are_equally_frequent() -> None:
    lengths = [len(x) for x in draw().x_train]
    counts = np.bincount(lengths, minlength=LONGEST + 1)[2:]
    assert len(counts) == 7
    np.testing.assert_allclose(counts, 6000 / 7, atol=5 * (6000 / 7) ** 0.5)


def test_lengths_say_nothing_about_the_class() -> None:
    dataset = draw()
    lengths = np.array([len(x) for x in dataset.x_train])
    found = [lengths[dataset.y_train == label].mean() for label in range(CLASSES)]
    np.testing.assert_allclose(found, 5, atol=5 * 2 / 2000**0.5)


def test_classes_are_of_equal_size_in_a_random_order() -> None:
    dataset = draw(train=31)
    assert sorted(np.bincount(dataset.y_train)) == [10, 10, 11]
    assert (np.diff(dataset.y_train) < 0).sum() > 3
    assert len(dataset.x_test) == len(dataset.y_test) == 4


def test_types_are_those_of_every_data_set_of_sequences() -> None:
    dataset = draw(train=3)
    assert {x.dtype for x in dataset.x_train + dataset.x_test} == {np.dtype("f8")}
    assert dataset.y_train.dtype == dataset.y_test.dtype == np.int64


def test_one_seed_gives_the_same_numbers_on_every_machine() -> None:
    known = "b9df5899bbe0c9af62aaef0065502521983e4cb32338d33732b743a8720ba9a3"
    digest = hashlib.sha256()
    for x in draw(train=20).x_train:
        digest.update(x.astype("<f8").tobytes())
    assert digest.hexdigest() == known


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": 0}, "train must be a whole number of at least 1, got 0"),
        ({"test": 2.5}, "test must .*, got 2.5"),
        ({"classes": 1}, "classes must be a whole number of at least 2, got 1"),
        ({"features": 0}, "features must .* at least 1, got 0"),
        ({"shortest": 0}, "shortest must .* at least 1, got 0"),
        ({"shortest": 9}, "longest must be a whole number of at least 9, got 8"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_before_anything_is_drawn(
    changed: dict[str, Any], message: str
) -> None:
    generator = np.random.default_rng(3)
    with pytest.raises(ValueError, match=message):
        sequences(generator, **{"longest": LONGEST, **changed})
    assert generator.random() == np.random.default_rng(3).random()


# --- drawings


def test_every_person_draws_every_character_once() -> None:
    made = drawings(np.random.default_rng(0), drawers=3)
    keys = [drawing[:3] for drawing in made]
    assert keys == [("synthetic", c, d) for d in (1, 2, 3) for c in range(1, 13)]


def test_drawings_lie_in_the_box_of_omniglot_with_the_middle_in_its_middle() -> None:
    made = drawings(np.random.default_rng(0), drawers=500)
    points = np.concatenate([s for drawing in made for s in drawing.strokes])
    is_inside = (points >= [0, -105]) & (points <= [105, 0])
    assert is_inside.mean() > 0.99
    bar = np.array([drawing.strokes[0].mean(0) for drawing in made[::12]])
    np.testing.assert_allclose(bar, np.tile([52.0, -52.0], (500, 1)), atol=1e-9)


class Plain:
    """A generator of one person, whose characters are as large as the square is."""

    def uniform(self, *args: Any, **kwargs: Any) -> list[float]:
        return [1.0, 1.0]

    def normal(self, *args: Any, **kwargs: Any) -> float:
        return 0.0


def test_characters_fill_a_square_and_the_parts_of_their_strokes_meet() -> None:
    made = drawings(Plain(), drawers=1)  # type: ignore[arg-type]
    characters = [[s - [52.0, -52.0] for s in drawing.strokes] for drawing in made]
    joints = []
    for strokes in characters:
        points = np.concatenate(strokes)
        assert abs(points).max() == pytest.approx(1, abs=2e-3)  # arcs of 40 points
        assert points[:, 1].min() <= -0.6
        assert points[:, 1].max() >= 0.6
        apart = [np.hypot(*np.diff(stroke, axis=0).T) for stroke in strokes]
        joints.append(sum(int((gaps < 1e-9).sum()) for gaps in apart))
    # A hook is a line and an arc, a cup has two lines at its arc, a wave is two arcs.
    assert joints == [0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0]


def test_people_differ_in_width_height_and_slant_as_stated() -> None:
    made = drawings(np.random.default_rng(0), drawers=500)
    # The bar of a person, from top to bottom: its own angle is drawn with it.
    bars = np.array([d.strokes[0][0] - d.strokes[0][1] for d in made[::12]])
    lengths, slants = np.hypot(*bars.T) / 2, bars[:, 0] / bars[:, 1]
    assert 27 < lengths.mean() < 29
    # Of slant and angle together; the angle is stretched by width over height.
    assert slants.std() == pytest.approx(np.hypot(0.25, 0.1), abs=0.03)
    assert abs(slants.mean()) < 0.03


def test_the_same_generator_gives_the_same_drawings_and_another_one_others() -> None:
    one, same, other = (drawings(np.random.default_rng(s)) for s in (0, 0, 1))
    first, again, differing = (made[40].strokes[0] for made in (one, same, other))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, differing)


@pytest.mark.parametrize("drawers", [0, -1, 2.5])
def test_a_number_of_people_that_there_cannot_be_is_refused(drawers: Any) -> None:
    with pytest.raises(ValueError, match=r"drawers must be a whole .* at least 1, got"):
        drawings(np.random.default_rng(0), drawers=drawers)


def test_marks_are_as_many_as_the_labels_say_and_anywhere() -> None:
    x, y = marked(np.random.default_rng(0), count=4000, steps=6, least=1, most=3)
    assert x.shape == y.shape == (4000, 9)
    counts = (x[:, :6] == 0).sum(1)
    np.testing.assert_array_equal(counts, (y == 1).sum(1))
    assert (np.diff(y[:, 6:]) <= 0).all()
    assert (y[:, :6] == -1).all()
    assert (x[:, 6:] == 4).all()
    assert {*np.unique(x[:, :6])} == {0, 1, 2, 3}
    tolerance = 5 * (0.25 / 4000) ** 0.5  # five standard errors
    for number in (1, 2, 3):
        assert abs((counts == number).mean() - 1 / 3) < tolerance
    np.testing.assert_allclose((x[:, :6] == 0).mean(0), 1 / 3, atol=tolerance)


def test_neither_other_letters_nor_their_places_tell_the_count() -> None:
    x, y = marked(np.random.default_rng(0), count=4000, steps=6, least=1, most=3)
    for number in (1, 3):
        between = x[(y == 1).sum(1) == number, :6]
        shares = [(between[between > 0] == letter).mean() for letter in (1, 2, 3)]
        np.testing.assert_allclose(shares, 1 / 3, atol=0.03)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 2}, "steps must be .* 3"),
        ({"most": 0}, "most must be .* 1"),
        ({"least": -1}, "least must be .* 0"),
        ({"letters": 1}, "letters must be .* 2"),
    ],
)
def test_marks_that_cannot_be_drawn_are_refused(
    changed: dict[str, int], message: str
) -> None:
    sizes = {"count": 4, "steps": 6, "least": 1, "most": 3, **changed}
    with pytest.raises(ValueError, match=message):
        marked(np.random.default_rng(0), **sizes)
