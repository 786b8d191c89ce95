"""The layer-normalized LSTM as a layer: called as ``torch.nn.LSTM``.

Layers, directions, dropout and packed sequences are here. What runs over the steps of
one layer is the first that can: the compiled loop (``normbook.layers.native``),
kernels on a GPU (``normbook.layers.triton_lstm``), few operators of torch
(``normbook.layers.torch_lstm``), or the formulas, which torch differentiates.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence

from normbook.arrays import check_eps
from normbook.layer_norm_lstm import (
    Carried,
    Hats,
    LayerNormLSTMParameters,
    Normed,
    check_hats,
    layer_norm_lstm_backward,
    layer_norm_lstm_forward,
    with_one_bias,
    without_hat,
)
from normbook.layers import triton_lstm
from normbook.layers.base import (
    NormLayer,
    as_float32,
    check_size,
    is_autocast,
    no_autocast,
    other_device,
)
from normbook.layers.native import NativeSequence, are_plain, can_run
from normbook.layers.torch_lstm import TorchSequence
from normbook.lstm import (
    LSTMOutput,
    LSTMParameters,
    lstm_backward,
    lstm_forward,
)
from normbook.through_time import checked_sizes, complete

__all__ = ["LayerNormLSTM"]

States = tuple[Tensor, Tensor]
Parameters = Sequence[Tensor | None]  # in the order of FIELDS

FIELDS = LayerNormLSTMParameters._fields
PLAIN = LSTMParameters._fields  # of which torch.nn.LSTM knows something
# What nn.LSTM calls our fields; the values of one line are added.
THEIRS = {
    "w_x": ("weight_ih",),
    "w_h": ("weight_hh",),
    "w_r": ("weight_hr",),
    "b": ("bias_ih", "bias_hh"),
}
# What nn.LSTM shows of itself only if it is something else.
DEFAULTS = dict[str, Any](
    proj_size=0,
    num_layers=1,
    bias=True,
    batch_first=False,
    dropout=0.0,
    bidirectional=False,
)


@dataclasses.dataclass(frozen=True)
class _Cell:
    """One of the cells of the core, with its options."""

    norm: Normed | None
    carried: Carried
    hats: Hats
    eps: float
    batch_sizes: tuple[int, ...] | None  # None: all sequences have one length
    is_native: bool  # by the compiled loop, where it can run

    uses_batch = None  # no batch norm

    def forward(
        self, x: Any, h_0: Any, c_0: Any, *parameters: Any
    ) -> tuple[LSTMOutput, Any]:
        weights = self._named(parameters)
        options: dict[str, Any] = {"batch_sizes": self.batch_sizes}
        if self.norm is None:
            return lstm_forward(x, weights, h_0, c_0, **options)
        options |= {"norm": self.norm, "carried": self.carried, "hats": self.hats}
        return layer_norm_lstm_forward(x, weights, h_0, c_0, self.eps, **options)

    @property
    def has_norm(self) -> bool:
        return self.norm is not None

    @property
    def mode(self) -> tuple[bool, ...]:
        """Whether p (or the sum), q and c have a hat, p is the sum, u is carried."""
        hats = self.hats if self.has_norm else ""
        is_sum, is_carried = self.norm == "sum", self.carried == "normalized"
        return "p" in hats, "q" in hats and not is_sum, "c" in hats, is_sum, is_carried

    @property
    def has_one_slope(self) -> bool:
        """Whether the same arrives at p and q."""
        has_p, has_q, _, is_sum, _ = self.mode
        return is_sum or not (has_p or has_q)

    @property
    def is_paper(self) -> bool:
        """Whether it is the cell of the paper, which has kernels for a GPU, too."""
        return (self.norm, self.carried, self.hats) == ("terms", "raw", "pqc")

    @property
    def has_loop(self) -> bool:
        """Whether there is a compiled loop of this cell."""
        return self.norm != "gates"

    @property
    def is_usual(self) -> bool:
        """Whether it is the paper's or the plain one, with operators for it."""
        return self.norm is None or self.is_paper

    def moments(self, q: Tensor, rows: int) -> list[Tensor]:
        """Memory for mean and 1 / s of each row of p, q and c."""
        return [q.new_empty(rows, 2) for _ in "pqc"]

    def gradients(
        self, arriving: Any, x: Any, h_0: Any, c_0: Any, parameters: Sequence[Any]
    ) -> tuple[Any, ...]:
        dl_dh, *last = arriving
        _, cache = self.forward(x, h_0, c_0, *parameters)
        backward = lstm_backward if self.norm is None else layer_norm_lstm_backward
        dl_dx, by_weights, *by_states = backward(dl_dh, cache, *last)
        return dl_dx, *by_states, *by_weights

    def full(self, parameters: Sequence[Any]) -> Any:
        """Weights, gains and biases, with 1 and 0 where one was left out."""
        weights = self._named(parameters)
        return complete(weights) if self.norm is None else with_one_bias(weights)

    def _named(self, parameters: Sequence[Any]) -> Any:
        kind = LSTMParameters if self.norm is None else LayerNormLSTMParameters
        return kind(*parameters[: len(kind._fields)])


class LayerNormLSTM(NormLayer):
    r"""The layer-normalized LSTM, in several layers and both directions.

    Formulas, ``norm``, ``carried``, ``hats`` and ``eps`` are those of
    :func:`~normbook.layer_norm_lstm.layer_norm_lstm_forward`; ``norm=None`` is the
    plain LSTM. Other arguments, call, outputs and shapes are those of
    :class:`torch.nn.LSTM`, packed sequences in any order of lengths, too. eps must not
    be 0 where the states begin with 0. With ``proj_size`` P, W_r h takes the place of
    h, for the next step, too: ``w_r_l0`` has shape (P, H), ``w_h_l0`` then (4H, P).
    ``has_redundant_biases`` says whether to learn ``beta_h`` and ``beta_x``, which are
    added where b is. With ``native=False`` torch runs the steps even where numba is
    installed, which compiles the loop over them.

    Parameters are those of :class:`~normbook.layer_norm_lstm.LayerNormLSTMParameters`
    with an ending: ``w_x_l0`` of the first layer, ``w_x_l1`` of the next, and
    ``w_x_l0_reverse`` of the other direction. Those that an option leaves out are None.
    At the start weights and b are uniform in :math:`\pm1/\sqrt H`, gains 1 and biases
    of layer norms 0.

    ``load_state_dict`` also takes the state of a :class:`torch.nn.LSTM`: it sorts the
    rows and adds the two biases; gains and biases of layer norms stay as they are.
    :meth:`as_lstm` is the way back from ``norm=None``.

    A setting out of its range is a ValueError; dropout with one layer is a UserWarning,
    since it does nothing. On a call, a wrong number of axes and another dtype than that
    of the weights are a ValueError; features, states and a device that do not fit, and
    no step, are a RuntimeError.

    Under ``torch.autocast`` it runs in float32. Derivatives may be taken as often as
    one likes, by ``torch.autograd``, forward-mode included, and by ``torch.func``, but
    for ``is_grads_batched``. ``torch.compile`` leaves the layer out of its graph,
    as it leaves torch's. In-place changes of h are refused: backward needs it.

    >>> layer = LayerNormLSTM(3, 5, num_layers=2, bidirectional=True)
    >>> h, (h_last, c_last) = layer(torch.zeros(7, 2, 3))
    >>> h.shape, c_last.shape
    (torch.Size([7, 2, 10]), torch.Size([4, 2, 5]))
    >>> plain = LayerNormLSTM(3, 5, norm=None)
    >>> plain.load_state_dict(torch.nn.LSTM(3, 5).state_dict())
    <All keys matched successfully>
    >>> plain.as_lstm()
    LSTM(3, 5)
    """

    w_x_l0: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        norm: Normed | None = "terms",
        eps: float = 1e-5,
        carried: Carried = "raw",
        hats: Hats = "pqc",
        has_redundant_biases: bool = True,
        native: bool = True,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.num_layers, self.bias = num_layers, bias
        self.batch_first, self.bidirectional = batch_first, bidirectional
        self.norm, self.carried, self.hats = norm, carried, hats
        self.has_redundant_biases = has_redundant_biases
        self.native, self.proj_size = native, proj_size
        self._check_settings(dropout)
        self.dropout = float(dropout)
        self.eps = check_eps(eps)
        directions = 1 + bidirectional
        for k, ending in enumerate(self._endings()):
            features = input_size if k < directions else directions * self._outputs
            for field in (*FIELDS, "w_r"):
                shape = self._shape(field, features)
                is_learned = {field + ending: shape is not None}
                self._add_parameters(shape or (), device, dtype, **is_learned)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin again: weights and b uniform as in nn.LSTM, gains 1, other biases 0."""
        bound = 1 / math.sqrt(self.hidden_size)
        for name, parameter in self.named_parameters():
            if name.startswith(("gamma", "beta")):
                parameter.fill_(name.startswith("gamma"))
            else:
                parameter.uniform_(-bound, bound)

    def flatten_parameters(self) -> None:
        """Do nothing: torch.nn.LSTM lays its weights out for cuDNN here."""

    def extra_repr(self) -> str:
        """Name the settings, as torch does."""
        shown = f"{self.input_size}, {self.hidden_size}"
        for name, default in DEFAULTS.items():
            if (value := getattr(self, name)) != default:
                shown += f", {name}={value}"
        shown += f", norm={self.norm!r}"
        if self.norm is not None:
            shown += f", eps={self.eps}, carried={self.carried!r}"
            if self.hats != "pqc":
                shown += f", hats={self.hats!r}"
            shown += f", has_redundant_biases={self.has_redundant_biases}"
        return shown

    def forward(
        self, input: Tensor | PackedSequence, hx: States | None = None
    ) -> tuple[Tensor | PackedSequence, States]:
        """Run over sequences; return h of the last layer, and all last states."""
        if torch.compiler.is_compiling():  # it would write out every step
            return torch.compiler.disable(self._run)(input, hx)  # type: ignore[no-any-return, no-untyped-call]
        return self._run(input, hx)

    def _run(
        self, input: Tensor | PackedSequence, hx: States | None
    ) -> tuple[Tensor | PackedSequence, States]:
        if isinstance(input, PackedSequence):
            return self._run_packed(input, hx)
        axes = "(N, T, D)" if self.batch_first else "(T, N, D)"
        self._check_input(input, {3: axes, 2: "(T, D) for one sequence"})
        is_batched = input.ndim == 3
        x = input if is_batched else input[:, None]
        if is_batched and self.batch_first:
            x = x.transpose(0, 1)
        if len(x) == 0:
            raise RuntimeError(
                f"input must hold at least one step, got shape {tuple(input.shape)}; "
                "leave empty sequences out."
            )
        states = self._first_states(x, hx, x.shape[1] if is_batched else None)
        h, h_last, c_last = self._run_layers(x, states, None)
        if not is_batched:
            return h[:, 0], (h_last[:, 0], c_last[:, 0])
        return h.transpose(0, 1) if self.batch_first else h, (h_last, c_last)

    def _run_packed(
        self, input: PackedSequence, hx: States | None
    ) -> tuple[PackedSequence, States]:
        """Run over sequences of several lengths."""
        x, batch_sizes, order, back = input
        self._check_input(x, {2: "(M, D)"})
        sizes = tuple(batch_sizes.tolist())
        if not sizes:
            raise RuntimeError(
                "input must hold at least one step, got an empty PackedSequence; leave "
                "empty sequences out."
            )
        checked_sizes(x, sizes)
        states = self._first_states(x, hx, sizes[0])
        if order is not None:  # the states come in the order of the user
            states = [state.index_select(1, order) for state in states]
        h, *last = self._run_layers(x, states, sizes)
        if back is not None:
            last = [state.index_select(1, back) for state in last]
        return PackedSequence(h, batch_sizes, order, back), (last[0], last[1])

    def _run_layers(
        self, x: Tensor, states: Sequence[Tensor], sizes: tuple[int, ...] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run all layers over steps that lie on the first axis."""
        is_cast = is_autocast(x)
        if is_cast:
            x, *states = as_float32(x, *states)
        cell = _Cell(self.norm, self.carried, self.hats, self.eps, sizes, self.native)
        order = None
        if sizes is not None and self.bidirectional:
            order = backwards(sizes, x.device)
        first = zip(*(state.unbind() for state in states), strict=True)
        last: list[States] = []
        endings, directions = self._endings(), 1 + self.bidirectional
        for k in range(0, len(endings), directions):
            if k > 0:
                x = nn.functional.dropout(x, self.dropout, self.training)
            outputs = []
            for ending in endings[k : k + directions]:
                weights = [getattr(self, f + ending) for f in (*FIELDS, "w_r")]
                *weights, w_r = as_float32(*weights) if is_cast else weights
                is_reverse = ending.endswith("_reverse")
                y = _reversed(x, order) if is_reverse else x
                h_0, c_0 = next(first)
                h, h_last, c_last = _projected(cell, y, h_0, c_0, weights, w_r)
                outputs.append(_reversed(h, order) if is_reverse else h)
                last.append((h_last, c_last))
            x = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
        h_last, c_last = (torch.stack(values) for values in zip(*last, strict=True))
        return x, h_last, c_last

    def as_lstm(self) -> nn.LSTM:
        """Return a ``torch.nn.LSTM`` that computes the same, with copied weights.

        ``b`` becomes its ``bias_ih``; its ``bias_hh`` is 0. Layer norm, which torch's
        layer has not, is a ValueError.
        """
        if self.norm is not None:
            raise ValueError(
                f"torch.nn.LSTM has no layer norm, got a layer with norm={self.norm!r};"
                " only one with norm=None can become one."
            )
        w_x = self.w_x_l0
        names = "input_size", "hidden_size", *DEFAULTS
        settings = {name: getattr(self, name) for name in names}
        if self.num_layers == 1:
            settings["dropout"] = 0.0  # it would warn
        twin = nn.LSTM(**settings, device=w_x.device, dtype=w_x.dtype)
        state = {}
        for ending in self._endings():
            for field, (first, *others) in THEIRS.items():
                value = getattr(self, field + ending)
                if value is not None:
                    state[first + ending] = self._other_order(field, value.detach())
                    state |= {k + ending: torch.zeros_like(value) for k in others}
        twin.load_state_dict(state)
        return twin.train(self.training)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        is_theirs = prefix + "weight_ih_l0" in state_dict  # then it is translated
        for ending in self._endings() if is_theirs else []:
            for field, theirs in THEIRS.items():
                names = [prefix + name + ending for name in theirs]
                # What we have no place for is left for torch to complain of.
                is_there = all(name in state_dict for name in names)
                ours = getattr(self, field + ending)
                if is_there and ours is not None:
                    values = [state_dict.pop(name) for name in names]
                    odd = [v for v in values if getattr(v, "shape", None) != ours.shape]
                    value = odd[0] if odd else self._other_order(field, sum(values))
                    state_dict[prefix + field + ending] = value
            for field in FIELDS[len(PLAIN) :]:
                value = getattr(self, field + ending)
                if value is not None:
                    state_dict.setdefault(prefix + field + ending, value.detach())
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def _outputs(self) -> int:
        """Numbers of h."""
        return self.proj_size or self.hidden_size

    def _other_order(self, field: str, value: Tensor) -> Tensor:
        """Swap the gates between ours and those of nn.LSTM: the same both ways."""
        if field == "w_r":
            return value
        f, i, o, g = value.chunk(4)
        return torch.cat([i, f, g, o])

    def _endings(self) -> list[str]:
        """Ends of the names of each layer and direction, in order."""
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{k}{d}" for k in range(self.num_layers) for d in directions]

    def _shape(self, field: str, features: int) -> tuple[int, ...] | None:
        """Shape of a parameter, or None if the layer has none such."""
        has_norm = self.norm is not None and field not in without_hat(self.hats)
        has_terms = has_norm and self.norm == "terms"
        is_there = {
            "b": self.bias,
            "beta_h": has_norm and self.has_redundant_biases,
            "gamma_x": has_terms,
            "beta_x": has_terms and self.has_redundant_biases,
            "w_r": self.proj_size > 0,
        }.get(field, field in PLAIN or has_norm)
        rows = self.hidden_size * (1 if field in ("gamma_c", "beta_c") else 4)
        shapes = {
            "w_x": (rows, features),
            "w_h": (rows, self._outputs),
            "w_r": (self.proj_size, self.hidden_size),
        }
        return shapes.get(field, (rows,)) if is_there else None

    def _check_settings(self, dropout: Any) -> None:
        for name, counted in (
            ("input_size", "features at each step"),
            ("hidden_size", "units"),
            ("num_layers", "layers"),
        ):
            check_size(name, getattr(self, name), f"it is the number of {counted}")
        for name in (
            "bias",
            "batch_first",
            "bidirectional",
            "has_redundant_biases",
            "native",
        ):
            check_switch(name, getattr(self, name))
        check_hats(self.norm, self.carried, self.hats, (*get_args(Normed), None))
        size = self.proj_size
        if size != 0:
            check_size("proj_size", size, "it is the number of outputs, 0 for H")
        if size >= self.hidden_size:
            raise ValueError(
                f"proj_size must be smaller than hidden_size = {self.hidden_size}, got "
                f"{size}; leave it out to keep all of h."
            )
        is_number = isinstance(dropout, Real) and not isinstance(dropout, bool)
        if not (is_number and 0 <= dropout <= 1):
            raise ValueError(
                f"dropout must be a number in 0..1, got {dropout!r}; it is the "
                "probability that a value between two layers is set to 0."
            )
        if dropout > 0 and self.num_layers == 1:
            warnings.warn(
                f"dropout acts between layers, got dropout={dropout} with "
                "num_layers=1, where it does nothing; set dropout=0.",
                stacklevel=3,
            )

    def _check_input(self, input: Any, shapes: dict[int, str]) -> None:
        name = type(self).__name__
        if not isinstance(input, Tensor):
            raise TypeError(
                f"input of {name} must be a torch tensor or a PackedSequence, got "
                f"{type(input).__name__}; convert it, e.g. torch.as_tensor(input)."
            )
        if input.ndim not in shapes:
            raise ValueError(
                f"input of {name} must have shape {', or '.join(shapes.values())}, got "
                f"{input.ndim}D input of shape {tuple(input.shape)}; the last axis "
                "holds D features."
            )
        w_x = self.w_x_l0
        if input.dtype != w_x.dtype and not is_autocast(input):
            raise ValueError(
                f"input of {name} must have the dtype of the weights, {w_x.dtype}, got "
                f"{input.dtype}; convert one of them with .to(...)."
            )
        if input.device != w_x.device:
            raise other_device(input, "weights", w_x)
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input of {name} must have input_size = {self.input_size} features on "
                f"its last axis, got shape {tuple(input.shape)}; move the features "
                "there, or make the layer with their number."
            )

    def _first_states(self, x: Tensor, hx: Any, examples: int | None) -> list[Tensor]:
        """Return h_0 and c_0 of all layers; those of a single sequence have no N."""
        shape = {"layers": len(self._endings()), "N": examples}
        if examples is None:
            del shape["N"]
        of_h = shape | {"P" if self.proj_size else "H": self._outputs}
        of_c = shape | {"H": self.hidden_size}
        states = first_states(x, hx, of_h, of_c, is_autocast(x))
        return [state[:, None] for state in states] if examples is None else states


def check_shapes(x: Tensor, c_0: Tensor, parameters: Parameters) -> None:
    """Refuse parameters, in the order of FIELDS, that do not fit the features or units.

    The loops would read what lies behind them.
    """
    units = c_0.shape[1]
    shapes: dict[str, tuple[int, ...]] = {
        "w_x": (4 * units, x.shape[-1]),
        "w_h": (4 * units, units),
        "gamma_c": (units,),
        "beta_c": (units,),
    }
    for name, value in zip(FIELDS, parameters, strict=True):
        shape = shapes.get(name, (4 * units,))
        if value is not None and value.shape != shape:
            raise RuntimeError(
                f"{name} must have shape {shape} for {x.shape[-1]} features and "
                f"{units} units, got {tuple(value.shape)}; give it this shape, or make "
                "the layer with other sizes."
            )


def check_switch(name: str, value: Any) -> bool:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return value


def first_states(
    x: Tensor,
    hx: Any,
    of_h: dict[str, Any],
    of_c: dict[str, Any] | None = None,
    is_cast: bool = False,
) -> list[Tensor]:
    """Return h_0 and c_0, checked for this input; zeros where none are given."""
    both = of_h, of_c or of_h
    if hx is None:
        return [x.new_zeros(tuple(lengths.values())) for lengths in both]
    is_pair = isinstance(hx, (tuple, list))
    if not is_pair or len(hx) != 2:
        came = f"{len(hx)} values" if is_pair else type(hx).__name__
        raise TypeError(
            f"hx must be a pair of tensors (h_0, c_0), got {came}; leave it out to "
            "begin with 0."
        )
    for name, state, lengths in zip(("h_0", "c_0"), hx, both, strict=True):
        shape = tuple(lengths.values())
        if not isinstance(state, Tensor):
            raise TypeError(
                f"{name} must be a torch tensor, got {type(state).__name__}; leave "
                "hx out to begin with 0."
            )
        if state.shape != shape:
            raise RuntimeError(
                f"{name} must have shape ({', '.join(lengths)}) = {shape} for this "
                f"input, got {tuple(state.shape)}; batch_first does not move its axes, "
                f"and directions stand before examples."
            )
        is_same = is_cast or state.dtype == x.dtype
        if not is_same or state.device != x.device:
            raise RuntimeError(
                f"{name} must have the dtype and device of the input, {x.dtype} on "
                f"{x.device}, got {state.dtype} on {state.device}; convert it with "
                ".to(...)."
            )
    return list(hx)


def _projected(
    cell: _Cell,
    x: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    parameters: Parameters,
    w_r: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer in one direction, with its projection if it has one."""
    if w_r is None:
        return _layer(cell, x, h_0, c_0, parameters)
    # A step takes W_h (W_r h), which is (W_h W_r) h. Only the first step is given W_r h
    # itself: to have H numbers it takes zeros behind.
    weights = LayerNormLSTMParameters(*parameters)
    sizes, missing = cell.batch_sizes, [0, w_r.shape[1] - w_r.shape[0]]
    rows = sizes[0] if sizes else 1  # of the first step
    with no_autocast(x):
        first = weights._replace(w_h=nn.functional.pad(weights.w_h, missing))
        of_first = dataclasses.replace(cell, batch_sizes=sizes and sizes[:1])
        h_0 = nn.functional.pad(h_0, missing)
        h, h_last, c_last = _layer(of_first, x[:rows], h_0, c_0, first)
        if len(x) > rows:
            alive = sizes[1] if sizes else len(c_0)
            others = weights._replace(w_h=weights.w_h @ w_r)
            of_others = dataclasses.replace(cell, batch_sizes=sizes and sizes[1:])
            states = h_last[:alive], c_last[:alive]
            behind, *last = _layer(of_others, x[rows:], *states, others)
            h, h_last, c_last = map(
                torch.cat,
                ((h, behind), (last[0], h_last[alive:]), (last[1], c_last[alive:])),
            )
        return h @ w_r.T, h_last @ w_r.T, c_last


def _layer(
    cell: _Cell, x: Tensor, h_0: Tensor, c_0: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer in one direction."""
    inputs = x, h_0, c_0, *parameters
    check_shapes(x, c_0, parameters)
    tensors = [v for v in inputs if v is not None]
    if (function := _function(cell, tensors)) is None:
        with no_autocast(x):
            return tuple(cell.forward(*inputs)[0])
    is_kept = torch.is_grad_enabled() and any(v.requires_grad for v in tensors)
    h, h_last, c_last, *_ = function.apply(cell, is_kept, *inputs)
    return h, h_last, c_last


def _function(cell: _Cell, tensors: Sequence[Tensor]) -> Any:
    """Choose what runs over the steps; None for the formulas, which torch follows."""
    has_tangent = any(
        forward_ad.unpack_dual(v).tangent is not None  # type: ignore[no-untyped-call]
        for v in tensors
    )
    if has_tangent:
        return None
    if cell.is_native and cell.has_loop and can_run(tensors):
        return NativeSequence
    if cell.is_native and cell.is_paper and triton_lstm.can_run(tensors):
        return triton_lstm.TritonSequence
    return TorchSequence if cell.is_usual and are_plain(tensors) else None


def _reversed(x: Tensor, order: Tensor | None) -> Tensor:
    """Turn the time of each sequence around."""
    return x.flip(0) if order is None else x.index_select(0, order)


def backwards(sizes: Sequence[int], device: torch.device) -> Tensor:
    """Rows of a packed batch with the time of each sequence turned around."""
    with torch.device("cpu"):  # whatever the default is
        alive = torch.tensor(sizes)
        starts = alive.cumsum(0) - alive
        examples = torch.cat([torch.arange(size) for size in sizes])
        steps = torch.arange(len(sizes)).repeat_interleave(alive)
        lengths = (alive[:, None] > torch.arange(sizes[0])).sum(0)
        order = starts[lengths[examples] - 1 - steps] + examples
    return order.to(device)
