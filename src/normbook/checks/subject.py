"""The layer under test: what it should be, which inputs it takes, copies of it."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from normbook.checks.copies import copy_of, tensors_of
from normbook.checks.definitions import DIVISORS, KINDS, Definition

__all__ = ["Subject", "draw", "fit"]

GAINS = ("weight", "gamma", "gain", "scale", "g", "w", "a", "a_2", "alpha")
BIASES = ("bias", "beta", "shift", "offset", "b", "b_2")
EPSILONS = ("eps", "epsilon", "variance_epsilon")
MEANS = ("running_mean", "moving_mean", "mean", "ema_mean", "running_mu")
USUAL_EPS = (1e-5, 1e-3, 1e-6, 1e-8, 1e-4, 1e-7, 1e-2, 1e-12)
# The statistics of an input of this scale do not feel eps.
LARGE = 30.0
# What single precision inside a layer may cost; the bugs cost 1e-2 and more.
TOLERANCE = 1e-3

TORCH_KINDS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.batchnorm._BatchNorm, "batch"),
    (nn.modules.instancenorm._InstanceNorm, "instance"),
    (nn.GroupNorm, "group"),
    (nn.LayerNorm, "layer"),
    (nn.RMSNorm, "rms"),
)


def draw(shape: tuple[int, ...], seed: int, scale: float = LARGE) -> Tensor:
    """Draw an input: every example, channel and position has a mean of its own."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    x = normal(*shape)
    for axis, length in enumerate(shape):
        along = [1] * len(shape)
        along[axis] = length
        x = x * (0.3 * normal(*along)).exp() + normal(*along)
    return scale * x


def fit(y: Tensor, z: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Find a and b, which differ along ``axes`` only, with y nearest to a z + b."""
    rest = tuple(axis for axis in range(y.dim()) if axis not in axes)
    mean = z.mean(rest, keepdim=True)
    a = ((z - mean) * y).sum(rest, keepdim=True)
    a = a / (z - mean).square().sum(rest, keepdim=True)
    return a, (y - a * z).mean(rest, keepdim=True)


class Subject:
    """A copy of the user's layer in training mode, and what a test has to know of it.

    Attributes
    ----------
    definition : Definition
        What the layer should compute.
    shape : tuple of int
        Of an input, with a number of examples that suits the tests.
    eps : float
    dtype : torch.dtype
        float64 where the layer can, so that rounding hides nothing.
    gain, bias : str or None
        The names of the parameters, where they are known.
    affine : tuple of Tensor
        The gain and bias that act on x_hat, spread over an input: as set, or as found
        on one batch where the parameters have no known name.
    copy_error : Exception or None
        What ``copy.deepcopy`` of the user's layer raised.
    """

    def __init__(
        self,
        layer: nn.Module,
        shape: tuple[int, ...] | None,
        kind: str | None,
        eps: float | None,
    ) -> None:
        self.copy_error: Exception | None = None
        try:
            copy.deepcopy(layer)
        except Exception as error:  # noqa: BLE001 - any refusal becomes a finding
            self.copy_error = error
        self.layer = _copied(layer)
        for parameter in self.layer.parameters():
            if parameter.is_floating_point():
                parameter.requires_grad_()
        self.layer.train()
        self.gain = self._only(GAINS)
        self.bias = self._only(BIASES)
        self.definition, self.shape = self._recognize(shape, kind)
        self.dtype = self._precision()
        self.layer = self.layer.to(self.dtype)
        self._check_that_it_normalizes()
        self.set_affine(seed=0)
        self.eps = self._find_eps(eps)
        self.affine = self._find_affine()

    # What the layer holds.

    @property
    def kind(self) -> str:
        """Give the kind of the definition."""
        return self.definition.kind

    @property
    def has_known_affine(self) -> bool:
        """Tell whether every parameter is the gain or the bias."""
        known = {self.gain, self.bias}
        return all(name in known for name, _ in self.layer.named_parameters())

    @property
    def claims_no_statistics(self) -> bool:
        """Tell whether the layer says that it keeps no running statistics."""
        if self.kind not in ("batch", "instance"):
            return True
        layer = self.fresh()
        layer(draw(self.shape, 0).to(self.dtype))  # some make them with the first batch
        if getattr(layer, "track_running_stats", True) is False:
            return True
        names = [name for name in MEANS if hasattr(layer, name)]
        if self.kind == "instance" and not names:
            return True
        return any(getattr(layer, name) is None for name in names)

    def parameter(self, name: str, layer: nn.Module | None = None) -> nn.Parameter:
        """Give a parameter of a copy of the layer."""
        return dict((layer or self.layer).named_parameters())[name]

    def _only(self, names: tuple[str, ...]) -> str | None:
        """Find the one parameter that has one of the names."""
        found = [
            name
            for name, _ in self.layer.named_parameters()
            if name.rpartition(".")[2].lower() in names
        ]
        return found[0] if len(found) == 1 else None

    def set_affine(self, seed: int) -> None:
        """Give gain and bias new values, no two alike, where their names are known."""
        generator = torch.Generator().manual_seed(seed)
        for name, low in ((self.gain, 0.5), (self.bias, -1.0)):
            if name is not None:
                parameter = self.parameter(name)
                size = parameter.numel()
                spread = torch.linspace(low, low + 1.5, size + 1)[1:]
                order = torch.randperm(size, generator=generator)
                values = (spread + 0.1 * seed)[order].reshape(parameter.shape)
                with torch.no_grad():
                    parameter.copy_(values)

    def spread(self, name: str) -> Tensor | None:
        """Give a parameter so that it broadcasts with an input; None if it cannot."""
        value = self.parameter(name).detach().double()
        sizes = self.definition.parameter_shape(self.shape)
        if value.numel() not in (1, math.prod(sizes)):
            return None
        along = [1] * len(self.shape)
        for axis in self.definition.parameter_axes(len(along)):
            along[axis] = self.shape[axis] if value.numel() > 1 else 1
        return value.reshape(along)

    # Running it.

    def fresh(self) -> nn.Module:
        """Give a copy, in training mode."""
        return copy_of(self.layer)

    def sized(self, examples: int) -> tuple[int, ...]:
        """Give the shape of an input with a number of examples."""
        return (examples, *self.shape[1:])

    def output(self, x: Tensor) -> Tensor:
        """Give the training output of a fresh copy, in float64, without a graph."""
        y = self.fresh()(x.to(self.dtype, copy=True))
        return cast(Tensor, y).detach().double()

    def x_hat(self, x: Tensor, divisor: str = "sqrt(variance + eps)") -> Tensor:
        """Give what the layer should have before gain and bias."""
        return self.definition.normalize(x, self.eps, divisor)

    def fit(self, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Find the gain and bias with which z gives y."""
        return fit(y, z, self.definition.parameter_axes(y.dim()))

    def misfit(self, z: Any, axes: tuple[int, ...] | None = None) -> float:
        """Give what is left of the output after the best fixed gain and bias on z(x).

        Found on one batch and demanded on two others, as a share of the largest
        output. Gain and bias may differ along ``axes``, by default the definition's.
        """
        first = draw(self.shape, 0)
        axes = axes or self.definition.parameter_axes(len(self.shape))
        a, b = fit(self.output(first), z(first), axes)
        worst = 0.0
        for seed in (1, 2):
            x = draw(self.shape, seed, seed * LARGE)
            y = self.output(x)
            error = ((y - a * z(x) - b).abs().max() / (y - b).abs().max()).item()
            worst = max(worst, error if math.isfinite(error) else math.inf)
        return worst

    @property
    def scale(self) -> float:
        """Give the size of the output, 1 where the biased variance normalizes."""
        if not self.has_known_affine:
            return 1.0
        x = draw(self.shape, 4)
        a, _ = self.fit(self.output(x), self.x_hat(x))
        return (a / self.affine[0]).mean().item()

    @property
    def is_right_up_to_scale(self) -> bool:
        """Tell whether the statistics are those of the definition."""
        if not hasattr(self, "_misfit"):
            self._misfit = self.misfit(self.x_hat)
        return self._misfit < TOLERANCE

    # Finding out what it should be.

    def _recognize(
        self, shape: tuple[int, ...] | None, kind: str | None
    ) -> tuple[Definition, tuple[int, ...]]:
        """Find the definition, and a shape that the layer takes."""
        said = kind or _kind_of(self.layer)
        self.eps = 0.0
        shapes = list(_sizes(shape) if shape else self._shapes(said))
        if not shapes:
            raise ValueError(
                "the shape of an input must be given, got a "
                f"{type(self.layer).__name__} with no parameter, buffer or attribute "
                "that tells it; pass shape=(N, D), say."
            )
        self.shape = self._first_that_runs(shapes)
        found = self._best(said)
        if found.kind in ("layer", "rms") and shape is None:
            features = self.definition.parameter_shape(self.shape)
            longer = (self.shape[0], 5, *features)
            if len(longer) > len(self.shape) and self._runs(longer) is None:
                self.shape = longer
        return found, self.shape

    def _best(self, said: str | None) -> Definition:
        """Find the definition that fits best; what is said limits the choice."""
        misfits: list[tuple[float, int, Definition]] = []
        for order, definition in enumerate(self._definitions(said)):
            self.definition = definition
            misfits.append((self.misfit(self.x_hat), order, definition))
        if misfits:
            least = min(error for error, _, _ in misfits)
            # Among those that fit alike, the first.
            best = next(m for m in misfits if m[0] <= max(1.01 * least, TOLERANCE))
            if said or best[0] < 0.03:
                self.definition = best[2]
                self._check_size()
                return best[2]
        if said:
            raise ValueError(
                f"an input of a {said} norm must have an axis to normalize, got shape "
                f"{self.shape}; pass another shape."
            )
        self._check_that_it_normalizes()
        x = draw(self.shape, 0)
        if not torch.equal(self.output(x), self.output(x)):
            raise ValueError(
                "the layer must give the same for the same input, got a "
                f"{type(self.layer).__name__} that is random; take dropout and noise "
                "out of it."
            )
        raise ValueError(
            "the kind of norm must be known, got a "
            f"{type(self.layer).__name__} whose output on an input of shape "
            f"{self.shape} is that of none; pass kind='batch', 'layer', 'group', "
            "'instance', 'rms' or 'lstm', and the shape of an input."
        )

    def _definitions(self, said: str | None) -> Iterator[Definition]:
        """Give the definitions to choose from, the likeliest first."""
        dim = len(self.shape)
        if said in (None, "batch"):
            yield Definition("batch")
        for kind in ("layer", "rms"):
            if said in (None, kind):
                told = self._normalized()
                for last in [told] if told else [*range(1, dim), *([0] * (dim > 2))]:
                    yield Definition(kind, last=last)
        if said in (None, "instance") and dim > 2:
            yield Definition("instance")
        if said in (None, "group"):
            groups = getattr(self.layer, "num_groups", getattr(self.layer, "groups", 0))
            channels = self.shape[1]
            each = math.prod(self.shape[2:])
            for count in [groups] if groups else range(1, channels + 1):
                if channels % count == 0 and channels // count * each > 1:
                    yield Definition("group", groups=count)

    def _normalized(self) -> int:
        """Count the normalized last axes where the layer tells them, else give 0."""
        given = getattr(self.layer, "normalized_shape", None)
        if isinstance(given, int):
            return 1
        if given is not None:
            return len(tuple(given))
        for name in (self.gain, self.bias):
            if name is not None:
                sizes = list(self.parameter(name).shape)
                while sizes and sizes[0] == 1:
                    sizes.pop(0)
                if sizes and tuple(sizes) == self.shape[-len(sizes) :]:
                    return len(sizes)
        return 0

    def _shapes(self, said: str | None) -> Iterator[tuple[int, ...]]:
        """Give shapes that the layer may take, by its class and what it holds."""
        layer = self.layer
        given = getattr(layer, "normalized_shape", None)
        if given is not None:
            features = (given,) if isinstance(given, int) else tuple(given)
            yield (16, 5, *features)
            yield (16, *features)
            return
        held = [t for _, t in tensors_of(layer) if t.numel() > 1]
        count = getattr(layer, "num_features", getattr(layer, "num_channels", None))
        lengths = [size for t in sorted(held, key=Tensor.dim) for size in t.shape]
        lengths = [size for size in lengths if size > 1]
        counts = [count] if isinstance(count, int) else lengths
        tails = [(), (6,), (3, 4), (2, 3, 2)]
        if said in ("instance", "group"):
            tails = tails[1:]
        several = [t.dim() for t in held if t.dim() > 1 and t.numel() == t.shape[1]]
        named = re.search(r"([123])d", type(layer).__name__.lower())
        first = several[0] - 2 if several else int(named[1]) if named else 0
        if first > 1 or several:
            tails.sort(key=lambda tail: len(tail) != first)
        for count in dict.fromkeys(counts):
            last = [(16, 5, count), (16, count)]
            first_axis = [(16, count, *tail) for tail in tails]
            yield from last if said in ("layer", "rms") else first_axis
            yield from first_axis if said in ("layer", "rms") else last

    def _runs(self, shape: tuple[int, ...]) -> Exception | None:
        """Give what the layer raises on an input of the shape; None if nothing."""
        parameter = next(iter(self.layer.parameters()), None)
        kinds = {t.dtype for _, t in tensors_of(self.layer) if t.is_floating_point()}
        dtype = parameter.dtype if parameter is not None else None
        dtype = dtype or next(iter(kinds), torch.float32)
        try:
            y = self.fresh()(draw(shape, 0).to(dtype))
        except Exception as error:  # noqa: BLE001 - whatever the layer raises
            return error
        if not isinstance(y, Tensor) or y.shape != torch.Size(shape):
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            return TypeError(f"for input of shape {shape} the output is {got}")
        self.dtype = dtype
        return None

    def _first_that_runs(self, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
        errors = []
        for shape in shapes:
            error = self._runs(shape)
            if error is None:
                return shape
            errors.append(error)
        first = errors[0]
        raise ValueError(
            "the layer must map a tensor to one of the same shape, got from "
            f"{type(self.layer).__name__} on an input of shape {shapes[0]} "
            f"{type(first).__name__}: {first}; pass the shape of an input that it "
            "takes."
        ) from first

    def _precision(self) -> torch.dtype:
        """Give float64 if the layer can compute in it, else its own dtype."""
        own = self.dtype
        single = self.layer
        self.layer = copy_of(single).double()
        error = self._runs(self.shape)
        self.layer = single
        return own if error is not None else torch.float64

    def _check_that_it_normalizes(self) -> None:
        x = draw(self.shape, 0)
        ratio = self.output(50 * x).std() / self.output(x).std()
        if ratio > 10:
            raise ValueError(
                "the layer must normalize in training, got a "
                f"{type(self.layer).__name__} whose output grows by {ratio:.3g} when "
                "the input grows by 50; pass a norm layer, in a mode in which it "
                "normalizes by its input."
            )

    def _check_size(self) -> None:
        if self.definition.size(self.shape) == 1:
            raise ValueError(
                "a mean must be over two values or more, got "
                f"{type(self.layer).__name__} with input of shape {self.shape}, where "
                "every value is its own mean; normalize over more features."
            )

    def _find_eps(self, given: float | None) -> float:
        if given is not None:
            return float(given)
        for name in EPSILONS:
            value = getattr(self.layer, name, None)
            if isinstance(value, int | float):
                return float(value)
        if isinstance(self.layer, nn.RMSNorm):  # eps=None
            return torch.finfo(self.dtype).eps
        return self._eps_by_behaviour()

    def _eps_by_behaviour(self) -> float:
        """Find the usual eps that explains how small inputs come out."""
        sigmas = [10.0**-power for power in range(1, 7)]
        seen = self.shrinkage(sigmas)
        var = torch.tensor(sigmas, dtype=torch.float64).square()
        for divisor in DIVISORS.values():
            for eps in USUAL_EPS:
                if (var.sqrt() / divisor(var, eps) - seen).abs().max() < 0.01:
                    return eps
        return USUAL_EPS[0]

    def shrinkage(self, sigmas: list[float]) -> Tensor:
        """Give the scale of the output for inputs of each sigma, 1 for large sigma."""
        z = draw(self.shape, 3, 1.0)
        z = self.definition.normalize(z, 0.0)
        scales = []
        for sigma in [*sigmas, 1e4]:
            a, _ = self.fit(self.output(sigma * z), z)
            scales.append(a.abs().mean())
        return torch.stack(scales[:-1]) / scales[-1]

    def _find_affine(self) -> tuple[Tensor, Tensor]:
        """Give the gain and bias that act, spread over an input."""
        x = draw(self.shape, 0)
        a, b = self.fit(self.output(x), self.x_hat(x))
        if not self.is_right_up_to_scale and not self.has_known_affine:
            return a, b
        gain = self.spread(self.gain) if self.gain else torch.ones_like(a)
        bias = self.spread(self.bias) if self.bias else torch.zeros_like(a)
        if gain is None or bias is None or not self.has_known_affine:
            return a, b
        is_as_set = ((a / gain - 1).abs().max() < 0.3) and (
            (b - bias).abs().max() < 0.3
        )
        if self.is_right_up_to_scale and not is_as_set:
            return a, b
        return gain + 0 * a, bias + 0 * b


def _copied(layer: nn.Module) -> nn.Module:
    try:
        return copy_of(layer)
    except Exception as error:
        raise TypeError(
            f"the layer must allow a copy, got a {type(layer).__name__} for which "
            f"copy.deepcopy raises {type(error).__name__}: {error}; keep what cannot "
            "be copied outside the layer."
        ) from error


def _kind_of(layer: nn.Module) -> str | None:
    """Tell the kind by torch's type, the names of the classes, or what is held."""
    for known, kind in TORCH_KINDS:
        if isinstance(layer, known):
            return kind
    for ancestor in type(layer).__mro__:
        name = ancestor.__name__.lower().replace("_", "")
        for kind in KINDS:
            if f"{kind}norm" in name:
                return kind
    if any(hasattr(layer, name) for name in MEANS):
        return "batch"
    if hasattr(layer, "num_groups"):
        return "group"
    return None


def _sizes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Give shapes like the one given: enough examples, few positions where it can."""
    _, *sizes = shape
    if math.prod(sizes) > 1024:
        yield (16, sizes[0], *(min(size, 4) for size in sizes[1:]))
        yield (16, *(min(size, 4) for size in sizes[:-1]), sizes[-1])
    yield (16 if math.prod(sizes) <= 4096 else 6, *sizes)
