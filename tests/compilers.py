"""What compiles some modules of the package; without it they cannot be imported."""

from importlib.util import find_spec

COMPILED = {
    "numba": ("compiled_lstm", "compiled_norms"),
    "triton": ("triton_cell", "triton_norms"),
}
MISSING = [
    module
    for name, modules in COMPILED.items()
    if find_spec(name) is None
    for module in modules
]
