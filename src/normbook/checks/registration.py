"""What a layer holds in lists, dictionaries and plain attributes, out of torch's reach.

Neither ``.double()`` nor ``eval()``, ``parameters()`` or ``state_dict()`` finds a
module or a parameter there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from normbook.checks.claim import Claim, Fault
from normbook.checks.copies import copy_of, tensors_of
from normbook.checks.report import Finding

REGISTERED = "torch reaches all that the layer holds"
Part = nn.Module | nn.Parameter
Path = tuple[Any, ...]


def unregistered(layer: nn.Module) -> dict[str, list[Part]]:
    """Return, by the attribute that holds them, modules and parameters not reached.

    A module without state that acts alike in both modes may stay out of reach.
    """
    reached = {id(part) for part in (*layer.modules(), *layer.parameters())}
    found: dict[str, list[Part]] = {}
    for path, module in layer.named_modules():
        for key, value in vars(module).items():
            if key in ("_modules", "_parameters", "_buffers"):
                continue
            parts = [
                part
                for part in _inside(value)
                if id(part) not in reached and _has_state(part)
            ]
            if parts:
                found[f"{path}.{key}".strip(".")] = parts
    return found


def _inside(value: Any, depth: int = 3) -> Iterator[Part]:
    if isinstance(value, nn.Module | nn.Parameter):
        yield value
    elif isinstance(value, dict | list | tuple) and depth:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _inside(item, depth - 1)


def _has_state(part: Part) -> bool:
    if isinstance(part, nn.Parameter):
        return True
    return any(True for _ in tensors_of(part)) or any(
        isinstance(inner, nn.modules.dropout._DropoutNd) for inner in part.modules()
    )


def registered(layer: nn.Module) -> tuple[nn.Module, Finding | None]:
    """Return a copy in which all is registered, and a finding where that was needed."""
    found = unregistered(layer)
    if not found:
        return layer, None
    held = copy_of(layer)
    for path, parts in unregistered(held).items():
        owner_path, _, key = path.rpartition(".")
        owner = held.get_submodule(owner_path)
        # Under a name of its own: the code goes on with its list.
        modules = [part for part in parts if isinstance(part, nn.Module)]
        owner.add_module(f"{key}[]", nn.ModuleList(modules))
        for k, part in enumerate(parts):
            if isinstance(part, nn.Parameter):
                owner.register_parameter(f"{key}[{k}]", part)
    return held, Claim(REGISTERED, _fault_of(found))(layer)


def _fault_of(found: dict[str, list[Part]]) -> Callable[[nn.Module], Fault]:
    texts = []
    for path, parts in found.items():
        counts = Counter(type(part).__name__ for part in parts)
        what = " and ".join(f"{n} {name}" for name, n in counts.items())
        texts.append(f"{path} holds {what}")
    kinds = {isinstance(part, nn.Module) for parts in found.values() for part in parts}
    cure = " or ".join(
        f"nn.{'Module' if is_module else 'Parameter'}List"
        for is_module in sorted(kinds)
    )
    fault = Fault(
        f"{'; '.join(texts)}, not registered, as in a plain list: eval(), train(), "
        "to(), double(), parameters() and state_dict() do not reach that. Norms "
        "there stay in training mode, an optimizer moves nothing of it, and nothing "
        "is saved. All other tests are made as if it were registered.",
        f"Hold it in an {cure}, or assign it to an attribute of its own.",
    )
    return lambda layer: fault


def plain_tensors(layer: nn.Module) -> list[str]:
    """Return the names of floating-point tensors that are attributes and no buffers."""
    known = {name for name, _ in (*layer.named_parameters(), *layer.named_buffers())}
    return [
        name
        for name, value in tensors_of(layer)
        if name not in known and isinstance(value, Tensor) and value.is_floating_point()
    ]
