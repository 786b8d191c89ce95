"""What a colour means in the whole book, and how each method is called.

Batch norm is blue and solid, layer norm orange and dashed, other methods green and
dash-dotted, a reference purple and dotted, no normalization grey.
"""

from __future__ import annotations

from typing import Any, Literal

Kind = Literal["batch", "layer", "other", "reference", "none"]

STYLES: dict[Kind, dict[str, Any]] = {
    "batch": {"color": "#0072B2", "linestyle": "-"},
    "layer": {"color": "#D55E00", "linestyle": "--"},
    "other": {"color": "#009E73", "linestyle": "-."},
    "reference": {"color": "#CC79A7", "linestyle": ":"},
    "none": {"color": "#595959", "linestyle": (0, (5, 1))},
}
# Kind of line and label of each method, by its name in the settings of experiments.
LOOKS: dict[str, tuple[Kind, str]] = {
    "none": ("none", "no normalization"),
    "batch_norm": ("batch", "batch norm"),
    "noisy_batch_norm": ("other", "batch norm, then noise"),
    "unbiased_batch_norm": ("other", "batch norm, unbiased"),
    "layer_norm": ("layer", "layer norm"),
    "layer_norm_per_place": ("layer", "layer norm, each place"),
    "rms_norm": ("other", "RMS norm"),
    "instance_norm": ("other", "instance norm"),
    "group_norm": ("other", "group norm"),
    "group_norm_ws": ("other", "group norm, weights\nstandardized"),
    "lp_norm": ("other", "$\\ell_p$ norm"),
}


def looks(*methods: str) -> dict[str, tuple[Kind, str]]:
    """Return the looks of these methods, in their order."""
    return {method: LOOKS[method] for method in methods}
