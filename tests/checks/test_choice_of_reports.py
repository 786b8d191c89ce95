"""Which of two reports on a layer with a condition is given."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from normbook.checks import norm_layer
from normbook.checks.layer.subject import Given
from normbook.checks.report import Finding, Report
from normbook.checks.slips.explanations import UNEXPLAINED

# By the call of the user it may be another norm for each example.
BY_CALL = Report(
    "unexplained norm", (Finding("it is a norm", None, other=UNEXPLAINED),)
)
RIGHT = Report("layer norm", (Finding("it is a norm", True),))


def test_a_report_that_explains_a_layer_is_taken_for_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def report(found: Any, layer: nn.Module, given: Given, call: Any) -> Report:
        return BY_CALL if call else RIGHT

    for name, stub in (
        ("_report_with", report),
        ("conditioned", lambda *_: object()),
        ("projects", lambda _: True),
    ):
        monkeypatch.setattr(norm_layer, name, stub)
    given = Given(None, None, None, 1)
    chosen = norm_layer._report_with_condition(nn.Identity(), given, lambda m, x: m(x))
    assert chosen is RIGHT
