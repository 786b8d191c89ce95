"""MNIST and Fashion-MNIST: files of the same form, so the same tests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stand_ins import IMAGES, idx, needs, put

from normbook.data import mnist
from normbook.data.catalogue import FASHION_MNIST, MNIST
from normbook.lab.runner import LOADERS


@pytest.fixture(params=["mnist", "fashion-mnist"])
def name(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    return put(request.param, tmp_path, monkeypatch).name


def test_the_numbers_come_back_with_the_last_index_running_fastest() -> None:
    numbers = np.arange(30, dtype=np.uint8).reshape(2, 3, 5)
    array = mnist.read(idx(numbers))
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, numbers)


def test_raw_images_keep_every_pixel_and_the_order(name: str) -> None:
    load: Any = LOADERS[name]
    x_train, y_train, x_test, y_test = load(is_scaled=False)
    np.testing.assert_array_equal(x_train, IMAGES)
    np.testing.assert_array_equal(x_test, IMAGES[-40:])
    np.testing.assert_array_equal(y_train, np.arange(300) % 10)
    np.testing.assert_array_equal(y_test, np.arange(260, 300) % 10)


def test_the_two_loaders_are_those_of_the_runs() -> None:
    assert LOADERS["mnist"] is mnist.load
    assert LOADERS["fashion-mnist"] is mnist.load_fashion


@needs(MNIST)
def test_mnist_is_what_is_known_of_it() -> None:
    x_train, y_train, _, y_test = mnist.load()
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(y_train).tolist() == counts
    assert y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert y_test[:5].tolist() == [7, 2, 1, 0, 4]
    # The two numbers that everybody normalizes MNIST with.
    assert x_train.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert x_train.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)


@needs(FASHION_MNIST)
def test_fashion_mnist_is_what_is_known_of_it() -> None:
    x_train, y_train, _, y_test = mnist.load_fashion()
    assert np.bincount(y_train).tolist() == [6000] * 10
    assert np.bincount(y_test).tolist() == [1000] * 10
    assert mnist.FASHION_CLASSES[y_train[0]] == "Ankle boot"
    assert x_train.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert x_train.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)
