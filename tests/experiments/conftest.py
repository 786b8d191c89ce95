"""Figures are drawn without a screen, and closed."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")
