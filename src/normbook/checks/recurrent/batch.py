"""Batch norms inside a recurrent layer, and what a norm makes of a bias before it."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from normbook.checks.calls import evaluating
from normbook.checks.claim import Claim, DoesNotApply, Fault, Note, NotTested, claim
from normbook.checks.copies import copy_of
from normbook.checks.recurrent.probe import EXACT, Probe, relative_change

BATCH_CLAIMS: list[Claim[Probe]] = []
# The unbiased variance of so many is 0.6 % from the biased one, at each step and norm.
MANY_EXAMPLES = 160
# Of averages by a momentum of .1, what still moves then has 10 times as far to go.
PASSES, FEW, STILL = 150, 5, 1e-4

_Slots = dict[str, dict[int, Tensor]]


def _slots(layer: nn.Module, steps: int) -> _Slots:
    """Return running statistics by name, and of each those of steps, by number."""
    found: _Slots = {}
    for name, value in layer.named_buffers():
        if value.is_floating_point() and re.search("mean|var|std|mu|sigma", name):
            if value.ndim > 1 and len(value) >= steps:
                found[name] = dict(enumerate(value.clone()))
            elif number := re.match(r"(.*?)(\d+)(\D*)$", name):
                before, k, behind = number.groups()
                slots = found.setdefault(f"{before}#{behind}", {})
                slots[int(k)] = value.clone()
            else:
                found[name] = {0: value.clone()}
    return found


@claim("training moves the running statistics of every step", BATCH_CLAIMS)
def moves(probe: Probe) -> Fault | Note | None:
    """Look which statistics one pass in training moves."""
    layer, steps = copy_of(probe.layer).train(), probe.sizes[0]
    before = _slots(layer, steps)
    if not before:
        raise DoesNotApply("no running statistics are held under a usual name")
    probe._replace(layer=layer).run(*probe.inputs())
    after = _slots(layer, steps)
    moved = {
        name: [k for k, value in slots.items() if not value.equal(after[name][k])]
        for name, slots in before.items()
    }
    cure = "Update the statistics of step t at step t, and normalize by them there."
    if still := [name for name, which in moved.items() if not which]:
        return Fault(
            f"One pass in training leaves {', '.join(still)} as they were: the running "
            "statistics there are never updated, and evaluation normalizes by what "
            "they began with.",
            cure,
        )
    of_steps = {n: which for n, which in moved.items() if len(before[n]) >= steps}
    longest = max(map(len, of_steps.values()), default=0)
    late = {n: which for n, which in of_steps.items() if len(which) < min(longest, 3)}
    if not probe.is_cell and (late or longest == 1):
        some = late or of_steps
        rest = f"; elsewhere those of {longest} steps move" if late else ""
        return Fault(
            f"There are statistics for each step, and a pass over {steps} steps moves "
            + "; ".join(
                f"of {n} those of step {', '.join(map(str, w))} alone"
                for n, w in some.items()
            )
            + f"{rest}. All steps share what should be that of one; those of the other "
            "steps are never updated: the time is not passed on to this norm.",
            cure,
        )
    if not of_steps and not probe.is_cell:
        return Note(
            "The running statistics are shared by all steps; Cooijmans et al. keep "
            "some for each step, as those of the first steps differ.",
            "statistics of all steps",
        )
    return None


def _alike(before: _Slots, after: _Slots) -> bool:
    """Return whether a pass moved the statistics of no step by much."""
    return all(
        relative_change(value, after[name][k]) < STILL
        for name, some in before.items()
        for k, value in some.items()
    )


@claim("evaluation gives what training gave, after many passes", BATCH_CLAIMS)
def converges(probe: Probe) -> Fault | str | None:
    """Train on one batch until the running statistics are its own."""
    steps = probe.sizes[0]
    layer = copy_of(probe.layer).train()
    slots = _slots(layer, steps)
    if not slots or any(len(some) < steps for some in slots.values()):
        raise DoesNotApply("there are no statistics of each step")
    trained = probe._replace(layer=layer)
    inputs = (
        probe.draw(steps, MANY_EXAMPLES, probe.sizes[2]),
        *probe.states(MANY_EXAMPLES),
    )
    after = _slots(layer, steps)
    for count in range(1, PASSES):
        out, before = trained.run(*inputs)[0], after
        after = _slots(layer, steps)
        if count > FEW and _alike(before, after):
            break
    else:
        raise NotTested("the running statistics move slowly", "Set momentum to 0.1.")
    seen = probe._replace(layer=evaluating(layer)).run(*inputs)[0]
    changes = [relative_change(a, b) for a, b in zip(out, seen, strict=True)]
    if max(changes) < 0.05:
        return f"They differ by {max(changes):.1%}."
    first = next(t for t, change in enumerate(changes) if change >= 0.05)
    return Fault(
        f"After {count} passes over one batch, when the statistics of each step move "
        f"no more, evaluation differs from training by {max(changes):.0%}, from step "
        f"{first}, from 0, on: it normalizes by other statistics than those that this "
        "step had in training.",
        "Keep mean and variance of the batch at step t, and take them at step t.",
    )


@claim("no norm takes away what a bias begins with", BATCH_CLAIMS)
def kept_biases(probe: Probe) -> Fault | Note | None:
    """Set each bias to 0: where nothing changes, it is lost."""
    inputs = probe.inputs()
    layer = (
        copy_of(probe.given).double().train(probe.is_batched or probe.layer.training)
    )
    torch.manual_seed(0)
    lost, redundant = {}, []
    for name, value in layer.named_parameters():
        if value.numel() % probe.units[1] or not value.any() or value.ndim > 2:
            continue
        start = value.detach().clone()
        outs = []
        for new in (start, 0 * start):
            value.data.copy_(new)
            outs.append(probe._replace(layer=copy_of(layer)).run(*inputs)[0])
        value.data.copy_(start)
        if relative_change(*outs) > EXACT or re.search(
            "weight$|gain|scale|gamma", name
        ):
            continue
        calm = probe._replace(layer=evaluating(copy_of(layer)))
        before = calm.run(*inputs)[0]
        dict(calm.layer.named_parameters())[name].data.normal_()
        if relative_change(before, calm.run(*inputs)[0]) < EXACT:
            continue  # it has no part in anything, which is told elsewhere
        values = {*start.flatten().tolist()}
        if len(values - {0.0}) == 1:
            lost[name] = (values - {0.0}).pop()
        else:
            redundant.append(name)
    texts = [f"{name}, which begins with {v:.3g} at some," for name, v in lost.items()]
    if texts:
        return Fault(
            f"{' and '.join(texts)} has no effect: with zeros in its place all outputs "
            "are the same. The norm behind subtracts the mean, and the bias with it: a "
            "forget bias, say, is lost.",
            "Add the bias behind the norm.",
        )
    if redundant:
        return Note(
            f"{', '.join(redundant)}: with zeros there every output in training is the "
            "same, as a norm behind subtracts the mean.",
            "bias before a norm",
        )
    return None


@claim("each element of a gain serves one feature of all examples", BATCH_CLAIMS)
def features_apart(probe: Probe) -> Fault | None:
    """Move one element: it must move the same units of each example at a step."""
    if not probe.is_single:
        raise DoesNotApply("there are several layers or directions")
    layer = copy_of(probe.layer)
    inputs, at = probe.inputs(), probe._replace(layer=layer)
    before = at.run(*inputs)[0][0]
    if before.shape != (probe.sizes[1], probe.units[0]):
        raise DoesNotApply("the outputs are not those of one cell")
    for name, value in (*layer.named_parameters(), *layer.named_buffers()):
        if value.ndim != 1 or value.numel() not in (probe.units[1], 4 * probe.units[1]):
            continue
        seen = []
        for j in range(0, value.numel(), max(value.numel() // 5, 1)):
            old = value[j].clone()
            value[j] += 0.5
            now = at.run(*inputs)[0][0]
            value[j] = old
            seen.append((now - before).abs() > 1e-12)
        # Of a right one an element moves the same for each example, or none.
        mixed = [v for v in seen if v.any() and not v.any(1).all()]
        if len(mixed) < 3:
            continue
        examples = [int(v.any(1).sum()) for v in mixed]
        return Fault(
            f"One element of {name} changes, at the first step, {min(examples)} to "
            f"{max(examples)} of {len(before)} examples alone, and up to "
            f"{max(int(v.sum(1).max()) for v in mixed)} units of one: features are "
            "mixed up with examples or steps, so that gain, bias and statistics belong "
            "to none of them, as by view or reshape in place of transpose.",
            "Exchange axes with transpose or permute in front of the norm, and back.",
        )
    return None
