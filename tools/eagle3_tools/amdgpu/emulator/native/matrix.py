"""Matrix products (MFMA) in C, with the layouts of `operations.matrix`."""

from typing import Any

import numpy as np

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
    """Write D = A B + C. Sums are in float64 and in the order of k, and rounded once.

    Both factors are [k, rows]. Their products are exact, so a fused product is the same.
    """
    shape = shape_of(i)
    rows, depth, count = shape.rows, shape.depth, shape.rows * shape.rows // LANES
    for which, name in enumerate("ab"):
        trace.segments[0].append(f"double {name}[{depth}][{rows}];")
        _decode(i, which, name, shape, trace, w)
        if shape.scaled:
            _scale(i, which, name, shape, trace, w)
    old = w.spilled([words(i.sources[2], k)(w) for k in range(count)], np.uint32)
    row, column = (trace.table(x.reshape(-1).astype(np.int32)) for x in result_places(rows))
    out = trace.parameter("uint32_t *", f"v + {LANES * i.operands['vdst'].index}")
    total = f"sum[{row}[n]][{column}[n]] + "
    if shape.integer:
        value = f"(uint32_t)(int64_t)({total}(int32_t){old}[n])"
    else:
        value = f"bits_or_nan({total}as_float32_uint32({old}[n]))"
    trace.statement(
        f"""double sum[{rows}][{rows}];
  for (int i = 0; i < {rows}; i++) {{
    double row[{rows}] = {{0}};
    for (int k = 0; k < {depth}; k++)
      for (int j = 0; j < {rows}; j++) row[j] = __builtin_fma(a[k][i], b[k][j], row[j]);
    memcpy(sum[i], row, sizeof row);
  }}
  for (int n = 0; n < {count * LANES}; n++) {out}[n] = {value};"""
    )


def _decode(i: Instruction, which: int, name: str, shape: Shape, trace: Trace, w: Any) -> None:
    """Fill a factor. Lane g * rows + r has row r; its element e of word n has a k of its own."""
    operand, kind, rows = i.sources[which], shape.kinds[which], shape.rows
    per, bits = PER_WORD[kind], 32 // PER_WORD[kind]
    count = shape.lane_depth // per
    held = w.spilled([words(operand, k)(w) for k in range(count)], np.uint32)
    part = f"({held}[{LANES} * n + {rows} * g + r] >> {bits} * e)"
    if kind == "bf16":
        number = f"as_float32_uint32({part} << 16)"
    elif kind == "f32":
        number = f"as_float32_uint32({part})"
    elif kind == "i8":
        number = f"(int8_t){part}"
    else:
        values = FLOAT4 if kind == "fp4" else VALUES[w.arch, kind]
        number = f"{trace.table(values)}[{part} & {(1 << bits) - 1}]"
    places = Elements(operand, kind, shape).places.reshape(LANES // rows, rows, count, per)
    k = trace.table((places[:, 0] % shape.depth).reshape(-1).astype(np.int32))
    trace.statement(
        f"for (int g = 0; g < {LANES // rows}; g++) for (int n = 0; n < {count}; n++) "
        f"for (int e = 0; e < {per}; e++) {{\n"
        f"    double *of_k = {name}[{k}[(g * {count} + n) * {per} + e]];\n"
        f"    for (int r = 0; r < {rows}; r++) of_k[r] = {number};\n  }}"
    )


def _scale(i: Instruction, which: int, name: str, shape: Shape, trace: Trace, w: Any) -> None:
    """Multiply a factor by powers of two: a lane has that of its row and block of k."""
    held = w.spilled([scale_bits(i, which)(w)], np.uint32)
    block = shape.depth * shape.rows // LANES
    bits = f"{held}[k / {block} * {shape.rows} + r]"
    power = f"({bits} == 255 ? (double)NAN : ldexp_(1.0, (int64_t){bits} - 127))"
    trace.statement(
        f"for (int k = 0; k < {shape.depth}; k++) for (int r = 0; r < {shape.rows}; r++) "
        f"{name}[k][r] *= {power};"
    )
