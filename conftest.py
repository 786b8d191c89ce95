"""How pytest runs the notebooks (nbval), for every folder of tests; what they share."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
from collections.abc import Generator, Iterator
from queue import Empty
from typing import Any

import nbval.kernel
import nbval.plugin
import numpy
import pictures
import pytest
from compilers import MISSING
from forked_kernels import Template, imported_by
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import local_provisioner
from kernels import Watch, prepare_environment, unix_socket

from normbook import drawn

prepare_environment()
# It runs where the pretend accelerator is: see `tests/test_pretend_accelerator.py`.
is_there = importlib.util.find_spec("pretend_accelerator")
collect_ignore = [] if is_there else ["tests/pretend/test_accelerator.py"]
collect_ignore += [f"src/normbook/layers/{module}.py" for module in MISSING]


class UnixSocketKernel(KernelManager):  # type: ignore[misc]
    """A kernel that is reached through a Unix socket."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**(unix_socket() | kwargs))


class WatchedKernel(nbval.kernel.RunningKernel):  # type: ignore[misc]
    """A kernel whose death or hang is noticed when it happens.

    nbval waits for a reply as long as a cell may take by the clock, and a kernel that
    was killed (out of memory, say) never replies. Here the wait is cut into seconds,
    after each of which the kernel must still be alive, and `timeout` means seconds of
    processor time, or of waiting without any.
    """

    def get_message(self, stream: str, timeout: float | None = None) -> Any:
        watch = None if timeout is None else Watch(self.km.provisioner.pid, timeout)
        step = 1.0 if timeout is None else min(max(timeout, 0.0), 1.0)
        while True:
            try:
                return super().get_message(stream, timeout=step)
            except Empty:
                if not self.is_alive():
                    raise RuntimeError(
                        "the kernel died: killed, or out of memory"
                    ) from None
                if watch is not None and watch.complaint():
                    raise


COMPARE = nbval.plugin.IPyNbCell.compare_outputs


def compare_outputs(cell: Any, test: Any, ref: Any, skip_compare: Any = None) -> bool:
    """Compare outputs as nbval does, and figures by what is drawn and by their look."""
    skipped = (*(skip_compare or cell.parent.skip_compare), drawn.MIME)
    is_same = COMPARE(cell, test, ref, skipped)
    stored, found = (
        [
            (o["data"].get("image/png", ""), o["data"][drawn.MIME])
            for o in outputs
            if drawn.MIME in o.get("data", {})
        ]
        for outputs in (ref, test)
    )
    if len(stored) != len(found):
        lines = [f"{len(stored)} records of figures are stored, {len(found)} drawn"]
    else:
        is_rough = drawn.ROUGH in cell.cell.metadata.get("tags", [])
        pairs = zip(stored, found, strict=True)
        lines = []
        for (picture, one), (new_picture, other) in pairs:
            lines += drawn.differences(one, other, is_rough=is_rough)
            apart = pictures.difference(picture, new_picture, is_rough=is_rough)
            lines += [apart] if apart else []
    if lines:
        cell.comparison_traceback += ["Figures differ:", *lines]
    return is_same and not lines


# The longest file is the first that a worker gets: begun late, it would compute alone
# in the end. Next are those that wait for other processes, while others compute.
EARLY = (
    "tests/experiments/test_records.py",
    "tests/lab/test_data_parallel.py",
    "tests/test_make_steps.py",
    "tests/test_pretend_accelerator.py",
    "tests/lab/",
    "tests/layers/test_sync_batch_norm.py",
    "tests/data/test_files.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let some files be the first that workers get."""

    def place(item: pytest.Item) -> int:
        begins = [item.nodeid.startswith(name) for name in EARLY]
        return begins.index(True) if any(begins) else len(EARLY)

    items.sort(key=place)


# Imported within functions: by ``torch.use_deterministic_algorithms``, and to read the
# digits. Each takes a second and a half of a processor.
SLOW = ("torch._inductor.config", "sklearn.datasets", "sklearn.model_selection")
# What programs import that compute together.
TOGETHER = (
    "cloudpickle",
    "fastjsonschema",
    "matplotlib.figure",
    "torch",
    "torch.distributed",
)
TEMPLATE = pytest.StashKey[Template]()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in what modules and tests are: a million objects that stay.

    It would take a quarter of the time that imports and collection take.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let kernels be copies of one process where there are several notebooks."""
    parents = {item.parent for item in session.items}
    files = [p for p in parents if isinstance(p, nbval.plugin.IPyNbFile)]
    modules = imported_by(file.nb for file in files)
    if len(files) < 2 or "torch" in modules:
        modules += [*SLOW, *TOGETHER]
    # Begun for the first copy, and shared by all workers.
    run = getattr(session.config, "workerinput", {}).get("testrunuid")
    template = Template(["ipykernel.kernelapp", *modules], run)
    session.config.stash[TEMPLATE] = template
    session.config.add_cleanup(template.close)
    if len(files) > 1 and hasattr(os, "pidfd_open"):
        local_provisioner.launch_kernel = template.launch


@pytest.fixture(autouse=True)
def _numpy_in_examples(doctest_namespace: dict[str, Any]) -> None:
    """Let the examples of docstrings use np, as those of NumPy do."""
    doctest_namespace["np"] = numpy


# Here tests start many programs that import torch, which takes seconds. Programs in
# fresh interpreters compute together in notebooks and in the doctest of `processes`.
FORKED = ("tests/lab/", "tests/layers/test_sync_batch_norm.py")


@pytest.fixture(scope="module", autouse=True)
def _forked_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the Python programs that some modules start be copies of one process.

    What they expect is what a CPU computes, on a machine with a GPU, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.nodeid.startswith(FORKED):
            patch.setenv("NORMBOOK_DEVICE", "cpu")
        if request.node.nodeid.startswith(FORKED) and hasattr(os, "pidfd_open"):
            patch.setattr(subprocess, "Popen", request.config.stash[TEMPLATE].popen)
        yield


@pytest.fixture(autouse=True)
def _no_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw figures without a screen, and close them, where tests draw some."""
    if not request.node.nodeid.startswith(("tests/experiments/", "tests/test_figures")):
        yield
        return
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Any:
    """Return the small record of the experiment that a file of tests is named after."""
    name = request.module.__name__.removeprefix("test_")
    small = importlib.import_module("small")  # beside the tests that ask for it
    small_of = {"batch_size": "batch_4", "conv_norms": "conv_norms_tuned"}
    return small.record(small_of.get(name, name))


nbval.kernel.KernelManager = UnixSocketKernel
nbval.plugin.RunningKernel = WatchedKernel
nbval.plugin.IPyNbCell.compare_outputs = compare_outputs


@pytest.fixture
def plain_style() -> Iterator[None]:
    """Draw without a window, and in no style that another test took on."""
    import matplotlib.pyplot as plt

    with plt.rc_context():
        plt.rcdefaults()
        plt.switch_backend("agg")
        yield
        plt.close("all")
