"""Data parallel primitives (DPP): the lanes that an instruction reads and writes.

Source: CDNA3 ISA, "Data Parallel Primitives".
"""

from collections.abc import Mapping

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault

LANES = 64
_LANE = np.arange(LANES)
_ROW = _LANE & ~15


def dpp_lanes(control: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lane [64] that each lane reads, and a mask of those that have one."""
    everywhere, inside = np.ones(LANES, bool), _LANE & 15
    if control < 0x100:  # quad_perm
        order = np.array([control >> 2 * k & 3 for k in range(4)])
        return (_LANE & ~3) + order[_LANE & 3], everywhere
    by = control & 15
    if 0x101 <= control <= 0x10F:  # row_shl
        return _ROW + (inside + by & 15), inside + by < 16
    if 0x111 <= control <= 0x11F:  # row_shr
        return _ROW + (inside - by & 15), inside >= by
    if 0x121 <= control <= 0x12F:  # row_ror
        return _ROW + (inside - by & 15), everywhere
    if control == 0x140:  # row_mirror
        return _ROW + 15 - inside, everywhere
    if control == 0x141:  # row_half_mirror
        return (_LANE & ~7) + 7 - (_LANE & 7), everywhere
    if control == 0x142:  # row_bcast15: the last lane of a row to the next row
        return np.maximum(_ROW - 1, 0), _LANE >= 16
    if control == 0x143:  # row_bcast31
        return np.full(LANES, 31), _LANE >= 32
    if 0x150 <= control <= 0x15F:  # row_newbcast
        return _ROW + by, everywhere
    raise Fault(f"the DPP control {control:#x}")


def dpp_writes(fields: Mapping[str, int]) -> np.ndarray:
    """Return a mask [64] of the lanes that the row and bank masks let write."""
    rows, banks = fields["row_mask"] >> _LANE // 16, fields["bank_mask"] >> _LANE // 4 % 4
    return (rows & banks & 1).astype(bool)
