"""Vector operations that read or write lane masks: compares, selections, carries."""

from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.operations.vector_float import COMPARE
from eagle3_tools.amdgpu.emulator.waves import (
    Waves,
    lane_mask,
    lane_mask_result,
    result,
    sources,
    words,
)
from eagle3_tools.aot.amd.decode import Instruction

I64, U32, U64 = np.int64, np.uint32, np.uint64
_HALF = U32(0xFFFF)


def compare(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_cmp_*, which writes a lane mask; refuse v_cmpx_*, which changes EXEC."""
    prefix, operation = instruction.name.split("_")[1:3]
    if prefix != "cmp":
        raise Fault(f"{instruction.name} writes EXEC")
    (a, b), test = sources(instruction), COMPARE[operation]
    write = lane_mask_result(instruction.operands["vdst"])
    return lambda w: write(w, test(a(w), b(w)))


def select(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_cndmask_b32: the second source where the mask has a bit."""
    no, yes = sources(instruction)[:2]
    mask, write = lane_mask(instruction.operands["src2"]), result(instruction)
    return lambda w: write(w, np.where(mask(w), yes(w), no(w)))


def carry(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_add_co, v_sub_co and their forms with carry in: 32 bits and the carry out."""
    name = instruction.name
    if instruction.dpp:
        raise Fault(f"{name} with DPP")
    (a, b), reverse = sources(instruction)[:2], "rev" in name
    sign = -1 if name.startswith("v_sub") else 1
    takes = name.startswith(("v_addc", "v_subb"))
    carried = lane_mask(instruction.operands["src2"]) if takes else None
    write, flags = result(instruction), lane_mask_result(instruction.operands["sdst"])

    def run(w: Waves) -> None:
        x, y = a(w).astype(I64), b(w).astype(I64)
        x, y = (y, x) if reverse else (x, y)
        total = x + sign * y
        if carried is not None:
            total = total + sign * carried(w).astype(I64)
        # Write the sum first: the carry out may overwrite the carry in.
        write(w, (total & 0xFFFF_FFFF).astype(U32))
        flags(w, (total < 0) | (total > 0xFFFF_FFFF))

    return run


def multiply_add_64(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_mad_u64_u32 and v_mad_i64_i32: a 64-bit sum. Our code ignores the carry out."""
    reads = sources(instruction)
    wide = I64 if instruction.name == "v_mad_i64_i32" else U64
    write, flags = result(instruction), lane_mask_result(instruction.operands["sdst"])

    def run(w: Waves) -> None:
        a, b, c = (read(w) for read in reads)
        product = (a.astype(wide) * b.astype(wide)).view(U64)
        total = product + c.view(U64)
        flags(w, total < product)
        write(w, total)

    return run


def packed(instruction: Instruction, function: Callable[..., Any]) -> Callable[[Waves], None]:
    """Translate v_pk_*_f32: two operations; op_sel chooses the half of each source."""
    fields, sources = instruction.fields, instruction.sources

    def reader(place: int, half: int) -> Callable[[Waves], Any]:
        chosen = fields["opsel_hi" if half else "opsel"]
        if place == 2 and half:  # The third source's bit is in another field.
            taken = fields["opsel_hi2"]
        else:
            taken = chosen >> place & 1
        negated = fields["neg_hi" if half else "neg"] >> place & 1
        read = words(sources[place], taken)
        if negated:
            return lambda w: -read(w).view(np.float32)
        return lambda w: read(w).view(np.float32)

    halves = [[reader(place, half) for place in range(len(sources))] for half in (0, 1)]
    index = instruction.operands["vdst"].index
    if fields.get("clmp"):
        raise Fault(f"clamping of {instruction.name}")

    def run(w: Waves) -> None:
        both = [function(*(r(w) for r in half)) for half in halves]
        for k, value in enumerate(both):
            w.vector(index + k, value.view(U32))

    return run


def packed_16(instruction: Instruction, function: Callable[..., Any]) -> Callable[[Waves], None]:
    """Translate v_pk_*_u16; op_sel and op_sel_hi choose source halves for low and high results."""
    fields, reads = instruction.fields, [words(o) for o in instruction.sources]
    if fields.get("clmp"):
        raise Fault(f"clamping of {instruction.name}")

    def half(w: Waves, chosen: int) -> Any:
        taken = [read(w) >> U32(16 * (chosen >> k & 1)) & _HALF for k, read in enumerate(reads)]
        return function(*taken) & _HALF

    def run(w: Waves) -> None:
        low, high = (half(w, fields[name]) for name in ("opsel", "opsel_hi"))
        w.vector(instruction.operands["vdst"].index, low | high << U32(16))

    return run


def packed_move(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_pk_mov_b32: one half of each source."""
    low, high = (
        words(o, instruction.fields["opsel"] >> place & 1)
        for place, o in enumerate(instruction.sources)
    )
    index = instruction.operands["vdst"].index

    def run(w: Waves) -> None:
        both = low(w).copy(), high(w).copy()
        w.vector(index, both[0])
        w.vector(index + 1, both[1])

    return run
