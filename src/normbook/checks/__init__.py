"""Tests for a layer, a model or a measure that somebody else wrote.

Each prints which tests fail and why, unless it is called with ``quiet=True``.
"""

from normbook.checks.measures import Measure, check_smoothness_measure
from normbook.checks.norm_layer import check_norm_layer
from normbook.checks.whole_model import Audit, Harm, audit

__all__ = [
    "Audit",
    "Harm",
    "Measure",
    "audit",
    "check_norm_layer",
    "check_smoothness_measure",
]
