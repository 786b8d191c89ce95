"""Claims about modes, copies and loading of a layer, and about its state."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, backward, call, evaluating, of_the_layer
from normbook.checks.claim import Claim, DoesNotApply, Fault, Note, NotTested, claim
from normbook.checks.claims.gradient import STEP as DIFFERENCE
from normbook.checks.claims.gradient import by_parameters, by_x, point
from normbook.checks.claims.output import need_right_statistics
from normbook.checks.claims.trained_layers import (
    EXAMPLES,
    STEPS,
    alike,
    averages,
    batch_for,
    evaluate,
    need_statistics,
    trained,
)
from normbook.checks.copies import copy_of, graph_nodes, tensors_of
from normbook.checks.layer.subject import Subject
from normbook.checks.registration import plain_tensors
from normbook.checks.slips.loading import changed_by_loading, ignored
from normbook.checks.tensors import TOLERANCE, draw, is_near, largest, normal

STATE_CLAIMS: list[Claim[Subject]] = []


AS_SAVED = (
    "Load values as they were saved; convert old ones by the version in the state_dict."
)


@claim("the running statistics hold no graph", STATE_CLAIMS)
def no_graph(subject: Subject) -> Fault | None:
    """Look for tensors with a grad_fn after training, and count what hangs on them."""
    if subject.kind != "none":  # that of a relative
        need_statistics(subject)
    before = dict(subject.fresh().named_parameters())
    after = dict(trained(subject).named_parameters())
    moved = [n for n in before if not torch.equal(before[n], after.get(n, before[n]))]
    if moved := [name for name in moved if name in subject.learned]:
        return Fault(
            f"training mode writes to {' and '.join(moved)} without an optimizer: "
            "they are running statistics, and parameters with a gradient. An optimizer "
            "moves them as well, by weight decay or by what evaluation gives them.",
            'Use self.register_buffer("running_mean", ...), or requires_grad=False.',
        )
    short, long = (
        {n: len(graph_nodes(t)) for n, t in tensors_of(layer) if t.grad_fn is not None}
        for layer in (trained(subject, STEPS), trained(subject, 2 * STEPS))
    )
    if not long:
        return None
    name, last = next(iter(long.items()))
    first = short.get(name, 0)
    reason = (
        f"the last batch until the next one: {last} operations, and all that they "
        "hold. And"
    )
    if last > first:
        reason = (
            f"every batch it has seen: {first} operations after {STEPS} batches, "
            f"{last} after {2 * STEPS}. Memory grows with every step, and"
        )
    return Fault(
        f"{name} keeps the autograd graph of {reason} deepcopy refuses.",
        "Update under torch.no_grad(), or from mean.detach() and var.detach().",
    )


@claim("deepcopy and pickle work after training, and copy the statistics")
def copies(subject: Subject) -> Fault | None:
    """Copy a trained layer both ways and compare evaluations."""
    cure = "Keep only parameters, buffers and plain values as attributes, detached."

    def refused(what: str, error: Exception) -> Fault:
        first = str(error).split(".")[0]
        return Fault(f"{what} raises {type(error).__name__}: {first}.", cure)

    if subject.copy_error is not None:
        return refused("copy.deepcopy of the layer as given", subject.copy_error)
    layer = trained(subject)
    x = subject.draw(9, 1.0).to(subject.dtype)
    expected = evaluate(layer, x)
    ways: dict[str, Callable[[nn.Module], nn.Module]] = {"copy.deepcopy": copy.deepcopy}
    with suppress(Exception):  # a class made in a function: no fault of its state
        pickle.dumps(subject.layer)
        ways["pickle"] = lambda layer: pickle.loads(pickle.dumps(layer))  # noqa: S301
    for name, way in ways.items():
        try:
            again = way(layer)
        except Exception as error:  # noqa: BLE001 - whatever the layer raises
            return refused(f"{name} of the trained layer", error)
        if not torch.allclose(evaluate(again, x), expected):
            return Fault(
                f"after {name} the layer evaluates an input differently.",
                "Keep the statistics in buffers.",
            )
    return None


@claim("state_dict carries the running statistics", STATE_CLAIMS)
def state_dict(subject: Subject) -> Fault | None:
    """Load the state of a trained layer into a fresh one; evaluate, train on."""
    need_statistics(subject)
    layer, fresh = trained(subject), subject.fresh()
    x = batch_for(subject, 9)
    state, empty = layer.state_dict(), fresh.state_dict()
    cure = 'Use self.register_buffer("running_mean", ...), and write to it in place or '
    cure += "by assignment."
    has = f"the state_dict has {', '.join(state) or 'nothing'}: "
    missing = f"{has}the moving statistics are no buffers"
    values = {key: v for key, v in state.items() if isinstance(v, Tensor)}
    if any(k in empty and not torch.equal(v, empty[k]) for k, v in values.items()):
        missing = f"{has}something else that evaluation uses is no buffer"
    other = "a fresh layer with the state_dict of a trained one"
    if changed := changed_by_loading(layer, fresh, subject.eps):
        return Fault(
            f"load_state_dict changes what it loads: {changed}. So a layer that is "
            "saved and loaded evaluates differently.",
            AS_SAVED,
        )
    expected = evaluate(layer, x)
    try:
        loaded = evaluate(fresh, x)
    except LayerError as error:
        return Fault(f"{other} cannot evaluate, it raises {error}; {missing}.", cure)
    if not alike(expected, loaded):
        return Fault(f"{other} evaluates differently; {missing}.", cure)
    for each in (layer, fresh):
        call(each, batch_for(subject, 20 + STEPS))
    if alike(evaluate(layer, x), evaluate(fresh, x)):
        return None
    return Fault(
        f"{other} evaluates the same, but not after one more batch; {has}what weighs "
        "the new batch, a count perhaps, is no buffer.",
        'Use self.register_buffer("num_batches_tracked", torch.tensor(0)).',
    )


@claim("evaluation works before any training", STATE_CLAIMS)
def untrained(subject: Subject) -> Fault | None:
    """Evaluate a layer as it was given."""
    need_statistics(subject)
    cure = "Begin with buffers, a running mean of 0 and a running variance of 1."
    try:
        evaluate(subject.fresh(), batch_for(subject, 9))
    except LayerError as error:
        before = "before the first batch in training mode, evaluation raises"
        return Fault(f"{before} {error}.", cure)
    mean, var = averages(subject, subject.fresh())
    if largest(mean) < 1e-6 and largest(var) < 1e-3:
        return Fault(
            f"the running variance begins at {var[0].abs():.2g}: before the first "
            f"batch evaluation multiplies x by {(var[0] + subject.eps) ** -0.5:.3g}, "
            "and after few batches by too much.",
            cure,
        )
    return None


@claim("eval() means the same with gradients on and off", STATE_CLAIMS)
def evaluation_mode(subject: Subject) -> Fault | None:
    """Evaluate one trained layer with grad enabled and disabled."""
    layer = trained(subject) if subject.kind == "batch" else subject.fresh()
    return _grad_fault(subject, evaluating(layer), "after eval()")


@claim("train() uses the batch, with gradients on and off", STATE_CLAIMS)
def training_mode(subject: Subject) -> Fault | None:
    """Run in training mode with grad enabled and disabled."""
    return _grad_fault(subject, subject.layer, "in training mode")


def _grad_fault(subject: Subject, layer: nn.Module, when: str) -> Fault | None:
    x = batch_for(subject, 9)
    with torch.enable_grad():
        on = call(copy_of(layer), x).detach()
    with torch.no_grad():
        off = call(copy_of(layer), x)
    if alike(on, off):
        return None
    return Fault(
        f"{when} the output depends on whether gradients are recorded, by up to "
        f"{largest(on - off):.2g}: the mode is taken from torch.is_grad_enabled().",
        "Ask self.training.",
    )


def _few(subject: Subject, seed: int) -> Tensor:
    return draw(subject.small, seed, 1.0).to(subject.dtype)


def _need_pure_evaluation(subject: Subject) -> None:
    """Leave a claim where an evaluation depends on more than x and what is held."""
    x, layer = _few(subject, 9), subject.fresh()
    cure = "Mend the evaluation first."
    try:
        expected = evaluate(layer, x)
        recorded = evaluate(layer, x, is_recorded=True)
        call(evaluating(layer), _few(subject, 10))
        is_pure = alike(expected, recorded) and alike(evaluate(layer, x), expected)
    except LayerError as error:
        raise NotTested(f"a fresh layer cannot evaluate: {error}", cure) from error
    if not is_pure:
        raise NotTested("an evaluation depends on more than its input", cure)


@claim("the gradient in evaluation is that of the output")
def in_evaluation(subject: Subject) -> Fault | None:
    """Compare with differences along a direction, after a batch in training mode."""
    if subject.dtype not in (torch.float32, torch.float64):
        raise DoesNotApply("differences need more digits")
    if by_x(subject).passed is False:
        raise DoesNotApply("the gradient in training is wrong already")
    if subject.definition.size(subject.shape) < 3:
        raise DoesNotApply("of two values the gradient is rounding")
    _need_pure_evaluation(subject)
    x, dl_dy = point(subject)
    layer = subject.fresh()
    call(layer, x.to(subject.dtype))
    evaluating(layer)
    leaf = x.to(subject.dtype, copy=True).requires_grad_()
    places = {"x": leaf}
    if by_parameters(subject).passed:
        places |= {name: layer.get_parameter(name) for name in subject.names}
    backward(call(layer, leaf), dl_dy)
    grads = {name: place.grad for name, place in places.items()}
    for seed, (name, place) in enumerate(places.items()):
        grad = grads[name]
        if grad is None:
            return Fault(
                f"after eval() {name} gets no gradient.",
                "Compute the output outside no_grad, in evaluation too.",
            )
        direction = normal(tuple(place.shape), 30 + seed).to(place.dtype)
        seen = (grad * direction).sum().item()
        expected = 0.0
        for sign in (1, -1):
            with torch.no_grad():
                place.add_(sign * DIFFERENCE * direction)
                y = call(layer, leaf).double()
                place.sub_(sign * DIFFERENCE * direction)
            expected += sign * (dl_dy * y).sum().item() / (2 * DIFFERENCE)
        size = max(abs(seen), abs(expected), 0.1 * grad.norm().item(), 1e-6)
        rough = 1 if subject.dtype == torch.float64 else 30
        if abs(seen - expected) > 3 * rough * TOLERANCE * size:
            return Fault(
                f"after eval() the gradient of {name} along a direction is "
                f"{seen:.4g}, and the output changes by {expected:.4g} along it.",
                "Let autograd pass through the evaluation, or check its closed form.",
            )
    return None


@claim("evaluation follows what the layer holds")
def follows(subject: Subject) -> Fault | None:
    """Evaluate, then change what the layer holds, in two ways, and evaluate again."""
    _need_pure_evaluation(subject)
    x = _few(subject, 9)
    other = subject.fresh()
    subject.set_affine(1, other)
    call(other, _few(subject, 8))
    changed = changed_by_loading(other, subject.fresh(), subject.eps)
    if changed and subject.claims_no_statistics:  # else a claim of its own tells it
        return Fault(f"load_state_dict changes what it loads: {changed}.", AS_SAVED)
    state = other.state_dict()
    seen, fresh = subject.fresh(), subject.fresh()
    call(evaluating(seen), x)
    with of_the_layer():
        seen.load_state_dict(state)
        fresh.load_state_dict(state)
    after = "after load_state_dict into a layer that has evaluated before"
    if alike(evaluate(seen, x), evaluate(fresh, x)):
        seen, fresh = subject.fresh(), subject.fresh()
        call(evaluating(seen), x)
        for layer in (seen, fresh):
            layer.train()
            call(layer, _few(subject, 8))
        after = "after a batch in training mode behind an evaluation"
        if alike(evaluate(seen, x), evaluate(fresh, x)):
            return None
    old = [*ignored(subject.fresh, state, lambda v: call(evaluating(v), x), alike)]
    values = {name: v for name, v in state.items() if isinstance(v, Tensor)}
    rest = [n for n, v in values.items() if v.is_floating_point() and n not in old]
    what = f"the {' and '.join(old)} that it held before" if old else ""
    what += f", and {', '.join(rest)} as now" if old and rest else ""
    return Fault(
        f"{after} the layer evaluates by {what or 'what it held before'}: eval() or "
        "the first call keeps a copy.",
        "Compute from parameters and buffers in every call, or drop the copy when they "
        "change.",
    )


@claim("one example with several positions is a batch", STATE_CLAIMS)
def one_example(subject: Subject) -> Fault | None:
    """Train on one example alone; its positions give mean and variance."""
    need_right_statistics(subject)
    if subject.kind != "batch" or len(subject.shape) == 2:
        raise DoesNotApply("an example has no positions")
    x = draw(subject.sized(1), 25)
    if x.numel() == x.shape[1]:
        raise DoesNotApply("an example has one position")
    a, b = subject.affine
    if abs(subject.factor - 1) > TOLERANCE or subject.takes_unbiased:
        raise DoesNotApply("the output has another scale")
    y, expected = subject.output(x), a * subject.x_hat(x) + b
    if is_near(expected, y):
        return None
    return Fault(
        f"one example alone, of shape {tuple(x.shape)}, is off by up to "
        f"{largest(y - expected):.2g} in training mode: it is not normalized by the "
        "mean and variance of its positions.",
        "Treat a batch of one like any other: no squeeze, no way of its own.",
    )


@claim("evaluation leaves the running statistics as they are", STATE_CLAIMS)
def evaluation_keeps(subject: Subject) -> Fault | None:
    """Evaluate other data; compare the state of the layer, and what it evaluates."""
    need_statistics(subject)
    layer = trained(subject)
    x = batch_for(subject, 9)
    expected = evaluate(layer, x)
    evaluating(layer)
    layer.train()
    if not alike(evaluate(layer, x), expected):
        return Fault(
            "after eval() and train() alone, without a batch, evaluation is another: a "
            "change of mode resets or moves the running statistics.",
            "Let eval() and train() set the mode, and nothing else.",
        )
    before = {name: value.detach().clone() for name, value in tensors_of(layer)}
    call(evaluating(layer), batch_for(subject, 10, 10.0))
    is_other = not alike(evaluate(layer, x), expected)
    for name, value in tensors_of(layer):
        # What is kept elsewhere, the last input, say, may change if nothing uses it.
        is_state = is_other or name in layer.state_dict()
        if is_state and name in before and not torch.equal(before[name], value):
            return Fault(
                f"a call in evaluation mode changes {name}: what is measured leaks "
                "into the model.",
                "Update only if self.training.",
            )
    return None


@claim("evaluation of an example does not depend on the others", STATE_CLAIMS)
def neighbours(subject: Subject) -> Fault | None:
    """Evaluate examples alone, and beside others."""
    need_statistics(subject)
    layer = trained(subject)
    x = batch_for(subject, 9, size=2 * EXAMPLES)
    first = x[:EXAMPLES]
    together = evaluate(layer, x, is_recorded=True)[:EXAMPLES]
    alone = evaluate(layer, first, is_recorded=True)
    change = largest(together - alone)
    if change < 1e-4:
        return _other_numbers(layer, x)
    by_batch = call(layer.train(), first).detach().double()
    why = "the batch gets into what evaluation normalizes by"
    if largest(alone - by_batch) < 1e-4:
        why = "evaluation normalizes by the batch, as training does"
    if evaluating(copy_of(layer)).training:
        why += ", and self.training is still True after eval(): a train() of its own "
        why += "does not pass on the mode"
    return Fault(
        f"four examples evaluated beside four others change by up to {change:.2g}: "
        f"{why}.",
        "With self.training False, use the running mean and variance, and no more.",
    )


def _other_numbers(layer: nn.Module, x: Tensor) -> Fault | None:
    """Evaluate the first few of x, which as a whole the layer takes."""
    expected = evaluate(layer, x)
    for count in (1, 2, 3, 5, 7):
        number = "one example" if count == 1 else f"{count} examples"
        try:
            change = largest(expected[:count] - evaluate(layer, x[:count]))
        except LayerError as error:
            return Fault(
                f"evaluation of {number} raises {error}; {len(x)} examples are taken.",
                "In evaluation take any number: no parts of a batch, and no statistics "
                "of it.",
            )
        if change > 1e-4:
            return Fault(
                f"{number} evaluated alone change{'s' * (count == 1)} by up to "
                f"{change:.2g}.",
                "Treat a batch of one like any other.",
            )
    return None


@claim("gain and bias are held as parameters")
def affine_is_held(subject: Subject) -> Fault | None:
    """Change plain tensors, and look which of them act as a gain or as a bias do."""
    count = math.prod(subject.along)
    if subject.has_condition or count == 1:
        raise DoesNotApply("what acts may not be the layer's own")
    held, plain = dict(tensors_of(subject.layer)), plain_tensors(subject.layer)
    plain = [n for n in plain if held[n].numel() == count]
    plain = [n for n in plain if not isinstance(held[n], nn.Parameter)]
    if not plain:
        return None
    names, inputs = [], [subject.draw(seed) for seed in (1, 2)]
    before = [subject.output(x) for x in inputs]
    for name in plain:
        layer = subject.fresh()
        dict(tensors_of(layer))[name].data += 1
        after = [call(copy_of(layer), x.to(subject.dtype)).detach() for x in inputs]
        y, change = torch.cat(before), torch.cat(after) - torch.cat(before)
        a, b = subject.fit(change, y)
        acts = largest(change) > TOLERANCE * largest(y)
        if acts and is_near(change, a * y + b):
            names.append(name)
    if not names:
        return None
    return Fault(
        f"{' and '.join(names)} act{'s' * (len(names) == 1)} on x_hat, and "
        "are plain attributes, neither parameters nor buffers: no optimizer finds "
        "them, state_dict() holds nothing of them, and to() does not move them.",
        "Make each an nn.Parameter, or a buffer where it is not to be trained.",
    )


@claim("a batch with one value for each channel is refused in training", STATE_CLAIMS)
def single_value(subject: Subject) -> Fault | Note | None:
    """Feed one example with one position: its deviation from its mean is 0."""
    if subject.kind != "batch":
        raise DoesNotApply("only batch norm is meant to refuse")
    shape = (1, subject.shape[1], *(1 for _ in subject.shape[2:]))
    x = torch.linspace(1, 2, shape[1], dtype=subject.dtype).view(shape)
    try:
        y, other = (call(subject.fresh(), x**power) for power in (1, 3))
    except LayerError:  # the refusal, whatever its type
        return None
    what = "NaN" if y.isnan().any() else "the same, whatever the input"
    if largest(other - y) > TOLERANCE:
        what = "not normalized: it changes with x"
    left = _left_behind(subject, x)
    reason = (
        f"of one example{' with one position' * (len(shape) > 2)} the output is "
        f"{what}; torch refuses such a batch, as the deviation of one value from the "
        f"mean is 0.{left}"
    )
    if what == "the same, whatever the input" and not left:
        return Note(reason, "one value is taken")
    return Fault(
        reason, "Raise a ValueError if a channel has a single value and self.training."
    )


def _left_behind(subject: Subject, x: Tensor) -> str:
    """Say which statistics are not finite after a call on x, and what evaluation is."""
    layer = subject.fresh()
    call(layer, x)
    names = [
        name
        for name, value in tensors_of(layer)
        if value.is_floating_point() and not value.isfinite().all()
    ]
    if not names:
        return ""
    told = f" It leaves NaN or infinity in {' and '.join(names)}"
    y = call(evaluating(layer), subject.draw(0).to(subject.dtype))
    if y.isfinite().all():
        return f"{told}."
    return f"{told}: evaluation after that one batch is NaN or infinite."
