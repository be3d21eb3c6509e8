"""Matrix products (MFMA) in C, with the layouts of `operations.matrix`."""

from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.native.registers import TracedWaves
from eagle3_tools.amdgpu.emulator.native.traced import LANES, Trace
from eagle3_tools.amdgpu.emulator.numbers import FLOAT4, VALUES
from eagle3_tools.amdgpu.emulator.operations.matrix import (
    PER_WORD,
    Elements,
    Shape,
    result_places,
    scale_bits,
    shape_of,
)
from eagle3_tools.amdgpu.emulator.waves import words
from eagle3_tools.aot.amd.decode import Instruction


def trace_matrix(i: Instruction, trace: Trace, w: Any) -> None:
    """Write D = A B + C. Products are summed in float64 in the order of k, and rounded once."""
    shape = shape_of(i)
    rows, depth, count = shape.rows, shape.depth, shape.rows * shape.rows // LANES
    trace.segments[0].append(f"double a[{rows * depth}], b[{rows * depth}];")
    for which, kind in enumerate(shape.kinds):
        elements = Elements(i.sources[which], kind, shape)
        places = elements.places if which == 0 else _transposed(elements.places, shape)
        _decode(trace, w, i.sources[which], kind, shape, "ab"[which], places)
        if shape.scaled:
            _scale(trace, w, i, which, shape)
    old = [words(i.sources[2], k)(w) for k in range(count)]
    held = w.spilled(old, np.uint32)
    row, column = (trace.table(x.reshape(-1).astype(np.int32)) for x in result_places(rows))
    out = trace.parameter("uint32_t *", f"v + {LANES * i.operands['vdst'].index}")
    total = f"sum[{row}[n]][{column}[n]] + "
    if shape.integer:
        value = f"(uint32_t)(int64_t)({total}(int32_t){held}[n])"
    else:
        value = f"bits_or_nan({total}as_float32_uint32({held}[n]))"
    trace.statement(
        f"""double sum[{rows}][{rows}];
  for (int i = 0; i < {rows}; i++) {{
    double row[{rows}] = {{0}};
    for (int k = 0; k < {depth}; k++)
      for (int j = 0; j < {rows}; j++) row[j] += a[i * {depth} + k] * b[k * {rows} + j];
    memcpy(sum[i], row, sizeof row);
  }}
  for (int n = 0; n < {count * LANES}; n++) {out}[n] = {value};"""
    )


def _transposed(places: np.ndarray, shape: Shape) -> np.ndarray:
    return places % shape.depth * shape.rows + places // shape.depth


def _decode(
    trace: Trace, w: TracedWaves, operand: Any, kind: str, shape: Shape, name: str, places: Any
) -> None:
    per, bits = PER_WORD[kind], 32 // PER_WORD[kind]
    count = shape.lane_depth // per
    held = w.spilled([words(operand, k)(w) for k in range(count)], np.uint32)
    part = f"({held}[{LANES} * k + l] >> {bits} * e)"
    if kind == "bf16":
        number = f"as_float32_uint32({part} << 16)"
    elif kind == "f32":
        number = f"as_float32_uint32({part})"
    elif kind == "i8":
        number = f"(int8_t){part}"
    else:
        values = FLOAT4 if kind == "fp4" else VALUES[w.arch, kind]
        number = f"{trace.table(values)}[{part} & {(1 << bits) - 1}]"
    place = f"{trace.table(places.astype(np.int32))}[(l * {count} + k) * {per} + e]"
    trace.statement(
        f"for (int l = 0; l < {LANES}; l++) for (int k = 0; k < {count}; k++) "
        f"for (int e = 0; e < {per}; e++) {name}[{place}] = {number};"
    )


def _scale(trace: Trace, w: TracedWaves, i: Instruction, which: int, shape: Shape) -> None:
    """Multiply the rows of A, or columns of B, by powers of two: a lane has that of its 32 k."""
    held = w.spilled([scale_bits(i, which)(w)], np.uint32)
    rows, depth = shape.rows, shape.depth
    block = depth // (LANES // rows)
    place = f"r * {depth} + k" if which == 0 else f"k * {rows} + r"
    bits = f"{held}[k / {block} * {rows} + r]"
    power = f"({bits} == 255 ? (double)NAN : ldexp_(1.0, (int64_t){bits} - 127))"
    trace.statement(
        f"for (int r = 0; r < {rows}; r++) for (int k = 0; k < {depth}; k++) "
        f"{'ab'[which]}[{place}] *= {power};"
    )
