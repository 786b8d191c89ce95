"""What load_state_dict changes of what was saved, and what an evaluation ignores."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from normbook.checks.calls import of_the_layer
from normbook.checks.tensors import is_near, largest

NEAR = 1e-3


def changed_by_loading(saved: nn.Module, fresh: nn.Module, eps: float) -> str:
    """Load the state of one layer into another; say what of it comes out as another."""
    state = copy.deepcopy(saved.state_dict())
    start = copy.deepcopy(fresh.state_dict())
    with of_the_layer():
        fresh.load_state_dict(copy.deepcopy(state))
    texts = []
    loaded = fresh.state_dict()
    for name, value in state.items():
        if isinstance(value, Tensor) and isinstance(now := loaded.get(name), Tensor):
            if now.shape != value.shape or now.equal(value):
                continue
            how = _how(value.double(), now.double(), start.get(name), eps)
            texts.append(f"{name} {how}")
    return "; ".join(texts)


def _how(saved: Tensor, loaded: Tensor, start: object, eps: float) -> str:
    """Say what was done to a value."""
    if isinstance(start, Tensor) and loaded.equal(start.double()):
        return "stays what it was, and is not loaded"
    first = f"{loaded.flatten()[0]:.6g} where {saved.flatten()[0]:.6g} was saved"
    added = loaded - saved
    size = largest(added)
    if largest(added - added.mean()) < NEAR * size:
        of_eps = ", the value of eps," if eps and abs(size / eps - 1) < 0.01 else ""
        verb = "added to" if added.mean() > 0 else "taken off"
        return f"is {first}: {size:.3g}{of_eps} is {verb} it"
    known = {
        "its root is taken": saved.clamp_min(0).sqrt(),
        "it is squared": saved.square(),
        "one over it is taken": 1 / saved,
        "one over its root is taken": saved.clamp_min(0).rsqrt(),
    }
    for text, value in known.items():
        if is_near(loaded, value, NEAR):
            return f"is {first}: {text}"
    ratio = (loaded / saved)[saved.abs() > 1e-9]
    if len(ratio) and is_near(ratio, ratio.mean(), NEAR):
        return f"is {first}: it is multiplied by {float(ratio.mean()):.4g}"
    return f"is {first}, off by up to {size:.3g}"


def ignored(
    fresh: Callable[[], nn.Module],
    state: Mapping[str, object],
    evaluate: Callable[[nn.Module], Tensor],
    is_same: Callable[[Tensor, Tensor], bool],
) -> Iterator[str]:
    """Yield what of a state makes no difference if it is loaded alone, or not its own.

    It is loaded into a layer that has evaluated before, and into one that has not.
    ``evaluate`` runs the layer itself, which may keep something of it.
    """
    for name, value in state.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        seen, new = fresh(), fresh()
        evaluate(seen)
        for layer in (seen, new):
            one = copy.deepcopy(layer.state_dict())
            one[name] = value.detach().clone()
            with of_the_layer():
                layer.load_state_dict(one)
        if not is_same(evaluate(seen), evaluate(new)):
            yield name
