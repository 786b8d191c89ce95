"""MNIST and Fashion-MNIST: files of the same form, so the same tests."""

import gzip
import hashlib
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from normbook.data import fashion_mnist, idx, mnist
from normbook.data.catalogue import FASHION_MNIST, MNIST, DataFile, Source
from normbook.data.files import DATA, whereabouts

COUNTS = (60_000, 10_000)
NAMES = ("train-images", "train-labels", "t10k-images", "t10k-labels")


def packed(numbers: NDArray[np.uint8]) -> bytes:
    header = struct.pack(f">HBB{numbers.ndim}I", 0, 8, numbers.ndim, *numbers.shape)
    return gzip.compress(header + numbers.tobytes(), compresslevel=1)


def images(count: int) -> NDArray[np.uint8]:
    """Pictures whose first pixels are the number of the picture in base 256."""
    x = np.zeros((count, 28, 28), np.uint8)
    x[:, 0, 0], x[:, 0, 1] = np.divmod(np.arange(count), 256)
    return x


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Path]:
    """A data set of the form and size of MNIST, and the folder it lies in."""
    folder = tmp_path_factory.mktemp("data")
    files = []
    for i, name in enumerate(NAMES):
        count = COUNTS[i // 2]
        labels = (np.arange(count) % 10).astype(np.uint8)
        content = packed(labels if i % 2 else images(count))
        (folder / name).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        files.append(DataFile(name, len(content), sha256, urls=()))
    return Source("stand-in", "Stand-in", "none", "none", tuple(files)), folder


@pytest.fixture(params=[mnist, fashion_mnist], ids=["mnist", "fashion_mnist"])
def module(
    request: pytest.FixtureRequest,
    stand_in: tuple[Source, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> ModuleType:
    module: ModuleType = request.param
    monkeypatch.setattr(module, module.__name__.split(".")[-1].upper(), stand_in[0])
    monkeypatch.setenv(DATA, str(stand_in[1]))
    return module


def test_images_are_scaled_to_float32_from_0_to_1(module: ModuleType) -> None:
    x_train, _, x_test, _ = module.load()
    for x, count in ((x_train, 60_000), (x_test, 10_000)):
        assert x.shape == (count, 28, 28)
        assert x.dtype == np.float32
        assert x[255, 0, 1] == 1  # 255 of 255
        assert x[51, 0, 1] == np.float32(0.2)


def test_raw_images_keep_every_pixel_and_the_order(module: ModuleType) -> None:
    x_train, y_train, x_test, y_test = module.load(is_scaled=False)
    for x, y in ((x_train, y_train), (x_test, y_test)):
        assert x.dtype == np.uint8
        np.testing.assert_array_equal(x, images(len(x)))
        assert y.dtype == np.int64
        np.testing.assert_array_equal(y, np.arange(len(x)) % 10)


def test_another_count_of_images_is_refused(
    stand_in: tuple[Source, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA, str(stand_in[1]))
    with pytest.raises(idx.IdxError, match=r"must have the sizes \[59999, 28, 28\]"):
        idx.load_images(stand_in[0], is_scaled=True, counts=(59_999, 10_000))


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
    x_train, y_train, _, y_test = fashion_mnist.load()
    assert np.bincount(y_train).tolist() == [6000] * 10
    assert np.bincount(y_test).tolist() == [1000] * 10
    assert fashion_mnist.CLASSES[y_train[0]] == "Ankle boot"
    assert x_train.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert x_train.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)
