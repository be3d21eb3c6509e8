"""The compiled opcodes that AMD's text explains, by what a test of them needs."""

from eagle3_tools.amdgpu.witness.opcodes import COMPILED
from eagle3_tools.amdgpu.witness.pseudocode import why_unreadable

_EXPLAINED = [mnemonic for mnemonic in COMPILED if why_unreadable(mnemonic) is None]
BRANCHES = [m for m in _EXPLAINED if m.startswith(("s_branch", "s_cbranch"))]
NOTHING = ["s_nop"]
MODE = ["s_setreg_imm32_b32"]
SCALAR_MEMORY = [m for m in _EXPLAINED if m.startswith("s_load")]
SCALAR = [
    m
    for m in _EXPLAINED
    if m.startswith("s_") and m not in {*BRANCHES, *NOTHING, *MODE, *SCALAR_MEMORY}
]
LOCAL_MEMORY = [m for m in _EXPLAINED if m.startswith(("ds_read", "ds_write"))]
VECTOR_MEMORY = [m for m in _EXPLAINED if m.startswith(("global_", "buffer_"))]
ACROSS_LANES = [
    m
    for m in _EXPLAINED
    if m in ("ds_bpermute_b32", "v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32")
    or m.startswith("v_permlane")
]
VECTOR = [m for m in _EXPLAINED if m.startswith("v_") and m not in ACROSS_LANES]
"""Lane by lane."""
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
