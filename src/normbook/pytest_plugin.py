"""A fixture of pytest, there wherever the package is installed.

In a test file of your own, with nothing to import::

    def test_my_norm(assert_norm_layer):
        assert_norm_layer(MyNorm(16), shape=(32, 16))
"""

from __future__ import annotations

from typing import Any, Protocol

import pytest


class AssertNormLayer(Protocol):
    """The type of the fixture, for tests that are checked by types."""

    def __call__(
        self, layer: Any, shape: tuple[int, ...] | None = None, **options: Any
    ) -> None:
        """Take what :func:`~normbook.checks.check_norm_layer` does, but ``quiet``."""


@pytest.fixture
def assert_norm_layer() -> AssertNormLayer:
    """Fail, with the report, where a layer has a bug that the book's tests find.

    What is other on purpose passes if ``allow`` names it.
    """
    from normbook.checks import check_norm_layer  # torch, only where it is asked for

    def check(layer: Any, shape: tuple[int, ...] | None = None, **options: Any) -> None:
        __tracebackhide__ = True
        check_norm_layer(layer, shape, quiet=True, **options).raise_if_failed()

    return check
