"""Matrix instructions against the formulas of AMD's calculator, element by element.

The matrix instruction calculator gives lane and register for every element of A, B and D = A B + C.
For scaled instructions, CDNA4 ISA, "Matrix Core Scaling" gives the places of scales. All numbers
are integers, so every sum is exact.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tinygrad")

from amdgpu.instructions import encode, v
from amdgpu.single import make_waves, run
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.amdgpu.witness.table import CALCULATOR

_A, _B, _C, _D, _SCALES = 100, 120, 140, 160, (180, 181)
_FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
_BITS = {"f32": 32, "bf16": 16, "fp8": 8, "i8": 8, "fp4": 4}


@dataclass(frozen=True)
class Layout:
    """Layout of an instruction; `size` is rows of A and columns of B, `depth` the length of sums.

    In `interleaved` 8-bit f8f6f4 a lane has 16 elements of each half of the depth.
    """

    mnemonic: str
    size: int
    depth: int
    kinds: tuple[str, str]
    interleaved: bool = False
    arch: str = "gfx950"

    def place(self, row: int, k: int, kind: str) -> tuple[int, int]:
        """Return lane and element of A[row][k], or of B[k][column]."""
        lanes = LANES // self.size
        if self.interleaved and kind == "fp8":
            return row + self.size * (k // 16 % lanes), k % 16 + 16 * (k // (16 * lanes))
        of_lane = self.depth // lanes
        return row + self.size * (k // of_lane), k % of_lane

    def result_place(self, row: int, column: int) -> tuple[int, int]:
        """Return lane and register of C[row][column] and D[row][column]."""
        if self.size == 16:
            return column + 16 * (row // 4), row % 4
        return column + 32 * (row // 4 % 2), row % 4 + 4 * (row // 8)


LAYOUTS = [
    Layout("v_mfma_f32_16x16x4_f32", 16, 4, ("f32", "f32")),
    Layout("v_mfma_f32_32x32x2_f32", 32, 2, ("f32", "f32")),
    Layout("v_mfma_f32_16x16x16_bf16", 16, 16, ("bf16", "bf16"), arch="gfx942"),
    Layout("v_mfma_f32_32x32x8_bf16", 32, 8, ("bf16", "bf16"), arch="gfx942"),
    Layout("v_mfma_f32_16x16x32_bf16", 16, 32, ("bf16", "bf16")),
    Layout("v_mfma_f32_32x32x16_bf16", 32, 16, ("bf16", "bf16")),
    Layout("v_mfma_f32_16x16x32_fp8_fp8", 16, 32, ("fp8", "fp8"), arch="gfx942"),
    Layout("v_mfma_f32_32x32x16_fp8_fp8", 32, 16, ("fp8", "fp8"), arch="gfx942"),
    Layout("v_mfma_i32_16x16x32_i8", 16, 32, ("i8", "i8"), arch="gfx942"),
    Layout("v_mfma_i32_16x16x64_i8", 16, 64, ("i8", "i8")),
    *(
        Layout(f"v_mfma_{scale}f32_{size}x{size}x{depth}_f8f6f4", size, depth, kinds, True)
        for scale in ("", "scale_")
        for size, depth in ((16, 128), (32, 64))
        for kinds in (("fp8", "fp8"), ("fp4", "fp4"), ("fp8", "fp4"), ("fp4", "fp8"))
    ),
]
_CODES = {"fp8": 0, "fp4": 4}


def _elements(kind: str, shape: tuple[int, int], arch: str, rng: Any) -> tuple[Any, Any]:
    """Draw numbers and their bits."""
    if kind == "fp4":
        bits = rng.integers(0, 16, shape)
        return _FLOAT4[bits], bits
    numbers = rng.integers(-128, 128, shape) if kind == "i8" else rng.integers(-8, 9, shape)
    fp8 = ml_dtypes.float8_e4m3fn if arch == "gfx950" else ml_dtypes.float8_e4m3fnuz
    types = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "fp8": fp8, "i8": np.int8}
    stored = numbers.astype(types[kind])
    return numbers.astype(float), stored.view(f"u{stored.itemsize}")


def _put(w: Waves, first: int, lane: int, element: int, bits: int, pattern: int) -> None:
    register, place = divmod(element, 32 // bits)
    w.vectors[first + register, 0, lane] |= np.uint32(int(pattern) << bits * place)


def _put_operand(w: Waves, layout: Layout, first: int, kind: str, bits: np.ndarray) -> None:
    """Write bits [rows, depth] of A, or of B transposed."""
    for row in range(layout.size):
        for k in range(layout.depth):
            lane, element = layout.place(row, k, kind)
            _put(w, first, lane, element, _BITS[kind], bits[row, k])


def _put_scales(w: Waves, layout: Layout, bytes_: tuple[int, int], rng: Any) -> list[np.ndarray]:
    """Write scales in lane order, one byte for 32 k of a row; return factors [rows, depth]."""
    factors = []
    for register, byte in zip(_SCALES, bytes_, strict=True):
        w.vectors[register] = rng.integers(0, 1 << 32, (1, LANES))
        exponents = rng.integers(126, 129, (layout.size, layout.depth // 32))
        for row, block in np.ndindex(exponents.shape):
            lane = row + layout.size * block
            w.vectors[register, 0, lane] &= np.uint32(~(255 << 8 * byte) & 0xFFFF_FFFF)
            _put(w, register, lane, byte, 8, exponents[row, block])
        factors.append(np.repeat(2.0 ** (exponents - 127), 32, axis=1))
    return factors


def _fields(layout: Layout, bytes_: tuple[int, int]) -> dict[str, Any]:
    count = layout.size**2 // LANES
    words = [layout.depth * layout.size // LANES * _BITS[kind] // 32 for kind in layout.kinds]
    fields = {"vdst": v(_D, count), "src2": v(_C, count)}
    fields |= {"src0": v(_A, words[0]), "src1": v(_B, words[1])}
    if layout.interleaved:
        fields |= {"cbsz": _CODES[layout.kinds[0]], "blgp": _CODES[layout.kinds[1]]}
    if "scale" in layout.mnemonic:
        low, high = (sum((byte >> bit & 1) << k for k, byte in enumerate(bytes_)) for bit in (0, 1))
        fields |= {"scale_src0": 256 + _SCALES[0], "scale_src1": 256 + _SCALES[1]}
        fields |= {"opsel": low, "opsel_hi": high, "x2encoding": 0xD3AC}
    return fields


_VARIANTS = [
    (layout, bytes_)
    for layout in LAYOUTS
    for bytes_ in ([(0, 0), (1, 2), (3, 1), (2, 3)] if "scale" in layout.mnemonic else [(0, 0)])
]
"""Layouts, and for scaled ones the bytes of the registers that hold A's and B's scales."""


@pytest.mark.parametrize("layout, bytes_", _VARIANTS, ids=str)
def test_a_matrix_instruction_multiplies(layout: Layout, bytes_: tuple[int, int]):
    rng, scaled = np.random.default_rng(0), "scale" in layout.mnemonic
    w = make_waves(1, arch=layout.arch)
    w.vectors[:] = 0
    w.set_exec(rng.random((1, LANES)) < 0.5)  # Matrix instructions ignore EXEC.
    shape = layout.size, layout.depth
    factors = []
    for first, kind in zip((_A, _B), layout.kinds, strict=True):
        numbers, bits = _elements(kind, shape, layout.arch, rng)
        _put_operand(w, layout, first, kind, bits)
        factors.append(numbers)
    if scaled:
        scales = _put_scales(w, layout, bytes_, rng)
        factors = [f * s for f, s in zip(factors, scales, strict=True)]
    total = np.int32 if "i32" in layout.mnemonic else np.float32
    addend = rng.integers(-99, 99, (layout.size,) * 2).astype(total)
    for row, column in np.ndindex(addend.shape):
        lane, register = layout.result_place(row, column)
        w.vectors[_C + register, 0, lane] = addend.view(np.uint32)[row, column]
    run(encode(layout.mnemonic, **_fields(layout, bytes_)), w)
    found = np.zeros_like(addend)
    for row, column in np.ndindex(found.shape):
        lane, register = layout.result_place(row, column)
        found[row, column] = w.vectors[_D + register, 0, lane].view(total)
    np.testing.assert_array_equal(found, factors[0] @ factors[1].T + addend)


def test_the_table_of_witnesses_names_these():
    assert {layout.mnemonic for layout in LAYOUTS} == set(CALCULATOR)


def test_operands_can_be_accumulation_registers():
    layout = LAYOUTS[0]
    w, fields = make_waves(1), _fields(layout, (0, 0))
    w.vectors[:] = np.float32(7).view(np.uint32)
    for first, value in ((256 + _A, 2), (_B, 3), (256 + _C, 5)):
        w.vectors[first : first + 4] = np.float32(value).view(np.uint32)
    run(encode(layout.mnemonic, **fields, acc=1, acc_cd=1), w)
    assert (w.vectors[256 + _D : 256 + _D + 4].view(np.float32) == 4 * 2 * 3 + 5).all()
    assert (w.vectors[_D : _D + 4].view(np.float32) == 7).all()
