"""Name the independent reference that checks the emulator's semantics of each opcode."""

import re

from eagle3_tools.amdgpu.witness.opcodes import COMPILED
from eagle3_tools.amdgpu.witness.readings import why_unreadable

_KINDS = {
    "branches": r"s_c?branch.*",
    "nothing": r"s_nop",
    "mode": r"s_setreg_.*",
    "scalar memory": r"s_load_.*",
    "scalar": r"s_.*",
    "local memory": r"ds_(read|write).*",
    "vector memory": r"(global|buffer)_.*",
    "across lanes": r"(ds_bpermute|v_readfirstlane|v_readlane|v_writelane|v_permlane).*",
    "vector": r"v_.*",
}
"""Kinds of test that an opcode may need, and the opcodes that have no earlier kind."""
GROUPS: dict[str, list[str]] = {kind: [] for kind in _KINDS}
"""Opcodes whose text can be evaluated, by the kind of test in which each is compared with it."""
for _name in COMPILED:
    if why_unreadable(_name) is None:
        GROUPS[next(k for k, names in _KINDS.items() if re.fullmatch(names, _name))].append(_name)
BRANCHES, _, _, SCALAR_MEMORY, SCALAR, *_rest = GROUPS.values()
LOCAL_MEMORY, VECTOR_MEMORY, ACROSS_LANES, VECTOR = _rest
_EXPLAINED = {name for group in GROUPS.values() for name in group}
SMALL_KERNEL = ["ds_read_b64_tr_b16", "ds_read_b64_tr_b8"]
"""test_matrix_layouts compiles a kernel with each."""
CALCULATOR = """
v_mfma_f32_16x16x128_f8f6f4 v_mfma_f32_16x16x16_bf16 v_mfma_f32_16x16x32_bf16
v_mfma_f32_16x16x32_fp8_fp8 v_mfma_f32_16x16x4_f32 v_mfma_f32_32x32x16_bf16
v_mfma_f32_32x32x16_fp8_fp8 v_mfma_f32_32x32x2_f32
v_mfma_f32_32x32x64_f8f6f4 v_mfma_f32_32x32x8_bf16 v_mfma_i32_16x16x32_i8 v_mfma_i32_16x16x64_i8
v_mfma_scale_f32_16x16x128_f8f6f4 v_mfma_scale_f32_32x32x64_f8f6f4
""".split()
"""test_matrix_formulas has AMD's formula of each."""
_FORMULA = ["ds_swizzle_b32", "v_accvgpr_mov_b32", "v_accvgpr_read_b32", "v_accvgpr_write_b32"]
"""test_lanes has the ISA's formula."""
MISSING = "no test of it alone"
_NONE = {
    "s_barrier": "what waves do together; without it they conflict, which test_twins sees",
    "s_endpgm": "it ends a wave; a kernel that goes on runs out of its code, which is an error",
    "s_setprio": "it changes timing only",
    "s_waitcnt": "no register changes; that waits suffice is proved on every path",
}


def witness_of(mnemonic: str) -> str:
    """Return the reference of an opcode (LLVM's or decoder's name), or "none: " and a reason."""
    name = re.sub(r"^(v_accvgpr_(read|write))$", r"\1_b32", mnemonic)
    if name in _EXPLAINED:
        return "AMD's pseudocode"
    if name in CALCULATOR:
        return "AMD's layout formulas"
    if name in SMALL_KERNEL:
        return "small kernel against NumPy"
    if name in _FORMULA:
        return "ISA's formula per lane"
    return f"none: {_NONE.get(name, MISSING)}"
