"""Name the independent reference that checks the emulator's semantics of each opcode."""

import re

from eagle3_tools.amdgpu.witness.opcodes import COMPILED
from eagle3_tools.amdgpu.witness.readings import why_unreadable

_READABLE = [mnemonic for mnemonic in COMPILED if why_unreadable(mnemonic) is None]
"""Opcodes whose text can be evaluated, grouped below by the kind of test that they need."""
BRANCHES = [m for m in _READABLE if m.startswith(("s_branch", "s_cbranch"))]
NOTHING = ["s_nop"]
MODE = ["s_setreg_imm32_b32"]
SCALAR_MEMORY = [m for m in _READABLE if m.startswith("s_load")]
SCALAR = [
    m
    for m in _READABLE
    if m.startswith("s_") and m not in {*BRANCHES, *NOTHING, *MODE, *SCALAR_MEMORY}
]
LOCAL_MEMORY = [m for m in _READABLE if m.startswith(("ds_read", "ds_write"))]
VECTOR_MEMORY = [m for m in _READABLE if m.startswith(("global_", "buffer_"))]
ACROSS_LANES = [
    m
    for m in _READABLE
    if m in ("ds_bpermute_b32", "v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32")
    or m.startswith("v_permlane")
]
VECTOR = [m for m in _READABLE if m.startswith("v_") and m not in ACROSS_LANES]
"""Opcodes that act on each lane separately."""
GROUPS = {
    "branches": BRANCHES,
    "nothing": NOTHING,
    "mode": MODE,
    "scalar memory": SCALAR_MEMORY,
    "scalar": SCALAR,
    "local memory": LOCAL_MEMORY,
    "vector memory": VECTOR_MEMORY,
    "across lanes": ACROSS_LANES,
    "vector": VECTOR,
}
_EXPLAINED = {mnemonic for group in GROUPS.values() for mnemonic in group}
"""test_operations, test_lanes and test_memory_operations compare each with its text."""
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
