"""Look at every norm of a model, at the shapes and with the data that it meets."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from normbook.checks.calls import LayerError, same_generators
from normbook.checks.copies import check_that_none_waits, unchanged
from normbook.checks.model import (
    axes,
    flow,
    functional,
    modes,
    reach,
    statistics,
    use,
    values,
)
from normbook.checks.model.harms import LEVELS, Audit, Harm, place_of
from normbook.checks.model.runs import tensors_in
from normbook.checks.model.subject import Subject

# In this order; what batch norms in several places are told is not told again.
TESTS: tuple[Callable[[Subject], Iterator[Harm]], ...] = (
    statistics.unsound,
    values.broken,
    use.unregistered,
    use.anew,
    use.uncalled,
    use.dotted,
    modes.unreached,
    functional.as_functions,
    modes.moved,
    modes.named_twice,
    flow.lost,
    flow.ungraded,
    flow.overwritten,
    flow.doubled,
    flow.unbounded,
    statistics.mixed,
    axes.neighbours,
    axes.not_features,
    axes.ambiguous,
    reach.ahead,
    reach.graphs,
    reach.lengths,
    axes.one_value,
    axes.read_as_one,
    values.kernels,
    statistics.shared,
    statistics.several,
    statistics.gaps,
    statistics.dropped,
    statistics.tracked,
    statistics.frozen,
    axes.padding,
    values.small_variances,
    values.few_values,
    values.one_by_one,
    values.around_zero,
    values.unfilled,
    values.silent,
)


def audit(model: nn.Module, x: Any, *, quiet: bool = False) -> Audit:
    r"""Say what the norms of a model do wrong, or may do wrong, with the data x.

    Each class and setting of norm is checked once by
    :func:`~normbook.checks.check_norm_layer`. Then the model is run on x in training
    and in evaluation mode, and each norm is looked at where it stands: whether it
    normalizes features, how far its running statistics are from those of x and what
    that changes, whether it is frozen in training mode or will be, how large eps is
    beside the variances, over how many values a mean is, whether padding is among them,
    which gains are 0, whether one batch norm stands in places whose inputs differ, or
    two write into the same running statistics, whether dropout in front makes its
    variances larger, which norms are never called, hold NaN or make it, and whether an
    example depends on its neighbours in evaluation. Norms in lists of Python, which
    eval() does not reach, and weights of convolutions that are standardized for each
    input channel, or not divided by their deviation, are found.

    A backward pass says what becomes of the output of each norm: whether it is used, or
    undone by a mean, whether a gradient reaches it, whether recomputing moves running
    statistics twice. So do blocks without their weights: whether what they add is added
    to x or to what was normalized. Told, too, are norms in another mode than the model,
    a norm under several names, batches in parts or of several inputs, and norms folded
    and applied again; norms that see later steps where the model itself sees none, or
    several graphs as one; lengths along positions. Biases in front of a norm and weight
    decay are left to general linters such as torch-audit.

    All runs are those of a copy, without hooks but those that are methods of its parts,
    on the CPU or where the model is: the model itself, its modes and the random numbers
    stay as they are. Torch's transformers take no fast path meanwhile.

    Parameters
    ----------
    x : tensor, tuple, dict or dataclass
        One batch of inputs: the argument, all arguments, or all named ones. Use real
        data, some 16 examples or more: what is said of statistics is said of x.

    Raises
    ------
    TypeError
        If ``model`` is no module, holds one that has no hash, or cannot be copied.
    ValueError
        If the model holds neither a norm nor a convolution that normalizes its weights,
        or raises on x.

    Notes
    -----
    Source: book, chapters *Training and evaluation* and *Choosing axes*.

    Examples
    --------
    >>> model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.LayerNorm(8))
    >>> _ = audit(model, torch.randn(16, 2, 8))
    Sequential: 1 norm; 1 wrong, 0 at risk, 0 to note.
    WRONG  1: normalizes positions, not features
           axis 2 of its input changes with the number of positions in x, and
           gain and bias differ along it.
           Cure: Move the features to the axis that the norm takes for them.
           Book: Choosing axes.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {model!r:.80}.")
    if unhashable := _unhashable(model):
        raise TypeError(
            "the parts of a model must be hashable, as torch's parameters() and eval() "
            f"need it, got a {unhashable}, whose class has __eq__ alone; add "
            "__hash__ = nn.Module.__hash__ to it."
        )
    check_that_none_waits(model)
    model = getattr(model, "_orig_mod", model)  # as it was before torch.compile
    if any(t.dim() and not len(t) for t in tensors_in(x)):
        raise ValueError("x must hold examples, got a batch of 0; pass one of some 16.")
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = torch.inference_mode(False), torch.no_grad(), _no_fast_path()
        with ExitStack() as stack:
            for one in (*plain, unchanged(model), same_generators()):
                stack.enter_context(one)
            report = _report(Subject(model, x))
    if not quiet:
        print(report)
    return report


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Let torch's transformers call their norms, on tensors that are not nested."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _unhashable(part: nn.Module) -> str | None:
    """Name the class of the first part that torch cannot list."""
    if type(part).__hash__ is None:
        return type(part).__name__
    parts = (one for one in part._modules.values() if one is not None)
    return next(filter(None, map(_unhashable, parts)), None)


def _report(subject: Subject) -> Audit:
    """Make all tests, and sort what they found by harm."""
    alike: dict[Any, list[Harm]] = {}
    for test in TESTS:
        try:
            for harm in test(subject):
                key = harm.level, harm.what, harm.cure
                alike.setdefault(key, []).append(harm)
        except Exception as error:  # noqa: BLE001 - what it is, is told
            cause = error.__cause__ or error
            what = (test.__doc__ or test.__name__).splitlines()[0].rstrip(".")
            told = f"the audit raised {type(cause).__name__}: {cause}"
            if isinstance(cause, LayerError):
                told = f"the model raised {cause}"
            reason = textwrap.shorten(told, 240).rstrip(".")
            subject.untested.append(f"{what[0].lower()}{what[1:]}, as {reason}.")
    harms = []
    for group in alike.values():
        worst = max(group, key=lambda harm: harm.number)
        place = place_of([harm.place for harm in group], worst.place)
        reason = worst.reason
        if len({harm.reason for harm in group}) > 1:
            reason += f" So it is at {place.partition(' and ')[0]}."
        harms.append(worst._replace(place=place, reason=reason))
    harms.sort(key=lambda harm: (LEVELS.index(harm.level), -harm.number))
    return Audit(
        subject.name, len(subject.names), tuple(harms), tuple(subject.untested)
    )
