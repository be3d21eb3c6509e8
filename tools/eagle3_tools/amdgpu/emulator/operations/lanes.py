"""Operations across lanes: permutations, single lanes, counts.

Source: CDNA3 ISA, the operations' own pages.
"""

from collections.abc import Callable

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves, result, scalar_result, words
from eagle3_tools.aot.amd.decode import Instruction

U32 = np.uint32
LANE = np.arange(LANES)


def read_first_lane(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_readfirstlane_b32: the first active lane, or lane 0 if none is active."""
    read, write = words(instruction.sources[0]), scalar_result(instruction.operands["vdst"])

    def run(w: Waves) -> None:
        value = np.broadcast_to(read(w), w.active().shape)
        write(w, np.take_along_axis(value, w.first_active(), 1))

    return run


def read_lane(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_readlane_b32, which ignores EXEC."""
    read, lane = (words(o) for o in instruction.sources[:2])
    write = scalar_result(instruction.operands["vdst"])

    def run(w: Waves) -> None:
        value = np.broadcast_to(read(w), w.active().shape)
        which = np.broadcast_to(lane(w) & U32(63), (len(value), 1))
        write(w, np.take_along_axis(value, which.astype(np.int64), 1))

    return run


def write_lane(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_writelane_b32, which ignores EXEC."""
    value, lane = (words(o) for o in instruction.sources[:2])
    index = instruction.operands["vdst"].index

    def run(w: Waves) -> None:
        w.vector(index, value(w), np.broadcast_to(lane(w) & U32(63) == LANE, w.active().shape))

    return run


def swap_lanes(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_permlane*_swap: swap odd rows of the first with even rows of the second."""
    first, second = instruction.operands["vdst"].index, instruction.sources[0].index
    width = 32 if "lane32" in instruction.name else 16
    odd, other = LANE & width > 0, LANE ^ width

    def run(w: Waves) -> None:
        w.refuse(~w.active(), f"{instruction.name} with lanes that do not execute")
        a, b = (w.vectors[r, w.chosen].copy() for r in (first, second))
        w.vector(first, np.where(odd, b[:, other], a))
        w.vector(second, np.where(odd, b, a[:, other]))

    return run


def count_below(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_mbcnt_lo and v_mbcnt_hi: mask bits below each lane, plus the second source."""
    mask, start = (words(o) for o in instruction.sources)
    lane = LANE if "_lo_" in instruction.name else np.maximum(LANE - 32, 0)
    below = np.where(lane >= 32, 0xFFFF_FFFF, (1 << np.minimum(lane, 31)) - 1).astype(U32)
    write = result(instruction)
    return lambda w: write(w, np.bitwise_count(mask(w) & below).astype(U32) + start(w))


def permute(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate ds_bpermute_b32: each lane reads the lane at its byte address."""
    address, data = words(instruction.operands["addr"]), words(instruction.operands["data0"])
    offset = U32(instruction.fields["offset0"] | instruction.fields["offset1"] << 8)
    index = instruction.operands["vdst"].index

    def run(w: Waves) -> None:
        lanes = address(w) + offset >> U32(2) & U32(63)
        value = np.where(w.active(), data(w), U32(0))
        w.vector(index, np.take_along_axis(value, lanes.astype(np.int64), 1))

    return run


def swizzle(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate ds_swizzle_b32: permute quads, or 32 lanes by and, or, xor of the lane number."""
    pattern = instruction.fields["offset0"] | instruction.fields["offset1"] << 8
    data, index = words(instruction.operands["addr"]), instruction.operands["vdst"].index
    if pattern >= 0xC000:
        raise Fault(f"the swizzle {pattern:#x}")
    if pattern & 0x8000:
        lanes = (LANE & ~3) + np.array([pattern >> 2 * k & 3 for k in range(4)])[LANE & 3]
    else:
        kept, set_, flipped = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
        lanes = (LANE & ~31) + ((LANE & 31 & kept | set_) ^ flipped)

    def run(w: Waves) -> None:
        w.vector(index, np.where(w.active(), data(w), U32(0))[:, lanes])

    return run
