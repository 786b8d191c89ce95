r"""Tests for a recurrent layer that should be the layer-normalized LSTM.

The yardstick is the cell of Ba, Kiros and Hinton (2016), equations 20 to 22,

.. math::

    a_t &= \gamma_h\,\widehat{W_h h_{t-1}} + \gamma_x\,\widehat{W_x x_t} + b, \\
    c_t &= f\,c_{t-1} + i\,g, \qquad
    h_t = o\,\tanh(\gamma_c\,\hat c_t + \beta_c),

and it is laid on by behaviour alone. The key is that :math:`c_1` is linear in
:math:`c_0`: two runs of one step give the forget gate f of every unit, and
:math:`\log f/(1-f)` is the f part of :math:`a_1`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, of_the_layer
from normbook.checks.copies import copy_of
from normbook.checks.report import Finding

__all__ = ["recurrent_findings"]

STEPS, EXAMPLES = 6, 5
RAW = "the carried state is c, not its normalized form"
NORMED = "what enters the gates is normalized"
TERMS = "W_h h and W_x x are normalized each on its own"
TOGETHER = "the 4H numbers of all gates are normalized together"
OUTPUT = "h sees the normalized c"
LATER = "h does not depend on later steps"
OTHERS = "h does not depend on the other examples"
PADDING = "h does not depend on padding behind the sequence"
BIASES = "no bias is there twice"
GRADIENTS = "the gradients are those of the outputs"
ZEROS = "a state of zeros gives finite outputs and gradients"

# In float64 rounding stays below EXACT. A normalization forgets the scale of what it
# takes up to eps, and up to a bias that is added inside it: INVARIANT lies far above
# that and far below what another scale does without a normalization, about 0.5.
EXACT = 1e-9
INVARIANT = 0.15

# Central differences of fourth order, in steps: they err by 1e-8 or less.
STEP = 1e-4
DIFFERENCES = ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12))
SLOPES = 1e-5


def recurrent_findings(
    layer: nn.Module, sizes: Sequence[int] | None = None, eps: float | None = None
) -> list[Finding]:
    r"""Test a layer with the interface of ``nn.LSTM`` or ``nn.LSTMCell``.

    Parameters
    ----------
    layer : nn.Module
        On the CPU. Called as ``h, (h_last, c_last) = layer(x, (h_0, c_0))``, or as
        ``h, c = layer(x_t, (h, c))`` for one step. Of several layers and directions
        the gates of the first are looked at.
    sizes : sequence of int, optional
        Shape of one input as the layer takes it: (T, N, D), (N, T, D) if it is
        ``batch_first``, (N, D) for a cell. If left out, D is ``layer.input_size``.
        Fewer than two steps or examples are taken as two.
    eps : float, optional
        What the layer adds to its variances, for the numbers in the reasons. If left
        out, ``layer.eps``, where there is one.

    Returns
    -------
    list of Finding
        All tests, in a fixed order.

    Raises
    ------
    TypeError
        If the layer cannot be called so, not copied, or not run in float64.
    ValueError
        If ``sizes`` is needed, or has another number of axes.

    Notes
    -----
    All runs are those of a copy, in float64 and training mode, without dropout; in
    evaluation mode, if something else in it is random. Its matrices are drawn anew, so
    that weights of 0, or saturated gates, hide nothing; gains and biases are those of
    the layer.

    Examples
    --------
    >>> from normbook.layers.lstm import LayerNormLSTM
    >>> layer = LayerNormLSTM(3, 4, carried="normalized", has_redundant_biases=False)
    >>> [finding.name for finding in recurrent_findings(layer) if not finding.passed][0]
    'the carried state is c, not its normalized form'
    """
    eps = getattr(layer, "eps", None) if eps is None else eps
    with torch.random.fork_rng(devices=[]):
        return _findings(_probe(layer, sizes), eps)


def _findings(probe: _Probe, eps: float | None) -> list[Finding]:
    others = _tried(OTHERS, lambda: _other_examples(probe))
    raw = _tried(RAW, lambda: _carried(probe))
    if not raw.passed:
        why = "only a state that is carried as it is shows the gates"
    elif not others.passed:
        why = "the statistics are those of several examples"
    else:
        why = ""
    gates = [Finding(n, None, why) for n in (NORMED, TERMS, TOGETHER, OUTPUT)]
    with torch.no_grad():
        gates = gates if why else _gates(probe)
    return [
        raw,
        *gates,
        _tried(LATER, lambda: _later_steps(probe)),
        others,
        _tried(PADDING, lambda: _padding(probe)),
        _tried(BIASES, lambda: _redundant_biases(probe)),
        _tried(GRADIENTS, lambda: _gradients(probe)),
        _tried(ZEROS, lambda: _zeros(probe, eps)),
    ]


def _tried(name: str, find: Callable[[], Finding]) -> Finding:
    """Look for a fault; an error of the user's layer is one."""
    try:
        return find()
    except LayerError as error:
        cure = "Make the layer take this input."
        return Finding(name, False, f"The layer raises {error}.", cure)


class _Probe(NamedTuple):
    """A copy of the layer with one interface: time first, states (N, H)."""

    layer: nn.Module
    sizes: tuple[int, int, int]  # T, N, D
    is_cell: bool
    is_batch_first: bool
    stacked: int | None  # L of states (L, N, H), None for states (N, H)
    units: tuple[int, int]  # features of h and of c
    generator: torch.Generator

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def states(self, examples: int) -> tuple[Tensor, Tensor]:
        h, c = (self.draw(examples, units) for units in self.units)
        return h, c

    def run(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over x (T, N, D); all layers begin with h and c of shape (N, H)."""
        if self.is_cell:
            outputs = []
            for x_t in x:
                with of_the_layer():
                    h, c = self.layer(x_t, (h, c))
                outputs.append(h)
            return torch.stack(outputs), h, c
        if self.stacked is not None:
            h, c = (s.expand(self.stacked, *s.shape).contiguous() for s in (h, c))
        x = x.transpose(0, 1) if self.is_batch_first else x
        with of_the_layer():
            out, (h, c) = self.layer(x, (h, c))
        out = out.transpose(0, 1) if self.is_batch_first else out
        return (out, h, c) if self.stacked is None else (out, h[0], c[0])

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Run the first layer one step on."""
        _, h, c = self.run(x[None], h, c)
        return h, c

    def forward_in_time(self, out: Tensor) -> Tensor | None:
        """Return the part of the output that may not look ahead, if there is one."""
        units = self.units[0]
        if out.shape[-1] == units:
            return out
        # With more layers each direction sees both below it.
        return out[..., :units] if self.stacked == 2 else None


def _probe(layer: nn.Module, sizes: Sequence[int] | None) -> _Probe:
    is_batch_first = bool(getattr(layer, "batch_first", False))
    if sizes is None:
        features = getattr(layer, "input_size", None)
        if not isinstance(features, int):
            raise ValueError(
                "the shape of one input is needed, as the layer has no input_size; "
                "pass (T, N, D)."
            )
        pair = (EXAMPLES, STEPS) if is_batch_first else (STEPS, EXAMPLES)
        sizes = (*pair, features)
    if len(sizes) not in (2, 3):
        raise ValueError(
            "the shape of one input must be (T, N, D), or (N, D) for a cell, got "
            f"{tuple(sizes)}; leave no axis out."
        )
    *front, features = sizes
    shape = (*(max(size, 2) for size in front), features)
    twin = _twin(layer)
    is_cell, (h, c) = _call(twin, shape)
    steps, examples = shape[:2] if len(shape) == 3 else (STEPS, shape[0])
    n = h.shape[-2]
    if not is_cell and not hasattr(layer, "batch_first"):
        is_batch_first = n == steps != examples
    if is_batch_first:
        steps, examples = examples, steps
    probe = _Probe(
        twin.double(),  # rounding would hide slips
        (steps, examples, features),
        is_cell,
        is_batch_first,
        len(h) if h.ndim == 3 else None,
        (h.shape[-1], c.shape[-1]),
        torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.ndim == 2 and min(parameter.shape) > 1:
                columns = parameter.shape[1]
                parameter.copy_(probe.draw(*parameter.shape) * columns**-0.5)
        inputs = probe.draw(*probe.sizes), *probe.states(examples)
        try:
            first = probe.run(*inputs)[0]
        except LayerError as error:
            raise TypeError(
                f"layer must run in float64, got {error}; make constants with the "
                "dtype of the input."
            ) from error
        if not torch.equal(first, probe.run(*inputs)[0]):
            twin.eval()
    return probe


def _twin(layer: nn.Module) -> nn.Module:
    """Copy the layer, in training mode and without dropout."""
    twin = copy_of(layer).train().requires_grad_()
    for module in twin.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            vars(module)["dropout"] = 0.0  # as in nn.LSTM
    return twin


def _call(layer: nn.Module, shape: Sequence[int]) -> tuple[bool, tuple[Tensor, Tensor]]:
    """Find out how the layer is called: whether it is a cell, and its states."""
    like = next(layer.parameters(), torch.zeros(()))
    ways: list[tuple[Tensor, ...] | tuple[Tensor, Any]] = []
    units = getattr(layer, "hidden_size", None)
    for is_cell in (False, True) if len(shape) == 3 else (True,):
        x = like.new_zeros(shape[-2:] if is_cell else shape)
        ways.append((x,))
        if isinstance(units, int):
            n = shape[0] if getattr(layer, "batch_first", False) else shape[-2]
            zeros = like.new_zeros(n, units)
            ways += [(x, (zeros[None], zeros[None]))] if not is_cell else []
            ways.append((x, (zeros, zeros)))
    problems = []
    for arguments in ways:
        try:
            with torch.no_grad():
                made = layer(*arguments)
        except Exception as error:  # noqa: BLE001 - the next way may fit
            problems.append(f"{type(error).__name__}: {error}")
            continue
        match made:
            case (Tensor(), (Tensor() as h, Tensor() as c)) if arguments[0].ndim == 3:
                return False, (h, c)
            case (Tensor() as h, Tensor() as c) if arguments[0].ndim == 2:
                if h.shape == c.shape:
                    return True, (h, c)
        values = made if isinstance(made, tuple) else (made,)
        problems.append(f"({', '.join(type(v).__name__ for v in values)})")
    raise TypeError(
        "layer must be called as torch.nn.LSTM, h, (h_last, c_last) = layer(x, (h_0, "
        "c_0)), or as torch.nn.LSTMCell, h, c = layer(x_t, (h, c)), got "
        f"{problems[0]} for an input of shape {tuple(shape)}; check the shape, or wrap "
        "the layer."
    )


@torch.no_grad()
def _carried(probe: _Probe) -> Finding:
    n = 2 * probe.units[1]
    x, (h, c) = probe.draw(n, probe.sizes[2]), probe.states(n)
    c_1 = {k: probe.step(x, h, k * c)[1] for k in (0, 1, 2, 10, 100)}
    bend = _change(2 * (c_1[1] - c_1[0]), c_1[2] - c_1[0], c_1[0])
    if bend < EXACT:
        return Finding(RAW, True, f"c_1 is linear in c_0, to {bend:.0e}.")
    small, large = (c_1[k].std(1, correction=0) for k in (10, 100))
    if _change(small, large, 0 * small) < 0.05:
        mean = c_1[100].mean(1).abs().max()
        reason = (
            "A c_0 with a deviation of 10 leaves a c_1 with a deviation of "
            f"{_span(small)} over the units of an example, one of 100 leaves "
            f"{_span(large)}; with c_1 = f c_0 + i g the second is ten times the "
            "first. The mean is at most "
            f"{mean:.2f}. This is LN(c) stored as the state: nothing in it can grow."
        )
    else:
        reason = (
            f"c_1 = f c_0 + i g is linear in c_0; here it is not: when c_0 is doubled, "
            f"what it adds to c_1 misses the double by {100 * bend:.2g} %."
        )
    return Finding(
        RAW, False, reason, "Normalize c only on its way to h, and carry c itself."
    )


def _gates(probe: _Probe) -> list[Finding]:
    """Test what the forget gate tells, of a layer that carries c itself."""
    n = 2 * max(probe.units) + 8
    x, (h, c) = probe.draw(n, probe.sizes[2]), probe.states(n)
    big_x, big_h = 5 * x, 5 * h
    a = _logit(probe, big_x, big_h)
    changes = {
        name: _change(a, _logit(probe, new_x, new_h), a.mean(0))
        for name, new_x, new_h in (
            ("x", 2 * big_x, big_h),
            ("h", big_x, 2 * big_h),
            ("both", 2 * big_x, 2 * big_h),
        )
    }
    is_normed = changes["both"] < INVARIANT
    is_by_term = max(changes["x"], changes["h"]) < INVARIANT
    one = [k for k in ("x", "h") if changes[k] < INVARIANT]
    seen = ", ".join(
        f"{what} changes them by {changes[k]:.0%}"
        for k, what in (("x", "of x"), ("h", "of h"), ("both", "of both together"))
    )
    seen = f"Of the pre-activations of f, another scale {seen}"
    if not (is_normed or is_by_term):
        rest = "; no normalization was found."
        if one:
            rest = f"; only W_{one[0]} {one[0]} is normalized."
        none = "nothing is normalized before the gates"
        if one:
            none = f"only W_{one[0]} {one[0]} is normalized"
        cure = "Put layer norm around W_h h and around W_x x."
        findings = [
            Finding(NORMED, False, seen + rest, cure),
            Finding(TERMS, None, none),
            Finding(TOGETHER, None, none),
        ]
    else:
        findings = [Finding(NORMED, True, seen + ".")]
        if is_by_term:
            findings.append(Finding(TERMS, True, seen + "."))
        else:
            reason = (
                f"{seen}: it is the sum W_h h + W_x x that is normalized. A cell of "
                "its own right, but not that of Ba et al., equations 20 to 22: with "
                "the same weights it computes something else."
            )
            cure = "Give each term its own layer norm, or give the cell another name."
            findings.append(Finding(TERMS, False, reason, cure))
        findings.append(_together(probe))
    return [*findings, _output(probe, x, h, c)]


def _together(probe: _Probe) -> Finding:
    """Look for a weighted mean of the pre-activations of f that never moves.

    The H numbers of a gate that is normalized by itself sum to 0; with a gain they
    stay in a plane. The f part of 4H numbers normalized together fills the space.
    """
    n = 2 * max(probe.units) + 8
    x, (h, _) = probe.draw(1, probe.sizes[2]).expand(n, -1), probe.states(n)
    a = _logit(probe, x, h)
    _, spreads, directions = torch.linalg.svd(a - a.mean(0), full_matrices=False)
    if spreads[0] < EXACT:
        return Finding(TOGETHER, None, "f does not depend on h_0")
    share = float(spreads[-1] / spreads[0])
    if share > 1e-7:
        found = f"{_span(a.mean(1))} over {n} examples"
        return Finding(TOGETHER, True, f"The mean of the f part is {found}.")
    weights = directions[-1]
    is_even = float(weights.std() / weights.mean().abs()) < EXACT
    means = a @ (weights / weights.sum())
    what = "mean" if is_even else "weighted mean (weights 1 / gain)"
    spread = f", and their deviation {_span(a.std(1, correction=0))}"
    reason = (
        f"The {what} over the units of the pre-activations of f is "
        f"{_rounded(means.mean())} for each of {n} examples"
        f"{spread if is_even else ''}. Each gate is normalized on its own, so no input "
        "can open or shut a whole gate; of 4H numbers normalized together the f part "
        "has a mean of its own in every example."
    )
    cure = "Normalize the 4H numbers first and cut them into gates then."
    return Finding(TOGETHER, False, reason, cure)


def _output(probe: _Probe, x: Tensor, h: Tensor, c: Tensor) -> Finding:
    """Shift and stretch c_1 by the choice of c_0: its hat stays."""
    f = _forget(probe, x, h)
    before, c_1 = probe.step(x, h, c)
    rest = c_1 - f * c
    after, _ = probe.step(x, h, (3 * c_1 + 2 - rest) / f)
    change = _change(before, after, 0 * before)
    seen = f"From c_1 to 3 c_1 + 2, which has the same hat, h changes by {change:.1%}"
    if change < INVARIANT:
        return Finding(OUTPUT, True, seen + ".")
    cure = "Take h = o tanh(LN(c))."
    return Finding(OUTPUT, False, seen + ": c is not normalized there.", cure)


@torch.no_grad()
def _later_steps(probe: _Probe) -> Finding:
    x, (h, c) = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    moved = torch.cat([x[:-1], probe.draw(*x[-1:].shape)])
    before, after = (probe.forward_in_time(probe.run(v, h, c)[0]) for v in (x, moved))
    if before is None or after is None:
        return Finding(LATER, None, "each step sees all others in two directions")
    change = _change(before[:-1], after[:-1], 0 * before[:-1])
    if change < EXACT:
        return Finding(LATER, True)
    reason = (
        f"Another x at the last step changes h at the steps before it by {change:.1%}; "
        "it must be 0. The statistics run over time as well."
    )
    cure = "Take the statistics of one example at one step, inside the loop over time."
    return Finding(LATER, False, reason, cure)


@torch.no_grad()
def _padding(probe: _Probe) -> Finding:
    if probe.is_cell:
        return Finding(PADDING, None, "a cell sees one step")
    x, (h, c) = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    padded = torch.cat([x[:-1], 0 * x[-1:]])
    alone, beside = (
        probe.forward_in_time(probe.run(v, h, c)[0]) for v in (x[:-1], padded)
    )
    if alone is None or beside is None:
        return Finding(PADDING, None, "the other direction begins in the padding")
    change = _change(alone, beside[:-1], 0 * alone)
    if change < EXACT:
        return Finding(PADDING, True)
    reason = (
        f"One step of zeros behind {len(alone)} steps changes h before it by "
        f"{change:.1%}; it must be 0. The padding has a part in the statistics: the "
        "answer for a sequence depends on the longest one in its batch."
    )
    cure = "Take the statistics of one example at one step, inside the loop over time."
    return Finding(PADDING, False, reason, cure)


@torch.no_grad()
def _other_examples(probe: _Probe) -> Finding:
    def change() -> float:
        before, after = probe.run(x, h, c)[0], probe.run(*moved)[0]
        return _change(before[:, 1:], after[:, 1:], 0 * before[:, 1:])

    x, (h, c) = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    # The first example is another one, in input and states.
    signs = torch.ones_like(x[0, :, :1])
    signs[0] = -1
    moved = (signs * x, signs * h, signs * c)
    in_training = change()
    if in_training < EXACT:
        return Finding(OTHERS, True)
    mode = probe.layer.training
    probe.layer.eval()
    in_evaluation = change()
    probe.layer.train(mode)
    reason = (
        f"Another first example changes h of the others by {in_training:.1%}; it must "
        "be 0."
    )
    if in_evaluation < EXACT:
        reason += (
            " In evaluation mode it is: this is batch norm, with running statistics "
            "there. Its training outputs are those of the whole batch, by design."
        )
    cure = "Take the statistics over the units of one example (the last axis)."
    return Finding(OTHERS, False, reason, cure)


def _redundant_biases(probe: _Probe) -> Finding:
    values = dict(probe.layer.named_parameters())
    _, slopes = _loss_and_slopes(probe, *_inputs(probe), list(values.values()))
    groups: list[list[str]] = []
    flat = {name: s.flatten() for name, s in zip(values, slopes, strict=True)}
    for name, slope in flat.items():
        for group in groups:
            other = flat[group[0]]
            if other.shape == slope.shape and _change(other, slope, 0 * other) < EXACT:
                group.append(name)
                break
        else:
            groups += [[name]] if slope.any() else []
    twins = [group for group in groups if len(group) > 1]
    if not twins:
        return Finding(BIASES, True)
    count = max(map(len, twins))
    reason = (
        "; ".join(f"{', '.join(g[:-1])} and {g[-1]}" for g in twins) + " have the "
        "same gradient, as they are added to the same place. SGD moves their sum "
        f"{count} times as fast as one alone. (The formula of Ba et al. has b, beta_h "
        "and beta_x; one of them can say all.)"
    )
    cure = f"Keep one of the {count}, or divide its learning rate by {count}."
    return Finding(BIASES, False, reason, cure)


def _gradients(probe: _Probe) -> Finding:
    inputs = _inputs(probe)
    named = {"x": inputs[0], "h_0": inputs[1], "c_0": inputs[2]}
    named |= {k: p for k, p in probe.layer.named_parameters() if p.requires_grad}
    _, slopes = _loss_and_slopes(probe, *inputs, list(named.values()))
    wrong = []
    worst = 0.0
    for (name, value), slope in zip(named.items(), slopes, strict=True):
        direction = probe.draw(*value.shape).sign()
        start, expected = value.detach().clone(), 0.0
        with torch.no_grad():
            for steps, weight in DIFFERENCES:
                value.copy_(start + steps * STEP * direction)
                expected += weight * float(_loss(probe, *inputs)) / STEP
            value.copy_(start)
        found = float((slope * direction).sum())
        # An unlucky direction may lie across the gradient.
        scale = max(abs(found), abs(expected), 1e-3 * float(slope.norm()))
        error = abs(found - expected) / scale if scale else 0.0
        worst = max(worst, error)
        if not error < SLOPES:
            wrong.append(f"{name}: {found:.4g} for {expected:.4g}")
    if not wrong:
        return Finding(GRADIENTS, True, f"Central differences agree to {worst:.0e}.")
    reason = (
        "Along a random direction the gradient and the central differences of the "
        f"loss are: {'; '.join(wrong)}."
    )
    cure = (
        "Let autograd go through mean and variance, too; test a backward pass that is "
        "written by hand with torch.autograd.gradcheck."
    )
    return Finding(GRADIENTS, False, reason, cure)


def _zeros(probe: _Probe, eps: float | None) -> Finding:
    x, h, c = _inputs(probe)
    zero = torch.zeros_like(h).requires_grad_()
    _, (usual,) = _loss_and_slopes(probe, x, h, c, [h])
    _, (steep,) = _loss_and_slopes(probe, x, zero, c, [zero])
    with torch.no_grad():
        x[0] = 0
        c.zero_()
    wanted = [zero, *probe.layer.parameters()]
    value, slopes = _loss_and_slopes(probe, x, zero, c, wanted)
    if all(bool(v.isfinite().all()) for v in slopes):
        times = float(steep.norm() / usual.norm())
        note = (
            f"An h_0 of 0 gets {times:.3g} times the gradient of one of size 1: mind "
            "the learning rate if h_0 is learned."
        )
        if eps:
            note += f" (1 / sqrt(eps) is {eps**-0.5:.3g}.)"
        return Finding(ZEROS, True, note)
    what = "outputs" if not value.isfinite() else "gradients"
    reason = f"With h_0 = c_0 = 0 and x_1 = 0 the {what} are not finite: what is 0 "
    reason += "for all units has variance 0, and is divided by its root."
    cure = "Add eps to the variance, inside the root, not behind it; 1e-5 is usual."
    return Finding(ZEROS, False, reason, cure)


def _inputs(probe: _Probe) -> tuple[Tensor, Tensor, Tensor]:
    h, c = probe.states(probe.sizes[1])
    x = probe.draw(*probe.sizes)
    return x.requires_grad_(), h.requires_grad_(), c.requires_grad_()


def _loss(probe: _Probe, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """Weight every output differently: nothing cancels."""
    total = x.new_zeros(())
    for k, value in enumerate(probe.run(x, h, c)):
        places = torch.arange(value.numel(), dtype=x.dtype, device=x.device)
        total = total + (value.flatten() * (1.7 * places + k).cos()).sum()
    return total


def _loss_and_slopes(
    probe: _Probe, x: Tensor, h: Tensor, c: Tensor, by: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    value = _loss(probe, x, h, c)
    wanted = [v for v in by if v.requires_grad]
    with of_the_layer():
        found = iter(torch.autograd.grad(value, wanted, allow_unused=True))
    slopes = [next(found) if v.requires_grad else None for v in by]
    return value.detach(), [
        torch.zeros_like(v) if s is None else s for v, s in zip(by, slopes, strict=True)
    ]


def _forget(probe: _Probe, x: Tensor, h: Tensor) -> Tensor:
    zeros = x.new_zeros(len(x), probe.units[1])
    f = probe.step(x, h, zeros + 1)[1] - probe.step(x, h, zeros)[1]
    return f.clamp(1e-12, 1 - 1e-12)


def _logit(probe: _Probe, x: Tensor, h: Tensor) -> Tensor:
    return _forget(probe, x, h).logit()


def _change(before: Tensor, after: Tensor, centre: Tensor) -> float:
    """Return the size of a change, as a share of what is there; 0 if nothing is."""
    size = float((before - centre).norm())
    moved = float((after - before).norm())
    return moved / size if size else moved


def _span(values: Tensor) -> str:
    low, high = _rounded(values.min()), _rounded(values.max())
    return low if low == high else f"{low} to {high}"


def _rounded(value: Tensor) -> str:
    return f"{round(float(value), 2) + 0.0:.2f}"  # no -0.00
