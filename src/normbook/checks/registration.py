"""What a layer holds in lists, dictionaries and plain attributes, out of torch's reach.

Neither ``.double()`` nor ``eval()``, ``parameters()`` or ``state_dict()`` finds a
module or a parameter there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn

from normbook.checks.claim import Fault
from normbook.checks.copies import copy_of, inside, tensors_of
from normbook.checks.report import Finding

REGISTERED = "torch reaches all that the layer holds"
Part = nn.Module | nn.Parameter


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
            held = [part for _, part in inside(value) if id(part) not in reached]
            if parts := [part for part in held if _has_state(part)]:
                found[f"{path}.{key}".strip(".")] = parts
    return found


def _has_state(part: Any) -> bool:
    if not isinstance(part, nn.Module):
        return isinstance(part, nn.Parameter)
    is_random = (isinstance(p, nn.modules.dropout._DropoutNd) for p in part.modules())
    return any(is_random) or any(True for _ in tensors_of(part))


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
    return held, Finding(REGISTERED, False, *_fault_of(found))


def _fault_of(found: dict[str, list[Part]]) -> Fault:
    texts = []
    for path, parts in found.items():
        counts = Counter(type(part).__name__ for part in parts)
        what = " and ".join(f"{n} {name}" for name, n in counts.items())
        texts.append(f"{path} holds {what}")
    kinds = {isinstance(part, nn.Module) for parts in found.values() for part in parts}
    names = (f"nn.{'Module' if kind else 'Parameter'}List" for kind in sorted(kinds))
    return Fault(
        f"{'; '.join(texts)}, not registered, as in a plain list: eval(), train(), "
        "to(), double(), parameters() and state_dict() do not reach that. Norms "
        "there stay in training mode, an optimizer moves nothing of it, and nothing "
        "is saved. All other tests are made as if it were registered.",
        f"Hold it in an {' or '.join(names)}, or assign it to an attribute of its own.",
    )


def plain_tensors(layer: nn.Module) -> list[str]:
    """Return the names of floating-point tensors that are attributes and no buffers."""
    known = {name for name, _ in (*layer.named_parameters(), *layer.named_buffers())}
    return [
        name
        for name, value in tensors_of(layer)
        if name not in known and value.is_floating_point()
    ]
