"""The errors of the package: one root, and each also of Python's usual type.

``except NormbookError`` catches what the package raises by intention but for a wrong
argument, which is a ``TypeError`` or ``ValueError`` as everywhere. An error that
carries more than its message stands beside what it carries:
:class:`normbook.layers.folding.FoldingError`. What is raised and caught within one
part, as between the checks of a layer, is no part of the tree.
"""

from __future__ import annotations


class NormbookError(Exception):
    """The root of them all; the message says the rule, what came, and the cure."""


class GradientMismatchError(NormbookError, AssertionError):
    """A gradient differs from the central differences of its function."""


class DataError(NormbookError, RuntimeError):
    """The data cannot be had; the message says where it was looked for."""


class RecordError(NormbookError, ValueError):
    """A file is no record, or a record lacks what is asked of it."""


class ProcessError(NormbookError, RuntimeError):
    """A process has raised, died, or not answered in time; the message says which."""


class MissingPackageError(NormbookError, ModuleNotFoundError):
    """A package that only the book needs is not installed; says which."""


class RunError(NormbookError, RuntimeError):
    """A run cannot be started or continued; the message says why and the cure."""


class OtherProcessError(RunError):
    """Another process of a run has failed, and says itself why."""
