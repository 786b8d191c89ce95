"""CIFAR-10, with archives of the same form that hold a few pictures."""

import hashlib
import io
import os
import pickle
import re
import tarfile
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stand_ins import COUNT, batch, cifar10_like, labels, needs, pictures, put, whole

from normbook.data import cifar10
from normbook.data.catalogue import CIFAR_10
from normbook.data.files import read

# --- what is read


def test_the_pickles_of_these_tests_are_those_of_python_2() -> None:
    # cPickle.dumps(batch, 2) of Python 2.7.18 with NumPy 1.13.3 gave bytes of this
    # hash for the pictures and labels number 0.
    known = "eb95376a794344a3eaa8811126298b109007208f93ba7cd39cdf42067a5da096"
    assert hashlib.sha256(batch(0)).hexdigest() == known


def test_numpy_itself_reads_the_same_from_such_a_pickle() -> None:
    with warnings.catch_warnings():  # of what Python 2 wrote, in some versions
        warnings.simplefilter("ignore")
        found = pickle.loads(batch(2), encoding="bytes")  # noqa: S301 - our own bytes
    x, y = cifar10._batch(batch(2))
    np.testing.assert_array_equal(x.reshape(COUNT, 3072), found[b"data"])
    assert y.tolist() == found[b"labels"]


def test_raw_pictures_keep_every_pixel_and_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("cifar-10", tmp_path, monkeypatch)
    dataset = cifar10.load(is_scaled=False)
    x = np.concatenate([dataset.x_train, dataset.x_test])
    y = np.concatenate([dataset.y_train, dataset.y_test])
    assert dataset.x_train.shape == (5 * COUNT, 3, 32, 32)
    assert dataset.x_test.shape == (COUNT, 3, 32, 32)
    for k in range(6):
        part = slice(k * COUNT, (k + 1) * COUNT)
        np.testing.assert_array_equal(x[part].reshape(COUNT, -1), pictures(k))
        assert y[part].tolist() == labels(k)


def test_an_array_in_the_order_of_fortran_is_read_as_numpy_reads_it() -> None:
    x, _ = cifar10._batch(batch(0, is_fortran=True))
    np.testing.assert_array_equal(x.reshape(COUNT, 3072), pictures(0))


# --- what is refused


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_a_command_is_refused_and_runs_nothing(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    evil = pickle.dumps({"data": Evil(f'echo > "{mark}"')}, protocol)
    put("cifar-10", tmp_path, monkeypatch, cifar10_like(data_batch_4=evil))
    with pytest.raises(pickle.UnpicklingError, match=r"it asks for \w+\.system"):
        cifar10.load()
    assert not mark.exists()
    pickle.loads(evil)  # noqa: S301 - our own bytes: they do what they must not do
    assert mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "builtins\neval",
        "__builtin__\neval",
        "numpy\nload",
        "numpy.core.multiarray\nscalar",
        "numpy\nndarray.tofile",
        "_codecs\nencode",
        "copyreg\n_reconstructor",
        "normbook.data.cifar10\n_Kept",
    ],
)
def test_a_pickle_that_asks_for_another_name_is_refused(name: str) -> None:
    content = b"\x80\x02c" + name.encode() + b"\n."
    asked = re.escape(name.replace("\n", "."))
    with pytest.raises(pickle.UnpicklingError, match=f"it asks for {asked}"):
        cifar10._batch(content)


def test_a_pickle_cannot_make_numpy_take_memory() -> None:
    # ndarray((10**9,)), which is a call of a name that is let through.
    content = b"\x80\x02cnumpy\nndarray\n" + whole(10**9) + b"\x85\x85R."
    tracemalloc.start()
    with pytest.raises(TypeError, match="_Kept"):
        cifar10._batch(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


# --- the real one


@needs(CIFAR_10)
def test_cifar_10_is_what_is_known_of_it() -> None:
    x_train, y_train, x_test, y_test = cifar10.load()
    assert x_train.shape == (50_000, 3, 32, 32)
    assert x_test.shape == (10_000, 3, 32, 32)
    assert np.bincount(y_train).tolist() == [5000] * 10
    assert np.bincount(y_test).tolist() == [1000] * 10
    assert [cifar10.CLASSES[k] for k in y_train[:3]] == ["frog", "truck", "truck"]
    # The numbers that everybody normalizes CIFAR-10 with.
    mean = x_train.mean(axis=(0, 2, 3), dtype=np.float64)
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)


@needs(CIFAR_10)
def test_the_classes_are_those_of_the_archive() -> None:
    packed = io.BytesIO(read(CIFAR_10, CIFAR_10.files[0]))
    with tarfile.open(fileobj=packed, mode="r:gz") as tar:
        handle = tar.extractfile("cifar-10-batches-py/batches.meta")
        assert handle is not None
        found = cifar10._Unpickler(handle, encoding="bytes").load()
    assert [name.decode() for name in found[b"label_names"]] == list(cifar10.CLASSES)
