"""What kernels of Triton become on a GPU: no register overflows into memory."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from triton_cases import INTERPRETED, WITHOUT

triton: Any = pytest.importorskip("triton", reason=WITHOUT)
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from normbook.layers import triton_cell as cell  # noqa: E402
from normbook.layers import triton_norms as norms  # noqa: E402

pytestmark = pytest.mark.skipif(
    INTERPRETED, reason="what is interpreted is not compiled: needs no TRITON_INTERPRET"
)
PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"

# By the names of arguments; others are arrays of the dtype that is asked for.
NUMBERS = {"eps": "fp32", "m": "i32", "d": "i32", "parts": "i32"}
STATISTICS = {"mean", "inv_std", "var", "means", "squares", "counts", "moments"}
STATISTICS |= {"c", "c_prev", "at_c", "dl_dgamma", "dl_dbeta"}


def resources(
    kernel: Any, tile: dict[str, int], capability: int, dtype: str, tmp_path: Path
) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes it writes for want of others."""
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in tile:
            signature[name], constants[(place,)] = "constexpr", tile[name]
        elif name in NUMBERS:
            signature[name] = NUMBERS[name]
        else:
            signature[name] = "*fp32" if name in STATISTICS else f"*{dtype}"
        if name == "d" or signature[name].startswith("*"):  # as a call finds out
            attributes[(place,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": tile["num_warps"]},
    )
    ptx = compiled.asm["ptx"]
    (arch,) = re.findall(r"^\.target (\w+)", ptx, re.MULTILINE)
    source = tmp_path / "kernel.ptx"
    source.write_text(ptx)
    to = tmp_path / "kernel"
    command = [str(PTXAS), "-v", f"--gpu-name={arch}", str(source), "-o", str(to)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (registers,) = re.findall(r"Used (\d+) registers", told)
    (spilled,) = re.findall(r"(\d+) bytes spill stores", told)
    return int(registers), int(spilled)


each_target = pytest.mark.parametrize("capability", [80, 90])
each_dtype = pytest.mark.parametrize("dtype", ["fp32", "bf16"])


@each_target
@each_dtype
@pytest.mark.parametrize("units", [33, 256, 400, 1024, cell.WIDEST])
def test_a_row_of_the_cell_stays_in_registers(
    units: int, capability: int, dtype: str, tmp_path: Path
) -> None:
    for kernel, most in ((cell.step_forward, 64), (cell.step_backward, 104)):
        tile = cell.cell_tile(units)
        registers, spilled = resources(kernel, tile, capability, dtype, tmp_path)
        assert spilled == 0
        assert registers <= most


@each_target
@each_dtype
@pytest.mark.parametrize("width", [64, 400, 1024, norms.WIDEST])
def test_a_tile_of_rows_stays_in_registers(
    width: int, capability: int, dtype: str, tmp_path: Path
) -> None:
    for kernel, most in ((norms.rows_forward, 48), (norms.rows_backward, 96)):
        tile = norms.row_tile(width)
        registers, spilled = resources(kernel, tile, capability, dtype, tmp_path)
        assert spilled == 0
        assert registers <= most


@each_target
@each_dtype
@pytest.mark.parametrize("width", [16, 1024])
def test_a_tile_of_columns_stays_in_registers(
    width: int, capability: int, dtype: str, tmp_path: Path
) -> None:
    tile = norms.column_tile(width)
    of_parts = tile | {"ROWS": norms.PARTS, "COLUMNS": 16}
    for kernel, sizes in (
        (norms.moments_of_parts, tile),
        (norms.moments_of_columns, of_parts),
        (norms.columns_forward, tile),
        (norms.sums_of_parts, tile),
        (norms.columns_backward, tile),
    ):
        registers, spilled = resources(kernel, sizes, capability, dtype, tmp_path)
        assert spilled == 0
        assert registers <= 96
