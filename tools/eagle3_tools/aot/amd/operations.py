"""Effect of an instruction on a wave's memory traffic and on the units of its SIMD.

Sources: AMD's "CDNA3 ISA" (counters, wait states, matrix instructions); white papers of CDNA3 and
CDNA4, tables of operations a clock and compute unit (matrix rates).
"""

import re
from math import prod

from eagle3_tools.aot.amd.decode import Instruction

LANES, CLOCKS_OF_WAVE = 64, 4
"""A SIMD has 16 lanes: an instruction of a wave takes four clocks."""
_WIDTHS = {
    **{"ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2},
    **{"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "dwordx8": 32, "dwordx16": 64},
}
_LDS_WIDTH = re.compile(r"_(?:b|u|i|f)(\d+)")
_SHAPE = re.compile(r"_(\d+)x(\d+)x(\d+)_?(\w+)?")
_SLOW = re.compile(
    r"v_(exp|log|rcp|rsq|sqrt|sin|cos|mul_lo_u32|mul_hi|mad_u64_u32|mad_i64|div_scale_f64)"
)
"""Instructions at a quarter of the rate: transcendental functions and 32-bit products."""
MATRIX_RATES = {
    "gfx942": {"bf16": 2048, "f16": 2048, "fp8": 4096, "i8": 4096, "f32": 256},
    "gfx950": {"bf16": 4096, "f16": 4096, "fp8": 8192, "i8": 8192, "f32": 256, "fp4": 16384},
}
"""Operations a clock and compute unit, of which each SIMD has a quarter."""


def memory_width(i: Instruction) -> int:
    """Return the bytes a lane of a global memory access, 0 for other instructions."""
    if not i.name.startswith(("global_", "buffer_", "flat_")):
        return 0
    # d16 accesses move one half of a register.
    return _WIDTHS.get(re.sub(r"_(lds|d16|d16_hi)$", "", i.name).split("_")[-1], 0)


def is_load(i: Instruction) -> bool:
    """Return whether the instruction reads global memory into vector registers or LDS."""
    return memory_width(i) > 0 and "_load_" in i.name


def goes_to_lds(i: Instruction) -> bool:
    """Return whether a load bypasses registers."""
    return bool(i.fields.get("lds")) or "_lds_" in i.name


def scalar_width(i: Instruction) -> int:
    """Return the bytes of a scalar load, 0 for other instructions."""
    scalar = i.name.startswith(("s_load_", "s_buffer_load_"))
    return _WIDTHS.get(i.name.split("_")[-1], 0) if scalar else 0


def lds_bytes(i: Instruction) -> int:
    """Return the bytes that a wave moves between LDS and registers, permutations included."""
    if not i.name.startswith("ds_"):
        return 0
    found = _LDS_WIDTH.search(i.name.replace("_tr", ""))
    words = int(found[1]) // 8 if found else 4
    return LANES * words * (2 if re.match(r"ds_(read|write)2", i.name) else 1)


def matrix_kind(i: Instruction) -> str:
    """Return the type that a matrix instruction multiplies (bf16, fp8, fp4, i8, f32), else ""."""
    if not i.name.startswith(("v_mfma", "v_smfma")):
        return ""
    if "f8f6f4" in i.name:
        return "fp4" if i.fields.get("cbsz") == i.fields.get("blgp") == 4 else "fp8"
    ends = {"bf16": "bf16", "f16": "f16", "i8": "i8", "xf32": "f32", "f32": "f32"}
    last = i.name.removesuffix("_1k").split("_")[-1]
    return next((kind for end, kind in ends.items() if last.endswith(end)), "fp8")


def matrix_clocks(i: Instruction, arch: str) -> int:
    """Return the clocks for which an instruction occupies its SIMD's matrix unit."""
    kind = matrix_kind(i)
    found = _SHAPE.search(i.name)
    if not kind or found is None:
        return 0
    return 2 * prod(int(n) for n in found.groups()[:3]) * 4 // MATRIX_RATES[arch][kind]


def vector_clocks(i: Instruction) -> int:
    """Return the clocks for which an instruction occupies its SIMD's vector unit."""
    is_vector = i.name.startswith("v_") and not matrix_kind(i)
    return issue_clocks(i) if is_vector else 0


def stored_bytes(i: Instruction) -> int:
    """Return the bytes that a wave writes to global memory."""
    return LANES * memory_width(i) if "_store_" in i.name else 0


def wait_limits(i: Instruction) -> tuple[int, int] | None:
    """Return how many (vector memory, LDS and scalar memory) operations a wait leaves in flight."""
    if i.name != "s_waitcnt":
        return None
    counts = i.fields["simm16"]
    return counts & 15 | counts >> 14 << 4, counts >> 8 & 15


def issue_clocks(i: Instruction) -> int:
    """Return the clocks until the wave's next instruction can begin without waiting."""
    if i.name == "s_nop":
        return CLOCKS_OF_WAVE * (i.fields["simm16"] + 1)
    return CLOCKS_OF_WAVE * (4 if _SLOW.match(i.name) else 1)
