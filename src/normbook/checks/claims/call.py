"""Claims about calls: the input that they get, its memory, and a second one."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

from normbook.checks.calls import LayerError, backward, call, run
from normbook.checks.claim import Claim, Fault, claim
from normbook.checks.claims.another_way import computed
from normbook.checks.claims.output import need_right_statistics
from normbook.checks.copies import copy_of, in_dtype
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import TOLERANCE, draw, largest

CALL_CLAIMS: list[Claim[Subject]] = []

# Of more values one more look takes too long.
LARGE_INPUT = 100_000


@claim("the input is left as it is", CALL_CLAIMS)
def input_is_kept(subject: Subject) -> Fault | None:
    """Compare the input before and after, and what the backward pass is given."""
    # float() copies x, but where it is in float32 already.
    for dtype in dict.fromkeys((subject.dtype, subject.given_dtype)):
        x = subject.draw(0).to(dtype)
        before = x.clone()
        with torch.no_grad():
            run(in_dtype(subject.fresh(), dtype), x)
        if not torch.equal(x, before):
            only = f", if that is {dtype}" if dtype != subject.dtype else ""
            return Fault(
                f"the layer writes into its input{only}, which others may still need.",
                "Use x = x - mean in place of x -= mean.",
            )
        if x.numel() < LARGE_INPUT and _overwrites(subject, x.requires_grad_()):
            return Fault(
                "the backward pass writes into the gradient that it is given, which "
                "others may still need: a residual path beside the layer gets a wrong "
                "one.",
                "Make a new tensor for the gradient by x: no mul_ or sub_ on grad_"
                "output.",
            )
    return None


def _overwrites(subject: Subject, x: torch.Tensor) -> bool:
    """Return whether the backward pass writes into the gradient that it is given."""
    with suppress(LayerError):  # told by the claims about gradients
        y = call(subject.fresh().requires_grad_(), x)
        dl_dy = torch.linspace(1, 2, y.numel(), dtype=y.dtype).view_as(y)
        given: list[tuple[torch.Tensor, torch.Tensor]] = []
        if y.requires_grad:
            y.register_hook(lambda g: given.append((g, g.clone())))  # type: ignore[no-untyped-call]
        backward(y, dl_dy)
        return not all(grad.equal(before) for grad, before in given)
    return False


@claim("the memory layout of the input does not matter", CALL_CLAIMS)
def strides(subject: Subject) -> Fault | None:
    """Give the same numbers with the last axis first in memory, as after transpose."""
    x = draw(subject.small, 22).to(subject.dtype)
    turned = x.movedim(1, -1).contiguous().movedim(-1, 1)
    if len(subject.shape) == 2:
        turned = x.T.contiguous().T
    expected = call(subject.fresh(), x).detach()
    try:
        y = run(subject.fresh(), turned).detach()
    except LayerError as error:
        return Fault(
            f"for an input that is not contiguous, as after transpose, the layer "
            f"raises {error}.",
            "Use reshape in place of view.",
        )
    if largest(y - expected) < TOLERANCE:
        return None
    return Fault(
        "the same numbers with other strides, as after transpose, give another output, "
        f"by up to {largest(y - expected):.2g}.",
        "Index by axes, not by memory: no as_strided, no data_ptr.",
    )


@claim("a second call gives what a first one gives", CALL_CLAIMS)
def second_call(subject: Subject) -> Fault | None:
    """Call one layer on two batches of different length; go back through both."""
    need_right_statistics(subject)
    first = draw(subject.small, 23).to(subject.dtype).requires_grad_()
    second = draw(subject.sized(subject.small[0] // 2), 24).to(subject.dtype)
    for is_training in (True, False) if subject.claims_no_statistics else (True,):
        fresh, layer = (subject.fresh().requires_grad_() for _ in range(2))
        fresh.train(is_training), layer.train(is_training)
        early, late = call(layer, first), call(layer, second)
        is_quick = first.numel() < LARGE_INPUT
        recorded = None
        if is_quick and not is_training:
            recorded = call(copy_of(fresh), second)
        with torch.set_grad_enabled(is_training):  # without, memory may be kept
            alone = call(fresh, second)
        recorded = alone if recorded is None else recorded
        change = largest((alone - recorded).detach())
        if not is_training and change > TOLERANCE:
            what = computed(subject, second, alone, is_training=False, records=False)
            return Fault(
                "the output depends on whether gradients are recorded, by up to "
                f"{change:.2g}, in evaluation{f': {what}' if what else ''}.",
                "Compute the same with gradients and without.",
            )
        change = largest((late - recorded).detach())
        if is_training and is_quick and change < TOLERANCE:
            change = _kept(subject, layer, first)
        if change > TOLERANCE:
            return Fault(
                f"after a call on another batch the output changes by {change:.2g}: "
                "something of the first call is kept and used.",
                "Keep nothing of a call on self but running statistics.",
            )
        try:
            for y in (early, late):
                backward(y, torch.ones_like(y))
        except LayerError as error:
            return Fault(
                f"the backward pass of two calls in a row raises {error}: what "
                "the first keeps for it, the second overwrites.",
                "Write nothing in place that a backward pass needs, and keep no graph.",
            )
    before = alone.clone()
    with torch.no_grad():
        call(fresh, -second)
    if alone.equal(before):
        return None
    return Fault(
        "a call overwrites the output of the one before: both are the same memory.",
        "Return a new tensor from each call, not a buffer that is kept.",
    )


def _kept(subject: Subject, layer: nn.Module, first: torch.Tensor) -> float:
    """Return how a batch of the size of the one before differs from its own output."""
    other = draw(tuple(first.shape), 26).to(first.dtype)
    layer = copy_of(layer)
    call(layer, first.detach())
    expected = call(subject.fresh().requires_grad_(), other)
    return largest((call(layer, other) - expected).detach())
