"""Loads and stores of global memory: scalar, global and through buffer descriptors.

Source: CDNA3 ISA, chapters "Scalar Memory Operations", "Vector Memory Operations" and "Flat Memory
Instructions". A buffer's accesses beyond its end read zeros and write nothing.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.waves import Waves, join, source, words
from eagle3_tools.aot.amd.decode import Instruction, signed

U32, U64 = np.uint32, np.uint64
_NAME = re.compile(r"(global|buffer)_(load|store)_(\w+?)(_d16_hi)?")
_ELEMENTS = {
    **{"dword": (4, 1), "dwordx2": (4, 2), "dwordx3": (4, 3), "dwordx4": (4, 4)},
    **{"ubyte": (1, 1), "sbyte": (1, 1), "byte": (1, 1)},
    **{"ushort": (2, 1), "sshort": (2, 1), "short": (2, 1)},
}
Address = Callable[[Waves, int], tuple[np.ndarray, np.ndarray]]
"""Addresses [waves, 64] and which lanes access, of so many bytes."""


def scalar_load(i: Instruction) -> Callable[[Waves], None]:
    """s_load_dword*: consecutive words into consecutive scalar registers."""
    base, target = i.operands["sbase"].index, i.operands["sdata"]
    constant = signed(i.fields["offset"], 21) if i.fields["imm"] else 0
    offset = U64(constant & 0xFFFF_FFFF_FFFF_FFFF)
    more = words(i.operands["soffset"]) if "soffset" in i.operands else None
    count = target.bits // 32

    def run(w: Waves) -> None:
        address = join(w.scalars[base, w.chosen], w.scalars[base + 1, w.chosen]) + offset
        if more is not None:
            address = address + more(w)[:, 0].astype(U64)
        values = w.memory.load(address & ~U64(3), 4, count, w.identity[w.chosen])
        for k in range(count):
            w.scalar(target.index + k, values[k])

    return run


def vector_access(i: Instruction) -> Callable[[Waves], None]:
    """global_load, global_store, buffer_load, buffer_store."""
    found = _NAME.fullmatch(i.name)
    if found is None or found[3] not in _ELEMENTS or i.fields.get("lds"):
        raise Fault(f"the memory operation {i.name}")
    size, count = _ELEMENTS[found[3]]
    addresses = _global_address(i) if found[1] == "global" else _buffer_address(i)
    if found[2] == "store":
        return _store(i, addresses, size, count, 16 if found[4] else 0)
    if found[4]:
        raise Fault(f"the memory operation {i.name}")
    extend = 8 * size if found[3] in ("sbyte", "sshort") else 0
    return _load(i, addresses, size, count, extend)


def _load(i: Instruction, addresses: Address, size: int, count: int, extend: int) -> Any:
    target = i.operands["vdst" if "vdst" in i.operands else "vdata"].index

    def run(w: Waves) -> None:
        address, lanes = addresses(w, size * count)
        waves, lane = np.nonzero(lanes)
        values = np.zeros((count, *lanes.shape), U32)
        if len(waves):
            found = w.memory.load(address[waves, lane], size, count, w.identity[w.chosen][waves])
            if extend:
                by = U32(32 - extend)
                found = ((found << by).view(np.int32) >> by.view(np.int32)).view(U32)
            values[:, waves, lane] = found
        for k in range(count):
            w.vector(target + k, values[k])

    return run


def _store(i: Instruction, addresses: Address, size: int, count: int, shift: int) -> Any:
    data = i.operands["data" if "data" in i.operands else "vdata"].index

    def run(w: Waves) -> None:
        address, lanes = addresses(w, size * count)
        waves, lane = np.nonzero(lanes)
        if len(waves):
            held = [w.vectors[data + k, w.chosen][waves, lane] >> U32(shift) for k in range(count)]
            where = address[waves, lane]
            w.memory.store(where, np.stack(held), size, w.identity[w.chosen][waves])

    return run


def compare_and_swap(i: Instruction) -> Callable[[Waves], None]:
    """global_atomic_cmpswap: lane after lane, so that every lane sees what the last one left.

    Of the two words of data the first replaces what is there, if that equals the second.
    """
    addresses, data = _global_address(i), i.operands["data"].index
    target = i.operands["vdst"].index if i.fields["sc0"] else None

    def run(w: Waves) -> None:
        address, lanes = addresses(w, 4)
        waves, lane = np.nonzero(lanes)
        new, expected = (w.vectors[data + k, w.chosen][waves, lane] for k in (0, 1))
        group = w.identity[w.chosen][waves]
        found = w.memory.exchange(address[waves, lane], new, expected, group)
        if target is not None:
            old = np.zeros(lanes.shape, U32)
            old[waves, lane] = found
            w.vector(target, old)

    return run


def _global_address(i: Instruction) -> Address:
    base, index = i.operands.get("saddr"), i.operands["addr"].index
    offset = U64(signed(i.fields["offset"], 13) & 0xFFFF_FFFF_FFFF_FFFF)

    def of_lanes(w: Waves, size: int) -> tuple[np.ndarray, np.ndarray]:
        parts = w.vectors[index, w.chosen], w.vectors[index + 1, w.chosen]
        return join(*parts) + offset, w.active()

    if base is None:
        return of_lanes

    def of_wave(w: Waves, size: int) -> tuple[np.ndarray, np.ndarray]:
        start = join(w.scalars[base.index, w.chosen], w.scalars[base.index + 1, w.chosen])
        return start[:, None] + w.vectors[index, w.chosen].astype(U64) + offset, w.active()

    return of_wave


def _buffer_address(i: Instruction) -> Address:
    """Base, stride and size lie in four scalar registers; raw buffers have no stride."""
    if i.fields["idxen"]:
        raise Fault(f"{i.name} with an index")
    descriptor, between = i.operands["srsrc"].index, source(i.operands["soffset"])
    offset = U64(i.fields["offset"])
    lane_offset = words(i.operands["vaddr"]) if i.fields["offen"] else None

    def addresses(w: Waves, size: int) -> tuple[np.ndarray, np.ndarray]:
        low, high, records = (w.scalars[descriptor + k, w.chosen][:, None] for k in range(3))
        if (high >> U32(16) & U32(0x3FFF)).any():
            raise Fault(f"{i.name} through a buffer with a stride")
        inside = np.broadcast_to(offset, w.active().shape)
        if lane_offset is not None:
            inside = inside + lane_offset(w).astype(U64)
        there = inside + U64(size) <= records.astype(U64)
        start = join(low, high & U32(0xFFFF)) + between(w).astype(U64)
        return start + inside, w.active() & there

    return addresses
