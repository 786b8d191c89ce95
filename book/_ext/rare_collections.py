"""Look for garbage rarely: at the usual rate it takes a third of a build's time.

Pages in memory are millions of objects that stay until the end.
"""

from __future__ import annotations

import gc
from typing import Any

from sphinx.application import Sphinx

RARELY = 50_000, 20, 20  # see gc.set_threshold; the defaults are 700, 10, 10


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    gc.freeze()
    gc.set_threshold(*RARELY)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
