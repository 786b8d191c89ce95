"""Nudged gradients differ in their last bits, and only where they begin at 1."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import torch
from torch.autograd import grad

x = torch.tensor([1.0, 3.0], requires_grad=True)
x.square().sum().backward()
print((x.grad / 2 - x.detach()).tolist())
print((grad(x.square().sum(), x)[0] / 2 - x.detach()).tolist())
print((grad([x.sum(), x.prod()], [x], [None, torch.tensor(0.0)])[0] - 1).tolist())
print((grad(x.square(), x, torch.ones(2))[0] / 2 - x.detach()).tolist())
print((grad(x.sum(), x, torch.tensor(1.0))[0] - 1).tolist())
"""


def printed(units: int) -> list[list[float]]:
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}/tools/nudge", "NORMBOOK_NUDGE": str(units)
    }  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_a_gradient_begins_with_some_units_more_unless_one_is_given() -> None:
    one = 2.0**-23
    nudged, others = printed(8), [[0.0, 0.0]] * 2
    assert nudged == [[8 * one, 24 * one]] * 2 + [[8 * one] * 2] + others
    assert printed(0) == [[0.0, 0.0]] * 5
