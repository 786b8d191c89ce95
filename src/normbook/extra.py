"""What the book needs and a layer does not: the extra ``book`` of pyproject.toml."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from normbook.errors import MissingPackageError


@contextmanager
def of_the_book() -> Iterator[None]:
    """Say what to install where an import finds nothing.

    Formulas, layers, checks and folding need no such package; data that is downloaded,
    figures and recorded runs do.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"this part of normbook needs the package {error.name}, which is not "
            "installed; get all that the book needs: pip install 'normbook[book]'",
            name=error.name,
        ) from None
