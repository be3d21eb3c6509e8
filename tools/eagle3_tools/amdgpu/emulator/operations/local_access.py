"""Loads and stores of local memory (LDS), including CDNA4's transposing loads.

Source: CDNA3 ISA, chapter "Data Share Operations"; CDNA4 ISA, ds_read_b64_tr_b16 and _tr_b8.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.operations.global_access import extended
from eagle3_tools.amdgpu.emulator.operations.lanes import LANE
from eagle3_tools.amdgpu.emulator.waves import Waves, constant
from eagle3_tools.aot.amd.decode import Instruction

U32 = np.uint32
_ONE = re.compile(r"ds_(read|write)_([biu])(8|16|32|64|96|128)(_d16_hi)?")
_TWO = re.compile(r"ds_(read|write)2(st64)?_b(32|64)")


def local_access(i: Instruction) -> Callable[[Waves], None]:
    """Translate ds_read* and ds_write*; raise Fault for unknown ones."""
    if i.fields["gds"]:
        raise Fault(f"{i.name} of global data share")
    if i.name in ("ds_read_b64_tr_b16", "ds_read_b64_tr_b8"):
        return _transposing_load(i, int(i.name.rpartition("b")[2]))
    offsets = i.fields["offset0"], i.fields["offset1"]
    if found := _ONE.fullmatch(i.name):
        bits = int(found[3])
        size, count = min(bits // 8, 4), max(1, bits // 32)
        whole = offsets[0] | offsets[1] << 8
        if found[1] == "write":
            return _store(i, [("data0", whole)], size, count, 16 if found[4] else 0)
        return _load(i, [whole], size, count, bits if found[2] == "i" else 0)
    if found := _TWO.fullmatch(i.name):
        count = int(found[3]) // 32
        step = 4 * count * (64 if found[2] else 1)
        if found[1] == "write":
            parts = [(f"data{k}", offset * step) for k, offset in enumerate(offsets)]
            return _store(i, parts, 4, count, 0)
        return _load(i, [offset * step for offset in offsets], 4, count, 0)
    raise Fault(f"the operation {i.name} of local memory")


def _place(w: Waves, i: Instruction, offset: int) -> np.ndarray:
    """Return the byte addresses of an access."""
    return w.vectors[i.operands["addr"].index, w.chosen] + constant(offset)


def _load(i: Instruction, offsets: list[int], size: int, count: int, extend: int) -> Any:
    target = i.operands["vdst"].index

    def run(w: Waves) -> None:
        places = [_place(w, i, offset) for offset in offsets]
        read = [value for place in places for value in w.load_local(place, size, count)]
        for k, value in enumerate(read):  # After all reads, because the address may be overwritten.
            w.vector(target + k, extended(value, extend))

    return run


def _store(i: Instruction, parts: list[tuple[str, int]], size: int, count: int, shift: int) -> Any:
    def run(w: Waves) -> None:
        for name, offset in parts:
            first = i.operands[name].index
            held = [w.vectors[first + k, w.chosen] >> U32(shift) for k in range(count)]
            w.store_local(_place(w, i, offset), held, size)

    return run


def _transposing_load(i: Instruction, bits: int) -> Callable[[Waves], None]:
    """Translate a load of 16 rows of 8 bytes by 16 lanes, which get columns of blocks.

    A block has as many rows as a register pair has elements.
    """
    target, offset = i.operands["vdst"].index, i.fields["offset0"] | i.fields["offset1"] << 8
    elements = 64 // bits
    # Lane l gets element 16 e + l of the elements that its row of 16 lanes loaded, for each e.
    lanes = [(LANE & ~15) + (16 * e + (LANE & 15)) // elements for e in range(elements)]
    upper, mask = LANE % elements >= elements // 2, U32((1 << bits) - 1)
    shift = (bits * (LANE % (elements // 2))).astype(U32)

    def run(w: Waves) -> None:
        w.refuse(~w.active(), f"{i.name} with lanes that do not execute")
        low, high = w.load_local(_place(w, i, offset), 4, 2)
        words = [np.where(upper, high[:, lane], low[:, lane]) >> shift & mask for lane in lanes]
        for k in (0, 1):
            half = words[k * elements // 2 : (k + 1) * elements // 2]
            w.vector(target + k, sum((x << U32(bits * e) for e, x in enumerate(half)), U32(0)))

    return run
