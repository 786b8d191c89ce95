"""Check a norm layer that somebody else wrote."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from normbook.arrays import check_eps
from normbook.checks.calls import Way, called, same_generators
from normbook.checks.claim import Fault, Note, claim
from normbook.checks.claims.call import CALL_CLAIMS, input_is_kept, strides
from normbook.checks.claims.example import EXAMPLE_CLAIMS
from normbook.checks.claims.gradient import GRADIENT_CLAIMS
from normbook.checks.claims.output import OUTPUT_CLAIMS
from normbook.checks.claims.precision import (
    PRECISION_CLAIMS,
    dtype_is_kept,
    far_from_zero,
    half_precisions,
)
from normbook.checks.claims.running import RUNNING_CLAIMS
from normbook.checks.claims.state import (
    STATE_CLAIMS,
    affine_is_held,
    copies,
    follows,
    in_evaluation,
    no_graph,
)
from normbook.checks.copies import check_that_none_waits, tensors_of, unchanged
from normbook.checks.layer.definitions import KINDS
from normbook.checks.layer.recognition import OWNERS, TORCH_KINDS
from normbook.checks.layer.subject import (
    UNKNOWN,
    Given,
    Subject,
    without_activations,
)
from normbook.checks.recurrent.claims import BY_HAND, NO_STATES, recurrent_findings
from normbook.checks.recurrent.forms import as_recurrent, takes_states
from normbook.checks.recurrent.gradients import REDUNDANT
from normbook.checks.registration import registered
from normbook.checks.report import Finding, Report
from normbook.checks.slips.explanations import UNEXPLAINED
from normbook.checks.unusual.any_layer import besides, one_state
from normbook.checks.unusual.condition_claims import (
    condition_findings,
    explained_kind,
    mask_findings,
    slips_of_condition,
)
from normbook.checks.unusual.conditions import (
    Conditioned,
    conditioned,
    needs_condition,
    projects,
)
from normbook.checks.unusual.relative_slips import claims_of
from normbook.checks.unusual.relatives import (
    BY_POSITIONS,
    CUMULATIVE,
    SCALE_ALONE,
    Relative,
    formula_of,
    relatives_of,
)
from normbook.checks.unusual.weights import weight_slip


def check_norm_layer(
    layer: nn.Module,
    shape: tuple[int, ...] | None = None,
    *,
    kind: str | None = None,
    eps: float | None = None,
    channel_axis: int = 1,
    call: Way | None = None,
    allow: str | Sequence[str] = (),
    quiet: bool = False,
) -> Report:
    r"""Run every one-line test of the book that applies to a norm layer.

    The layer may be anybody's, on the CPU: it maps a tensor to one of the same shape
    or, for kind ``"lstm"``, has the interface of :class:`torch.nn.LSTM`. A copy is
    tested, on inputs made here; the layer itself is never changed. Of each test the
    report says that it is right, wrong (by the name of the bug, where it is known), or
    not made, and why; or that the layer is *other*, perhaps on purpose: it follows a
    known convention that is not the norm of its name, or is "unexplained": no norm that
    is known. Then it passes only if ``allow`` has that. Only inputs with the number of
    axes that it names are tried: a layer for several is checked once for each.

    Parameters
    ----------
    shape : tuple of int, optional
        Of an input, (N, D) or (N, C, H, W), say; the tests change N as they need it. By
        default found from what the layer says and holds.
    kind : {"batch", "layer", "group", "instance", "rms", "lstm"}, optional
        By default found from the class of the layer, what it holds, or how it behaves.
    eps : float, optional
        By default the attribute ``eps``, or the value that explains the output.
    channel_axis : int, default 1
        Where the layer expects the channels: -1 for a batch norm of (N, T, C), say. A
        norm of torch's with a forward of its own is tried with -1, too, if it is wrong.
        ``shape`` and the title of the report are what the layer takes; the axes that a
        reason speaks of are those with the channels on axis 1.
    call : callable, optional
        How the layer is called, where it takes more than x or returns more than y:
        ``lambda layer, x: layer(x, condition)[0]``. The condition must be the same for
        every example, and of the dtype of x. By default a condition is made where the
        layer needs one and its projection, or x, tells of which size.
    allow : str or sequence of str, optional
        What is meant so: conventions such as "1 + gain", "RMS norm", "groups", "gain
        per head", "positions apart", "conditional", "one gain", "unit length" or
        "activation", under the names that the report gives them, or names of tests.

    Raises
    ------
    TypeError
        If ``layer`` is no module, is a script, or cannot be copied or called.
    ValueError
        If the layer does not normalize, is on another device, not initialized or not
        finite, or raises on a plain input; if kind or shape cannot be found, or one
        that is given is not such; if ``eps`` is not a finite number >= 0.

    Notes
    -----
    Gain and bias are set by the tests where they have a usual name (weight, gamma,
    scale, ...; bias, beta, shift, ...). Otherwise any fixed gain and bias are allowed:
    found on one batch and demanded on others. The copy has no hooks but those that are
    methods of its parts, as others may act outside the layer: what it computes in one,
    as under the old ``torch.nn.utils.weight_norm``, is not tested. Source: book,
    chapter *Training and evaluation*.

    Examples
    --------
    >>> _ = check_norm_layer(nn.BatchNorm1d(3))
    batch norm of (N, 3): all 31 tests pass.
    """
    _check_arguments(layer, shape, kind, eps)
    shape = None if shape is None else tuple(shape)
    _check_the_rest(shape, channel_axis, call, allow)
    forked = torch.random.fork_rng(devices=[])
    with forked, same_generators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.inference_mode(False), torch.enable_grad(), unchanged(layer):
            held, finding = registered(layer)
            given = Given(shape, kind, eps, channel_axis)
            try:
                report = _report_of(held, given, call)
            except (TypeError, ValueError) as error:
                if text := besides(held, shape, call):
                    raise type(error)(f"{error}{text}") from error
                raise
            if finding:
                report = report._replace(findings=(finding, *report.findings))
    report = report.allowing((allow,) if isinstance(allow, str) else tuple(allow))
    if not quiet:
        print(report)
    return report


MOST = 2**26  # values of an input that a shape may ask for
CHANNELS_LAST = Finding(
    "the channels are on axis 1",
    True,
    "they are last: it is right for (N, ..., C), of which the shape above is one.",
    other="channels last",
)


def _turns(layer: nn.Module) -> bool:
    """Return whether a norm of torch's with channels has a forward of its own."""
    kinds = tuple(t for t, kind in TORCH_KINDS if kind not in ("layer", "rms"))
    forward = type(layer).forward
    return isinstance(layer, kinds) and not forward.__module__.startswith("torch.")


def _report_of(layer: nn.Module, given: Given, call: Way | None) -> Report:
    """Report on a layer as an LSTM, or as a norm."""
    shape, kind = given.shape, given.kind
    as_lstm = as_recurrent(layer, shape, call) if kind in (None, "lstm") else None
    if kind == "lstm" or as_lstm:
        findings = recurrent_findings(as_lstm or layer, shape, given.eps)
        is_given = as_lstm is None or takes_states(as_lstm)
        own = one_state(layer, shape) if shape and not is_given else []
        is_lstm = is_given or "lstm" in type(layer).__name__.lower()
        name = "LSTM" if is_lstm else "recurrent layer"
        if own:
            name = "recurrent layer with one state"
            why = "no cell with one state is known here"
            findings = [
                f._replace(reason=why, cure=BY_HAND) if f is NO_STATES else f
                for f in findings
            ]
        report = Report(name, (*own, *findings))
        return report.allowing((REDUNDANT,))  # those of torch.nn.LSTM, too
    _check_that_it_is_no_weight(layer)
    if given.axis != 1 or not _turns(layer):
        return _report_on_channels(layer, given, call)
    try:
        report = _report_on_channels(layer, given, call)
    except ValueError:
        if last := _with_channels_last(layer, given, call):
            return last
        raise
    if not _is_off(report):
        return report
    return _with_channels_last(layer, given, call) or report


def _is_off(report: Report) -> bool:
    """Return whether the output is not that of a norm, nor of a known convention."""
    first = report.findings[0]
    return first.passed is False or first.other == UNEXPLAINED


def _with_channels_last(
    layer: nn.Module, given: Given, call: Way | None
) -> Report | None:
    """Report on a layer that is right with its channels last."""
    with suppress(ValueError):
        report = _report_on_channels(layer, given._replace(axis=-1), call)
        if report.findings[0].passed:
            return report._replace(findings=(*report.findings, CHANNELS_LAST))
    return None


def _report_on_channels(layer: nn.Module, given: Given, call: Way | None) -> Report:
    """Report on a layer as it is with the channels on the axis that is given."""
    shape = given.shape
    if shape is not None and given.axis != 1:
        shape = tuple(torch.empty(shape).movedim(given.axis, 1).shape)
    return _report_with_condition(layer, given._replace(shape=shape), call)


def _report_with_condition(layer: nn.Module, given: Given, call: Way | None) -> Report:
    """Report on a layer, with a condition where it needs one."""
    found = conditioned(layer, given)
    if found is None or call is None or not projects(layer):
        return _report_with(found, layer, given, call)
    # A call may take other conditions for other examples, or make them from x.
    try:
        report = _report_with(found, layer, given, call)
    except ValueError:
        return _report_with(found, layer, given, None)
    if not _is_off(report):
        return report
    by_found = _report_with(found, layer, given, None)
    is_better = not _is_off(by_found) or len(by_found.failed) < len(report.failed)
    return by_found if is_better else report


def _report_with(
    found: Conditioned | None, layer: nn.Module, given: Given, call: Way | None
) -> Report:
    """Report on a layer as it is called, or by the condition that was found."""
    masked = mask_findings(layer, given)
    has_condition = needs_condition(layer)
    more: Callable[[], list[Finding]] = list
    if found and call is None:
        layer, call, has_condition = found.layer, found.way, not found.is_mask
        more = partial(condition_findings, found, given)
    elif found:
        more = partial(slips_of_condition, found, given)
    with called(call, given.axis):
        try:
            report = _report_on(layer, given, has_condition)
        except ValueError:
            guess = explained_kind(layer, given) if has_condition else None
            if given.kind is not None or guess is None:
                raise
            report = _report_on(layer, given._replace(kind=guess), has_condition)
    is_relative = any(relation in report.kind for relation in report.others)
    conditions = [*masked]
    if not is_relative and not (masked and found and found.is_mask):
        conditions += more()
    first = tuple(f for f in conditions if f.passed is False)
    last = tuple(f for f in conditions if f.passed is not False)
    return report._replace(findings=(*first, *report.findings, *last))


def _report_on(layer: nn.Module, given: Given, has_condition: bool) -> Report:
    """Report on a relative whose formula holds, or a norm, or a relative without."""
    as_relative = []
    for relative, is_named in relatives_of(layer) if given.kind is None else ():
        report = _report_on_relative(layer, given, relative)
        if report is not None and report.findings[0].passed:
            return report
        if report is not None and is_named:
            as_relative.append(report)
    try:
        subject = Subject(layer, given, has_condition=has_condition)
        report = _report(subject, given.axis)
    except ValueError as error:
        if by_name := _by_its_name(layer, given):
            return by_name
        if not as_relative:
            is_none = str(error).startswith(UNKNOWN)
            if is_none and (found := _by_formula(layer, given, SCALE_ALONE)):
                return found
            raise
        return as_relative[0]
    if _is_off(report) and (by_name := _by_its_name(layer, given)):
        return by_name
    # Of what has no known formula a test for another norm would tell nothing true.
    unknown = [one for one in as_relative if one.findings[0].passed is None]
    if report.findings[0].passed or unknown or given.kind is not None:
        return unknown[0] if unknown and not report.findings[0].passed else report
    others = [CUMULATIVE] + [BY_POSITIONS] * (subject.kind == "rms")
    for relative in others:
        if found := _by_formula(layer, given, relative):
            return found
    return report


def _by_formula(layer: nn.Module, given: Given, relative: Relative) -> Report | None:
    """Report on a relative whose formula holds, whatever its name is."""
    report = _report_on_relative(layer, given, relative)
    return report if report is not None and report.findings[0].passed else None


def _by_its_name(layer: nn.Module, given: Given) -> Report | None:
    """Report on the relative of a layer's name, though a kind of norm is given."""
    for relative, is_named in relatives_of(layer) if given.kind is not None else ():
        if is_named and (report := _by_formula(layer, given, relative)):
            return report
    return None


def _report_on_relative(
    layer: nn.Module, given: Given, relative: Relative
) -> Report | None:
    """Report on a layer as a relative, or on what is left of it without activations."""
    told, report = (relative.name, relative.text), None
    for bare, removed in without_activations(layer):
        try:
            subject = Subject(bare, given, told)
        except ValueError:
            return report
        formula = formula_of(relative)(subject)
        if report is not None and not formula.passed:
            return report
        if formula.passed:
            (relation,) = subject.relations
            reason = f"{relation.reason} {formula.reason}"
            subject.relations = [relation._replace(reason=reason)]
        tests = [dtype_is_kept, strides, input_is_kept, no_graph]
        # Statistics of all data are no input's: in float16 they may be infinite.
        tests += [half_precisions] if relative.keeps_range else []
        tests += [far_from_zero] if relative.subtracts_mean else []
        tests += [*claims_of(relative.name), copies, as_named]
        findings = [formula, *(test(subject) for test in tests)]
        if removed:
            what = f"{', '.join(removed)} follows. All other tests are made without it."
            name = "nothing follows the norm"
            findings.append(Finding(name, None, what, "", "activation"))
        report = Report(_title(relative.name, subject, given.axis), tuple(findings))
        if formula.passed is not False:
            break
    return report


def _title(name: str, subject: Subject, axis: int) -> str:
    """Name the layer and the shape that it takes; the tests have the channels first."""
    taken = torch.empty(subject.shape, device="meta").movedim(1, axis).shape
    return f"{name} of ({', '.join(['N', *map(str, taken[1:])])})"


# Whatever a layer computes, these have a meaning.
OF_ANY = (dtype_is_kept, strides, input_is_kept, no_graph, half_precisions, copies)


def _report(subject: Subject, axis: int) -> Report:
    claims = [*OUTPUT_CLAIMS, *PRECISION_CLAIMS, *CALL_CLAIMS, *GRADIENT_CLAIMS]
    claims += EXAMPLE_CLAIMS if subject.kind != "batch" else []
    has_state = subject.kind in ("batch", "instance")
    claims += [*RUNNING_CLAIMS, *STATE_CLAIMS] if has_state else []
    # Half precision goes wrong for many reasons; others come first.
    claims += [in_evaluation, follows, copies, as_named, half_precisions]
    first, *others = claims
    findings = [first(subject)]
    if subject.is_random or not subject.is_finite:  # no other test tells anything
        why = "the output is random or not finite"
        cure = "Take that out first."
        findings += [Finding(claim.name, None, why, cure) for claim in others]
    elif findings[0].other == UNEXPLAINED:
        why = "it has a meaning for a norm that is known"
        findings += [
            test(subject) if test in OF_ANY else Finding(test.name, None, why)
            for test in others
        ]
        return Report(_title("unexplained norm", subject, axis), tuple(findings))
    else:
        findings += [claim(subject) for claim in others]
        plain = affine_is_held(subject)
        findings = [plain] * (plain.passed is False) + findings
    return Report(_title(subject.definition.name, subject, axis), tuple(findings))


@claim("it is the norm of its name, and nothing else")
def as_named(subject: Subject) -> Fault | Note | None:
    """Tell which conventions explain the output, where the name does not."""
    if not subject.relations:
        return _of_the_width(subject)
    names = ", ".join(relation.name for relation in subject.relations)
    reason = " ".join(relation.reason for relation in subject.relations)
    return Fault(reason, "Give it the name of what it computes.", names)


def _of_the_width(subject: Subject) -> Note | None:
    """Note that no channel has a part in the statistics of an image."""
    has_parameters = any(True for _ in subject.layer.parameters())
    dim, definition = len(subject.shape), subject.definition
    if has_parameters or dim != 4 or definition.axes(dim) != (3,):
        return None
    if definition.kind not in ("layer", "rms") or definition.groups > 1:
        return None
    return Note(
        "The statistics run over axis 3 alone: of images (N, C, H, W) that is the "
        "width, not the channels; it is right where the channels stand last.",
        "last axis alone",
    )


def _check_that_it_is_no_weight(layer: nn.Module) -> None:
    """Refuse what normalizes a weight, and not its input."""
    name = type(layer).__name__
    has_name = re.search("weightnorm|weightstand|spectralnorm|^ws", name.lower())
    if isinstance(layer, OWNERS) or has_name:
        raise ValueError(
            f"the layer must normalize its input, got a {name}, which multiplies it by "
            "weights, normalized or not: another scale of x scales the output. Weight "
            "norm, weight standardization and spectral norm are no norm layers; pass "
            f"the norm layer behind it.{weight_slip(layer)}"
        )


def _check_the_rest(
    shape: tuple[int, ...] | None, channel_axis: Any, call: Any, allow: Any
) -> None:
    if shape is not None and math.prod(shape) > MOST:
        raise ValueError(
            f"an input of the shape must have at most {MOST} values, got {shape}; the "
            "number of examples does not matter, pass a few."
        )
    dims = len(shape) if shape else MOST
    is_axis = type(channel_axis) is int and -dims < channel_axis < dims
    if not is_axis or channel_axis == 0:
        raise ValueError(
            "channel_axis must be an axis of the input, and not that of the examples, "
            f"got {channel_axis!r}{f' for shape {shape}' if shape else ''}; pass -1 "
            "where the channels are last."
        )
    if call is not None and not callable(call):
        raise TypeError(
            f"call must be a function of the layer and of x, got {call!r:.80}; pass "
            "lambda layer, x: layer(x, ...)."
        )
    names = (allow,) if isinstance(allow, str) else allow
    if not isinstance(names, Iterable) or any(not isinstance(n, str) for n in names):
        raise TypeError(
            f"allow must be a name of a report or several, got {allow!r:.80}; pass "
            'allow="1 + gain", say.'
        )


def _check_arguments(layer: Any, shape: Any, kind: Any, eps: Any) -> None:
    if not isinstance(layer, nn.Module):
        hint = "call the class first" if isinstance(layer, type) else "pass a layer"
        raise TypeError(f"layer must be a torch.nn.Module, got {layer!r:.80}; {hint}.")
    if any(isinstance(part, torch.jit.ScriptModule) for part in layer.modules()):
        raise TypeError(
            "layer must be Python code, as parameters of a copy of a script have no "
            f"gradient, got a {type(layer).__name__}; pass the layer before it was "
            "scripted."
        )
    if kind is not None and kind not in (*KINDS, "lstm"):
        raise ValueError(
            f"kind must be one of {', '.join(KINDS)} or lstm, got {kind!r}."
        )
    sizes = shape if isinstance(shape, tuple | list) else ()
    is_plain = len(sizes) > 1 and all(type(n) is int and n > 0 for n in sizes)
    if shape is not None and not is_plain:
        raise ValueError(
            "shape must be a tuple of two or more positive whole numbers, got "
            f"{shape!r}; pass that of an input, (N, D), say."
        )
    if isinstance(eps, bool):
        raise TypeError(f"eps must be a number, got {eps}; pass that of the layer.")
    if eps is not None:
        check_eps(eps)
    check_that_none_waits(layer)
    if empty := [n for n, p in layer.named_parameters() if not p.numel()]:
        raise ValueError(
            f"the layer must have one feature or more, got {empty[0]} without a value; "
            "build it with another size."
        )
    bad = [n for n, t in tensors_of(layer) if not t.is_meta and not t.isfinite().all()]
    if bad:
        raise ValueError(
            f"what the layer holds must be finite, got NaN or infinity in {bad[0]}; "
            "give it other values."
        )
    devices = {t.device for _, t in tensors_of(layer)} - {torch.device("cpu")}
    if devices:
        raise ValueError(
            "the layer must be on the CPU, where the tests run in float64, got "
            f"{type(layer).__name__} on {devices.pop()}; pass "
            "copy.deepcopy(layer).cpu()."
        )
