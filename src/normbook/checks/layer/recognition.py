"""What a layer says that it is: by its class, attributes, parameters and buffers.

Nothing here runs the layer. What it says may be wrong or incomplete; the subject of
the checks tries the candidates and keeps the one that fits.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normbook.checks.copies import tensors_of
from normbook.checks.layer.definitions import KINDS, Definition

GAINS = (
    *("weight", "gamma", "gain", "scale", "g", "w", "a", "a_2", "alpha"),
    "affine_weight",
)
BIASES = ("bias", "beta", "shift", "offset", "b", "b_2", "affine_bias")
EPSILONS = ("eps", "epsilon", "variance_epsilon")
MEANS = ("running_mean", "moving_mean", "mean", "ema_mean", "running_mu")

TORCH_KINDS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.batchnorm._BatchNorm, "batch"),
    (nn.modules.instancenorm._InstanceNorm, "instance"),
    (nn.GroupNorm, "group"),
    (nn.LayerNorm, "layer"),
    (nn.RMSNorm, "rms"),
)

# Of one input: more would cost seconds.
MOST_VALUES = 2**18


def kind_of(layer: nn.Module) -> str | None:
    """Recognize the kind by torch's type, the names of the classes, or what is held."""
    for known, kind in TORCH_KINDS:
        if isinstance(layer, known):
            return kind
    for ancestor in type(layer).__mro__:
        name = ancestor.__name__.lower().replace("_", "")
        for kind in KINDS:
            if f"{kind}norm" in name:
                return kind
        if "revin" in name:  # reversible instance norm
            return "instance"
    if any(hasattr(layer, name) for name in MEANS):
        return "batch"
    if hasattr(layer, "num_groups"):
        return "group"
    return None


def told(layer: nn.Module, *names: str) -> list[Any]:
    """Return what a layer and the layers in it say under some names, each once."""
    values: list[Any] = []
    for part in layer.modules():
        for name in names:
            value = getattr(part, name, ...)
            if value is not ... and not any(value is other for other in values):
                values.append(value)
    return values


def further(layer: nn.Module) -> list[inspect.Parameter]:
    """Return what a layer takes besides x."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    rest = [*inspect.signature(layer.forward).parameters.values()][1:]
    return [p for p in rest if p.kind not in several]


def kind_inside(layer: nn.Module) -> str | None:
    """Return the one kind of norm that a layer holds in it."""
    kinds = {kind_of(part) for part in layer.modules() if part is not layer} - {None}
    return kinds.pop() if len(kinds) == 1 else None


def eps_of(layer: nn.Module, dtype: torch.dtype) -> float | None:
    """Read eps by its usual names, in a layer or in the only one inside that has it."""
    values = told(layer, *EPSILONS)
    said = {float(v) for v in values if isinstance(v, int | float)}
    said |= {float(v) for v in values if isinstance(v, Tensor) and v.numel() == 1}
    said = {eps for eps in said if eps >= 0}  # or it is the logarithm, say
    if len(said) == 1:
        return said.pop()
    if isinstance(layer, nn.RMSNorm):  # eps=None
        return torch.finfo(dtype).eps
    return None


OWNERS = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.RNNBase, nn.Bilinear)


def only_parameter(layer: nn.Module, names: tuple[str, ...]) -> str | None:
    """Find the one parameter that has one of the names, and belongs to the norm."""
    with_name = [
        name
        for name, _ in layer.named_parameters()
        if _last(name) in names
        and not isinstance(layer.get_submodule(name.rpartition(".")[0]), OWNERS)
    ]
    return with_name[0] if len(with_name) == 1 else None


def is_eps(name: str) -> bool:
    """Return whether a parameter has a usual name of eps."""
    return _last(name) in EPSILONS


def has_fixed_affine(layer: nn.Module) -> bool:
    """Return whether the layer holds a gain or bias that is no parameter."""
    fixed = (n for n, t in tensors_of(layer) if not isinstance(t, nn.Parameter))
    return any(_last(name) in (*GAINS, *BIASES) for name in fixed)


def _last(path: str) -> str:
    return path.rpartition(".")[2].lower()


def definitions_of(
    layer: nn.Module, shape: tuple[int, ...], said: str | None
) -> Iterator[tuple[Definition, bool]]:
    """Yield what the layer may be, the likeliest first, and whether it says so itself.

    What it does not say itself is worth a look only where it fits exactly.
    """
    dim = len(shape)
    if said in (None, "batch"):
        yield Definition("batch"), True
    for kind in ("layer", "rms"):
        if said in (None, kind):
            said_last = _normalized(layer, shape)
            # At each position over axis 1, whatever the attributes say.
            first = [0] * (dim > 2)
            choices = (
                [*range(1, dim), *first] if said_last is None else [said_last, *first]
            )
            for last in dict.fromkeys(choices):
                yield Definition(kind, last=last), said_last in (None, last)
    if said in (None, "instance") and dim > 2:
        yield Definition("instance"), True
    if said in (None, "group"):
        counts = told(layer, "num_groups", "groups")
        groups = counts[0] if counts and isinstance(counts[0], int) else 0
        each = math.prod(shape[2:])
        for count in [groups] if groups else range(1, shape[1] + 1):
            if shape[1] % count == 0 and shape[1] // count * each > 1:
                yield Definition("group", groups=count), True
        # Each position by itself, in groups of its features.
        if dim > 2 and groups > 1 and shape[-1] % groups == 0:
            for kind in ("layer", "rms"):
                yield Definition(kind, groups=groups), False


def relatives_of(
    shape: tuple[int, ...], said: str | None, has_condition: bool = False
) -> Iterator[Definition]:
    """Yield what a layer may be on purpose under another name, for an input of shape.

    No kind with statistics over the batch is among them: such a slip is never meant. A
    condition may make a gain for each position.
    """
    if said == "batch":
        return
    dim, features = len(shape), shape[-1]
    if has_condition and dim > 2:
        for kind in ("rms", "layer"):
            yield Definition(kind, further=tuple(range(1, dim - 1)))
        every = tuple(range(2, dim))
        yield Definition("instance", further=every)
        for groups in (n for n in range(1, shape[1] + 1) if shape[1] % n == 0):
            yield Definition("group", groups=groups, further=every)
    for kind in ("rms", "layer"):
        yield Definition(kind)
        if dim > 2:
            yield Definition(kind, last=0)
        for heads in range(1, dim - 1):
            yield Definition(kind, further=(heads,))
        for groups in range(2, features // 2 + 1):
            if features % groups == 0:
                yield Definition(kind, groups=groups)
    if dim < 3:
        return
    yield Definition("instance")
    counts = [n for n in range(1, shape[1] // 2 + 1) if shape[1] % n == 0]
    positions = range(2, dim)
    for size in range(dim - 2):
        for apart in itertools.combinations(positions, size):
            for groups in [*counts, *[shape[1]] * bool(apart)]:  # or of each channel
                yield Definition("group", groups=groups, apart=apart)
    for kind in ("rms", "layer"):  # query-key norm of all heads, say
        for position in range(2, dim - 1):
            yield Definition(kind, last=dim - 1, apart=(position,))


def _normalized_shape(layer: nn.Module) -> tuple[int, ...]:
    """Read the attribute as a tuple; empty where there is none."""
    said = [shape for shape in told(layer, "normalized_shape") if shape]
    first = said[0] if said else ()
    return (first,) if isinstance(first, int) else tuple(first)


def _normalized(layer: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Count the normalized last axes where the layer tells them; 0 is axis 1 alone."""
    if told := _normalized_shape(layer):
        is_axis_1 = told != shape[-len(told) :] and told == shape[1:2]
        return 0 if is_axis_1 else len(told)
    for names in (GAINS, BIASES):
        if name := only_parameter(layer, names):
            sizes = tuple(layer.get_parameter(name).shape)
            while sizes and sizes[0] == 1:
                sizes = sizes[1:]
            if sizes and sizes == shape[-len(sizes) :]:
                return len(sizes)
            if len(sizes) > 1 and sizes == (shape[1], *[1] * (len(shape) - 2)):
                return 0
    on_axis_1 = (shape[1], *[1] * (len(shape) - 2))
    if len(shape) > 2 and any(t.shape == on_axis_1 for _, t in tensors_of(layer)):
        return 0  # a gain that is no parameter
    return None


def shapes_of(layer: nn.Module, said: str | None) -> Iterator[tuple[int, ...]]:
    """Yield shapes that the layer may take, by its class and what it holds."""
    held = [t for _, t in tensors_of(layer) if t.numel() > 1]
    by_dim = sorted(held, key=Tensor.dim)
    lengths = [size for t in by_dim for size in t.shape if size > 1]
    # With as many examples as channels, a gain along the wrong axis would broadcast.
    n = 24 if 16 in lengths else 16
    if features := _normalized_shape(layer):
        if 4 * 5 * math.prod(features) <= MOST_VALUES:
            yield (n, 5, *features)
        yield (n, *features)
        if len(features) == 1:
            yield from ((n, *features, *tail) for tail in ((3, 4), (6,)))
        return
    gain = only_parameter(layer, GAINS)
    sizes = layer.get_parameter(gain).squeeze().shape if gain else ()
    if len(sizes) == 2:  # one gain for each head, perhaps
        yield from ((n, sizes[0], 5, sizes[1]), (n, 5, *sizes))
    said_counts = told(layer, "num_features", "num_channels", "in_channels", "channels")
    count = next((c for c in said_counts if isinstance(c, int)), None)
    counts = [count, *lengths] if isinstance(count, int) else lengths
    # x times the root of its length, over its length; or x over that, by the root.
    scales = [s for s in told(layer, "scale") if isinstance(s, float) and s > 0]
    roots = [s * s if s > 1 else 1 / (s * s) for s in scales]
    counts = counts or [round(s) for s in roots if s > 1 and abs(s - round(s)) < 1e-6]
    if not counts:  # nothing tells a size, so that any may do
        yield from ((n, 5, 16), (n, 6, 4, 5), (n, 16))
    tails = [(), (6,), (3, 4), (2, 3, 2)]
    if said in ("instance", "group"):
        tails = tails[1:]
    several = [t.dim() for t in held if t.dim() > 1 and t.numel() == t.shape[1]]
    names = " ".join(ancestor.__name__ for ancestor in type(layer).__mro__)
    named = re.search(r"([123])d", names.lower())
    first = several[0] - 2 if several else int(named[1]) if named else 0
    if first > 1 or several:
        tails.sort(key=lambda tail: len(tail) != first)
    if max(counts, default=0) > 1024:
        tails = [tuple(min(size, 2) for size in tail) for tail in tails]
    for count in dict.fromkeys(counts):
        on_axis_1 = [(n, count, *tail) for tail in tails]
        on_last = [(n, 5, count), (n, count)]
        is_last_likelier = said in ("layer", "rms")
        yield from on_last + on_axis_1 if is_last_likelier else on_axis_1 + on_last


def shapes_like(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield shapes like the one given: enough examples, few positions where it can."""
    _, *sizes = shape
    if math.prod(sizes) > 1024:
        yield (16, sizes[0], *(min(size, 4) for size in sizes[1:]))
        yield (16, *(min(size, 4) for size in sizes[:-1]), sizes[-1])
    yield (16, *sizes)


def affordable(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with fewer examples, but four, where it has very many values."""
    most = max(4, MOST_VALUES // math.prod(shape[1:]))
    return (min(shape[0], most), *shape[1:])
