"""What a recurrent layer does with what it is given, in training and in evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, evaluating, of_the_layer
from normbook.checks.claim import Claim, DoesNotApply, Fault, NotTested, claim
from normbook.checks.copies import copy_of, in_dtype
from normbook.checks.recurrent.forms import takes_states
from normbook.checks.recurrent.layers import compared
from normbook.checks.recurrent.probe import (
    EXACT,
    Probe,
    relative_change,
    set_dropout,
)

INPUTS_ARE_KEPT = "input and states are left as they are"

# Of shares that are counted in DRAWS draws of several units.
DRAWS = 400
NEAR = 0.04


def _run(layer: nn.Module, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
    with of_the_layer():
        made = layer(x, states) if states and takes_states(layer) else layer(x)
    out, last = made
    return (out, *last) if isinstance(last, tuple | list) else (out, last)


def _changed(
    names: Sequence[str], now: Sequence[Tensor], before: Sequence[Tensor]
) -> list[str]:
    rows = zip(names, now, before, strict=False)
    return [name for name, new, old in rows if not torch.equal(new, old)]


HANDLING_CLAIMS: list[Claim[Probe]] = []


@claim(INPUTS_ARE_KEPT, HANDLING_CLAIMS)
def inputs_are_kept(probe: Probe) -> Fault | None:
    """Compare x, h_0 and c_0 before and after a call."""
    given = [value.contiguous() for value in probe.inputs_of_the_layer()]
    before = [value.clone() for value in given]
    with torch.no_grad():
        _run(copy_of(probe.layer), *given)
    written = _changed(("x", "h_0", "c_0"), given, before)
    if not written:
        return None
    return Fault(
        f"a call writes into {' and '.join(written)}, which others may still need: a "
        "second call on the same tensors gives something else.",
        "Make new tensors in each step: no copy_, add_ or mul_ on what is given.",
    )


@claim("a second call leaves the outputs of the first", HANDLING_CLAIMS)
def outputs_are_kept(probe: Probe) -> Fault | None:
    """Call twice without gradients, where memory may be kept."""
    layer = copy_of(probe.layer)
    for mode in (probe.layer.training, False):
        layer.train(mode)
        with torch.no_grad():
            first = _run(layer, *probe.inputs_of_the_layer())
            before = [value.clone() for value in first]
            _run(layer, *probe.inputs_of_the_layer())
        if changed := _changed(("the outputs", "h_n", "c_n"), first, before):
            return Fault(
                f"a second call changes {' and '.join(changed)} of the first: both "
                "calls write into one memory.",
                "Return new tensors from each call, not a buffer that is kept.",
            )
    return None


@claim("any number of examples and of steps is taken", HANDLING_CLAIMS)
def any_size(probe: Probe) -> Fault | None:
    """Give the first example alone, the first step alone, and more examples."""
    if not probe.takes_states:
        raise DoesNotApply("what else it takes may be of one size")
    layer = copy_of(probe.layer)
    n = probe.sizes[1]
    has_states = True
    needs_several = any(
        "running" in name for name, _ in layer.named_buffers()
    )  # in training, as torch's batch norm does
    for examples in (n, 1, n + 2):
        layer.train(probe.layer.training and not (needs_several and examples == 1))
        x, h, c = probe.inputs_of_the_layer(examples)
        what = f"{examples} example{'s' * (examples > 1)}"
        short = x if probe.is_cell else probe.turned(probe.turned(x)[:1])
        inputs = (x, what), (short, f"one step of {what}")
        for (value, of), states in itertools.product(inputs, ((h, c), ())):
            if not (states or has_states):
                continue
            told = "" if states else ", without states,"
            try:
                with torch.no_grad():
                    _run(layer, value, *states)
            except LayerError as error:
                if not states and examples == n and value is x:
                    has_states = False  # it wants states
                    continue
                return Fault(
                    f"{of}{told} raise {error}; {n} examples are taken.",
                    "Take all sizes from x, and keep none of another call.",
                )
    return None


@claim("evaluation gives what training gives without dropout", HANDLING_CLAIMS)
def same_in_both_modes(probe: Probe) -> Fault | str | None:
    """Compare the modes; of one that draws numbers, the shares that it drops."""
    if probe.is_batched:
        raise DoesNotApply("a batch norm is another one in evaluation")
    if not probe.layer.training:
        return _drawn(probe)
    other = probe._replace(layer=evaluating(copy_of(probe.layer)))
    x, *states = probe.inputs()
    with torch.no_grad():
        in_training, in_evaluation = (p.run(x, *states)[0] for p in (probe, other))
        change = relative_change(in_training, in_evaluation)
        if change < EXACT:
            return None
        texts = [_cell(p) for p in (probe, other)]
    what = "after eval() "
    if texts[0] != texts[1] and all(texts):
        what = f"in training a step is: {texts[0]} In evaluation it is: {texts[1]} "
    return Fault(
        f"{what}h changes by {100 * change:.2g} %, with all dropout set to 0.",
        "Do the same in both modes, but for dropout.",
    )


def _cell(probe: Probe) -> str:
    found = compared(probe)[0]
    if found is None:
        return ""
    outcome = found[1].outcome
    text = outcome.reason if isinstance(outcome, Fault) else outcome
    kept_h, kept_c = found[1].kept
    if kept_h or kept_c:
        text += f" {kept_h:.3g} of the old h and {kept_c:.3g} of the old c are kept."
    return text


def _drawn(probe: Probe) -> Fault | str | None:
    """Look which of two values c_1 takes in training, and what evaluation makes of it.

    Zoneout keeps the old c; recurrent dropout writes nothing to it.
    """
    layer = copy_of(probe.layer).train()
    trained, evaluated = (probe._replace(layer=v) for v in (layer, probe.layer))
    n = 5
    x = probe.draw(1, probe.sizes[2]).expand(n, -1).contiguous()
    h, c = (s.expand(n, -1).contiguous() for s in probe.states(1))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        seen = torch.cat([trained.step(x, h, c)[1] for _ in range(DRAWS // n)])
        expected = evaluated.step(x, h, c)[1][0]
        at_0, at_1 = (evaluated.step(x, h, 0 * c + k)[1][0] for k in (0, 1))
    low, high = seen.amin(0), seen.amax(0)
    size = float(seen.abs().max())
    is_low = (seen - low).abs() < 1e-6 * size
    if not bool((is_low | ((seen - high).abs() < 1e-6 * size)).all()):
        raise NotTested("in training c is random, and of more than two values")
    if not bool(((high - low) > 1e-3 * size).all()):
        raise NotTested("in training h is random, and c is not")
    old = c[0]
    for text, value in (("old", old), ("none", (at_1 - at_0) * old), ("zero", 0 * old)):
        drops_low = (low - value).abs() < 1e-6 * size
        drops_high = (high - value).abs() < 1e-6 * size
        if bool((drops_low ^ drops_high).all()):
            dropped = torch.where(drops_low, is_low, ~is_low)
            share = float(dropped.double().mean())
            other = torch.where(drops_low, high, low)
            return _of_shares(text, share, value, other, expected)
    raise NotTested("in training c is random in a way that is not known here")


def _of_shares(
    what: str, share: float, dropped: Tensor, other: Tensor, expected: Tensor
) -> Fault | str:
    """Judge what evaluation does, from the share of draws that drop a unit."""
    of = float(((expected - other) * (dropped - other)).sum())
    mixed = of / float((dropped - other).square().sum())
    if what == "zero":
        return Fault(
            f"in training {share:.0%} of c itself are set to 0 at each step, and stay "
            "lost: after many steps nothing is left of what was carried.",
            "Drop what is written to c, tanh(g), or what is read of it, and not c.",
        )
    if what == "old":
        seen = (
            f"in training a unit keeps its old c in {share:.0%} of the draws, as in "
            f"zoneout, and evaluation takes {abs(mixed):.2f} times the old c and "
            f"{1 - mixed:.2f} times the new"
        )
        if abs(mixed - share) < NEAR:
            return f"{seen}."
        why = "takes no average" if abs(mixed) < 0.01 else "weighs them in another way"
        if abs(mixed + share - 1) < NEAR:
            why = "has the two shares exchanged"
        return Fault(
            f"{seen}: evaluation {why}.",
            "In evaluation mix by the expected share: p * old + (1 - p) * new.",
        )
    scale = float((other - dropped).norm() / (expected - dropped).norm())
    seen = (
        f"in training {share:.0%} of what is written to c are dropped, and the rest is "
        f"{scale:.3g} times what evaluation writes"
    )
    if abs(scale * (1 - share) - 1) < NEAR or share < NEAR:
        return f"{seen}."
    return Fault(
        f"{seen}; expected 1 / (1 - p) = {1 / (1 - share):.3g}: on average training "
        f"writes {scale * (1 - share):.3g} times as much as evaluation.",
        "Divide what is kept by 1 - p, as nn.Dropout does.",
    )


@claim("each call in training draws its dropout anew", HANDLING_CLAIMS)
def drawn_anew(probe: Probe) -> Fault | None:
    """Compare two calls of one copy in training, and the first call of two copies."""
    layer = copy_of(probe.given).train().double()
    set_dropout(layer, 0.5, also_none=False)
    x, *states = probe.inputs_of_the_layer()
    more = probe.inputs_of_the_layer(probe.sizes[1] + 1)
    other = copy_of(layer)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        first, second, fresh = (_run(v, x, *states)[0] for v in (layer, layer, other))
        if relative_change(first, fresh) < EXACT:
            raise DoesNotApply("nothing is random in training")
        try:
            # As it is called it may take one number of examples alone.
            for given in (more, (x, *states)) if probe.takes_states else ():
                _run(layer, *given)
        except LayerError as error:
            return Fault(
                "in training with dropout calls of another number of examples, one "
                f"behind the other, raise {error}: the mask is kept.",
                "Draw a mask in each call, of the shape of its states.",
            )
    if relative_change(first, second) > EXACT:
        return None
    return Fault(
        "two calls in training drop the same units: the mask is drawn once and kept.",
        "Draw a mask at the beginning of each call, and keep none on self.",
    )


@claim("dtype and device are those of the input", HANDLING_CLAIMS)
def bfloat16(probe: Probe) -> Fault | None:
    """Run in bfloat16, with states and without."""
    layer = in_dtype(copy_of(probe.layer), torch.bfloat16)
    x, h, c = (value.to(torch.bfloat16) for value in probe.inputs_of_the_layer())
    with torch.no_grad():
        try:
            made = _run(layer, x, h, c)
            _run(copy_of(probe.given).float(), probe.inputs_of_the_layer()[0].float())
        except LayerError as error:
            raise NotTested(f"the layer raises {error}") from error
        try:
            alone = _run(layer, x)
        except LayerError as error:
            return Fault(
                f"with states it runs in bfloat16, and without it raises {error}: the "
                "states that it makes have another dtype than x.",
                "Make them with x.new_zeros(...).",
            )
    names = ("h", "h_n", "c_n")
    if fault := _device(probe):
        return fault
    for told, values in (("", made), (" without states", alone)):
        for name, value in zip(names, values, strict=False):
            if value.dtype != torch.bfloat16:
                return Fault(
                    f"for bfloat16{told} {name} is {value.dtype}.",
                    "Return the dtype of x: make states with x.new_zeros(...).",
                )
    return None


def _device(probe: Probe) -> Fault | None:
    """Run on the device "meta", which holds no numbers, with states and without."""
    layer = copy_of(probe.layer).to("meta")
    x, h, c = (value.to("meta") for value in probe.inputs_of_the_layer())
    with torch.no_grad():
        try:
            _run(layer, x, h, c)
        except LayerError:
            return None  # it asks for numbers
        try:
            made = _run(layer, x)
        except LayerError as error:
            made, told = (), f"it raises {error}"
        else:
            told = "what it returns is on the CPU"
    if made and all(value.is_meta for value in made):
        return None
    return Fault(
        f"On another device than the CPU it runs with states that are given; without, "
        f"{told}: the states that it makes stay on the CPU.",
        "Make them with x.new_zeros(...).",
    )


@claim("no dropout acts behind the last layer", HANDLING_CLAIMS)
def last_output(probe: Probe) -> Fault | None:
    """Compare the last output in training with the last h of the layer on top."""
    if probe.is_cell or probe.stacked is None:
        raise DoesNotApply("no h_n of layers is returned")
    layer = copy_of(probe.given).train().double()
    x, h, c = probe.inputs_of_the_layer()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        runs = [_run(mode, x, h, c) for mode in (layer, evaluating(copy_of(layer)))]
    units = probe.units[0]
    changes = []
    for out, h_n, _ in runs:
        ways = out.shape[-1] // units
        last = probe.steps_first(out)[-1][..., :units]
        changes.append(relative_change(last, h_n[-ways]))
    if changes[1] > EXACT or changes[0] < EXACT:
        return None  # another claim tells the first
    return Fault(
        "in training the last output differs from the last h of the layer on top by "
        f"{changes[0]:.0%}, and in evaluation they are one: dropout acts on the "
        "outputs of the last layer, too, where torch.nn.LSTM has none.",
        "Drop between the layers alone, or say that the output is dropped.",
        "dropout behind the last layer",
    )


@claim("each norm stands in one place", HANDLING_CLAIMS)
def norms_apart(probe: Probe) -> Fault | None:
    """Look for one module under several names, in different cells."""
    places: dict[int, list[str]] = {}
    owners: dict[int, set[int]] = {}
    for name, module in probe.given.named_modules(remove_duplicate=False):
        for part, child in module.named_children():
            if any(True for _ in child.parameters(recurse=False)):
                places.setdefault(id(child), []).append(f"{name}.{part}".strip("."))
                owners.setdefault(id(child), set()).add(id(module))
    for key, names in places.items():
        if len(owners[key]) > 1:
            return Fault(
                f"{' and '.join(names)} are one module: its gain and bias serve "
                "several layers or directions, and each moves those of the other.",
                "Make a norm for each.",
                "shared norm",
            )
    return None


@claim("each gain serves one gate", HANDLING_CLAIMS)
def gates_apart(probe: Probe) -> Fault | None:
    """Move one element of a gain (H,): of the gates it must move one, in one unit."""
    if not probe.takes_states:
        raise DoesNotApply("no states can be given")
    layer, units = copy_of(probe.layer), probe.units[1]
    at, (x, h, c) = probe._replace(layer=layer), probe.point(8)
    told, coupled = [], []
    forget, write = "the forget gate", "what is written to c"
    with torch.no_grad():
        _, c_1 = at.step(x, h, c)

        def gates() -> dict[str, Tensor]:
            """Return f, what is written, and h for a c_1 that stays."""
            f, written = at.forget_gate(x, h), at.step(x, h, 0 * c)[1]
            read = at.step(x, h, (c_1 - written) / f)[0]
            names = (forget, write, "what is read of it")
            return dict(zip(names, (f, written, read), strict=True))

        before = gates()
        for name, value in layer.named_parameters():
            if value.shape != (units,):
                continue
            value[0] += 0.3
            now = gates()
            value[0] -= 0.3
            moved = {
                gate: (now[gate] - old).abs().amax(0) > EXACT
                for gate, old in before.items()
                if old.shape[-1] == units
            }
            which = [gate for gate, m in moved.items() if m[0] and not m[1:].any()]
            # With i = 1 - f what is written goes with 1 - f.
            expected = before[write] * (1 - now[forget]) / (1 - before[forget])
            if which == [forget, write] and (
                relative_change(expected, now[write]) < EXACT
            ):
                coupled.append(name)
            elif len(which) > 1 and len(which) == sum(
                bool(m.any()) for m in moved.values()
            ):
                told.append(f"{name} moves {' and '.join(which)}")
    if not told and coupled:
        return Fault(
            f"An element of {' or '.join(coupled)} moves the forget gate f, and what "
            "is written to c goes with 1 - f: the input gate is 1 - f (coupled gates).",
            "Give the input gate a part of W_h h and W_x x of its own.",
            "coupled gates",
        )
    if not told:
        return None
    return Fault(
        f"An element of {'; of '.join(told)}, in its unit alone: these gates "
        "share it, as where one norm is called for several.",
        "Give each gate a norm of its own.",
        "one norm for several gates",
    )
