"""Look at every norm of a model, at the shapes and with the data that it meets."""

from __future__ import annotations

import json
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import normbook.checks.layer.recognition as recognition
from normbook.checks.calls import LayerError, call, called, evaluating
from normbook.checks.copies import copy_of
from normbook.checks.model.kernels import Kernel, kernels_of
from normbook.checks.model.runs import (
    Seen,
    batch_in,
    buffers_of,
    hidden_norms,
    lengths_in,
    look,
    narrowed,
    norms_of,
    output_of,
    run_on,
    tensors_in,
)
from normbook.checks.norm_layer import check_norm_layer
from normbook.checks.report import INDENT, WIDTH
from normbook.checks.unusual.conditions import undisturbed
from normbook.checks.unusual.padding import More, kept_places, part_of_padding

WRONG, RISK, NOTE = LEVELS = ("WRONG", "RISK", "NOTE")

# A gap, or a drift, that the noise of a batch does not explain.
LARGE_GAP = 0.1
STANDARD_ERRORS = 5
# A factor of variances, over channels, that matters; passes with dropout.
MORE, PASSES = 1.1, 4


class Harm(NamedTuple):
    """What may go wrong at one place; ``number`` says how much, by ``what``."""

    level: str  # one of LEVELS
    what: str
    number: float
    place: str  # path of the module, with how many more
    reason: str
    cure: str
    page: str = "Training and evaluation"  # chapter of the book


class Audit(NamedTuple):
    """What was found in a model, the worst first; ``print`` shows it."""

    model: str
    layers: int
    harms: tuple[Harm, ...]
    untested: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong, or a risk."""
        return all(harm.level == NOTE for harm in self.harms)

    def raise_if_failed(self) -> None:
        """Raise an ``AssertionError`` that tells the audit, unless it passed."""
        if not self.passed:
            raise AssertionError(str(self))

    def to_json(self) -> str:
        """Return the audit as JSON."""
        content = self._asdict() | {"passed": self.passed}
        return json.dumps(content | {"harms": [h._asdict() for h in self.harms]})

    def __str__(self) -> str:
        """Return a line for the whole, then place, number, cure and page of each."""
        counts = [sum(h.level == level for h in self.harms) for level in LEVELS]
        lines = [
            f"{self.model}: {self.layers} norm{'s' * (self.layers > 1)}; "
            f"{counts[0]} wrong, {counts[1]} at risk, {counts[2]} to note."
        ]
        for harm in self.harms:
            texts = (
                f"{harm.level:5}  {harm.place}: {harm.what}, {harm.number:.3g}",
                f"{INDENT}{harm.reason}",
                f"{INDENT}Cure: {harm.cure} Book: {harm.page}.",
            )
            for text in texts:
                lines += textwrap.wrap(text, WIDTH, subsequent_indent=INDENT)
        for text in self.untested:
            lines += textwrap.wrap(f"Not tested: {text}", WIDTH, subsequent_indent="  ")
        return "\n".join(lines)


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
    variances larger, which norms are never called, and whether an example depends on
    its neighbours in evaluation. Norms in lists of Python, which eval() does not reach,
    and weights of convolutions that are standardized for each input channel, or not
    divided by their deviation, are found. Biases in front of a norm and weight decay
    are left to general linters such as torch-audit.

    All runs are those of a copy without hooks, on the CPU or where the model is: the
    model itself, its modes and the random numbers stay as they are.

    Parameters
    ----------
    x : tensor, tuple or dict
        One batch of inputs: the argument, all arguments, or all named ones. Use real
        data, some 16 examples or more: what is said of statistics is said of x.

    Raises
    ------
    TypeError
        If ``model`` is no module, or cannot be copied.
    ValueError
        If the model holds no norm, or raises on x.

    Notes
    -----
    Source: book, chapters *Training and evaluation* and *Choosing axes*.

    Examples
    --------
    >>> model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.LayerNorm(8))
    >>> _ = audit(model, torch.randn(16, 2, 8))
    Sequential: 1 norm; 1 wrong, 0 at risk, 0 to note.
    WRONG  1: normalizes positions, not features, 8
           axis 2 of its input changes with the number of positions in x, and
           gain and bias differ along it.
           Cure: Move the features to the axis that the norm takes for them.
           Book: Choosing axes.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {model!r:.80}.")
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.inference_mode(False), torch.no_grad():
            report = _Auditor(model, x).report()
    if not quiet:
        print(report)
    return report


class _Apart(NamedTuple):
    """How far the channels of several inputs are from each other."""

    means: float  # in deviations
    variances: float  # a ratio
    is_far: bool  # beyond what the noise of a batch explains


def _apart(inputs: list[Tensor]) -> _Apart | None:
    """Compare means and variances; None where there are no channels to compare."""
    if len({x.shape[1] for x in inputs}) != 1 or len(inputs) < 2:
        return None
    moments = [torch.var_mean(x, [0, *range(2, x.dim())]) for x in inputs]
    var, mean = (torch.stack(of) for of in zip(*moments, strict=True))
    var = var + 1e-12
    drift = float(((mean.amax(0) - mean.amin(0)) / var.amin(0).sqrt()).max())
    ratio = float((var.amax(0) / var.amin(0)).max())
    # As many standard errors as a batch may err by, of mean and of variance.
    noise = STANDARD_ERRORS / min(x.numel() / x.shape[1] for x in inputs) ** 0.5
    is_far = drift >= max(LARGE_GAP, noise) or ratio >= 1 + max(LARGE_GAP, 2 * noise)
    return _Apart(drift, ratio, is_far)


class _Auditor:
    """A copy of a model, and what its norms see."""

    def __init__(self, model: nn.Module, x: Any) -> None:
        self.name, self.original = type(model).__name__, model
        self.model = evaluating(copy_of(model))
        self.x = x
        self.shared: set[str] = set()  # batch norms whose inputs differ by the place
        self.again: dict[str, list[Tensor]] = {}  # what norms saw when called again
        self.untested: list[str] = []
        self.names = [name for name, _ in norms_of(self.model)]
        self._must_hold_a_norm()
        by_batch = copy_of(self.model)
        for _, norm in norms_of(by_batch):
            norm.train()
        before = {path: b.clone() for path, b in buffers_of(by_batch)}
        self.seen = [*look(by_batch, x, self.again)]
        # Where two norms hold one buffer, it is one in the copy, too.
        self.moved = {
            path: buffer
            for path, buffer in buffers_of(by_batch)
            if path not in before or not buffer.equal(before[path])
        }
        self._leave_out()

    def _must_hold_a_norm(self) -> None:
        if not self.names:
            hidden = ", ".join(hidden_norms(self.model))
            where = f" but in lists of Python: {hidden:.160}; use nn.ModuleList"
            raise ValueError(
                f"the model must hold a norm, got a {self.name} without"
                f"{where if hidden else ''}."
            )

    def _leave_out(self) -> None:
        """Take what changes the shape of its input for no norm, whatever its name."""
        others = [seen.name for seen in self.seen if seen.x.shape != seen.y.shape]
        if not others:
            return
        self.untested.append(
            f"{type(self.model.get_submodule(others[0])).__name__} at "
            f"{_place(others)}: its output has another shape than its input, so that "
            "it is taken for no norm."
        )
        self.seen = [seen for seen in self.seen if seen.name not in others]
        self.names = [name for name in self.names if name not in others]
        self._must_hold_a_norm()

    def report(self) -> Audit:
        """Make all tests, and sort what they found by harm."""
        tests: tuple[Callable[[], Iterator[Harm]], ...] = (
            self._broken,
            self._unregistered,
            self._uncalled,
            self._mixed,
            self._neighbours,
            self._not_features,
            self._one_value,
            self._read_as_one,
            self._kernels,
            self._shared,
            self._gaps,
            self._dropped,
            self._tracked,
            self._frozen,
            self._padding,
            self._small_variances,
            self._silent,
        )
        alike: dict[Any, list[Harm]] = {}
        for harm in (harm for test in tests for harm in test()):
            key = harm.level, harm.what, harm.cure
            alike.setdefault(key, []).append(harm)
        harms = []
        for group in alike.values():
            worst = max(group, key=lambda harm: harm.number)
            place = _place([harm.place for harm in group], worst.place)
            harms.append(worst._replace(place=place))
        harms.sort(key=lambda harm: (LEVELS.index(harm.level), -harm.number))
        return Audit(self.name, len(self.names), tuple(harms), tuple(self.untested))

    def _broken(self) -> Iterator[Harm]:
        """Check each class with each setting once, the smallest of its layers."""
        groups: dict[str, list[Seen]] = {}
        for seen in self.seen:
            if seen.is_read_as_one:
                continue
            setting = re.sub(r"\(\s*\d+\b|\(\(.*?\)|=\d+\b", "", repr(seen.norm))
            held = sorted(name for name, _ in seen.norm.named_parameters())
            key = f"{type(seen.norm)} {setting} {held} {seen.x.dim()}"
            groups.setdefault(key, []).append(seen)
        for group in groups.values():
            least = min(group, key=lambda seen: seen.x[0].numel())
            place = _place([seen.name for seen in group], least.name)
            try:
                norm = copy_of(least.norm).float().cpu()
                shape = tuple(least.x.shape)
                way = undisturbed(norm, least.x.cpu(), least.more)
                report = check_norm_layer(norm, shape, call=way, quiet=True)
            except (TypeError, ValueError) as error:
                what = f"{type(least.norm).__name__} at {place}"
                self.untested.append(f"{what} by itself: {str(error)[:160]}")
                continue
            for finding in report.findings:
                if finding.other == "only the last batch":
                    yield Harm(
                        NOTE,
                        f"running statistics of {finding.other}",
                        len(group),
                        place,
                        finding.reason,
                        "Take a small momentum, 0.1 say, unless it is meant so.",
                        "Moving averages",
                    )
                if finding.verdict == "wrong":
                    level = WRONG
                    if "float16" in finding.name:  # no risk where it is not used
                        level = RISK if self._is_half() else NOTE
                    if "is refused" in finding.name:  # there is no such batch here
                        level = NOTE
                    yield Harm(
                        level,
                        f"not true of {type(least.norm).__name__}: {finding.name}",
                        len(group),
                        place,
                        finding.reason,
                        finding.cure,
                    )

    def _is_half(self) -> bool:
        """Return whether the model, or x, is in half precision."""
        given = (*self.original.parameters(), *tensors_in(self.x))
        return any(t.dtype in (torch.half, torch.bfloat16) for t in given)

    def _unregistered(self) -> Iterator[Harm]:
        """Look for norms in lists and dicts, and whether the model calls them."""
        model = copy_of(self.model)
        if not (hidden := hidden_norms(model)):
            return
        called = self._entered(model, hidden)
        if not (found := [name for name in hidden if name in called]):
            return
        missed = [hidden[name] for name in found if hidden[name].training]
        by_batch = sum(recognition.kind_of(norm) == "batch" for norm in missed)
        of_them = f"{by_batch} of them normalize{'s' * (by_batch == 1)} by the batch in"
        yield Harm(
            WRONG if missed else NOTE,  # in evaluation mode perhaps on purpose
            "norms that are not registered",
            len(found),
            _place(found),
            "they stand in a list or dict of Python, where parameters(), state_dict() "
            "and to() do not see them, nor eval()"
            f"{f': {of_them} evaluation' if by_batch else ''}.",
            "Put them into nn.ModuleList or nn.ModuleDict.",
        )

    def _uncalled(self) -> Iterator[Harm]:
        """Name the norms that a pass does not use, in neither mode."""
        met = {seen.name for seen in self.seen}
        rest = [name for name in self.names if name not in met]
        if not rest:
            return
        model = copy_of(self.model)
        paths = {*rest, *(name.rpartition(".")[0] for name in rest)}
        parts = {path: model.get_submodule(path) for path in paths}
        in_evaluation = self._entered(model, parts)
        entered = in_evaluation | self._entered(model.train(), parts)
        if others := [name for name in rest if name in entered]:
            self.untested.append(
                f"norms called in training only, or with another input than a tensor "
                f"of two axes or more: {', '.join(others):.160}."
            )
        idle = [name for name in rest if name not in entered]
        some = idle if self._is_read(idle) else []
        read = [name for name in some if self._is_read([name])]
        if read:
            self.untested.append(
                f"norms whose parameters are used without a call: "
                f"{', '.join(read):.160}."
            )
        for name in idle:
            if name not in read:
                yield self._idle(name, in_evaluation)

    def _entered(self, model: nn.Module, parts: Mapping[str, nn.Module]) -> set[str]:
        """Run a model, which keeps hooks, and return which of its parts it calls."""
        entered = set[str]()

        def note(name: str) -> Any:
            return lambda *_: entered.add(name)

        for name, part in parts.items():
            part.register_forward_pre_hook(note(name))
        with suppress(LayerError):
            run_on(model, self.x)
        return entered

    def _idle(self, name: str, entered: set[str]) -> Harm:
        """Say of a norm that nothing calls whether it was mixed up with another."""
        path, _, leaf = name.rpartition(".")
        parts = dict(self.model.named_modules())

        def sizes(name: str) -> list[Any]:
            held = parts[name].named_parameters()
            return [type(parts[name]), *((key, p.shape) for key, p in held)]

        beside = (one for one in self.again if one.rpartition(".")[0] == path)
        twice = [one for one in beside if sizes(one) == sizes(name)]
        # Of a list a part may be used on purpose, of a branch perhaps none.
        is_beside = path in entered
        reason = "the model runs on x without it, and it learns nothing."
        if twice:
            reason += (
                f" {twice[0]}, with parameters of the same size, is called "
                f"{1 + len(self.again[twice[0]])} times: together they look like a "
                "mix-up."
            )
        elif not is_beside and not isinstance(
            parts[path], nn.ModuleList | nn.ModuleDict
        ):
            reason += " The part that holds it is not called, either."
        return Harm(
            RISK if is_beside else NOTE,
            f"{leaf} is never called",
            1,
            name,
            reason,
            "Call it where it belongs, or take it out.",
        )

    def _is_read(self, names: list[str]) -> bool:
        """Return whether what norms hold matters, though they are not called."""
        model = copy_of(self.model)

        def outputs() -> list[Tensor]:
            with suppress(LayerError), torch.random.fork_rng():
                return tensors_in(run_on(model, self.x))
            return []

        before = outputs()
        for name in names:
            norm = model.get_submodule(name)
            for tensor in (*norm.parameters(), *norm.buffers()):
                if tensor.is_floating_point():
                    tensor.add_(1 + torch.rand_like(tensor))
        after = outputs()
        return len(before) != len(after) or not all(map(_equal, before, after))

    def _mixed(self) -> Iterator[Harm]:
        """Look for running statistics into which several norms write."""
        owners: dict[tuple[int, int], list[str]] = {}
        for path, buffer in self.moved.items():
            key = buffer.untyped_storage().data_ptr(), int(buffer.storage_offset())
            owners.setdefault(key, []).append(path)
        pairs: dict[tuple[str, ...], list[str]] = {}
        for paths in owners.values():
            names = tuple(path.rpartition(".")[0] for path in paths)
            if len(names) > 1:
                pairs.setdefault(names, []).append(paths[0].rpartition(".")[2])
        at = {seen.name: seen for seen in self.seen}
        for names, buffers in pairs.items():
            apart = _apart([at[name].x for name in names if name in at])
            if apart is None:
                continue
            self.shared |= {*names}
            differ = (
                f"What comes to them differs: the means by up to {apart.means:.2g} "
                f"sigma, the variances by up to {apart.variances:.3g} times, and "
                "evaluation normalizes neither as training does."
                if apart.is_far
                else "On x the places are alike."
            )
            yield Harm(
                WRONG if apart.is_far else RISK,
                "norms that write into the same running statistics",
                len(names),
                " and ".join(names) if len(names) < 3 else _place([*names]),
                f"{' and '.join(buffers)} are the same memory in them, a mixture of "
                f"several places. {differ}",
                "Give each norm buffers of its own: register_buffer(name, "
                "tensor.clone()).",
                "Moving averages",
            )

    def _kernels(self) -> Iterator[Harm]:
        """Look at the weights that convolutions make of their own."""
        model, kernels = copy_of(self.model), list[Kernel]()
        with suppress(LayerError):
            kernels = [*kernels_of(model, lambda: run_on(model, self.x))]
        for kernel in (kernel for kernel in kernels if kernel.is_by_input):
            yield Harm(
                WRONG,
                "weights standardized over the wrong axes",
                kernel.weight.shape[1],
                kernel.name,
                "the convolution gets a weight of mean 0 and one deviation for each "
                "input channel, over axes (0, 2, 3), as activations have it; the "
                "filters, one for each output channel, are not.",
                "Standardize each filter: take mean and variance over axes (1, 2, 3).",
                "Choosing axes",
            )
        for kernel in (kernel for kernel in kernels if kernel.slip):
            yield Harm(
                WRONG,
                "weights that are centred, and not standardized",
                len(kernel.weight),
                kernel.name,
                f"the filters of the convolution are {kernel.slip}: they keep the "
                "mean 0, and get deviations that differ.",
                "Divide each filter by the root of its variance: (w - mean) * "
                "(var + eps).rsqrt().",
                "Scale invariance",
            )

    def _neighbours(self) -> Iterator[Harm]:
        """Evaluate the first example alone, and find where it first differs."""
        whole_x = batch_in(self.x)
        if whole_x is None or len(whole_x) < 2:
            why = "all tensors of x must have one length, of two or more."
            self.untested.append(f"neighbours in evaluation: {why}")
            return
        count, few = 1, narrowed(self.x, 0, 1)
        try:
            run_on(self.model, few)
        except LayerError as error:
            self.untested.append(f"one example in evaluation: {error}")
            count = max(2, len(whole_x) // 2)
            few = narrowed(self.x, 0, count)
        try:
            outputs = (tensors_in(run_on(self.model, x)) for x in (self.x, self.x, few))
            together, again, alone = (next(iter(of), None) for of in outputs)
        except LayerError as error:
            self.untested.append(f"neighbours in evaluation: {error}")
            return
        if together is None or again is None or not torch.equal(together, again):
            self.untested.append("neighbours in evaluation: the model is random.")
            return
        change = 0.0 if alone is None else _share(together[:1] - alone[:1], together)
        if change < 1e-3:
            return
        whole = {seen.name: seen for seen in look(self.model, self.x)}
        first = next(
            (
                seen.name
                for seen in look(self.model, few)
                if seen.y.shape[1:] == whole[seen.name].y.shape[1:]
                and _share(seen.y[:1] - whole[seen.name].y[:1], seen.y) > 1e-4
            ),
            "the whole model",
        )
        yield Harm(
            WRONG,
            "an example depends on its neighbours in evaluation",
            change,
            first,
            f"{_first(count)} has another output than beside the others, by this "
            "share; it begins here.",
            "Evaluate by running statistics, or normalize each example by itself.",
        )

    def _not_features(self) -> Iterator[Harm]:
        """Give fewer examples and positions; what changes length is no feature."""
        whole_x = batch_in(self.x)
        if whole_x is None:
            why = "all tensors of x must have one length."
            self.untested.append(f"axes that are no features: {why}")
            return
        lengths = lengths_in(copy_of(self.model), self.names)
        sizes = lengths(self.x)
        found, is_tried = {}, False
        for axis, length in enumerate(whole_x.shape):
            if length < 4:
                continue
            others = lengths(narrowed(self.x, axis, length // 2))
            is_tried |= axis > 0 and bool(others)
            what = "examples" if axis == 0 else "positions"
            for seen in self.seen:
                if seen.is_read_as_one:
                    continue
                own, other = sizes.get(seen.name, ()), others.get(seen.name, ())
                for k in seen.definition.parameter_axes(seen.x.dim()):
                    if len(own) == len(other) == seen.x.dim() and own[k] != other[k]:
                        found[seen.name] = what, k, own[k]
        if not is_tried and whole_x.dim() > 2:
            self.untested.append(
                "axes that are no features: the model takes one length only."
            )
        for name, (what, k, length) in found.items():
            yield Harm(
                WRONG,
                f"normalizes {what}, not features",
                length,
                name,
                f"axis {k} of its input changes with the number of {what} in x, and "
                "gain and bias differ along it.",
                "Move the features to the axis that the norm takes for them.",
                "Choosing axes",
            )

    def _one_value(self) -> Iterator[Harm]:
        for seen in self.seen:
            if seen.definition.size(tuple(seen.x.shape)) != 1 or seen.is_read_as_one:
                continue
            of = seen.definition.parameter_axes(seen.x.dim())
            rest = [k for k in range(seen.x.dim()) if k not in of]
            spread = seen.y - seen.y.mean(rest, keepdim=True) if rest else 0 * seen.y
            if float(spread.abs().max()) > 0.01:  # not the bias
                self.untested.append(
                    f"{type(seen.norm).__name__} at {seen.name}: a "
                    f"{seen.definition.name} of an input of shape "
                    f"{tuple(seen.x.shape)} would be its bias, and is not."
                )
                continue
            yield Harm(
                WRONG,
                "a mean over one value",
                1,
                seen.name,
                "each value is its own mean, and the output is the bias, whatever x "
                "is.",
                "Normalize over more channels or positions.",
                "Choosing axes",
            )

    def _read_as_one(self) -> Iterator[Harm]:
        """Look for instance norms of torch that take the examples for channels."""
        whole = batch_in(self.x)
        for seen in self.seen:
            size = getattr(seen.norm, "num_features", None)
            count, features, *_ = seen.x.shape
            is_batch = whole is not None and len(whole) == count
            if not seen.is_read_as_one or features != size or not is_batch:
                continue
            over = " x ".join(map(str, seen.x.shape[1:]))
            what = "row over its" if seen.x.dim() == 2 else "example over all its"
            yield Harm(
                WRONG,
                "takes the examples for the channels of one",
                count,
                seen.name,
                f"torch reads an input of {seen.x.dim()} axes, "
                f"{tuple(seen.x.shape)}, as one example of {count} channels without a "
                f"batch, and normalizes each {what} {over} values, as layer norm does.",
                f"Use nn.LayerNorm, if that is meant, nn.BatchNorm1d, or give it "
                f"{seen.x.dim() + 1} axes.",
                "Choosing axes",
            )

    def _shared(self) -> Iterator[Harm]:
        """Compare what comes to a batch norm in several places of one pass."""
        for seen in self.seen:
            if seen.kind != "batch" or seen.name not in self.again:
                continue
            if not isinstance(getattr(seen.norm, "running_mean", None), Tensor):
                continue
            inputs = [seen.x, *self.again[seen.name]]
            apart = _apart(inputs)
            if apart is None or not apart.is_far:
                continue
            self.shared.add(seen.name)
            yield Harm(
                RISK,
                "one batch norm in several places",
                len(inputs),
                seen.name,
                f"its inputs there differ: the means by up to {apart.means:.2g} sigma, "
                f"the variances by up to {apart.variances:.3g} times. The running "
                "statistics mix them, and evaluation normalizes neither as training "
                "does.",
                "Give each place a batch norm of its own; weights around it may be "
                "shared.",
            )

    def _gaps(self) -> Iterator[Harm]:
        """Compare evaluation with training at each layer, on the same input."""
        fresh, trained = [], 0
        far: list[tuple[str, float, float, float]] = []
        for seen in self.seen:
            norm = copy_of(self.model.get_submodule(seen.name))
            mean, var = (getattr(norm, f"running_{of}", None) for of in ("mean", "var"))
            if not (isinstance(mean, Tensor) and isinstance(var, Tensor)):
                continue
            if seen.kind != "batch" or mean.numel() != seen.x.shape[1]:
                continue
            if seen.name in self.shared:  # told by its own harm
                continue
            count = getattr(norm, "num_batches_tracked", None)
            has_seen_any = isinstance(count, Tensor) and bool(count > 0)
            is_fresh = not has_seen_any and not mean.any() and bool((var == 1).all())
            y = seen.y
            if not seen.norm.training:  # the model itself put it into evaluation mode
                y = output_of(copy_of(seen.norm).train(), seen.x)
            gap = _share(output_of(norm, seen.x) - y, y, of="norm")
            v, m = torch.var_mean(seen.x, [0, *range(2, seen.x.dim())])
            n = seen.x.numel() / seen.x.shape[1]
            drift = ((mean.double() - m).abs() / (v + 1e-12).sqrt()).max().item()
            ratios = (var.double() + 1e-12) / (v + 1e-12)
            ratio = torch.maximum(ratios, 1 / ratios).max().item()
            is_far = gap >= LARGE_GAP and gap >= STANDARD_ERRORS / n**0.5
            if is_fresh and count is None and not is_far:
                continue  # it may not use what it holds
            trained += not is_fresh
            if is_fresh:
                fresh.append(seen.name)
                far += [(seen.name, gap, drift, ratio)] * is_far
                continue
            if not is_far:
                continue
            yield Harm(
                RISK,
                "evaluation differs from training",
                gap,
                seen.name,
                "by this share of the output, on the same input. The running mean is "
                f"up to {drift:.2g} sigma from the mean of x, the variances are up to "
                f"{ratio:.3g} times each other's.",
                "Recalibrate with normbook.layers.recalibrate, or use larger batches.",
                "Moving averages",
            )
        # What is yet to be trained is no risk; what is frozen, or in evaluation mode
        # beside norms that were trained, was forgotten.
        for name, gap, drift, ratio in far:
            norm = self.original.get_submodule(name)
            if not (_is_frozen(norm) or (trained and not norm.training)):
                continue
            fresh.remove(name)
            why = "It is frozen" if _is_frozen(norm) else "It is in evaluation mode"
            why += ", while other norms of the model saw batches" if trained else ""
            yield Harm(
                RISK,
                "running statistics that saw no batch, far from those of x",
                gap,
                name,
                "evaluation normalizes by the mean 0 and variance 1 of the start, and "
                "the output differs by this share from that by the statistics of x: "
                f"means up to {drift:.2g} sigma from 0, variances up to {ratio:.3g} "
                f"times. {why}.",
                "Copy or average buffers as parameters are, where this is a teacher or "
                "a copy; or load them, or recalibrate.",
                "Moving averages",
            )
        if fresh:
            yield Harm(
                NOTE,
                "running statistics that saw no batch",
                len(fresh),
                _place(fresh),
                "evaluation normalizes by the mean 0 and variance 1 of the start.",
                "Train, load a checkpoint with its buffers, or recalibrate.",
                "Moving averages",
            )

    def _dropped(self) -> Iterator[Harm]:
        """Compare the variances at batch norms with dropout and without."""

        def variance(seen: Seen) -> Tensor:
            return seen.x.var([0, *range(2, seen.x.dim())], correction=0) + 1e-12

        still = {
            seen.name: variance(seen) for seen in self.seen if seen.kind == "batch"
        }
        model, logs = copy_of(self.model).train(), dict[str, list[Tensor]]()
        for _, norm in norms_of(model):
            norm.train()
        for _ in range(PASSES if still else 0):
            try:
                met = [*look(copy_of(model), self.x)]
            except ValueError:  # as one that needs targets in training
                self.untested.append("dropout: in training the model refuses x.")
                return
            for seen in met:
                if seen.name in still and seen.x.shape[1:2] == still[seen.name].shape:
                    log = (variance(seen) / still[seen.name]).log().mean()
                    logs.setdefault(seen.name, []).append(log)
            if all(max(of) < math.log(MORE) for of in logs.values()):
                return
        for name, of in logs.items():
            norm = self.model.get_submodule(name)
            ratio = float(torch.stack(of).mean().exp())
            is_tracked = isinstance(getattr(norm, "running_var", None), Tensor)
            if ratio >= MORE and is_tracked and name not in self.shared:
                yield Harm(
                    NOTE,
                    "dropout in front, which makes variances larger",
                    ratio,
                    name,
                    "by this factor, on the same x, and in training alone. The running "
                    "variance takes it in, so that evaluation divides by too much.",
                    "Put the dropout behind the last batch norm, or take layer norm.",
                )

    def _tracked(self) -> Iterator[Harm]:
        """Compare evaluation with training where instance norm has both."""
        for seen in self.seen:
            is_tracked = getattr(seen.norm, "track_running_stats", False)
            if seen.kind != "instance" or not is_tracked:
                continue
            y = output_of(copy_of(self.model.get_submodule(seen.name)), seen.x)
            gap = _share(y - seen.y, seen.y, of="norm")
            if gap < LARGE_GAP:
                continue
            yield Harm(
                RISK,
                "instance norm that evaluates by running statistics",
                gap,
                seen.name,
                "evaluation normalizes all examples by one mean and variance, as batch "
                "norm does, and differs from training by this share of the output.",
                "Leave track_running_stats=False.",
            )

    def _frozen(self) -> Iterator[Harm]:
        """Look at the model as it is given: what is frozen, and in which mode."""
        norms = ((name, self.original.get_submodule(name)) for name in self.names)
        frozen = [
            name
            for name, norm in norms
            if norm.training and _is_frozen(norm)
            if isinstance(getattr(norm, "running_mean", None), Tensor)
        ]
        if frozen:
            yield Harm(
                RISK,
                "frozen, but in training mode",
                len(frozen),
                _place(frozen),
                "requires_grad=False stops gain and bias. The running statistics move "
                "on, and the batch normalizes.",
                "Call eval() on these layers after each train().",
            )
        again = copy_of(self.original).train()
        undone = [
            name
            for name in self.names
            if not (norm := self.original.get_submodule(name)).training
            if self.original.training and _is_frozen(norm)
            if again.get_submodule(name).training
            if isinstance(getattr(norm, "running_mean", None), Tensor)
        ]
        if undone:
            yield Harm(
                NOTE,
                "frozen until the next train()",
                len(undone),
                _place(undone),
                "gain and bias are frozen, and eval() stops the running statistics; "
                "train() of the model undoes that, and they move on.",
                "Call eval() on these layers after each train(), or in a train() of "
                "the model.",
            )

    def _padding(self) -> Iterator[Harm]:
        """Take padding at the end of sequences away, and compare what is kept."""
        for seen in self.seen:
            if seen.kind not in ("batch", "instance", "group") or seen.x.dim() != 3:
                continue
            keep = kept_places(seen.x, seen.more)
            share = 1 - keep.double().mean().item()
            if not 0.02 < share < 1:
                continue
            norm = copy_of(seen.norm)
            like = next(norm.parameters(), torch.zeros((), device=seen.x.device))

            def run(
                x: Tensor, more: More, norm: Any = norm, like: Any = like
            ) -> Tensor:
                with called(lambda layer, x: layer(x, *more[0], **more[1])):
                    return call(norm, x.to(like.dtype))

            try:
                part = part_of_padding(run, seen.definition, seen.x, keep, seen.more)
            except LayerError:
                part = None
            if part is None:
                self.untested.append(f"padding of {seen.name}: too little is kept.")
                continue
            if not part.of:
                continue
            rest = {"mean", "variance"} - {*part.of}
            but = f", not of the {' or '.join(rest)}" if rest else ""
            yield Harm(
                RISK,
                "padding inside the statistics",
                share,
                seen.name,
                "this share of all positions is padding, and part of the "
                f"{' and the '.join(part.of)}{but}: without it, what is kept changes "
                f"by {part.change:.2g} of the output.",
                f"Take the {' and the '.join(part.of)} over what is no padding.",
                "Variable length",
            )

    def _small_variances(self) -> Iterator[Harm]:
        for seen in self.seen:
            eps = recognition.eps_of(seen.norm, seen.x.dtype) or 0.0
            if seen.definition.size(tuple(seen.x.shape)) == 1:
                continue
            inputs = [seen.x, *self.again.get(seen.name, [])]
            inputs = [x for x in inputs if x.shape[1:] == seen.x.shape[1:]]
            variances = [seen.definition.moments(x)[1] for x in inputs]
            var = torch.cat([v.flatten() for v in variances])
            share = (var < eps).double().mean().item()
            of = f", in {len(inputs)} calls," if len(inputs) > 1 else ""
            if share > 0.01:
                yield Harm(
                    RISK if share > 0.5 else NOTE,
                    "variances below eps",
                    share,
                    seen.name,
                    f"this share of the variances{of} is below eps = {eps:.2g}; the "
                    f"least is {var.min():.2g}. There eps divides, not sigma.",
                    "Scale what comes in, or take a smaller eps.",
                    "Batch normalization",
                )

    def _silent(self) -> Iterator[Harm]:
        for seen in self.seen:
            name = recognition.only_parameter(seen.norm, recognition.GAINS)
            if name is None:
                continue
            gain = seen.norm.get_parameter(name)
            is_off = gain.abs() < 1e-3
            # Of 1 + weight a weight of 0 is no gain of 0: the output moves.
            of = seen.definition.parameter_axes(seen.y.dim())
            rest = [k for k in range(seen.y.dim()) if k not in of]
            spread = seen.y.amax(rest) - seen.y.amin(rest)
            if spread.numel() == gain.numel():
                is_off &= spread.reshape(gain.shape) < 0.1
            share = is_off.double().mean().item()
            if share <= 0.01:
                continue
            if not gain.any():
                reason = "all gains are 0, and the output is the bias, whatever x is."
                cure = "Nothing, if a branch begins at 0 on purpose; else begin with 1."
            else:
                all_of = "all" if share == 1 else "some"
                reason = f"the output of {all_of} channels is the bias."
                cure = "Prune the channels, or spare gains from weight decay."
            yield Harm(
                NOTE, "gains near 0", share, seen.name, reason, cure, "Scale invariance"
            )


def _is_frozen(norm: nn.Module) -> bool:
    held = [*norm.parameters(recurse=False)]
    return bool(held) and not any(p.requires_grad for p in held)


def _first(count: int) -> str:
    return (
        "the first example alone" if count == 1 else f"one of the first {count} alone"
    )


def _place(names: list[str], first: str | None = None) -> str:
    first = first or names[0]
    return f"{first} and {len(names) - 1} more" if len(names) > 1 else first


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, equal_nan=True)


def _share(change: Tensor, whole: Tensor, of: str = "max") -> float:
    """Return the size of a change as a share of the whole."""
    if of == "norm":
        return float(change.norm() / whole.norm().clamp_min(1e-12))
    return float(change.abs().max() / whole.abs().max().clamp_min(1e-12))
