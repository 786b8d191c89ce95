"""The layer under test: what it should be, which inputs it takes, copies of it."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

import normbook.checks.layer.recognition as recognition
from normbook.checks.calls import LayerError, call, evaluating
from normbook.checks.copies import copy_of, in_dtype, tensors_of
from normbook.checks.layer.definitions import DIVISORS, Definition
from normbook.checks.layer.parts import along_axes, has_a_part
from normbook.checks.tensors import (
    LARGE,
    TOLERANCE,
    Formula,
    Runs,
    draw,
    fit,
    is_near,
    largest,
    other_axes,
)

UNKNOWN = "the kind of norm must be known"  # begins what is raised
# A norm forgets the scale; what does not normalize grows as the input does.
SCALE, MUCH = 50, 10
STATE = re.compile("state|hidden|hx|h_?(0|prev)?$|prev|carry")

USUAL_EPS = (1e-5, 1e-3, 1e-6, 1e-8, 1e-4, 1e-7, 1e-2, 1e-12)


def _eps_that_acts(
    divisor: Callable[[Tensor, float], Tensor], var: Tensor, seen: Tensor
) -> float:
    """Solve for eps where about a half of the output is left."""
    at = (seen - 0.5).abs().argmin()
    low, high = -15.0, 1.0  # powers of ten
    for _ in range(60):
        eps = 10 ** ((low + high) / 2)
        is_less = var[at].sqrt() / divisor(var[at], eps) > seen[at]
        low, high = (math.log10(eps), high) if is_less else (low, math.log10(eps))
    return eps


def _is_elementwise(part: nn.Module) -> bool:
    """Return whether a part without parameters maps each number by itself.

    What draws, such as dropout, does not, even where two draws happen to be alike.
    """
    if any(True for _ in tensors_of(part)) or isinstance(part, nn.Identity):
        return False
    x = torch.linspace(-3, 3, 8)
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            y, some = part(x.clone()), part(x[::2].clone())
        except Exception:  # noqa: BLE001 - it wants another input
            return False
        if not torch.get_rng_state().equal(before):
            return False
    is_map = isinstance(y, Tensor) and y.shape == x.shape and not y.equal(x)
    return is_map and bool(torch.equal(y[::2], some))


def without_activations(layer: nn.Module) -> Iterator[tuple[nn.Module, list[str]]]:
    """Yield a layer, and if it holds activations a copy without them."""
    yield layer, []
    bare, removed = copy_of(layer), []
    for name, part in layer.named_modules():
        if name and _is_elementwise(part):
            bare.set_submodule(name, nn.Identity())
            removed.append(type(part).__name__)
    if removed:
        yield bare, removed


def _why_it_grows(output: Formula, x: Tensor) -> str:
    """Say which part of the output grows, or what is added to it; or nothing."""
    y, large = output(x), output(SCALE * x)
    if is_near(large, SCALE**2 * y, 0.01):
        return "as its square: x is multiplied by its size, not divided by it"
    for axis in range(1, x.dim()):
        others = other_axes(x.dim(), axis)
        grows = large.std(others) > MUCH * y.std(others)
        if 0 < int(grows.sum()) < len(grows):
            places = grows.nonzero().flatten().tolist()
            which = ", ".join(map(str, places[:8])) + ", ..." * (len(places) > 8)
            return f"places {which} of axis {axis} are not normalized, others are"
    rest = (large - y) / (SCALE - 1)
    share = (rest * x).sum() / x.square().sum()
    if not is_near(rest, share * x):
        return ""
    if is_near(y, share * x):
        return f"it gives x back, times {share:.3g}"
    return f"x itself, times {share:.3g}, is added to what is normalized, a residual"


class Given(NamedTuple):
    """What the user says of a layer; None where that is to be found out."""

    shape: tuple[int, ...] | None = None
    kind: str | None = None
    eps: float | None = None
    axis: int = 1  # where the layer has the channels; shape has them on axis 1


class Relation(NamedTuple):
    """A convention that a layer follows, other than the norm that its name says."""

    name: str
    reason: str


# Of the largest output: no norm with a slip in it is that far off.
FAR = 0.5


class Subject:
    """A copy of the user's layer in training mode, and what a test has to know of it.

    ``definition`` is what the layer should compute, ``shape`` that of an input, with a
    number of examples that suits the tests. ``dtype`` is float64 where the layer can,
    so that rounding hides nothing. ``gain`` and ``bias`` are the names of parameters.
    """

    copy_error: Exception | None = None  # what copy.deepcopy raised
    definition: Definition
    # Gain and bias as the tests set them, spread over an input; 1 and 0 where the layer
    # has none; None where it has others than those of a known name.
    as_set: tuple[Tensor, Tensor] | None
    # What is added to the parameter before it is the gain: 1 in some networks.
    gain_offset = 0.0
    # What else multiplies gain * x_hat; 1 where that cannot be told.
    factor = 1.0
    has_other_gain = False  # one for each head, of which a function acts
    # The gain and bias that act on x_hat, spread over an input: as set, or as found on
    # one batch where they are not known or act in another way.
    affine: tuple[Tensor, Tensor]

    def __init__(
        self,
        layer: nn.Module,
        given: Given,
        relative: tuple[str, str] | None = None,
        *,
        has_condition: bool = False,
    ) -> None:
        self.has_condition, self.axis = has_condition, given.axis
        try:
            copy.deepcopy(layer)
        except Exception as error:  # noqa: BLE001 - any refusal becomes a finding
            self.copy_error = error
        self.layer, self.name = copy_of(layer), type(layer).__name__
        self.learned = {n for n, p in layer.named_parameters() if p.requires_grad}
        for parameter in self.layer.parameters():
            if parameter.is_floating_point():
                parameter.requires_grad_()
        self.layer.train()
        dtypes = (parameter.dtype for parameter in self.layer.parameters())
        self.given_dtype = next(dtypes, torch.float32)
        self.gain = self.bias = None  # of a condition they are not the layer's own
        if not has_condition:
            self.gain = recognition.only_parameter(self.layer, recognition.GAINS)
            self.bias = recognition.only_parameter(self.layer, recognition.BIASES)
        self.given = self.fresh()  # with gain and bias as they begin
        self.relations: list[Relation] = []
        if relative:
            self._take_as(relative, given.shape)
            return
        self._recognize(given.shape, given.kind)
        self._compute_in_double_precision()
        self._check_that_it_normalizes()
        self.set_affine(seed=0)
        # Gains alike may hide where they act, and more gains than there are fit, too.
        is_explained = self._fits() and self._holds_as_many(self.definition)
        if not (is_explained or self.is_random):
            self._find_relation(self.kind)
        if torch.equal(self.output(self.draw(0)), self.output(self.draw(1))):
            raise ValueError(
                f"the output must depend on the input, got a {self.name} that gives "
                "the same for any, whatever the parameters are; return gain * x_hat + "
                "bias."
            )
        told = given.eps
        if told is None:
            told = recognition.eps_of(self.layer, self.dtype)
        self.is_eps_told = told is not None
        self.eps = self._eps_by_behaviour() if told is None else float(told)
        self._find_affine()

    # What the layer holds.

    @property
    def kind(self) -> str:
        """Return the kind of the definition."""
        return self.definition.kind

    @property
    def names(self) -> list[str]:
        """Return the names of gain and bias, of those that are known."""
        return [name for name in (self.gain, self.bias) if name is not None]

    @property
    def has_known_affine(self) -> bool:
        """Return whether every parameter is the gain or the bias, and nothing else."""
        if self.has_condition:
            return False
        others = {name for name, _ in self.layer.named_parameters()} - {*self.names}
        others = {name for name in others if not recognition.is_eps(name)}
        return not others and not recognition.has_fixed_affine(self.layer)

    @functools.cached_property
    def claims_no_statistics(self) -> bool:
        """Return whether the layer says that it keeps no running statistics."""
        if self.kind not in ("batch", "instance"):
            return True
        layer = self.fresh()
        call(layer, self.draw(0).to(self.dtype))  # some make them with the first batch
        means = recognition.told(layer, *recognition.MEANS)
        says_so = False in recognition.told(layer, "track_running_stats")
        if says_so or any(mean is None for mean in means):
            return True
        if self.kind == "batch" or not means:
            return self.kind == "instance"
        # What is kept of the last input, to undo the norm, say, normalizes no other.
        x = self.draw(1).to(self.dtype)
        return call(copy_of(layer), x).equal(call(evaluating(copy_of(layer)), x))

    def set_affine(self, seed: int, layer: nn.Module | None = None) -> None:
        """Set gain and bias to new values, no two alike, where their names are known.

        With seed 2 the gains are negative.
        """
        layer = self.layer if layer is None else layer  # not "or": it may have a len
        generator = torch.Generator().manual_seed(seed)
        for name in self.names:
            low = 0.5 if name == self.gain else -1.0
            parameter = layer.get_parameter(name)
            size = parameter.numel()
            spread = torch.linspace(low, low + 1.5, size + 1)[1:]
            order = torch.randperm(size, generator=generator)
            values = (spread + 0.1 * seed)[order].reshape(parameter.shape)
            sign = -1 if name == self.gain and seed == 2 else 1
            with torch.no_grad():
                parameter.copy_(sign * values)

    @property
    def along(self) -> list[int]:
        """Return the shape of gain and bias, with axes of length 1 between."""
        axes = self.definition.parameter_axes(len(self.shape))
        return [n if axis in axes else 1 for axis, n in enumerate(self.shape)]

    def spread(self, name: str | None) -> Tensor | None:
        """Return a parameter so that it broadcasts with an input; None if it cannot."""
        if name is None:
            return None
        value = self.layer.get_parameter(name).detach().double()
        value = value + self.gain_offset if name == self.gain else value
        return self.placed(value)

    def placed(self, value: Tensor) -> Tensor | None:
        """Return a gain or bias so that it broadcasts with an input, if it can."""
        axes = self.axes_of(value.numel())
        if axes is None:
            return None
        return value.reshape([n if k in axes else 1 for k, n in enumerate(self.shape)])

    def axes_of(self, count: int) -> tuple[int, ...] | None:
        """Return along which axes a gain or bias of so many values differs."""
        along = self.definition.parameter_axes(len(self.shape))
        for axes in ((), along, self.definition.further):
            if count == math.prod(self.shape[axis] for axis in axes):
                return axes
        return None

    # Running it.

    def fresh(self) -> nn.Module:
        """Return a copy, in training mode."""
        return copy_of(self.layer)

    def sized(self, examples: int) -> tuple[int, ...]:
        """Return the shape of an input with a number of examples."""
        return (examples, *self.shape[1:])

    def batch_of(self, examples: int) -> tuple[int, ...]:
        """Return the same for batch norm, and for other kinds the usual shape.

        Where it does not take so many, as a ghost batch norm may not, it is more.
        """
        if self.kind != "batch":
            return self.shape
        sizes = [examples, *(2**k for k in range(10) if 2**k > examples)]
        taken = (s for s in sizes if self._error_on(self.sized(s)) is None)
        return self.sized(next(taken, examples))

    @property
    def small(self) -> tuple[int, ...]:
        """Return a shape of few examples, where a batch need not be full."""
        few = {"batch": 4, "none": self.shape[0]}  # a relative may need many
        return self.sized(few.get(self.kind, 2))

    def draw(self, seed: int, scale: float = LARGE) -> Tensor:
        """Draw an input of the usual shape, in float64."""
        return draw(self.shape, seed, scale)

    def output(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return the training output of a fresh copy, in float64, without a graph."""
        layer = self.fresh() if dtype is None else in_dtype(self.fresh(), dtype)
        return call(layer, x.to(dtype or self.dtype)).detach().double()

    def gradient_size(self, x: Tensor, dl_dy: Tensor) -> float:
        """Return the largest dl_dy * gain / sigma; a gradient is their difference."""
        _, var = self.definition.moments(x)
        return largest(self.affine[0] * dl_dy / (var + self.eps).sqrt())

    def x_hat(self, x: Tensor) -> Tensor:
        """Return what the layer should have before gain and bias."""
        return self.definition.normalize(x, self.eps)

    def fit(self, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Find the gain and bias with which z gives y."""
        return fit(y, z, self.definition.parameter_axes(y.dim()))

    def acting(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Find the gain and bias that act on x_hat for an input."""
        return self.fit(self.output(x), self.x_hat(x))

    @property
    def runs(self) -> Runs:
        """Return three batches, and the outputs for them."""
        inputs = [self.draw(seed, LARGE * max(seed, 1)) for seed in range(3)]
        return Runs(inputs, [self.output(x) for x in inputs])

    def misfit(self, z: Formula, runs: Runs | None = None) -> float:
        """Return what is left of the outputs by z(x), with a fixed gain and bias."""
        axes = self.definition.parameter_axes(len(self.shape))
        return (runs or self.runs).misfit(z, axes)

    @property
    def large(self) -> float:
        """Return an input scale at which eps does not show, wherever it stands."""
        return max(LARGE, 1e4 * math.sqrt(self.eps), 1e4 * self.eps)

    @property
    def is_random(self) -> bool:
        """Return whether two calls on one input differ."""
        x = self.draw(1)
        return not torch.allclose(self.output(x), self.output(x), equal_nan=True)

    @property
    def is_finite(self) -> bool:
        """Return whether plain inputs give finite outputs."""
        outputs = (self.output(self.draw(seed)) for seed in range(3))
        return all(bool(y.isfinite().all()) for y in outputs)

    @property
    def takes_unbiased(self) -> bool:
        """Return whether the factor is that of the unbiased variance."""
        n = self.definition.size(self.shape)
        return n > 1 and abs(self.factor / math.sqrt((n - 1) / n) - 1) < 0.2 / n

    @functools.cached_property
    def misfit_of_definition(self) -> float:
        """Return what the definition leaves of the output."""
        return self.misfit(self.x_hat)

    @property
    def is_right_up_to_scale(self) -> bool:
        """Return whether the statistics are those of the definition."""
        return self.misfit_of_definition < TOLERANCE

    def shrinkage(self, sigmas: list[float]) -> Tensor:
        """Return the output scale for inputs of each sigma, 1 for large sigma."""
        z = self.definition.normalize(self.draw(3, 1.0), 0.0)
        fits = [self.fit(self.output(sigma * z), z) for sigma in [*sigmas, 1e4]]
        scales = torch.stack([a.abs().mean() for a, _ in fits])
        return scales[:-1] / scales[-1]

    # Finding out what it should be.

    def _recognize(self, shape: tuple[int, ...] | None, kind: str | None) -> None:
        """Find the definition, and a shape that the layer takes."""
        said = kind or recognition.kind_of(self.layer)
        self.is_kind_given = kind is not None
        self.eps = 0.0
        shapes = self._likely(shape, said)
        if shape and all(self._error_on(sizes) for sizes in shapes):
            self._check_that_it_takes_more(shape, shapes[0])
        self._leave_a_constant(shapes)
        if not shapes:
            raise ValueError(
                f"the shape of an input must be given, got a {self.name} with no "
                "parameter, buffer or attribute that tells it; pass shape=(N, D), say."
            )
        self.definition, self.shape = self._first_that_fits(shapes, said)
        if not self._fits():
            self._find_relation(said)
        if shape is None and (longer := self._longer()):
            was_right, shorter, self.shape = self._fits(), self.shape, longer
            if was_right and not self._fits():
                self.shape = shorter

    def _likely(
        self, shape: tuple[int, ...] | None, said: str | None
    ) -> list[tuple[int, ...]]:
        """Return likely shapes of an input, or those like the one that is given."""
        shapes = recognition.shapes_of(self.layer, said)
        shapes = recognition.shapes_like(shape) if shape else shapes
        return [recognition.affordable(sizes) for sizes in shapes]

    def _check_that_it_takes_more(
        self, shape: tuple[int, ...], more: tuple[int, ...]
    ) -> None:
        """Refuse what takes the number of examples that is given, and no other."""
        n, error = shape[0], self._error_on(more)
        if n == more[0] or self._error_on(shape):
            return
        held = [
            f"{name} has shape {tuple(value.shape)}"
            for name, value in tensors_of(self.layer)
            if value.dim() > 1 and value.shape[0] == n
        ]
        raise ValueError(
            f"the layer must take any number of examples, got a {self.name} that takes "
            f"{n} and fails for another batch size, {more[0]}: {error}"
            f"{'; ' * bool(held)}{' and '.join(held)}; let nothing in it have the size "
            "of a batch."
        )

    def _leave_a_constant(self, shapes: list[tuple[int, ...]]) -> None:
        """Move all parameters where the output, as given, does not depend on x."""
        if self.gain and self.layer.get_parameter(self.gain).any():
            return
        for self.shape in shapes:
            if self._error_on(self.shape) is None:
                first, second = (self.output(self.draw(seed)) for seed in (0, 1))
                if first.equal(second):
                    self._move_parameters()
                return

    def _longer(self) -> tuple[int, ...] | None:
        """Return a shape with one axis more, which the layer takes, for more tests."""
        n, *sizes = self.shape
        if self.kind in ("layer", "rms") and self.definition.last:
            longer = (n, 5, *sizes[-self.definition.last :])
        elif self.kind == "group":
            longer = (n, sizes[0], 6)
        else:
            return None
        is_longer = len(longer) > len(self.shape) and math.prod(longer) <= 1e6
        return longer if is_longer and self._error_on(longer) is None else None

    def _take_as(
        self, relative: tuple[str, str], shape: tuple[int, ...] | None
    ) -> None:
        """Find a shape for what is no norm of a known kind, and say what it does."""
        self.definition, self.eps = Definition("none", last=0), 0.0
        self.is_eps_told, self.is_kind_given = False, False
        self._move_parameters()
        shapes = self._likely(shape, None)
        taken = [sizes for sizes in shapes if self._error_on(sizes) is None]
        if not taken:
            raise ValueError("the layer takes none of the likely shapes; pass shape.")
        self.shape = next(filter(self._does_something, taken), taken[0])
        self._compute_in_double_precision()
        if self.is_random or not self.is_finite:
            raise ValueError("the layer must give the same for the same input.")
        name, text = relative
        self.relations.append(Relation(name, f"{text}. {self._properties()}"))

    def _move_parameters(self) -> None:
        """Leave no parameter at 0, where a gain hides all the rest, or at 1."""
        generator = torch.Generator().manual_seed(0)
        for parameter in self.layer.parameters():
            order = torch.randperm(parameter.numel(), generator=generator)
            steps = torch.linspace(0.2, 0.9, parameter.numel() + 1)[1:][order]
            with torch.no_grad():
                parameter.add_(steps.reshape(parameter.shape).to(parameter))

    def _properties(self) -> str:
        """Say in words which properties of the norms of the book it has."""
        x, other = self.draw(1, 1.0), self.draw(2, 1.0)
        y, size = self.output(x), largest(self.output(x))
        evaluated = call(evaluating(self.fresh()), x.to(self.dtype)).detach().double()
        other[0] = x[0]
        changes = {
            "another scale of x": self.output(3 * x) - y,
            "a constant added to x": self.output(x + 2) - y,
            "the other examples": (self.output(other) - y)[0],
            "eval()": evaluated - y,
        }
        does = [what for what, by in changes.items() if largest(by) > TOLERANCE * size]
        not_at_all = [what for what in changes if what not in does]
        texts = [f"{', '.join(does)} change the output" if does else ""]
        texts += [f"{', '.join(not_at_all)} do not" if not_at_all else ""]
        return f"Seen: {'; '.join(filter(None, texts))}."

    def _first_that_fits(
        self, shapes: list[tuple[int, ...]], said: str | None
    ) -> tuple[Definition, tuple[int, ...]]:
        """Find a shape that the layer takes, and the definition that fits there."""
        first: tuple[Definition, tuple[int, ...]] | None = None
        runs, errors = [], []
        # What some layers give back as it is has not the number of axes they expect.
        for shape in sorted(shapes, key=lambda sizes: not self._does_something(sizes)):
            if error := self._error_on(shape):
                errors.append(error)
                continue
            runs.append(shape)
            self.shape = shape
            if best := self._best(said):
                # Two values are 1 and -1 whatever they were: other shapes tell more.
                if said not in (None, "group") or best.size(shape) > 2:
                    return best, shape
                first = first or (best, shape)
        if first is not None:
            return first
        if not runs:
            cure = (
                "pass the shape of an input that it takes, channel_axis=-1 if its "
                "channels are last, or mend what it says"
            )
            if more := recognition.further(self.layer):
                needed = [p for p in more if p.default is p.empty] or more
                names = ", ".join(p.name for p in needed)
                cure = (
                    f"it takes {names}, too: pass call=lambda layer, x: layer(x, ...), "
                    "with the same for every example"
                )
                if any(STATE.match(p.name) for p in needed):
                    cure = (
                        f"it takes {names}, as a cell of one state does, for which "
                        "there is no test here: audit(layer, (x, state)) looks at its "
                        "norms"
                    )
            raise ValueError(
                "the layer must map a tensor to one of the same shape, got from "
                f"{self.name} on an input of shape {shapes[0]} {errors[0]}; {cure}."
            ) from errors[0].__cause__
        for self.shape in runs:
            if self._find_relation(said):
                return self.definition, self.shape
        self.shape = runs[0]
        self._check_that_it_normalizes()
        if self.is_random:
            raise ValueError(
                f"the layer must give the same for the same input, got a {self.name} "
                "that is random; take dropout and noise out of it."
            )
        raise ValueError(
            f"{UNKNOWN}, got a {self.name} whose output on an "
            f"input of shape {self.shape} is that of none{self._depends()}; pass "
            "kind='batch', 'layer', 'group', 'instance', 'rms' or 'lstm', and the "
            "shape of an input."
        )

    def with_a_part(self, place: tuple[int, ...] = ()) -> Tensor | None:
        """Return which inputs one output depends on; None if it has no gradient."""
        place = place or tuple(min(1, size - 1) for size in self.shape)
        return has_a_part(self.layer, self.draw(1).to(self.dtype), place)

    def _depends(self) -> str:
        """Say on which values an output depends."""
        with_it = self.with_a_part()
        if with_it is None or not with_it.any():
            return ""
        return f" and depends on {int(with_it.sum())} values, {along_axes(with_it)}"

    def _best(self, said: str | None) -> Definition | None:
        """Find the definition that fits best; what is said limits the choice."""
        found: list[tuple[float, Definition]] = []
        choices = recognition.definitions_of(self.layer, self.shape, said)
        runs = self.runs
        for self.definition, is_told in choices:
            error = self.misfit(self.x_hat, runs)
            # While all gains are 1 it does not show along which axis they differ.
            fits = error < TOLERANCE and self._holds_as_many(self.definition)
            if is_told or fits:
                found.append((error, self.definition))
        if said and not found:
            raise ValueError(
                f"an input of a {said} norm must have an axis to normalize, got shape "
                f"{self.shape}; pass another shape."
            )
        # Among those that fit alike, the first whose gain and bias fit, too; where
        # none is near, how far each is off tells nothing.
        nearest = min((fit[0] for fit in found), default=0.0)
        enough = max(1.01 * nearest, TOLERANCE) if nearest < FAR else math.inf
        alike = [fit for fit in found if fit[0] <= enough]
        inside = recognition.kind_inside(self.layer)
        if self.axis != 1:  # the caller has said where the channels are
            inside = inside or "instance"
        alike.sort(key=lambda fit: fit[1].kind != inside)
        held = [fit for fit in alike if self._holds_as_many(fit[1])]
        error, best = next(iter(held + alike), (math.inf, None))
        if best is None or not (said or error < 0.03):
            return None
        if best.size(self.shape) == 1:
            raise ValueError(
                f"a mean must be over two values or more, got {self.name} with input "
                f"of shape {self.shape}, where every value is its own mean; normalize "
                "over more features."
            )
        return best

    def _fits(self, runs: Runs | None = None) -> bool:
        """Return whether the definition leaves nothing of the output."""
        return self.misfit(self.x_hat, runs) < TOLERANCE and not self.is_random

    def _find_relation(self, said: str | None) -> bool:
        """Find which other norm, or what behind the norm, explains the output."""
        before = self.layer
        for layer, removed in without_activations(self.layer):
            self.layer, names = layer, removed
            is_held = names or self._holds_as_many(self.definition)
            if said and is_held and self._fits():
                break
            if not self.is_kind_given and self._find_relative(said):
                break
        else:
            self.layer = before
            return False
        for what in names:
            reason = f"{what} follows the norm. All other tests are made without it."
            self.relations.append(Relation("activation", reason))
        return True

    def _find_relative(self, said: str | None) -> bool:
        """Find which norm of another kind, in groups or by heads explains it."""
        before, runs = self.definition if said else None, self.runs
        for relative in recognition.relatives_of(self.shape, said, self.has_condition):
            self.definition = relative
            if self._holds_as_many(self.definition) and self._fits(runs):
                break
        else:
            if before:
                self.definition = before
            return False
        self.relations += self._relations_to(said)
        return True

    def _relations_to(self, said: str | None) -> Iterator[Relation]:
        """Say in which conventions the definition differs from what the name says."""
        definition = self.definition
        if said not in (None, definition.kind):
            is_of = f"{definition.kind} norm".replace("rms", "RMS")
            why = (
                ": x over its root mean square, no mean is subtracted. Another scale "
                "of x changes nothing, a constant added to x does."
            )
            yield Relation(
                is_of,
                f"the class {self.name} says {said} norm, and computes {is_of}"
                f"{why if definition.kind == 'rms' else '.'}",
            )
        counts = recognition.told(self.layer, "num_groups", "groups")
        count = definition.groups if definition.kind == "group" else self.shape[1]
        is_grouped = definition.kind in ("group", "instance")
        if said == "group" and is_grouped and counts not in ([], [count]):
            each = self.shape[1] // count
            why = ": it takes the number of groups for their size"
            yield Relation(
                "another number of groups",
                f"the layer says {counts[0]} groups, and has statistics of {count}, of "
                f"{each} channel{'s' * (each > 1)} each{why * (each == counts[0])}.",
            )
        if definition.groups > 1 and definition.kind in ("rms", "layer"):
            yield Relation(
                "groups",
                f"the last axis is normalized in {definition.groups} groups, each "
                "by itself: only a scale that all of a group share is forgotten.",
            )
        if definition.apart:
            axes = ", ".join(map(str, definition.apart))
            yield Relation(
                "positions apart",
                f"each position of {'axes' if len(definition.apart) > 1 else 'axis'} "
                f"{axes} has statistics of its own, as the frames of a film or the "
                "tokens of all heads do.",
            )
        if definition.further and not self.has_condition:
            yield Relation(
                "gain per head",
                f"gain and bias differ along axis {definition.further[0]}, too, and "
                "the statistics run over the last axis: a norm for each head.",
            )

    def _holds_as_many(self, definition: Definition) -> bool:
        """Return whether gain and bias have as many values as a definition wants.

        Or one for each head, say, alike for all features.
        """
        counts = {math.prod(definition.parameter_shape(self.shape))}
        if definition.further and len(self.shape) > 3:
            counts.add(math.prod(self.shape[axis] for axis in definition.further))
        return all(self.layer.get_parameter(n).numel() in counts for n in self.names)

    def _error_on(
        self, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> LayerError | None:
        """Return what the layer raises on an input of the shape; None if nothing."""
        held = (t for _, t in tensors_of(self.layer) if t.is_floating_point())
        like = next(self.layer.parameters(), next(held, torch.zeros(())))
        dtype = dtype or like.dtype
        try:
            call(self.fresh(), draw(shape, 0).to(dtype))
        except LayerError as error:
            return error
        self.dtype = dtype
        return None

    def _does_something(self, shape: tuple[int, ...]) -> bool:
        """Return whether the layer takes a shape and does not give x back as it is."""
        if self._error_on(shape):
            return True
        x = draw(shape, 0).to(self.dtype)
        return not call(self.fresh(), x).equal(x)

    def _compute_in_double_precision(self) -> None:
        """Take float64 if the layer can compute in it, else its own dtype."""
        own, single = self.dtype, self.layer
        self.layer = copy_of(single).double()
        # Without a parameter it says nothing of its dtype.
        error = self._error_on(self.shape, torch.float64)
        self.dtype = torch.float64 if error is None else own
        self.layer = in_dtype(single, self.dtype)

    def _check_that_it_normalizes(self) -> None:
        def times_sigma(x: Tensor) -> Tensor:  # a norm with a slip, and no other
            mean, var = self.definition.moments(x)
            return (x - mean) * var.sqrt()

        x = self.draw(0)
        ratio = self.output(SCALE * x).std() / self.output(x).std()
        if ratio > MUCH and not self.misfit(times_sigma) < TOLERANCE:
            why = _why_it_grows(self.output, x)
            why = f" ({why})" if why else ""
            raise ValueError(
                f"the layer must normalize in training, got a {self.name} whose output "
                f"is {ratio:.3g} times as large when its input is {SCALE} times as "
                f"large{why}; pass a norm layer, in a mode in which it normalizes by "
                "its input."
            )
        layer = self.fresh()
        first, later = (call(layer, (k * x).to(self.dtype)).std() for k in (1, SCALE))
        if ratio <= MUCH and later > MUCH * first:
            raise ValueError(
                f"the layer must normalize in training, got a {self.name} whose output "
                "after its first batch grows with the input; if gain and bias are set "
                "by that batch and then stay, as in ActNorm, it is no norm layer."
            )

    def _eps_by_behaviour(self) -> float:
        """Find an eps that explains how small inputs come out; 0 if none shows."""
        sigmas = [10.0**-power for power in range(1, 7)]
        seen = self.shrinkage(sigmas)
        var = torch.tensor(sigmas, dtype=torch.float64).square()
        if largest(seen - 1) < TOLERANCE:
            return 0.0
        for divisor in DIVISORS.values():
            for eps in (*USUAL_EPS, _eps_that_acts(divisor, var, seen)):
                if largest(var.sqrt() / divisor(var, eps) - seen) < 0.01:
                    return eps
        return USUAL_EPS[0]

    def _find_affine(self) -> None:
        """Find gain and bias as set, and those that act, in one large input."""
        x = self.draw(4, self.large)
        a, b = self.acting(x)
        gain = self.spread(self.gain)
        if gain is not None and self.is_right_up_to_scale:
            # As where weights begin at 0.
            self.gain_offset = 1.0 if largest(a - 1 - gain) < 0.01 else 0.0
        self.as_set = self._as_set()
        self.affine = a, b
        if self.as_set and self._acts_by_heads_otherwise(a):
            self.as_set = None
        if self.as_set is None:
            self.factor = self._factor_of_batches(a)
            self.affine = a / self.factor, b
            return
        gain, bias = self.as_set
        if not self.is_right_up_to_scale:
            self.affine = gain, bias
            return
        ratio = a / gain
        if largest(ratio / ratio.mean() - 1) > 0.01:
            return
        self.factor = ratio.mean().item()
        is_one = abs(self.factor - 1) < TOLERANCE or self.takes_unbiased
        if is_one and largest(b - bias) < 0.01:
            self.affine = gain, bias

    def _acts_by_heads_otherwise(self, a: Tensor) -> bool:
        """Return whether a function of one gain for each head acts, a power say."""
        if self.gain is None or self.as_set is None:
            return False
        axes = self.axes_of(self.layer.get_parameter(self.gain).numel())
        if not axes or axes != self.definition.further:
            return False
        ratio = a / self.as_set[0]
        self.has_other_gain = largest(ratio / ratio.mean() - 1) > 0.01
        return self.has_other_gain

    def _as_set(self) -> tuple[Tensor, Tensor] | None:
        """Return gain and bias as set, spread over an input, where they are known."""
        gain = self.spread(self.gain) if self.gain else torch.ones(())
        bias = self.spread(self.bias) if self.bias else torch.zeros(())
        if gain is None or bias is None or not self.has_known_affine:
            return None
        zeros = torch.zeros(self.along, dtype=torch.float64)
        return gain + zeros, bias + zeros

    def _factor_of_batches(self, a: Tensor) -> float:
        """Return the factor of an unbiased variance, if a small batch shows it; or 1.

        It stands apart from a gain that is not known by its change with the batch.
        """
        if self.kind != "batch" or not self.is_right_up_to_scale:
            return 1.0
        small = self.sized(4)
        at_few, _ = self.acting(draw(small, 4, self.large))
        few, many = (
            math.sqrt(1 - 1 / self.definition.size(shape))
            for shape in (small, self.shape)
        )
        change = (at_few / a).mean().item()
        is_unbiased = abs(change - few / many) < 0.1 * abs(change - 1)
        return many if is_unbiased else 1.0
