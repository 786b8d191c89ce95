r"""One step of an LSTM, compared with the equations that its numbers fit.

.. math:: a = \mathrm{LN}(W_h h) + \mathrm{LN}(W_x x),\quad
    c_1 = \sigma(f) c + \sigma(i) \tanh(g),\quad h_1 = \sigma(o) \tanh(\mathrm{LN}(c_1))

Which kind it is, where the gates lie in :math:`a` and which slip was made is found by
trying: forget gate first, then what is written to c, then what is read from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from normbook.checks.claim import Fault, named

# With gains of 1 and hats of size 1, eps = 1e-5 costs 1e-5; the slips cost 1e-1.
TOLERANCE = 1e-3

Norm = Callable[[Tensor], Tensor]


def layer_norm(a: Tensor) -> Tensor:
    """Return x_hat over the last axis, without eps."""
    return (a - a.mean(-1, keepdim=True)) / a.std(-1, correction=0, keepdim=True)


NORMS: dict[str, Norm] = {
    "layer norm": layer_norm,
    "layer norm by the unbiased variance, over n - 1": lambda a: (
        (a - a.mean(-1, keepdim=True)) / a.std(-1, keepdim=True)
    ),
    "RMS norm": lambda a: a / a.square().mean(-1, keepdim=True).sqrt(),
}


class Step(NamedTuple):
    """What went in and came out of one step, each (N, features) or (N, H)."""

    x: Tensor
    h: Tensor
    c: Tensor
    f: Tensor  # the forget gate
    written: Tensor  # c_1 - f c
    c_1: Tensor
    h_1: Tensor
    biases: Sequence[Tensor] = ()  # (4H,), as the layer holds them


class Found(NamedTuple):
    """The cell or the slip in it, and the matrices of x and of h, by their place."""

    outcome: Fault | str
    matrices: tuple[int, ...]


def step_fault(step: Step, matrices: Sequence[Tensor], order: str = "") -> Found | None:
    """Name the cell, or the slip in it; return None where neither is found.

    ``order`` is that in which the gates should stand, if it matters: "ifgo", say.
    """
    for kind, a, used in _pre_activations(step, matrices):
        for cut in CUTS:
            gates, opened = cut(a), _opened([cut(bias) for bias in step.biases])
            for k, gate in enumerate(gates):
                if name := _forget_gate(step.f, gate):
                    rest = [other for j, other in enumerate(gates) if j != k]
                    outcome = _rest(step, rest, kind, name, (order, k), opened)
                    return Found(outcome, used)
    return None


CUTS: tuple[Callable[[Tensor], Sequence[Tensor]], ...] = (
    lambda a: a.chunk(4, -1),
    lambda a: [a[..., k::4] for k in range(4)],
)


def _opened(biases: Sequence[Sequence[Tensor]]) -> int | None:
    """Return which gate alone has a positive bias, the same one for all units."""
    for gates in biases:
        held = [{*gate.tolist()} for gate in gates]
        first = [k for k, values in enumerate(held) if values != {0.0}]
        if len(first) == 1 and len(held[first[0]]) == 1 and min(held[first[0]]) > 0:
            return first[0]
    return None


def _forget_gate(f: Tensor, a: Tensor) -> str:
    known = {
        "sigmoid": a.sigmoid(),
        "sigmoid of 1 + a": (1 + a).sigmoid(),
        "hard sigmoid": (a / 6 + 0.5).clamp(0, 1),
        "hard sigmoid of slope .2": (0.2 * a + 0.5).clamp(0, 1),
        "1 - sigmoid": 1 - a.sigmoid(),
    }
    return named(known, lambda value: _fits(f, value)).rstrip(": ")


def _rest(
    step: Step,
    rest: list[Tensor],
    kind: str,
    forget: str,
    order: tuple[str, int],
    opened: int | None,
) -> Fault | str:
    """Find the other three gates, and how they act."""
    found: list[tuple[int, str, str, str]] = []
    for names in itertools.permutations("igo"):
        gates = dict(zip(names, rest, strict=True))
        written = _first(_written(step, gates["i"], gates["g"]), step.written)
        read = _first(_read(step, gates["o"]), step.h_1)
        if written and read:
            count = (written != RIGHT) + (read not in READ)
            found.append((count, written, read, "".join(names)))
    cell = f"f = {forget}(a_f), a by {kind}"
    if not found:
        return Fault(
            f"{cell}; what the other gates do is none of the known ways, with any order"
            " of the gates.",
            "Compare a step with its equation: c_1 = f c + i tanh(g) and h_1 = o "
            "tanh(LN(c_1)).",
            "another cell",
        )
    _, written, read, others = min(found)
    seen = others[: order[1]] + "f" + others[order[1] :]
    slips = [s for s in (written, read) if s != RIGHT and s not in READ]
    if forget == "sigmoid of 1 + a" and not slips:
        reason = f"1 is added to what opens the forget gate ({cell})."
        return Fault(reason, "Let the bias begin at 1.", "forget bias")
    if forget != "sigmoid":
        slips.append(f"the forget gate is the {forget}")
    if "over n - 1" in kind:
        slips.append(f"before the gates stands {kind.split(' of ')[0]}")
    if "before the matrices" in kind:
        slips.append("x and h are normalized before the matrices, not W_x x and W_h h")
    if slips:
        cure = "Write c_1 = f c + i tanh(g) and h_1 = o tanh(LN(c_1)), with sigmoids."
        return Fault(f"{'; '.join(slips)} ({cell}).", cure)
    if opened not in (None, order[1]):
        gate = seen[opened or 0]
        return Fault(
            f"the bias of {gate} alone begins above 0, as that of f should: the gates "
            f"stand in the order {', '.join(seen)} ({cell}).",
            f"Let the bias of f, part {order[1]} of 4 from 0, begin at 1.",
            "" if gate == "g" else "forget bias",
        )
    if kind.startswith("RMS norm of W"):
        reason = f"before the gates stands RMS norm, no mean is subtracted ({cell})."
        return Fault(reason, "Take layer norm.", "RMS norm")
    if order[0] and seen != order[0]:
        return Fault(
            f"The gates stand in the order {', '.join(seen)}; torch, whose parameters "
            f"these are, has {', '.join(order[0])}: weights of nn.LSTM can be loaded, "
            f"and mean something else ({cell}).",
            "Cut the gates in the order of torch.",
            "order of gates",
        )
    return f"{cell}; {RIGHT}; {read}."


RIGHT = "c_1 = f c + i tanh(g)"
READ = ("h_1 = o tanh(LN(c_1))", "h_1 = o tanh(c_1)", "h_1 = o tanh(RMS norm of c_1)")


def _written(step: Step, i: Tensor, g: Tensor) -> dict[str, Tensor]:
    return {
        RIGHT: i.sigmoid() * g.tanh(),
        "g has no tanh": i.sigmoid() * g,
        "g goes through a sigmoid, not through tanh": i.sigmoid() * g.sigmoid(),
        "g goes through ReLU, not through tanh": i.sigmoid() * g.relu(),
        "i goes through tanh, not through a sigmoid": i.tanh() * g.tanh(),
        "i has no sigmoid": i * g.tanh(),
        "the input gate is 1 - f": (1 - step.f) * g.tanh(),
        "the input gate is not used": g.tanh(),
        "1 is added to the input gate, not to the forget gate": (
            (1 + i).sigmoid() * g.tanh()
        ),
        "the input gate is added to tanh(g), not multiplied": i.sigmoid() + g.tanh(),
        "g is multiplied by f, not by i": step.f * g.tanh(),
    }


def _read(step: Step, o: Tensor) -> dict[str, Tensor]:
    hats = {name: norm(step.c_1) for name, norm in NORMS.items()}
    hat, unbiased, rms = hats.values()
    gate, c_1 = o.sigmoid(), step.c_1
    return {
        READ[0]: gate * hat.tanh(),
        READ[1]: gate * c_1.tanh(),
        READ[2]: gate * rms.tanh(),
        "h_1 has no tanh behind LN(c_1)": gate * hat,
        "h_1 has no tanh: it is o c_1": gate * c_1,
        "h_1 reads the c before the step": gate * layer_norm(step.c).tanh(),
        "h_1 reads the c before the step, not normalized": gate * step.c.tanh(),
        "tanh stands before the norm of c_1": gate * layer_norm(c_1.tanh()),
        "o tanh(c_1) is normalized, not c_1": layer_norm(gate * c_1.tanh()),
        "c_1 is normalized by the unbiased variance": gate * unbiased.tanh(),
        "o has no sigmoid": o * hat.tanh(),
        "o goes through tanh, not through a sigmoid": o.tanh() * hat.tanh(),
        "the output gate is not used": hat.tanh(),
        "1 is added to the output gate": (1 + o).sigmoid() * hat.tanh(),
    }


def _first(known: dict[str, Tensor], seen: Tensor) -> str:
    return named(known, lambda value: _fits(seen, value)).removesuffix(": ")


def _fits(seen: Tensor, value: Tensor) -> bool:
    if seen.shape != value.shape:
        return False
    return float((seen - value).abs().max()) < TOLERANCE * (1 + float(seen.abs().max()))


def _pre_activations(
    step: Step, matrices: Sequence[Tensor]
) -> Iterator[tuple[str, Tensor, tuple[int, ...]]]:
    """Yield a (N, 4H) for each way to find and to normalize both terms."""
    for q_x, q_h, used in _terms(step, matrices):
        for kind, a in _sums(q_x, q_h):
            yield kind, a, used
    if min(step.x.shape[1], step.h.shape[1]) < 3:  # of two values x_hat is 1 and -1
        return
    for name, norm in NORMS.items():
        inside = step._replace(x=norm(step.x), h=norm(step.h))
        for q_x, q_h, used in _terms(inside, matrices):
            yield f"{name} of x and of h, before the matrices", q_x + q_h, used


def _sums(q_x: Tensor, q_h: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "no norm of W_x x + W_h h", q_x + q_h
    for name, norm in NORMS.items():

        def each(q: Tensor, norm: Norm = norm) -> Tensor:
            return torch.cat([norm(part) for part in q.chunk(4, -1)], -1)

        yield f"{name} of W_x x and of W_h h", norm(q_x) + norm(q_h)
        yield f"{name} of W_x x + W_h h", norm(q_x + q_h)
        yield f"{name} of W_x x alone", norm(q_x) + q_h
        yield f"{name} of W_h h alone", q_x + norm(q_h)
        yield f"{name} of each gate, of both terms", each(q_x) + each(q_h)
        yield f"{name} of each gate, of the sum", each(q_x + q_h)


def _terms(
    step: Step, matrices: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor, tuple[int, ...]]]:
    """Yield W_x x and W_h h for the ways in which a layer may hold the matrices."""
    n_x, n_h, rows = step.x.shape[1], step.h.shape[1], 4 * step.c.shape[1]
    Held = tuple[Tensor, tuple[int, ...]]  # a matrix, and which of those given it is
    of: dict[int, list[Held]] = {}
    of_gates: dict[int, list[Held]] = {}
    for k, matrix in enumerate(matrices):
        for w in (matrix, matrix.T):
            if w.shape[0] == rows:
                of.setdefault(w.shape[1], []).append((w, (k,)))
        for w in (matrix, matrix.T)[: 1 + (matrix.shape[0] != matrix.shape[1])]:
            if w.shape[0] == rows // 4:  # a matrix for each gate
                of_gates.setdefault(w.shape[1], []).append((w, (k,)))
    for size, parts in of_gates.items():
        if len(parts) in (4, 8):
            for k in range(0, len(parts), 4):
                ws, ks = zip(*parts[k : k + 4], strict=True)
                of.setdefault(size, []).append((torch.cat(ws), sum(ks, ())))
    for (w_x, k_x), (w_h, k_h) in itertools.product(of.get(n_x, []), of.get(n_h, [])):
        if w_x is not w_h:
            yield step.x @ w_x.T, step.h @ w_h.T, (*k_x, *k_h)
    for w, one in of.get(n_x + n_h, []):
        yield step.x @ w[:, :n_x].T, step.h @ w[:, n_x:].T, one
        yield step.x @ w[:, n_h:].T, step.h @ w[:, :n_h].T, one
