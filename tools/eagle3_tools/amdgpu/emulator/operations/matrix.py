"""Matrix products (MFMA): the layout of their elements over lanes, and the sums.

Products are summed in float64 and rounded once; the rounding inside hardware is not documented.
Layouts are from AMD's matrix instruction calculator and CDNA3 ISA, "Matrix Arithmetic
Instructions": lane l holds row l % M of A (column of B) and a block of consecutive k; consecutive
registers of the result hold four rows of one column.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.numbers import FLOAT4, VALUES
from eagle3_tools.amdgpu.emulator.waves import LANES, Read, Waves, words
from eagle3_tools.aot.amd.decode import Instruction, Operand

F32, F64, U32 = np.float32, np.float64, np.uint32
_NAME = re.compile(r"v_mfma_(scale_)?(f32|i32)_(\d+)x\d+x(\d+)_?(\w+)")
PER_WORD = {"bf16": 2, "f32": 1, "i8": 4, "fp8": 4, "bf8": 4, "fp4": 8}
_F8F6F4 = {0: "fp8", 1: "bf8", 4: "fp4"}
_LANE = np.arange(LANES)


@dataclass(frozen=True)
class Shape:
    """Size of an MFMA (M = N rows and columns, k products in a sum) and element kinds of A, B."""

    rows: int
    depth: int
    kinds: tuple[str, str]
    integer: bool
    scaled: bool
    wide: bool
    """Set for f8f6f4, where the halves of a lane's 32 bytes are not consecutive in k."""

    @property
    def lane_depth(self) -> int:
        """Number of k that a lane holds."""
        return self.depth * self.rows // LANES


def shape_of(i: Instruction) -> Shape:
    """Parse an MFMA's name and fields; raise Fault if it is unknown."""
    found = _NAME.fullmatch(i.name)
    if found is None:
        raise Fault(f"the matrix instruction {i.name}")
    kind, scaled = found[5].removesuffix("_1k"), bool(found[1])
    wide = kind == "f8f6f4"
    codes = (i.fields["cbsz"], i.fields["blgp"])
    if (wide and not set(codes) <= set(_F8F6F4)) or (not wide and any(codes)):
        raise Fault(f"{i.name} with cbsz and blgp {codes}")
    a, b = (_F8F6F4[c] for c in codes) if wide else (kind.split("_") * 2)[:2]
    if not {a, b} <= set(PER_WORD):
        raise Fault(f"elements of {i.name}")
    return Shape(int(found[3]), int(found[4]), (a, b), found[2] == "i32", scaled, wide)


def matrix_product(i: Instruction) -> Callable[[Waves], None]:
    """Translate D = A B + C for every wave; EXEC is ignored."""
    shape = shape_of(i)
    a, b = (Elements(o, kind, shape) for o, kind in zip(i.sources[:2], shape.kinds, strict=True))
    scales = [_scale(i, k, shape) for k in (0, 1)] if shape.scaled else []
    count = shape.rows * shape.rows // LANES
    addend = [words(i.sources[2], k) for k in range(count)]
    rows, columns = result_places(shape.rows)
    first = i.operands["vdst"].index
    kind = np.int32 if shape.integer else F32

    def run(w: Waves) -> None:
        factors = [part.read(w) for part in (a, b)]
        for factor, scale in zip(factors, scales, strict=False):
            factor *= scale(w)
        product = factors[0] @ factors[1].transpose(0, 2, 1)
        old = np.stack(np.broadcast_arrays(*(read(w) for read in addend)), 1)  # [waves, count, 64]
        total = product[:, rows, columns] + old.view(kind)
        if shape.integer:
            value = (total.astype(np.int64) & 0xFFFF_FFFF).astype(U32)
        else:  # Which NaN of several is the result is not documented.
            value = np.where(np.isnan(total), np.nan, total).astype(F32).view(U32)
        for k in range(count):
            w.vectors[first + k, w.chosen] = value[:, k]

    return run


def result_places(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column [registers, lanes] of each number of the result."""
    register = np.arange(rows * rows // LANES)[:, None]
    group = _LANE // rows
    row = 8 * (register // 4) + 4 * group + register % 4 if rows == 32 else 4 * group + register
    return row, np.broadcast_to(_LANE % rows, row.shape)


class Elements:
    """Elements of A, or of B transposed: float64 [waves, rows, k]."""

    def __init__(self, operand: Operand, kind: str, shape: Shape):
        self._kind, self._shape = kind, shape
        self._words = [words(operand, k) for k in range(shape.lane_depth // PER_WORD[kind])]
        step, group = np.arange(shape.lane_depth)[None], (_LANE // shape.rows)[:, None]
        if shape.wide and kind != "fp4":
            groups = LANES // shape.rows
            k = step // 16 * 16 * groups + group * 16 + step % 16
        else:
            k = group * shape.lane_depth + step
        self.places = ((_LANE % shape.rows)[:, None] * shape.depth + k).reshape(-1)
        """Place in [rows, k] of each element of lane 0, lane 1, ..."""
        self._order = np.argsort(self.places)

    def read(self, w: Waves) -> np.ndarray:
        parts = np.broadcast_arrays(*(read(w) for read in self._words), np.zeros((1, LANES), U32))
        raw = np.ascontiguousarray(np.stack(parts[:-1], -1))
        numbers = _numbers(raw, self._kind, w.arch).reshape(len(raw), -1)
        rows, depth = self._shape.rows, self._shape.depth
        return numbers[:, self._order].reshape(-1, rows, depth).astype(F64)


def _numbers(raw: np.ndarray, kind: str, arch: str) -> np.ndarray:
    """Decode packed words [waves, lanes, words]."""
    if kind == "bf16":
        return (raw.view(np.uint16).astype(U32) << U32(16)).view(F32)
    if kind == "fp4":
        octets = raw.view(np.uint8)
        return FLOAT4[np.stack([octets & 15, octets >> 4], -1)]
    if kind in ("f32", "i8"):
        return raw.view({"f32": F32, "i8": np.int8}[kind])
    return VALUES[arch, kind][raw.view(np.uint8)]


def _scale(i: Instruction, which: int, shape: Shape) -> Callable[[Waves], np.ndarray]:
    """Return factors [waves, rows, k] of A (0) or B (1): a lane has one e8m0 byte for its 32 k."""
    read = scale_bits(i, which)
    groups = LANES // shape.rows

    def factors(w: Waves) -> np.ndarray:
        waves = len(w.group[w.chosen])
        bits = np.broadcast_to(read(w), (waves, LANES))
        power = np.where(bits == 255, np.nan, np.ldexp(1.0, bits.astype(np.int64) - 127))
        blocks = power.reshape(waves, groups, shape.rows).transpose(0, 2, 1)
        return np.repeat(blocks, shape.depth // groups, axis=2)

    return factors


def scale_bits(i: Instruction, which: int) -> Read:
    """Read each lane's e8m0 byte of A (0) or B (1)."""
    read = words(i.operands[f"scale_src{which}"])
    byte = (i.fields["opsel"] >> which & 1) + 2 * (i.fields["opsel_hi"] >> which & 1)
    return lambda w: read(w) >> U32(8 * byte) & U32(255)


def is_matrix(i: Instruction) -> bool:
    """Return whether it is an MFMA."""
    return i.name.startswith("v_mfma_")
