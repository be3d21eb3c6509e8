"""Loads and stores of local memory (LDS), the transposing ones of CDNA4 included.

Source: CDNA3 ISA, chapter "Data Share Operations"; CDNA4 ISA, ds_read_b64_tr_b16 and _tr_b8.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.waves import Waves
from eagle3_tools.aot.amd.decode import Instruction

U32 = np.uint32
_ONE = re.compile(r"ds_(read|write)_([biu])(8|16|32|64|96|128)(_d16_hi)?")
_TWO = re.compile(r"ds_(read|write)2(st64)?_b(32|64)")


def local_access(i: Instruction) -> Callable[[Waves], None]:
    """ds_read*, ds_write*. Raises Fault for what the emulator doesn't know."""
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


def _places(w: Waves, i: Instruction, offset: int) -> tuple[Any, Any, Any]:
    """Waves, lanes and byte addresses of an access."""
    waves, lane = np.nonzero(w.active())
    return waves, lane, w.vectors[i.operands["addr"].index, w.chosen][waves, lane] + U32(offset)


def _load(i: Instruction, offsets: list[int], size: int, count: int, extend: int) -> Any:
    target = i.operands["vdst"].index

    def run(w: Waves) -> None:
        read = []
        for offset in offsets:
            waves, lane, place = _places(w, i, offset)
            group, number = w.group[w.chosen][waves], w.number[w.chosen][waves]
            found = w.lds.load(place, size, count, group, number)
            if extend in (8, 16):
                by = U32(32 - extend)
                found = ((found << by).view(np.int32) >> by.view(np.int32)).view(U32)
            values = np.zeros((count, *w.active().shape), U32)
            values[:, waves, lane] = found
            read += list(values)
        for k, value in enumerate(read):  # All reads first: the address may be overwritten.
            w.vector(target + k, value)

    return run


def _store(i: Instruction, parts: list[tuple[str, int]], size: int, count: int, shift: int) -> Any:
    def run(w: Waves) -> None:
        for name, offset in parts:
            waves, lane, place = _places(w, i, offset)
            first = i.operands[name].index
            held = [w.vectors[first + k, w.chosen][waves, lane] >> U32(shift) for k in range(count)]
            group, number = w.group[w.chosen][waves], w.number[w.chosen][waves]
            w.lds.store(place, np.stack(held), size, group, number)

    return run


def _transposing_load(i: Instruction, bits: int) -> Callable[[Waves], None]:
    """16 lanes read 16 rows of 8 bytes as blocks, and get columns: a block has as many rows as a
    register pair has elements."""
    target, offset = i.operands["vdst"].index, i.fields["offset0"] | i.fields["offset1"] << 8
    kind, elements = (np.uint16, 4) if bits == 16 else (np.uint8, 8)

    def run(w: Waves) -> None:
        if not w.active().all():
            raise Fault(f"{i.name} with lanes that do not execute")
        waves, _, place = _places(w, i, offset)
        group, number = w.group[w.chosen][waves], w.number[w.chosen][waves]
        pairs = np.ascontiguousarray(w.lds.load(place, 4, 2, group, number).T)
        blocks = pairs.view(kind).reshape(-1, 4, elements, 16)
        moved = np.ascontiguousarray(blocks.transpose(0, 1, 3, 2)).view(U32).reshape(-1, 64, 2)
        for k in (0, 1):
            w.vector(target + k, moved[..., k])

    return run
