"""How light a colour is."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_rgb


def luminance(colour: Any) -> float:
    """Relative luminance of WCAG 2."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in to_rgb(colour)
    ]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))
