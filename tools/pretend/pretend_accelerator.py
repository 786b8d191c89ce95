"""A pretend accelerator: what a GPU refuses is refused here, on a machine without one.

To torch, a tensor on the device ``pretend`` is one of a device that is not the CPU; its
memory is the CPU's under another label. An operator takes the label off (by DLPack,
without a copy), computes on the CPU and labels the result. As on CUDA, tensors of two
devices do not mix, but for numbers and indices on the CPU; NumPy does not see them; and
random numbers are others than the CPU's, whose generators draw none.

With this folder on ``PYTHONPATH``, every ``import torch`` registers the device, by the
entry point beside this file. ``tools/pretend.sh`` runs the book so.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache, partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "pretend"
KEY = "PrivateUse1"  # torch's spare device
CPU, SPARE = 1, 12  # as DLPack numbers devices
PLACE = 8  # of that number in what a capsule of DLPack points to, in bytes

# Operators that on CUDA take indices, and numbers (tensors without axes), of the CPU.
INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
SCALARS = {"index_put", "index_put_", "_index_put_impl_", "fill", "fill_"}
SCALARS |= {"masked_fill", "masked_fill_"}
# These look at the same memory in another way, whatever its device.
VIEWS = ["as_strided", "view", "_reshape_alias", "unfold", "set_.source_Tensor"]
VIEWS += ["set_.source_Storage", "set_.source_Storage_storage_offset"]

aten = torch.ops.aten
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype = ctypes.c_void_p
pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
numbers = torch.Generator()  # the device's
libraries: list[Any] = []  # the kernels; torch forgets those of a library that goes


def label(tensor: Tensor, device: int) -> Tensor:
    """Return the same memory as a tensor of another device."""
    capsule = torch._C._to_dlpack(tensor)
    place = pointer(capsule, b"dltensor") + PLACE
    ctypes.c_int32.from_address(place).value = device
    return torch._C._from_dlpack(capsule)


def on_cpu(value: Any, strangers: list[Tensor]) -> Any:
    """Return an argument of an operator for the CPU's; note what was there already."""
    if isinstance(value, Tensor):
        if not value.is_cpu:
            return label(value, CPU)
        strangers.append(value)
    elif isinstance(value, (list, tuple)):
        return [on_cpu(one, strangers) for one in value]
    elif isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def on_device(value: Any) -> Any:
    """Return a result of the CPU's operator as the device's."""
    if isinstance(value, Tensor):
        return label(value, SPARE)
    if isinstance(value, (list, tuple)):
        return type(value)([on_device(one) for one in value])
    return value


class Operator:
    """An operator on the device, and what its schema says."""

    def __init__(self, op: Any) -> None:
        self.op, arguments = op, op._schema.arguments
        name = op._schema.name.removeprefix("aten::")
        self.names = [argument.name for argument in arguments]
        is_written = [a.alias_info and a.alias_info.is_write for a in arguments]
        self.written = [n for n, w in zip(self.names, is_written, strict=True) if w]
        self.of_tensors = [str(argument.type) == "Tensor" for argument in arguments]
        self.outputs = [argument.name for argument in arguments if argument.is_out]
        self.returns_written = bool(op._schema.returns) and all(
            one.alias_info and one.alias_info.is_write for one in op._schema.returns
        )
        self.draws = torch.Tag.nondeterministic_seeded in op.tags
        self.takes_indices = name in INDICES
        self.takes_scalars = name in SCALARS or torch.Tag.pointwise in op.tags

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute on the CPU."""
        strangers: list[Tensor] = []
        on_host = [on_cpu(value, strangers) for value in args]
        for place, value in enumerate(args):
            if isinstance(value, bool) and self.of_tensors[place]:
                on_host[place] = torch.tensor(value)  # torch takes no other bool
        named = {name: on_cpu(value, strangers) for name, value in kwargs.items()}
        if strangers or self.draws:
            self.check(dict(zip(self.names, args, strict=False)) | kwargs)
        for name in self.outputs:
            if not named[name].numel():  # it may grow, which labelled memory cannot
                named[name] = torch.empty(0, dtype=named[name].dtype)
        if self.draws:
            with torch.random.fork_rng(devices=()):
                torch.set_rng_state(numbers.get_state())
                results = self.op(*on_host, **named)
                numbers.set_state(torch.get_rng_state())
        else:
            results = self.op(*on_host, **named)
        for name in self.outputs:
            if named[name].shape != kwargs[name].shape:
                kwargs[name].set_(label(named[name], SPARE))
        if not self.returns_written:
            return on_device(results)
        arguments = dict(zip(self.names, args, strict=False)) | kwargs
        written = tuple(arguments[name] for name in self.written)
        return written if len(written) > 1 else written[0]

    def check(self, arguments: dict[str, Any]) -> None:
        """Refuse what CUDA does not take from the CPU."""
        for name, value in arguments.items():
            is_index = self.takes_indices and name == "indices"
            strangers: list[Tensor] = []
            on_cpu(value, strangers)
            for tensor in strangers:
                is_scalar = self.takes_scalars and tensor.dim() == 0
                if name in self.written or not (is_index or is_scalar):
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at "
                        f"least two devices, {NAME}:0 and cpu! ({name} of {self.op})"
                    )
        if arguments.get("generator") is not None:
            raise RuntimeError(
                f"Expected a '{NAME}' device type for generator but found 'cpu'"
            )


operator = cache(Operator)


def compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Be the kernel of every operator that has no other."""
    return operator(op)(*args, **kwargs)


def look(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Return another view of the same memory."""
    here = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return op.redispatch(here, *args, **kwargs)


def copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy numbers from one device to the other, or within one."""
    on_cpu(target, []).copy_(on_cpu(source, []))
    return target


# GPUs have an operator for a step of an LSTM, the CPU has not.
def lstm_step(
    inputs: Tensor, hidden: Tensor, c: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new state, the new cell, and the gates for the way back."""
    total = sum((bias for bias in biases if bias is not None), inputs + hidden)
    i, f, g, o = total.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * c + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], 1)


def lstm_step_backward(
    dh: Tensor | None,
    dc: Tensor | None,
    c: Tensor,
    new: Tensor,
    gates: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the gates' inputs, of the cell and of the biases."""
    i, f, g, o = gates.chunk(4, 1)
    dh = torch.zeros_like(c) if dh is None else dh
    d_new = dh * o * (1 - new.tanh() ** 2) + (0 if dc is None else dc)
    d_i, d_f = d_new * g * i * (1 - i), d_new * c * f * (1 - f)
    d_g, d_o = d_new * i * (1 - g * g), dh * new.tanh() * o * (1 - o)
    d_gates = torch.cat([d_i, d_f, d_g, d_o], 1)
    return d_gates, d_new * f, d_gates.sum(0) if has_bias else None


def convolution_backward(
    dy: Tensor, x: Tensor, weight: Tensor, *others: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight and bias."""
    operator = aten.convolution_backward.default
    groups = (weight.shape[0],)
    return compute(operator, dy, x, weight, groups, *others)  # type: ignore[no-any-return]


# torch allocates memory of the device in tensors, not in storages.
def moved(storage: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    """Return a copy of a tensor's memory."""
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return torch.empty_like(whole, device=device).copy_(whole).untyped_storage()


def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Be the method ``clone`` of storages: `copy.deepcopy` of tensors calls it."""
    return moved(storage, storage.device.type)


def load(storage: Any, place: str) -> torch.UntypedStorage | None:
    """Move what `torch.load` read from a file to where it was saved from."""
    return moved(storage, NAME) if place.startswith(NAME) else None


class Module:
    """What torch asks of the module that has the device's name: ``torch.pretend``."""

    device = contextlib.nullcontext
    is_available = is_initialized = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    get_amp_supported_dtype = staticmethod(lambda: [torch.float16, torch.bfloat16])
    manual_seed_all = staticmethod(lambda seed: numbers.manual_seed(seed + 1))
    get_rng_state = staticmethod(lambda device=0: numbers.get_state())
    set_rng_state = staticmethod(lambda state, device=0: numbers.set_state(state))


@cache
def register() -> None:
    """Make the device known to torch."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, Module())
    kernels: dict[str, Any] = {
        "_copy_from": copy,
        "_thnn_fused_lstm_cell": lstm_step,
        "_thnn_fused_lstm_cell_backward_impl": lstm_step_backward,
        "convolution_overrideable": operator(aten.convolution.default),
        "convolution_backward_overrideable": convolution_backward,
        "_fused_sdp_choice": lambda *args, **kwargs: 0,  # attention by its formula
        "_efficientzerotensor": torch.zeros,  # the CPU's has no memory
    }
    kernels |= {name: partial(look, resolve(name)) for name in VIEWS}
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        # In one step, where torch would make a result and have it written.
        if has(name, "CompositeExplicitAutogradNonFunctional") and has(name, "CPU"):
            name = name.removeprefix("aten::")
            kernels.setdefault(name, operator(resolve(name)))
    library: Any = torch.library.Library
    ours, others = library("aten", "IMPL"), library("_", "IMPL")
    for name, kernel in kernels.items():
        ours.impl(name, kernel, KEY)
    others.fallback(compute, KEY)
    libraries.extend([ours, others])
    torch.UntypedStorage.clone = clone  # type: ignore[assignment,method-assign]
    torch.serialization.register_package(0, lambda storage: None, load)


def resolve(name: str) -> Any:
    """Return an operator of torch by its name."""
    op = reduce(getattr, name.split("."), aten)
    return op if "." in name else op.default
