r"""One step of an LSTM, compared with the equations that its numbers fit.

.. math:: a = \mathrm{LN}(W_h h) + \mathrm{LN}(W_x x),\quad
    c_1 = \sigma(f) c + \sigma(i) \tanh(g),\quad h_1 = \sigma(o) \tanh(\mathrm{LN}(c_1))

Which kind it is, where the gates lie in :math:`a` and which slip was made is found by
trying: forget gate first, then what is written to c, then what is read from it. Of all
that fits the fewest slips are told.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from normbook.checks.claim import Fault
from normbook.checks.recurrent.terms import (
    CUTS,
    NORMS,
    Cut,
    Gates,
    layer_norm,
    pre_activations,
    sums,
)
from normbook.checks.tensors import largest

# With gains of 1 and hats of size 1, eps = 1e-5 costs 1e-5; the slips cost 1e-1.
TOLERANCE = 1e-3

# What a part of a may go through.
SQUASHES: dict[str, Callable[[Tensor], Tensor]] = {
    "a sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "": lambda a: a,
    "sigmoid of 1 + a": lambda a: (1 + a).sigmoid(),
    "1 - sigmoid": lambda a: 1 - a.sigmoid(),
    "ReLU": torch.relu,
    "a sigmoid twice": lambda a: a.sigmoid().sigmoid(),
    "tanh twice": lambda a: a.tanh().tanh(),
    "tanh and a sigmoid behind it": lambda a: a.tanh().sigmoid(),
    "tanh of a sigmoid": lambda a: a.sigmoid().tanh(),
    "hard sigmoid": lambda a: (a / 6 + 0.5).clamp(0, 1),
    "hard sigmoid of slope .2": lambda a: (0.2 * a + 0.5).clamp(0, 1),
    "1 + a sigmoid": lambda a: 1 + a.sigmoid(),
    "softsign": functional.softsign,
    "softplus": functional.softplus,
    "exp": torch.exp,
    "a softmax over its units": lambda a: a.softmax(-1),
}
USUAL = {"i": "a sigmoid", "f": "a sigmoid", "o": "a sigmoid", "g": "tanh"}
CALLED = {"i": "input gate", "o": "output gate", "f": "forget gate", "g": "candidate"}

RIGHT = "c_1 = f c + i tanh(g)"
READ = ("h_1 = o tanh(LN(c_1))", "h_1 = o tanh(c_1)", "h_1 = o tanh(RMS norm of c_1)")
EQUATION = "Write c_1 = f c + i tanh(g) and h_1 = o tanh(LN(c_1)), with sigmoids."


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

    def without(self, kept: float) -> Step:
        """Return the step where all but a share that is kept of c was made anew."""
        rest = 1 - kept
        return self._replace(
            f=(self.f - kept) / rest,
            written=self.written / rest,
            c_1=(self.c_1 - kept * self.c) / rest,
        )


class Found(NamedTuple):
    """The cell or the slip in it, and the matrices of x and of h, by their place."""

    outcome: Fault | str
    matrices: tuple[int, ...]
    kept: tuple[float, float] = (0.0, 0.0)  # shares of the old h and c in the new


class _Way(NamedTuple):
    """One way to get what was seen: which part is which gate, and the slips in it."""

    parts: tuple[tuple[str, int], ...]
    slips: tuple[str, ...] = ()
    form: str = ""
    kept: float = 0.0


def step_fault(step: Step, matrices: Sequence[Tensor], order: str = "") -> Found | None:
    """Name the cell, or the slip in it; return None where neither is found.

    ``order`` is that in which the gates should stand, if it matters: "ifgo", say.
    """
    rows = 4 * step.c.shape[1]

    def tried() -> Iterator[tuple[Gates, Cut]]:
        every = pre_activations(step.x, step.h, matrices, rows)
        return ((gates, cut) for gates in every for cut in CUTS)

    for gates, cut in tried():
        for name, k, kept in _forget_gates(step.f, cut(gates.a)):
            rest = step.without(kept) if kept else step
            return _Search(rest, gates, cut, k, name, order, matrices).found(kept)
    if not _fits(step.f, torch.ones_like(step.f), 1e-9):
        return None
    searches = [
        _Search(step, gates, cut, None, "1", order, matrices) for gates, cut in tried()
    ]
    whole = [search for search in searches if search.written and search.read]
    return min(whole, key=_Search.fewest).found(0.0) if whole else None


def _forget_gates(
    f: Tensor, parts: Sequence[Tensor]
) -> Iterator[tuple[str, int, float]]:
    """Yield what fits the forget gate, with the share of c that is kept beside it."""
    if f.shape != parts[0].shape:
        return
    a = torch.stack([*parts])  # all at once, as most of what is tried is wrong
    squashed = torch.stack([squash(a) for squash in SQUASHES.values()])
    errors = (squashed - f).abs().amax((2, 3))
    for j, k in (errors < TOLERANCE * (1 + f.abs().max())).nonzero().tolist():
        yield [*SQUASHES][j], k, 0.0
    z = squashed[0]
    away = z - z.mean((1, 2), keepdim=True)
    slope = (away * f).sum((1, 2)) / away.square().sum((1, 2))
    kept = (f - slope[:, None, None] * z).mean((1, 2))
    for k, share in enumerate(kept.tolist()):
        if 0.005 < share < 0.995 and _fits(f, share + (1 - share) * z[k], 1e-5):
            yield "a sigmoid", k, share


class _Search:
    """The other gates, where the forget gate is known."""

    def __init__(
        self,
        step: Step,
        gates: Gates,
        cut: Cut,
        forget: int | None,
        forgets_by: str,
        order: str,
        matrices: Sequence[Tensor],
    ) -> None:
        self.step, self.gates, self.cut = step, gates, cut
        self.forget, self.forgets_by, self.order = forget, forgets_by, order
        self.parts = list(cut(gates.a))
        self.squashed = [
            {name: squash(part) for name, squash in SQUASHES.items()}
            for part in self.parts
        ]
        # What is made of other numbers than f is looked for where all else fails.
        self.written = [*self._written()] or [*self._written_of_others()]
        if step.h_1.shape == step.c.shape:
            self.read = [*self._read()] or [*self._read_of_others()]
        else:
            self.read = [*self._projected(matrices)]

    def fewest(self) -> tuple[int, int]:
        """Return the cost of what has the fewest slips."""
        return min(self._cost(*pair) for pair in self._pairs())

    def _pairs(self) -> Iterator[tuple[_Way, _Way]]:
        return itertools.product(self.written, self.read)

    def found(self, kept_c: float) -> Found:
        """Choose what has the fewest slips, and tell it."""
        cell = f"f = {_call(self.forgets_by)}, a by {self.gates.kind}"
        if not (self.written and self.read):
            missing = ["c_1 - f c, what is written,"] * (not self.written)
            missing += ["h_1, what is read,"] * (not self.read)
            outcome: Fault | str = Fault(
                f"{cell}; what the other gates do is none of the known ways, with any "
                f"order of the gates: {' and '.join(missing)} fits none.",
                "Compare a step with its equation: c_1 = f c + i tanh(g) and h_1 = o "
                "tanh(LN(c_1)).",
                "another cell",
            )
            return Found(outcome, self.gates.used, (0.0, kept_c))
        written, read = min(self._pairs(), key=lambda pair: self._cost(*pair))
        kept = (read.kept, kept_c)
        return Found(self._told(written, read, cell, kept), self.gates.used, kept)

    def _cost(self, written: _Way, read: _Way) -> tuple[int, int]:
        slips = len(written.slips) + len(read.slips)
        places = [k for _, k in (*written.parts, *read.parts)]
        places += [] if self.forget is None else [self.forget]
        twice = len(places) - len({*places})
        name = self._name(written, read)
        orders = (self.order, "ifgo", "fiog", "fioc", "igfo", "iofg")
        rank = orders.index(name) if name in orders else len(orders)
        return slips + twice, rank

    def _name(self, written: _Way, read: _Way) -> str:
        """Return the order of the gates, "?" for a part that has no use."""
        name = ["?"] * 4
        for gate, k in (*written.parts, *read.parts):
            name[k] = gate
        if self.forget is not None:
            name[self.forget] = "f"
        return "".join(name)

    def _told(
        self, written: _Way, read: _Way, cell: str, kept: tuple[float, float]
    ) -> Fault | str:
        kind = self.gates.kind
        slips = [*written.slips, *read.slips]
        name = self._name(written, read)
        if self.forgets_by == "sigmoid of 1 + a" and not slips and "?" not in name:
            reason = (
                f"1 is added to what opens the forget gate ({cell}; {RIGHT}; "
                f"{read.form})."
            )
            return Fault(reason, "Let the bias begin at 1.", "forget bias")
        if self.forget is None:
            slips.append("c_1 has the whole of c: no forget gate multiplies it")
        elif self.forgets_by != "a sigmoid":
            slips.append(_through("f", self.forgets_by))
        slips += self._doubled(written, read)
        if "over n - 1" in kind:
            slips.append(f"before the gates stands {kind.split(' of ')[0]}")
        for mark, text in _KINDS.items():
            slips += [text] if mark in kind else []
        if slips:
            is_other = len(slips) == 1 and "has no part" in slips[0]
            other = "another cell" if is_other else ""
            return Fault(f"{'; '.join(slips)} ({cell}).", EQUATION, other)
        cell += f"; {RIGHT}; {read.form}"
        opened, negative = self._opened()
        if opened not in (None, self.forget):
            gate = name[opened or 0]
            return Fault(
                f"the bias of {gate} alone begins above 0, as that of f should: the "
                f"gates stand in the order {', '.join(name)} ({cell}).",
                f"Let the bias of f, part {self.forget} of 4 from 0, begin at 1.",
                "" if gate == "g" else "forget bias",
            )
        if negative is not None and negative == self.forget:
            return Fault(
                f"the bias of f alone begins below 0: the forget gate begins shut, and "
                f"what is carried is forgotten within a few steps ({cell}).",
                "Let it begin at 1, not at -1: the sign may be the wrong one.",
                "forget bias",
            )
        if kind.startswith("RMS norm of W"):
            reason = (
                f"before the gates stands RMS norm, no mean is subtracted ({cell})."
            )
            return Fault(reason, "Take layer norm.", "RMS norm")
        if self.order and name != self.order:
            moved = [
                gate for gate, own in zip(self.order, name, strict=True) if gate != own
            ]
            how = "it is as good as any"
            how = f"{' and '.join(moved)} are exchanged" if len(moved) == 2 else how
            return Fault(
                f"The gates stand in the order {', '.join(name)}; torch, whose "
                f"parameters these are, has {', '.join(self.order)}: weights of "
                f"nn.LSTM can be loaded, and mean something else ({cell}). Where the "
                f"weights are the layer's own, {how}.",
                "Cut the gates in the order of torch.",
                "order of gates",
            )
        if any(kept):
            cell += (
                f"; {kept[0]:.3g} of the old h and {kept[1]:.3g} of the old c stay in "
                "the new, as zoneout mixes them in evaluation"
            )
        return f"{cell}."

    def _doubled(self, written: _Way, read: _Way) -> Iterator[str]:
        """Tell parts that are two gates, and those that are none."""
        uses = [*written.parts, *read.parts]
        uses += [] if self.forget is None else [("f", self.forget)]
        for k in range(4):
            gates = sorted({gate for gate, place in uses if place == k})
            if len(gates) > 1:
                unused = [j for j in range(4) if j not in [place for _, place in uses]]
                rest = f", and part {unused[0]} is not used" if unused else ""
                yield (
                    f"{' and '.join(gates)} are one gate, part {k} of 4 from 0{rest}"
                )

    def _opened(self) -> tuple[int | None, int | None]:
        """Return which gate alone has a bias, one for all units: above 0, below 0."""
        found: dict[bool, int] = {}  # by whether it is below 0
        for bias in self.step.biases:
            held = [{*part.tolist()} for part in self.cut(bias)]
            first = [k for k, values in enumerate(held) if values != {0.0}]
            if len(first) == 1 and len(held[first[0]]) == 1:
                found.setdefault(min(held[first[0]]) < 0, first[0])
        return found.get(False), found.get(True)

    def _written(self) -> Iterator[_Way]:
        seen, f = self.step.written, self.step.f
        i, g = self._usual("i"), self._usual("g")
        pairs = [*itertools.product(range(4), repeat=2)]
        for k, m in pairs:
            for first in SQUASHES:
                products = torch.stack([*self.squashed[m].values()])
                products = products * self.squashed[k][first]
                for second in self._matching(seen, products):
                    names = zip("ig", (first, second), strict=True)
                    slips = [_through(gate, s) for gate, s in names if s != USUAL[gate]]
                    if k != m or not slips:
                        yield _Way((("i", k), ("g", m)), tuple(slips), RIGHT)
        both: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "the input gate is added to tanh(g), not multiplied": lambda i, g: i + g,
            "i tanh(g) is subtracted, not added": lambda i, g: -i * g,
            "f multiplies what is written, too: c_1 = f (c + i tanh(g))": (
                lambda i, g: f * i * g
            ),
            "1 - f multiplies what is written, too": lambda i, g: (1 - f) * i * g,
            "i multiplies twice": lambda i, g: i * i * g,
            "h is added to what is written": lambda i, g: (
                i * g + self._same(self.step.h)
            ),
            "tanh is taken of i tanh(g), once more": lambda i, g: (i * g).tanh(),
            "tanh is taken of i g, and not of g": lambda i, g: (
                i * torch.atanh(g)
            ).tanh(),
        }
        alone: dict[str, Callable[[Tensor], Tensor]] = {
            "the input gate is 1 - f": lambda g: (1 - f) * g,
            "the input gate is not used": lambda g: g,
            "g is multiplied by f, not by i": lambda g: f * g,
        }
        for (k, m), (text, form) in itertools.product(pairs, both.items()):
            if k != m and _fits(seen, form(i[k], g[m])):
                yield _Way((("i", k), ("g", m)), (text,))
        for m, (text, of_g) in itertools.product(range(4), alone.items()):
            if _fits(seen, of_g(g[m])):
                yield _Way((("g", m),), (text,))
        if self.forget is None:
            for j, (k, m) in itertools.product(range(4), pairs):
                if len({j, k, m}) == 3 and _fits(seen, i[j] + i[k] * g[m]):
                    text = "f is added to c, not multiplied"
                    yield _Way((("f", j), ("i", k), ("g", m)), (text,))

    def _written_of_others(self) -> Iterator[_Way]:
        """Try i and g, or one of them, of other numbers than f."""
        of_f, i, g = f"f from {self.gates.kind}", self._usual("i"), self._usual("g")
        for kind, parts in self._others():
            i_too, g_too = self._usual("i", parts), self._usual("g", parts)
            for text, of_i, of_g in (
                (f"i comes from {kind}, {of_f}", i_too, g),
                (f"g comes from {kind}, {of_f}", i, g_too),
                (f"i and g come from {kind}, {of_f}", i_too, g_too),
            ):
                for k, m in itertools.permutations(range(4), 2):
                    if _fits(self.step.written, of_i[k] * of_g[m]):
                        yield _Way((("i", k), ("g", m)), (text,), RIGHT)

    def _read_of_others(self) -> Iterator[_Way]:
        """Try o of other numbers than f, and shares of h."""
        c_1 = self.step.c_1
        right = {READ[0]: layer_norm(c_1).tanh(), READ[1]: c_1.tanh()}
        for kind, parts in self._others():
            for k, o in enumerate(self._usual("o", parts)):
                for form, inner in right.items():
                    if _fits(self.step.h_1, o * inner):
                        text = f"o comes from {kind}, f from {self.gates.kind}"
                        yield _Way((("o", k),), (text,), form)

    def _others(self) -> Iterator[tuple[str, Sequence[Tensor]]]:
        for kind, a in sums(self.gates.q_x, self.gates.q_h):
            if kind != self.gates.kind:
                yield kind, self.cut(a)

    def _usual(self, gate: str, parts: Sequence[Tensor] | None = None) -> list[Tensor]:
        squash = SQUASHES[USUAL[gate]]
        return [squash(part) for part in parts or self.parts]

    def _same(self, value: Tensor) -> Tensor:
        """Return a value, or NaN where it has another shape than the cells."""
        fits = value.shape == self.step.c.shape
        return value if fits else torch.full_like(self.step.c, torch.nan)

    def _matching(self, seen: Tensor, values: Tensor) -> Iterator[str]:
        errors = (values - seen).abs().amax((1, 2))
        limit = TOLERANCE * (1 + float(seen.abs().max()))
        for name, error in zip(SQUASHES, errors.tolist(), strict=True):
            if error < limit:
                yield name

    def _read(self) -> Iterator[_Way]:
        seen, c, c_1 = self.step.h_1, self.step.c, self.step.c_1
        hats = {name: norm(c_1) for name, norm in NORMS.items()}
        hat, unbiased, rms = hats.values()
        centred, sigma = _centred(c_1), c_1.std(-1, correction=0, keepdim=True)
        gates = self._usual("o")
        right = dict(zip(READ, (hat.tanh(), c_1.tanh(), rms.tanh()), strict=True))
        for k, (form, inner) in itertools.product(range(4), right.items()):
            if _fits(seen, gates[k] * inner):
                yield _Way((("o", k),), (), form)
        inners = {
            "h_1 has no tanh behind LN(c_1)": hat,
            "h_1 has no tanh: it is o c_1": c_1,
            "h_1 reads the c before the step": layer_norm(c).tanh(),
            "h_1 reads the c before the step, not normalized": c.tanh(),
            "tanh stands before the norm of c_1": layer_norm(c_1.tanh()),
            "tanh stands before the norm of c_1, and behind it": (
                layer_norm(c_1.tanh()).tanh()
            ),
            "c_1 is normalized by the unbiased variance": unbiased.tanh(),
            "LN(c_1) goes through a sigmoid, not through tanh": hat.sigmoid(),
            "LN(c_1) goes through ReLU, not through tanh": hat.relu(),
            "c_1 goes through a sigmoid, not through tanh, and has no norm": (
                c_1.sigmoid()
            ),
            "tanh is taken twice of LN(c_1)": hat.tanh().tanh(),
            "tanh is taken twice of c_1, which has no norm": c_1.tanh().tanh(),
            "LN is taken of tanh(LN(c_1)), once more": layer_norm(hat.tanh()),
            "h_1 reads what is written alone, i tanh(g), and not f c": (
                layer_norm(self.step.written).tanh()
            ),
            "c_1 is divided by its deviation, and its mean is not subtracted": (
                (c_1 / sigma).tanh()
            ),
            "the mean of c_1 is subtracted, and nothing is divided": (centred.tanh()),
            "c_1 is divided by its variance, without the root": ((hat / sigma).tanh()),
        }
        wholes: dict[str, Callable[[Tensor], Tensor]] = {
            "o tanh(c_1) is normalized, not c_1": lambda o: layer_norm(o * c_1.tanh()),
            "o tanh(LN(c_1)) is normalized once more": (
                lambda o: layer_norm(o * hat.tanh())
            ),
            "tanh is taken of o LN(c_1), and not of LN(c_1)": lambda o: (
                o * hat
            ).tanh(),
            "tanh is taken of o c_1, which has no norm": lambda o: (o * c_1).tanh(),
            "o c_1 is normalized, not c_1": lambda o: layer_norm(o * c_1).tanh(),
            "o is added to tanh(LN(c_1)), not multiplied": lambda o: o + hat.tanh(),
            "1 - o multiplies, not o": lambda o: (1 - o) * hat.tanh(),
            "the old h is added: h_1 = o tanh(LN(c_1)) + h": (
                lambda o: o * hat.tanh() + self._same(self.step.h)
            ),
            "x is added: h_1 = o tanh(LN(c_1)) + x": (
                lambda o: o * hat.tanh() + self._same(self.step.x)
            ),
        }
        for k, o in enumerate(gates):
            values = {text: o * inner for text, inner in inners.items()}
            values |= {text: whole(o) for text, whole in wholes.items()}
            for text, value in values.items():
                if _fits(seen, value):
                    yield _Way((("o", k),), (text,))
        if _fits(seen, hat.tanh()):
            yield _Way((), ("the output gate is not used",))
        for k, inner in itertools.product(range(4), (hat.tanh(), c_1.tanh())):
            products = torch.stack([*self.squashed[k].values()]) * inner
            for name in self._matching(seen, products):
                if name != USUAL["o"]:
                    yield _Way((("o", k),), (_through("o", name),))
        for k, o in enumerate(gates):
            for form, inner in right.items():
                yield from self._mixed(k, o * inner, form)
            if text := _by_eps(seen / o, c_1):
                yield _Way((("o", k),), (text,))
            limit = float(seen.abs().max())
            is_cut = limit > 0.01 and int((seen.abs() > limit - 1e-9).sum()) > 3
            if is_cut and _fits(seen, (o * hat.tanh()).clamp(-limit, limit)):
                yield _Way((("o", k),), (f"h_1 is cut off at {limit:.3g}",))

    def _projected(self, matrices: Sequence[Tensor]) -> Iterator[_Way]:
        """Try h = P (o tanh(c_1)), with a norm of c_1 or none; else h tells nothing."""
        shape = self.step.c.shape[1], self.step.h_1.shape[1]
        c_1 = self.step.c_1
        inners = [v.tanh() for v in (layer_norm(c_1), c_1, NORMS["RMS norm"](c_1))]
        is_known = False
        for (k, o), (form, inner), matrix in itertools.product(
            enumerate(self._usual("o")), zip(READ, inners, strict=True), matrices
        ):
            for w in (matrix, matrix.T):
                if w.shape == shape and _fits(self.step.h_1, o * inner @ w):
                    is_known = True
                    yield _Way((("o", k),), (), f"{form}, and a projection behind it")
        for k in range(0 if is_known else 4):
            form = "h_1, a projection to other units, is not compared"
            yield _Way((("o", k),), (), form)

    def _mixed(self, k: int, value: Tensor, form: str) -> Iterator[_Way]:
        """Look for a share of the old h in the new."""
        h = self._same(self.step.h)
        away = h - value
        kept = float(((self.step.h_1 - value) * away).sum() / away.square().sum())
        if 0.005 < kept < 0.995 and _fits(self.step.h_1, value + kept * away):
            yield _Way((("o", k),), (), form, kept)


# Kinds of which the name says the slip.
_KINDS = {
    "before the matrices": (
        "x and h are normalized before the matrices, not W_x x and W_h h"
    ),
    "W_h times": "h is normalized before the matrices, not W_x x and W_h h",
    "times that of W_h h": "LN(W_x x) and LN(W_h h) are multiplied, not added",
    "over the four gates of a unit": (
        "mean and variance are those of the four gates of a unit, not of the 4H "
        "numbers of an example: a wrong axis behind a reshape"
    ),
    "without W_h h": "W_h h has no part in the forget gate",
    "without W_x x": "W_x x has no part in the forget gate",
}


def _through(gate: str, name: str) -> str:
    """Say that a gate goes through another function than it should."""
    usual = USUAL[gate]
    if gate == "f":
        return f"the forget gate is {_call(name)}, not sigmoid(a_f)"
    if not name:
        return f"{gate} has no {usual.removeprefix('a ')}"
    if name == "sigmoid of 1 + a":
        more = ", not to the forget gate" if gate == "i" else ""
        return f"1 is added to the {CALLED[gate]}{more}"
    return f"{gate} goes through {name}, not through {usual}"


def _call(name: str) -> str:
    if name == "1":
        return "1"
    return f"{name.removeprefix('a ') or 'no function'}(a_f)"


def _by_eps(seen: Tensor, c: Tensor) -> str:
    """Say which eps the norm of c has, where it is no small one."""
    u = seen.clamp(-0.99999, 0.99999).atanh()
    centred = _centred(c)
    slope = (centred * u).sum(-1, keepdim=True) / centred.square().sum(-1, keepdim=True)
    if not _fits(u, slope * centred) or not bool((slope > 0).all()):
        return ""
    var = centred.square().mean(-1, keepdim=True)
    eps = slope**-2 - var
    mean = float(eps.mean())
    if mean < TOLERANCE or not bool(((eps / mean - 1).abs() < 0.02).all()):
        return ""
    return (
        f"the eps of the norm of c_1 is {mean:.3g}, beside variances of "
        f"{var.min():.2g} to {var.max():.2g}: it is no small number there"
    )


def _centred(c: Tensor) -> Tensor:
    return c - c.mean(-1, keepdim=True)


def _fits(seen: Tensor, value: Tensor, tolerance: float = TOLERANCE) -> bool:
    return largest(seen - value) < tolerance * (1 + largest(seen))
