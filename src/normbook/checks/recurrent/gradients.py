"""The backward pass of a recurrent layer, and which parameters it reaches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress

import torch
from torch import Tensor

from normbook.checks.calls import LayerError, of_the_layer
from normbook.checks.claim import Claim, Fault, claim
from normbook.checks.recurrent.probe import EXACT, Probe, relative_change

BIASES = "no bias is there twice"
REDUNDANT = "redundant biases"
GRADIENTS = "the gradients are those of the outputs"
USED = "every parameter has a part in the outputs"
ZEROS = "a state of zeros gives finite outputs and gradients"

MANY_STEPS = 40
# Central differences of fourth order: they err by 1e-8 or less, but where a sigma is
# small, as of a few units, which a smaller step shows.
STEPS_OF = (1e-4, 1e-5)
DIFFERENCES = ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12))
SLOPES = 1e-5
ROUNDING = 1e-4

GRADIENT_CLAIMS: list[Claim[Probe]] = []


@claim(BIASES, GRADIENT_CLAIMS)
def redundant_biases(probe: Probe) -> Fault | None:
    """Look for parameters whose gradients are alike."""
    values = dict(probe.layer.named_parameters())
    _, slopes = _loss_and_slopes(probe, *_inputs(probe), values.values())
    flat = {name: s.flatten() for name, s in zip(values, slopes, strict=True)}
    groups: list[list[str]] = []
    for name, slope in flat.items():
        for group in groups:
            other = flat[group[0]]
            if other.shape == slope.shape and relative_change(other, slope) < EXACT:
                group.append(name)
                break
        else:
            groups += [[name]] if slope.any() else []
    twins = [group for group in groups if len(group) > 1]
    if not twins:
        return None
    count = max(map(len, twins))
    return Fault(
        "; ".join(f"{', '.join(g[:-1])} and {g[-1]}" for g in twins) + " have the "
        "same gradient, as they are added to the same place. SGD moves their sum "
        f"{count} times as fast as one alone. (The formula of Ba et al. has b, beta_h "
        "and beta_x; one of them can say all.)",
        f"Keep one of the {count}, or divide its learning rate by {count}.",
        REDUNDANT,
    )


def unused_parameters(probe: Probe) -> list[str]:
    """Return the names of the parameters that have no part in the outputs.

    Some are those of late steps, or of the states that are made where none are given;
    not every layer takes as many steps, or none.
    """
    held = dict(probe.layer.named_parameters())
    names = [*held]
    longest = 1 if probe.is_cell else MANY_STEPS
    runs = [(count, probe.takes_states) for count in (probe.sizes[0], longest)]
    runs += [] if probe.is_cell else [(2, False)]  # where the states are learned
    for count, takes_states in runs:
        other = probe._replace(
            sizes=(count, *probe.sizes[1:]), takes_states=takes_states
        )
        with torch.enable_grad(), suppress(LayerError):
            _, slopes = _loss_and_slopes(other, *_inputs(other), held.values())
            some = [n for n, s in zip(held, slopes, strict=True) if not s.any()]
            names = [name for name in names if name in some]
        if not names:
            break
    return names


@claim(GRADIENTS, GRADIENT_CLAIMS)
def gradients(probe: Probe) -> Fault | str:
    """Compare with central differences along a direction of each."""
    inputs = _inputs(probe)
    by = dict(zip(("x", "h_0", "c_0"), inputs, strict=True))
    by |= dict(probe.layer.named_parameters())
    _, slopes = _loss_and_slopes(probe, *inputs, by.values())
    wrong, worst = [], 0.0
    # Of a gradient that is 0, as of a bias in front of a batch norm, rounding is left.
    least = ROUNDING * max(float(slope.norm()) for slope in slopes)
    for (name, value), slope in zip(by.items(), slopes, strict=True):
        direction = probe.draw(*value.shape).sign()
        start = value.detach().clone()
        seen = float((slope * direction).sum())
        error = expected = math.inf
        for step in STEPS_OF:
            expected = 0.0
            with torch.no_grad():
                for steps, weight in DIFFERENCES:
                    value.copy_(start + steps * step * direction)
                    expected += weight * float(_loss(probe, *inputs)) / step
                value.copy_(start)
            # An unlucky direction may lie across the gradient.
            scale = max(abs(seen), abs(expected), 1e-3 * float(slope.norm()), least)
            error = min(error, abs(seen - expected) / scale if scale else 0.0)
            if error < SLOPES:
                break
        worst = max(worst, error)
        if not error < SLOPES:
            wrong.append(f"{name}: {seen:.4g} for {expected:.4g}")
    if not wrong:
        return f"Central differences agree to {worst:.0e}."
    if fault := _cut(probe, {text.split(":")[0] for text in wrong}):
        return fault
    where = f" {_within_a_step(probe)}"
    if "right" in where and (fault := _detached_one(probe)):
        return fault
    of = dict(zip(by, slopes, strict=True))
    none = [text.split(":")[0] for text in wrong if not of[text.split(":")[0]].any()]
    if none:
        where += f" No gradient at all reaches {', '.join(none)}."
    return Fault(
        "Along a random direction the gradient and the central differences of the "
        f"loss are: {'; '.join(wrong)}: the outputs are one thing, the gradients "
        f"another.{where.rstrip()}",
        "Let autograd go through mean and variance, too; test a backward pass that is "
        "written by hand with torch.autograd.gradcheck.",
    )


def _slope(value: Tensor, *by: Tensor) -> list[Tensor | None]:
    """Return gradients, None where there is no graph."""
    if not value.requires_grad:
        return [None] * len(by)
    total = value.square().sum()
    return [*torch.autograd.grad(total, by, retain_graph=True, allow_unused=True)]


def _cut(probe: Probe, wrong: set[str]) -> Fault | None:
    """Find between which steps, or layers, no gradient goes, and of which state."""
    x, h, c = _inputs(probe)
    out, first, _ = probe.run(x, h, c)
    steps = range(len(x))
    slopes = [_slope(o, x) for o in out[..., : probe.units[0]]]
    reached = [[g is not None and bool(g[s].any()) for s in steps] for (g,) in slopes]
    given = zip(("h_0", "c_0"), _slope(out, h, c), strict=True)
    names = [n for n, g in given if probe.takes_states and n in wrong and g is None]
    told = f" No gradient reaches {' or '.join(names)}." if names else ""
    if not reached[0][0]:
        (slope,) = _slope(first, x)
        where = "x"
        if slope is not None and slope.any():
            where = "the first layer from those above: what they get is detached"
        return Fault(
            f"No gradient of the output reaches {where}; the outputs depend on it.",
            "Detach nothing between the layers.",
        )
    bounds = [
        b
        for b in steps[1:]
        if not any(reached[t][s] for t in steps[b:] for s in range(b))
    ]
    if bounds:
        every = len(bounds) == len(steps) - 1
        at = "each step" if every else f"step {', '.join(map(str, bounds))}, from 0,"
        text = "is none" if every else "is none beyond them"
        return Fault(
            f"In the graph the states are cut off (detached) in front of {at}: the "
            "gradient of an output to x of the steps before it is 0, though it depends "
            f"on them. Backpropagation through time there {text}: nothing is learned "
            f"through time.{told}",
            "Detach states between sequences, if at all, and not inside the loop.",
            "" if every else "truncated backpropagation",
        )
    if names and wrong <= {"h_0", "c_0"}:
        return Fault(
            f"{told[1:-1]}, on which the outputs depend: the states that are given are "
            "cut off from the graph; between the steps of one call they are not.",
            "Detach states between sequences, if at all, and not inside the loop.",
            "truncated backpropagation",
        )
    return None


def _detached_one(probe: Probe) -> Fault | None:
    """Say that one state of both is detached between steps."""
    x, h, c = _inputs(probe)
    middle, rest = x.detach()[:1].requires_grad_(), x.detach()[1:2]
    if not (probe.is_single and probe.takes_states):
        return None
    (whole,) = _slope(probe.run(torch.cat([middle, rest]), h, c)[0][1], middle)
    _, h_1, c_1 = probe.run(middle, h, c)
    for name, pair in (("h", (h_1.detach(), c_1)), ("c", (h_1, c_1.detach()))):
        (one,) = _slope(probe.run(rest, *pair)[0][0], middle)
        if one is None or whole is None:
            continue
        if relative_change(whole, one) < EXACT:
            return Fault(
                f"From a step to the one before it no gradient goes through {name}: "
                f"{name} is detached between the steps. The gradient is that of a loop "
                f"that carries {name} as a constant.",
                "Detach states between sequences, if at all, and not inside the loop.",
            )
    return None


def _within_a_step(probe: Probe) -> str:
    """Say which gradient of one step is wrong: of h_1 or c_1, to x, h_0 or c_0."""
    x, h, c = _inputs(probe)
    x = x.detach()[:1].requires_grad_()
    texts = []
    values = {"x": x, "h_0": h, "c_0": c}
    for name, place in (("h_1", 1), ("c_1", 2)):
        weights = probe.draw(*probe.run(x, h, c)[place].shape)
        for of, value in values.items():
            ways = probe.draw(*value.shape)
            loss = (probe.run(x, h, c)[place] * weights).sum()
            slope = None
            if loss.requires_grad:
                (slope,) = torch.autograd.grad(loss, value, allow_unused=True)
            with torch.no_grad():
                expected = 0.0
                for steps, weight in DIFFERENCES:
                    moved = {**values, of: value + steps * 1e-4 * ways}
                    made = probe.run(*moved.values())[place]
                    expected += weight * float((made * weights).sum()) / 1e-4
            seen = 0.0 if slope is None else float((slope * ways).sum())
            if abs(seen - expected) > 1e-4 * max(abs(seen), abs(expected), 1e-3):
                texts.append(f"of {name} to {of} {seen:.3g} for {expected:.3g}")
    if not texts:
        return "Within one step they are right: it is the way from step to step."
    alone, given = (
        {t.split(" to ")[0][3:] for t in texts},
        {t.split()[3] for t in texts},
    )
    rest = ""
    if len(given) == 1 and given != {"x"} and all(" 0 for " in text for text in texts):
        rest = f": {given.pop()[0]} is detached in front of each step"
    elif alone == {"h_1"} and all(" 0 for " in text for text in texts):
        rest = ": the h that is returned is cut off from the graph"
    elif alone == {"c_1"} and all(" 0 for " in text for text in texts):
        rest = (
            ": the gradient that comes to c_1, from the next step or from a loss on it,"
            " is left out, and none goes through the cells over time"
        )
    return f"Within one step wrong is the gradient {', '.join(texts)}{rest}."


@claim(ZEROS, GRADIENT_CLAIMS)
def zeros(probe: Probe) -> Fault | str:
    """Begin with zeros, where a norm sees no variance."""
    x, h, c = _inputs(probe)
    zero = torch.zeros_like(h).requires_grad_()
    _, (usual,) = _loss_and_slopes(probe, x, h, c, [h])
    _, (steep,) = _loss_and_slopes(probe, x, zero, c, [zero])
    with torch.no_grad():
        x[0] = 0
        c.zero_()
    by = [zero, *probe.layer.parameters()]
    value, slopes = _loss_and_slopes(probe, x, zero, c, by)
    if all(bool(v.isfinite().all()) for v in slopes):
        times = float(steep.norm() / usual.norm())
        scale = f" (1 / sqrt(eps) is {probe.eps**-0.5:.3g}.)" if probe.eps else ""
        return (
            f"An h_0 of 0 gets {times:.3g} times the gradient of one of size 1: mind "
            f"the learning rate if h_0 is learned.{scale}"
        )
    what = "outputs" if not value.isfinite() else "gradients"
    return Fault(
        f"With h_0 = c_0 = 0 and x_1 = 0 the {what} are not finite: what is 0 "
        "for all units has variance 0, and is divided by its root.",
        "Add eps to the variance, inside the root, not behind it; 1e-5 is usual.",
    )


@claim(USED, GRADIENT_CLAIMS)
def used(probe: Probe) -> Fault | None:
    """Look for parameters without a gradient."""
    names = unused_parameters(probe)
    if not names:
        return None
    return Fault(
        f"{', '.join(names[:6])}{', ...' * (len(names) > 6)} "
        f"{'have' if names[1:] else 'has'} no part in the outputs: made, and not used.",
        "Call what is made in the constructor, or do not make it.",
        "unused parameters",
    )


def _inputs(probe: Probe) -> tuple[Tensor, Tensor, Tensor]:
    h, c = probe.states(probe.sizes[1])
    x = probe.draw(*probe.sizes)
    return x.requires_grad_(), h.requires_grad_(), c.requires_grad_()


def _loss(probe: Probe, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """Weight every output differently: nothing cancels."""
    total = x.new_zeros(())
    for k, value in enumerate(probe.run(x, h, c)):
        places = torch.arange(value.numel(), dtype=x.dtype, device=x.device)
        total = total + (value.flatten() * (1.7 * places + k).cos()).sum()
    return total


def _loss_and_slopes(
    probe: Probe, x: Tensor, h: Tensor, c: Tensor, by: Iterable[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    value = _loss(probe, x, h, c)
    with of_the_layer():
        slopes = torch.autograd.grad(
            value, tuple(by), allow_unused=True, materialize_grads=True
        )
    return value.detach(), slopes
