"""Translate instructions into functions that update the waves that execute them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.operations import carries, conversion, lanes, scalar
from eagle3_tools.amdgpu.emulator.operations.global_access import (
    atomic,
    scalar_load,
    vector_access,
)
from eagle3_tools.amdgpu.emulator.operations.local_access import local_access
from eagle3_tools.amdgpu.emulator.operations.matrix import is_matrix, matrix_product
from eagle3_tools.amdgpu.emulator.operations.vector_float import FLOAT, fma
from eagle3_tools.amdgpu.emulator.operations.vector_integer import INTEGER, bit_operation
from eagle3_tools.amdgpu.emulator.waves import Waves, result, sources
from eagle3_tools.aot.amd.decode import Instruction

Run = Callable[[Waves], Any]
"""Updates the chosen waves. A result other than None is the pc to continue at."""
NO_EFFECT = {
    *("s_nop", "s_waitcnt", "s_setprio", "s_sleep", "s_icache_inv", "s_dcache_inv"),
    *("buffer_inv", "buffer_wbl2", "s_barrier", "s_endpgm"),
}
"""Instructions for timing and caches, which the emulator lacks, or handled by the machine. `waits`
proves that the waits are sufficient.
"""
SPECIAL: dict[str, Callable[[Instruction], Run]] = {
    "v_cndmask_b32": carries.select,
    "v_mad_u64_u32": carries.multiply_add_64,
    "v_mad_i64_i32": carries.multiply_add_64,
    "v_pk_mov_b32": carries.packed_move,
    "v_div_scale_f32": conversion.divide_scale,
    "v_div_fmas_f32": conversion.divide_fmas,
    "v_fmac_f32": conversion.accumulate,
    "v_fmaak_f32": conversion.accumulate,
    "v_fmamk_f32": conversion.accumulate,
    "v_dot2c_f32_bf16": conversion.accumulate_pairs,
    "v_cvt_scalef32_pk_fp8_f32": conversion.to_scaled_float8,
    "v_cvt_scalef32_pk_bf16_fp8": conversion.from_scaled_float8,
    "v_readfirstlane_b32": lanes.read_first_lane,
    "v_readlane_b32": lanes.read_lane,
    "v_writelane_b32": lanes.write_lane,
    "v_permlane16_swap_b32": lanes.swap_lanes,
    "v_permlane32_swap_b32": lanes.swap_lanes,
    "v_mbcnt_lo_u32_b32": lanes.count_below,
    "v_mbcnt_hi_u32_b32": lanes.count_below,
    "ds_bpermute_b32": lanes.permute,
    "global_atomic_cmpswap": atomic,
    "global_atomic_add": atomic,
    "ds_swizzle_b32": lanes.swizzle,
}
PACKED: dict[str, Callable[..., Any]] = {
    "v_pk_add_f32": lambda a, b: a + b,
    "v_pk_mul_f32": lambda a, b: a * b,
    "v_pk_fma_f32": fma,
}
PACKED_16: dict[str, Callable[..., Any]] = {"v_pk_mul_lo_u16": np.multiply}
PURE: dict[str, Callable[..., Any]] = FLOAT | INTEGER | conversion.CONVERSION
"""Operations whose result depends only on their sources, lane by lane."""


def translate(i: Instruction) -> Run:
    """Return the function that executes `i`; raise Fault, with its name, if it is unknown."""
    try:
        run = _translate(i)
    except Fault as fault:
        raise Fault(f"{i.name} ({i.encoding}) at {i.pc:#x}: {fault}") from fault
    if run is None:
        raise Fault(f"no meaning for {i.name} ({i.encoding}) at {i.pc:#x}")
    return run


def _translate(i: Instruction) -> Run | None:
    if i.name in NO_EFFECT:
        return lambda w: None
    if i.name.startswith("s_load_dword"):
        return scalar_load(i)
    if i.name.startswith("s_"):
        return scalar.scalar(i)
    if i.name in SPECIAL:
        return SPECIAL[i.name](i)
    if i.name.startswith("ds_"):
        return local_access(i)
    if i.name.startswith(("global_", "buffer_")):
        return vector_access(i)
    return matrix_product(i) if is_matrix(i) else _vector(i)


def _vector(i: Instruction) -> Run | None:
    if i.name.startswith("v_cmp"):
        return carries.compare(i)
    if "_co_u32" in i.name:
        return carries.carry(i)
    if i.name in PACKED:
        return carries.packed(i, PACKED[i.name])
    if i.name in PACKED_16:
        return carries.packed_16(i, PACKED_16[i.name])
    return _pure(i)


def _pure(i: Instruction) -> Run | None:
    """Translate a function of the sources."""
    if i.name.startswith("v_accvgpr_"):
        function = PURE["v_mov_b32"]
    elif i.name.startswith("v_bitop3_"):
        return _bit_operation(i)
    elif i.name == "v_sub_u32" and i.fields.get("clmp"):
        function, i = _saturating_difference, replace(i, fields={**i.fields, "clmp": 0})
    else:
        function = PURE.get(i.name)
    if function is None:
        return None
    reads, write = sources(i), result(i)
    return lambda w: write(w, function(*[read(w) for read in reads]))


def _bit_operation(i: Instruction) -> Run:
    """Translate v_bitop3, whose truth table has the bits of other operations' modifiers."""
    plain = {name: replace(o, negate=False, absolute=False) for name, o in i.operands.items()}
    function, bare = bit_operation(i.fields), replace(i, operands=plain, fields={})
    reads, write = sources(bare), result(bare)
    return lambda w: write(w, function(*[read(w) for read in reads]))


def _saturating_difference(a: Any, b: Any) -> Any:
    """Subtract as v_sub_u32 with clamp does: not below 0."""
    return np.where(a >= b, a - b, np.uint32(0))
