"""Tests that need the pretend accelerator: `test_pretend_accelerator` runs them."""

import torch

if torch._C._get_privateuse1_backend_name() != "pretend":
    collect_ignore_glob = ["test_*.py"]
