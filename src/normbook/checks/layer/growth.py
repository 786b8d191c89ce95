"""Why the output of what should be a norm grows with its input."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from normbook.checks.tensors import other_axes

# A norm forgets the scale; what does not normalize grows as the input does.
SCALE, MUCH = 50, 10
NEAR = 1e-3


def why_it_grows(output: Callable[[Tensor], Tensor], x: Tensor) -> str:
    """Say which part of the output grows, or what is added to it; or nothing."""
    y, large = output(x), output(SCALE * x)
    for axis in range(1, x.dim()):
        others = other_axes(x.dim(), axis)
        grows = large.std(others) > MUCH * y.std(others)
        if 0 < int(grows.sum()) < len(grows):
            places = grows.nonzero().flatten().tolist()
            which = ", ".join(map(str, places[:8])) + ", ..." * (len(places) > 8)
            return f"places {which} of axis {axis} are not normalized, others are"
    rest = (large - y) / (SCALE - 1)
    share = (rest * x).sum() / x.square().sum()
    if not float((rest - share * x).abs().max()) < NEAR * float(rest.abs().max()):
        return ""
    if float((y - share * x).abs().max()) < NEAR * float(y.abs().max()):
        return f"it gives x back, times {share:.3g}"
    return f"x itself, times {share:.3g}, is added to what is normalized, a residual"
