"""The code reference without what only the machine has to say.

A field of a named tuple without words of its own stands in the signature already; of a
default that is a class, the name is enough, and of one that is made anew that there is
one.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

BARE = "Alias for field number"  # what Python says of a field without words
CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")


def skip_field(
    app: Sphinx, what: str, name: str, obj: object, is_skipped: bool, options: object
) -> bool | None:
    """Leave out a field whose docstring is only "Alias for field number 0"."""
    return True if str(obj.__doc__).startswith(BARE) else None


def name_classes(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str, str | None] | None:
    """Write ``norm=Linear`` for ``norm=<class '...Linear'>``, ... for a factory."""
    if signature is None:
        return None
    return CLASS.sub(r"\1", signature).replace("<factory>", "..."), returned


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("autodoc-skip-member", skip_field)
    app.connect("autodoc-process-signature", name_classes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
