"""Tests for a layer or a measure that somebody else wrote.

:func:`check_norm_layer` takes any torch module that normalizes, runs every test of the
book that applies to it, and prints which fail and why.
:func:`check_smoothness_measure` does so for a function that measures how smooth a loss
is.
"""

from normbook.checks.measures import Measure, check_smoothness_measure
from normbook.checks.norm_layer import check_norm_layer

__all__ = ["Measure", "check_norm_layer", "check_smoothness_measure"]
