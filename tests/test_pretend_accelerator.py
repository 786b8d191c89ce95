"""The pretend accelerator does what a GPU does, in a process that has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="needs a torch that takes a device written in Python",
)
def test_it_does_what_a_gpu_does_where_it_is_registered() -> None:
    inside = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/tools/pretend:{ROOT}/src"}
    found = subprocess.run(
        [*inside, "tests/pretend/test_accelerator.py"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
