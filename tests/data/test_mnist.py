"""MNIST and Fashion-MNIST: files of the same form, so the same tests."""

from pathlib import Path

import numpy as np
import pytest
from stand_ins import IMAGES, idx, put

from normbook.data import Dataset, mnist
from normbook.data.catalogue import FASHION_MNIST, MNIST, Source
from normbook.data.files import whereabouts
from normbook.lab.runner import LOADERS


@pytest.fixture(params=["mnist", "fashion-mnist"])
def name(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    return put(request.param, tmp_path, monkeypatch).name


def load(name: str, is_scaled: bool) -> Dataset:
    loaders = {"mnist": mnist.load, "fashion-mnist": mnist.load_fashion}
    return loaders[name](is_scaled)


def test_the_numbers_come_back_with_the_last_index_running_fastest() -> None:
    numbers = np.arange(30, dtype=np.uint8).reshape(2, 3, 5)
    array = mnist.read(idx(numbers))
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, numbers)
    assert array[1, 2, 4] == 29


def test_images_are_scaled_to_float32_from_0_to_1(name: str) -> None:
    dataset = load(name, is_scaled=True)
    for x, raw in ((dataset.x_train, IMAGES), (dataset.x_test, IMAGES[-40:])):
        assert x.dtype == np.float32
        assert set(x[raw == 255].tolist()) == {1}
        assert set(x[raw == 51].tolist()) == {np.float32(0.2)}
        np.testing.assert_array_equal(np.rint(x * 255), raw)


def test_raw_images_keep_every_pixel_and_the_order(name: str) -> None:
    x_train, y_train, x_test, y_test = load(name, is_scaled=False)
    assert x_train.dtype == x_test.dtype == np.uint8
    np.testing.assert_array_equal(x_train, IMAGES)
    np.testing.assert_array_equal(x_test, IMAGES[-40:])
    assert y_train.dtype == y_test.dtype == np.int64
    np.testing.assert_array_equal(y_train, np.arange(300) % 10)
    np.testing.assert_array_equal(y_test, np.arange(260, 300) % 10)


@pytest.mark.parametrize("is_scaled", [True, False])
def test_the_arrays_may_be_written_to(name: str, is_scaled: bool) -> None:
    assert all(array.flags.writeable for array in load(name, is_scaled))


def test_the_two_loaders_are_those_of_the_runs() -> None:
    assert LOADERS["mnist"] is mnist.load
    assert LOADERS["fashion-mnist"] is mnist.load_fashion


def real(source: Source) -> pytest.MarkDecorator:
    """Skip where the real files are not on this machine: tests download nothing."""
    is_here, where = whereabouts(source)
    return pytest.mark.skipif(not is_here, reason=f"{source.title} is {where}")


@real(MNIST)
def test_mnist_is_what_is_known_of_it() -> None:
    x_train, y_train, _, y_test = mnist.load()
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(y_train).tolist() == counts
    assert y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert y_test[:5].tolist() == [7, 2, 1, 0, 4]
    # The two numbers that everybody normalizes MNIST with.
    assert x_train.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert x_train.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)


@real(FASHION_MNIST)
def test_fashion_mnist_is_what_is_known_of_it() -> None:
    x_train, y_train, _, y_test = mnist.load_fashion()
    assert np.bincount(y_train).tolist() == [6000] * 10
    assert np.bincount(y_test).tolist() == [1000] * 10
    assert mnist.FASHION_CLASSES[y_train[0]] == "Ankle boot"
    assert x_train.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert x_train.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)
