"""Loads and stores of global memory: scalar, global, and through buffer descriptors.

Source: CDNA3 ISA, chapters "Scalar Memory Operations", "Vector Memory Operations" and "Flat Memory
Instructions". Beyond a buffer's end, loads give zeros and stores have no effect.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves, constant, join, source, words
from eagle3_tools.aot.amd.decode import Instruction, signed

U32, U64 = np.uint32, np.uint64
_M0 = 124
_NAME = re.compile(r"(global|buffer)_(load|store)_(\w+?)(_d16_hi)?")
_ELEMENTS = {
    **{"dword": (4, 1), "dwordx2": (4, 2), "dwordx3": (4, 3), "dwordx4": (4, 4)},
    **{"ubyte": (1, 1), "sbyte": (1, 1), "byte": (1, 1)},
    **{"ushort": (2, 1), "sshort": (2, 1), "short": (2, 1)},
}
Address = Callable[[Waves, int], tuple[np.ndarray, np.ndarray]]
"""(waves, bytes) -> addresses [waves, 64], and a mask of the lanes that access them."""


def scalar_load(i: Instruction) -> Callable[[Waves], None]:
    """Translate s_load_dword*: load consecutive words into consecutive scalar registers."""
    base, target = i.operands["sbase"].index, i.operands["sdata"]
    by = signed(i.fields["offset"], 21) if i.fields["imm"] else 0
    offset = constant(by & 0xFFFF_FFFF_FFFF_FFFF, U64)
    more = words(i.operands["soffset"]) if "soffset" in i.operands else None
    count = target.bits // 32

    def run(w: Waves) -> None:
        address = _pair(w, base) + offset
        if more is not None:
            address = address + more(w).astype(U64)
        for k, value in enumerate(w.load_words(address & ~U64(3), count)):
            w.scalar(target.index + k, value.reshape(-1))

    return run


def vector_access(i: Instruction) -> Callable[[Waves], None]:
    """Translate global_load, global_store, buffer_load, buffer_store."""
    found = _NAME.fullmatch(i.name)
    to_local = bool(i.fields.get("lds"))
    if found is None or found[3] not in _ELEMENTS or (to_local and found[2] == "store"):
        raise Fault(f"the memory operation {i.name}")
    size, count = _ELEMENTS[found[3]]
    addresses = _global_address(i) if found[1] == "global" else _buffer_address(i)
    if found[2] == "store":
        return _store(i, addresses, size, count, 16 if found[4] else 0)
    if found[4]:
        raise Fault(f"the memory operation {i.name}")
    if to_local:
        return _load_to_local(i, addresses, size, count)
    extend = 8 * size if found[3] in ("sbyte", "sshort") else 0
    return _load(i, addresses, size, count, extend)


def _load(i: Instruction, addresses: Address, size: int, count: int, extend: int) -> Any:
    target = i.operands["vdst" if "vdst" in i.operands else "vdata"].index

    def run(w: Waves) -> None:
        for k, value in enumerate(w.load(*addresses(w, size * count), size, count)):
            w.vector(target + k, extended(value, extend))

    return run


def _load_to_local(i: Instruction, addresses: Address, size: int, count: int) -> Any:
    """Load into local memory, without registers: lanes one after another from M0 on.

    The instruction's offset counts in both memories. A lane has 4 bytes, or 16 for loads of 12 and
    16, which leave the fourth word of 12 as it is. Source: CDNA4 ISA, 9.1.9 "Memory Buffer Load to
    LDS"; CDNA3's M0 has 16 bits of address, for its smaller local memory.
    """
    if (size, count) not in ((4, 1), (4, 3), (4, 4)):
        raise Fault(f"the memory operation {i.name} into local memory")
    step = ((4 if count == 1 else 16) * np.arange(LANES)).astype(U32) + U32(i.fields["offset"])

    def run(w: Waves) -> None:
        values = w.load(*addresses(w, size * count), size, count)
        w.store_local((w.scalars[_M0, w.chosen][:, None] & U32(0x3FFFF)) + step, values, size)

    return run


def _store(i: Instruction, addresses: Address, size: int, count: int, shift: int) -> Any:
    data = i.operands["data" if "data" in i.operands else "vdata"].index

    def run(w: Waves) -> None:
        held = [w.vectors[data + k, w.chosen] >> U32(shift) for k in range(count)]
        w.store(*addresses(w, size * count), held, size)

    return run


def atomic(i: Instruction) -> Callable[[Waves], None]:
    """Translate global_atomic_cmpswap and global_atomic_add, of which each lane sees the previous.

    To swap, the first of two data words replaces the memory word if that equals the second.
    """
    addresses, data = _global_address(i), i.operands["data"].index
    target = i.operands["vdst"].index if i.fields["sc0"] else None
    swaps = i.name.endswith("cmpswap")

    def run(w: Waves) -> None:
        expected = w.vectors[data + 1, w.chosen] if swaps else None
        old = w.exchange(*addresses(w, 4), w.vectors[data, w.chosen], expected)
        if target is not None:
            w.vector(target, old)

    return run


def _global_address(i: Instruction) -> Address:
    base, index = i.operands.get("saddr"), i.operands["addr"].index
    offset = constant(signed(i.fields["offset"], 13) & 0xFFFF_FFFF_FFFF_FFFF, U64)

    def of_lanes(w: Waves, size: int) -> tuple[np.ndarray, np.ndarray]:
        low, high = (w.vectors[index + k, w.chosen] for k in (0, 1))
        return join(low, high) + offset, w.active()

    if base is None:
        return of_lanes

    def of_wave(w: Waves, size: int) -> tuple[np.ndarray, np.ndarray]:
        lane_offset = w.vectors[index, w.chosen].astype(U64)
        return _pair(w, base.index) + lane_offset + offset, w.active()

    return of_wave


def _buffer_address(i: Instruction) -> Address:
    """Compute addresses from base, stride and size in four scalar registers; refuse strides."""
    if i.fields["idxen"]:
        raise Fault(f"{i.name} with an index")
    descriptor, between = i.operands["srsrc"].index, source(i.operands["soffset"])
    offset = constant(i.fields["offset"], U64)
    lane_offset = words(i.operands["vaddr"]) if i.fields["offen"] else None

    def addresses(w: Waves, size: int) -> tuple[np.ndarray, np.ndarray]:
        low, high, records = (w.scalars[descriptor + k, w.chosen][:, None] for k in range(3))
        strided = (high >> U32(16) & U32(0x3FFF)) != 0
        w.refuse(strided, f"{i.name} through a buffer with a stride")
        inside = offset if lane_offset is None else offset + lane_offset(w).astype(U64)
        there = inside + U64(size) <= records.astype(U64)
        start = join(low, high & U32(0xFFFF)) + between(w).astype(U64)
        lanes = w.active() & there
        return np.broadcast_to(start + inside, lanes.shape), lanes

    return addresses


def _pair(w: Waves, index: int) -> np.ndarray:
    """Read two scalar registers as uint64 [waves, 1]."""
    return join(*(w.scalars[index + k, w.chosen][:, None] for k in (0, 1)))


def extended(value: np.ndarray, bits: int) -> np.ndarray:
    """Extend the sign of the low bits; leave the value if `bits` is 0."""
    if not bits:
        return value
    by = U32(32 - bits)
    return ((value << by).view(np.int32) >> by.view(np.int32)).view(U32)
