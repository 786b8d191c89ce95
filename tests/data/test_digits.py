import numpy as np
import pytest
from sklearn.datasets import load_digits

from normbook.data import digits


def test_all_1797_digits_are_there_once() -> None:
    x_train, _, x_test, _ = digits.load()
    rows = sorted(map(tuple, np.concatenate([x_train, x_test]) * 16))
    assert len(x_train) == 1437
    assert len(x_test) == 360
    assert rows == sorted(map(tuple, load_digits().data))


def test_each_image_keeps_its_label() -> None:
    known = dict(zip(map(tuple, load_digits().data), load_digits().target, strict=True))
    x_train, y_train, x_test, y_test = digits.load()
    for x, y in ((x_train, y_train), (x_test, y_test)):
        assert [known[tuple(image)] for image in x * 16] == y.tolist()


def test_pixels_are_float64_sixteenths_from_0_to_1_and_labels_int64() -> None:
    dataset = digits.load()
    for x, y in (dataset[:2], dataset[2:]):
        assert x.dtype == np.float64
        assert y.dtype == np.int64
        assert x.min() == 0
        assert x.max() == 1
        assert set(np.unique(x * 16)) <= set(range(17))


def test_exactly_three_pixels_are_constant() -> None:
    x_train, _, x_test, _ = digits.load()
    x = np.concatenate([x_train, x_test])
    constant = np.flatnonzero((x == x[0]).all(axis=0))
    assert constant.tolist() == [0, 32, 39]
    assert not x[:, constant].any()


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_each_class_has_its_share_of_both_parts_up_to_one(seed: int) -> None:
    _, y_train, _, y_test = digits.load(seed)
    share = np.bincount(np.concatenate([y_train, y_test])) * 360 / 1797
    assert np.abs(np.bincount(y_test) - share).max() < 1


def test_the_split_depends_on_the_seed_alone() -> None:
    np.random.seed(1)  # noqa: NPY002 - the global state must not matter
    first, second = digits.load(seed=3), digits.load(seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first.x_test, digits.load(seed=4).x_test)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "0", None])
def test_a_seed_that_is_none_is_refused(seed: object) -> None:
    with pytest.raises(ValueError, match=r"seed must be a whole number .*, got .*give"):
        digits.load(seed)  # type: ignore[arg-type]
