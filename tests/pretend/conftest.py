"""Tests that need the pretend accelerator.

`make test` runs the first file in a process that has it, `make pretend` all of them.
"""

import sys
from pathlib import Path

import torch

TESTS = Path(__file__).resolve().parent.parent
sys.path += [str(TESTS), str(TESTS / "layers"), str(TESTS / "experiments")]
if torch._C._get_privateuse1_backend_name() != "pretend":
    collect_ignore_glob = ["test_*.py"]
